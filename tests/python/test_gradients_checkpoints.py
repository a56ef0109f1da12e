"""Checkpoints within compiled programs: gradients are eager's, what is made inside is computed again, and what cannot be proven is eager's."""

import functools
import random
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from gradient_programs import observed, same
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

import broach

REENTRANT = pytest.mark.parametrize("reentrant", [False, True])

pytestmark = pytest.mark.usefixtures("with_gradients")


def block(dropout=0.0):
    return nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16), nn.Dropout(dropout))


def steps(c, make, program, calls=6, sizes=(3, 3, 5, 7, 7, 2), before=lambda m, i: None, options=None, between=lambda m, i: None):
    """Results and all gradients of some steps, with what the program is compiled to."""
    m = make()
    f = c(lambda x: program(m, x))
    saw = []
    for i in range(calls):
        before(m, i)
        x = torch.randn(sizes[i % len(sizes)], 16, requires_grad=True)
        y = f(x)
        between(m, i)
        y.square().mean().backward()
        saw += [y, x.grad, *(p.grad for p in m.parameters()), torch.get_rng_state().sum()]
        m.zero_grad(set_to_none=True)
    return saw


def held_against_eager(run, options=None, **more):
    made = []

    def compile(f):
        made.append(broach.compile(f, options={"capture": "native", **(options or {})}))
        return made[-1]

    want = observed(lambda c: run(c, **more), lambda f: f)
    have = observed(lambda c: run(c, **more), compile)
    same(have, want)
    return made[0].stats()


def saved_bytes(f):
    return max(p["saved_bytes"] for p in f.stats()["programs"])


def layered(m, x, reentrant):
    for layer in m:
        x = x + checkpoint(layer, x, use_reentrant=reentrant)
    return x


def layers(dropout=0.0):
    return nn.ModuleList([block(dropout) for _ in range(3)])


PROGRAMS = {
    "one": lambda m, x, r: checkpoint(m[0], x, use_reentrant=r),
    "layers": layered,
    "beside others": lambda m, x, r: m[1](checkpoint(m[0], x, use_reentrant=r)).tanh() + x,
    "sequential": lambda m, x, r: checkpoint_sequential(m, 3, x, use_reentrant=r),
    "nested": lambda m, x, r: checkpoint(lambda y: checkpoint(m[0], y.sin(), use_reentrant=r).exp(), x, use_reentrant=r),
    "a weight in two": lambda m, x, r: checkpoint(m[0], checkpoint(m[0], x, use_reentrant=r), use_reentrant=r),
    "several arguments": lambda m, x, r: checkpoint(lambda a, k, b: m[0](a * k) + b.cos(), x, 2.0, x.exp(), use_reentrant=r),
    "several results": lambda m, x, r: sum(checkpoint(lambda y: (m[0](y), y.sin(), 3), x, use_reentrant=r)),
}


def in_bf16(m, x):
    with torch.autocast("cpu", torch.bfloat16):
        return m(x)


@REENTRANT
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_compiled(name, reentrant):
    stats = held_against_eager(steps, make=layers, program=lambda m, x: PROGRAMS[name](m, x, reentrant))
    assert stats["compiled_calls"] >= 3 and not stats["eager_reasons"], stats["eager_reasons"]


@REENTRANT
@pytest.mark.parametrize("options", [{}, {"memory_budget": 0.5}, {"strict": True}, {"deterministic": True}, {"target": "reference"}])
def test_random_numbers_are_drawn_once(options, reentrant):
    stats = held_against_eager(steps, options, make=lambda: layers(0.3), program=lambda m, x: layered(m, x, reentrant))
    assert stats["compiled_calls"] >= 3 and not stats["eager_reasons"]


@REENTRANT
def test_autocast_inside_is_that_of_the_second_run(reentrant):
    m = layers()
    f = broach.compile(lambda x: checkpoint(functools.partial(in_bf16, m[0]), x, use_reentrant=reentrant).float(), options={"capture": "native"})
    for n in (3, 3, 5, 6):
        seen, x = [], torch.randn(n, 16)
        for run in (f.program, f):
            own = x.clone().requires_grad_()
            run(own).square().mean().backward()
            seen.append([own.grad, *(p.grad for p in m[0].parameters())])
            m.zero_grad(set_to_none=True)
        for want, got in zip(*seen, strict=True):
            torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)  # bf16 has eight bits, and a fused chain leaves roundings out
    assert f.stats()["compiled_calls"] >= 1


def test_numbers_of_a_counter_are_the_same_again():
    m = nn.Dropout(0.5)
    f = broach.compile(lambda x: checkpoint(lambda y: m(y) * y, x, use_reentrant=False), options={"rng": "counter", "capture": "native"})
    for _ in range(5):
        x = torch.full((64,), 3.0, requires_grad=True)
        y = f(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, 2 * y.detach() / 3)
    assert f.stats()["compiled_calls"] >= 3


@REENTRANT
def test_what_is_made_inside_is_not_saved(reentrant):
    m, x = layers(), torch.randn(64, 16, requires_grad=True)
    inside = broach.compile(lambda x: layered(m, x, reentrant))
    outside = broach.compile(lambda x: functools.reduce(lambda y, layer: y + layer(y), m, x))
    for f in (inside, outside):
        for _ in range(2):
            f(x).sum().backward()
    entered = 2 * 64 * 16 * 4  # two of the three inputs of layers; that of the first is the caller's
    assert saved_bytes(inside) == entered < saved_bytes(outside) / 4


def test_explain_tells_what_is_saved():
    m, x = layers(), torch.randn(64, 16, requires_grad=True)
    text = str(broach.explain(broach.compile(lambda x: layered(m, x, False)), x))
    assert "saved" in text


@REENTRANT
def test_weights_that_change_between_a_call_and_its_gradients(reentrant):
    """Eager computes again with what the weights are by then."""

    def change(m, i):
        with torch.no_grad():
            m[1][3].weight.mul_(1.5)
            m[0][1].bias.add_(1)

    stats = held_against_eager(steps, make=layers, program=lambda m, x: layered(m, x, reentrant), between=change)
    assert stats["compiled_calls"] >= 3


def test_an_argument_that_is_written_before_its_gradients():
    m = layers()
    f = broach.compile(lambda x: checkpoint(m[0], x, use_reentrant=False), options={"capture": "native"})
    x = torch.randn(3, 16)
    for _ in range(3):
        y = f(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    assert f.stats()["compiled_calls"] >= 1


@REENTRANT
def test_modules_that_change_are_compiled_anew(reentrant):
    def change(m, i):
        if i == 3:
            m[1][2] = nn.Tanh()
        if i == 5:
            m[0].eval()

    held_against_eager(steps, make=lambda: layers(0.2), program=lambda m, x: layered(m, x, reentrant), calls=8, before=change)


def test_gradients_of_gradients():
    def run(c):
        m = layers()
        f, saw = c(lambda x: checkpoint(lambda y: m[0](y).exp(), x, use_reentrant=False)), []
        for _ in range(5):
            x = torch.randn(3, 16, requires_grad=True)
            (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
            g.square().sum().backward()
            saw += [g, x.grad]
        return saw

    assert held_against_eager(run)["compiled_calls"] >= 3


def test_without_gradients_nothing_differs():
    m = layers()
    f = broach.compile(lambda x: layered(m, x, False), options={"capture": "native"})
    with torch.no_grad():
        for n in (3, 3, 4, 5):
            x = torch.randn(n, 16)
            torch.testing.assert_close(f(x), layered(m, x, False))
    assert f.stats()["compiled_calls"] >= 2


# ---- what only eager does ----


def writes_statistics(m, x, r):
    return checkpoint(lambda y: F.batch_norm(y, m.mean, m.var, training=True), m[0](x), use_reentrant=r)


def counts(m, x, r):
    def counted(y):
        m.count += 1
        return m[0](y) * m.count

    return checkpoint(counted, x, use_reentrant=r)


def collects(m, x, r):
    kept = []

    def collect(y):
        kept.append(1)
        return m[0](y)

    return checkpoint(collect, x, use_reentrant=r) * len(kept)


def draws_anew(m, x, r):
    return checkpoint(lambda y: F.dropout(m[0](y), 0.5), x, use_reentrant=r, preserve_rng_state=False)


def with_statistics():
    m = layers()
    m.mean, m.var, m.count = torch.zeros(16), torch.ones(16), 0
    return m


@REENTRANT
@pytest.mark.parametrize("program", [writes_statistics, counts, collects, draws_anew])
def test_what_eager_does_twice_is_left_to_eager(program, reentrant):
    def run(c):
        m = with_statistics()
        f, saw = c(lambda x: program(m, x, reentrant)), []
        for _ in range(6):
            x = torch.randn(4, 16, requires_grad=True)
            y = f(x)
            y.sum().backward()
            saw += [y, x.grad, m.mean.clone(), m.count]
        return saw

    made = []
    want = observed(run, lambda f: f)
    same(observed(run, lambda f: made.append(broach.compile(f)) or made[0]), want)
    assert not made[0].stats()["compiled_calls"]


ONLY_EAGER = {
    "asks for the mode": lambda m, x: checkpoint(lambda y: y * (2.0 if torch.is_grad_enabled() else 2.0), x, use_reentrant=True),
    "gives back what it is given": lambda m, x: checkpoint(lambda y: (y, m[0](y)), x, use_reentrant=True)[0] * 2,
    "a result without gradients": lambda m, x: (lambda a, b: a + b.detach())(*checkpoint(lambda y: (m[0](y), y.detach() * 2), x, use_reentrant=True)),
    "selective": lambda m, x: checkpoint(m[0], x, use_reentrant=False, context_fn=functools.partial(create_selective_checkpoint_contexts, policy)),
    "debug": lambda m, x: checkpoint(m[0], x, use_reentrant=False, debug=True),
}


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("name", ONLY_EAGER)
def test_programs_left_to_eager(name):
    made = []
    run = functools.partial(steps, make=layers, program=ONLY_EAGER[name])
    want = observed(run, lambda f: f)
    same(observed(run, lambda f: made.append(broach.compile(f)) or made[0]), want)
    assert not made[0].stats()["compiled_calls"]


def test_a_function_that_only_looks_like_a_checkpoint_is_called_as_it_is():
    calls = []

    def checkpoint(function, *args, use_reentrant):
        calls.append(1)
        return function(*args) * 2

    f = broach.compile(lambda x: checkpoint(torch.sin, x, use_reentrant=False))
    x = torch.randn(3, requires_grad=True)
    for _ in range(3):
        torch.testing.assert_close(f(x), x.sin() * 2)


def test_torch_is_left_as_it_was():
    module = torch.utils.checkpoint
    before = module.CheckpointFunction, module._checkpoint_without_reentrant_generator
    f = broach.compile(lambda x: checkpoint(torch.sin, x, use_reentrant=False))
    raises = [False]

    def may_raise(y):
        return {False: y.sin()}[raises[0]]

    g = broach.compile(lambda x: checkpoint(may_raise, x, use_reentrant=False))
    for _ in range(3):
        f(torch.randn(3, requires_grad=True))
        g(torch.randn(3, requires_grad=True))
        assert before == (module.CheckpointFunction, module._checkpoint_without_reentrant_generator)
    raises[0] = True
    with pytest.raises(KeyError):
        g(torch.randn(3, requires_grad=True))
    assert before == (module.CheckpointFunction, module._checkpoint_without_reentrant_generator)


@REENTRANT
def test_a_transformer_with_checkpoints(reentrant):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=64, n_positions=32, resid_pdrop=0.1, embd_pdrop=0.1, attn_pdrop=0.1)

    def run(c):
        m = transformers.GPT2LMHeadModel(config).train()
        m.gradient_checkpointing_enable({"use_reentrant": reentrant})
        f, saw = c(lambda ids: m(input_ids=ids, labels=ids, use_cache=False).loss), []
        for n in (8, 8, 12, 12):
            loss = f(torch.randint(64, (2, n)))
            loss.backward()
            saw += [loss, *(p.grad for p in m.parameters())]
            m.zero_grad(set_to_none=True)
        return saw

    stats = held_against_eager(run)
    assert stats["compiled_calls"] >= 1 and not stats["eager_reasons"]


@pytest.mark.parametrize("nested", [False, True])
@REENTRANT
def test_an_error_within_a_checkpoint_leaves_nothing_behind(reentrant, nested):
    """In a process of its own: what was left was destroyed as the interpreter ended, and crashed it."""
    code = f"""
import torch, broach
from torch.utils.checkpoint import checkpoint
inner = lambda x: checkpoint(torch.sin, x * 2, use_reentrant={reentrant}) if {nested} else x.sin()
f = broach.compile(lambda x: checkpoint(lambda x: inner(x) + torch.ones(2, 3), x, use_reentrant={reentrant}))
for n in 2, 2, 2, 7, 2:
    try:
        f(torch.randn(n, 3, requires_grad=True)).sum().backward()
        print("ok")
    except RuntimeError as e:
        print(str(e)[:26])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["ok"] * 3 + ["The size of tensor a (7) m", "ok", ""]


def _beside(effect):
    """An effect in front of a checkpoint, behind one, and where a tensor with a history is written."""

    def before(m, x):
        effect()
        return checkpoint(m, x, use_reentrant=False)

    def behind(m, x):
        y = checkpoint(m, x, use_reentrant=False)
        effect()
        return y

    def written(m, x):
        x = x * 2
        x.mul_(2)
        effect()
        return checkpoint(m, x, use_reentrant=False)

    return before, behind, written


@pytest.mark.parametrize("place", range(3))
def test_what_a_program_does_besides_happens_once(place, capsys):
    """Also where a call is recorded in vain and runs again."""

    def run(c):
        program = _beside(lambda: print(round(random.random(), 6)))[place]
        random.seed(0)
        saw = steps(c, block, program)
        return saw, capsys.readouterr().out

    def history(c):
        program = _beside(lambda: print(round(random.random(), 6)))[place]
        random.seed(0)
        f, m = c(lambda x: program(m, x)), block()
        saw = [f(torch.full((3, 16), i + 1.0, requires_grad=True) * 1).sum() for i in range(6)]
        return saw, capsys.readouterr().out

    for each in (run, history):
        same(observed(each, broach.compile), observed(each, lambda f: f))


@pytest.mark.parametrize("needs", [True, False])
def test_what_a_checkpoint_is_given_is_written_behind_it(needs):
    """Eager keeps it for the second run, and notices."""

    def program(x, y, z):
        v = z + x
        inside = checkpoint(lambda a, b: (a * b).sigmoid() + a.sin(), y / (y * y + 1), v, use_reentrant=False)
        v.mul_(2)
        return (v.amax(1, keepdim=True) - inside).sum()

    compiled = broach.compile(program)
    for _ in range(3):
        x, y = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=needs)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            compiled(x, y, torch.randn(3, 4)).backward()
