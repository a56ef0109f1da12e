"""Training steps whose backward runs code of the program's own: custom functions, hooks on what it computes and on modules."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F
from compared import stats
from step_code import FUNCTIONS, Square, step_through
from torch import nn
from whole_steps import OPTIMIZERS, Pair, close, mlp

pytestmark = pytest.mark.usefixtures("with_gradients")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_custom_functions(function, optimizer):
    pair = Pair(step_through(FUNCTIONS[function]), optimizer=OPTIMIZERS[optimizer], options={"capture": "native"})
    for i, rows in enumerate([8, 8, 8, 8, 5, 5, 8, 3]):
        pair.run(i, rows)
    seen = stats(pair.compiled)
    if function != "in_place_of_a_window":  # autograd keeps the function within a node of its own
        assert seen["compiled_calls"] > 2 and seen["eager_calls"] == 0, seen


def test_hooks_on_what_a_step_computes():
    def hooked(m, out):
        out.register_hook(lambda g: g.clamp(-0.01, 0.01))
        out.register_hook(lambda g: g * 2)
        return out

    pair = Pair(step_through(hooked), options={"capture": "native"})
    for i in range(8):
        pair.run(i)
    assert stats(pair.compiled)["compiled_calls"] > 3


@pytest.mark.parametrize("kind", ["backward", "backward_pre"])
def test_hooks_of_modules(kind):
    pair = Pair(step_through(lambda m, out: out), options={"capture": "native"})
    for m in pair.models:
        if kind == "backward":
            m[0].register_full_backward_hook(lambda module, given, got: tuple(g if g is None else g * 0.5 for g in given))
        else:
            m[2].register_full_backward_pre_hook(lambda module, got: (got[0] * 0.25,))
    for i in range(8):
        pair.run(i)
        if i == 4:
            for m in pair.models:
                m[3].register_full_backward_hook(lambda module, given, got: (given[0] + 1,))
    assert stats(pair.compiled)["compiled_calls"] > 2


class _Settings:
    scale = 1.0


class _BySettings(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x + 0

    @staticmethod
    def backward(ctx, g):
        return g * _Settings.scale


def test_what_the_code_reads_changes():
    factor = [1.0]

    def program(m, out):
        out = _BySettings.apply(out)
        out.register_hook(lambda g: g * factor[0])
        return out

    pair = Pair(step_through(program), options={"capture": "native"})
    for i in range(20):
        _Settings.scale = 1.0 + i // 5
        if i % 7 == 6:
            factor[0] += 0.5
        pair.run(i)
    _Settings.scale = 1.0
    assert stats(pair.compiled)["compiled_calls"] > 3


def test_a_backward_is_exchanged():
    def halved(ctx, g):
        return g * 0.5

    pair = Pair(step_through(lambda m, out: Square.apply(out)), options={"capture": "native"})
    before = Square.__dict__["backward"]
    try:
        for i in range(10):
            if i == 5:
                Square.backward = staticmethod(halved)
            pair.run(i)
    finally:
        Square.backward = before


def test_what_the_code_writes():
    seen: list[dict] = [{}, {}]
    of: dict[int, int] = {}

    class Counted(torch.autograd.Function):
        calls = [0, 0]

        @staticmethod
        def forward(ctx, x, which):
            ctx.which = which
            return x * 1

        @staticmethod
        def backward(ctx, g):
            Counted.calls[ctx.which] += 1
            return g * 2, None

    def program(m, out):
        which = of[id(m)]
        out = Counted.apply(out, which)
        out.register_hook(lambda g: seen[which].__setitem__("norm", g.norm()))
        return out

    pair = Pair(step_through(program))
    of.update((id(m), k) for k, m in enumerate(pair.models))
    for i in range(9):
        pair.run(i)
        assert Counted.calls == [i + 1, i + 1]
        close(seen[0]["norm"], seen[1]["norm"], "what a hook keeps")


def test_numbers_that_the_code_reads():
    def program(m, out):
        out.register_hook(lambda g: g / max(g.norm().item(), 1e-3))
        return out

    pair = Pair(step_through(program))
    for i in range(9):
        pair.run(i)


def test_the_code_goes_by_values():
    def program(m, out):
        out.register_hook(lambda g: g * 2 if g.sum() > 0 else g)
        return out

    pair = Pair(step_through(program))
    for i in range(16):
        pair.run(i)


def test_the_code_prints(capsys):
    def program(m, out):
        out.register_hook(lambda g: print("hook"))
        return out

    pair = Pair(step_through(program))
    for i in range(6):
        pair.run(i)
    assert capsys.readouterr().out == "hook\n" * 12


def test_the_code_fails_in_some_steps():
    limit = [1e9]

    def program(m, out):
        def look(g):
            if g.abs().max() > limit[0]:
                raise ValueError("a large gradient")

        out.register_hook(look)
        return out

    pair = Pair(step_through(program))
    for i in range(12):
        limit[0] = 0.0 if i in (6, 9) else 1e9
        if limit[0]:
            pair.run(i)
            continue
        torch.manual_seed(i)
        x, y = torch.randn(8, 16), torch.randn(8, 4)
        for run in (pair.programs[0], pair.compiled):
            with pytest.raises(ValueError, match="a large gradient"):
                run(x, y)


def test_a_hook_is_removed_within_thestep_through():
    def program(m, out):
        first = out.register_hook(lambda g: g * 100)
        out.register_hook(lambda g: g * 2)
        first.remove()
        return out

    pair = Pair(step_through(program), options={"capture": "native"})
    for i in range(8):
        pair.run(i)
    assert stats(pair.compiled)["compiled_calls"] > 3


def test_a_backward_within_a_hook():
    def step(m, o, x, y):
        o.zero_grad()
        out = m(x)

        def more(g):
            with torch.enable_grad():
                m[3](torch.ones(1, 32)).sum().backward()

        out.register_hook(more)
        loss = F.mse_loss(out, y)
        loss.backward()
        o.step()
        return loss.detach()

    pair = Pair(step)
    for i in range(8):
        pair.run(i)


def test_two_backwards_through_a_function():
    def step(m, o, x, y):
        o.zero_grad()
        out = Square.apply(m(x))
        first, second = F.mse_loss(out, y), out.mean()
        first.backward(retain_graph=True)
        second.backward()
        o.step()
        return first.detach()

    pair = Pair(step, options={"capture": "native"})
    for i in range(8):
        pair.run(i)
    assert stats(pair.compiled)["compiled_calls"] > 3


def test_gradients_of_gradients_of_a_function():
    def step(m, o, x, y):
        o.zero_grad()
        x = x.clone().requires_grad_()
        out = Square.apply(m(x)).sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        loss = slope.square().mean()
        loss.backward()
        o.step()
        return loss.detach()

    pair = Pair(step)
    for i in range(8):
        pair.run(i)


def test_a_graph_from_before_the_step_with_code():
    """The function's node lies outside: its code belongs to no step."""
    model = [mlp(), mlp()]
    model[1].load_state_dict(model[0].state_dict())
    calls = []

    def finish(out, y):
        loss = F.mse_loss(out, y)
        loss.backward()
        return loss.detach()

    compiled = broach.compile(finish)
    for i in range(8):
        torch.manual_seed(i)
        x, y = torch.randn(8, 16), torch.randn(8, 4)
        for k, run in enumerate((finish, compiled)):
            model[k].zero_grad()
            out = model[k](x)
            out.register_hook(lambda g, i=i: calls.append(i) or g * (i + 1))
            run(Square.apply(out), y)
        for p, q in zip(model[0].parameters(), model[1].parameters()):
            close(p.grad, q.grad, "a gradient")
    assert len(calls) == 16


def test_an_old_gradient_that_somebody_holds_stays():
    pair = Pair(step_through(lambda m, out: out))
    for i in range(4):
        pair.run(i)
    held = [p.grad for p in pair.models[1].parameters()]
    before = [g.clone() for g in held]
    pair.run(4)  # whoever holds one keeps it as it was
    for g, was, p in zip(held, before, pair.models[1].parameters()):
        assert torch.equal(g, was) and p.grad is not g


def test_a_step_that_fails_behind_compiled_ones():
    def step(m, o, x, y, at):
        o.zero_grad()
        loss = F.cross_entropy(m(x), y)[None][at]
        loss.backward()
        o.step()
        return loss.detach()

    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    compiled = broach.compile(step)
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    for _ in range(5):
        compiled(model, optimizer, x, y, torch.tensor(0))
    for bad, error in ((torch.full((8,), 9), IndexError), (torch.full((8,), -200), IndexError)):
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(error):
            compiled(model, optimizer, x, bad, torch.tensor(0))
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before))
        assert all(p.grad is None for p in model.parameters())
    assert isinstance(compiled(model, optimizer, x, y, torch.tensor(0)), torch.Tensor)


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(mlp(), nn.ReLU())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
        self.steps, self.total = 0, 0.0

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.steps += 1
        self.total += loss.item()
        return torch.tensor([self.total / self.steps, loss.item()])


def _with_arguments(model, optimizer, scheduler, x, y):
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss.detach()


def _of_state(state, x, y):
    state["optimizer"].zero_grad()
    loss = F.mse_loss(state["model"](x), y)
    loss.backward()
    state["optimizer"].step()
    state["steps"] += 1
    return loss.detach(), torch.tensor(state["steps"])


HOLDERS = {
    "method": lambda t, wrap: wrap(t.step),
    "function_of_self": lambda t, wrap: lambda x, y, f=wrap(Trainer.step): f(t, x, y),
    "arguments": lambda t, wrap: lambda x, y, f=wrap(_with_arguments): f(t.model, t.optimizer, t.scheduler, x, y),
    "dict": lambda t, wrap: lambda x, y, f=wrap(_of_state), s={"model": t.model, "optimizer": t.optimizer, "steps": 0}: f(s, x, y),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_how_a_step_is_given_its_optimizer(holder):
    made = []

    def wrap(f):
        made.append(broach.compile(f, options={"capture": "native"}))
        return made[-1]

    runs = []
    for wrapped in (lambda f: f, wrap):
        torch.manual_seed(0)
        trainer = Trainer()
        runs.append((trainer, HOLDERS[holder](trainer, wrapped)))
    for i in range(16):
        torch.manual_seed(i)
        x, y = torch.randn(8, 16), torch.randn(8, 4)
        close(runs[0][1](x, y), runs[1][1](x, y), "result")
        for p, q in zip(runs[0][0].model.parameters(), runs[1][0].model.parameters()):
            close(p, q, "a parameter")
    assert vars(runs[0][0])["steps"] == vars(runs[1][0])["steps"]
    assert made[0].stats()["compiled_calls"] > 3 and made[0].stats()["eager_calls"] == 0


def test_another_optimizer_is_given():
    compiled = broach.compile(_with_arguments)
    for k in range(3):
        runs = []
        for f in (_with_arguments, compiled):
            torch.manual_seed(k)
            t = Trainer()
            runs.append(t)
            for i in range(5):
                torch.manual_seed(i)
                f(t.model, t.optimizer, t.scheduler, torch.randn(8, 16), torch.randn(8, 4))
        for p, q in zip(runs[0].model.parameters(), runs[1].model.parameters()):
            close(p, q, "a parameter")


@pytest.mark.parametrize("clips", [False, True])
def test_scaled_gradients(clips):
    """Some steps are left out by the scaler, which changes its scale."""
    def step(model, optimizer, scaler, x, y):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach(), scaler.get_scale()

    runs = []
    compiled = broach.compile(step, options={"capture": "native"})
    for f in (step, compiled):
        torch.manual_seed(0)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)
        seen = []
        for i in range(18):
            torch.manual_seed(i)
            x, y = torch.randn(8, 16), torch.randn(8, 4)
            if i in (6, 11, 12):
                x[0, 0] = torch.inf
            seen.append(f(model, optimizer, scaler, x, y))
        runs.append((model, seen, scaler))
    for (a, scale_a), (b, scale_b) in zip(runs[0][1], runs[1][1]):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-3, equal_nan=True)  # products in bfloat16
        assert scale_a == scale_b
    for p, q in zip(runs[0][0].parameters(), runs[1][0].parameters()):
        torch.testing.assert_close(p, q, rtol=2e-2, atol=2e-3)
    assert runs[0][2].state_dict() == runs[1][2].state_dict()
    assert compiled.stats()["compiled_calls"] > 4
