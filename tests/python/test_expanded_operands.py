"""What follows a product may read an argument that is repeated along some dimensions and lies apart along others."""

import pytest
import torch
from torch import nn

import broach

F = nn.functional
B, T, K, N = 6, 3, 96, 128

OPERANDS = {
    "first row": lambda random: random(B, T, N)[:, :1].expand(B, T, N),
    "a row of more": lambda random: random(B, 10, N)[:, 4:5].expand(B, T, N),
    "first column": lambda random: random(B, T, N)[:, :, :1].expand(B, T, N),
    "rows that lie apart": lambda random: random(B, 2 * T, N)[:, ::2],
    "rows of more": lambda random: random(B, T + 7, N)[:, :T],
    "columns that lie apart": lambda random: random(2 * N)[::2].expand(B, T, N),
    "one for each batch": lambda random: random(B, 5, 1)[:, :1].expand(B, T, N),
    "transposed": lambda random: random(B, N, T).transpose(1, 2),
    "dense": lambda random: random(B, 1, N).expand(B, T, N),
}
FOLLOWING = {
    "add": lambda y, r: y + r,
    "mul": lambda y, r: y * r,
    "relu add": lambda y, r: y.relu() + r,
    "add gelu": lambda y, r: F.gelu(y + r),
    "softmax": lambda y, r: (y + r).softmax(-1),
}


TYPES = {"fp32": (torch.float32, 1e-4, 1e-4), "bf16": (torch.bfloat16, 2e-2, 0.15)}  # and by how much roundings that are left out may differ


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("following", FOLLOWING)
@pytest.mark.parametrize("operand", OPERANDS)
def test_linear(operand, following, dtype):
    torch.manual_seed(0)
    dtype, relative, absolute = TYPES[dtype]
    random = lambda *shape: torch.randn(*shape).to(dtype)  # noqa: E731
    weight, x, r, after = random(N, K), random(B, T, K), OPERANDS[operand](random), FOLLOWING[following]
    call = lambda x, r: after(F.linear(x, weight), r)  # noqa: E731
    fast = broach.compile(call)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(fast(x, r), call(x, r), rtol=relative, atol=absolute)


@pytest.mark.parametrize("operand", ["first row", "first column", "columns that lie apart"])
def test_products_of_batches_and_gradients(operand):
    torch.manual_seed(0)
    x, w = torch.randn(B, T, K, requires_grad=True), torch.randn(B, K, N)
    r = OPERANDS[operand](torch.randn)
    call = lambda x, r: ((x @ w) * r).sin()  # noqa: E731
    fast = broach.compile(call)
    with torch.enable_grad():
        want = torch.autograd.grad(call(x, r).sum(), x)[0]
        for _ in range(4):
            torch.testing.assert_close(torch.autograd.grad(fast(x, r).sum(), x)[0], want, rtol=1e-4, atol=2e-3)


# Convolutions take what follows them in the same way.
@pytest.mark.parametrize("shape", [(4, 1, 1, 1), (4, 16, 1, 1), (1, 16, 1, 1), (4, 1, 9, 9)])
def test_convolution(shape):
    torch.manual_seed(0)
    layer, x = nn.Conv2d(8, 16, 3, padding=1), torch.randn(4, 8, 9, 9)
    larger = torch.randn(*(2 * n for n in shape))
    r = larger[tuple(slice(None, 2 * n, 2) for n in shape)].expand(4, 16, 9, 9)
    call = lambda x, r: layer(x) * r  # noqa: E731
    fast = broach.compile(call)
    with torch.no_grad():
        for _ in range(4):
            torch.testing.assert_close(fast(x, r), call(x, r), rtol=1e-4, atol=1e-4)
