"""Kernels of hundreds of operations and loads under conditions, whose code is made once for whole and broken vectors alike."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F
from compared import stats


def _columns(points):
    x, y, z, w = points.unbind(-1)
    return torch.stack([torch.stack([x * y - z, y + w, z * w], -1), torch.stack([w - x, x * x, y], -1), torch.stack([z, w * y, x - y], -1)], -2)


def _adjugate(points):
    """Of small matrices, as stacked cross products."""
    a, b, c = _columns(points).unbind(-1)
    rows = [torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)]
    return torch.stack(rows, -2) / (2 + (a * rows[0]).sum(-1).tanh()[:, None, None])


def _twice(points):
    m = _adjugate(points)
    return torch.cat([m, m.roll(1, -1), m.flip(-2)], -1).cumsum(-1)[:, :, ::2]


def _mean_of_adjugates(points):
    return (_adjugate(points) * _columns(points.flip(-1))).mean((0, 2))


def _patches(points):
    image = F.interpolate(points[:, None, None, :].expand(-1, 2, 4, -1).cumsum(-2), (28, 28), mode="bicubic")
    return F.conv2d(image, torch.linspace(-1, 1, 3 * 2 * 14 * 14, dtype=points.dtype).reshape(3, 2, 14, 14), stride=14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("program", [_adjugate, _twice, _mean_of_adjugates, _patches])
def test_equal_eager_for_any_number_of_rows(program, dtype):
    if program is _patches and dtype == torch.bfloat16:
        pytest.skip("its product is oneDNN's, which computes in bf16 as the processor lets it")
    compiled = broach.compile(program, options={"capture": "native", "strict": True})
    for n in (5, 5, 7, 16, 17, 1, 2, 3, 8, 9, 31, 64, 100):
        torch.manual_seed(n)
        points = torch.rand(n, 4, dtype=torch.float64).add(0.5).to(dtype)
        tolerance = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 2.0**-7}[dtype]  # of sums in another order
        torch.testing.assert_close(compiled(points), program(points), rtol=tolerance, atol=tolerance)
    assert stats(compiled)["eager_calls"] == 0


@pytest.mark.parametrize("program", [_adjugate, _mean_of_adjugates])
def test_gradients(program):
    compiled = broach.compile(program)
    with torch.enable_grad():
        for n in (4, 4, 9, 17, 3):
            torch.manual_seed(n)
            points = torch.rand(n, 4, dtype=torch.float64).add(0.5).requires_grad_()
            gradients = [torch.autograd.grad(f(points).square().sum(), points)[0] for f in (program, compiled)]
            torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-10)
