"""What test_memory.py runs in a process of its own: calls for which there is not enough memory."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import broach
import pytest
import torch

MIB = 1 << 20


@contextlib.contextmanager
def at_most(more: int) -> Iterator[None]:
    """The process may take so many bytes more of the device than its allocator holds once it has let go of what is free."""
    gc.collect()
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / whole)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def settled() -> int:
    """Bytes that tensors hold once nothing is under way."""
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def _large(x):
    """Of n by n: products and what stays between kernels, each of n * n floats."""
    y = torch.softmax(x @ x, -1)
    return (y @ x) + torch.softmax(y.t() @ y, 0)


def _raises(call, *args):
    with pytest.raises(torch.OutOfMemoryError):
        call(*args)
        torch.cuda.synchronize()


@torch.no_grad()
@pytest.mark.parametrize("calls", [0, 1, 2, 8])
def test_a_call_without_enough_memory_leaves_the_process_usable(calls):
    """In the call that is captured, in the first compiled one, as launches are recorded, and in one that replays what was."""
    small, large = torch.randn(256, 256, device="cuda") / 16, torch.randn(2048, 2048, device="cuda") / 64
    compiled = broach.compile(_large)
    for _ in range(calls):
        compiled(small)
    want, whole = _large(small), _large(large)
    held = settled()
    with at_most(24 * MIB):  # one result is of 16
        for _ in range(3):
            _raises(compiled, large)
            torch.testing.assert_close(compiled(small), want, rtol=1e-3, atol=1e-4)
    assert settled() - held <= 8 * MIB  # constants and what a recording keeps
    for _ in range(4):
        torch.testing.assert_close(compiled(large), whole, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(compiled(small), want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("calls", [0, 1, 6])
def test_a_backward_without_enough_memory_leaves_the_process_usable(calls):
    compiled = broach.compile(_large)

    def gradient(program, x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(program(x).square().sum(), x)[0]

    small, large = torch.randn(256, 256, device="cuda") / 16, torch.randn(2048, 2048, device="cuda") / 64
    for _ in range(calls):
        gradient(compiled, small)
    want, whole = gradient(_large, small), gradient(_large, large)
    raised = 0
    for cap in (24, 40, 56, 72, 88, 104):  # in forwards, then in backwards, until there is enough
        with at_most(cap * MIB):
            try:
                torch.testing.assert_close(gradient(compiled, large), whole, rtol=1e-3, atol=1e-4)
            except torch.OutOfMemoryError:
                raised += 1
            torch.testing.assert_close(gradient(compiled, small), want, rtol=1e-3, atol=1e-4)
    assert raised >= 3
    for _ in range(4):
        torch.testing.assert_close(gradient(compiled, large), whole, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(gradient(compiled, small), want, rtol=1e-3, atol=1e-4)
