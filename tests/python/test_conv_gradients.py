"""Gradients of convolutions: sizes, strides, groups, layouts and element types against eager."""

import pytest
import torch
import torch.nn.functional as F

import broach
from broach._native import _C

CONVOLUTIONS = {
    "pointwise": (F.conv2d, (2, 6, 9, 9), (8, 6, 1, 1), {}),
    "pointwise, apart": (F.conv2d, (2, 4, 8, 8), (8, 4, 1, 1), {"stride": 2}),
    "padded": (F.conv2d, (2, 6, 9, 8), (8, 6, 3, 3), {"padding": 1}),
    "strided": (F.conv2d, (2, 6, 9, 8), (8, 6, 3, 3), {"stride": 2, "padding": 1}),
    "strides that leave a rest": (F.conv2d, (2, 6, 10, 11), (8, 6, 3, 3), {"stride": 3}),
    "strided by one dimension": (F.conv2d, (2, 3, 9, 12), (8, 3, 1, 3), {"stride": (1, 2), "padding": (0, 1)}),
    "dilated": (F.conv2d, (2, 6, 12, 12), (8, 6, 3, 3), {"dilation": 2, "padding": 2}),
    "groups": (F.conv2d, (2, 6, 9, 9), (9, 2, 3, 3), {"groups": 3, "padding": 1}),
    "depthwise": (F.conv2d, (2, 8, 9, 9), (8, 1, 3, 3), {"groups": 8, "padding": 1}),
    "same": (F.conv2d, (2, 6, 9, 9), (8, 6, 4, 4), {"padding": "same"}),
    "one dimension": (F.conv1d, (2, 6, 21), (8, 6, 5), {"stride": 2, "padding": 2}),
    "three dimensions": (F.conv3d, (2, 4, 6, 7, 5), (6, 4, 3, 3, 3), {"padding": 1, "stride": (1, 2, 1)}),
    "transposed": (F.conv_transpose2d, (2, 6, 7, 7), (6, 8, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "transposed groups": (F.conv_transpose2d, (2, 6, 7, 7), (6, 3, 2, 2), {"stride": 2, "groups": 2}),
    "transposed, one dimension": (F.conv_transpose1d, (2, 6, 7), (6, 4, 4), {"stride": 3}),
    "transposed, with more than a stride of padding": (
        F.conv_transpose2d, (2, 6, 4, 5), (6, 8, 2, 3), {"stride": (3, 2), "padding": (1, 2), "output_padding": (2, 3), "dilation": 4},
    ),
    "larger": (F.conv2d, (4, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
}

pytestmark = pytest.mark.usefixtures("with_gradients")


def operands(name, dtype=torch.float32, batch=None):
    _, x, w, settings = CONVOLUTIONS[name]
    g = torch.Generator().manual_seed(len(name))
    out = w[1] * settings.get("groups", 1) if "transposed" in name else w[0]
    sizes = (x if batch is None else (batch, *x[1:])), w, (out,)
    # Weights such that results are of about the size of the inputs.
    scale = (1, (w[1] * torch.Size(w[2:]).numel()) ** -0.5, 1)
    return [(torch.randn(s, generator=g) * k).to(dtype).requires_grad_() for s, k in zip(sizes, scale, strict=True)]


def compare(f, run, tensors, tolerance, tangent=None):
    want, got = run(*tensors), f(*tensors)
    tangent = torch.randn(want.shape, generator=torch.Generator().manual_seed(1)).to(want.dtype) if tangent is None else tangent(want)
    torch.testing.assert_close(got, want, **tolerance)
    wants = torch.autograd.grad(want, tensors, tangent)
    for a, b in zip(torch.autograd.grad(got, tensors, tangent), wants, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, **tolerance)


# Sums of up to 28 * 28 * 4 products of standard normal numbers, in another order.
CLOSE = {"atol": 5e-4, "rtol": 1e-4}


@pytest.mark.parametrize("layout", ["contiguous", "channels last"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_equal_eagers(name, layout):
    if (name, layout) == ("pointwise, apart", "channels last") and not _C.has_bf16_contractions():
        pytest.skip("eager's own is wrong without AVX-512: torch's library reads beyond channels that do not fill a vector")
    conv, _, _, settings = CONVOLUTIONS[name]
    run = lambda x, w, b: conv(x, w, b, **settings).sin()
    f = broach.compile(run)
    for seed in range(4):
        x, w, b = operands(name)
        if layout == "channels last" and x.dim() == 4:
            x = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        compare(f, run, (x, w.detach().mul(seed + 1).requires_grad_(), b), CLOSE)
    if "groups" not in settings:  # ATen's own kernels take over where the library has none
        assert not any("backward" in op for p in f.stats()["programs"] for op in p["externs"])


@pytest.mark.parametrize("name", ["pointwise", "padded", "groups", "transposed", "one dimension"])
def test_gradients_in_low_precision(name):
    conv, _, _, settings = CONVOLUTIONS[name]
    run = lambda x, w, b: conv(x, w, b, **settings)
    for dtype in (torch.bfloat16, torch.float64):
        f = broach.compile(run)
        for _ in range(3):
            # bf16 has 8 bits: sums of about 100 products round to within a few units of the last place of the largest.
            compare(f, run, operands(name, dtype), {"atol": 0.25, "rtol": 0.03} if dtype == torch.bfloat16 else {})


@pytest.mark.parametrize("name", ["padded", "strided", "transposed"])
def test_the_batch_changes_without_another_program(name):
    conv, _, _, settings = CONVOLUTIONS[name]
    run = lambda x, w, b: conv(x, w, b, **settings).relu()
    f = broach.compile(run, dynamic=True)
    for batch in (2, 3, 5, 4, 7):
        compare(f, run, operands(name, batch=batch), CLOSE)
    assert f.stats()["captures"] <= 2


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2), (1, 2)])
def test_only_the_gradients_that_are_needed(which):
    run = lambda x, w, b: F.conv2d(x, w, b, padding=1).exp()
    f = broach.compile(run)
    for _ in range(3):
        tensors = [t.mul(0.1).detach().requires_grad_(i in which) for i, t in enumerate(operands("padded"))]
        needed = [tensors[i] for i in which]
        for a, b in zip(torch.autograd.grad(f(*tensors).sum(), needed), torch.autograd.grad(run(*tensors).sum(), needed), strict=True):
            torch.testing.assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("tangent", [torch.ones_like, lambda t: torch.ones((), dtype=t.dtype).expand(t.shape), lambda t: t.detach()[:, :1].expand(t.shape)])
def test_tangents_that_repeat_elements(tangent):
    run = lambda x, w, b: F.conv2d(x, w, b, padding=1)
    f = broach.compile(run)
    for _ in range(4):
        compare(f, run, operands("padded"), CLOSE, tangent)


def test_a_network_keeps_its_saved_values_as_convolutions_want_them():
    torch.manual_seed(0)
    m = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1, bias=False), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 32, 1), torch.nn.Sigmoid(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 5),
    )  # fmt: skip
    import copy

    other = copy.deepcopy(m)
    f, a, b = broach.compile(other), torch.optim.SGD(m.parameters(), 0.1), torch.optim.SGD(other.parameters(), 0.1)
    for step in range(12):
        x = torch.randn(4 + step % 2, 3, 32, 32)
        for run, optimizer in ((m, a), (f, b)):
            optimizer.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
        for p, q in zip(m.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, atol=1e-4, rtol=1e-3)
            assert q.grad.stride() == p.grad.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_way_to_the_gradient_of_a_pointwise_weight(dtype):
    """Large enough for several ways to be measured, among them a matrix product: what each of them gives is eager's."""
    x, y = torch.randn(4, 48, 28, 28), torch.randn(4, 160, 28, 28)
    x, y = (t.to(dtype, memory_format=torch.channels_last) for t in (x, y))
    w = torch.empty(160, 48, 1, 1, dtype=dtype)

    def gradient(y, x):
        return torch.ops.aten.convolution_backward(y, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False])[1]

    with torch.no_grad():
        want, f = gradient(y.float(), x.float()) if dtype == torch.float32 else gradient(y, x), broach.compile(gradient)
        for _ in range(60):
            torch.testing.assert_close(f(y, x), want, atol=2e-3 if dtype == torch.float32 else 1, rtol=1e-3)
        told = str(broach.explain(f, y, x))
    assert "onednn" not in told or ", product " in told, told


@pytest.mark.parametrize("name", ["padded", "groups", "strides that leave a rest", "transposed", "one dimension"])
def test_gradients_on_the_reference_target(name):
    conv, _, _, settings = CONVOLUTIONS[name]
    run = lambda x, w, b: conv(x, w, b, **settings)
    f = broach.compile(run, options={"target": "reference"})
    for _ in range(3):
        compare(f, run, operands(name), CLOSE)
    assert not any("convolution" in op for p in f.stats()["programs"] for op in p["externs"])
