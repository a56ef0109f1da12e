"""Random numbers by a counter (`options={"rng": "counter"}`): their distribution, what seeds them, and that forward and backward see the
same ones."""

import pytest
import torch
import torch.nn.functional as F

import broach


def counted(program, **options):
    return broach.compile(program, options={"rng": "counter", **options})


def stats_of(compiled):
    return getattr(compiled, "_compiled_call", compiled).stats()


def externs(compiled):
    s = stats_of(compiled)
    assert s["compiled_calls"] >= 1, (s["reasons"], s["eager_reasons"], s["attempts"])
    return {schema for p in s["programs"] for schema in p["externs"]}


def share_is(share, p, count):
    assert abs(float(share) - p) < 5 * (p * (1 - p) / count) ** 0.5, (float(share), p)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dropout_drops_as_many_as_it_says(p, dtype):
    f = counted(lambda x: F.dropout(x, p))
    x = torch.ones(300, 500, dtype=dtype)
    f(x)
    for seed in range(3):
        torch.manual_seed(seed)
        y = f(x)
        assert y.dtype == dtype
        dropped = y == 0
        share_is(dropped.double().mean(), p, x.numel())
        eager = F.dropout(torch.ones(64, dtype=dtype), p)
        if p < 0.9:
            assert torch.equal(y[~dropped].unique(), eager[eager != 0].unique())
        for n in (1, 7, 500, 512):  # elements side by side, and below one another, are independent
            both = (dropped.flatten()[n:] & dropped.flatten()[:-n]).double().mean()
            share_is(both, p * p, x.numel() - n)
        share = dropped.double().mean(0)  # of each column
        assert (share - p).abs().max() < 5 * (p * (1 - p) / 300) ** 0.5
    assert externs(f) == {"aten::randint.low"}


def test_rates_of_none_and_all_are_eagers():
    for p in (0.0, 1.0):
        f = counted(lambda x, p=p: (F.dropout(x, p), torch.bernoulli(x, p), torch.empty_like(x).bernoulli_(p)))
        x = torch.randn(5, 6)
        for _ in range(3):
            for want, got in zip((F.dropout(x, p), *[torch.full_like(x, p)] * 2), f(x), strict=True):
                assert torch.equal(want, got)
        externs(f)


def test_bernoulli_of_a_number():
    f = counted(lambda x: (torch.bernoulli(x, 0.3), torch.empty(400, 300, dtype=torch.bool).bernoulli_(0.7)))
    x = torch.zeros(200, 600)
    f(x)
    torch.manual_seed(5)
    a, b = f(x)
    assert set(a.unique().tolist()) == {0.0, 1.0} and b.dtype == torch.bool
    share_is(a.double().mean(), 0.3, a.numel())
    share_is(b.double().mean(), 0.7, b.numel())
    assert externs(f) == {"aten::randint.low"}


def test_probabilities_by_element_and_generators_stay_the_librarys():
    generator = torch.Generator()
    f = counted(lambda x: (torch.bernoulli(x), torch.empty_like(x).bernoulli_(0.5, generator=generator)))
    try:
        f(x := torch.full((3, 3), 0.5))
        f(x)
        names = externs(f)
    except AssertionError:  # a program that holds a generator may run eagerly altogether
        return
    assert "aten::randint.low" not in names


def test_seeds_and_states_of_the_generator_mean_what_they_mean():
    f = counted(lambda x: F.dropout(x, 0.5))
    x = torch.ones(40, 50)
    f(x)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, second = f(x), f(x)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(f(x), first) and torch.equal(f(x), second)
    torch.set_rng_state(state)
    assert torch.equal(f(x), first)
    with torch.random.fork_rng():
        f(x)
    assert torch.equal(f(x), second)
    torch.manual_seed(2)
    assert not torch.equal(f(x), first)


def test_two_dropouts_of_a_call_differ():
    f = counted(lambda x: (F.dropout(x, 0.5), F.dropout(x, 0.5), F.dropout(x.t(), 0.5).t()))
    x = torch.ones(400, 400)
    f(x)
    torch.manual_seed(0)
    masks = [y == 0 for y in f(x)] + [y == 0 for y in f(x)]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            share_is((a ^ b).double().mean(), 0.5, a.numel())


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_the_backward_sees_the_forwards_numbers(p):
    def program(x, w):
        h = F.dropout(F.gelu(F.dropout(x, p) @ w), p)
        return h, h.sin()

    f = counted(program)
    for step in range(4):
        x, w = torch.ones(64, 64, requires_grad=True), torch.eye(64).requires_grad_()
        with torch.enable_grad():
            h, _ = f(x, w)
            (gx,) = torch.autograd.grad(h.sum(), x)
        assert torch.equal(gx == 0, h.detach() == 0)
    assert "aten::bernoulli_.float" not in externs(f)


def test_the_mask_is_not_saved():
    f = counted(lambda x: F.dropout(x, 0.5))
    x = torch.ones(256, 256, requires_grad=True)
    with torch.enable_grad():
        for _ in range(3):
            y = f(x)
            (g,) = torch.autograd.grad(y.sum(), x)
            assert torch.equal(g, y.detach())
    assert max(p["saved_bytes"] for p in stats_of(f)["programs"]) <= 64


def test_attention_and_other_dropouts_train():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
    f = counted(layer)
    with torch.enable_grad():
        for _ in range(4):
            x = torch.randn(2, 6, 16, requires_grad=True)
            f(x).sum().backward()
            assert x.grad.isfinite().all()
    assert externs(f) == {"aten::randint.low"}
    for drop in (F.alpha_dropout, F.dropout1d, F.dropout2d, F.feature_alpha_dropout):
        f = counted(lambda x, drop=drop: drop(x, 0.5, True))
        x = torch.randn(64, 32, 4, 4) if drop is F.dropout2d else torch.randn(64, 32, 4)
        f(x)
        y = f(x)
        assert "aten::bernoulli_.float" not in externs(f)
        share = (y != drop(x, 0.5, False)).float().mean()
        assert share > 0.3
        if drop is not F.alpha_dropout:  # channels are dropped as a whole
            same = (y == 0) if drop is not F.feature_alpha_dropout else (y == y.flatten(2)[..., :1].view(64, 32, *[1] * (y.dim() - 2)))
            assert torch.equal(same.flatten(2).all(-1), same.flatten(2).any(-1)) or drop is F.feature_alpha_dropout


def test_sizes_may_change():
    f = counted(lambda x: F.dropout(x * 2, 0.25))
    for n in (4, 6, 9, 300, 5, 700):
        torch.manual_seed(n)
        y = f(torch.ones(n, 100))
        share_is((y == 0).double().mean(), 0.25, y.numel())
        torch.manual_seed(n)
        f(torch.ones(n, 100))
    s = stats_of(f)
    assert len(s["programs"]) <= 2 and s["compiled_calls"] >= 8, (s["attempts"], s["recompilations"])


def test_eagers_numbers_are_the_default():
    f = broach.compile(lambda x: F.dropout(x, 0.5))
    x = torch.ones(30, 30)
    for _ in range(3):
        torch.manual_seed(0)
        want = F.dropout(x, 0.5)
        torch.manual_seed(0)
        assert torch.equal(f(x), want)
    assert externs(f) == {"broach::bernoulli"}


def test_what_compares_with_eager_wants_eagers_numbers():
    for name, value in (("strict", True), ("verify", 3)):
        with pytest.raises(ValueError, match=f"'rng' must be 'eager' where '{name}'"):
            counted(torch.sin, **{name: value})
    with pytest.raises(ValueError, match="must be one of 'eager', 'counter'"):
        broach.compile(torch.sin, options={"rng": "philox"})
