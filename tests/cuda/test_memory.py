"""What compiled calls take of the GPU's memory, over many calls and many sizes, and when there is no more of it."""

from __future__ import annotations

import contextlib
import gc

import broach
import pytest
import torch
import torch.nn.functional as F
from torch import nn

MIB = 1 << 20


class _Block(nn.Module):
    def __init__(self, width=128, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(y)
        return x + self.back(F.gelu(self.wide(x)))


def _transformer():
    return nn.Sequential(_Block(), _Block()).cuda()


def _settled():
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def _segments():
    """Where the allocator's segments begin, and how large they are: what it has of the device."""
    torch.cuda.synchronize()
    return sorted((s["address"], s["total_size"]) for s in torch.cuda.memory_snapshot())


@contextlib.contextmanager
def _at_most(more: int):
    """The process may take so many bytes more of the device than it holds in tensors now."""
    gc.collect()
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / whole)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@torch.no_grad()
def test_segments_stay_as_they_are_over_a_thousand_calls():
    model, x = _transformer().eval(), torch.randn(4, 64, 128, device="cuda")
    compiled = broach.compile(model)
    for _ in range(20):
        compiled(x)
    before, held = _segments(), _settled()
    for _ in range(1000):
        compiled(x)
    assert _segments() == before and _settled() == held


def test_segments_stay_as_they_are_over_a_thousand_steps():
    model = _transformer()
    x, optimizer = torch.randn(4, 64, 128, device="cuda"), torch.optim.SGD(model.parameters(), 1e-3)
    compiled = broach.compile(lambda x: model(x).square().mean())

    def steps(n):
        for _ in range(n):
            optimizer.zero_grad()
            compiled(x).backward()
            optimizer.step()

    steps(20)
    before, held = _segments(), _settled()
    steps(1000)
    assert _segments() == before and _settled() == held


@torch.no_grad()
def test_a_thousand_lengths_under_a_cap():
    model = _transformer().eval()
    compiled = broach.compile(model)
    x = torch.randn(2, 1000, 128, device="cuda")
    with _at_most(192 * MIB):
        for _ in range(2):
            for length in range(1, 1001):
                have = compiled(x[:, :length])
                if length % 97 == 0:
                    torch.testing.assert_close(have, model(x[:, :length]), rtol=1e-3, atol=1e-4)
    told = broach.explain(compiled, x)
    assert len(told.programs) <= 4, told


def test_a_hundred_lengths_of_training_under_a_cap():
    model = _transformer()
    compiled = broach.compile(lambda x: model(x).square().mean())
    x = torch.randn(2, 200, 128, device="cuda")
    with _at_most(256 * MIB):
        for _ in range(3):
            for length in range(2, 200, 2):
                model.zero_grad()
                compiled(x[:, :length]).backward()
    have = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x[:, :198]).square().mean().backward()
    for p, g in zip(model.parameters(), have):
        assert (p.grad - g).norm() <= 1e-3 * p.grad.norm() + 1e-6


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
    held = _settled()
    with _at_most(24 * MIB):  # one result is of 16
        for _ in range(3):
            _raises(compiled, large)
            torch.testing.assert_close(compiled(small), want, rtol=1e-3, atol=1e-4)
    gc.collect()
    assert _settled() - held <= 8 * MIB  # constants and what a recording keeps
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
        with _at_most(cap * MIB):
            try:
                torch.testing.assert_close(gradient(compiled, large), whole, rtol=1e-3, atol=1e-4)
            except torch.OutOfMemoryError:
                raised += 1
            torch.testing.assert_close(gradient(compiled, small), want, rtol=1e-3, atol=1e-4)
    assert raised >= 3
    for _ in range(4):
        torch.testing.assert_close(gradient(compiled, large), whole, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(gradient(compiled, small), want, rtol=1e-3, atol=1e-4)


@torch.no_grad()
def test_reset_gives_memory_back():
    model, x = _transformer().eval(), torch.randn(4, 64, 128, device="cuda")
    held = _settled()
    compiled = broach.compile(model)
    for _ in range(20):
        compiled(x)
    del compiled
    broach.reset()
    assert _settled() == held
