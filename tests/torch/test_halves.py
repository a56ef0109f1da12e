"""Functions of bf16, which are computed to a few bits more than it has: every one of its 65536 values."""

import pytest
import torch
from torch.nn import functional

import broach

FUNCTIONS = {
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
}
HALF_UNIT, COARSE = 2.0**-8, 2.0**-11  # of a rounding to bf16, and of the functions themselves


def _every_value():
    return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)


def _compiled(function, *args, **options):
    with torch.no_grad():
        fast = broach.compile(function, options=options)
        fast(*args)
        return fast(*args)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_value(name):
    function, x = FUNCTIONS[name], _every_value()
    actual, exact = _compiled(lambda x: function(x), x), function(x.double())
    finite = x.isfinite()
    assert torch.equal(actual.isnan()[finite], exact.isnan()[finite])
    # What eager computes in fp32 under- and overflows where fp64 does not.
    in_range = finite & (exact.abs() > 2.0**-100) & (exact.abs() < 2.0**127)
    allowed = (HALF_UNIT + COARSE) * exact.abs()
    if "gelu" in name:
        in_range &= x > -5
        # Without permutations for polynomials by interval (AVX-512) the formula is eager's, where 1 is added to nearly -1, in fp32.
        allowed += x.double().abs() * 2.0**-24
    assert ((actual.double() - exact).abs() <= allowed)[in_range].all()
    torch.testing.assert_close(actual[finite], exact.to(torch.bfloat16)[finite], rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh", "silu"])
def test_infinities_and_nan(name):
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1e-40] * 8).bfloat16()
    actual, expected = _compiled(lambda x: FUNCTIONS[name](x), x), FUNCTIONS[name](x)
    assert torch.equal(actual.isnan(), expected.isnan())
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-39, equal_nan=True)
    assert torch.equal(actual.signbit() | actual.isnan(), expected.signbit() | expected.isnan())


def test_strict_is_exact():
    x = _every_value()
    x = x[x.isfinite() & (x.abs() < 80)]
    actual, exact = _compiled(lambda x: torch.sigmoid(x), x, strict=True), torch.sigmoid(x.double()).to(torch.bfloat16)
    assert (actual != exact).sum() <= 4  # next to a tie


@pytest.mark.parametrize("values", [(1e-39, -3e-41, 1.0), (float("nan"), 1.0, 2.0), (float("inf"), -float("inf"), 3.0)])
def test_rare_values_are_stored_as_eager_stores_them(values):
    x = torch.tensor(values * 44).bfloat16()
    torch.testing.assert_close(_compiled(lambda x: x * 0.75, x), x * 0.75, rtol=0, atol=0, equal_nan=True)


def test_softmax():
    torch.manual_seed(0)
    x = (torch.randn(64, 200) * 8).bfloat16()
    x[0, :150] = -float("inf")
    actual, exact = _compiled(lambda x: x.softmax(-1), x), x.double().softmax(-1)
    assert ((actual.double() - exact).abs() <= exact * (HALF_UNIT + 2e-5) + 1e-38).all()
