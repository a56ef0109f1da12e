"""Elementwise programs that read along one axis and write along another, at sizes that fill the CPU's squares and others."""

import ctypes
import mmap

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.uint8], ids=str)
@pytest.mark.parametrize("sizes", [(33, 45), (16, 16), (100, 9), (9, 100), (1, 300)], ids=str)
def test_nothing_behind_the_last_element_is_read(sizes, dtype):
    """Behind which lies a page that nobody may read."""
    page, libc = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)
    bytes_ = sizes[0] * sizes[1] * dtype.itemsize
    before = -(-bytes_ // page) * page
    memory = mmap.mmap(-1, before + page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert libc.mprotect(ctypes.c_void_p(address + before), page, 0) == 0
    x = torch.frombuffer(memory, dtype=dtype, count=sizes[0] * sizes[1], offset=before - bytes_).view(sizes)
    x.copy_(torch.randint(0, 100, sizes))
    compiled = broach.compile(lambda x: (x.t() + 1).contiguous())
    for _ in range(3):
        assert torch.equal(compiled(x), (x.t() + 1).contiguous())
    libc.mprotect(ctypes.c_void_p(address + before), page, 3)


def test_long_and_short_axes():
    """Of one is less than a vector, of the other many blocks."""
    compiled = broach.compile(lambda x: (x.t() * 2 + 1).contiguous())
    for sizes in [(16, 70000), (16, 70000), (70000, 3), (5, 1000), (257, 511), (4097, 4096)]:
        x = torch.randn(sizes)
        assert torch.equal(compiled(x), (x.t() * 2 + 1).contiguous())
