"""Bags of embeddings: of one size, as a matrix of indices gives them, and of any."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import broach


def _externs(compiled, *args):
    told = broach.explain(compiled, *args)
    assert not told.eager_reasons
    return dict(told.externs)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("index", [torch.int64, torch.int32], ids=str)
def test_a_matrix_of_indices(mode, dtype, index):
    with torch.enable_grad():
        bags = nn.EmbeddingBag(50, 7, mode=mode).to(dtype)
        program = lambda i: torch.tanh(bags(i) * 2)  # noqa: E731
        compiled = broach.compile(program)
        tolerance = {"rtol": 2e-2, "atol": 6e-2} if dtype == torch.bfloat16 else {}  # eager rounds each of a gradient's sums to bf16
        for rows in (3, 3, 8, 9, 1, 0, 20, 64):
            i = torch.randint(0, 50, (rows, 5), dtype=index)
            results = []
            for call in (compiled, program):
                bags.zero_grad()
                y = call(i)
                y.square().sum().backward()
                results.append((y.detach(), bags.weight.grad))
            torch.testing.assert_close(*results, **tolerance)
        assert (not _externs(compiled, i)) == (mode != "max")
        assert broach.explain(compiled, i).captures <= 4  # what has no rows, or one, is another program


CASES = {
    "offsets": ({}, torch.tensor([0, 2, 2, 7])),
    "last offset": ({"include_last_offset": True}, torch.tensor([0, 2, 5, 12])),
    "padding": ({"padding_idx": 3}, None),
    "by frequency": ({"scale_grad_by_freq": True}, None),
    "offsets of one size": ({}, torch.tensor([0, 4, 8])),
}


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("case", CASES)
def test_other_bags(case, mode):
    settings, offsets = CASES[case]
    with torch.enable_grad():
        weight = torch.randn(10, 6, requires_grad=True)
        program = lambda i: F.embedding_bag(i, weight, offsets, mode=mode, **settings).square()  # noqa: E731
        compiled = broach.compile(program)
        for _ in range(4):
            i = torch.randint(0, 10, (12,) if offsets is not None else (3, 4))
            results = [(y := call(i), *torch.autograd.grad(y.sum(), [weight])) for call in (compiled, program)]
            torch.testing.assert_close(*results)


def test_empty_bags():
    bags = nn.EmbeddingBag(5, 4, mode="mean")
    program = lambda i: bags(i, torch.zeros(3, dtype=torch.long)) + bags(i, torch.arange(3) * 0)  # noqa: E731
    compiled = broach.compile(program)
    for _ in range(3):
        i = torch.empty(0, dtype=torch.long)
        torch.testing.assert_close(compiled(i), program(i))


def test_weighed_indices():
    with torch.enable_grad():
        weight, weighs = torch.randn(10, 6, requires_grad=True), torch.rand(3, 4, requires_grad=True)
        program = lambda i: F.embedding_bag(i, weight, per_sample_weights=weighs, mode="sum").tanh()  # noqa: E731
        compiled = broach.compile(program)
        for _ in range(4):
            i = torch.randint(0, 10, (3, 4))
            results = [(y := call(i), *torch.autograd.grad(y.sum(), [weight, weighs])) for call in (compiled, program)]
            torch.testing.assert_close(*results)


def test_an_index_outside_is_an_error():
    weight = torch.randn(10, 6)
    compiled = broach.compile(lambda i: F.embedding_bag(i, weight, mode="sum"))
    i = torch.randint(0, 10, (3, 4))
    for _ in range(3):
        compiled(i)
    for bad in (10, -1):
        i[1, 2] = bad
        with pytest.raises((IndexError, RuntimeError)):
            compiled(i)
    i[1, 2] = 0
    torch.testing.assert_close(compiled(i), F.embedding_bag(i, weight, mode="sum"))
