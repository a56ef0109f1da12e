"""Convolutions on a GPU: by cuDNN where it has an engine for them, else by libtorch's; beside eager on the same device."""

from __future__ import annotations

import copy
from functools import partial

import broach
import pytest
import torch
import torch.nn.functional as F
from norms import distance, redraw

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
LAST = torch.channels_last


def _tensors(dtype, layout=LAST, channels=32, given=48, size=14, kernel=3):
    """An image, a weight, a bias and what is as large as the result of a convolution with padding."""
    torch.manual_seed(0)
    x = torch.randn(4, channels, size, size, device="cuda", dtype=dtype).to(memory_format=layout)
    w = (torch.randn(given, channels, kernel, kernel, device="cuda", dtype=dtype) / (kernel * channels**0.5)).to(memory_format=layout)
    b, r = torch.randn(given, device="cuda", dtype=dtype), torch.randn(4, given, size, size, device="cuda", dtype=dtype)
    return x, w, b, r.to(memory_format=layout) / 4


def _close(have, want):
    """One rounding apart, where eager rounds between a convolution and what stands behind it."""
    torch.testing.assert_close(have, want, rtol=2e-2, atol=2e-2, equal_nan=True)


def _picks(program, *args, externs=False):
    compiled = broach.compile(lambda *args: program(*args))
    with torch.no_grad():
        for _ in range(3):
            _close(compiled(*args), program(*args))
        report = broach.explain(compiled, *args)
    assert not report.eager_reasons and bool(report.externs) == externs, report
    return set(report.picks)


BEHIND = {
    "nothing": lambda conv, x, w, b, r: conv(x, w, padding=1),
    "a bias": lambda conv, x, w, b, r: conv(x, w, b, padding=1),
    "relu": lambda conv, x, w, b, r: F.relu(conv(x, w, padding=1)),
    "a bias and relu": lambda conv, x, w, b, r: F.relu(conv(x, w, b, padding=1)),
    "a residual": lambda conv, x, w, b, r: conv(x, w, padding=1) + r,
    "a bias, a residual and relu": lambda conv, x, w, b, r: F.relu(conv(x, w, b, padding=1) + r),
    "relu and a residual": lambda conv, x, w, b, r: F.relu(conv(x, w, b, padding=1)) + r,
    "two residuals": lambda conv, x, w, b, r: F.relu(conv(x, w, b, padding=1) + r + r.square()),
    "one number a channel": lambda conv, x, w, b, r: conv(x, w, padding=1) + r[:1].flatten(2)[..., :1].view(1, -1, *[1] * (r.dim() - 2)),
    "itself": lambda conv, x, w, b, r: (lambda y: y + y)(conv(x, w, b, padding=1)),
}


@pytest.mark.parametrize("layout", ["channels last", "channels first"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("behind", BEHIND)
def test_what_stands_behind(behind, dtype, layout):
    tensors = _tensors(TYPES[dtype], LAST if layout == "channels last" else torch.contiguous_format)
    picks = _picks(partial(BEHIND[behind], F.conv2d), *tensors)
    if layout == "channels last":
        assert "cudnn" in picks


def _rows(dtype, layout="channels last", **sizes):
    """The same along one dimension."""
    x, w, b, r = _tensors(dtype, **{"size": 40, **sizes})
    x, w, r = (t[:, :, 0].contiguous() for t in (x, w, r))
    if layout == "channels last":
        x, w, r = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, w, r))
    return x, w, b, r


@pytest.mark.parametrize("layout", ["channels last", "channels first"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("behind", BEHIND)
def test_what_stands_behind_one_dimension(behind, dtype, layout):
    picks = _picks(partial(BEHIND[behind], F.conv1d), *_rows(TYPES[dtype], layout))
    if layout == "channels last":
        assert "cudnn" in picks


def test_forms_of_one_dimension():
    for layout in ("channels last", "channels first"):
        x, w, b, r = _rows(torch.bfloat16, layout, channels=32, given=32)
        for stride, padding, dilation in ((1, 0, 1), (2, 1, 1), (1, 2, 2), (3, 4, 4)):
            _picks(lambda x, w, b: F.conv1d(x, w, b, stride, padding, dilation), x, w, b)
        _picks(lambda x, w: F.conv1d(x, w[..., :1]), x, w)
        _picks(lambda x, w: F.conv1d(x, w, padding="same", dilation=3), x, w)
        _picks(lambda x, w, b: F.conv_transpose1d(x, w, b, stride=3, padding=1, output_padding=2), x, w, b)
        _picks(lambda x, w: F.conv1d(x[0], w), x, w)
        _picks(lambda x, w: F.conv1d(x[:, :, 3:], w), x, w)
        _picks(lambda x, w: F.conv1d(x[:0], w), x, w)
        _picks(lambda x, w: F.conv1d(x, w[:, :8], padding=1, groups=4), x, w, externs=True)
        _picks(lambda x, w, b: torch.tanh(F.conv1d(F.gelu(F.conv1d(x, w, b, padding=1)), w, dilation=2)), x, w, b)


@pytest.mark.parametrize("channels", [1, 3, 7, 8, 33])
def test_channels_along_one_dimension(channels):
    _picks(lambda x, w, b, r: F.conv1d(x, w, b, padding=1), *_rows(torch.bfloat16, channels=channels, given=channels + 4))


@pytest.mark.parametrize("case", [(1, 1, 1), (2, 1, 1), (1, 2, 2), (2, 0, 1), (3, 2, 1)])
def test_windows(case):
    stride, padding, dilation = case
    for kernel in (1, 3, (1, 5)):
        x, _, _, _ = _tensors(torch.bfloat16)
        w = torch.randn(48, 32, *((kernel, kernel) if isinstance(kernel, int) else kernel), device="cuda", dtype=torch.bfloat16) / 16
        _picks(lambda x, w: F.conv2d(x, w, stride=stride, padding=padding, dilation=dilation), x, w)


@pytest.mark.parametrize("channels", [1, 3, 7, 8, 33])
def test_channels(channels):
    _picks(lambda x, w, b, r: F.conv2d(x, w, b, padding=1), *_tensors(torch.bfloat16, channels=channels, given=channels + 4))


def test_other_forms():
    x, w, b, r = _tensors(torch.bfloat16, channels=32, given=32)
    _picks(lambda x, w: F.conv2d(x, w[:, :8], padding=1, groups=4), x, w, externs=True)
    _picks(lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1), x, w, b)
    _picks(lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1), x, w)
    _picks(lambda x, w: F.conv2d(x[:, :, 1:, 2:], w), x, w)
    _picks(lambda x, w: F.conv2d(x[:, 1:17], w[:, :16]), x, w)
    _picks(lambda x, w: F.conv2d(x.flatten()[1 : 1 + 8 * 32 * 9].view(8, 32, 3, 3), w), x, w)  # an odd place in memory
    _picks(lambda x, w: F.conv2d(x[:0], w), x, w)
    _picks(lambda x, w: F.conv2d(F.relu(x * 0 + float("nan")), w), x, w)


class Block(torch.nn.Module):
    """Two convolutions with a batch norm each, a residual, and statistics as after training."""

    def __init__(self, channels=32, bias=False, kernel=3):
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Conv2d(channels, 2 * channels, kernel, padding=kernel // 2, bias=bias)
        self.second = torch.nn.Conv2d(2 * channels, channels, 1, bias=bias)
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(2 * channels), torch.nn.BatchNorm2d(channels)])
        self.eval()
        redraw(self.norms)

    def forward(self, x):
        return F.relu(self.norms[1](self.second(F.relu(self.norms[0](self.first(x))))) + x)


def _is_as_exact(have, want, block, x):
    """The error of both against the same numbers in fp64: rounding weights takes the place of rounding what a convolution gives, and
    the bias is rounded besides."""
    exact = copy.deepcopy(block).double()(x.double())
    error = [distance(y, exact) for y in (have, want)]
    assert error[0] <= 1.5 * error[1] + 1e-4, error


@pytest.mark.parametrize("layout", ["channels last", "channels first"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kernel", [1, 3])
def test_batch_norm_in_eval_mode(kernel, bias, layout):
    memory = LAST if layout == "channels last" else torch.contiguous_format
    block = Block(bias=bias, kernel=kernel).to("cuda", torch.bfloat16, memory_format=memory)
    x = torch.randn(16, 32, 14, 14, device="cuda", dtype=torch.bfloat16).to(memory_format=memory)
    compiled = broach.compile(block)
    with torch.no_grad():
        for i in range(4):
            _is_as_exact(compiled(x), block(x), block, x)
            redraw(block.norms) if i % 2 else block.norms[0].weight.data.mul_(2)  # nothing of what is written is remembered
        report = broach.explain(compiled, x)
    assert not report.eager_reasons and not report.externs, report
    if layout == "channels last":
        assert set(report.picks) == {"cudnn"}


def test_batch_norm_beside_few_pixels():
    block = Block(channels=128).to("cuda", torch.bfloat16, memory_format=LAST)
    compiled = broach.compile(block)
    with torch.no_grad():
        for n in (1, 2, 1, 3):
            x = torch.randn(n, 128, 3, 3, device="cuda", dtype=torch.bfloat16).to(memory_format=LAST)
            for _ in range(2):
                _is_as_exact(compiled(x), block(x), block, x)


def test_batch_norm_in_other_types():
    for dtype in (torch.float16, torch.float32):
        block = Block().to("cuda", dtype)
        x = torch.randn(8, 32, 14, 14, device="cuda", dtype=dtype)
        compiled = broach.compile(block)
        with torch.no_grad():
            for _ in range(3):
                _is_as_exact(compiled(x), block(x), block, x)
    block, x = Block().cuda(), torch.randn(8, 32, 14, 14, device="cuda")
    compiled = broach.compile(block)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        for _ in range(3):
            have, want = compiled(x), block(x)
            assert have.dtype == want.dtype
            with torch.autocast("cuda", enabled=False):
                _is_as_exact(have, want, block, x)


def test_nan_behind_relu_is_seen_where_there_are_gradients():
    x, w, b, r = _tensors(torch.bfloat16)
    x[0, 0, 0, 0] = float("nan")
    w.requires_grad_()
    program = lambda x, w, b, r: F.relu(F.conv2d(x, w, b, padding=1) + r)  # noqa: E731
    compiled = broach.compile(program)
    for _ in range(3):
        assert torch.equal(compiled(x, w, b, r).isnan(), program(x, w, b, r).isnan())


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("case", [(3, 1, 1), (3, 2, 1), (1, 1, 0), (1, 2, 0), (5, 2, 2)])
@pytest.mark.parametrize("conv", [F.conv2d, F.conv1d])
def test_gradients(conv, case, dtype):
    kernel, stride, padding = case
    x, w, b, _ = (_tensors if conv is F.conv2d else _rows)(TYPES[dtype], kernel=kernel, size=15)
    bent = torch.relu if conv is F.conv2d else torch.tanh  # of so few elements each that rounds to the other side of zero is felt

    def program(x, w, b):
        hidden = bent(conv(x, w, b, stride, padding))
        return conv(hidden, w.transpose(0, 1).contiguous(), padding=padding).float().square().mean()

    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    compiled = broach.compile(program)
    want = torch.autograd.grad(program(*leaves), leaves)
    for _ in range(8):
        for have, expected in zip(torch.autograd.grad(compiled(*leaves), leaves), want, strict=True):
            assert (have - expected).float().norm() <= 2e-2 * expected.float().norm()
    assert compiled.stats()["compiled_calls"] > 0


@pytest.mark.parametrize("flag", ["benchmark", "deterministic", "enabled"])
def test_flags_are_obeyed(flag):
    x, w, b, _ = _tensors(torch.bfloat16)
    program = lambda x, w, b: F.conv2d(x, w, b, padding=1)  # noqa: E731
    compiled = broach.compile(program)
    with torch.no_grad():
        for value in (False, True, False):
            with torch.backends.cudnn.flags(**{"enabled": True, "benchmark": False, "deterministic": False, flag: value}):
                for _ in range(3):
                    _close(compiled(x, w, b), program(x, w, b))


def test_measuring_is_left_to_libtorch():
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False):
        assert _picks(lambda x, w, b, r: F.conv2d(x, w, padding=1), *_tensors(torch.bfloat16)) == {"aten"}


def test_gradients_of_transposed_rows():
    x, w, b, _ = _rows(torch.bfloat16, channels=48, given=48)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    program = lambda x, w, b: F.conv_transpose1d(x.tanh(), w, b, 2, 1, 1).float().square().mean()  # noqa: E731
    compiled = broach.compile(program)
    want = torch.autograd.grad(program(*leaves), leaves)
    for _ in range(6):
        for have, expected in zip(torch.autograd.grad(compiled(*leaves), leaves), want, strict=True):
            assert (have - expected).float().norm() <= 2e-2 * expected.float().norm()


def test_lengths_that_change():
    _, w, b, _ = _rows(torch.bfloat16, given=32)
    program = lambda x, w, b: F.conv1d(F.relu(F.conv1d(x, w, b, padding=1)), w, stride=2)  # noqa: E731
    compiled = broach.compile(program)
    with torch.no_grad():
        for n, length in ((4, 14), (4, 33), (2, 50), (1, 51), (4, 14), (3, 128)):
            x = torch.randn(n, 32, length, device="cuda", dtype=torch.bfloat16)
            _close(compiled(x, w, b), program(x, w, b))


def test_batches_of_changing_size():
    _, w, b, _ = _tensors(torch.bfloat16)
    program = lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1))  # noqa: E731
    compiled = broach.compile(program)
    with torch.no_grad():
        for n in (4, 5, 9, 1, 4, 12):
            x = torch.randn(n, 32, 14, 14, device="cuda", dtype=torch.bfloat16).to(memory_format=LAST)
            _close(compiled(x, w, b), program(x, w, b))
