"""Sizes as symbols: one program for all sizes, and what it decided by a size guards it."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from broach._native import _C

R = torch.randn
W = R(8, 16)
KERNEL = R(8, 3, 3, 3)


def _mask(x):
    n = x.shape[0]
    return x.masked_fill(torch.ones(n, n, dtype=torch.bool).tril() == 0, float("-inf")).softmax(-1)


def _in_place(x):
    x.add_(1)
    x[1:].mul_(2)
    return x * 1


# name: (program, calls, compiled programs at most: the first for numbers, then one for symbols)
CASES = {
    "elementwise": (lambda x, y: torch.tanh(x * y + 1) - x, [(R(n, 8), R(n, 8)) for n in (2, 3, 5, 7, 9)], 2),
    "softmax": (lambda x: torch.softmax(x, -1), [(R(n, m),) for n, m in ((2, 3), (5, 3), (5, 9), (4, 7), (8, 8))], 3),
    "view": (lambda x: x.view(x.shape[0] * x.shape[1], -1).sum(1), [(R(n, m, 4),) for n, m in ((2, 3), (5, 9), (4, 7), (8, 8))], 2),
    "branch": (lambda x: x + 1 if x.shape[0] > 4 else x * 2, [(R(n),) for n in (2, 3, 5, 7, 9, 3, 4)], 3),
    "number": (lambda x: x.sum(0) / x.shape[0], [(R(n, 3),) for n in (2, 3, 5, 7, 9)], 2),
    "matmul": (lambda x: torch.relu(x @ W.t()).transpose(0, 1), [(R(n, 16),) for n in (2, 3, 5, 7, 9, 130, 4)], 2),
    "cat": (lambda x, y: torch.cat([x, y], 0)[1:-1], [(R(n, 4), R(m, 4)) for n, m in ((2, 3), (5, 3), (5, 9), (4, 7))], 3),
    "arange": (lambda x: x + torch.arange(x.shape[0])[:, None], [(R(n, 4),) for n in (2, 3, 5, 7)], 2),
    "mask": (_mask, [(R(n, n),) for n in (2, 3, 5, 7)], 2),
    "in place": (_in_place, [(R(n, 12),) for n in (2, 3, 5, 7)], 2),
    "integer argument": (lambda x, n: x[:n] * n, [(R(9, 12), n) for n in (2, 3, 5, 7)], 2),
    "integer results": (lambda x: (x * 2, x.shape[0], x.shape[0] * 2 + 1), [(R(n, 12),) for n in (2, 3, 5, 7)], 2),
    "convolution": (lambda x: F.conv2d(x, KERNEL, padding=1).relu(), [(R(n, 3, h, h),) for n, h in ((2, 8), (3, 10), (4, 16))], 2),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [tuple(R(2, 4, n, 8) for _ in range(3)) for n in (4, 6, 9, 20)],
        2,
    ),
    "sizes 0 and 1": (lambda x: x.softmax(-1) + 1, [(R(n, 4),) for n in (3, 5, 1, 0, 7)], 4),
}


def _compiled(program, **options):
    def flat(*args):
        result = program(*args)
        return result if isinstance(result, tuple) else (result,)

    return flat, _C.Callable(flat, None, (), options, False)


def _check(flat, compiled, calls):
    for args in calls:
        mine = tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)
        expected, got = flat(*args), compiled(*mine)
        for e, g in zip(expected + args, tuple(got) + mine):
            if isinstance(e, torch.Tensor):
                assert e.stride() == g.stride()
                torch.testing.assert_close(g, e)
            else:
                assert e == g and type(g) is int


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_one_program_serves_all_sizes(name):
    program, calls, most = CASES[name]
    flat, compiled = _compiled(program)
    _check(flat, compiled, calls)
    stats = compiled.stats()
    assert stats["eager_calls"] == 0
    assert len(stats["programs"]) <= most


@torch.no_grad()
def test_dynamic_compiles_once():
    flat, compiled = _compiled(lambda x: torch.softmax(x * 2, -1), dynamic=True)
    _check(flat, compiled, [(R(n, m),) for n, m in ((2, 3), (5, 3), (5, 9), (4, 7), (8, 8))])
    assert len(compiled.stats()["programs"]) == 1


@torch.no_grad()
def test_a_program_that_does_not_bear_symbols_is_as_if_it_had_run_once():
    def program(x):
        x.add_(1)
        if not isinstance(x.shape[0], int):
            raise TypeError("a plain integer is needed")
        return x * 2

    flat, compiled = _compiled(program)
    _check(flat, compiled, [(R(n, 3),) for n in (2, 3, 4, 5)])


@torch.no_grad()
def test_a_tensor_that_the_program_keeps_is_a_plain_one():
    kept = []

    def program(x):
        y = x * 2
        kept.append(y)
        return y + 1

    flat, compiled = _compiled(program)
    for n in (2, 3, 4):
        x = R(n, 3)
        torch.testing.assert_close(compiled(x)[0], x * 2 + 1)
    assert torch.is_tensor(kept[-1] + 1)
