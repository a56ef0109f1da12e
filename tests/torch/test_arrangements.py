"""No product or convolution is computed by the library's plain loops, whatever follows it and however its operands lie."""

import os
import random

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import broach
from broach._native import _C

pytestmark = pytest.mark.skipif(not _C.has_onednn(), reason="without oneDNN these are calls of ATen")

ALL = os.environ.get("BROACH_TEST_ALL") == "1"
PROGRAMS = 400 if ALL else 40  # in each sweep

FOLLOWING = {
    "relu": lambda y, a, b, v: y.relu(),
    "gelu": lambda y, a, b, v: F.gelu(y),
    "silu": lambda y, a, b, v: F.silu(y),
    "add": lambda y, a, b, v: y + a,
    "mul": lambda y, a, b, v: y * b,
    "shift": lambda y, a, b, v: y + v,
    "scale": lambda y, a, b, v: y * v,
}
CHAINS = ["", "relu", "gelu", "add", "add relu", "mul", "silu mul", "add add relu", "scale", "scale shift relu", "shift add", "gelu add"]


def lay(t, how):
    """The same elements with other strides."""
    if how == "last":
        return t.movedim(1, -1).contiguous().movedim(-1, 1)
    if how == "transposed":
        return t.mT.contiguous().mT
    if how == "gaps":  # no dimension has stride 1
        return torch.stack([t, t], -1)[..., 0]
    if how == "rows apart":
        return F.pad(t, (0, 3))[..., :-3]
    return t


def convolution(rng, dtype):
    rank, transposed = rng.choice([1, 2, 2, 3]), rng.random() < 0.3
    inputs, outputs, groups = rng.choice([1, 3, 4, 8, 16, 20]), rng.choice([1, 4, 8, 16, 20]), rng.choice([1, 1, 2, "each"])
    if groups == "each":
        groups, outputs = inputs, inputs
    elif inputs % groups or outputs % groups:
        groups = 1
    kernel, stride, dilation = rng.choice([1, 2, 3, 5]), rng.choice([1, 1, 2]), rng.choice([1, 1, 2])
    padding = rng.choice([0, 1, 2]) if kernel > 1 else 0
    size = max(rng.choice([1, 2, 7, 12]), (kernel - 1) * dilation + 1 - 2 * padding)
    more = {"output_padding": 1} if transposed and stride > 1 and rng.random() < 0.5 else {}
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{rank}d")
    layer = kind(inputs, outputs, kernel, stride=stride, dilation=dilation, padding=padding, groups=groups, bias=rng.random() < 0.7, **more)
    x = torch.randn(rng.choice([1, 2]), inputs, *[size] * rank)
    return layer.eval().to(dtype), lay(x, rng.choice(["", "last", "gaps", "transposed"])).to(dtype), (-1, *[1] * rank)


def product(rng, dtype):
    m, n, k = (rng.choice([1, 2, 7, 16, 33, 64]) for _ in range(3))
    kind = rng.choice(["linear", "matrices", "batches", "shared"])
    if kind == "linear":
        x = lay(torch.randn(2, m, k), rng.choice(["", "transposed", "gaps", "rows apart"]))
        return nn.Linear(k, n, bias=rng.random() < 0.7).eval().to(dtype), x.to(dtype), (-1,)
    left, right = {"matrices": ((), ()), "batches": ((2, 3), (2, 3)), "shared": ((2, 1), (1, 3))}[kind]
    hows = ["", "transposed", "gaps"] if kind == "matrices" else ["", "transposed"]
    w = lay(torch.randn(*right, k, n), rng.choice(hows)).to(dtype)
    return (lambda x: x @ w), lay(torch.randn(*left, m, k), rng.choice(hows)).to(dtype), (-1,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [convolution, product])
def test_sweep(kind, dtype):
    rng = random.Random(f"{kind.__name__} {dtype}")
    torch.manual_seed(0)
    for _ in range(PROGRAMS):
        layer, x, along = kind(rng, dtype)
        chain, result = rng.choice(CHAINS), rng.choice(["", "last", "transposed"])
        with torch.no_grad():
            try:
                y = layer(x)
            except RuntimeError:  # eager refuses some transposed convolutions in half precision
                continue
            channel = 1 if kind is convolution else -1
            more = [lay(torch.randn(y.shape), rng.choice(["", "last", "transposed"])).to(dtype) for _ in range(2)]
            more.append(torch.randn(y.shape[channel]).view(along).to(dtype))

            def program(x, a, b, v):
                y = layer(x)
                for name in chain.split():
                    y = FOLLOWING[name](y, a, b, v)
                if result == "last" and y.dim() > 2:
                    return y.movedim(1, -1).contiguous()
                return y.mT.contiguous() if result == "transposed" else y

            fast = broach.compile(program)
            fast(x, *more)
            actual, expected, told = fast(x, *more), program(x, *more), broach.explain(fast, x, *more)
        about = f"{layer} of {tuple(x.shape)} {x.stride()} then {chain!r} {result}: {told.picks}"
        assert all("slow" not in pick for pick in told.picks), about
        close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 5e-2, "atol": 1e-1}
        torch.testing.assert_close(actual, expected, **close, msg=lambda m: f"{about}\n{m}")


def test_explain_says_what_is_computed_apart():
    layer = nn.Conv2d(20, 20, 3, padding=1).eval()
    x, a = torch.randn(2, 20, 9, 9), torch.randn(2, 20, 9, 9)
    with torch.no_grad():
        fast = broach.compile(lambda x, a: (layer(x) + a).relu())
        fast(x, a)
        told = broach.explain(fast, x, a)
    assert [pick.endswith("epilogue apart") for pick in told.picks] == [True], told.picks


@torch.no_grad()
def test_strict_contracts_nothing_that_is_computed_apart():
    layer = nn.Conv2d(20, 20, 3, padding=1).eval()
    for whole in layer.parameters():
        whole.copy_(torch.randint(-4, 5, whole.shape))
    x, a, b = torch.randint(-4, 5, (2, 20, 9, 9)).float(), torch.randn(2, 20, 9, 9), torch.randn(2, 20, 9, 9)
    fast = broach.compile(lambda x, a, b: layer(x) * a + b, options={"strict": True})
    fast(x, a, b)
    assert torch.equal(fast(x, a, b), layer(x) * a + b)  # the sums of whole numbers are exact in any order
    assert [pick.endswith("epilogue apart") for pick in broach.explain(fast, x, a, b).picks] == [True]


def test_sizes_that_change():
    layer = nn.Conv2d(20, 20, 3, padding=1).eval()
    with torch.no_grad():
        fast = broach.compile(lambda x, a: (layer(x) + a).relu())
        for size in (5, 7, 9, 6, 9, 5):
            x, a = torch.randn(2, 20, size, size + 1), torch.randn(2, 20, size, size + 1)
            torch.testing.assert_close(fast(x, a), (layer(x) + a).relu(), rtol=1e-4, atol=1e-4)
