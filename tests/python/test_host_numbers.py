"""Numbers that a compiled program draws for eager: the same ones, and the generator goes on as eager's would."""

import pytest
import torch
import torch.nn.functional as F

import broach


def both(f, compiled, *args, before=0):
    """What eager and the compiled call give from the same state, and the numbers that come next."""
    got = []
    for run in (f, compiled):
        torch.manual_seed(7)
        if before:
            torch.rand(before)
        got.append((run(*args), torch.rand(3), torch.randn(3, dtype=torch.float64), torch.get_rng_state()))
    return got


def assert_same(got):
    (expected, *after), (result, *after_it) = got
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-6)  # a factor may be rounded once instead of twice
    for a, b in zip(after, after_it):
        assert torch.equal(a, b)


@pytest.mark.parametrize("before", [0, 1, 2, 311, 623, 624, 625])  # numbers of the state that are used up
@pytest.mark.parametrize("size", [0, 1, 2, 155, 311, 312, 313, 624, 1000, 5003])
def test_sizes_from_any_place_of_the_state(size, before):
    f = lambda x: F.dropout(x, 0.3) * 2  # noqa: E731
    compiled = broach.compile(f)
    x = torch.randn(size)
    compiled(x)
    assert_same(both(f, compiled, x, before=before))


@pytest.mark.parametrize("p", [0.0, 1e-12, 0.1, 0.5, 1 / 3, 0.999999999, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool])
def test_probabilities_and_element_types(p, dtype):
    f = lambda x: torch.empty_like(x).bernoulli_(p) + x  # noqa: E731
    compiled = broach.compile(f)
    x = torch.ones(40, 33).to(dtype)
    compiled(x)
    assert_same(both(f, compiled, x))


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels last", "gaps", "expanded"])
def test_layouts(layout):
    x = {
        "contiguous": torch.randn(2, 6, 5, 7),
        "transposed": torch.randn(7, 5, 6, 2).permute(3, 2, 1, 0),
        "channels last": torch.randn(2, 6, 5, 7).to(memory_format=torch.channels_last),
        "gaps": torch.randn(2, 6, 5, 14)[..., ::2],
        "expanded": torch.randn(2, 1, 5, 7).expand(2, 6, 5, 7),
    }[layout]
    for f in (lambda x: F.dropout(x, 0.4) + 1, lambda x: F.dropout1d(x[0], 0.4) + 1, lambda x: F.alpha_dropout(x, 0.4) * 2):
        compiled = broach.compile(f)
        compiled(x)
        assert_same(both(f, compiled, x))


def test_a_part_of_a_tensor_is_written():
    def f(x):
        y = x.clone()
        y[1:3].bernoulli_(0.25)
        y[:, 2].bernoulli_(0.75)
        y.t()[0].bernoulli_(0.5)
        return y * 3

    compiled = broach.compile(f)
    x = torch.randn(8, 8)
    compiled(x)
    assert_same(both(f, compiled, x))


def test_sizes_that_change_and_what_is_dropped_unused():
    def f(x):
        F.dropout(x, 0.5)  # for nothing but its effect on the generator
        return F.dropout(F.dropout(x, 0.2).sin(), 0.7)

    compiled = broach.compile(f)
    for n in (5, 9, 1, 130, 700, 9):
        assert_same(both(f, compiled, torch.randn(n, 3)))


def test_another_generator_and_a_tensor_of_probabilities():
    def draws(x, p):
        return torch.empty_like(x).bernoulli_(0.5) + torch.empty_like(x).bernoulli_(p) + torch.bernoulli(p)

    compiled = broach.compile(draws)
    x, p = torch.randn(30), torch.rand(30)
    compiled(x, p)
    assert_same(both(draws, compiled, x, p))

    def own(x, generator):
        return torch.empty_like(x).bernoulli_(0.5, generator=generator) * 2

    compiled = broach.compile(own)
    for _ in range(3):
        assert torch.equal(compiled(x, torch.Generator().manual_seed(3)), own(x, torch.Generator().manual_seed(3)))


def test_a_probability_that_is_none():
    compiled = broach.compile(lambda x, p: torch.empty_like(x).bernoulli_(p) * 2)
    compiled(torch.ones(3), 0.5)
    with pytest.raises(RuntimeError, match="p="):
        compiled(torch.ones(3), 1.5)


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_gradients(budget):
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.4), torch.nn.GELU(), torch.nn.Linear(32, 4), torch.nn.Dropout(0.1))
    compiled = broach.compile(model, options={"memory_budget": budget})
    with torch.enable_grad():
        for n in (3, 8, 8, 21):
            x = torch.randn(n, 16)
            got = []
            for run in (model, compiled):
                torch.manual_seed(n)
                model.zero_grad()
                run(x).square().mean().backward()
                got.append([p.grad.clone() for p in model.parameters()] + [torch.rand(2)])
            for expected, result in zip(*got):
                torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_no_call_of_torch_is_left():
    report = broach.explain(lambda x: F.dropout(x, 0.3) + 1, torch.randn(50, 50))
    assert [name for name, _ in report.externs] == ["broach::bernoulli"], report.eager_reasons
