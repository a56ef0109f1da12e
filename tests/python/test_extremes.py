"""Values beside their own largest or smallest: two kernels that compute one of them must find the same, bit for bit."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F
from compared import difference
from torch import nn

TYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}


def largest(x, c):
    h = x * c
    z = h + c
    return z == z.amax(0), h


def of_all(x, c):
    h = x * c
    z = h - c
    return z == z.amin(), h, z.sum(1)


def of_a_quotient(x, c):
    z = x / (c.abs() + 1)
    return z >= z.amax(-1, keepdim=True), z + x


def of_sizes(x, c):
    h = x * c
    y = x + h
    return (y / y.abs().amax(-1, keepdim=True)).abs() == 1, h


def of_a_type_beside(x, c):
    h = x * c
    z = h + c
    return z.float() == z.float().amax(-1, keepdim=True), z


def of_what_is_cut(x, c):
    h = x * c
    z = (h + c).relu()
    return z == z.max(-1, keepdim=True).values, h


def of_a_view(x, c):
    h = x * c
    z = (h + c).view(2, 32, 130)
    return (z.transpose(0, 1) == z.amax((0, 2)).view(32, 1, 1)), h


# Of each the dimensions in which there is one, at least.
PROGRAMS = {largest: 0, of_all: (0, 1), of_a_quotient: 1, of_sizes: 1, of_a_type_beside: 1, of_what_is_cut: 1, of_a_view: (1, 2)}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_each_is_found(program, dtype):
    compiled = broach.compile(program)
    for seed in range(6):
        torch.manual_seed(seed)
        x, c = (torch.randn(64, 130).to(TYPES[dtype]) for _ in range(2))
        found = compiled(x, c)[0]
        assert found.any(PROGRAMS[program]).all()
        if dtype in ("f32", "f64"):  # in low precision eager rounds in between: others are as large as the largest
            assert not (why := difference(program(x, c)[0], found)), why


@pytest.mark.parametrize("dtype", TYPES)
def test_distances_from_the_smallest_are_not_negative(dtype):
    def program(x, c):
        h = x * c
        z = h + c
        return (z - z.amin(-1, keepdim=True)).sqrt(), (z - z.amax(-1, keepdim=True)).sign(), h

    compiled = broach.compile(program)
    for seed in range(6):
        torch.manual_seed(seed)
        x, c = (torch.randn(64, 130).to(TYPES[dtype]) for _ in range(2))
        root, sign, _ = compiled(x, c)
        assert not root.isnan().any() and not (why := difference(program(x, c)[1], sign)), why


@torch.enable_grad()
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradients_go_to_the_largest(dtype):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(64, 128)

        def forward(self, x):
            a, b = self.up(x).chunk(2, -1)
            h = a * b.sigmoid()
            return (x + h).amax(1), h.abs().mean()

    torch.manual_seed(0)
    model = Gated().to(TYPES[dtype])
    compiled = broach.compile(model)
    for seed in range(5):
        torch.manual_seed(seed)
        x, norms = torch.randn(8, 20, 64, dtype=TYPES[dtype]), []
        for call in (model, compiled):
            model.zero_grad()
            y, regular = call(x)
            (y.pow(2).mean() + regular).backward()
            norms.append(model.up.weight.grad.float().norm())
        torch.testing.assert_close(norms[1], norms[0], rtol=1e-4 if dtype == "f32" else 3e-2, atol=0)


def test_what_is_stored_is_what_others_read():
    """A sum in low precision that the kernel which stores it, and another one, both compare."""

    def program(x, y, w):
        z = x + y
        return z, F.layer_norm(z.float(), (64,)), (z @ w).float(), z > 0.5, z.float() - z.round().float()

    compiled = broach.compile(program)
    for seed in range(4):
        torch.manual_seed(seed)
        args = [torch.randn(s, dtype=torch.bfloat16) for s in ((32, 64), (32, 64), (64, 16))]
        want, have = program(*args), compiled(*args)
        for i in (0, 3, 4):
            assert not (why := difference(want[i], have[i])), (i, why)
        torch.testing.assert_close(have[1], want[1], rtol=1e-5, atol=1e-5)
