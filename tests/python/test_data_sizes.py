"""Sizes and integers that depend on data: one compiled program serves those that the data of a call leads to, with eager's results,
what the program decides by them compared as it runs, and nothing written by a run that turns out not to fit."""

from __future__ import annotations

import math

import broach
import pytest
import torch
from compared import difference, native, r, stats
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def _no_grad():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def agree(program, make, calls=12, most=3, compiled=None):
    """Calls both with changing data; a capture or so for each way that was met."""
    compiled = compiled or native(program)
    for i in range(calls):
        given = make(i)
        kept = [g.clone() if isinstance(g, torch.Tensor) else g for g in given]
        want, got = program(*kept), compiled(*given)
        assert not (why := difference(want, got)), (why, i)
        assert not (why := difference(kept, list(given), where="arguments")), (why, i)
    told = stats(compiled)
    assert told["front"] == "native", told["reasons"]
    assert told["captures"] <= most and told["compiled_calls"] >= calls - most, (told["captures"], told["recompilations"], told["eager_reasons"])
    return compiled


WEIGHTS = torch.randn(4, 8, 8)
GATE = torch.randn(8, 4)


def _experts_by_where(x):
    weight, chosen = (x @ GATE).softmax(-1).topk(2, -1)
    out = torch.zeros_like(x)
    for e in range(4):
        token, place = torch.where(chosen == e)
        out.index_add_(0, token, (x[token] @ WEIGHTS[e]).relu() * weight[token, place, None])
    return out


def _experts_by_nonzero(x):
    chosen = (x @ GATE).argmax(-1)
    out = torch.zeros_like(x)
    for e in range(4):
        token = (chosen == e).nonzero().squeeze(-1)
        out[token] = x[token] @ WEIGHTS[e]
    return out


def _put_back(x):
    mask = x > 0
    y = x.clone()
    y[mask] = x[mask].exp()
    return y


def _writes_its_argument(x):
    x.mul_(2)
    picked = x[x > 0]
    x.add_(picked.mean())
    return picked, x


def _in_a_chain(x):
    y = x[x > 0]
    z = y[y > y.mean()] * 2
    return z.cumsum(0), z.numel(), y.shape[0] + z.shape[0]


def _counts(x):
    values, where, counts = x.unique(return_inverse=True, return_counts=True)
    return values * 2, counts / x.numel(), values[where] - x


SIZES = {
    "nonzero": (lambda x: (x > 0).nonzero() * 2, lambda i: (r(6, 7),)),
    "argwhere": (lambda x: torch.argwhere(x > 0).float().mean(0), lambda i: (r(6, 7),)),
    "where": (lambda x: torch.where(x > 0), lambda i: (r(6, 7),)),
    "masked_select": (lambda x: torch.masked_select(x, x > 0).sum(), lambda i: (r(40),)),
    "masked_select broadcast": (lambda x, m: x.masked_select(m) + 1, lambda i: (r(6, 7), torch.rand(7) > 0.3)),
    "mask": (lambda x: x[x > 0] * 2, lambda i: (r(5, 9),)),
    "rows": (lambda x: x[x.sum(1) > 0].softmax(-1), lambda i: (r(30, 5),)),
    "mask behind": (lambda x, m: x[:, m] - x[:, m].mean(1, True), lambda i: (r(4, 20), torch.rand(20) > 0.4)),
    "a mask and an index": (lambda x, m, k: x[m, k], lambda i: (r(20, 5), torch.rand(20) > 0.4, torch.tensor(3))),
    "put back": (_put_back, lambda i: (r(6, 7),)),
    "written": (_writes_its_argument, lambda i: (r(30),)),
    "a chain": (_in_a_chain, lambda i: (r(60),)),
    "repeat_interleave": (lambda x, n: x.repeat_interleave(n, 0).cumsum(0), lambda i: (r(5, 3), torch.randint(1, 6, (5,)))),
    "unique": (_counts, lambda i: (torch.randint(0, 20, (15,)),)),
    "unique along": (lambda x: x.unique(dim=0) + 1, lambda i: (torch.randint(0, 2, (12, 3)),)),
    "unique consecutive": (lambda x: torch.unique_consecutive(x, return_counts=True), lambda i: (torch.randint(0, 3, (20,)),)),
    "bincount": (lambda x: x.bincount().float() / x.numel(), lambda i: (torch.randint(0, 4 + 2 * i, (40,)),)),
    "packed": (lambda x, m: (x[m] @ WEIGHTS[0]).relu().mean(0), lambda i: (r(4, 10, 8), torch.rand(4, 10) > 0.4)),
    "experts by where": (_experts_by_where, lambda i: (r(64, 8),)),
    "experts by nonzero": (_experts_by_nonzero, lambda i: (r(64, 8),)),
    "made by a count": (lambda x: torch.arange(x[x > 0].numel()) * 2 + torch.ones((x > 0).nonzero().shape[0]), lambda i: (r(40),)),
    "number of a count": (lambda x: x * x[x > 0].numel() + x[x > 0].shape[0] / 7, lambda i: (r(40),)),
    "a changing size too": (lambda x: (x[x > 0].sum(), x * 2), lambda i: (r(40 + i),)),
}


@pytest.mark.parametrize("name", SIZES)
def test_one_program_serves_all_counts(name):
    agree(*SIZES[name])


def test_no_element_and_one():
    program = lambda x: (x[x > 0] * 2, x[x > 0].shape)  # noqa: E731
    compiled = native(program)
    for count in (5, 7, 0, 1, 3, 0, 1, 9, 2):
        x = torch.cat([torch.ones(count), -torch.ones(4)])[torch.randperm(count + 4)] if count else -torch.ones(4)
        assert not (why := difference(program(x), compiled(x))), why


def test_what_is_decided_by_a_count_is_compared():
    def program(x):
        y = x[x > 0]
        return y * 2 if y.shape[0] > 10 else y - 1

    compiled = native(program)
    for i in range(30):
        x = r(20)
        assert not (why := difference(program(x), compiled(x))), why
    told = stats(compiled)
    assert told["captures"] <= 3 and told["other_ways"] > 0, (told["captures"], told["recompilations"])


def test_counts_that_must_be_equal():
    def program(x, y):
        return x[x > 0] + y[y > 0]

    compiled = native(program)
    for n in (4, 6, 5, 3):
        x, y = (torch.cat([torch.rand(n) + 0.1, -torch.rand(5)]) for _ in range(2))
        assert not (why := difference(program(x, y), compiled(x, y))), why
    for _ in range(2):
        with pytest.raises(RuntimeError, match="size"):
            compiled(torch.ones(5), torch.cat([torch.ones(4), -torch.ones(1)]))
    x, y = torch.ones(5), torch.cat([torch.ones(1), -torch.ones(4)])  # which broadcasts
    assert not (why := difference(program(x, y), compiled(x, y))), why


def test_a_count_that_must_be_even():
    program = lambda x: x[x > 0].view(-1, 2).sum(1)  # noqa: E731
    compiled = native(program)
    for n in (4, 6, 8, 10, 4):
        x = torch.cat([torch.rand(n) + 0.1, -torch.rand(5)])
        assert not (why := difference(program(x), compiled(x))), why
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shape"):
            compiled(torch.ones(5))
    assert stats(compiled)["captures"] <= 4


def test_random_numbers_and_writes_of_a_run_that_does_not_fit():
    def program(x, buffer):
        buffer.add_(1)
        noise = torch.rand(3)
        y = x[x > 0]
        if y.numel() > 5:
            buffer.mul_(noise[0])
        return y.sum() + noise, torch.rand(2)

    compiled = native(program)
    for seed in range(30):
        x, first, second = r(10), torch.zeros(3), torch.zeros(3)
        torch.manual_seed(seed)
        want = program(x, first)
        torch.manual_seed(seed)
        assert not (why := difference((want, first), (compiled(x, second), second))), why
    assert stats(compiled)["other_ways"] > 0


def test_elements_are_told_of_in_explain():
    compiled = native(lambda x: x[x > 0] * 2)
    for _ in range(3):
        compiled(r(20))
    told = broach.explain(compiled, r(20))
    assert any("known as it runs" in g for g in told.guards), told.guards


INTEGERS = {
    "sizes": (lambda n: (torch.arange(n.max().item()) * 2, torch.zeros(n.max().item(), 2)), lambda i: (torch.randint(2, 30, (4,)),)),
    "a slice": (lambda x, n: x[: n.max().item()] * 2, lambda i: (r(40), torch.randint(2, 30, (4,)))),
    "a mask of lengths": (lambda x, n: (torch.arange(n.max().item())[None] < n[:, None]) * x[:, : n.max().item()].mean(-1), lambda i: (r(3, 30, 4), torch.randint(2, 30, (3,)))),
    "arithmetic": (lambda x, n: x * n.item() + n.item() // 2 - n.item() / 3, lambda i: (r(5), torch.randint(2, 90, (1,)))),
    "a result": (lambda x: (x.sum().item(), x * 2), lambda i: (torch.randint(2, 90, (4,)),)),
    "lengths": (lambda x, n: torch.cat([x[k, :m] for k, m in enumerate(n.tolist())]), lambda i: (r(2, 12, 3), torch.randint(2, 12, (2,)))),
    "split": (lambda x, n: [t.sum() for t in x[: sum(n.tolist())].split(n.tolist())], lambda i: (r(40), torch.randint(2, 12, (3,)))),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_one_program_serves_all_integers(name):
    agree(*INTEGERS[name])


def test_integers_that_decide():
    def program(x):
        n = (x > 0).sum().item()
        return x * n if n % 2 else x - n

    agree(program, lambda i: (r(20),), calls=20, most=5)


def test_integers_that_count_loops_are_bounded():
    def program(x, n):
        for _ in range(n.item()):
            x = x * 1.5
        return x

    compiled = native(program)
    for i in range(12):
        x, n = r(4), torch.tensor(2 + i % 5)
        assert not (why := difference(program(x, n), compiled(x, n))), why
    assert stats(compiled)["captures"] <= 7


def test_a_plain_integer_is_one_way_each():
    program = lambda x, n: x[: int(n.max())] * 2  # noqa: E731
    compiled = native(program)
    for i in range(12):
        x, n = r(40), torch.tensor([2 + i % 4, 1])
        assert not (why := difference(program(x, n), compiled(x, n))), why
    assert stats(compiled)["captures"] <= 6


FUNCTIONS = {
    "sqrt": lambda x: x * math.sqrt(abs(x.sum().item())),
    "exp": lambda x: x * math.exp(-x.square().mean().item()),
    "log": lambda x: x + math.log(x.abs().sum().item() + 1) + math.log2(3),
    "of a count": lambda x: x / math.sqrt(x[x > 0].numel()),
    "of an integer": lambda x: x / math.sqrt((x > 0).sum().item()),
    "tanh": lambda x: (math.tanh(x.sum().item()) * x, math.cos(x.sum().item()) + math.fabs(x[0].item())),
    "finite": lambda x: x / x.norm().item() if math.isfinite(x.norm().item()) and not math.isnan(x[0].item()) else x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_what_is_read(name):
    program = FUNCTIONS[name]
    compiled = native(program)
    for _ in range(12):
        x = r(20)
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-4, atol=1e-5)  # numbers among the results too
    told = stats(compiled)
    assert told["captures"] <= 3 and told["compiled_calls"] >= 9, (told["captures"], told["recompilations"], told["eager_reasons"])


def test_functions_of_numbers_among_the_arguments():
    compiled = native(lambda x, t: x * math.sqrt(t) + math.exp(-t))
    for t in (0.5, 2.0, 3.0, 0.1, 7.0):
        assert torch.equal(compiled(torch.ones(3), t), torch.ones(3) * math.sqrt(t) + math.exp(-t))
    assert stats(compiled)["captures"] == 2
    for _ in range(2):
        with pytest.raises(ValueError):
            compiled(torch.ones(3), -1.0)
        with pytest.raises(OverflowError):
            native(lambda x, t: x * math.exp(t))(torch.ones(3), 800.0)


def test_errors_of_functions_of_elements_are_raised():
    compiled = native(lambda x: x * math.log(x.sum().item()))
    for _ in range(4):
        x = torch.rand(5)
        torch.testing.assert_close(compiled(x), x * math.log(x.sum().item()))
    for _ in range(2):
        with pytest.raises(ValueError):
            compiled(-torch.ones(5))
    nan = torch.full((5,), math.nan)
    assert compiled(nan).isnan().all()


def test_the_functions_are_the_librarys_again():
    before = (math.sqrt, math.isnan, torch.Tensor.tolist, isinstance(torch.SymInt, type))
    agree(FUNCTIONS["sqrt"], lambda i: (torch.rand(5) + 1,), calls=5)
    assert (math.sqrt, math.isnan, torch.Tensor.tolist, isinstance(torch.SymInt, type)) == before
    assert "__class__" not in vars(torch.SymInt) and "tolist" not in vars(torch.Tensor)


def _by_isinstance(x):
    return x * 2 if isinstance(x.shape[0], int) else x * 100


def _by_type(x):
    return x * 2 if type(x.shape[0]) is int else x * 100


def _by_type_among(x):
    return x * 2 if type(x.shape[0]) in (int, float) else x * 100


def _fraction_by_isinstance(x):
    return x * 2 if isinstance(x.sum().item(), float) else x * 100


def _fraction_by_type(x):
    return x * 2 if type(x.sum().item()) == float else x * 100  # noqa: E721


def _integer_by_isinstance(x):
    return x * 2 if isinstance((x > 0).sum().item(), int) else x * 100


@pytest.mark.parametrize("program", [_by_isinstance, _by_type, _by_type_among, _fraction_by_isinstance, _fraction_by_type, _integer_by_isinstance])
def test_a_program_that_asks_for_the_type_of_a_number(program):
    compiled = broach.compile(program)
    for n in (3, 4, 5, 6, 5):
        x = torch.cat([torch.ones(n), -torch.ones(2)])
        assert torch.equal(compiled(x), x * 2)


def test_one_row_of_memory_in_another_order():
    program = lambda x: x[: (x > 0).sum().item()] * 2  # noqa: E731
    compiled = native(program)
    for count, step in ((2, 1), (2, 2), (1, 1), (1, 2), (1, 3), (1, 1), (1, 2), (1, 4), (1, 1)):
        x = -torch.ones(4 * step, 2).t()[:, ::step]
        x[0, :count] = 1
        assert not (why := difference(program(x), compiled(x))), why


def test_results_that_come_to_need_gradients():
    weight = torch.randn(4)
    compiled = native(lambda x: x[x.sum(1) > 0] * weight)
    for _ in range(3):
        compiled(r(20, 4))
    weight.requires_grad_()
    x = r(20, 4)
    with torch.enable_grad():
        assert compiled(x).requires_grad
    assert not (why := difference(x[x.sum(1) > 0] * weight, compiled(x))), why


def test_results_of_other_functions_while_sizes_are_symbols():
    program = lambda x: F.pad(x[x > 0], (0, 3)).view(1, -1).expand(2, -1)  # noqa: E731
    agree(program, lambda i: (r(30),))


def test_what_is_computed_once_is_read_behind_a_size():
    weight, scale = torch.randn(8, 8), torch.randn(8)
    compiled = agree(lambda x: x[(x @ weight.exp()).sum(1) > 0] * scale.exp(), lambda i: (r(20, 8),))
    assert stats(compiled)["programs"][0]["kept"]
    captures = stats(compiled)["captures"]
    for changed in (weight, scale):
        changed.mul_(-0.5)
        agree(lambda x: x[(x @ weight.exp()).sum(1) > 0] * scale.exp(), lambda i: (r(20, 8),), compiled=compiled)
    assert stats(compiled)["captures"] == captures


def test_a_chain_of_slices_written_one_by_one():
    """As a Runge-Kutta method of many stages: who read each slice anew through all before it would not come to an end."""

    def program(x):
        counts = x.round().unique(return_counts=True)[1]
        if (counts > 100).any():
            raise ValueError
        stages = x.new_empty(3, 61)
        stages[:, 0] = x
        for i in range(60):
            stages[:, i + 1] = x + stages[:, : i + 1].mean(1)
        return stages, counts

    agree(program, lambda i: (r(3),), calls=4)
