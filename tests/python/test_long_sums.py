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


@pytest.mark.parametrize("shapes", [((3, 700), (4, 800), (20, 1_000_000), (5, 9), (70_000, 3)), ((700,), (800,), (20_000_000,), (9,)),
                                    ((2, 30, 7), (3, 40, 9), (5, 400, 3001), (2, 2, 2))], ids=["two", "one", "three"])  # fmt: skip
@pytest.mark.parametrize("layout", ["contiguous", "columns apart"])
def test_sums_of_all_elements_once_sizes_have_changed(shapes, layout):
    """Whether a row is long is not known then: each call counts."""
    torch.manual_seed(0)
    compiled = broach.compile(lambda x: (x.mean(), (x * x).sum(), x.var(), (x + 1).sum(-1)))
    for shape in shapes:
        x = torch.rand(*shape[:-1], 2 * shape[-1])[..., ::2] if layout == "columns apart" else torch.rand(shape)
        exact = x.double()
        for have, want in zip(compiled(x), (exact.mean(), (exact * exact).sum(), exact.var(), (exact + 1).sum(-1)), strict=True):
            torch.testing.assert_close(have.double(), want, rtol=2e-6, atol=0)
    assert compiled.stats()["captures"] <= 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_products_of_one_element(dtype):
    torch.manual_seed(0)
    programs = (
        lambda x, y: torch.dot(x, y), lambda x, y: x @ y, lambda x, y: x[None] @ y, lambda x, y: torch.einsum("i,i->", x, y),
        lambda x, y: (x[None] @ y[:, None]).relu(), lambda x, y: torch.dot(x[::2], y[1::2]),
    )  # fmt: skip
    for program in programs:
        compiled = broach.compile(program)
        for size in (1 << 22, 1 << 22, 1000, 10, 2, 30_000, 1 << 23):
            x, y = torch.rand(size).to(dtype), torch.rand(size).to(dtype)
            want = program(x.double(), y.double())
            compiled(x, y)  # eager's own, perhaps
            have = compiled(x, y)
            assert have.dtype == dtype
            torch.testing.assert_close(have.double(), want, rtol=8e-3 if dtype == torch.bfloat16 else 1e-6, atol=0)
    x, y = (torch.randn(300, dtype=dtype, requires_grad=True) for _ in range(2))
    compiled = broach.compile(programs[0])
    with torch.enable_grad():
        for _ in range(3):
            for have, want in zip(torch.autograd.grad(compiled(x, y), (x, y)), (y, x), strict=True):
                assert torch.equal(have, want)
