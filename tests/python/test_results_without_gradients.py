"""Inputs that need gradients, and results that have none: nothing needs to be differentiated, and what has to be is still found."""

from __future__ import annotations

import warnings

import broach
import pytest
import torch
import torch.nn.functional as F
from compared import difference, stats

pytestmark = pytest.mark.usefixtures("with_gradients")


def _under_no_grad(x):
    with torch.no_grad():
        return x * 2


def _detached_loss(x, layer=torch.nn.Linear(4, 4)):
    return F.mse_loss(layer(x), torch.zeros(4).expand_as(x)).detach()


def _asks(x):
    return (x > 0).float() * (2 if x.requires_grad else 3) + (1 if x.is_leaf else 5)


def _item(x):
    return x.sum().detach() if bool(x.detach().sum() > 0) else x.detach().exp()


PROGRAMS = {
    "comparison": lambda x: (x > 0.5).float(),
    "detached": lambda x: x.detach() * 2,
    "detached at the end": lambda x: (x.sin() * x).detach(),
    "under no_grad": _under_no_grad,
    "indices": lambda x: x.softmax(-1).argmax(-1),
    "rounding of labels": lambda x: x.mul(3).to(torch.int64),
    "detached loss of a layer": _detached_loss,
    "asks": _asks,
    "decides by elements": _item,
    "a number": lambda x: x.square().amax().item(),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("make", [lambda x: x.requires_grad_(), lambda x: x.requires_grad_() * 1, lambda x: x], ids=["leaf", "made", "none"])
def test_are_compiled_once(name, make):
    program = PROGRAMS[name]
    compiled = broach.compile(program, options={"capture": "native"})
    for i in range(6):
        x = make(torch.randn(3, 4).abs())
        assert not difference(program(x), compiled(x)), i
    seen = stats(compiled)
    assert seen["eager_calls"] == 0 and seen["captures"] <= 2


@pytest.mark.parametrize("name", PROGRAMS)
def test_with_and_without_gradients_in_turn(name):
    program = PROGRAMS[name]
    compiled = broach.compile(program)
    for i in range(12):
        x = torch.randn(3 + i % 2, 4).abs().requires_grad_(i % 3 == 0)
        x = x * 1 if i % 4 == 0 else x
        with torch.set_grad_enabled(i % 5 != 4):
            assert not difference(program(x), compiled(x)), i


class _Keeps:
    last = None


def _keeps(x):
    _Keeps.last = x * 3
    return _Keeps.last.detach()


def _writes(x, into):
    into.copy_(x)


def _adds_in_place(x, into):
    into.add_(x.exp())
    return into.detach().clone()


def _backward(x):
    x.square().sum().backward()
    return x.detach() * 1


def _gradient(x):
    (gradient,) = torch.autograd.grad((x * x * x).sum(), x)
    return gradient * 2


def _given_gradient(x):
    (gradient,) = torch.autograd.grad(x + 1, x, torch.ones_like(x))
    return gradient


def _hooked(x):
    y = x * 2
    y.register_hook(lambda g: g * 5)
    return torch.autograd.grad(y.sum(), x)[0]


@pytest.mark.parametrize("program", [_backward, _gradient, _given_gradient, _hooked])
def test_gradients_within(program):
    compiled = broach.compile(program)
    for i in range(5):
        a, b = (torch.arange(4.0).add(i).requires_grad_() for _ in range(2))
        for _ in range(2):
            assert not difference(program(a), compiled(b))
        assert not difference(a.grad, b.grad)


@pytest.mark.parametrize("program", [_writes, _adds_in_place])
def test_what_is_written_gets_a_history(program):
    compiled = broach.compile(program)
    for i in range(5):
        gradients = []
        for run in (program, compiled):
            x, into = torch.arange(4.0).add(i).requires_grad_(), torch.ones(4)
            run(x, into)
            into.square().sum().backward()
            gradients.append((into.detach(), x.grad))
        assert not difference(*gradients)


def test_what_is_kept_has_a_history():
    compiled = broach.compile(_keeps)
    for i in range(5):
        gradients = []
        for run in (_keeps, compiled):
            x = torch.arange(4.0).add(i).requires_grad_()
            run(x)
            gradients.append(torch.autograd.grad(_Keeps.last.sum(), x))
        assert not difference(*gradients)


def test_a_parameter_that_is_frozen_and_freed():
    layer = torch.nn.Linear(4, 4)
    for program in (lambda x: layer(x).detach(), lambda x: layer(x), lambda x: layer(x) > 0):
        compiled = broach.compile(program)
        for i in range(9):
            layer.requires_grad_(i % 3 != 1)
            x = torch.randn(2, 4)
            assert not difference(program(x), compiled(x)), i
    layer.requires_grad_(True)


def _inner_gradient(x):
    (gradient,) = torch.autograd.grad((x**3).sum(), x)
    return x * gradient


def _doubled(x):
    x.register_hook(lambda g: g * 2)


@pytest.mark.parametrize("program", [_inner_gradient, _gradient, lambda x: x * 3], ids=["inner", "alone", "outer"])
@pytest.mark.parametrize("prepare", [_doubled, torch.Tensor.retain_grad], ids=["hook", "retained"])
@pytest.mark.parametrize("from_call", [0, 3])
def test_hooks_of_inputs(program, prepare, from_call):
    """Which run where the program itself computes a gradient, too; also those that come once it is compiled."""
    compiled = broach.compile(program)
    for i in range(6):
        results = []
        for run in (program, compiled):
            leaf = torch.arange(1.0, 4.0).add(i).requires_grad_()
            x = leaf * 1
            if i >= from_call:
                prepare(x)
            result = run(x)
            if result.requires_grad:
                result.sum().backward()
            results.append((result.detach(), leaf.grad, x.grad if x.retains_grad else None))
        assert not difference(*results), i


def test_an_input_with_a_hook_that_is_kept_is_the_same_object():
    class Keeper:
        kept = None

    def program(x):
        Keeper.kept = x
        return x.detach().sum()

    compiled = broach.compile(program)
    for _ in range(5):
        x = torch.ones(2, requires_grad=True) * 1
        _doubled(x)
        compiled(x)
        assert Keeper.kept is x


def test_no_warning_of_gradients_that_nobody_reads():
    class Keeper:
        seen, result = [], None

    def program(x):
        Keeper.seen.append(x)
        Keeper.result = None
        Keeper.result = torch.cat(Keeper.seen)
        return Keeper.result

    compiled = broach.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            compiled(torch.randn(4, requires_grad=True))
            hooked = torch.randn(4, requires_grad=True) * 1
            _doubled(hooked)
            broach.compile(lambda x: x * 2)(hooked)
