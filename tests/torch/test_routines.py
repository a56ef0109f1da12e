"""Scans, sorts, searches and scattered writes against eager: equal elements, NaN, long lines, other layouts, errors."""

from __future__ import annotations

import direct
import pytest
import torch

REAL = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]
ids = str


def numbers(dtype: torch.dtype, *sizes: int, distinct: int = 9) -> torch.Tensor:
    """Few distinct values, NaN and both zeros among them."""
    x = torch.randint(0, distinct, sizes)
    if not dtype.is_floating_point:
        return x.to(dtype)
    x = (x - distinct // 2).to(dtype)
    x[torch.rand(sizes) < 0.05] = float("nan")
    return torch.where((x == 0) & (torch.rand(sizes) < 0.5), -x, x)


def native(fn, *tensors, **options):
    compiled = direct.check(fn, *tensors, **options)
    assert compiled.way == "native", compiled.externs
    return compiled


@pytest.mark.parametrize("dtype", REAL, ids=ids)
def test_order(dtype):
    x = numbers(dtype, 6, 70)
    for t in (x, x.t(), x[:, ::2], x[0]):
        for descending in (False, True):
            native(lambda a: (a.sort(descending=descending), a.sort(dim=0, descending=descending, stable=True)), t)
            if dtype != torch.bool:
                native(lambda a: (a.topk(5, largest=descending), a.topk(3, 0, descending, sorted=False), a.topk(1)), t)
        if dtype != torch.bool:
            native(lambda a: (a.kthvalue(2), a.kthvalue(4, 0, keepdim=True), a.median(), a.nanmedian()), t)
            native(lambda a: (a.median(0), a.nanmedian(-1, keepdim=True)), t)
        native(lambda a: a.nan_to_num().mode(-1) if a.is_floating_point() else a.mode(0), t)


@pytest.mark.parametrize("dtype", REAL, ids=ids)
@pytest.mark.parametrize("distinct", [20, 100])
def test_long_lines(dtype, distinct):
    x = numbers(dtype, 50000, distinct=distinct)
    native(lambda a: (a.sort(), a.sort(stable=True), a.sort(descending=True), a.argsort(stable=True)), x)
    if dtype != torch.bool:
        native(lambda a: (a.topk(10), a.topk(20000), a.kthvalue(20), a.median(0)), x)


@pytest.mark.parametrize("dtype", REAL, ids=ids)
def test_scans(dtype):
    x = numbers(dtype, 5, 66, 3, distinct=3)
    for t in (x, x.permute(1, 2, 0), x[:, ::3]):
        for dim in (0, 1, -1):
            native(lambda a: (a.cumsum(dim), a.cumprod(dim), a.cummax(dim), a.cummin(dim)), t)
            if dtype.is_floating_point:
                native(lambda a: a.logcumsumexp(dim), t)
    native(lambda a: (a.reshape(-1)[0].cumsum(0), a.reshape(-1)[0].cummax(0)), x)


def test_scan_between_kernels():
    x = torch.rand(8, 100)
    compiled = native(lambda a: (a * 2 + 1).cumsum(-1).log() - a, x)
    stats = compiled.stats()["programs"][0]
    assert (stats["kernels"], stats["routines"]) == (2, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8], ids=ids)
def test_search(dtype):
    line, lines, values = numbers(dtype, 40).sort().values, numbers(dtype, 3, 40).sort().values, numbers(dtype, 3, 7)
    native(lambda a, v: (torch.searchsorted(a, v), torch.searchsorted(a, v, right=True, out_int32=True), torch.bucketize(v, a)), line, values)
    native(lambda a, v: torch.searchsorted(a, v, side="right"), lines, values)
    shuffled = numbers(dtype, 3, 40)
    native(lambda a, v: torch.searchsorted(a, v, sorter=torch.argsort(a, stable=True)), shuffled, values)


def test_empty():
    for sizes in ((0,), (0, 3), (3, 0)):
        x = torch.rand(sizes)
        native(lambda a: (a.sort(), a.cumsum(0), a.cummax(0), a.topk(0, 0)), x)


@pytest.mark.parametrize("dtype", REAL, ids=ids)
def test_scatter(dtype):
    x, source = numbers(dtype, 12, 20), numbers(dtype, 9, 20)
    index, rows = torch.randint(0, 12, (9, 15)), torch.randint(0, 12, (9,))
    native(lambda a, i, s: (a.scatter(0, i, s), a.scatter(0, i, 1), a.scatter_add(0, i, s)), x, index, source)
    native(lambda a, i, s: (a.index_copy(0, i, s), a.index_fill(0, i, 1)), x, torch.randperm(12)[:9], source)
    for how in ("sum", "amin", "amax", "prod") + (() if dtype == torch.bool else ("mean",)):
        for include in (True, False):
            tame = source.nan_to_num() if how in ("prod", "mean", "sum") and dtype.is_floating_point else source
            native(lambda a, i, s: a.scatter_reduce(0, i, s, how, include_self=include), x.t().contiguous().t(), index, tame)
            if dtype != torch.bool and how != "sum":
                native(lambda a, i, s: a.index_reduce(0, i, s, how, include_self=include), x, rows, tame)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool], ids=ids)
@pytest.mark.parametrize("accumulate", [False, True])
def test_put(dtype, accumulate):
    x = numbers(dtype, 6, 7, 8)
    # Positions in rows and columns, negative ones too; without accumulation none twice, since eager orders such writes as it likes.
    flat = torch.randint(0, 48, (2, 20)) if accumulate else torch.randperm(48)[:40].view(2, 20)
    i, j = flat // 8 - 6 * (flat % 2), flat % 8 - 8 * (flat % 3 == 0)
    put = torch.ops.aten.index_put
    native(lambda a, p, q, s: put(a, [p, None, q], s, accumulate), x, i, j, numbers(dtype, 2, 20, 7))
    native(lambda a, p, q, s: put(a, [None, p, q], s, accumulate), x, torch.arange(6).view(2, 3), flat[:, :3] % 8, numbers(dtype, 1, 3))
    native(lambda a, p, s: put(a, [p], s, accumulate), x, torch.arange(-6, 6 if accumulate else 0), numbers(dtype, 7, 8))
    native(lambda a, p, s: a.put(p, s, accumulate), x, torch.randperm(336)[:50] - 100, numbers(dtype, 50))


@pytest.mark.parametrize("dtype", REAL, ids=ids)
def test_positions_counted_by_a_mask(dtype):
    x = numbers(dtype, 6, 7, 8)
    native(lambda a, m, s: a.masked_scatter(m, s), x, torch.rand(6, 7, 8) < 0.4, numbers(dtype, 400))
    native(lambda a, m, s: a.masked_scatter(m, s), x, torch.rand(7, 1) < 0.4, numbers(dtype, 400))
    native(lambda a: (torch.nonzero_static(a, size=30), torch.nonzero_static(a, size=500, fill_value=7)), x)


def test_embedding_backward():
    grad, index = torch.rand(4, 30, 16), torch.randint(0, 50, (4, 30))
    for scale in (False, True):
        native(lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 50, 3, scale), grad, index)


def test_unpool():
    x, index = torch.nn.functional.max_pool2d(torch.rand(2, 3, 8, 10), 2, return_indices=True)
    native(lambda a, i: torch.nn.functional.max_unpool2d(a, i, 2), x, index)


def test_in_place_into_an_input():
    def fn(a, i, s, rows):
        a.scatter_add_(0, i, s)
        a.t().index_copy_(1, rows, s[:4].t() * 2)
        return a.sum()

    native(fn, torch.rand(12, 20), torch.randint(0, 12, (9, 20)), torch.rand(9, 20), torch.tensor([3, 0, 11, 5]))


def test_an_index_outside_is_an_error():
    x, index, source = torch.rand(40, 50), torch.randint(0, 40, (20, 50)), torch.rand(20, 50)
    programs = {
        "scatter": lambda a, i, s: a.scatter(0, i, s),
        "scatter_add": lambda a, i, s: a.scatter_add(0, i, s),
        "put": lambda a, i, s: a.put(i, s),
        "index_put": lambda a, i, s: a.index_put((i,), s[0, 0], True),
        "index_add": lambda a, i, s: a.index_add(0, i[:, 0], s),
    }
    for name, program in programs.items():
        compiled = direct.compile_direct(program, x, index, source)
        assert compiled.way == "native", (name, compiled.externs)
        bad = index.clone()
        bad[3, 0] = 5000
        with pytest.raises((IndexError, RuntimeError), match="out of (range|bounds)"):
            compiled(x, bad, source)
