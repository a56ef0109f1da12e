"""BROACH_PROFILE: `explain` says what each step of a call took and how much it moved."""

import pytest
import torch
from broach_ext import _C

import broach


@pytest.fixture
def profiling():
    _C.set_profiling(True)
    yield
    _C.set_profiling(False)


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.LayerNorm(32)).eval()


def test_steps_have_time_bytes_and_arithmetic(profiling):
    with torch.no_grad():
        told = broach.explain(_model(), torch.randn(8, 64))
    (product,) = [s for s in told.steps if s.name.startswith("dot 8x64 by 64x32")]
    (norm,) = [s for s in told.steps if s.name.startswith("kernel 8 over 32")]
    assert product.milliseconds > 0 and norm.milliseconds > 0
    # Rates times the time are the amounts of one call.
    assert product.gigaflops_per_second * product.milliseconds * 1e6 == pytest.approx(2 * 8 * 64 * 32)
    assert norm.gigabytes_per_second * norm.milliseconds * 1e6 == pytest.approx(4 * (2 * 8 * 32 + 2 * 32))
    assert f"step {norm.name}" in str(told)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_arithmetic(profiling, causal):
    attend = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (torch.randn(2, 3, 40, 16) for _ in range(3))
    with torch.no_grad():
        told = broach.explain(lambda q, k, v: attend(q, k, v, is_causal=causal), q, k, v)
    (step,) = [s for s in told.steps if s.name.startswith("routine attention")]
    assert step.gigaflops_per_second * step.milliseconds * 1e6 == pytest.approx((1 if causal else 2) * 2 * 3 * 40 * 40 * (16 + 16))


def test_off_by_default():
    with torch.no_grad():
        assert not broach.explain(_model(), torch.randn(8, 64)).steps


def test_a_write_in_place_counts_what_it_changes(profiling):
    def write(cache, x, at):
        cache.index_copy_(1, at, x)
        return x + 1

    with torch.no_grad():
        told = broach.explain(write, torch.zeros(2, 4096, 16), torch.ones(2, 1, 16), torch.tensor([3]))
    moved = sum(s.gigabytes_per_second * s.milliseconds * 1e6 for s in told.steps if s.name.startswith("routine"))
    assert 0 < moved < 2000
