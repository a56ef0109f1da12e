"""Arguments and results of all kinds."""

import collections
import dataclasses
import functools
import threading

import pytest
import torch
from gradient_programs import Programs, check, grads, leaf, mlp, raised, stepping, with_gradients  # noqa: F401
import torch.nn.functional as F
from torch import nn

import broach

PROGRAMS = program = Programs()


# ---- arguments and results ----


@dataclasses.dataclass
class Result:
    loss: torch.Tensor
    parts: dict
    note: str = ""


Pair = collections.namedtuple("Pair", "a b")


@program
def structured_results(c):
    f, saw = c(lambda x: {"a": x * 2, "b": [x.sin(), (x.exp(), None)], "p": Pair(x, 3), "n": "text"}), []
    for _ in range(4):
        x = leaf(3)
        r = f(x)
        (r["a"] + r["b"][0] * r["b"][1][0]).sum().backward()
        saw += [list(r), r["p"].b, type(r["p"]).__name__, r["p"].a is x, x.grad]
    return saw


@program
def dataclass_result(c):
    f, saw = c(lambda x: Result((x * x).sum(), {"x": x.detach() * 2}, "n")), []
    for _ in range(4):
        x = leaf(3)
        r = f(x)
        r.loss.backward()
        saw += [type(r).__name__, r.loss, r.parts, r.note, x.grad]
    return saw


@program
def keyword_and_plain_arguments(c):
    def fn(x, scale=1.0, *, mode="sin", w=None):
        y = getattr(x, mode)() * scale
        return y if w is None else y * w

    f, saw = c(fn), []
    for scale, mode in ((2.0, "sin"), (2.0, "sin"), (3.0, "sin"), (3.5, "cos"), (3.5, "cos"), (4, "sin")):
        x, w = leaf(3), leaf(3)
        f(x, scale, mode=mode, w=w).sum().backward()
        saw += [x.grad, w.grad]
        f(x=x, scale=scale).sum().backward()
        saw.append(x.grad)
    return saw


@program
def lists_and_dicts_of_tensors(c):
    f, saw = c(lambda xs, d: sum(x * d["k"] for x in xs)), []
    for _ in range(4):
        xs, d = [leaf(3), leaf(3), torch.randn(3)], {"k": leaf(3)}
        f(xs, d).sum().backward()
        saw += [[x.grad for x in xs], d["k"].grad]
    return saw


@program
def same_tensor_passed_twice(c):
    f, saw = c(lambda x, y: x * y.exp()), []
    for i in range(6):
        x = leaf(3)
        y = x if i % 2 else leaf(3)
        f(x, y).sum().backward()
        saw += [x.grad, y.grad]
    return saw


@program
def inputs_that_share_memory(c):
    f, saw = c(lambda a, b: a * b), []
    for _ in range(4):
        x = leaf(4)
        f(x[:3], x[1:]).sum().backward()
        saw.append(x.grad)
    return saw


@program
def complex_numbers(c):
    return stepping(c, lambda x, y: ((x * y.conj()).exp(), (x * x.conj()).real, x.abs()), lambda: [leaf(3, dtype=torch.complex64), leaf(3, dtype=torch.complex64)])


@program
def complex_and_real(c):
    return stepping(c, lambda x, y: torch.view_as_real(torch.complex(x, y) * (1 + 2j)), lambda: [leaf(3), leaf(3)])


@program
def fourier(c):
    return stepping(c, lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2), lambda: [leaf(8)])


@program
def double_precision(c):
    return stepping(c, lambda x, w: torch.logsumexp(x @ w, -1), lambda: [leaf(3, 4, dtype=torch.float64), leaf(4, 4, dtype=torch.float64)])


@program
def bfloat16(c):
    return stepping(c, lambda x, w: F.gelu(x @ w), lambda: [leaf(3, 4, dtype=torch.bfloat16), leaf(4, 4, dtype=torch.bfloat16)])


@program
def types_promoted(c):
    return stepping(c, lambda x, y, z: x * y + z, lambda: [leaf(3), leaf(3, dtype=torch.float64), leaf(3, dtype=torch.bfloat16)])


@program
def type_conversions(c):
    return stepping(c, lambda x: (x.double().sin().float(), x.bfloat16(), x.int(), x.to(torch.float16) * 2), lambda: [leaf(3)])


@program
def integer_inputs(c):
    return stepping(c, lambda x, i, m: (x[i], x.masked_fill(m, 0.0), torch.where(m, x, x * i)), lambda: [leaf(3), torch.randint(0, 3, (3,)), torch.rand(3) > 0.5])


@program
def scalars(c):
    return stepping(c, lambda a, b, k: (a * b, a**k, a.expand(3) * b), lambda: [leaf(), leaf(), 2.5])


@program
def scalar_by_a_double_scalar(c):
    return stepping(c, lambda x, s: x * s, lambda: [leaf(3), torch.randn((), dtype=torch.float64).requires_grad_()])


@program
def empty_tensors(c):
    return stepping(c, lambda x, w: (x @ w, x.sum(), x.sum(0), torch.cat([x, x])), lambda: [leaf(0, 4), leaf(4, 3)])


@program
def changing_sizes(c):
    f, saw = c(lambda x, w: F.softmax(x @ w, -1).log()), []
    w = leaf(4, 3)
    for n in (2, 3, 5, 1, 0, 7, 2):
        x = leaf(n, 4)
        f(x, w).square().sum().backward()
        saw += [x.grad, w.grad.clone()]
    return saw


@program
def changing_ranks(c):
    f, saw = c(lambda x: x.sin() * 2), []
    for size in ((2,), (2, 3), (), (1, 2, 3), (2,), (2, 3)):
        x = leaf(*size)
        f(x).sum().backward()
        saw.append(x.grad)
    return saw


@program
def strided_leaves(c):
    saw = []
    f = c(lambda x, y: x * y.exp() + x.sin())
    for make in (lambda: torch.randn(3, 4).t(), lambda: torch.randn(4, 6)[:, ::2], lambda: torch.randn(3).expand(4, 3), lambda: torch.randn(4, 3)):
        for _ in range(3):
            x, y = make().requires_grad_(), leaf(4, 3)
            f(x, y).sum().backward()
            saw += [x.grad, y.grad]
    return saw


@program
def expanded_tangent_and_permuted_results(c):
    return stepping(c, lambda x: (x.permute(2, 0, 1), x.transpose(0, 1).sin(), x.sum((0, 2))), lambda: [leaf(2, 3, 4)])


@program
def matrix_gradients_have_eagers_strides(c):
    return stepping(c, lambda a, b: (a @ b.t(), torch.einsum("ij,kj->ki", a, b)), lambda: [leaf(3, 4), leaf(5, 4)])


@program
def infinite_and_nan(c):
    return stepping(c, lambda x: (x.log(), x.sqrt(), 1 / x, x.norm(), torch.where(x > 0, x.log(), 0.0)), lambda: [torch.tensor([0.0, -1.0, float("inf"), float("nan")]).requires_grad_()])


@program
def gradients_at_ties_and_kinks(c):
    return stepping(
        c,
        lambda x: (x.abs(), x.relu(), x.max(), x.amax(), x.clamp(0, 1), x.sign(), torch.maximum(x, torch.zeros(4)), x.median(), x.norm(), x.prod(), x.cumprod(0), x.sort()[0]),
        lambda: [torch.tensor([0.0, 1.0, 1.0, -0.0]).requires_grad_()],
    )


@program
def branch_on_a_value(c):
    return stepping(c, lambda x: x * 2 if x.sum() > 0 else x.exp(), lambda: [leaf(2)], calls=8)


@program
def loop_on_a_value(c):
    def fn(x):
        while x.norm() < 10:
            x = x * 2
        return x

    return stepping(c, fn, lambda: [leaf(2)], calls=6)


@program
def random_numbers_inside(c):
    return stepping(c, lambda x: (x * torch.rand(3) + torch.randn_like(x), F.dropout(x, 0.3)), lambda: [leaf(3)])


@program
def gumbel_and_reparametrization(c):
    def fn(m, s):
        return torch.distributions.Normal(m, s.exp()).rsample(), F.gumbel_softmax(m, hard=True)

    return stepping(c, fn, lambda: [leaf(4), leaf(4)])


@program
def closure_over_a_leaf(c):
    w = leaf(3)
    f, saw = c(lambda x: x * w), []
    for _ in range(4):
        f(torch.randn(3)).sum().backward()
        saw.append(w.grad.clone())
        with torch.no_grad():
            w -= 0.1 * w.grad
    return saw


@program
def grad_read_inside(c):
    w = leaf(3)

    def fn(x):
        y = x * w
        return y if w.grad is None else y * w.grad

    f, saw = c(fn), []
    for _ in range(4):
        f(torch.randn(3)).sum().backward()
        saw.append(w.grad.clone())
    return saw


@program
def grad_written_inside(c):
    w = leaf(3)

    def fn(x):
        if w.grad is not None:
            w.grad.zero_()
        return x * w

    f, saw = c(fn), []
    for _ in range(4):
        f(torch.randn(3)).sum().backward()
        saw.append(w.grad.clone())
    return saw


@program
def several_threads(c):
    m = mlp()
    f = c(m)
    x = [torch.randn(3, 4) for _ in range(4)]
    saw = [[] for _ in x]

    def work(i):
        for _ in range(6):
            y = x[i].clone().requires_grad_()
            f(y).square().sum().backward(inputs=[y])
            saw[i].append(y.grad)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return saw


@program
def backward_in_another_thread(c):
    f, saw = c(lambda x: x.sin().exp()), []
    for _ in range(4):
        x = leaf(3)
        y = f(x).sum()
        t = threading.Thread(target=y.backward)
        t.start()
        t.join()
        saw.append(x.grad)
    return saw


@program
def compiled_call_inside_a_backward(c):
    f = c(lambda x: (x.sin() * 2).sum())
    saw = []

    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                z = x.detach().requires_grad_()
                f(z).backward()
            return g * z.grad

    for _ in range(4):
        x = leaf(3)
        f(Inner.apply(x)).backward()
        saw.append(x.grad)
    return saw


@program
def an_error_in_the_call(c):
    def fn(x, y):
        return (x * 2) @ y

    f, saw = c(fn), []
    for n in (4, 4, 3, 4, 5, 4):
        x, y = leaf(2, 4), leaf(n, 2)
        saw += [raised(lambda: f(x, y).sum().backward()), x.grad]
    return saw


@program
def anomaly_mode(c):
    f, saw = c(lambda x: x.sqrt() * 0), []
    for i in range(5):
        x = torch.zeros(3, requires_grad=True)
        with torch.autograd.set_detect_anomaly(i % 2 == 1):
            saw += [raised(lambda: f(x).sum().backward()), x.grad]
    return saw


@program
def grad_is_its_own_memory(c):
    # a gradient must not alias a result, an input, a saved tensor or another gradient that the user may write
    f, saw = c(lambda x, y: x + y), []
    for _ in range(4):
        x, y = leaf(3), leaf(3)
        g = torch.ones(3)
        f(x, y).backward(g)
        x.grad.mul_(5)
        saw += [x.grad, y.grad, g]
        f(x, y).backward(g)
        saw += [x.grad, y.grad, g]
    return saw


@program
def identity_like_results_and_the_tangent(c):
    f, saw = c(lambda x: (x.view(3), x.clone())), []
    for _ in range(4):
        x = leaf(3)
        a, b = f(x)
        g = torch.ones(3)
        b.backward(g)
        g.zero_()
        saw += [x.grad, a]
    return saw


@program
def results_outlive_the_inputs(c):
    f = c(lambda x: x.exp() * 2)
    kept = [f(leaf(3)) for _ in range(5)]
    torch.autograd.backward(kept, [torch.ones(3)] * 5)
    return kept


@program
def deferred_backwards(c):
    m = mlp()
    f = c(m)
    losses = [f(torch.randn(3, 4)).square().sum() for _ in range(6)]
    torch.stack(losses).sum().backward()
    return grads(m)


@program
def losses(c):
    saw = []
    for fn in (
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, ignore_index=0),
        lambda x, t: F.nll_loss(x.log_softmax(-1), t, reduction="none"),
        lambda x, t: F.huber_loss(x, F.one_hot(t, 4).float()),
        lambda x, t: F.binary_cross_entropy_with_logits(x, F.one_hot(t, 4).float(), pos_weight=torch.ones(4) * 2),
        lambda x, t: F.kl_div(x.log_softmax(-1), F.one_hot(t, 4).float(), reduction="batchmean"),
        lambda x, t: F.cosine_embedding_loss(x, x.flip(0), torch.ones(5)),
        lambda x, t: F.multi_margin_loss(x, t),
        lambda x, t: F.triplet_margin_loss(x, x.roll(1, 0), x.roll(2, 0)),
    ):
        saw += stepping(c, fn, lambda: [leaf(5, 4), torch.randint(0, 4, (5,))], calls=3)
    return saw


@program
def linear_algebra(c):
    def fn(x):
        a = x @ x.mT + 3 * torch.eye(3)
        return torch.linalg.cholesky(a), torch.linalg.inv(a), torch.linalg.solve(a, x), torch.linalg.det(a), torch.linalg.eigvalsh(a)

    return stepping(c, fn, lambda: [leaf(3, 3)])


@program
def indexing_with_repeats(c):
    def fn(x, i, y):
        z = x.index_add(0, i, y)
        return x[i], x.gather(0, i[:, None].expand(-1, 2)), z, z.index_put((i,), y, accumulate=True), x.scatter_reduce(0, i[:, None].expand(-1, 2), y, "amax")

    return stepping(c, fn, lambda: [leaf(3, 2), torch.tensor([0, 0, 2, 1, 0]), leaf(5, 2)])


@program
def results_of_no_elements_and_unused(c):
    f, saw = c(lambda x: (x[:0], x.sum())), []
    for i in range(6):
        x = leaf(3)
        f(x)[i % 2].sum().backward()
        saw.append(x.grad)
    return saw


@program
def tangent_defined_for_an_intermediate_only(c):
    def fn(x):
        h = x.sin()
        return h, h.exp()

    f, saw = c(fn), []
    for i in range(6):
        x = leaf(3)
        h, y = f(x)
        saw += torch.autograd.grad(y.sum(), x, retain_graph=True) + torch.autograd.grad(h.sum(), x)
        h, y = f(x)
        saw.append(raised(lambda: torch.autograd.grad(y.sum(), h)))
    return saw


@program
def allow_mutation_on_saved_tensors(c):
    f, saw = c(lambda x, k: x * k), []
    for _ in range(4):
        x, k = leaf(3), torch.randn(3)
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            y = f(x, k)
            k.zero_()
            y.sum().backward()
        saw.append(x.grad)
    return saw


@program
def swap_of_a_result_into_a_module(c):
    m, saw = nn.Linear(3, 3), []
    f = c(lambda w: (w * 2).tanh())
    del m.weight
    w = leaf(3, 3)
    for _ in range(4):
        m.weight = f(w)
        m(torch.randn(2, 3)).sum().backward()
        saw.append(w.grad.clone())
    return saw


@program
def set_on_an_input(c):
    def fn(x, y):
        x.set_(y * 2)
        return x + 1

    f, saw = c(fn), []
    for _ in range(4):
        x, y = torch.randn(3), torch.randn(3)
        saw += [raised(lambda: f(x, y)), x]
    return saw


@program
def write_under_no_grad_inside(c):
    w = leaf(3)

    def fn(x):
        with torch.no_grad():
            w.mul_(0.5)
        return x * w

    f, saw = c(fn), []
    for _ in range(4):
        x = leaf(3)
        f(x).sum().backward()
        saw += [w.detach().clone(), w.grad.clone(), x.grad]
    return saw


@program
def exponential_moving_average(c):
    class Ema(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.register_buffer("mean", torch.zeros(4))
            self.count = 0

        def forward(self, x):
            y = self.lin(x)
            self.count += 1
            self.mean.lerp_(y.detach().mean(0), 0.1)
            return y - self.mean

    m, saw = Ema(), []
    f = c(m)
    for _ in range(5):
        f(torch.randn(3, 4)).square().sum().backward()
        saw += [m.count, m.mean.clone(), grads(m)]
    return saw


@program
def history_in_a_buffer_from_call_to_call(c):
    class Carry(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.h = torch.zeros(2, 4)

        def forward(self, x):
            self.h = torch.tanh(self.lin(x) + self.h)
            return self.h

    m, saw = Carry(), []
    f = c(m)
    for _ in range(4):
        total = sum(f(torch.randn(2, 4)).sum() for _ in range(3))
        total.backward()
        m.h = m.h.detach()
        saw.append(grads(m))
    return saw


@program
def tensor_subclass_parameters(c):
    class Mine(torch.Tensor):
        pass

    f, saw = c(lambda x: x * 2), []
    for _ in range(4):
        x = torch.randn(3).as_subclass(Mine).requires_grad_()
        y = f(x)
        y.sum().backward()
        saw += [type(y).__name__, type(x.grad).__name__, x.grad.as_subclass(torch.Tensor)]
    return saw


@program
def decorated_with_no_grad(c):
    @torch.no_grad()
    def part(x):
        return x * 5

    return stepping(c, lambda x: part(x) + x.sin(), lambda: [leaf(3)])


@program
def partial_and_bound_method(c):
    class Holder:
        k = 3.0

        def __call__(self, x, y):
            return x * y * self.k

        def method(self, x, y):
            return x + y.sin() * self.k

    h = Holder()
    saw = []
    for fn in (functools.partial(h, torch.ones(3)), h.method, h):
        f = c(fn)
        for _ in range(3):
            xs = [leaf(3)] if isinstance(fn, functools.partial) else [leaf(3), leaf(3)]
            f(*xs).sum().backward()
            saw += [x.grad for x in xs]
    return saw


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(fn):
    check(fn)


@pytest.mark.parametrize("compiled", [broach.compile, lambda f: torch.compile(f, backend="broach")], ids=["native", "dynamo"])
def test_a_failed_capture_leaves_no_history_on_what_it_wrote(compiled):
    def push(kept, x):
        kept.copy_(torch.cat([kept[1:], x[None]]))
        return kept.mean(0)

    call = compiled(push)
    for rows in (6, 6, 6, 11, 6, 11, 7, 8):
        kept, got, want = torch.randn(rows, 4), *(torch.ones(4, requires_grad=True) for _ in range(2))
        theirs, ours = kept.clone(), kept.clone()
        push(theirs, want).sum().backward()
        call(ours, got).sum().backward()
        torch.testing.assert_close(got.grad, want.grad)
        torch.testing.assert_close(ours, theirs)
