"""Elementwise programs that read along one axis and write along another, at sizes that fill the CPU's squares and others."""

import pytest
import torch

import broach

SIZES = [(16, 16, 2), (33, 17, 3), (9, 130, 1), (130, 9, 2), (5, 3, 40), (49, 64, 1), (1, 1, 1), (200, 200, 1)]


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("dims", [(1, 0, 2), (2, 1, 0), (2, 0, 1), (0, 2, 1)])
def test_transposes(dims, dtype, dynamic):
    def program(x, y):
        moved = x.permute(dims)
        z = moved ^ y if dtype == torch.bool else moved * 3 + y
        return z.contiguous(), (x == 1).permute(dims).contiguous()

    compiled = broach.compile(program, dynamic=dynamic)
    for sizes in SIZES:
        x = torch.randint(0, 2 if dtype == torch.bool else 40, sizes).to(dtype)
        y = torch.randint(0, 2 if dtype == torch.bool else 40, [sizes[d] for d in dims]).to(dtype)
        for _ in range(2):
            for have, want in zip(compiled(x, y), program(x, y), strict=True):
                assert have.stride() == want.stride() and torch.equal(have, want)


def test_memory_formats():
    to_last = broach.compile(lambda x: (x + 1).contiguous(memory_format=torch.channels_last))
    to_first = broach.compile(lambda x: (x + 1).contiguous())
    for sizes in [(32, 48, 3, 3), (5, 7, 9, 11), (2, 100, 1, 1), (1, 3, 50, 50)]:
        x = torch.randn(sizes)
        for _ in range(2):
            y = to_last(x)
            assert torch.equal(y, x + 1) and y.is_contiguous(memory_format=torch.channels_last)
            assert torch.equal(to_first(y), (x + 1) + 1)


def test_parts_at_the_end_of_memory():
    """Nothing behind the last element is read."""
    base = torch.full((40, 50), float("nan"))
    base[:33, :45] = torch.randn(33, 45)
    program = lambda x: (x.t() * 2).contiguous()  # noqa: E731
    compiled = broach.compile(program)
    for view in (base[:33, :45], base[:33, :45], base[7:, :9], base[:33, 40:45]):
        have, want = compiled(view), program(view)
        torch.testing.assert_close(have, want, equal_nan=True)
