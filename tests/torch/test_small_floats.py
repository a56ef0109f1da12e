"""Floats of 8 bits, which are stored and converted and in which nothing is computed: conversions, moves, and programs around them."""

import pytest
import torch

import broach
from direct import Direct

TYPES = [torch.float8_e4m3fn, torch.float8_e5m2]
# Before torch 2.13 what is too large becomes NaN in a tensor's conversion: there the types are left to torch.
SATURATES = not torch.tensor(1e4).to(torch.float8_e4m3fn).isnan().item()
OTHERS = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool]


def _bits(t):
    """Comparable bit for bit; which NaN it is nobody says."""
    return torch.where(t.float().isnan(), 0x7F, t.view(torch.uint8)) if t.dtype in TYPES else t


def _check(function, *args, externs=(), **options):
    with torch.no_grad():
        expected, compiled = function(*[a.clone() for a in args]), Direct(function, **options)
        for _ in range(2):
            actual = compiled(*[a.clone() for a in args])
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(_bits(actual), _bits(expected), rtol=0, atol=0, equal_nan=True)
    assert not SATURATES or set(compiled.externs) == set(externs)


def _every_value(dtype):
    return torch.arange(256, dtype=torch.uint8).view(dtype)


def _numbers(dtype):
    """Every number of the type, those half way between two and a hair beside them, and what is too large."""
    x = _every_value(dtype).float()
    x = x[x.isfinite()].sort().values
    middle = (x[1:] + x[:-1]) / 2
    far = torch.tensor([float("inf"), -float("inf"), float("nan"), 464.0, 465.0, 480.0, 61439.0, 61440.0, 1e9, -1e9, 1e-40])
    return torch.cat([x, middle, middle.nextafter(x[1:]), middle.nextafter(x[:-1]), far, far.new_zeros(3)])


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("other", OTHERS)
def test_conversions(dtype, other, target):
    x = _every_value(dtype)
    if not other.is_floating_point:
        x = x[x.float().isfinite() & (x.float().abs() < 100)]
    _check(lambda x: x.to(other), x if other != torch.uint8 else x[x.float() >= 0], target=target)
    numbers = _numbers(dtype) if other.is_floating_point else torch.arange(-3, 40)
    _check(lambda x: x.to(dtype), numbers.to(other), target=target)
    _check(lambda x: (x * 0.37).to(dtype), numbers.to(other), target=target)


@pytest.mark.parametrize("dtype", TYPES)
def test_between_the_two(dtype):
    for other in TYPES:
        _check(lambda x: x.to(other), _every_value(dtype))


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_rounding_in_between_stays(dtype, target):
    x = torch.randn(7, 33) * 100
    _check(lambda x: x.to(dtype).to(torch.float32) * 0.5, x, target=target)
    _check(lambda x: x.bfloat16().to(dtype).bfloat16(), x, target=target)
    _check(lambda x: (x / x.abs().amax() * 448).clamp(-448, 448).to(dtype).float().sum(-1, keepdim=True).sign(), x, target=target)


@pytest.mark.parametrize("dtype", TYPES)
def test_moves(dtype):
    x = _every_value(dtype).reshape(16, 16)
    _check(lambda x: x.t().reshape(-1)[3:200:2], x)
    _check(lambda x: torch.cat([x, x[:3]]).float(), x)
    _check(lambda x: x.clone().view(torch.uint8) + 1, x)
    _check(lambda x: x[:, None].expand(16, 3, 16).contiguous(), x)
    _check(lambda x: torch.full((5,), 3.3, dtype=dtype).float() + x[0, 0].float(), x)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.skipif(not SATURATES, reason="the types are left to torch there, and writes into windows of them to eager")
def test_writes(dtype):
    def program(x, y):
        cache = torch.zeros(8, 6, dtype=dtype)
        cache[2:4] = x
        cache[5].copy_(y[0])
        return cache.float() * 2

    _check(program, torch.randn(2, 6), torch.randn(2, 6).to(dtype))


def test_what_eager_computes_in_it_is_left_to_it():
    x = torch.randn(8, 5).to(torch.float8_e4m3fn)
    _check(lambda x: x * x, x, externs=["aten::mul.Tensor"])


def test_weights_with_scales_and_other_sizes():
    weight, scale = torch.randn(24, 16).to(torch.float8_e4m3fn), torch.rand(24, 1) + 0.5

    def program(x):
        return torch.relu(x @ (weight.to(torch.bfloat16) * scale.bfloat16()).t()).to(torch.float8_e5m2)

    with torch.no_grad():
        fast = broach.compile(program)
        for rows in (3, 4, 5, 6, 7):
            x = torch.randn(rows, 16).bfloat16()
            fast(x)
            torch.testing.assert_close(fast(x).float(), program(x).float(), rtol=0.26, atol=1e-2)
