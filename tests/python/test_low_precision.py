"""What is computed in bf16 and f16 is compared as eager compares it: after it was rounded to its type."""

import pytest
import torch

import broach


def _norms(x):
    return torch.linalg.norm(x, float("inf"), keepdim=True).sum() + torch.linalg.norm(x, 1, keepdim=True).sum()


def _with_numbers(x, seven_tenths):
    y = x * 0.1
    return y == seven_tenths.item(), y != seven_tenths.item(), y <= 0.69921875, y >= 0.7001953125


def _with_tensors(x, seven_tenths):
    y = x * 0.1
    return y == seven_tenths, y < seven_tenths, y >= seven_tenths, y <= seven_tenths, (y.view(8, 5) > seven_tenths).sum()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("program", [_with_numbers, _with_tensors])
def test_comparisons(program, dtype):
    """Of 7 * 0.1, which is less than 0.7 rounded to f16, and more than that to bf16."""
    compiled = broach.compile(program)
    x, seven_tenths = torch.arange(-20, 20).to(dtype), torch.tensor(0.7, dtype=dtype)
    for _ in range(3):
        for have, want in zip(compiled(x, seven_tenths), program(x, seven_tenths), strict=True):
            assert torch.equal(have, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_reach_the_largest(dtype):
    compiled = broach.compile(_norms)
    for seed in range(8):
        x = torch.randn(5, 5, generator=torch.Generator().manual_seed(seed)).mul(5).to(dtype)
        found = []
        for run in (_norms, compiled):
            own = x.clone().requires_grad_()
            with torch.enable_grad():
                run(own).backward()
            found.append(own.grad)
        torch.testing.assert_close(found[1], found[0], rtol=2e-2, atol=1e-3)
