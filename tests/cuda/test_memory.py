"""What compiled calls take of the GPU's memory, over many calls and many sizes, and when there is no more of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import broach
import torch
import torch.nn.functional as F
from out_of_memory import MIB, at_most, settled
from torch import nn


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


def _segments():
    """Where the allocator's segments begin, and how large they are: what it has of the device."""
    torch.cuda.synchronize()
    return sorted((s["address"], s["total_size"]) for s in torch.cuda.memory_snapshot())


@torch.no_grad()
def test_segments_stay_as_they_are_over_a_thousand_calls():
    model, x = _transformer().eval(), torch.randn(4, 64, 128, device="cuda")
    compiled = broach.compile(model)
    for _ in range(20):
        compiled(x)
    before, held = _segments(), settled()
    for _ in range(1000):
        compiled(x)
    assert _segments() == before and settled() == held


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
    before, held = _segments(), settled()
    steps(1000)
    assert _segments() == before and settled() == held


@torch.no_grad()
def test_a_thousand_lengths_under_a_cap():
    model = _transformer().eval()
    compiled = broach.compile(model)
    x = torch.randn(3, 1000, 128, device="cuda")
    with at_most(192 * MIB):
        for _ in range(2):
            for length in range(1, 1001):
                part = x[: 1 + length % 3, :length]
                have = compiled(part)
                if length % 97 == 0:
                    torch.testing.assert_close(have, model(part), rtol=1e-3, atol=1e-4)
    told = broach.explain(compiled, x)
    assert len(told.programs) <= 6 and not told.eager_reasons, told


def test_a_hundred_lengths_of_training_under_a_cap():
    model = _transformer()
    compiled = broach.compile(lambda x: model(x).square().mean())
    x = torch.randn(2, 200, 128, device="cuda")
    with at_most(256 * MIB):
        for _ in range(3):
            for length in range(2, 200, 2):
                model.zero_grad()
                compiled(x[:, :length]).backward()
    have = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x[:, :198]).square().mean().backward()
    for p, g in zip(model.parameters(), have):
        assert (p.grad - g).norm() <= 1e-3 * p.grad.norm() + 1e-6


def test_calls_without_enough_memory():
    """In a process of its own, for which nothing lies ready that others have let go of."""
    tests = Path(__file__).with_name("out_of_memory.py")
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@torch.no_grad()
def test_reset_gives_memory_back():
    model, x = _transformer().eval(), torch.randn(4, 64, 128, device="cuda")
    model(x)  # torch keeps what its library of products works in
    held = settled()
    compiled = broach.compile(model)
    for _ in range(20):
        compiled(x)
    del compiled
    broach.reset()
    assert settled() == held
