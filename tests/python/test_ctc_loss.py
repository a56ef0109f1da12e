"""The loss of connectionist temporal classification: what its gradient goes by is as large as the longest target says."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F
from compared import difference, stats
from gradient_programs import with_gradients  # noqa: F401
from torch import nn

CLASSES = 5


def _batch(call, steps):
    torch.manual_seed(call)
    targets, lengths = torch.randint(1, CLASSES, (3, 5)), torch.randint(1, 6, (3,))
    return torch.randn(steps, 3, 8), targets, torch.randint(6, steps + 1, (3,)), lengths


def _trained(f, net, *args):
    net.zero_grad()
    loss = f(*args)
    loss.sum().backward()
    return [loss.detach(), *(p.grad.clone() for p in net.parameters())]


def _padded(net, **how):
    return lambda x, t, i, n: F.ctc_loss(net(x).log_softmax(2), t, i, n, **how)


def _in_a_row(net):
    def program(x, t, i, n):
        there = torch.arange(t.shape[1]) < n[:, None]
        return F.ctc_loss(net(x).log_softmax(2), t[there], i, n)

    return program


PROGRAMS = {
    "mean": _padded,
    "sum": lambda net: _padded(net, reduction="sum"),
    "each": lambda net: _padded(net, reduction="none"),
    "without infinities": lambda net: _padded(net, zero_infinity=True),
    "another blank": lambda net: _padded(net, blank=CLASSES - 1),
    "in a row": _in_a_row,
    "a module": lambda net: lambda x, t, i, n: nn.CTCLoss()(net(x).log_softmax(2), t, i, n),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_lengths_that_change(name, dynamic):
    net = nn.Linear(8, CLASSES)
    program = PROGRAMS[name](net)
    compiled = broach.compile(program, dynamic=dynamic)
    for call in range(12):
        x, targets, steps, lengths = _batch(call, 12 + call % 5)
        if call == 7:
            steps[0] = 1  # too few for its targets: an infinite loss
        want, have = (_trained(f, net, x, targets, steps, lengths) for f in (program, compiled))
        assert not (why := difference(want, have)), (call, why)
    told = stats(compiled)
    assert told["compiled_calls"] >= 9, (told["attempts"], told["reasons"])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_lengths_given_as_numbers(reduction):
    net = nn.Linear(8, CLASSES)
    program = lambda x, t: F.ctc_loss(net(x).log_softmax(2), t, (x.shape[0],) * 3, (5, 2, 3), reduction=reduction)  # noqa: E731
    compiled = broach.compile(program)
    for call in range(8):
        x, targets, *_ = _batch(call, 12 + call % 3)
        assert not (why := difference(_trained(program, net, x, targets), _trained(compiled, net, x, targets))), (call, why)
    # Torch makes a tensor of the lengths to divide by, unseen.
    assert reduction == "mean" or stats(compiled)["compiled_calls"] >= 5, stats(compiled)["attempts"]


def test_without_gradients():
    compiled = broach.compile(F.ctc_loss)
    with torch.no_grad():
        for call in range(8):
            x, *more = _batch(call, 12 + call % 3)
            x = x[..., :CLASSES].log_softmax(2)
            torch.testing.assert_close(compiled(x, *more), F.ctc_loss(x, *more))
    assert stats(compiled)["compiled_calls"] >= 5, stats(compiled)["attempts"]


def test_of_one_sequence():
    compiled = broach.compile(F.ctc_loss)
    for call in range(4):
        x = torch.randn(9, CLASSES).log_softmax(1)
        args = x, torch.tensor([1, 2, 2])[: 2 + call % 2], torch.tensor(8), torch.tensor(2 + call % 2)
        torch.testing.assert_close(compiled(*args), F.ctc_loss(*args))


@pytest.mark.parametrize("lengths", [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1, 2]), torch.tensor([9, 2, 3])])
def test_lengths_that_are_none(lengths):
    """The wrong kind, too few, and more than there are."""
    compiled = broach.compile(F.ctc_loss)
    x, targets, steps, right = _batch(0, 12)
    x = x[..., :CLASSES].log_softmax(2)
    for _ in range(3):
        compiled(x, targets, steps, right)
    with pytest.raises(RuntimeError) as want:
        F.ctc_loss(x, targets, steps, lengths)
    with pytest.raises(RuntimeError) as have:
        compiled(x, targets, steps, lengths)
    assert str(have.value).splitlines()[0] == str(want.value).splitlines()[0]
