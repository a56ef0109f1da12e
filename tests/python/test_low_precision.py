"""What is computed in bf16 and f16 is compared as eager compares it: after it was rounded to its type."""

import pytest
import torch

import broach


def _largest(x):
    sums = (x * 1.1).abs().sum(-1)
    return sums == sums.amax(), (sums != sums.amin()).sum()


def _above_the_third(x):
    scores = (x * 0.7 + 0.1).sin() * 3
    least = torch.topk(scores, 3).values[..., -1:]
    return scores.masked_fill(scores < least, float("-inf")), scores >= least


def _norms(x):
    return torch.linalg.norm(x, float("inf"), keepdim=True).sum() + torch.linalg.norm(x, 1, keepdim=True).sum()


def _with_a_number(x):
    y = x * 0.1
    return (y == 0.5).sum(), (y > 0).sum(), (y <= -0.25).sum()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("program", [_largest, _above_the_third, _with_a_number])
def test_comparisons(program, dtype):
    compiled = broach.compile(program)
    for seed in range(6):
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(seed)).mul(8).round().div(1.7).to(dtype)
        for have, want in zip(compiled(x), program(x), strict=True):
            if want.dtype.is_floating_point:
                assert torch.equal(have.isinf(), want.isinf())
            else:
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
