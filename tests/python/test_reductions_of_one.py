"""Reductions over dimensions of one element, within kernels that compute more; and sizes of zero."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F


def _rotated(x, t):
    by_x, by_t = x.norm(dim=-1, keepdim=True), t.norm(dim=-1, keepdim=True)
    u, q, e = (x / by_x).detach(), (t / by_t).detach(), x[:, None]
    w = F.normalize(u + q, dim=1).detach()
    rotated = e - 2 * (e @ w[:, :, None] @ w[:, None]) + 2 * (e @ u[:, :, None] @ q[:, None])
    return rotated[:, 0] * (by_t / by_x).detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(40, 16), (6, 4), (128, 32), (3, 5)])
def test_products_along_one(dtype, shape):
    def program(x, t):
        z = _rotated(x, t)
        return z + _rotated(x - z.detach(), t)

    compiled = broach.compile(program)
    for seed in range(3):
        torch.manual_seed(seed)
        x, t, grads = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype), []
        for f in (program, compiled):
            with torch.enable_grad():
                leaf = x.clone().requires_grad_()
                f(leaf, t).pow(2).sum().backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(compiled(x, t), program(x, t), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("program", [
    lambda x: (x.sum(1) * 2, x.amax(1) + x.prod(1), x.argmax(1), x.any(1), x.softmax(1), x.logsumexp(1), x.var(1, correction=0)),
    lambda x: (torch.any(x, 1), F.pad(torch.fmax(torch.any(x, 1), x), [2, 2, 0, 1], mode="reflect")),
    lambda x: (x.sin().sum(1, keepdim=True) + x).sum(-1),
    lambda x: (x.sum((1, 2)), x.cumsum(1).sum(1), x.count_nonzero(1), x.all(1)),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_alone_and_beside_others(program, dtype):
    compiled = broach.compile(program)
    for sizes in ((2, 1, 9, 11), (2, 1, 9, 11), (3, 1, 9, 4), (1, 1, 2, 3)):
        x = torch.randn(sizes).to(dtype)
        for got, want in zip(compiled(x), program(x), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_gradients_of_running_products(length):
    program = lambda x: torch.cumprod(x, 0)  # noqa: E731
    compiled = broach.compile(program)
    values = [1.0, float("inf"), float("nan"), 0.0, -float("inf"), 2.0]
    for _ in range(2):
        grads = []
        for f in (program, compiled):
            x = torch.tensor([values] * length, requires_grad=True)
            with torch.enable_grad():
                grads.append(torch.autograd.grad(f(x).sum(), x)[0])
        torch.testing.assert_close(grads[1], grads[0], equal_nan=True)


def test_convolution_of_running_products_along_one():
    program = lambda x: F.conv2d(torch.cumprod(x, -1), torch.ones(3, 7, 1, 2)).sin().sum()  # noqa: E731
    compiled = broach.compile(program)
    for _ in range(3):
        grads = []
        for f in (program, compiled):
            x = torch.linspace(0, 1, 17 * 7 * 5 * 17).reshape(17, 7, 5, 17)[..., :2].requires_grad_()
            with torch.enable_grad():
                grads.append(torch.autograd.grad(f(x), x)[0])
        torch.testing.assert_close(grads[1], grads[0])


def test_products_of_nothing():
    program = lambda x, y: x @ y  # noqa: E731
    compiled = broach.compile(program)
    for batch in (8, 8, 9):
        assert compiled(torch.randn(batch, 0, 5), torch.randn(5, 5)).shape == (batch, 0, 5)
    assert compiled.stats()["compiled_calls"] >= 1


@pytest.mark.parametrize("dims", [1, 2])
def test_output_padding_beyond_the_stride(dims):
    """Which only a dilation allows."""
    transposed = getattr(F, f"conv_transpose{dims}d")
    program = lambda x, w: transposed(x, w, stride=1, output_padding=1, dilation=2)  # noqa: E731
    compiled, x, w = broach.compile(program), torch.randn(2, 5, *[6] * dims), torch.randn(5, 4, *[3] * dims)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, w), program(x, w))
    assert not broach.explain(compiled, x, w).eager_reasons


def test_constants_whose_strides_change():
    def program(x, y):
        x.fill_(-1)
        y.copy_(x)
        y[y > 0] = x[1]
        return x[1]

    compiled = broach.compile(program)
    for is_strided in (False, False, True, False, True):
        told = []
        for f in (program, compiled):
            x, y = (torch.zeros(7, dtype=torch.long)[1::2], torch.zeros(4, 7)[:, 1::2]) if is_strided else (torch.zeros(3).long(), torch.zeros(4, 3))
            told.append((f(x, y).tolist(), x.tolist(), y.tolist()))
        assert told[1] == told[0]


def test_rare_values():
    near = torch.tensor([-1 + 1e-4j, -1.001 + 0.001j, -1 + 1e-3j, -0.99 + 0.01j, 1e-5 + 1e-5j, 3e20 + 4e20j, -0.3 + 0.4j], dtype=torch.complex64)
    for program, arguments in [
        (torch.log1p, (near,)),
        (torch.log1p, (near.to(torch.complex128),)),
        (torch.addcdiv, (near, torch.ones(7), torch.zeros(7))),
        (lambda a, b, c: torch.addcmul(a, b, c, value=2), (near, near, near.flip(0))),
    ]:
        compiled = broach.compile(lambda *a, program=program: program(*a))
        for _ in range(2):
            torch.testing.assert_close(compiled(*arguments), program(*arguments), equal_nan=True)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("stride", [1, (1, 2)])
def test_windows_in_the_padding(layout, stride):
    """Eager itself ends the process for some of these where channels lie last, so that the layout must not become that by itself."""
    program = lambda x, w: F.conv2d(F.relu(x), w, stride=stride, padding=1, dilation=2)  # noqa: E731
    compiled = broach.compile(program)
    for width in (1, 1, 5):
        x, w = torch.randn(2, 3, 9, width), torch.randn(4, 3, 3, 1)
        if layout == torch.contiguous_format or stride == 1:
            torch.testing.assert_close(compiled(x.to(memory_format=layout), w), program(x, w))
