"""Transforms of torch.func within compiled programs: their gradients are computed by graphs of their own, which end with them."""

from __future__ import annotations

import broach
import compared
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, grad_and_value, jacrev, vjp, vmap

NET = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
WEIGHTS = {k: v.detach().clone() for k, v in NET.named_parameters()}


def _loss(weights, x, y):
    return F.mse_loss(functional_call(NET, weights, (x,)), y)


def _of_one(weights, x, y):
    return _loss(weights, x.unsqueeze(0), y.unsqueeze(0))


def _step(weights, x, y, rate=0.1):
    return {k: w - rate * g for (k, w), g in zip(weights.items(), grad(_loss)(weights, x, y).values(), strict=True)}


def _written(x, y):
    seen = torch.zeros(3)

    def f(a):
        b = a.sin()
        b[0] = b[1] * 2
        b.mul_(a)
        return b.sum()

    seen += grad(f)(x).sum()
    return seen, grad(f)(x)


PROGRAMS = {
    "grad": lambda x, y: grad(lambda a: (a.sin() * y.sum()).sum())(x),
    "two arguments": lambda x, y: grad(lambda a, b: (a @ a.T).sum() * b.sum(), argnums=(0, 1))(x, y),
    "with more": lambda x, y: grad(lambda a: (a.square().sum(), a * 2), has_aux=True)(x),
    "and value": lambda x, y: grad_and_value(_loss)(WEIGHTS, x, y),
    "of a gradient": lambda x, y: grad(lambda a: grad(lambda b: b.pow(3).sum())(a).sin().sum())(x),
    "for each": lambda x, y: vmap(grad(_of_one), (None, 0, 0))(WEIGHTS, x, y),
    "of all for each": lambda x, y: grad(lambda a: vmap(lambda r: r.cos().prod())(a).sum())(x),
    "vjp": lambda x, y: (lambda out, back: (out, *back(out.cos())))(*vjp(lambda a: a.tanh() @ a.T, x)),
    "jacobian": lambda x, y: vmap(jacrev(lambda a: functional_call(NET, WEIGHTS, (a,))))(x),
    "steps": lambda x, y: _loss(_step(_step(WEIGHTS, x, y), x, y), x, y),
    "written within": _written,
    "branches": lambda x, y: grad(lambda a: (a * 2 if a.shape[0] > 4 else a.exp()).sum())(x),
    "detached": lambda x, y: grad(lambda a: (a.detach() * a).sum())(x),
    "softmax": lambda x, y: vmap(grad(lambda a: -a.log_softmax(-1)[1]))(x),
    "convolution": lambda x, y: grad(lambda a: F.conv1d(a[None], torch.ones(1, a.shape[0], 2)).square().sum())(x),
}


@pytest.mark.parametrize("gradients", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_transforms(name, gradients):
    run, compiled = PROGRAMS[name], broach.compile(PROGRAMS[name])
    with torch.set_grad_enabled(gradients):
        for rows in (5, 5, 5, 7, 3, 7, 6, 5):
            x, y = torch.randn(rows, 4), torch.randn(rows, 2)
            torch.testing.assert_close(compiled(x, y), run(x, y))
    told = compared.stats(compiled)
    assert told["compiled_calls"] >= 3, (told["attempts"], told["eager_reasons"])


def _meta(net, x, y):
    weights = dict(net.named_parameters())
    return F.mse_loss(functional_call(net, _step(weights, x, y), (x * 0.5,)), y)


def _penalized(net, x, y):
    return (vmap(grad(lambda a: net(a.unsqueeze(0)).sum()))(x).norm(dim=1) - 1).square().mean() + net(x).square().mean()


def _detached(net, x, y):
    weights = {k: v.detach() for k, v in net.named_parameters()}
    return sum(g.square().sum() for g in grad(_loss)(weights, x, y).values()) + net(x).sum()


@pytest.mark.parametrize("run", [_meta, _penalized, _detached])
def test_gradients_through_transforms(run):
    """What they are is eager's, whether or not calls are compiled."""
    nets = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    compiled = broach.compile(run)
    with torch.enable_grad():
        for rows in (5, 5, 7, 3, 5):
            x, y = torch.randn(rows, 4), torch.randn(rows, 2)
            for f, net in ((run, nets[0]), (compiled, nets[1])):
                net.zero_grad()
                loss = f(net, x, y)
                loss.backward()
            for a, b in zip(*(net.parameters() for net in nets), strict=True):
                torch.testing.assert_close(b.grad, a.grad)


def test_arguments_that_need_gradients():
    def run(x):
        return grad(lambda a: (a.pow(3) * x.detach()).sum())(x) + x.sin()

    compiled = broach.compile(run)
    with torch.enable_grad():
        for _ in range(4):
            given = torch.randn(5)
            a, b = (given.clone().requires_grad_() for _ in range(2))
            want, got = run(a), compiled(b)
            torch.testing.assert_close(got, want)
            want.sum().backward(), got.sum().backward()
            torch.testing.assert_close(b.grad, a.grad)


def test_random_numbers_within():
    def run(x):
        return vmap(grad(lambda a: F.dropout(a.sin(), 0.5).sum()), randomness="different")(x)

    compiled = broach.compile(run)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(6, 5)
            torch.manual_seed(3)
            want = run(x)
            torch.manual_seed(3)
            torch.testing.assert_close(compiled(x), want)


def test_what_a_transform_wraps_is_kept():
    kept = []

    def run(x):
        def f(a):
            kept.append(a)
            return a.sin().sum()

        return grad(f)(x)

    compiled = broach.compile(run)
    with torch.no_grad():
        for n in range(1, 5):
            x = torch.randn(5)
            torch.testing.assert_close(compiled(x), x.cos())
            assert len(kept) == n


def test_a_function_of_gradients_that_is_given_back():
    def run(x):
        return vjp(lambda a: a.sin(), x)[1]

    compiled = broach.compile(run)
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(5)
            torch.testing.assert_close(compiled(x)(torch.ones(5))[0], x.cos())


def _of_argument(x):
    return grad(lambda z: (z.sin() * z**2).sum())(x)


def _of_parameter(weight):
    return lambda x: grad(lambda z: (z * z * weight).sum())(x)


def _of_what_is_made_anew(weight):
    def run(x):
        return grad(lambda z: (z * z * weight[0]).sum())(x)

    return run


@torch.enable_grad()
@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("place", ["argument", "parameter", "upstream"])
def test_hooks_run_where_gradients_do_and_nowhere_else(place, noise):
    """A hook with effects of its own, which draws from the generator or adds up what it sees."""
    runs = []
    for compiles in (False, True):
        torch.manual_seed(0)
        weight, held, seen = torch.ones(2, requires_grad=True), [None], []
        program = {"argument": _of_argument, "parameter": _of_parameter(weight), "upstream": _of_what_is_made_anew(held)}[place]
        call = broach.compile(program) if compiles else program
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        watched = x if place == "argument" else weight
        watched.register_hook(lambda g: (seen.append(g.clone()), g + torch.randn_like(g) if noise else None)[1])
        for _ in range(4):
            held[0] = weight * 2
            y = call(x)
            seen.append(torch.zeros(2))  # behind the call
            y.sum().backward()
        runs.append([y.detach(), x.grad, weight.grad, torch.rand(1), *seen])
    assert len(runs[0]) == len(runs[1])
    torch.testing.assert_close(runs[1], runs[0])
