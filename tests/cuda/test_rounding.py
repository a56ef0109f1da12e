"""What kernels on a GPU compute in bf16 and f16: arithmetic as eager rounds it, and functions to the number next to the true one."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F

FUNCTIONS = {
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softmax": lambda x: x.view(-1, 16).softmax(-1),
}


def _every_number():
    numbers = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    return numbers[numbers.isfinite()]


@torch.no_grad()
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_all_bf16_numbers(name):
    compiled, x = broach.compile(FUNCTIONS[name]), _every_number()
    want = FUNCTIONS[name](x.double())
    for _ in range(3):
        have = compiled(x.cuda()).cpu().double()
    rare = ~(want.abs() < 3e38)
    # One step of bf16, or what f32 loses of 1 where a gelu nearly cancels; an inverse below 2^-126 may be 0.
    torch.testing.assert_close(have[~rare], want[~rare], rtol=2**-7, atol=3e-6 if name.startswith("gelu") else 1e-36)
    torch.testing.assert_close(have[rare].float(), want[rare].to(torch.bfloat16).float(), equal_nan=True)
    edges = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0], device="cuda", dtype=torch.bfloat16)
    if name != "softmax":
        for _ in range(3):
            torch.testing.assert_close(compiled(edges), FUNCTIONS[name](edges), rtol=0, atol=0, equal_nan=True)


def _chain(x, y):
    low = x.to(y.dtype)
    z = (low + y) * y
    kept = torch.where(z > y, z - y, -z).clamp(-2, 2)
    return low - y, z, kept, kept.float() - z.float(), (low * 3 == y * 3), (kept * z).abs().amax(-1), low.relu() - y


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(64, 1024), (7, 33), (5,), (4096, 17)])
def test_arithmetic_is_rounded_as_eager_rounds_it(shape, dtype):
    compiled = broach.compile(_chain)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(shape, device="cuda")
        for y in (x.to(dtype), torch.randn(shape, device="cuda").to(dtype)):
            for have, want in zip(compiled(x, y), _chain(x, y), strict=True):
                torch.testing.assert_close(have, want, rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_is_moved_keeps_its_bits(dtype):
    def program(x, y):
        moved = x.flip(0), torch.cat([x, y * 2], 1)[:, :256], x.t().contiguous(), F.pad(x, (1, 2)), torch.where(y > 0, x, y)
        return *moved, x.roll(3, 1)[::2].clone(), torch.zeros_like(x).index_copy(0, torch.tensor([1, 2], device="cuda"), x[2:4])

    compiled = broach.compile(program)
    for i in range(3):
        x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(256, 256).roll(i, 1).contiguous().view(dtype).cuda()
        y = torch.randn(256, 256, device="cuda").to(dtype)
        for have, want in zip(compiled(x, y), program(x, y), strict=True):
            assert torch.equal(have.contiguous().view(torch.int16), want.contiguous().view(torch.int16))
