"""Kernels whose operands lie along other axes than their results."""

import broach
import pytest
import torch
import torch.nn.functional as F

SIZES = [(2, 64, 96), (3, 33, 1025), (1, 257, 300), (5, 100, 200)]


def _same(program, *tensors):
    compiled = broach.compile(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(*tensors), program(*tensors), rtol=1.6e-2 if tensors[0].dtype == torch.bfloat16 else 1e-5, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8, torch.int64, torch.bool])
def test_elements(sizes, dtype):
    x = (torch.randn(sizes, device="cuda") * 10).to(dtype)
    y = (torch.randn(sizes, device="cuda") * 10).to(dtype).transpose(1, 2).contiguous()
    _same(lambda x, y: (x != y.transpose(1, 2)) | (x > 0), x, y)
    _same(lambda x: x.transpose(1, 2).contiguous(), x)
    _same(lambda x, y: torch.where(x.transpose(1, 2) > 0, y, x.transpose(1, 2)).float() * 2, x, y)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_behind(dtype):
    for sizes in SIZES:
        x, y = torch.randn(sizes, device="cuda", dtype=dtype), torch.randn(sizes[0], sizes[2], sizes[1], device="cuda", dtype=dtype)
        w = torch.randn(sizes[2], device="cuda", dtype=dtype)
        _same(lambda x, y: F.layer_norm(x + y.transpose(1, 2), (x.shape[-1],), w), x, y)
        _same(lambda x, y: torch.softmax(y.transpose(1, 2) * 0.5, -1) + x, x, y)


@torch.no_grad()
def test_sizes_that_change_and_images():
    compiled = broach.compile(lambda x: F.gelu(x.permute(0, 2, 3, 1).contiguous()) + 1)
    for n in (8, 9, 3, 17, 8):
        x = torch.randn(n, 70, 40, 36, device="cuda")
        torch.testing.assert_close(compiled(x), F.gelu(x.permute(0, 2, 3, 1)) + 1)


def test_gradients():
    def program(x, y):
        return (F.layer_norm(x + y.transpose(1, 2), (x.shape[-1],)) * x).square().mean()

    compiled = broach.compile(program)
    for _ in range(3):
        found = []
        for run in (program, compiled):
            torch.manual_seed(0)
            x, y = torch.randn(4, 80, 160, device="cuda", requires_grad=True), torch.randn(4, 160, 80, device="cuda", requires_grad=True)
            run(x, y).backward()
            found.append((x.grad, y.grad))
        for have, want in zip(*found):
            torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-7)


@torch.no_grad()
@pytest.mark.parametrize("window", [4, 7, 16])
def test_windows_of_an_image(window):
    """As Swin's: their rows of a product are laid side by side."""
    layer = torch.nn.Linear(48, 96).cuda().bfloat16()

    def program(x):
        n, h, w, c = x.shape
        x = x.view(n, h // window, window, w // window, window, c).transpose(2, 3)
        return layer(x.reshape(-1, window * window, c)), layer(x)

    x = torch.randn(3, 2 * window, 3 * window, 48, device="cuda", dtype=torch.bfloat16)
    _same(program, x)
