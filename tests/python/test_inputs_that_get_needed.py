"""Programs that let an argument need gradients (`x.requires_grad_()`), as residuals of differential equations and adversarial examples do."""

from __future__ import annotations

import copy

import broach
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("with_gradients")


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def _grad(y, x):
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def _residual(net, x):
    x.requires_grad_()
    du = _grad(net(x), x)
    return (du[:, 1:] - 0.1 * _grad(du[:, 0], x)[:, :1]).square().mean()


def _by_attribute(net, x):
    x.requires_grad = True
    return _grad(net(x) ** 2, x).square().sum() + net(x).mean()


def _unless_it_does(net, x):
    if not x.requires_grad:
        x.requires_grad_(True)
    return _grad(net(x), x).abs().sum()


def _behind_a_read(net, x):
    before = (x * 3).sum()
    x.requires_grad_()
    return before + _grad(net(x), x).square().sum() + (x * x).sum()


def _behind_a_read_without_gradients(net, x):
    with torch.no_grad():
        scale = 1 / (1 + x.abs().max())
    x.requires_grad_()
    return _grad(net(x * scale), x).square().sum()


def _two_of_three(net, x, y, z):
    x.requires_grad_(), y.requires_grad_()
    u = net(torch.cat([x, y], 1)) * z
    return (_grad(u, x) - _grad(u, y) * z).square().sum()


def _result_without_it(net, x):
    x.requires_grad_()
    return net(torch.ones(3, 2)).sum()


def _given_back(net, x):
    x.requires_grad_()
    return net(x).sum(), x


def _view_of_it(net, x):
    x.requires_grad_()
    return net(x).sum(), x[:, :1]


def _taken_back(net, x):
    x.requires_grad_()
    du = _grad(net(x), x)
    x.requires_grad_(False)
    return du.square().sum()


PROGRAMS = [_residual, _by_attribute, _unless_it_does, _behind_a_read, _behind_a_read_without_gradients, _result_without_it, _given_back, _view_of_it]


def _step(call, net, args):
    """What a step gives and leaves behind."""
    net.zero_grad()
    result = call(net, *args)
    loss = sum(t.sum() for t in result) if isinstance(result, tuple) else result
    loss.backward()
    return [loss.detach(), *(p.grad for p in net.parameters()), *(a.grad for a in args)], [a.requires_grad for a in args]


def _same(have, want):
    assert have[1] == want[1]
    for a, b in zip(have[0], want[0], strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__[1:])
def test_gradients(program):
    net, fast = _net(), broach.compile(program)
    same = copy.deepcopy(net)
    for batch in (8, 8, 8, 5, 13, 8):
        x = torch.randn(batch, 2)
        _same(_step(fast, net, [x.clone()]), _step(program, same, [x.clone()]))


@pytest.mark.parametrize("program", [_residual, _by_attribute, _unless_it_does, _result_without_it])
def test_what_needs_them_already(program):
    """By turns with what does not; the same tensor again adds to its gradient."""
    net, fast = _net(), broach.compile(program)
    same, kept = copy.deepcopy(net), [torch.randn(8, 2)]
    kept_same = [kept[0].clone()]
    for i in range(6):
        x = torch.randn(8, 2)
        _same(_step(fast, net, [x.clone()]), _step(program, same, [x.clone()]))
        _same(_step(fast, net, kept), _step(program, same, kept_same))
        y = [x.clone().requires_grad_(i % 2 == 0)]
        _same(_step(fast, net, y), _step(program, same, [x.clone().requires_grad_(i % 2 == 0)]))


def test_some_of_the_arguments():
    net, fast = _net(), broach.compile(_two_of_three)
    same = copy.deepcopy(net)
    for batch in (8, 8, 6, 8):
        args = [torch.randn(batch, 1) for _ in range(3)]
        _same(_step(fast, net, [a.clone() for a in args]), _step(_two_of_three, same, [a.clone() for a in args]))


def test_it_is_compiled():
    for program in (_residual, _by_attribute, _unless_it_does, _result_without_it):
        net, fast = _net(), broach.compile(program)
        for batch in (8, 8, 5, 9):
            fast(net, torch.randn(batch, 2)).backward()
        said = broach.explain(fast, net, torch.randn(8, 2))
        assert said.front == "native" and not said.eager_reasons and said.captures <= 3, said


def test_adversarial_examples():
    def attack(net, x, target):
        x.requires_grad_()
        loss = nn.functional.mse_loss(net(x), target)
        (gradient,) = torch.autograd.grad(loss, x)
        return (x + 0.1 * gradient.sign()).detach()

    net, fast = _net(), broach.compile(attack)
    for batch in (4, 4, 7, 4):
        x, target = torch.randn(batch, 2), torch.randn(batch, 1)
        have, want = x.clone(), x.clone()
        torch.testing.assert_close(fast(net, have, target), attack(net, want, target))
        assert have.requires_grad and have.grad is None and all(p.grad is None for p in net.parameters())


def test_by_a_backward_of_its_own():
    def attack(net, x, target):
        x.requires_grad_()
        nn.functional.mse_loss(net(x), target).backward()
        with torch.no_grad():
            return x + 0.1 * x.grad.sign()

    net, fast = _net(), broach.compile(attack)
    same = copy.deepcopy(net)
    for batch in (4, 4, 7, 4, 4):
        x, target = torch.randn(batch, 2), torch.randn(batch, 1)
        have, want = x.clone(), x.clone()
        torch.testing.assert_close(fast(net, have, target), attack(same, want, target))
        torch.testing.assert_close(have.grad, want.grad)
        assert have.requires_grad
        for p, q in zip(net.parameters(), same.parameters()):
            torch.testing.assert_close(p.grad, q.grad)


def test_gradients_of_gradients_behind_it():
    def energy(net, x):
        x.requires_grad_()
        return net(x).sum()

    net, fast = _net(), broach.compile(energy)
    for batch in (4, 4, 6, 4):
        x = torch.randn(batch, 2)
        have, want = x.clone(), x.clone()
        forces, wanted = _grad(fast(net, have), have), _grad(energy(net, want), want)
        torch.testing.assert_close(forces, wanted)
        torch.testing.assert_close(_grad(forces.square(), have), _grad(wanted.square(), want))


def test_gradients_of_gradients_behind_a_read():
    """What was read before has no history, also where the program is run once more."""

    def program(net, x):
        before = (x**3).sum()
        x.requires_grad_()
        return before + net(x).sum()

    net, fast = _net(), broach.compile(program)
    for batch in (4, 4, 6, 4):
        x = torch.randn(batch, 2)
        have, want = x.clone(), x.clone()
        torch.testing.assert_close(_grad(fast(net, have), have), _grad(program(net, want), want))


def test_what_cannot_need_them_raises():
    fast = broach.compile(_residual)
    for _ in range(3):
        fast(_net(), torch.randn(4, 2))
        with pytest.raises(RuntimeError, match="only Tensors of floating point"):
            fast(_net(), torch.ones(4, 2, dtype=torch.int64))


def test_gradients_off():
    def program(x):
        x.requires_grad_()
        return x.sin()

    fast = broach.compile(program)
    for _ in range(4):
        with torch.no_grad():
            x = torch.randn(5)
            y = fast(x)
        assert x.requires_grad and not y.requires_grad
        z = torch.randn(5)
        assert fast(z).requires_grad and z.requires_grad


def test_taken_back_at_the_end():
    net, fast = _net(), broach.compile(_taken_back)
    same = copy.deepcopy(net)
    for batch in (8, 8, 5, 8):
        x = torch.randn(batch, 2)
        _same(_step(fast, net, [x.clone()]), _step(_taken_back, same, [x.clone()]))
