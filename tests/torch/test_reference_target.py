"""Programs computed by the reference target, for which the same schedules are made as for any other: what holds here holds
without a compiler, a library, or a guess about the machine."""

from __future__ import annotations

import broach
import models
import pytest
import torch
from test_models import DTYPES, SMALL, _agree, _fresh_dynamo  # noqa: F401 a fixture
from torch import nn

REFERENCE = {"target": "reference"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_model(name, dtype):
    _agree(models.build(name, dtype=DTYPES[dtype], **SMALL[name]), DTYPES[dtype], **REFERENCE)


def _same(program, *args):
    """Results, what is written into arguments, and which result is which argument's alias."""
    compiled = broach.compile(program, options=REFERENCE)
    for _ in range(5):
        theirs, ours = [[a.clone() if isinstance(a, torch.Tensor) else a for a in args] for _ in range(2)]
        want, have = program(*theirs), compiled(*ours)
        torch.testing.assert_close(have, want)
        torch.testing.assert_close(ours, theirs)
        storages = [[r.untyped_storage().data_ptr() == a.untyped_storage().data_ptr() for r in results for a in given] for results, given in ((want, theirs), (have, ours))]
        assert storages[0] == storages[1]
    assert compiled.stats()["compiled_calls"] >= 2


def _writes(x, y):
    x[1:].mul_(2)
    y += x.sum(0)
    return (x.t(), y)


def _views(x, y):
    return (x[:, 1:], x.reshape(-1), (x + y).t(), x.view(torch.int32))


def _searches(x, y):
    values, places = x.sort(dim=1, descending=True)
    return (values, places, x.topk(2).values, x.cumsum(1), torch.zeros_like(x).scatter_add(1, places, x + y))


def _picks(x, y):
    return (x[x > 0], torch.where(x > y, x, y).amax(0), x.argmax(1))


@pytest.mark.parametrize("program", [_writes, _views, _searches, _picks], ids=lambda p: p.__name__.strip("_"))
@torch.no_grad()
def test_program(program):
    torch.manual_seed(0)
    _same(program, torch.randn(4, 6), torch.randn(6))


@torch.no_grad()
def test_sizes_that_change():
    model = nn.Sequential(nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.GELU()).eval()
    compiled = broach.compile(model, options=REFERENCE)
    for length in (8, 9, 12, 20):
        x = torch.randn(2, 3, length)
        torch.testing.assert_close(compiled(x), model(x))
    assert set(broach.explain(compiled, x).picks) == {"reference"}


@torch.no_grad()
def test_an_index_outside():
    compiled = broach.compile(lambda x, i: x.neg()[i], options=REFERENCE)
    x = torch.randn(4)
    compiled(x, torch.tensor([1, 2])), compiled(x, torch.tensor([1, 2]))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([1, 7]))
