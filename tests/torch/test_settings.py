"""torch's settings for products and convolutions: compiled programs obey those that are in force, and see them change."""

import contextlib

import pytest
import torch
from torch import nn
from torch.backends import mkldnn

import broach
from broach._native import _C

pytestmark = pytest.mark.skipif(not _C.has_onednn(), reason="settings of a library that is not there")


@contextlib.contextmanager
def precision(text):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(text)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def attribute(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _linear():
    torch.manual_seed(0)
    return nn.Linear(64, 48).eval(), torch.randn(128, 64)


def _conv():
    torch.manual_seed(0)
    return nn.Conv2d(8, 16, 3).eval(), torch.randn(2, 8, 12, 12)


def _told(model, x, **options):
    with torch.no_grad():
        told = broach.explain(broach.compile(model, options=options), x)
        torch.testing.assert_close(broach.compile(model, options=options)(x), model(x), rtol=2e-2, atol=2e-2)
    return told


@pytest.mark.parametrize("text, allowed", [("highest", None), ("high", "tf32 allowed"), ("medium", "bf16 allowed")])
def test_precision_of_products(text, allowed):
    with precision(text):
        (pick,) = _told(*_linear()).picks
    assert pick.endswith(allowed) if allowed else "allowed" not in pick


def test_products_and_convolutions_have_precisions_of_their_own():
    with precision("medium"):  # as eager: this setting is about products alone
        assert all("allowed" not in pick for pick in _told(*_conv()).picks)
    with attribute(mkldnn.conv, "fp32_precision", "bf16"):
        assert all("bf16 allowed" in pick for pick in _told(*_conv()).picks)
        assert all("allowed" not in pick for pick in _told(*_linear()).picks)


def test_halves_are_what_they_are():
    model, x = _linear()
    with precision("medium"):
        assert all("allowed" not in pick for pick in _told(model.bfloat16(), x.bfloat16()).picks)


@pytest.mark.parametrize("program", [_linear, _conv])
def test_onednn_switched_off_is_not_used(program):
    with mkldnn.flags(enabled=False, allow_tf32=None):
        told = _told(*program())
    assert not told.picks and told.externs


@pytest.mark.parametrize("capture", ["native", "dynamo"])
def test_a_changed_setting_is_noticed(capture):
    model, x = _linear()
    fast = broach.compile(model, options={"capture": capture})
    with torch.no_grad():
        for _ in range(2):
            fast(x)
        with precision("medium"):
            for _ in range(2):
                fast(x)
            told = broach.explain(fast, x)
        assert sum("bf16 allowed" in pick for pick in told.picks) == 1 and len(told.picks) == 2
        with mkldnn.flags(enabled=False, allow_tf32=None):
            torch.testing.assert_close(fast(x), model(x))
            fast(x)
            assert broach.explain(fast, x).externs
