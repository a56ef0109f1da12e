"""Programs whose gradients eager alone knows, and gradients of indexing."""

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint

import broach

pytestmark = pytest.mark.usefixtures("with_gradients")


def _checkpointed_dropout(x, m):
    return torch.utils.checkpoint.checkpoint(lambda z: F.dropout(m(z), 0.5), x, use_reentrant=False)


def _checkpointed_statistics(x, m):
    return torch.utils.checkpoint.checkpoint(lambda z: F.batch_norm(m(z), None, None, training=True), x, use_reentrant=False)


def _hook_and_kept_gradient(x, m):
    y = m(x)
    y.register_hook(lambda g: g * 3)
    y.retain_grad()
    _hook_and_kept_gradient.last = y
    return y.exp()


def _removed_hook(x, m):
    y = m(x)
    y.register_hook(lambda g: g * 3).remove()
    return y.exp()


def _backward_inside(x, m):
    loss = m(x).sum()
    loss.backward(retain_graph=True)
    return loss * 1


def _backward_of_another(x, m):
    (x * m.weight.sum()).sum().backward()
    return m(x)


def _reads_a_value(x, m):
    y = m(x)
    return y * 2 if y.sum().item() > 0 else y * 3


@pytest.mark.parametrize(
    "program",
    [_checkpointed_dropout, _checkpointed_statistics, _hook_and_kept_gradient, _removed_hook, _backward_inside, _backward_of_another, _reads_a_value],
)
def test_programs_that_only_eager_knows_the_gradients_of(program):
    seen = []
    for compile in (lambda f: f, broach.compile):
        torch.manual_seed(0)
        m = torch.nn.Linear(4, 4)
        run, saw = compile(lambda x, m=m: program(x, m)), []
        for i in range(7):
            x = (torch.linspace(-1, 2, 12).view(3, 4).cos() * (i + 1)).requires_grad_()  # whose columns vary, as statistics need
            if i == 5:
                m.register_forward_hook(lambda module, given, result: result * 2)
            run(x).sum().backward()
            kept = getattr(program, "last", None)
            saw += [x.grad, m.weight.grad.clone(), None if kept is None else kept.grad, torch.get_rng_state().sum()]
        seen.append(saw)
    for want, got in zip(*seen, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("index", [(slice(None), "i"), ("i",), ("i", "i")])
def test_gradients_of_what_is_taken_by_index_are_compiled(index):
    f = broach.compile(lambda x, i: x[tuple(i if k == "i" else k for k in index)].sin())
    for n in range(4):
        x = torch.randn(5, 6, requires_grad=True)
        i = torch.randint(-5, 5, (7,), generator=torch.Generator().manual_seed(n))
        (got,) = torch.autograd.grad(f(x, i).sum(), x)
        (want,) = torch.autograd.grad(x[tuple(i if k == "i" else k for k in index)].sin().sum(), x)
        torch.testing.assert_close(got, want)
    assert f.stats()["compiled_calls"] >= 3


def test_a_custom_function_keeps_its_own_jvp():
    class Sine(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def jvp(ctx, tangent):
            return tangent * 9

    f = broach.compile(lambda x: torch.func.jvp(Sine.apply, (x,), (torch.ones_like(x),))[1])
    for _ in range(6):
        torch.testing.assert_close(f(torch.ones(2)), torch.full((2,), 9.0))


def test_gradients_that_a_program_accumulates_where_the_caller_wants_none():
    m = torch.nn.Linear(4, 4)

    def program(x):
        with torch.enable_grad():
            loss = m(x).square().sum()
            loss.backward()
        return loss.detach() * 2

    f, x = broach.compile(program), torch.randn(3, 4)
    with torch.no_grad():
        for _ in range(5):
            m.weight.grad = None
            program(x)
            want, m.weight.grad = m.weight.grad, None
            f(x)
            torch.testing.assert_close(m.weight.grad, want)


def test_a_parameter_that_gets_other_sizes_while_a_graph_with_its_gradient_is_alive():
    seen = []
    for compile in (lambda f: f, broach.compile):
        w, gradients = torch.nn.Parameter(torch.ones(1)), []
        f = compile(lambda x, w=w: x * w)
        alive = torch.ones(3, 4) * w  # whose node reduces gradients to one element
        w.data = torch.ones(4)
        for i in range(6):
            gradients += torch.autograd.grad(f(torch.ones(3, 4)).sum(), w)
            if i == 2:
                del alive
        seen.append(gradients)
    for want, got in zip(*seen, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("since", [0, 2], ids=["from the first call", "after others"])
def test_a_view_that_is_older_than_its_bases_gradients(since: int) -> None:
    def program(y, m):
        return m(y).exp(), (y * 2).sum()

    m = torch.nn.Linear(3, 3)
    compiled = broach.compile(program)
    for i in range(since + 3):
        x = torch.randn(2, 3)
        y = x[:] if i >= since else x
        x.requires_grad_()
        grads = []
        for f in (compiled, program):
            m.zero_grad()
            x.grad = None
            a, b = f(y, m)
            (a.sum() + b).backward()
            grads.append([x.grad, *(p.grad for p in m.parameters())])
        for have, want in zip(*grads, strict=True):
            assert (have is None) == (want is None)
            if want is not None:
                torch.testing.assert_close(have, want)
