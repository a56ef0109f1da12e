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
