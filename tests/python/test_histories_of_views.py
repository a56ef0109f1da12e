"""Views of a program's arguments as its results: whose history they have, with gradients for one, for the other, and for both."""

from __future__ import annotations

import broach
import pytest
import torch


@pytest.fixture(autouse=True)
def _gradients():
    with torch.enable_grad():
        yield


def _described(program, arguments, leaf):
    """What the caller of a program sees of its first result and of the leaf."""
    y = program(*arguments)
    y = y[0] if isinstance(y, (tuple, list)) else y
    told = [y.requires_grad, y.is_leaf, y.tolist()]
    if not y.requires_grad:
        return told
    tangent = torch.arange(2.0, 2.0 + y.numel()).view(y.shape)
    y.backward(tangent)
    return [*told, *(None if t is None else t.tolist() for t in (leaf.grad, y.grad if y.is_leaf else None))]


@pytest.mark.parametrize("program", [
    lambda x, part: [x.contiguous().narrow(0, 0, 2)],
    lambda x, part: x.view(-1)[:2],
    lambda x, part: x[1:],
    lambda x, part: part[:1],
    lambda x, part: part.view(-1),
    lambda x, part: part,
    lambda x, part: x * 1,
    lambda x, part: (x[:2], part * 2),
    lambda x, part: x[:2] + part[:2],
])  # fmt: skip
@pytest.mark.parametrize("step", [slice(None, None, 2), slice(1, None), slice(0, 2)])
def test_a_leaf_and_a_view_of_it(program, step):
    compiled = broach.compile(program)
    for _ in range(3):
        told = []
        for f in (program, compiled):
            x = torch.ones(3, requires_grad=True)
            told.append(_described(f, (x, x[step]), x))
        assert told[1] == told[0]


@pytest.mark.parametrize("needs", [False, True])
@pytest.mark.parametrize("program", [
    lambda x: x.detach().requires_grad_(),
    lambda x: x.detach().requires_grad_().view(-1),
    lambda x: (x.detach().requires_grad_()[1:], x * 2),
    lambda x: x.detach()[:2].requires_grad_(),
    lambda x: x.detach(),
    lambda x: x.view(-1)[:3],
])  # fmt: skip
def test_what_the_program_lets_need_gradients(program, needs):
    compiled = broach.compile(program)
    for _ in range(4):
        told = []
        for f in (program, compiled):
            x = torch.arange(4.0).requires_grad_(needs)
            told.append(_described(f, (x,), x))
        assert told[1] == told[0]


def test_views_of_a_part_of_a_buffer():
    """Which needs gradients, unlike the buffer: its views are compiled."""
    program = lambda v: (v.view(3, 1), v * 2)  # noqa: E731
    compiled = broach.compile(program)
    for _ in range(4):
        told = []
        for f in (program, compiled):
            part = torch.arange(6.0)[:3].requires_grad_()
            a, b = f(part)
            (a.sum() * 3 + b.sum()).backward()
            told.append((part.grad.tolist(), a.requires_grad, a.is_leaf))
        assert told[1] == told[0]
    assert compiled.stats()["compiled_calls"] >= 2, broach.explain(compiled, torch.arange(6.0)[:3].requires_grad_())


def test_a_slice_that_is_let_need_gradients():
    def program(x):
        y = x[:2]
        y.requires_grad = True
        return y

    compiled = broach.compile(program)
    for _ in range(3):
        x = torch.arange(4.0)
        assert _described(compiled, (x,), x) == _described(program, (torch.arange(4.0),), x)


@pytest.mark.parametrize("further", [lambda v: v.view(-1), lambda v: v.t(), lambda v: v, lambda v: v[0], lambda v: v * 2])
def test_a_view_made_without_gradients(further):
    def program(x):
        with torch.no_grad():
            v = x.narrow(0, 1, 2)
        return further(v)

    compiled = broach.compile(program)
    for _ in range(3):
        told = []
        for f in (program, compiled):
            x = torch.ones(4, 3, requires_grad=True)
            y = f(x)
            told.append((y.requires_grad, torch.autograd.grad(y.sum(), x, allow_unused=True)[0]))
        assert str(told[1]) == str(told[0])


def test_an_attribute_written_beside_a_view_is_written_once():
    def program(x, part, other):
        other.data = other.data * 2
        return other * 1

    compiled = broach.compile(program)
    for _ in range(3):
        x, other = torch.ones(3, requires_grad=True), torch.ones(3)
        assert compiled(x, x[1:], other).tolist() == other.tolist() == [2.0] * 3


class _Holder:
    last = None


def test_one_of_several_views_whose_memory_was_written():
    """Eager raises an error for whoever asks for its history, but nobody does."""
    holder = _Holder()

    def program(x):
        holder.last = x.chunk(2, 0)[0]
        return x * 2

    def run(f):
        holder.last, told = None, []
        x = torch.ones(2, 3, requires_grad=True)
        for _ in range(4):
            told.append(f(x).sum().item())
            with torch.no_grad():
                x.add_(1)
        return told

    assert run(broach.compile(program)) == run(program)


def test_a_result_whose_history_is_lost():
    def program(x):
        a, b = x.split([1, 1], 0)
        with torch.no_grad():
            torch.square(x[1:], out=b)
        return a

    compiled = broach.compile(program)
    for _ in range(3):
        a = compiled(torch.ones(2, 3, requires_grad=True))
        with torch.no_grad():
            assert torch.equal(a.detach(), torch.ones(1, 3))
        with pytest.raises(RuntimeError, match="is a view and its base or another view"):
            a.sum().backward()


@pytest.mark.parametrize("ask", ["create_graph", "jacobian"])
def test_gradients_of_gradients_through_a_view_written_in_place(ask):
    def program(y):
        v = y.flip(0).unsqueeze(0)[0]
        v += y
        return v

    def run(f):
        y = torch.arange(12.0).reshape(3, 4).requires_grad_()
        if ask == "jacobian":
            return torch.autograd.functional.jacobian(lambda y: f(y).pow(2), y, vectorize=True)
        (g,) = torch.autograd.grad(f(y).pow(2).sum(), y, create_graph=True)
        return torch.autograd.grad(g.pow(2).sum(), y)[0]

    compiled = broach.compile(program)
    for _ in range(3):
        torch.testing.assert_close(run(compiled), run(program))


def test_gaps_of_an_argument_are_written_once():
    def program(x):
        v = x.as_strided((2, 2), (2, 1), 1)
        v += 3
        return v

    compiled = broach.compile(program)
    for has_gaps in (False, True, True, False):
        told = []
        for f in (program, compiled):
            memory = torch.zeros(2, 2, 7)
            x = memory[..., 1::2] if has_gaps else torch.zeros(2, 2, 3)
            told.append((f(x).tolist(), memory.tolist(), x.tolist()))
        assert told[1] == told[0]


class _Thrice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


@pytest.mark.parametrize("program", [_Thrice.apply, lambda x: _Thrice.apply(x).t(), lambda x: (_Thrice.apply(x), x.t()), lambda x: _Thrice.apply(x) * 2])
@pytest.mark.parametrize("look", ["hook", "retain", "nothing"])
def test_a_functions_view_of_what_has_a_history(program, look):
    compiled = broach.compile(lambda x: program(x))
    for _ in range(3):
        told = []
        for f in (program, compiled):
            leaf = torch.ones(2, 2, requires_grad=True)
            x = leaf * 1.25
            if look == "hook":
                x.register_hook(lambda g: g * 1.5)
            elif look == "retain":
                x.retain_grad()
            y = f(x)
            (y[0] if isinstance(y, tuple) else y).sum().backward()
            told.append((leaf.grad.tolist(), x.grad.tolist() if look == "retain" else None))
        assert told[1] == told[0]
