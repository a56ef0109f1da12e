"""Gradients of random chains in bf16 and fp16: quotients by sums of rows, distances from the largest, and what comes between."""

import os
import random

import pytest
import torch

import broach

STEPS = {
    "over_sum": lambda x: x / x.exp().sum(-1, keepdim=True),
    "over_mean": lambda x: x / x.square().mean(-1, keepdim=True).add(0.5),
    "over_norm": lambda x: x / x.norm(dim=-1, keepdim=True).add(0.1),
    "below_largest": lambda x: x - x.amax(-1, keepdim=True),
    "above_least": lambda x: x - x.amin(-1, keepdim=True),
    "of_columns": lambda x: x * x.mean(0),
    "softmax": lambda x: x.softmax(-1),
    "clamp": lambda x: x.clamp(min=-0.3),
    "clamp_tight": lambda x: x.clamp(-0.5, 0.7),
    "abs": lambda x: x.abs(),
    "relu": lambda x: (x * 1.3 + 0.1).relu(),
    "gate": lambda x: x * x.sigmoid(),
    "where": lambda x: torch.where(x > 0.1, x, 0.2 * x),
    "tanh": lambda x: x.tanh(),
    "log": lambda x: x.abs().add(0.2).log(),
    "sqrt": lambda x: x.abs().add(0.1).sqrt(),
    "scale": lambda x: x * 0.9,
    "square": lambda x: x.square(),
}
ALL = os.environ.get("BROACH_TEST_ALL") == "1"
PROGRAMS = 4000 if ALL else 150


def chain(names):
    def f(x):
        for name in names:
            x = STEPS[name](x)
        return x

    return f


def gradients(f, x, weights, dtype):
    with torch.enable_grad():
        x = x.to(dtype).clone().requires_grad_()
        (f(x).double() * weights).sum().backward()
    return x.grad.double()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("part", range(4))
def test_chains(dtype, part):
    wrong = []
    for seed in range(part, PROGRAMS, 4):
        rng = random.Random(seed)
        names = rng.choices(list(STEPS), k=rng.randint(2, 5))
        f = chain(names)
        g = broach.compile(f, dynamic=rng.random() < 0.2)
        for call in range(3):
            torch.manual_seed(seed * 10 + call)
            x, weights = torch.randn(6, 10).to(dtype), torch.randn(6, 10, dtype=torch.double)
            exact, eager, ours = (gradients(h, x, weights, t) for h, t in ((f, torch.double), (f, dtype), (g, dtype)))
            # Beside a kink, or where several are the largest, eager's own gradient depends on its roundings.
            off, allowed = (eager - exact).abs(), 0.05 * exact.abs().amax()
            if not off.max() > allowed and not (ours - exact).abs().max() <= 2 * allowed:
                wrong.append((seed, names, call, (ours - exact).abs().max().item(), exact.abs().max().item()))
    # Of some thousand programs 0.6 % lie within a rounding of a kink in ours alone (a clamp's end, two that are the largest).
    assert len(wrong) <= PROGRAMS // 4 // 100, f"{len(wrong)} gradients differ: {wrong[:5]}"
