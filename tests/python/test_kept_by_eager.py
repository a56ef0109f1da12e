"""Eager's errors where what it has kept for gradients was written since, or where a backward has let it go; and none where it kept nothing."""

from __future__ import annotations

import broach
import pytest
import torch
from torch import nn

torch.manual_seed(0)
LINEAR, NORM, LOG_SCALE = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Parameter(torch.randn(4))


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


def _result_written(f, x):
    y = f(x)
    _write(y[0] if isinstance(y, tuple) else y)
    return y[-1:] if isinstance(y, tuple) else [y]


def _argument_written(f, x):
    y = f(x)
    _write(x)
    return y[-1:] if isinstance(y, tuple) else [y]


def _weights_written(f, x):
    y = f(x)
    for t in (LINEAR.weight, NORM.running_mean, NORM.weight):
        _write(t)
    return y[-1:] if isinstance(y, tuple) else [y]


def _in_turn(f, x):
    y = f(x)
    return y if isinstance(y, tuple) else [y, y]


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
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g * ctx.saved_tensors[0]

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
