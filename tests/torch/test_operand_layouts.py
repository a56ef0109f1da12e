"""Contractions take operands that lie anywhere: expanded ones, overlapping windows, sizes that become symbols."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import broach
from broach._native import _C


def expanded(shape, dim):
    one = list(shape)
    one[dim] = 1
    return torch.randn(one).expand(shape)


def overlapping(rows, width, step):
    return torch.randn((rows - 1) * step + width).unfold(0, width, step)


def check(function, calls, dtype=torch.float32, **settings):
    fast = broach.compile(function, **settings)
    close = {"rtol": 2e-2, "atol": 2e-1} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    with torch.no_grad():
        for args in calls:
            torch.testing.assert_close(fast(*args), function(*args), **close)
        told = broach.explain(fast, *calls[-1])
    if dtype == torch.float32 or _C.has_bf16_contractions():  # else they are ATen's
        assert told.picks and not told.externs
    assert all("slow" not in pick for pick in told.picks)


LAYERS = {
    "linear": lambda: nn.Linear(64, 24),
    "linear and gelu": lambda: nn.Sequential(nn.Linear(64, 24), nn.GELU()),
    "linear without bias": lambda: nn.Linear(64, 24, bias=False),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 4, 5)], ids=["fixed", "symbolic"])
@pytest.mark.parametrize("layer", LAYERS)
def test_rows_may_be_expanded_or_overlap(layer, sizes, dtype):
    torch.manual_seed(0)
    model = LAYERS[layer]().eval().to(dtype)
    dense = [(torch.randn(n, 64, dtype=dtype),) for n in sizes]
    rows = [(torch.randn(1, 64, dtype=dtype).expand(n, 64),) for n in sizes]
    windows = [(overlapping(n, 64, 16).to(dtype).as_strided((n, 64), (16, 1)),) for n in sizes]
    columns = [(torch.randn(n, 1, dtype=dtype).expand(n, 64),) for n in sizes]
    for odd in (rows, windows, columns):
        check(model, dense + odd, dtype)
        check(model, odd, dtype)


@pytest.mark.parametrize("sizes", [(3, 3), (3, 5)], ids=["fixed", "symbolic"])
def test_either_factor_may_be_expanded_or_overlap(sizes):
    torch.manual_seed(0)
    for batch in ((), (2,), (2, 3)):
        dense = [(torch.randn(*batch, n, 32), torch.randn(*batch, 32, 8)) for n in sizes]
        odd_x = [(expanded((*batch, n, 32), -2), torch.randn(*batch, 32, 8)) for n in sizes]
        odd_y = [(torch.randn(*batch, n, 32), expanded((*batch, 32, 8), -1)) for n in sizes]
        windows = [(torch.randn(*batch, n, 32), overlapping(32, 8, 3).expand(*batch, 32, 8)) for n in sizes]
        for odd in (odd_x, odd_y, windows):
            check(lambda x, y: F.relu(x @ y), dense + odd)


CONVOLUTIONS = {
    "1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), (2, 4, 12)),
    "2d": (lambda: nn.Conv2d(4, 6, 3), (2, 4, 8, 8)),
    "3d": (lambda: nn.Conv3d(4, 6, 3), (2, 4, 5, 5, 5)),
    "grouped": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 8, 8)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4), (2, 4, 8, 8)),
    "dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2), (2, 4, 8, 8)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(4, 6, 4, stride=2, padding=1), (2, 4, 12)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(4, 6, 2, stride=2), (2, 4, 8, 8)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(4, 6, 2, stride=2), (2, 4, 4, 4, 4)),
    "transposed, grouped": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, output_padding=1), (2, 4, 8, 8)),
    "transposed, dilated": (lambda: nn.ConvTranspose2d(4, 6, 3, dilation=2), (2, 4, 8, 8)),
}
BEHIND = {"": nn.Identity, "relu": nn.ReLU, "gelu": nn.GELU}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_sources_of_convolutions_may_be_expanded(name, behind, dtype):
    torch.manual_seed(0)
    layer, shape = CONVOLUTIONS[name]
    model = nn.Sequential(layer(), BEHIND[behind]()).eval().to(dtype)
    dense = torch.randn(shape, dtype=dtype)
    turned = dense.transpose(-1, 1).contiguous().transpose(-1, 1)
    odd = [expanded(shape, d).to(dtype).as_strided(shape, expanded(shape, d).stride()) for d in (0, 1, len(shape) - 1)]
    check(model, [(x,) for x in (dense, dense, turned, *odd, *odd)], dtype)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("width, kernel", [(20, 1), (32, 3)])
def test_results_of_activations_may_lie_otherwise(width, kernel, activation):
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose1d(16, width, kernel), activation()).eval()
    check(lambda x: model(x).mT.contiguous(), [(torch.randn(2, 16, 12),)] * 3)
    product = nn.Sequential(nn.Linear(512, width * 16), activation()).eval()
    check(lambda x: product(x).mT.contiguous(), [(torch.randn(96, 512),)] * 3)


@pytest.mark.parametrize("name", ["2d", "grouped", "transposed 2d", "transposed, grouped"])
def test_batches_that_vary(name):
    torch.manual_seed(0)
    layer, shape = CONVOLUTIONS[name]
    model = nn.Sequential(layer(), nn.BatchNorm2d(6), nn.ReLU()).eval()
    dense = [(torch.randn(n, *shape[1:]),) for n in (2, 3, 4)]
    check(model, dense + [(expanded((n, *shape[1:]), 1),) for n in (2, 3, 5)])


def test_weights_that_are_expanded():
    torch.manual_seed(0)
    x, image = torch.randn(5, 16), torch.randn(2, 4, 8, 8)
    check(lambda x, w, b: F.linear(x, w, b), [(x, expanded((8, 16), d), torch.randn(1).expand(8)) for d in (0, 1, 0)])
    check(lambda x, w: F.relu(F.conv2d(x, w)), [(image, expanded((6, 4, 3, 3), d)) for d in (0, 1, 3)])


BIASED = {
    "linear": (lambda x, w, b: F.linear(x, w, b), (3, 13), (16, 13)),
    "linear and gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (3, 13), (16, 13)),
    "linear of batches": (lambda x, w, b: F.linear(x, w, b).relu(), (2, 3, 13), (16, 13)),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1).relu(), (2, 4, 9, 9), (16, 4, 3, 3)),
    "conv3d": (lambda x, w, b: F.conv3d(x, w, b, padding=2), (2, 4, 4, 8, 8), (16, 4, 3, 3, 3)),
    "conv_transpose2d": (lambda x, w, b: F.conv_transpose2d(x, w, b), (2, 4, 9, 9), (4, 16, 3, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [(2, 2, 2), (1, 1, 2, 3, 0)], ids=["fixed", "changing"])
@pytest.mark.parametrize("layer", BIASED)
def test_bias_may_be_spread(layer, spread, dtype):
    torch.manual_seed(0)
    function, x, w = BIASED[layer]
    fast = broach.compile(function)
    close = {"rtol": 2e-2, "atol": 2e-1} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    for step in spread:
        bias = torch.randn(16 * step, dtype=dtype)[::step] if step else torch.randn(1, dtype=dtype).expand(16)
        args = [torch.randn(x, dtype=dtype), torch.randn(w, dtype=dtype), bias]
        args = [a.detach().requires_grad_() for a in args]
        torch.testing.assert_close(fast(*args), function(*args), **close)


INDEXED = {
    "select": lambda x, at: x.select(0, at) * 2,
    "select_scatter": lambda x, at: x.select_scatter(x[0], 0, at),
    "reflecting pad": lambda x, at: F.pad(x[None], (at, 1), mode="reflect"),
}


@pytest.mark.parametrize("program", INDEXED)
def test_an_index_that_changes_stays_within_its_dimension(program):
    x = torch.randn(6, 7)
    fast = broach.compile(INDEXED[program])
    for at in (0, 3, 5, 2):
        torch.testing.assert_close(fast(x, at), INDEXED[program](x, at))
    for _ in range(2):
        with pytest.raises((IndexError, RuntimeError)):
            fast(x, 7)
    torch.testing.assert_close(fast(x, 1), INDEXED[program](x, 1))
