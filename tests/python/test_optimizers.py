"""Steps of torch.optim's optimizers: they read gradients, which are other tensors in every step, and count the steps on the host."""

from __future__ import annotations

import copy

import broach
import pytest
import torch
from compared import stats
from torch import nn


@pytest.fixture(autouse=True)
def _with_gradients(_no_grad):
    with torch.enable_grad():
        yield


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))


O = torch.optim
OPTIMIZERS = {
    "sgd": lambda p: O.SGD(p, 0.1),
    "nesterov": lambda p: O.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "maximize": lambda p: O.SGD(p, 0.1, momentum=0.9, maximize=True),
    "sgd foreach": lambda p: O.SGD(p, 0.1, momentum=0.9, foreach=True),
    "adam": lambda p: O.Adam(p, 1e-3),
    "amsgrad": lambda p: O.Adam(p, 1e-3, amsgrad=True, weight_decay=0.1),
    "adam foreach": lambda p: O.Adam(p, 1e-3, foreach=True),
    "adam with a tensor for its rate": lambda p: O.Adam(p, lr=torch.tensor(1e-3)),
    "adamw": lambda p: O.AdamW(p, 1e-3),
    "two groups": lambda p: O.AdamW([{"params": (p := list(p))[:1], "lr": 1e-2, "weight_decay": 0.3}, {"params": p[1:]}], 1e-3),
    "rmsprop": lambda p: O.RMSprop(p, 1e-3, momentum=0.9),
    # Its variance is a difference of about equal numbers, of which one rounding more or less is all: eps is far above that.
    "centered rmsprop": lambda p: O.RMSprop(p, 1e-3, momentum=0.9, centered=True, eps=1e-3),
    "adagrad": lambda p: O.Adagrad(p),
    "adamax": lambda p: O.Adamax(p),
    "nadam": lambda p: O.NAdam(p),
    "radam": lambda p: O.RAdam(p),
    "adadelta": lambda p: O.Adadelta(p),
    "rprop": lambda p: O.Rprop(p),
}
X, Y = torch.linspace(-2, 2, 128).sin().reshape(8, 16), torch.linspace(-1, 1, 32).cos().reshape(8, 4)


class Training:
    """Two models, one of which is stepped by a compiled function."""

    def __init__(self, make, compiled=lambda optimizer: broach.compile(lambda: optimizer.step(), options={"capture": "native"})):
        self.models = [_model(), _model()]
        self.optimizers = [make(m.parameters()) for m in self.models]
        self.step = compiled(self.optimizers[1])

    def backward(self, x=X, y=Y, set_to_none=True):
        for m, o in zip(self.models, self.optimizers):
            o.zero_grad(set_to_none=set_to_none)
            nn.functional.mse_loss(m(x), y).backward()

    def both(self):
        want, got = self.optimizers[0].step(), self.step()
        assert want is None and got is None
        self.compare()

    def compare(self):
        for a, b in zip(self.models[0].parameters(), self.models[1].parameters()):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
            of_a, of_b = (o.state[p] for o, p in zip(self.optimizers, (a, b)))
            assert of_a.keys() == of_b.keys()
            for name in of_a:
                # A momentum is a sum of steps of either sign, some as large as 10, of which each rounds about 1e-6.
                torch.testing.assert_close(of_a[name], of_b[name], rtol=1e-5, atol=5e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_step_as_eager(name, set_to_none):
    t = Training(OPTIMIZERS[name])
    for _ in range(9):
        t.backward(set_to_none=set_to_none)
        t.both()
    seen = stats(t.step)
    assert seen["front"] == "native" and seen["eager_calls"] == 0 and seen["captures"] <= 6


@pytest.mark.parametrize("name", ["nesterov", "adam", "adam foreach"])
def test_schedulers(name):
    t = Training(OPTIMIZERS[name], lambda optimizer: None)
    schedulers = [O.lr_scheduler.CosineAnnealingLR(o, 20) for o in t.optimizers]
    t.step = broach.compile(t.optimizers[1].step, options={"capture": "native"})  # which the scheduler has wrapped
    for _ in range(10):
        t.backward()
        t.both()
        for s in schedulers:
            s.step()
    assert stats(t.step)["captures"] <= 6


def test_zero_grad_and_clipping_within():
    def run(model, optimizer):
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    t = Training(OPTIMIZERS["adamw"])
    compiled = broach.compile(lambda: run(t.models[1], t.optimizers[1]), options={"capture": "native"})
    for _ in range(8):
        for m in t.models:
            nn.functional.mse_loss(m(X), Y).mul(100).backward()
        run(t.models[0], t.optimizers[0])
        compiled()
        assert all(p.grad is None for m in t.models for p in m.parameters())
        t.compare()
    assert stats(compiled)["front"] == "native"


def test_what_changes_between_steps():
    t = Training(OPTIMIZERS["adam"])
    frozen = [m[0].bias for m in t.models]
    for i in range(24):
        t.backward()
        if i == 8:  # no gradient any more
            for p in frozen:
                p.grad = None
        if i == 12:
            for o in t.optimizers:
                o.param_groups[0]["betas"] = (0.5, 0.99)
        if i == 16:
            for o in t.optimizers:
                o.param_groups[0]["weight_decay"] = 0.1
        if i == 20:
            for o in t.optimizers:
                o.load_state_dict(copy.deepcopy(o.state_dict()))
        t.both()


def test_steps_that_count_from_elsewhere():
    t = Training(OPTIMIZERS["adam"])
    for _ in range(6):
        t.backward()
        t.both()
    for o in t.optimizers:
        for s in o.state.values():
            s["step"].fill_(-1.0)  # 1 - beta ** 0 is 0 then
    t.backward()
    before = [p.detach().clone() for p in t.models[1].parameters()]
    for step in (t.optimizers[0].step, t.step):
        with pytest.raises(ZeroDivisionError):
            step()
    for p, kept in zip(list(t.models[1].parameters())[1:], before[1:]):
        assert torch.equal(p, kept)
    t.compare()


def test_hooks_of_the_optimizer_run():
    t = Training(OPTIMIZERS["sgd"])
    calls = []
    for k, o in enumerate(t.optimizers):
        o.register_step_post_hook(lambda *_, k=k: calls.append(k))
    for _ in range(5):
        t.backward()
        t.both()
    assert calls == [0, 1] * 5


@pytest.mark.parametrize("make", [lambda p: O.Adam(p, fused=True), lambda p: O.ASGD(p), lambda p: O.LBFGS(p)])
def test_left_to_eager(make):
    models = [_model(), _model()]
    optimizers = [make(m.parameters()) for m in models]

    def loss(m, o):
        o.zero_grad()
        out = nn.functional.mse_loss(m(X), Y)
        out.backward()
        return out

    compiled = broach.compile(lambda closure: optimizers[1].step(closure))
    for _ in range(4):
        optimizers[0].step(lambda: loss(models[0], optimizers[0]))
        compiled(lambda: loss(models[1], optimizers[1]))
    for a, b in zip(*(m.parameters() for m in models)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("read", [lambda p: p.grad, lambda p: getattr(p, "grad"), lambda p: p.grad if hasattr(p, "grad") else None])
def test_a_gradient_that_is_read(read):
    p, x = nn.Parameter(torch.randn(3)), torch.randn(3)
    program = lambda x: x * 2 if read(p) is None else x + read(p)  # noqa: E731
    compiled = broach.compile(program, options={"capture": "native"})
    for i in range(8):
        p.grad = None if i in (3, 6) else torch.randn(3)
        assert torch.equal(program(x), compiled(x)), i
    assert stats(compiled)["front"] == "native"


def test_a_gradient_that_is_written():
    p = nn.Parameter(torch.randn(3))

    def program(x):
        p.grad = x * 2
        return x + 1

    compiled = broach.compile(program, options={"capture": "native"})
    for _ in range(6):
        x = torch.randn(3)
        assert torch.equal(compiled(x), x + 1) and torch.equal(p.grad, x * 2)
    with pytest.raises(RuntimeError, match="to assign a gradient"):
        compiled(torch.randn(4))


def test_gradients_of_arguments_are_eagers():
    def program(p):
        return p.detach() * 2 if p.grad is None else p.grad + 1

    compiled = broach.compile(program)
    for i in range(6):
        p = nn.Parameter(torch.randn(3))
        if i % 2:
            p.grad = torch.randn(3)
        assert torch.equal(program(p), compiled(p))


def test_a_tensor_that_it_holds_is_a_key():
    p = nn.Parameter(torch.randn(3))
    table = {p: torch.randn(3)}
    program = lambda x: x + table[p]  # noqa: E731
    compiled = broach.compile(program, options={"capture": "native"})
    for _ in range(4):
        x = torch.randn(3)
        assert torch.equal(program(x), compiled(x))
    table[p] = torch.randn(3)
    assert torch.equal(program(x), compiled(x))
    q = nn.Parameter(torch.randn(3))
    table[q] = torch.randn(3)
    p = q
    assert torch.equal(program(x), compiled(x))
