"""Unsigned integers of 16 bits: every value through every conversion, and moves."""

import pytest
import torch
from direct import Direct

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool]


def _check(function, *args, **options):
    expected, compiled = function(*args), Direct(function, **options)
    for _ in range(2):
        actual = compiled(*args)
    assert actual.dtype == expected.dtype and not compiled.externs
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("other", TYPES, ids=str)
def test_conversions(other, target):
    every = torch.arange(65536).to(torch.int16).view(torch.uint16)
    every = every if target == "cpu" else every[::97].contiguous()
    _check(lambda x: x.to(other), every, target=target)
    numbers = torch.tensor([-1.0, -3.7, 65535.6, 70000.0, 2.1e9, 2.2e9, -2.2e9, 1e19, float("nan"), float("inf")])
    numbers = numbers if other.is_floating_point else torch.tensor([-1, -70000, 65535, 70000, 2**31 - 1])
    _check(lambda x: x.to(torch.uint16), numbers.to(other), target=target)


def test_moves_and_constants():
    x = torch.arange(256).to(torch.uint16).reshape(16, 16)
    _check(lambda x: torch.cat([x.t(), x[:3]]).float(), x)
    _check(lambda x: torch.full((4,), -5).to(torch.uint16).float() + x[0, 0].float(), x)
