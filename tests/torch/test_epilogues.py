"""What a product or a convolution computes besides, in half precision: one step, and no farther from the truth than eager."""

import copy

import pytest
import torch
from norms import distance, redraw
from torch import nn

import broach
from broach._native import _C

pytestmark = pytest.mark.skipif(not _C.has_onednn(), reason="without oneDNN these are calls of ATen")


class Block(nn.Module):
    """A residual block's end: convolution, norm, sum, activation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        nn.init.uniform_(self.norm.weight, 0.5, 2.0)
        nn.init.normal_(self.norm.bias)
        nn.init.normal_(self.norm.running_mean)

    def forward(self, x):
        return (self.norm(self.conv(x)) + x).relu()


def _compiled(model, x, **options):
    with torch.no_grad():
        fast = broach.compile(model, options=options)
        fast(x)
        return fast(x), broach.explain(fast, x)


def _error(actual, exact):
    return (actual.double() - exact).abs().max().item()


def test_norm_in_half_precision_joins_the_convolution():
    torch.manual_seed(0)
    model, x = Block().eval().bfloat16(), torch.randn(2, 16, 12, 12).bfloat16().to(memory_format=torch.channels_last)
    actual, told = _compiled(model, x)
    if _C.has_bf16_contractions():  # else the convolution is ATen's
        assert told.contractions == 1 and told.kernels == 0
    assert all("slow" not in pick for pick in told.picks)
    with torch.no_grad():
        eager, exact = model(x), model.double()(x.double())
    assert _error(actual, exact) <= 1.1 * _error(eager, exact)


class Bottleneck(nn.Module):
    """Convolutions of each kind, with statistics as after training."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        kinds = [dict(kernel_size=1), dict(kernel_size=3, padding=1, stride=2), dict(kernel_size=3, padding=1, groups=4), dict(kernel_size=1)]
        self.convs = nn.ModuleList(nn.Conv2d(32, 32, bias=bias, **kind) for kind in kinds)
        self.norms = nn.ModuleList(nn.BatchNorm2d(32) for _ in kinds)
        redraw(self.norms)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = norm(conv(x)).relu()
        return x


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_that_hold_a_norms_scale_follow_it(dtype, bias):
    torch.manual_seed(0)
    model, x = Bottleneck(bias).eval().to(dtype), torch.randn(2, 32, 12, 12, dtype=dtype)
    fast = broach.compile(model)
    with torch.no_grad():
        for i in range(12):
            actual, expected = fast(x), model(x)
            exact = copy.deepcopy(model).double()(x.double())
            # Rounding a scaled weight takes the place of rounding what the convolution gives; which of the two is nearer is luck.
            assert distance(actual, exact) <= 1.5 * distance(expected, exact)
            if i % 3 == 2:
                redraw(model.norms) if i % 2 else model.norms[1].weight.mul_(-2)
            if i == 7:
                model.convs[0].weight.data = torch.randn_like(model.convs[0].weight) / 4
        if bias or dtype == torch.float16 or not _C.has_bf16_contractions():
            return
        told = broach.explain(fast, x)
        assert told.kernels == 0 and not told.eager_reasons


def test_strict_keeps_eagers_roundings():
    torch.manual_seed(0)
    model, x = Block().eval().bfloat16(), torch.randn(2, 16, 12, 12).bfloat16()
    _, told = _compiled(model, x, strict=True)
    assert told.kernels == 1


class Scaled(nn.Module):
    def __init__(self, after: str) -> None:
        super().__init__()
        self.linear, self.after = nn.Linear(24, 40), after
        self.scale = nn.Parameter(torch.rand(40) + 0.5)

    def forward(self, x):
        y = self.linear(x)
        if self.after == "scale":
            return y * self.scale
        if self.after == "wide":  # what leaves is wider than the product: the cast stays outside
            return y.float() * 2.0
        return (y.float() * self.scale.float()).to(y.dtype) + x[..., :1]  # one value a row: no epilogue of the library


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("after", ["scale", "wide", "row"])
def test_chains_behind_a_linear(after, dtype):
    torch.manual_seed(0)
    model, x = Scaled(after).eval().to(dtype), torch.randn(3, 5, 24).to(dtype)
    actual, told = _compiled(model, x)
    is_joined = dtype == torch.float32 or _C.has_bf16_contractions()  # else the product is ATen's
    assert told.kernels == {"scale": 0 if is_joined else 1, "wide": 1, "row": 1}[after]
    assert all("slow" not in pick for pick in told.picks)
    with torch.no_grad():
        expected = model(x)
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, **({"rtol": 3e-2, "atol": 3e-2} if dtype == torch.bfloat16 else {}))


def test_product_is_written_where_its_output_lies():
    """Eager's linear is a product of two dimensions and a view of it."""
    linear = nn.Linear(24, 40).eval()
    programs = {
        "alone": lambda x: linear(x),
        "twice": lambda x: (linear(x), linear(x)),
        "read": lambda x: (y := linear(x), y.sum(-1)),
        "windows": lambda x: (y := linear(x), y[0], y.flatten(0, 1)),
        "transposed": lambda x: linear(x).transpose(1, 2),
    }
    for name, program in programs.items():
        with torch.no_grad():
            fast = broach.compile(program)
            for rows in (3, 3, 5, 6):  # the last of symbolic sizes
                x = torch.randn(rows, 5, 24)
                actual, expected = fast(x), program(x)
                torch.testing.assert_close(actual, expected, msg=lambda m: f"{name}: {m}")
                for a, b in zip([actual] if torch.is_tensor(actual) else actual, [expected] if torch.is_tensor(expected) else expected):
                    assert a.stride() == b.stride()
            # of both versions together
            assert broach.explain(fast, x).kernels == {"twice": 2, "read": 2}.get(name, 0), name


@pytest.mark.parametrize("strict", [False, True])
def test_hardsigmoid_behind_a_product(strict):
    linear, x = torch.nn.Linear(64, 48), torch.randn(32, 64)
    if strict:
        x[3, 4] = float("nan")
    compiled = broach.compile(lambda x: torch.nn.functional.hardsigmoid(linear(x)), options={"strict": strict})
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), torch.nn.functional.hardsigmoid(linear(x)), equal_nan=True)
