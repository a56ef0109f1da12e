"""Functions of torch's and Python's that a user puts others in the place of, as `unittest.mock.patch` does, before the first call and between
calls. While programs are captured, Broach puts some of its own there."""

from __future__ import annotations

import math
from unittest import mock

import broach
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import checkpoint

NET = nn.Sequential(nn.Linear(3, 3), nn.ReLU())


def _hundred_more(original):
    return lambda *args, **kwargs: original(*args, **kwargs) + 100


CASES = {
    "torch.relu": (torch, "relu", torch.relu),
    "torch.tensor": (torch, "tensor", lambda x: x * torch.tensor(1.0)),
    "torch.as_tensor": (torch, "as_tensor", lambda x: x * torch.as_tensor([1.0, 2.0, 3.0])),
    "torch.arange": (torch, "arange", lambda x: x + torch.arange(3)),
    "F.softmax": (F, "softmax", lambda x: F.softmax(x, 0)),
    "a module's F.linear": (F, "linear", lambda x: NET(x)),
    "nn.Linear.forward": (nn.Linear, "forward", lambda x: NET(x)),
    "Tensor.relu": (torch.Tensor, "relu", lambda x: x.relu()),
    "math.sqrt": (math, "sqrt", lambda x: x * math.sqrt(x.shape[0])),
    "math.pow": (math, "pow", lambda x: x * math.pow(x.shape[0], 2.0)),
    "checkpoint": (checkpoint, "checkpoint", lambda x: checkpoint.checkpoint(NET, x, use_reentrant=False)),
}


def _patch(owner, name):
    return mock.patch.object(owner, name, _hundred_more(getattr(owner, name)))


def _same(compiled, program):
    for _ in range(3):
        x = torch.ones(3)
        want = program(x)  # before a capture may put anything anywhere
        torch.testing.assert_close(compiled(x), want)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("case", CASES)
def test_between_calls(case, dynamic):
    owner, name, program = CASES[case]
    compiled = broach.compile(program, dynamic=dynamic)
    _same(compiled, program)
    with _patch(owner, name) as patched:
        _same(compiled, program)
        _same(broach.compile(program, dynamic=dynamic), program)
        assert getattr(owner, name) is patched
    _same(compiled, program)


def test_what_tensors_inherit():
    kept = torch.Tensor.tolist
    program = lambda x: x * torch.ones(2).tolist()[0]  # noqa: E731
    with mock.patch.object(torch.Tensor, "tolist", lambda t: [7.0 + v for v in kept(t)]):
        compiled = broach.compile(program, dynamic=True)
        _same(compiled, program)
        assert torch.ones(2).tolist() == [8.0, 8.0]
    assert torch.ones(2).tolist() == [1.0, 1.0]
    _same(compiled, program)


def test_within_a_program():
    def program(x):
        with _patch(math, "sqrt"):
            a = math.sqrt(x.shape[0])
        return x * a + math.sqrt(x.shape[0])

    own = math.sqrt
    for dynamic in (None, True):
        _same(broach.compile(program, dynamic=dynamic), program)
        assert math.sqrt is own
