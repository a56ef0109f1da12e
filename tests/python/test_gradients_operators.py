"""Gradients that an operator's author registered, gradients of copies, and results that are views of other results: all compiled."""

import pytest
import torch
from gradient_programs import check, leaf, observed, raised, same, stepping

import broach

pytestmark = pytest.mark.usefixtures("with_gradients")


@torch.library.custom_op("broach_tests::scaled_cube", mutates_args=())
def scaled_cube(x: torch.Tensor, y: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x**3 * n, x * y


@torch.library.custom_op("broach_tests::scaled_cube_backward", mutates_args=())
def scaled_cube_backward(g: torch.Tensor, x: torch.Tensor, n: int) -> torch.Tensor:
    return g * 3 * x * x * n


def _remember(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.n = inputs[2]


def _scaled_cube_gradient(ctx, g, h):
    x, y = ctx.saved_tensors
    gx = scaled_cube_backward(g, x, ctx.n) + h * y
    return gx, (h * x if ctx.needs_input_grad[1] else None), None


scaled_cube.register_fake(lambda x, y, n: (torch.empty_like(x), torch.empty_like(x)))
scaled_cube_backward.register_fake(lambda g, x, n: torch.empty_like(x))
scaled_cube.register_autograd(_scaled_cube_gradient, setup_context=_remember)


def compiled_calls(program, make, calls=6):
    """Holds the program against eager, and says how many calls ran what was compiled."""
    made = []

    def compile(f):
        made.append(broach.compile(f))
        return made[-1]

    want = observed(lambda c: stepping(c, program, make, calls), lambda f: f)
    have = observed(lambda c: stepping(c, program, make, calls), compile)
    same(have, want)
    told = made[0].stats()
    assert not told["eager_reasons"] and not told["reasons"], (told["eager_reasons"], told["reasons"])
    return told["compiled_calls"]


def test_registered_gradients():
    def program(x, y):
        a, b = scaled_cube(x.sin(), y, 2)
        return a.cos() + b

    assert compiled_calls(program, lambda: (leaf(3, 4), leaf(3, 4))) >= 3
    assert compiled_calls(program, lambda: (leaf(3, 4), torch.randn(3, 4))) >= 3


def test_registered_gradients_of_one_result():
    def program(c):
        f, saw = c(lambda x, y: scaled_cube(x.sin(), y, 2)), []
        for i in range(6):
            x, y = leaf(4), leaf(4)
            saw += list(torch.autograd.grad(f(x, y)[i % 2].sum(), (x, y), allow_unused=True, materialize_grads=True))
        return saw

    check(program)


def test_registered_gradients_of_changing_sizes():
    sizes = iter([3, 4, 5, 6, 7, 8] * 4)
    assert compiled_calls(lambda x, y: scaled_cube(x.sin(), y, 3)[0].exp(), lambda: (leaf(n := next(sizes), 2), leaf(n, 2))) >= 3


def test_gradients_of_registered_gradients():
    def program(c):
        f, saw = c(lambda x, y: scaled_cube(x.sin(), y, 2)[1].exp()), []
        for _ in range(5):
            x, y = leaf(4), leaf(4)
            (g,) = torch.autograd.grad(f(x, y).sum(), y, create_graph=True)
            saw += [g, raised(lambda: torch.autograd.grad(g.sum(), x)[0])]
        return saw

    check(program)


def test_gradients_of_copies():
    def program(x, y):
        z = torch.zeros(4, 3)
        z[1] = x
        z.copy_(y.expand(4, 3) * x)
        return z.sin()

    assert compiled_calls(program, lambda: (leaf(3), leaf(3))) >= 3
    assert compiled_calls(lambda x, y: torch.empty(3).copy_(x.double()) * y, lambda: (leaf(3), leaf(3))) >= 3


# ---- results in the memory of another ----


def _with_views(x, w):
    y = (x @ w).tanh()
    return y, y[:, 0], y.t()


def _with_its_view_first(x, w):
    y = (x @ w).tanh()
    return y[:, 1:], y, y.view(-1)


def _detached(x, w):
    y = (x @ w).tanh()
    return y, y.detach(), y[0].detach()


def _written_through_a_view(x, w):
    y = x @ w + 1
    first = y[0]
    first.mul_(2)
    return y, first


def _tuple_of_parts(x, w):
    y = (x @ w).tanh()
    return (y, *y.unbind(0))


@pytest.mark.parametrize("program", [_with_views, _with_its_view_first, _written_through_a_view, _tuple_of_parts])
def test_views_of_results(program):
    assert compiled_calls(program, lambda: (leaf(3, 4), leaf(4, 3))) >= 3


@pytest.mark.parametrize("program", [_with_views, _with_its_view_first, _written_through_a_view])
def test_views_of_results_of_changing_sizes(program):
    sizes = iter([3, 4, 5, 6, 7, 8] * 2)
    assert compiled_calls(program, lambda: (leaf(next(sizes), 4), leaf(4, 3))) >= 3


@pytest.mark.parametrize("of", [0, 1, 2])
def test_gradients_of_one_of_several_views(of):
    def program(c):
        f, saw = c(_with_views), []
        for _ in range(5):
            x, w = leaf(3, 4), leaf(4, 3)
            out = f(x, w)
            saw += [*torch.autograd.grad(out[of].exp().sum(), (x, w), retain_graph=True), *torch.autograd.grad(out[0].sum(), (x, w))]
        return saw

    check(program)


def test_detached_results():
    def program(c):
        f, saw = c(_detached), []
        for i in range(6):
            x, w = leaf(3, 4), leaf(4, 3)
            y, same_memory, row = f(x, w)
            saw += [y, same_memory, row, same_memory.data_ptr() == y.data_ptr(), same_memory.requires_grad, row.is_leaf]
            if i % 2:
                same_memory.mul_(2)
            saw += [y.detach().clone(), raised(lambda: torch.autograd.grad(y.sum(), x)[0])]
        return saw

    check(program)


def test_results_and_their_views_that_are_written():
    def program(c):
        f, saw = c(_with_views), []
        for i in range(6):
            x, w = leaf(3, 4), leaf(4, 3)
            y, column, _ = f(x, w)
            if i % 2:
                column.mul_(3)
            saw += [y.detach().clone(), column.detach().clone(), raised(lambda: torch.autograd.grad((y * column[:, None]).sum(), x)[0])]
        return saw

    check(program)


@pytest.mark.parametrize("of_input", [True, False])
def test_hooks_of_views_within_the_program(of_input):
    def program(x):
        y = x if of_input else x.sin()
        view = y[1:]
        view.register_hook(lambda g: g * 3)
        return y * 2 if of_input else y, view

    def run(c):
        f, saw = c(program), []
        for _ in range(5):
            x = leaf(4)
            y, view = f(x)
            saw += list(torch.autograd.grad(view.sum() + y.sum(), x))
        return saw

    check(run)
