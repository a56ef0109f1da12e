"""Eager's errors where what it has kept for gradients was written since, or where a backward has let it go; and none where it kept nothing."""

from __future__ import annotations

import random

import broach
import pytest
import torch
from step_code import Square
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

torch.manual_seed(0)
LINEAR, NORM = nn.Linear(4, 4), nn.BatchNorm1d(4)


def _of_one(make):
    def program(x):
        return make(x.exp())

    return program


PROGRAMS = {
    "sqrt": lambda x: x.exp().sqrt(),
    "amax": lambda x: x.amax(0),
    "norm": lambda x: x.norm(dim=1),
    "relu": lambda x: x.relu(),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "max": lambda x: x.max(1)[::-1],
    "sort": lambda x: x.sort(1)[::-1],
    "logsumexp": lambda x: x.logsumexp(1),
    "batch norm": lambda x: NORM(x),
    "weight": lambda x: x * LINEAR.weight,
    "two sigmoids": lambda x: (x.sigmoid(), x.sigmoid().exp()),
    "shared": _of_one(lambda h: (h * 2, h.sin())),
    "shared linear": _of_one(lambda h: (LINEAR(h) * 2, LINEAR(h) + 1)),
    "apart": lambda x: (x.exp(), x.sin()),
    "nothing kept": lambda x: (x + 1, x * 2),
    "detached": _of_one(lambda h: (h.detach(), h * 2)),
    "window": _of_one(lambda h: (h[:2], h.tanh())),
}


def _write(result):
    with torch.no_grad():
        result.add_(1)


def _all(results):
    return results if isinstance(results, tuple) else (results,)


def _result_written(f, x):
    y = _all(f(x))
    _write(y[0])
    return y[-1:]


def _argument_written(f, x):
    y = _all(f(x))
    _write(x)
    return y[-1:]


def _weights_written(f, x):
    y = _all(f(x))
    for t in (LINEAR.weight, NORM.running_mean, NORM.weight):
        _write(t)
    return y[-1:]


def _in_turn(f, x):
    y = _all(f(x))
    return y if len(y) > 1 else y * 2


def _outcome(f, use):
    state = [t.clone() for m in (LINEAR, NORM) for t in m.state_dict().values()]
    x = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
    try:
        for y in use(f, x * 1):
            if y.requires_grad:
                y.sum().backward()
    except RuntimeError as e:
        for known in ("modified by an inplace operation", "through the graph a second time"):
            if known in str(e):
                return known
        raise
    finally:
        for t, before in zip((t for m in (LINEAR, NORM) for t in m.state_dict().values()), state):
            t.data.copy_(before)
    return x.grad


@pytest.mark.parametrize("use", [_result_written, _argument_written, _weights_written, _in_turn], ids=lambda u: u.__name__[1:])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name, dynamic, use):
    program = PROGRAMS[name]
    compiled = broach.compile(program, dynamic=dynamic)
    with torch.enable_grad():
        for _ in range(4):
            want, got = _outcome(program, use), _outcome(compiled, use)
            assert type(want) is type(got) and (want == got if isinstance(want, str) else torch.allclose(want, got, atol=1e-5)), (want, got)


@pytest.mark.parametrize("asked", [0, 1])
def test_gradients_of_some_alone(asked):
    """Only nodes on the way to what is asked for look at what they keep."""
    weights = [torch.randn(3, 3, requires_grad=True) for _ in range(2)]

    def program(x):
        return (x @ weights[0]).exp() @ weights[1]

    def run(f):
        y = f(torch.ones(2, 3))
        _write(weights[1])
        try:
            return torch.autograd.grad(y.sum(), weights[asked])[0]
        except RuntimeError as e:
            return str(e)[:60]

    compiled = broach.compile(program)
    for _ in range(4):
        before = weights[1].detach().clone()
        seen = []
        for f in (program, compiled):
            weights[1].data.copy_(before)
            seen.append(run(f))
        assert seen[0] == seen[1] if isinstance(seen[0], str) else torch.allclose(*seen, rtol=1e-4), seen


def test_a_custom_function_keeps_what_it_saves():
    compiled = broach.compile(lambda x: Square.apply(x) + 1)
    with torch.enable_grad():
        for _ in range(4):
            x = torch.randn(3, requires_grad=True) * 1
            y = compiled(x)
            _write(x)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()


def test_what_is_retained_may_be_used_again():
    compiled = broach.compile(PROGRAMS["shared"])
    with torch.enable_grad():
        for _ in range(4):
            x = torch.randn(3, requires_grad=True)
            first, second = compiled(x)
            first.sum().backward(retain_graph=True)
            second.sum().backward(retain_graph=True)
            first.sum().backward()
            with pytest.raises(RuntimeError, match="through the graph a second time"):
                second.sum().backward()


def test_what_nodes_keep_nothing_for_may_be_used_again():
    """Beside what is let go, and where a backward goes another way."""
    weight = torch.randn(3, requires_grad=True)

    def program(x):
        return (x * weight).sin(), x + 1, x * 2

    compiled = broach.compile(program)
    with torch.enable_grad():
        for _ in range(4):
            seen = []
            for f in (program, compiled):
                x = torch.ones(3, requires_grad=True)
                a, b, c = f(x)
                torch.autograd.grad(a.sum(), weight, allow_unused=True, retain_graph=True)
                b.sum().backward(), b.sum().backward()
                assert torch.autograd.grad(c.sum(), weight, allow_unused=True) == (None,)
                c.sum().backward()
                a.sum().backward()
                b.sum().backward()
                for used in (a, c):
                    with pytest.raises(RuntimeError, match="through the graph a second time"):
                        used.sum().backward()
                seen.append(x.grad)
            torch.testing.assert_close(*seen)
        assert compiled.stats()["compiled_calls"] >= 2


def test_what_is_saved_is_freed_by_a_backward_for_some_tensors():
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(3)]

    def program(x):
        for w in weights:
            x = (x @ w).sin()
        return x.sum()

    compiled = broach.compile(program)
    with torch.enable_grad():
        for call in range(4):
            x = torch.randn(1000, 64)
            held = StorageWeakRef(x.untyped_storage())
            y = compiled(x)
            del x
            torch.autograd.grad(y, weights[2])
            assert call == 0 or held.expired()
            with pytest.raises(RuntimeError, match="through the graph a second time"):
                torch.autograd.grad(y, weights[0])


ONE = (
    torch.sin, torch.exp, torch.sigmoid, torch.relu, torch.tanh, torch.clone, lambda t: t * 2, lambda t: t + 1, lambda t: t * t,
    lambda t: (t * t + 1).sqrt(), lambda t: t.softmax(-1), lambda t: t.detach() * 2 + t, lambda t: t.view(3, 3).t(),
)  # fmt: skip
TWO = (torch.mul, torch.matmul, torch.add, torch.maximum, lambda a, b: torch.where(a > 0, a, b), lambda a, b: a / (b * b + 1))
DO = ("backward", "backward", "retain", "grad x", "grad w", "write result", "write x", "write w")


def _random_program(draw):
    steps = []
    for known in range(2, 2 + draw.randint(2, 7)):
        functions, count = (ONE, 1) if draw.random() < 0.6 else (TWO, 2)
        steps.append((draw.choice(functions), [draw.randrange(known) for _ in range(count)]))
    given = [draw.randrange(2, 2 + len(steps)) for _ in range(draw.randint(1, 3))]

    def program(x, w):
        values = [x, w]
        for function, operands in steps:
            values.append(function(*(values[i] for i in operands)))
        return tuple(values[i] for i in given)

    return program


KINDS = ("modified by an inplace", "second time")


def _done(f, actions, seed):
    """What each action came to; the first of eager's errors is the last, as it leaves half of the work done."""
    torch.manual_seed(seed)
    leaf, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    x, seen = leaf * 1, []
    results = f(x, w)
    for action, which in actions:
        y = results[int(which * len(results))]
        try:
            if action in ("backward", "retain"):
                y.sum().backward(retain_graph=action == "retain")
            elif action.startswith("grad"):
                seen.append(torch.autograd.grad(y.sum(), x if action == "grad x" else w, allow_unused=True)[0])
            else:
                _write({"write x": x, "write w": w}.get(action, y))
        except RuntimeError as e:
            told = next((m for m in (*KINDS, "not require grad") if m in str(e)), None)
            if told != "not require grad":
                return [*seen, told or str(e)]
            seen.append(told)
    return [*seen, leaf.grad, w.grad]


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_programs(first):
    for seed in range(first, first + 50):
        draw = random.Random(seed)
        program = _random_program(draw)
        compiled = broach.compile(program, dynamic=None if seed % 2 else True)
        with torch.enable_grad():
            for call in range(8):
                actions = [(draw.choice(DO), draw.random()) for _ in range(draw.randint(1, 4))]
                want, have = _done(program, actions, call), _done(compiled, actions, call)
                raised = isinstance(have[-1], str) and have[-1] in KINDS
                # Which of two errors comes first is not eager's; an argument that was written may be needed where eager does not keep it.
                if raised and (isinstance(want[-1], str) or ("write" in str(actions) and have[-1] == KINDS[0])):
                    continue
                assert len(want) == len(have), (seed, call, want, have)
                for a, b in zip(want, have):
                    assert a == b if not isinstance(a, torch.Tensor) else torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True), (seed, call)
        assert compiled.stats()["compiled_calls"] >= 5, seed
