"""Steps of torch.optim's optimizers: they read gradients, which are other tensors in every step, and count the steps on the host."""

from __future__ import annotations

import copy
import threading

import broach
import pytest
import torch
from compared import stats
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.usefixtures("with_gradients")


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
    "adam without momentum": lambda p: O.Adam(p, 1e-3, betas=(0.0, 0.9)),
    # An element's step is its momentum over its last gradient, which may be next to nothing: eps is far above what rounds.
    "adamw of one gradient's size": lambda p: O.AdamW(p, 1e-3, betas=(0.9, 0.0), eps=1e-2),
    "radam without memory": lambda p: O.RAdam(p, betas=(0.0, 0.0)),
    "adamax": lambda p: O.Adamax(p),
    "nadam": lambda p: O.NAdam(p),
    "radam": lambda p: O.RAdam(p),
    "adadelta": lambda p: O.Adadelta(p),
    "rprop": lambda p: O.Rprop(p),
    "sgd fused": lambda p: O.SGD(p, 0.1, momentum=0.9, dampening=0.2, weight_decay=0.01, fused=True),
    "nesterov fused": lambda p: O.SGD(p, 0.01, momentum=0.9, nesterov=True, maximize=True, fused=True),
    "plain sgd fused": lambda p: O.SGD(p, 0.1, fused=True),
    "adam fused": lambda p: O.Adam(p, 1e-3, weight_decay=0.1, fused=True),
    "amsgrad fused": lambda p: O.Adam(p, 1e-3, amsgrad=True, maximize=True, fused=True),
    "adamw fused": lambda p: O.AdamW(p, 1e-3, fused=True),
    "fused with a tensor for its rate": lambda p: O.AdamW(p, lr=torch.tensor(1e-3), amsgrad=True, fused=True),
    "adagrad fused": lambda p: O.Adagrad(p, lr_decay=0.1, weight_decay=0.01, fused=True),
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


@pytest.mark.parametrize("name", ["nesterov", "adam", "adam foreach", "adamw fused"])
@pytest.mark.parametrize("scheduler", [lambda o: O.lr_scheduler.CosineAnnealingLR(o, 20), lambda o: O.lr_scheduler.OneCycleLR(o, 0.1, 20)])
def test_schedulers(name, scheduler):
    t = Training(OPTIMIZERS[name], lambda optimizer: None)
    schedulers = [scheduler(o) for o in t.optimizers]
    t.step = broach.compile(t.optimizers[1].step, options={"capture": "native"})  # which the scheduler has wrapped
    for _ in range(10):
        t.backward()
        t.both()
        for s in schedulers:
            s.step()
    assert stats(t.step)["captures"] <= 6


S = O.lr_scheduler
SCHEDULERS = {
    "step": lambda o: S.StepLR(o, 4, 0.5),
    "several steps": lambda o: S.MultiStepLR(o, [3, 9], 0.1),
    "constant": lambda o: S.ConstantLR(o, 0.5, 5),
    "linear": lambda o: S.LinearLR(o, 0.2, total_iters=6),
    "exponential": lambda o: S.ExponentialLR(o, 0.9),
    "polynomial": lambda o: S.PolynomialLR(o, 12, 2.0),
    "cosine": lambda o: S.CosineAnnealingLR(o, 6),
    "restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 4, 2),
    "one cycle": lambda o: S.OneCycleLR(o, 0.2, 20),
    "cyclic": lambda o: S.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum="momentum" in o.defaults),
    "a function": lambda o: S.LambdaLR(o, lambda n: 1 / (1 + n)),
    "a factor": lambda o: S.MultiplicativeLR(o, lambda n: 0.95),
    "one behind the other": lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.2, total_iters=4), S.ExponentialLR(o, 0.9)], [4]),
    "two at once": lambda o: S.ChainedScheduler([S.LinearLR(o, 0.2, total_iters=4), S.ExponentialLR(o, 0.9)]),
}


@pytest.mark.parametrize("name", ["nesterov", "adamw"])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_within(name, scheduler):
    t = Training(OPTIMIZERS[name], lambda optimizer: None)
    schedulers = [SCHEDULERS[scheduler](o) for o in t.optimizers]

    def step(k):
        t.optimizers[k].step()
        schedulers[k].step()

    compiled = broach.compile(lambda: step(1), options={"capture": "native"})
    for _ in range(16):
        t.backward()
        step(0)
        compiled()
        t.compare()
        a, b = (vars(s) for s in schedulers)
        assert schedulers[0].get_last_lr() == pytest.approx(schedulers[1].get_last_lr())
        numbers = [k for k in a if isinstance(a[k], (int, float))]
        assert {k: type(a[k]) for k in numbers} == {k: type(b[k]) for k in numbers}
        assert [a[k] for k in numbers] == pytest.approx([b[k] for k in numbers])
    assert stats(compiled)["front"] == "native" and stats(compiled)["eager_calls"] == 0


def test_a_scheduler_that_reads_the_loss():
    t = Training(OPTIMIZERS["nesterov"], lambda optimizer: None)
    schedulers = [S.ReduceLROnPlateau(o, patience=1) for o in t.optimizers]
    compiled = broach.compile(lambda loss: schedulers[1].step(loss))
    for i in range(12):
        loss = torch.tensor(1.0 / (i + 1) if i < 4 else 0.5)
        schedulers[0].step(loss)
        compiled(loss)
        assert schedulers[0].get_last_lr() == schedulers[1].get_last_lr() and schedulers[0].best == schedulers[1].best


@pytest.mark.parametrize("average", [O.swa_utils.get_ema_multi_avg_fn(0.9), O.swa_utils.get_swa_multi_avg_fn(), None])
def test_averaged_models(average):
    t = Training(OPTIMIZERS["nesterov"], lambda optimizer: None)
    averaged = [O.swa_utils.AveragedModel(m, multi_avg_fn=average) for m in t.models]
    compiled = broach.compile(lambda: averaged[1].update_parameters(t.models[1]), options={"capture": "native"})
    for _ in range(8):
        t.backward()
        for o in t.optimizers:
            o.step()
        averaged[0].update_parameters(t.models[0])
        compiled()
        for a, b in zip(*(m.state_dict().values() for m in averaged)):
            torch.testing.assert_close(a, b)
    assert stats(compiled)["front"] == "native" and stats(compiled)["compiled_calls"] > 2


FUSED = {
    "_fused_adam_": (6, {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": True, "maximize": False}),
    "_fused_adamw_": (6, {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8, "amsgrad": True, "maximize": True}),
    "_fused_sgd_": (3, {"momentum": 0.9, "weight_decay": 0.1, "dampening": 0.1, "nesterov": False, "maximize": True, "is_first_step": False}),
    "_fused_adagrad_": (4, {"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8, "maximize": False}),
}


def check_fused(name, scale, found, device="cpu", dtype=torch.float32, lay=lambda t: t):
    """The operation itself, as a scaler of gradients calls it: with a scale, and skipped where a gradient was infinite."""
    lists, how = FUSED[name]

    def make(seed):
        gen = torch.Generator().manual_seed(seed)
        given = [[lay(torch.rand(n, 5, generator=gen) + 0.5).to(device, dtype) for n in (3, 70)] for _ in range(lists)]
        if name != "_fused_sgd_":
            given[-1] = [torch.tensor(3.0, device=device) for _ in range(2)]
        return given

    def program(given, scale, found):
        with torch.no_grad():
            getattr(torch, name)(*given, lr=0.01, grad_scale=scale, found_inf=found, **how)

    compiled = broach.compile(program)
    for seed in range(4):
        want, got = make(seed), make(seed)
        extra = [None if v is None else torch.tensor(v, device=device) for v in (scale, found)]
        program(want, *extra)
        compiled(got, *extra)
        for place, (a, b) in enumerate(zip(want, got)):
            tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {}
            torch.testing.assert_close(a, b, msg=lambda m, place=place: f"list {place}: {m}", **tolerance)
    return compiled


@pytest.mark.parametrize("found", [None, 0.0, 1.0])
@pytest.mark.parametrize("scale", [None, 4.0])
@pytest.mark.parametrize("name", FUSED)
def test_fused_operations(name, scale, found):
    check_fused(name, scale, found)


@pytest.mark.parametrize("name", FUSED)
def test_fused_operations_on_other_types_and_layouts(name):
    check_fused(name, None, None, dtype=torch.float64)
    check_fused(name, None, None, lay=lambda t: t.t().contiguous().t())
    if name != "_fused_sgd_":  # torch's kernel reads momenta of two bytes as fp32, and behind their end: it gives others from call to call
        check_fused(name, None, None, dtype=torch.bfloat16)  # left to torch's kernels on the CPU


def test_fused_operations_of_other_threads_stay_torchs():
    own = torch._fused_sgd_
    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def step():
        with torch.no_grad(), Log():
            torch._fused_sgd_([torch.ones(3)], [torch.ones(3)], [], lr=0.1, **(FUSED["_fused_sgd_"][1] | {"momentum": 0.0}))

    def program(x):
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        seen.append("is replaced" if torch._fused_sgd_ is not own else "")
        return x + 1

    broach.compile(program)(X)
    operations = [name for name in seen if name.startswith("aten") and "ones" not in name]
    assert operations == ["aten._fused_sgd_.default"] and "is replaced" in seen and torch._fused_sgd_ is own


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


@pytest.mark.parametrize("make", [lambda p: O.ASGD(p), lambda p: O.LBFGS(p)])
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
