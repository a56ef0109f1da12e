"""Convolutions of each channel by itself along one dimension: kernels of Broach's own for a few taps, the library's for others."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def _gradients(f, tensors):
    with torch.enable_grad():
        leaves = [t.clone().requires_grad_() for t in tensors]
        y = f(*leaves)
        y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape).to(y.dtype))
    return [y.detach(), *(t.grad for t in leaves)]


@pytest.mark.parametrize("dtype", list(TOLERANCES))
@pytest.mark.parametrize("taps,padding,dilation,stride", [(4, 3, 1, 1), (1, 0, 1, 1), (3, 0, 1, 1), (3, 1, 2, 1), (8, 7, 1, 1), (2, 1, 3, 1), (9, 4, 1, 1), (4, 3, 1, 2)])
@pytest.mark.parametrize("bias", [True, False])
def test_sizes(dtype, taps, padding, dilation, stride, bias):
    torch.manual_seed(taps)
    program = lambda x, w, *b: F.silu(F.conv1d(x, w, *b or (None,), stride, padding, dilation, groups=x.shape[-2]))  # noqa: E731
    compiled = broach.compile(program)
    for batch, length in ((2, 40), (2, 40), (3, 31), (1, 65), (3, 9)):
        tensors = [torch.randn(batch, 6, length), torch.randn(6, 1, taps), *([torch.randn(6)] if bias else [])]
        tensors = [t.to(dtype) for t in tensors]
        torch.testing.assert_close(compiled(*tensors), program(*tensors), rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])
        exact = _gradients(program, [t.double() for t in tensors])
        for got, want in zip(_gradients(compiled, tensors), exact, strict=True):
            scale = max(1.0, want.abs().max().item())
            torch.testing.assert_close(got.double() / scale, want / scale, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


@pytest.mark.parametrize("program", [
    lambda x, w: F.conv1d(x, w, padding=3, groups=6)[..., : x.shape[-1]],
    lambda x, w: F.conv1d(x.transpose(1, 2).contiguous().transpose(1, 2), w, padding=2, groups=6).transpose(1, 2) + 1,
    lambda x, w: F.conv1d(x[0], w, padding=1, groups=6),
    lambda x, w: F.conv1d(x, w, padding="same", groups=6),
    lambda x, w: F.conv1d(x, torch.cat([w, w]), padding=1, groups=6),
    lambda x, w: F.conv1d(x, w.expand(6, 2, 4).reshape(6, 2, 4), groups=3),
    lambda x, w: F.conv1d(x[:, :1], w[:1], padding=1),
    lambda x, w: F.conv_transpose1d(x, w, padding=1, groups=6),
    lambda x, w: F.conv1d(x, w, padding=5, groups=6),
    lambda x, w: F.relu(F.conv1d(F.conv1d(x, w, padding=3, groups=6), w, groups=6)) @ torch.ones(x.shape[-1], 2),
])  # fmt: skip
def test_forms(program):
    compiled = broach.compile(program)
    for batch, length in ((2, 16), (2, 16), (3, 16), (1, 11), (4, 23)):
        tensors = torch.randn(batch, 6, length), torch.randn(6, 1, 4)
        torch.testing.assert_close(compiled(*tensors), program(*tensors), rtol=1e-4, atol=1e-4)
        for got, want in zip(_gradients(compiled, tensors), _gradients(program, tensors), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_no_call_of_the_library():
    program = lambda x, w: F.conv1d(x, w, padding=3, groups=6)  # noqa: E731
    compiled, x, w = broach.compile(program), torch.randn(2, 6, 40), torch.randn(6, 1, 4)
    for _ in range(3):
        compiled(x, w)
    told = broach.explain(compiled, x, w)
    assert told.contractions == 0 and told.kernels >= 1, told
