"""Steps whose own tensors get gradients: penalties on gradients, adversarial examples, gradients for what a step itself makes."""

from __future__ import annotations

from typing import Any

import broach
import pytest
import torch
from compared import difference
from torch import nn

pytestmark = pytest.mark.usefixtures("with_gradients")


def _penalty(net, kept, x):
    m = (x * 2).requires_grad_(True)
    (g,) = torch.autograd.grad(net(m).sum(), m, create_graph=True)
    loss = (g.norm(dim=1) - 1).pow(2).mean() + net(x).pow(2).mean()
    loss.backward()
    return loss.detach(), g.detach()


def _gradient_of_own(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    return m.grad


def _gradient_of_alias(net, kept, x):
    m = x.detach().requires_grad_()
    (net(m) * m.sum(1, keepdim=True)).sum().backward()
    return m.grad * 2, m.grad is m.grad, m.grad.requires_grad, m.grad.is_leaf


def _adversarial(net, kept, x):
    m = x.clone().detach().requires_grad_(True)
    net(m).pow(2).sum().backward()
    other = (m + 0.1 * m.grad.sign()).detach()
    for p in net.parameters():
        p.grad = None
    loss = net(other).pow(2).mean()
    loss.backward()
    return loss.item()


def _several_rounds(net, kept, x):
    d = torch.zeros_like(x, requires_grad=True)
    for _ in range(3):
        (g,) = torch.autograd.grad(net(x + d).pow(2).sum(), d)
        d = (d + 0.01 * g.sign()).clamp(-0.05, 0.05).detach().requires_grad_(True)
    loss = net(x + d).pow(2).mean()
    loss.backward()
    return loss.item(), d.detach()


def _accumulates(net, kept, x):
    m = x.clone().requires_grad_()
    before = m.grad is None
    net(m).sum().backward()
    first = m.grad * 1
    (net(m) ** 2).sum().backward()
    return before, first, m.grad, m.grad


def _takes_away(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    first, m.grad = m.grad, None
    (net(m) ** 2).sum().backward()
    return first, m.grad


def _scales(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    m.grad.mul_(0.5)
    (net(m) ** 2).sum().backward()
    return m.grad.clone()


def _parameter(net, kept, x):
    w = nn.Parameter(torch.ones(4, 4))
    net(x @ w).sum().backward()
    return w.grad, w.detach() - 0.1 * w.grad


def _part_of_own(net, kept, x):
    m = torch.cat([x, x * 2]).requires_grad_()
    net(m[:3]).sum().backward()
    return m.grad


def _keeps_the_gradient(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    kept["g"] = m.grad
    return (m.grad**2).sum().item()


def _with_history(net, kept, x):
    m = x.clone().requires_grad_()
    y = net(m).pow(2).sum()
    y.backward(create_graph=True)
    loss = m.grad.pow(2).sum()
    loss.backward()
    return m.grad.detach(), loss.detach()


def _all_at_once(net, kept, x):
    m = x.clone().requires_grad_()
    y = net(m)
    return [y.detach(), *torch.autograd.grad(y.sum(), [m, *net.parameters()])]


def _chooses(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    return m.grad * 2 if m.grad.sum() > 0 else m.grad - 1


def _data(net, kept, x):
    m = x.data.requires_grad_()
    net(m).sum().backward()
    return m.grad, m.data


def _assigned(net, kept, x):
    m = x.clone().requires_grad_()
    m.grad = torch.ones_like(m)
    net(m).sum().backward()
    return m.grad


def _in_a_list(net, kept, x):
    ms = [x[i].clone().requires_grad_() for i in range(3)]
    sum(net(m).sum() for m in ms).backward()
    return torch.stack([m.grad for m in ms])


def _of_a_factor(net, kept, x):
    s = torch.ones((), requires_grad=True)
    loss = (net(x) * s - 1).pow(2).mean()
    (g,) = torch.autograd.grad(loss, s, create_graph=True)
    (loss + 2 * g.pow(2)).backward()
    return loss.item(), g.item()


RUN = {f.__name__: f for f in (
    _penalty, _gradient_of_own, _gradient_of_alias, _adversarial, _several_rounds, _accumulates, _takes_away, _scales, _parameter,
    _part_of_own, _keeps_the_gradient, _all_at_once, _chooses, _data, _assigned, _in_a_list, _of_a_factor,
)}  # fmt: skip


def _gives_it(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    return m


def _gives_another(net, kept, x):
    m, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    net(m).sum().backward()
    return other


def _keeps_it(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    kept["m"] = m
    return m.detach()


def _keeps_a_part(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    kept["m"] = m[0]
    return 1


def _gives_what_it_leads_to(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    return m * 2


def _hooked(net, kept, x):
    m = x.clone().requires_grad_()
    m.register_hook(lambda g: g * 2)
    net(m).sum().backward()
    return m.grad


def _needs_none_any_more(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    return m.requires_grad_(False), net(m.detach()).sum().item()


def _keeps_one_that_needs_none(net, kept, x):
    m = x.clone().requires_grad_()
    net(m).sum().backward()
    kept["m"] = m.requires_grad_(False)
    return 1


def _gives_a_gradient_to_a_result(net, kept, x):
    y = x * 2
    y.grad = x * 3
    return y


LEFT = {f.__name__: f for f in (
    _gives_it, _gives_another, _keeps_it, _keeps_a_part, _gives_what_it_leads_to, _hooked, _needs_none_any_more,
    _keeps_one_that_needs_none, _gives_a_gradient_to_a_result,
)}  # fmt: skip


def _facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        gradient = value.grad if value.is_leaf else None
        return value.detach().clone(), value.requires_grad, value.is_leaf, value._is_view(), None if gradient is None else gradient.clone()
    if isinstance(value, (list, tuple)):
        return [_facts(v) for v in value], [a is b for a in value for b in value if isinstance(a, torch.Tensor)]
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value  # which is compared within a tolerance


def _log(program, is_compiled, sizes):
    torch.manual_seed(0)
    net, kept = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), {}
    step = lambda x: program(net, kept, x)  # noqa: E731
    run = broach.compile(step) if is_compiled else step
    out = []
    for k, n in enumerate(sizes):
        x = torch.randn(n, 4, generator=torch.Generator().manual_seed(k))
        result = run(x)
        out.append((_facts(result), _facts(list(kept.values())), _facts([p.grad for p in net.parameters()])))
        if k % 3 == 2:
            net.zero_grad()
        with torch.no_grad():  # what the caller does to a result is his own
            if isinstance(result, torch.Tensor) and not result.requires_grad:
                result.add_(1)
    return out, run


def _same(have: Any, want: Any) -> None:
    assert not (why := difference(want, have)), why


@pytest.mark.parametrize("sizes", [[5] * 12, [5, 5, 6, 7, 5, 6, 8, 5, 6, 9, 4, 5]], ids=["one size", "sizes"])
@pytest.mark.parametrize("name", RUN)
def test_a_step_gives_gradients_to_what_it_makes(name, sizes):
    (want, _), (have, run) = _log(RUN[name], False, sizes), _log(RUN[name], True, sizes)
    _same(have, want)
    assert run.stats()["compiled_calls"] > 0 and not run.stats()["eager_reasons"]


def test_a_gradient_with_a_history():
    """Those of the parameters have one too, which the next call adds to."""
    _same(_log(_with_history, True, [5] * 7)[0], _log(_with_history, False, [5] * 7)[0])


@pytest.mark.parametrize("name", LEFT)
def test_a_step_from_which_such_a_tensor_is_reached_is_left_to_eager(name):
    for sizes in ([5] * 7, [5, 6, 5, 7, 8, 9, 5]):
        (want, _), (have, run) = _log(LEFT[name], False, sizes), _log(LEFT[name], True, sizes)
        _same(have, want)
        assert run.stats()["compiled_calls"] == 0


@pytest.mark.parametrize("program", [_needs_none_any_more, _gives_a_gradient_to_a_result])
def test_a_result_with_a_gradient_where_the_caller_needs_none(program):
    def step(net, kept, x):
        with torch.enable_grad():
            return program(net, kept, x)

    with torch.no_grad():
        _same(_log(step, True, [5, 5, 5, 6, 7, 8])[0], _log(step, False, [5, 5, 5, 6, 7, 8])[0])
