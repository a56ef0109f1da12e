"""Losses of programs that make tensors which need gradients themselves, as energies whose forces are fitted: the caller runs backward."""

from __future__ import annotations

import broach
import compared
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("with_gradients")


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 1))


def _forces(net, kept, x):
    m = x.detach().requires_grad_(True)
    energy = net(m).sum()
    return energy, -torch.autograd.grad(energy, m, create_graph=True)[0]


def _fitted(net, kept, x):
    energy, forces = _forces(net, kept, x)
    return energy.pow(2) + (forces - x).pow(2).mean()


def _penalty(net, kept, x):
    between = (x * 0.3 + x.flip(0) * 0.7).requires_grad_()
    (g,) = torch.autograd.grad(net(between).sum(), between, create_graph=True)
    return ((g.norm(dim=1) - 1) ** 2).mean() + net(x).mean()


def _residual(net, kept, x):
    t, s = x[:, :1].clone().requires_grad_(), x[:, 1:].clone().requires_grad_()
    u = net(torch.cat([t, s], 1))
    (ut, us) = torch.autograd.grad(u.sum(), (t, s), create_graph=True)
    (utt,) = torch.autograd.grad(ut.sum(), t, create_graph=True)
    return (utt + u * us.sum(1, keepdim=True)).square().mean()


def _alongside(net, kept, x):
    m = x.clone().requires_grad_()
    return net(m).square().mean()


def _parameter(net, kept, x):
    scale = nn.Parameter(torch.full((3,), 0.5))
    return (net(x * scale) * scale.sum()).mean()


def _inner_steps(net, kept, x):
    d = torch.zeros_like(x, requires_grad=True)
    (g,) = torch.autograd.grad(net(x + d).square().sum(), d)
    return net(x + 0.1 * g.sign() + d).square().mean()


def _gone_through_before(net, kept, x):
    m = x.clone().requires_grad_()
    y = net(m)
    y.sum().backward(retain_graph=True)
    return y * m.grad.detach().sum()


def _only_its_own(net, kept, x):
    m = x.clone().requires_grad_()
    return (m * 2).sum(), net(x).sum()


def _in_place(net, kept, x):
    m = x.clone().requires_grad_()
    y = m * 1
    y[0] = net(x)[0, 0]
    return net(y).sum()


def _kept(net, kept, x):
    kept["m"] = m = x.clone().requires_grad_()
    return net(m).square().mean()


def _kept_in_a_part(net, kept, x):
    m = x.clone().requires_grad_()
    kept["part"] = m[0]
    return net(m).square().mean()


def _given_back(net, kept, x):
    m = x.clone().requires_grad_()
    return net(m).square().mean(), m


def _given_back_in_part(net, kept, x):
    m = x.clone().requires_grad_()
    return net(m).square().mean(), m[:2], m.t()


def _hooked(net, kept, x):
    m = x.clone().requires_grad_()
    m.register_hook(lambda g: kept.__setitem__("seen", g.clone()))
    return net(m).square().mean()


def _accumulating(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward(inputs=[m])
    kept["g"] = m.grad
    return (net(m) * m.grad.sum()).mean()


COMPILED = (_fitted, _forces, _penalty, _residual, _alongside, _parameter, _inner_steps, _in_place, _gone_through_before)
OTHERS = (_only_its_own, _kept, _kept_in_a_part, _given_back, _given_back_in_part, _hooked, _accumulating)


def _seen(kept):
    out = {}
    for name, t in kept.items():
        base = t._base if t._is_view() else None
        out[name] = (t.detach(), t.grad if t.is_leaf else None, base.grad if base is not None and base.is_leaf else None)
    return out


@pytest.mark.parametrize("run", (*COMPILED, *OTHERS), ids=lambda f: f.__name__)
def test_losses(run):
    nets, kept = [_net(), _net()], [{}, {}]
    compiled = broach.compile(lambda x: run(nets[1], kept[1], x))
    for n, rows in enumerate((4, 4, 4, 6, 3, 6, 4)):
        x = torch.randn(rows, 3)
        results = [run(nets[0], kept[0], x), compiled(x)]
        for net, result in zip(nets, results, strict=True):
            net.zero_grad()
            parts = result if isinstance(result, tuple) else (result,)
            loss = sum(p.square().sum() for p in parts) * (1 + n)
            loss.backward(retain_graph=n == 2)
            if n == 2:
                loss.backward()
        torch.testing.assert_close(results[1], results[0])
        of_results = [[(t.requires_grad, t.is_leaf, t._is_view()) for t in (r if isinstance(r, tuple) else (r,))] for r in results]
        assert of_results[0] == of_results[1]
        for a, b in zip(*(net.parameters() for net in nets), strict=True):
            torch.testing.assert_close(b.grad, a.grad)
        torch.testing.assert_close(_seen(kept[1]), _seen(kept[0]))
        if run is _given_back:
            torch.testing.assert_close(results[1][1].grad, results[0][1].grad)
        if run is _given_back_in_part:
            torch.testing.assert_close(results[1][1]._base.grad, results[0][1]._base.grad)
    told = compared.stats(compiled)
    assert run in OTHERS or told["compiled_calls"] >= 3, (told["attempts"], told["eager_reasons"])


def test_a_graph_that_is_used_up():
    def run(net, x):
        m = x.clone().requires_grad_()
        y = net(m)
        y.sum().backward()
        return y

    nets = [_net(), _net()]
    compiled = broach.compile(lambda x: run(nets[1], x))
    for _ in range(4):
        x = torch.randn(4, 3)
        for net, f in zip(nets, (lambda x: run(nets[0], x), compiled), strict=True):
            net.zero_grad()
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                f(x).sum().backward()
        for a, b in zip(*(net.parameters() for net in nets), strict=True):
            torch.testing.assert_close(b.grad, a.grad)


def test_training_on_forces():
    nets = [_net().double(), _net().double()]
    optimizers = [torch.optim.Adam(n.parameters(), 1e-2) for n in nets]
    compiled = broach.compile(lambda x: _fitted(nets[1], {}, x))
    for n in range(12):
        x = torch.randn(5, 3, dtype=torch.float64)
        for net, optimizer, loss in zip(nets, optimizers, (lambda x: _fitted(nets[0], {}, x), compiled), strict=True):
            optimizer.zero_grad()
            loss(x).backward()
            optimizer.step()
    for a, b in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(b, a)
