"""What a program is given may be the result of another: what it does to such a tensor, and what it gives back of it, is eager's from the
first call on."""

import numpy
import pytest
import torch
from gradient_programs import Programs, check, leaf, raised, with_gradients  # noqa: F401
from torch import nn

import broach

PROGRAMS = program = Programs()
KEPT = []


def calls(c, fn, make=lambda x: (x * 2,), sizes=(2, 2), times=4):
    """`fn` on what `make` makes of a new leaf: what it gives, what became of that, and the leaf's gradient."""
    f, saw = c(fn), []
    for _ in range(times):
        x = leaf(*sizes)
        given = make(x)
        out = f(*given)
        outs = [o for o in (out if isinstance(out, (list, tuple)) else [out]) if isinstance(o, torch.Tensor)]
        total = sum((o * torch.rand(o.shape)).sum() for o in outs if o.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
        saw.append([[o.detach().clone() for o in outs], [g.detach().clone() for g in given], x.grad])
    return saw


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 0.5


class Flat(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view(-1)

    @staticmethod
    def backward(ctx, g):
        return g.view(2, 2) * 3


class Detached(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.detach()

    @staticmethod
    def backward(ctx, g):
        return g * 7


@program
def a_custom_function_gives_it_back(c):
    return [calls(c, fn) for fn in (Halved.apply, Flat.apply, Detached.apply, lambda x: Halved.apply(x) + 0 * x)]


@program
def a_hook_on_it(c):
    def doubled(x):
        x.register_hook(lambda g: g * 2)
        return x, x * x

    def of_a_view(x):
        x.register_hook(lambda g: g * 5)
        return x.view(-1)

    def on_a_view(x):
        y = x.view(-1)
        y.register_hook(lambda g: g * 7)
        return y

    return [calls(c, fn) for fn in (doubled, of_a_view, on_a_view)]


@program
def it_gets_other_elements(c):
    def set_(x):
        with torch.no_grad():
            x.set_(torch.arange(4.0).reshape(2, 2))
        return x * 3

    def data(x):
        x.data = torch.zeros(5)
        return (x * 2).detach()

    return [calls(c, fn) for fn in (set_, data)]


@program
def it_gets_attributes_and_gradients(c):
    def attribute(x):
        x.note = len(KEPT)
        return x * 3

    def gradient(x):
        x.grad = torch.zeros(2, 2)
        return x * 3

    def retained(x):
        x.retain_grad()
        return x.sin()

    saw = []
    for fn in (attribute, gradient, retained):
        f = c(fn)
        for _ in range(3):
            x = leaf(2, 2) * 2
            f(x).sum().backward(retain_graph=True)
            saw.append([x.retains_grad, getattr(x, "note", None), x.grad if fn is not attribute else None])
    return saw


@program
def a_backward_within(c):
    def again(x):
        (x * x).sum().backward(retain_graph=True)
        return x * 1

    def once(x):
        (x * x).sum().backward()
        return x.detach()

    return [calls(c, fn) for fn in (again, once)]


@program
def views_of_one_tensor(c):
    base = lambda x: (x * 2).detach().requires_grad_()  # noqa: E731

    def pair(x):
        y = x * 2
        return y.view(-1), y[0]

    def whole(x):
        y = x * 2
        return y, y[0]

    programs = (lambda a, b: (a.view(a.shape), b.view(b.shape)), lambda a, b: (a[1:], b.view(b.shape)), lambda a, b: (a.view(-1), b * 2))
    return [calls(c, fn, make) for fn in programs for make in (pair, whole, lambda x: (base(x), x * 3))]


@program
def results_that_are_no_tensors(c):
    programs = [
        lambda x: x.detach().numpy().tolist(),
        lambda x: (x.detach().numpy().sum() > -1e9, x * 1),
        lambda x: type(x.untyped_storage()).__name__,
        lambda x: bytearray(b"a"),
        lambda x: numpy.add(x.detach().numpy(), 1).shape,
    ]
    saw = []
    for fn in programs:
        f = c(fn)
        saw += [repr(type(f(leaf(3) * 2))) for _ in range(3)]
    arrays = c(lambda x: (x * 2).detach().numpy())
    return [*saw, *(type(arrays(leaf(3) * 2)).__name__ for _ in range(3))]


class Named(torch.Tensor):
    pass


@program
def it_gets_another_class(c):
    def renamed(x):
        x.__class__ = Named
        return x * 1

    f, saw = c(renamed), []
    for _ in range(3):
        x = leaf(2) * 2
        saw.append([type(f(x)).__name__, type(x).__name__])
    return saw


@program
def it_is_kept_and_compared(c):
    class Holder:
        kept = None

    holder, seen, now = Holder(), [], [None]

    def keep(x):
        seen.append(x)
        holder.kept = x
        return x * 2

    def compared(x):
        return x * 2 if x is now[0] else x * 3

    def key(x):
        return x * {x: 4}[x]

    saw = []
    for fn in (keep, compared, key):
        f = c(fn)
        for _ in range(3):
            now[0] = x = leaf(2) * 2
            f(x).sum().backward()
            saw.append([holder.kept is x, bool(seen) and seen[-1] is x])
    return saw


@program
def its_history_leads_to_what_the_program_holds(c):
    weight = leaf(3, 3)
    f, saw = c(lambda x: (x @ weight).tanh()), []
    for _ in range(4):
        weight.grad = None
        x = leaf(2, 3)
        f(x @ weight).sum().backward()
        saw.append([weight.grad, x.grad])
    return saw


@program
def its_history_leads_to_another_argument(c):
    f, saw = c(lambda x, y: (x * y).tanh() + y), []
    for _ in range(4):
        x = leaf(3)
        y = x.sin()
        f(y, y.exp()).sum().backward(retain_graph=True)
        f(x, y).sum().backward(retain_graph=True)
        q, k = (x * 2).view(3, 1).unbind(1)[0], x * 3
        f(q, k).sum().backward()
        saw.append(x.grad)
    return saw


@program
def views_of_complex_numbers(c):
    programs = [lambda x: (x.real, x * 1), lambda x: (x * 2j, x.imag), lambda x: (torch.view_as_real(x), x + x.conj()), lambda x: (x.conj(), x * 2)]
    saw = []
    for fn in programs:
        f = c(fn)
        for _ in range(3):
            x = leaf(4, dtype=torch.complex64)
            outs = f(x * 1)
            saw.append([o.requires_grad for o in outs])
            sum(o.abs().sum() for o in outs).backward()
            saw.append(x.grad)
    return saw


@program
def what_saves_nothing_is_differentiated_twice(c):
    f, saw = c(lambda a, b: (a + b, a - b)), []
    for _ in range(3):
        a, b = leaf(3), leaf(3)
        out = f(a, b)
        for _ in range(2):
            (out[0] * torch.arange(3.0)).sum().backward()
        saw += [a.grad, b.grad]
    g = c(lambda a, b: (a * b).tanh())
    for _ in range(3):
        a, b = leaf(3), leaf(3)
        out = g(a, b).sum()
        out.backward()
        saw += [a.grad, raised(lambda: out.backward())]
    return saw


@program
def hooks_for_accumulated_gradients(c):
    def on_leaf(x):
        x.register_post_accumulate_grad_hook(lambda p: KEPT.append("hook"))
        return x * 2

    f, saw = c(on_leaf), []
    for _ in range(3):
        KEPT.clear()
        f(leaf(3)).sum().backward()
        saw.append(list(KEPT))
    return saw


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(fn):
    check(fn)


@pytest.mark.parametrize("size", [(3, 4, 5, 5), (3, 4, 5, 5, 5)])
def test_group_norm_of_channels_last_without_its_operands_gradient(size):
    """Eager's backward writes to memory that it did not get: the forward must not run into it."""
    theirs = nn.GroupNorm(2, 4)
    x = torch.randn(size).contiguous(memory_format=torch.channels_last if len(size) == 4 else torch.channels_last_3d)
    compiled = broach.compile(theirs)
    torch.testing.assert_close(compiled(x), theirs(x))  # the run of eager's that is captured
    for _ in range(2):
        got = compiled(x)
        torch.testing.assert_close(got, theirs(x))
        grads = torch.autograd.grad(got.sum(), theirs.parameters())
        torch.testing.assert_close(grads, torch.autograd.grad(theirs(x.contiguous()).sum(), theirs.parameters()))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("compiled", [broach.compile, lambda f, **o: torch.compile(f, backend="broach", **o)], ids=["native", "dynamo"])
def test_what_is_written_and_not_given_back_gets_its_history(compiled, dynamic):
    def scale(x):
        x.mul_(2)

    def scale_and_squeeze(x):
        x.mul_(3)
        return x.squeeze_(0)

    for fn, factor in ((scale, 2.0), (scale_and_squeeze, 3.0)):
        call = compiled(fn, dynamic=dynamic)
        for rows in (2, 2, 3, 4):
            x = torch.ones(rows, 3, requires_grad=True)
            y = x * 1
            call(y)
            y.sum().backward()
            torch.testing.assert_close(x.grad, torch.full((rows, 3), factor))


@pytest.mark.parametrize("draws", [lambda x: torch.dropout(x, 0.5, True), lambda x: x * torch.rand_like(x)], ids=["dropout", "rand"])
def test_batches_of_gradients_of_what_draws(draws):
    def batch(fn):
        torch.manual_seed(0)
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        out = fn(x).reshape(-1)
        return torch.autograd.grad(out, x, torch.eye(out.numel()), is_grads_batched=True)[0]

    compiled = broach.compile(draws)
    for _ in range(3):
        torch.testing.assert_close(batch(compiled), batch(draws))


@torch.no_grad()
def test_strides_that_a_program_asks_another_tensor_for():
    def like(x):
        return torch.empty_strided(x.size(), x.stride()).fill_(1)

    compiled = broach.compile(like)
    wide = torch.randn(16, 16)
    for x in (wide[:, :8], torch.randn(16, 8), torch.randn(17, 9), torch.randn(32, 16), torch.randn(8, 16).t(), wide[:, :8]):
        assert compiled(x).stride() == like(x).stride()
