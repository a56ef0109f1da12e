"""Sums of very many elements: rounding errors of one long chain would add up, and a variance shows those of its mean squared."""

from __future__ import annotations

import broach
import pytest
import torch

SHAPES = [((1_000_000, 8), 0), ((1_000_000,), 0), ((1 << 18, 100), 0), ((100_000, 64), 0), ((10, 100_000, 4), 1), ((3, 1_000_003), 1),
          ((999_983, 8), 0), ((60_000, 1000), 0), ((5000, 40, 30), (0, 2)), ((2, 70_000, 7), (0, 1)), ((40, 5, 30_000), (0, 2))]  # fmt: skip


@pytest.mark.parametrize("shape, dim", SHAPES, ids=[f"{'x'.join(map(str, shape))}-{dim}" for shape, dim in SHAPES])
def test_long_sums(shape, dim):
    torch.manual_seed(0)
    x = torch.randn(shape) + 1e4
    compiled = broach.compile(lambda x: (x.sum(dim), x.mean(dim), x.amax(dim), x.var(dim)), dynamic=False)
    exact = x.double()
    compiled(x)  # eager's own, which may be less exact
    for _ in range(2):
        total, mean, largest, variance = compiled(x)
        torch.testing.assert_close(total.double(), exact.sum(dim), rtol=1e-6, atol=0)
        torch.testing.assert_close(mean.double(), exact.mean(dim), rtol=1e-6, atol=0)
        assert torch.equal(largest, x.amax(dim))
        torch.testing.assert_close(variance.double(), exact.var(dim), rtol=1e-4, atol=0)


def test_rows_of_a_length_that_changes():
    compiled = broach.compile(lambda x: x.sum(0), dynamic=True)
    compiled(torch.rand(50_000, 20))
    for rows in (100_000, 70_001, 3, 511, 512, 513, 2048, 130_000):
        x = torch.rand(rows, 20) + 0.5
        torch.testing.assert_close(compiled(x).double(), x.double().sum(0), rtol=1e-6, atol=0)
