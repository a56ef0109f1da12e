"""Python code that gradients run within compiled programs: of custom functions, of hooks on tensors and modules."""

import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from gradient_programs import Affine, observed, raised, same
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import broach
from broach import _threads

pytestmark = pytest.mark.usefixtures("with_gradients")


class Scale(Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return x.view_as(x) * by

    @staticmethod
    def backward(ctx, g):
        return g * ctx.by * 3, None


class Exp(Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * 5


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        of_x = g @ weight if ctx.needs_input_grad[0] else None
        return of_x, g.t() @ x * 2, g.sum(0) / g.shape[0]


class Parts(Function):
    @staticmethod
    def forward(ctx, x):
        values, at = x.sort(dim=-1)
        ctx.mark_non_differentiable(at)
        ctx.save_for_backward(at)
        ctx.kept = values.shape
        return values, at, x.sin()

    @staticmethod
    def backward(ctx, g, _, h):
        (at,) = ctx.saved_tensors
        return torch.zeros(ctx.kept).scatter(-1, at, g) + h.reshape(ctx.kept) * 2


class Dirty(Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return (g * 7).contiguous()


class Clipped(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-1e-2, 1e-2)


class Round(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


class WithRules(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos() * 2

    @staticmethod
    def jvp(ctx, t):
        return t * 9


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.by = nn.Linear(8, 8), nn.Linear(8, 8), 2.0

    def forward(self, x):
        return self.second(self.first(x).tanh())


def hooked(make):
    def program(m, x):
        h = m.first(x)
        h.register_hook(make(m, h, x))
        return m.second(h.tanh())

    return program


def module_hooks(register):
    def make():
        m = Block()
        register(m)
        return m

    return make


def several_hooks(m, x):
    h = m.first(x)
    removed = h.register_hook(lambda g: g * 100)
    h.register_hook(lambda g: g * 2)
    removed.remove()
    h.register_hook(lambda g: g + 1)
    h.register_hook(lambda g: None)
    return m.second(h.tanh())


def results_of_a_hooked_chain(m, x):
    h = x.sin()
    h.register_hook(lambda g: g.clamp(-1, 1) * x.shape[0])
    return {"a": m(h), "b": m(h) * 2}


PROGRAMS = {
    "saves a result": lambda m, x: Exp.apply(m(x) * 0.1),
    "a number": lambda m, x: Scale.apply(m(x), m.by),
    "an affine gradient": lambda m, x: Affine.apply(m(x), 3),
    "saves inputs": lambda m, x: Linear.apply(x, m.first.weight, m.first.bias).sin(),
    "of what needs no gradient": lambda m, x: Linear.apply(x.detach(), m.first.weight, m.first.bias).sin() * x.sum(),
    "several results": lambda m, x: (lambda a, i, b: (a * b, i))(*Parts.apply(m(x))),
    "one result of several": lambda m, x: Parts.apply(m(x))[0],
    "writes its argument": lambda m, x: Dirty.apply(m(x) * 3).sin(),
    "is not linear": lambda m, x: m(Clipped.apply(m.first(x))),
    "passes through": lambda m, x: m(Round.apply(x * 3)),
    "with rules": lambda m, x: WithRules.apply(m(x)),
    "many times": lambda m, x: Exp.apply(Affine.apply(Exp.apply(m(x) * 0.1), 2) * 0.1) + Clipped.apply(x),
    "a tangent that repeats": lambda m, x: Exp.apply(m(x) * 0.1).sum(-1, keepdim=True),
    "a hook": hooked(lambda m, h, x: lambda g: g * 10),
    "a hook that reads tensors": hooked(lambda m, h, x: lambda g: g * h.detach() + x.detach()),
    "a hook that reads the module": hooked(lambda m, h, x: lambda g: g * m.by + m.first.weight.sum().detach()),
    "a hook that gives nothing": hooked(lambda m, h, x: lambda g: None),
    "several hooks": several_hooks,
    "a hook behind several results": results_of_a_hooked_chain,
}
MODULES = {
    "a backward hook": module_hooks(lambda m: m.first.register_full_backward_hook(lambda m, gi, go: tuple(g * 2 for g in gi))),
    "a backward hook in front": module_hooks(lambda m: m.second.register_full_backward_pre_hook(lambda m, go: (go[0].clamp(-0.5, 0.5),))),
    "a backward hook on the whole": module_hooks(lambda m: m.register_full_backward_hook(lambda m, gi, go: (gi[0] + go[0].mean(),))),
    "a backward hook that looks on": module_hooks(lambda m: m.first.register_full_backward_hook(lambda m, gi, go: None)),
}


def loss_of(y):
    values = y.values() if isinstance(y, dict) else y if isinstance(y, tuple) else [y]
    return sum(v.square().mean() for v in values if v.requires_grad)


def steps(c, program, make=Block, calls=7, sizes=(3, 3, 3, 5, 7, 2, 3), between=lambda m, i: None, before=lambda m, i: None):
    m = make()
    f, saw = c(lambda x: program(m, x)), []
    for i in range(calls):
        before(m, i)
        x = torch.randn(sizes[i % len(sizes)], 8, requires_grad=True)
        y = f(x)
        between(m, i)
        loss_of(y).backward()
        saw += [y, x.grad, *(p.grad for p in m.parameters())]
        m.zero_grad(set_to_none=True)
    return saw


def held_against_eager(run, **options):
    made = []

    def compile(f):
        made.append(broach.compile(f, **options))
        return made[-1]

    want = observed(run, lambda f: f)
    same(observed(run, compile), want)
    return made[0].stats()


def is_compiled(stats, calls=3):
    assert stats["compiled_calls"] >= calls and not stats["eager_reasons"], (stats["eager_reasons"], stats["attempts"])


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"memory_budget": 0.3}, {"target": "reference"}], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_compiled(name, options):
    is_compiled(held_against_eager(lambda c: steps(c, PROGRAMS[name]), options={"capture": "native", **options}))


@pytest.mark.parametrize("name", MODULES)
def test_modules_with_hooks_are_compiled(name):
    is_compiled(held_against_eager(lambda c: steps(c, lambda m, x: m(x), MODULES[name]), options={"capture": "native"}))


@pytest.mark.parametrize("dynamic", [True, False])
def test_sizes(dynamic):
    run = lambda c: steps(c, PROGRAMS["several results"], sizes=(3, 4, 5, 3, 4, 5, 6), calls=9)  # noqa: E731
    is_compiled(held_against_eager(run, dynamic=dynamic))


def test_what_the_gradients_read_may_change_between_calls():
    def change(m, i):
        m.by = 2.0 + i // 3

    held_against_eager(lambda c: steps(c, PROGRAMS["a hook that reads the module"], before=change, calls=9))


SETTINGS = {"by": 1.0}


class Reads(Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * SETTINGS["by"]


def test_what_the_gradients_read_may_change_between_a_call_and_its_gradients():
    def run(c):
        SETTINGS["by"], m = 1.0, Block()
        f, saw = c(lambda x: Reads.apply(m(x))), []
        for i in range(6):
            x = torch.randn(3, 8, requires_grad=True)
            y = f(x)
            if i == 4:
                SETTINGS["by"] = 3.0
            y.square().sum().backward()
            saw += [y, x.grad]
        return saw

    # What the caller changes once may change again, and code of gradients must not read it then.
    assert held_against_eager(run)["compiled_calls"] >= 3


def test_a_number_that_changes_from_call_to_call():
    """As the weight of a reversed gradient does: it is read by the call, and by its gradients from the context."""

    def change(m, i):
        m.by = 1.0 + i

    is_compiled(held_against_eager(lambda c: steps(c, PROGRAMS["a number"], before=change, calls=9, sizes=(3,))))


def test_what_the_call_reads_changes_before_its_gradients():
    def run(c):
        m, saw = Block(), []
        f = c(lambda x: Scale.apply(m(x), m.by))
        for i in range(5):
            m.zero_grad(), setattr(m, "by", 3.0)
            y = f(torch.randn(3, 8))
            m.by = 7.0 + i
            y.sum().backward()
            saw += [m.first.weight.grad]
        return saw

    is_compiled(held_against_eager(run))


def test_what_the_call_and_its_gradients_read_changes_between_them(monkeypatch):
    """The program is run again with what it read then, where nobody else can see that."""
    monkeypatch.setattr(_threads, "others_may_look", lambda: False)  # what other tests have left

    def run(c):
        m, saw = Block(), []
        m.first.register_full_backward_hook(lambda module, taken, given: (taken[0] * m.by,))
        f = c(lambda x: m(x) * m.by)
        for i in range(5):
            m.zero_grad(), setattr(m, "by", 3.0)
            x = torch.randn(3, 8, requires_grad=True)
            y = f(x)
            m.by = 7.0 + i
            y.sum().backward()
            saw += [x.grad, m.first.weight.grad, m.by]
        return saw

    is_compiled(held_against_eager(run))


def test_which_threads_may_look():
    code = """
import threading, tqdm
from broach._threads import others_may_look
assert not others_may_look()
bar = tqdm.tqdm(range(3), disable=False, file=open("/dev/null", "w"))
assert threading.active_count() == 2 and not others_may_look()
done = threading.Event()
other = threading.Thread(target=done.wait, daemon=True)
other.start()
assert others_may_look()
done.set(), other.join()
assert not others_may_look()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_other_threads_may_read_is_not_put_back_for_a_while():
    m, done = Block(), threading.Event()
    m.first.register_full_backward_hook(lambda module, taken, given: (taken[0] * m.by,))
    f = broach.compile(lambda x: m(x) * m.by)
    for _ in range(3):
        f(torch.randn(3, 8, requires_grad=True)).sum().backward()
    y = f(torch.randn(3, 8, requires_grad=True))
    m.by = 7.0
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with pytest.raises(RuntimeError, match="has changed since the call, which other threads may read"):
            y.sum().backward()
    finally:
        done.set(), other.join()
    assert m.by == 7.0


def test_gradients_of_some_tensors_only():
    def run(c):
        m = Block()
        f, saw = c(lambda x: Linear.apply(Exp.apply(x * 0.1), m.first.weight, m.first.bias)), []
        for i in range(7):
            x = torch.randn(3, 8, requires_grad=True)
            y = f(x).square().sum()
            saw += torch.autograd.grad(y, [[x], [m.first.weight], [x, m.first.bias]][i % 3], retain_graph=True)
            y.backward()
            saw += [x.grad]
        return saw

    is_compiled(held_against_eager(run))


def test_gradients_of_gradients():
    def run(c):
        f, saw = c(lambda x: Exp.apply(x * 0.1)), []
        for _ in range(4):
            x = torch.randn(3, requires_grad=True)
            (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            g.square().sum().backward()
            saw += [g, x.grad]
        return saw

    is_compiled(held_against_eager(run), 2)


def test_gradients_of_one_result_or_the_other():
    def run(c):
        f, saw = c(lambda x: (lambda h: (h * 2, h.sin()))(Affine.apply(x, 2))), []
        for i in range(6):
            x = torch.randn(3, requires_grad=True)
            f(x)[i % 2].sum().backward()
            saw.append(x.grad)
        return saw

    is_compiled(held_against_eager(run))


def test_tensors_that_others_write():
    def run(c):
        f, saw = c(Exp.apply), []
        for i in range(6):
            y = f(torch.zeros(3, requires_grad=True) + 1)
            if i % 2:
                y.mul_(2)
            saw.append(raised(lambda: y.sum().backward()))
        return saw

    held_against_eager(run)


# ---- what only eager does ----


LOG = []


class Logs(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        LOG.append(g.sum().item())
        return g


class Counts(Function):
    @staticmethod
    def forward(ctx, x, m):
        ctx.m = m
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.m.by += 1
        return g * ctx.m.by, None


class Branches(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 if g.sum() > 0 else g * 3


class Draws(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand_like(g)


class Prints(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        print("backward")
        return g


class Writes(Function):
    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.buffer.add_(1)
        return g * ctx.buffer, None


class Differentiates(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            own = x.detach().requires_grad_()
            return torch.autograd.grad(own.sin(), own, g)


class Fails(Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("no")


class Undefined(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        return (0 if g is None else g) + (100 if h is None else h)


def collects_in_a_list(m, x):
    kept = []
    h = m(x)
    h.register_hook(lambda g: kept.append(g.clone()))
    collects_in_a_list.kept = kept
    return h * 2


def gives_a_list(m, x):
    kept = []
    h = m(x)
    h.register_hook(lambda g: kept.append(g.clone()))
    return h * 2, kept


def hook_on_a_leaf(m, x):
    m.first.weight.register_hook(lambda g: g * 2)
    return m(x)


def hook_on_a_result(m, x):
    y = m(x)
    y.register_hook(lambda g: g * 2)
    return y


ONLY_EAGER = {
    "logs": lambda m, x: Logs.apply(m(x)),
    "counts": lambda m, x: Counts.apply(m(x), m),
    "branches": lambda m, x: Branches.apply(m(x)),
    "draws": lambda m, x: Draws.apply(m(x)),
    "prints": lambda m, x: Prints.apply(m(x)),
    "writes": lambda m, x: Writes.apply(m(x), m.buffer),
    "differentiates": lambda m, x: Differentiates.apply(m(x)),
    "fails": lambda m, x: Fails.apply(m(x)),
    "goes by undefined gradients": lambda m, x: Undefined.apply(m(x)),
    "collects": collects_in_a_list,
    "gives a list": gives_a_list,
    "a hook on a leaf": hook_on_a_leaf,
    "a hook on a result": hook_on_a_result,
}


@pytest.mark.parametrize("name", ONLY_EAGER)
def test_programs_left_to_eager(name, capsys):
    def run(c):
        LOG.clear()
        m = Block()
        m.buffer = torch.zeros(8)
        f, saw = c(lambda x: ONLY_EAGER[name](m, x)), []
        for i in range(6):
            x = torch.randn(3, 8, requires_grad=True)
            y = f(x)
            saw += [[*LOG], m.by, m.buffer.clone(), torch.get_rng_state().sum()]
            y = y[i % 2] if name == "goes by undefined gradients" else y[0] if isinstance(y, tuple) else y
            saw += [raised(lambda y=y: y.square().sum().backward()), x.grad, *(p.grad for p in m.parameters())]
            saw += [[*LOG], m.by, m.buffer.clone(), capsys.readouterr().out]
            m.zero_grad(set_to_none=True)
            m.first.weight._backward_hooks and m.first.weight._backward_hooks.clear()
        return saw

    stats = held_against_eager(run)
    assert not stats["compiled_calls"], stats["attempts"]


class ByLayout(Function):
    @staticmethod
    def forward(ctx, x):
        return x + x

    @staticmethod
    def backward(ctx, g):
        return g * (2.0 if g.is_contiguous() else 3.0) + g.stride(0)


class Flat(ByLayout):
    @staticmethod
    def backward(ctx, g):
        return g.view(-1).view(g.shape) * 2


def _hooked_by_layout(x):
    y = x * 1
    y.register_hook(lambda g: g * (g.stride(0) + g.stride()[1] + 10 * g.storage_offset()))
    return y * 1


@pytest.mark.parametrize("program", [ByLayout.apply, Flat.apply, _hooked_by_layout])
def test_code_that_asks_how_the_gradient_it_is_given_lies(program):
    def run(c):
        f, saw = c(program), []
        given = torch.arange(9.0).view(3, 3)
        for g in (given, given, given.t(), torch.ones(1).expand(3, 3), given, torch.arange(10.0)[1:].view(3, 3)):
            x = torch.ones(3, 3, requires_grad=True)
            saw.append(raised(lambda: torch.autograd.grad(f(x), x, g)[0].contiguous()))
        return saw

    same(observed(run, broach.compile), observed(run, lambda f: f))
