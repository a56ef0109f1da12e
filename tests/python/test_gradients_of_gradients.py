"""Penalties on gradients (`create_graph=True`) of programs that draw random numbers, write to their buffers or arguments, or run under
autocast: in each call the program runs once more behind the call, and must find what the call found, and leave what the call left."""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Callable

import broach
import pytest
import torch
from broach import _threads
from gradient_programs import check
from torch import nn
from torch.nn.utils import parametrizations

pytestmark = pytest.mark.usefixtures("with_gradients")


class Net(nn.Module):
    """Two linear layers with something between them."""

    def __init__(self, between: Callable[[nn.Module, Any], Any], **parts):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 1)
        self.register_buffer("mean", torch.zeros(8))
        self.count = 0
        self.between = between
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.last(self.between(self, self.first(x)))


def _moving_mean(net, h):
    net.mean.lerp_(h.detach().mean(0), 0.25)
    return torch.tanh(h - net.mean)


def _mean_before(net, h):
    h = torch.tanh(h * (1 + net.mean))
    net.mean.add_(h.detach().mean(0))
    return h


def _clipped(net, h):
    with torch.no_grad():
        net.last.weight.clamp_(-0.2, 0.2)
    return torch.tanh(h)


def _counted(net, h):
    net.count += 1
    return torch.tanh(h) * (1 + net.count % 3)


NETS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: Net(lambda net, h: net.drop(torch.tanh(h)), drop=nn.Dropout(0.4)),
    "alpha dropout": lambda: Net(lambda net, h: net.drop(torch.selu(h)), drop=nn.AlphaDropout(0.4)),
    "noise": lambda: Net(lambda net, h: torch.tanh(h + 0.3 * torch.randn_like(h))),
    "random choice": lambda: Net(lambda net, h: torch.tanh(h) * torch.bernoulli(torch.full_like(h, 0.5))),
    "batch norm": lambda: Net(lambda net, h: torch.tanh(net.norm(h)), norm=nn.BatchNorm1d(8)),
    "batch norm and dropout": lambda: Net(lambda net, h: net.drop(torch.tanh(net.norm(h))), norm=nn.BatchNorm1d(8), drop=nn.Dropout(0.4)),
    "spectral norm": lambda: Net(lambda net, h: torch.tanh(net.norm(h)), norm=parametrizations.spectral_norm(nn.Linear(8, 8))),
    "a buffer that is read when it was written": lambda: Net(_moving_mean),
    "a buffer that is read before it is written": lambda: Net(_mean_before),
    "weights that are clipped": lambda: Net(_clipped),
    "a counter": lambda: Net(_counted),
}


def _train(net: nn.Module, call: Callable, penalty: Callable, steps: int = 7, autocast: bool = False) -> list[torch.Tensor]:
    """What a user would see of some steps: losses, parameters, buffers, counters, the next random number."""
    torch.manual_seed(5)
    optimizer, seen = torch.optim.SGD(net.parameters(), 0.05), []
    for step in range(steps):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(step), requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = penalty(call, x, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.detach())
    return [*seen, *(t.detach().clone() for t in (*net.parameters(), *net.buffers())), torch.tensor(getattr(net, "count", 0)), torch.rand(3)]


def _penalised(call, x, step):
    y = call(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y.float().square().mean() + (g.float().norm(dim=1) - 1).square().mean()


def _sometimes(call, x, step):
    return _penalised(call, x, step) if step % 3 == 2 else call(x).float().square().mean()


def _of_two_calls(call, x, step):
    """Both calls come before either's gradients, as those of real and of made images do."""
    other = (x.detach() + 1).requires_grad_()
    real, made = call(x), call(other)
    grads = [torch.autograd.grad(y.sum(), t, create_graph=True)[0] for y, t in ((real, x), (made, other))]
    return sum(g.float().norm(dim=1).mean() for g in grads) + (real - made).float().square().mean()


@pytest.mark.parametrize("penalty", [_penalised, _sometimes, _of_two_calls], ids=["always", "sometimes", "of two calls"])
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])
@pytest.mark.parametrize("name", NETS)
def test_penalties_on_gradients(name, autocast, penalty):
    if autocast and name == "a buffer that is read when it was written":
        pytest.skip("eager refuses to mix the types")
    torch.manual_seed(0)
    net = NETS[name]()
    twin = copy.deepcopy(net)
    try:
        want = _train(net, net, penalty, autocast=autocast)
    except RuntimeError as e:
        with pytest.raises(RuntimeError, match=str(e)[:40].replace("[", r"\[")):
            _train(twin, broach.compile(twin), penalty, autocast=autocast)
        return
    call = broach.compile(twin)
    got = _train(twin, call, penalty, autocast=autocast)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=3e-2 if autocast else 1e-4, atol=2e-2 if autocast else 1e-5)
    # Calls with gradients that write to a weight are eager.
    assert (call._compiled_call.stats()["compiled_calls"] >= 2) == (name != "weights that are clipped")


def test_autocast_around_the_gradients_alone_is_not_that_of_the_call():
    torch.manual_seed(0)
    net = NETS["a counter"]()
    call = broach.compile(net)
    for _ in range(4):
        x = torch.randn(5, 6, requires_grad=True)
        net.count = 0
        y = call(x)
        with torch.autocast("cpu", torch.bfloat16):
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        net.count = 0
        (w,) = torch.autograd.grad(net(x).sum(), x)
        torch.testing.assert_close(g, w, rtol=2e-2, atol=2e-2)
        assert not torch.is_autocast_enabled("cpu") and torch.is_autocast_cache_enabled()


def test_what_is_kept_of_a_written_buffer_may_be_used_afterwards():
    """The second run leaves the buffer's version as it is, so that others who hold it for their gradients do not find it written."""

    class Decayed(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x):
            self.scale.mul_(0.9)
            return (x * self.scale).sin()

    net, twin = Decayed(), Decayed()
    call = broach.compile(twin)
    for _ in range(6):
        seen = []
        for m, f in ((net, net), (twin, call)):
            x = torch.linspace(0, 1, 4, requires_grad=True)
            y = f(x)
            outside = x * m.scale
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            seen.append([g.detach(), *torch.autograd.grad(g.sum() + outside.sum(), x, retain_graph=True), m.scale.clone(), m.scale._version])
            y.sum().backward()
            seen[-1].append(x.grad)
        torch.testing.assert_close(seen[1], seen[0])


@pytest.mark.parametrize("seen", [True, False])
def test_a_second_run_that_finds_other_state_leaves_all_as_it_was(seen, monkeypatch):
    """It is an error where other threads might see what the call found, and what the call found otherwise."""
    monkeypatch.setattr(_threads, "others_may_look", lambda: seen)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.fails = False

        def forward(self, x):
            self.mean.add_(x.detach().mean(0))
            if self.fails:
                raise ValueError("wanted")
            return torch.dropout(x * x * x, 0.5, True)

    net = Net()
    call = broach.compile(net)
    for _ in range(4):
        call(torch.randn(3, 4, requires_grad=True))
    x = torch.randn(3, 4, requires_grad=True)
    y = call(x)
    net.fails = True
    mean, version, state = net.mean.clone(), net.mean._version, torch.get_rng_state()
    with pytest.raises(RuntimeError, match="has changed") if seen else contextlib.nullcontext():
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        torch.testing.assert_close(g, torch.where(y == 0, 0, 6 * x * x))
    assert net.fails and torch.equal(net.mean, mean) and net.mean._version == version and torch.equal(torch.get_rng_state(), state)
    net.fails = False
    (g,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
    assert g.requires_grad


def test_a_weight_written_between_a_call_and_its_gradients_is_eagers_error():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3), nn.Linear(4, 1))
    for f in (net, broach.compile(net)):
        for _ in range(4):
            x = torch.randn(3, 4, requires_grad=True)
            y = f(x).sum()
            with torch.no_grad():
                net[3].weight.add_(0.1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(y, x, create_graph=True)


def test_what_cannot_be_done_says_why():
    drop = broach.compile(lambda x: torch.dropout(x * x, 0.5, True), options={"rng": "counter"})

    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", torch.randn(1024, 512))

        def forward(self, x):
            y = (x @ self.queue.clone().t()).logsumexp(1)
            self.queue[: x.shape[0]] = x.detach()
            return y

    queue = broach.compile(Queue())
    for call, shape, why in ((drop, (4,), "random numbers by a counter"), (queue, (3, 512), "too much to be kept")):
        for _ in range(5):
            x = torch.randn(shape, requires_grad=True)
            y = call(x).sum()
        with pytest.raises(RuntimeError, match=why):
            torch.autograd.grad(y, x, create_graph=True)
        assert torch.autograd.grad(call(x).sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("outer", [torch.abs, torch.sign, torch.relu, torch.round])
def test_a_derivative_that_is_zero_everywhere(outer):
    """Eager gives it as a tensor without elements, to which nothing can be added."""

    def program(c):
        f, saw = c(lambda x, y: x.std(0) + y.var(0)), []
        for _ in range(4):
            x, y = (torch.tensor([[1.0, 2.0], [3.0, 5.0], [4.0, 1.0]], requires_grad=True) for _ in range(2))
            gs = torch.autograd.grad(outer(f(x, y)).sum(), (x, y), create_graph=True)
            saw.append(torch.autograd.grad(sum(g.pow(2).sum() for g in gs) + x.sum(), x)[0])
        return saw

    check(program)
