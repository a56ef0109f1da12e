"""Concatenations of what is computed, and their gradients: along the axis of the CPU's vectors, in pieces long and short."""

import pytest
import torch
import torch.nn.functional as F

import broach

WIDTHS = [(64, 96, 33), (16, 16), (100, 7, 64), (256, 40, 32, 128), (3, 70, 2), (1, 1, 1)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_pieces(widths, last, dtype):
    def program(xs):
        return torch.cat([~x if dtype == torch.bool else x * (i + 2) - 1 for i, x in enumerate(xs)], 1)

    compiled = broach.compile(program)
    for batch in (2, 2, 3, 1):
        xs = [(torch.randn(batch, n, 5, 6) * 9).to(dtype) for n in widths]
        xs = [x.contiguous(memory_format=torch.channels_last) for x in xs] if last else xs
        have, want = compiled(xs), program(xs)
        assert have.stride() == want.stride()
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
def test_images_of_several_sizes(mode, last):
    """As of a pyramid: what is read of each is chosen by a position that is looked up."""
    convolution = torch.nn.Conv2d(160, 8, 1)

    def program(xs):
        return convolution(torch.cat([F.interpolate(F.relu(x), size=(14, 12), mode=mode) for x in xs], 1))

    compiled = broach.compile(program)
    with torch.enable_grad():
        for scale in (1, 1, 2, 1):
            xs = [torch.randn(2, n, s * scale, s * scale) for n, s in ((64, 14), (40, 7), (32, 4), (24, 2))]
            results = []
            for call in (compiled, program):
                given = [x.contiguous(memory_format=torch.channels_last) if last else x.clone() for x in xs]
                given = [x.requires_grad_() for x in given]
                convolution.zero_grad()
                y = call(given)
                y.square().mean().backward()
                results.append([y.detach(), convolution.weight.grad, *(x.grad for x in given)])
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_padding_of_long_rows():
    compiled = broach.compile(lambda x: F.pad(x * 2, (40, 50), value=3.0) + 1)
    for n in (100, 100, 333, 64):
        x = torch.randn(3, n)
        torch.testing.assert_close(compiled(x), F.pad(x * 2, (40, 50), value=3.0) + 1)


@pytest.mark.parametrize("widths", [(520, 504), (512, 512), (500, 20, 504)], ids=str)
def test_results_too_large_for_the_caches(widths):
    """Which are written past them, in whole vectors from wherever a piece begins."""
    compiled = broach.compile(lambda xs: torch.cat([x * (i + 2) for i, x in enumerate(xs)], 1), dynamic=False)
    for _ in range(3):
        xs = [torch.randn(8192, n) for n in widths]
        assert torch.equal(compiled(xs), torch.cat([x * (i + 2) for i, x in enumerate(xs)], 1))
