"""Writes, views and modules."""

import copy
import pickle

import pytest
import torch
from gradient_programs import Programs, check, grads, leaf, mlp, raised, stepping, training, with_gradients  # noqa: F401
from torch import nn

PROGRAMS = program = Programs()


# ---- writes and views ----


@program
def in_place_inside(c):
    def fn(x):
        y = x * 2
        y.add_(x).mul_(x)
        y[0] = 0
        return y.exp_()

    return stepping(c, fn, lambda: [leaf(3, 2)])


@program
def in_place_on_a_leaf_raises(c):
    f, saw = c(lambda x: x.mul_(2)), []
    for _ in range(4):
        x = leaf(3)
        saw += [raised(lambda: f(x)), x]
    return saw


@program
def in_place_on_an_input_with_history(c):
    f, saw = c(lambda h: h.mul_(h.detach() + 2)), []
    for _ in range(4):
        x = leaf(3)
        h = x * 1
        r = f(h)
        saw += [r is h, h, h.requires_grad]
        h.sum().backward()
        saw.append(x.grad)
    return saw


@program
def buffer_written_with_a_history(c):
    def fn(buffer, x):
        buffer.add_(x * 2)
        return x.sin()

    f, saw = c(fn), []
    for _ in range(4):
        buffer, x = torch.zeros(3), leaf(3)
        y = f(buffer, x)
        (y.sum() + buffer.square().sum()).backward()
        saw += [buffer, x.grad]
    return saw


@program
def view_of_an_input_written(c):
    def fn(h):
        h[0].mul_(5)
        return h.sin()

    f, saw = c(fn), []
    for _ in range(4):
        x = leaf(3, 2)
        h = x * 1
        y = f(h)
        (y.sum() + h.sum()).backward()
        saw += [h, y, x.grad]
    return saw


@program
def result_is_a_view_of_an_input(c):
    f, saw = c(lambda x: (x.view(-1), x[0], x.t())), []
    for _ in range(4):
        x = leaf(2, 3)
        a, b, d = f(x)
        (a.sin().sum() + b.sum() + d.exp().sum()).backward()
        saw += [a, b, d, a._base is x, a.data_ptr() == x.data_ptr(), x.grad]
    return saw


@program
def result_that_is_a_view_is_written(c):
    f, saw = c(lambda h: (h.view(-1), h.sin())), []
    for _ in range(4):
        x = leaf(2, 3)
        h = x * 1
        v, s = f(h)
        saw.append(raised(lambda: v.mul_(3) is v))
        saw.append(raised(lambda: (h.sum() + v.sum()).backward()))
        saw += [h, x.grad]
    return saw


@program
def result_is_the_input(c):
    f, saw = c(lambda x, y: (x, x * y)), []
    for _ in range(4):
        x, y = leaf(3), leaf(3)
        a, b = f(x, y)
        (a * b).sum().backward()
        saw += [a is x, a.is_leaf, x.grad, y.grad]
    return saw


@program
def results_that_alias_each_other(c):
    def fn(x):
        y = x * 2
        return y, y.view(-1), y[0], y

    f, saw = c(fn), []
    for _ in range(4):
        x = leaf(2, 3)
        a, b, d, e = f(x)
        saw += [a is e, a.data_ptr() == b.data_ptr(), b._base is not None]
        (a.sum() + b.sin().sum() + d.exp().sum()).backward()
        saw.append(x.grad)
    return saw


@program
def aliasing_results_are_written(c):
    def fn(x):
        y = x * 2
        return y, y.view(-1)

    f, saw = c(fn), []
    for _ in range(4):
        x = leaf(2, 3)
        a, b = f(x)
        saw.append(raised(lambda: a.mul_(2) is a))
        saw += [b.detach().clone(), raised(lambda: b.sum().backward()), x.grad]
    return saw


@program
def result_written_before_backward(c):
    # exp saves its result, sin does not
    saw = []
    for fn in (lambda x: x.exp(), lambda x: x.sin(), lambda x: x.relu(), lambda x: x.sigmoid() * 1):
        f = c(fn)
        for _ in range(4):
            x = leaf(3)
            y = f(x)
            y.mul_(2)
            saw += [raised(lambda: y.sum().backward()), x.grad]
    return saw


@program
def input_written_before_backward(c):
    saw = []
    for fn in (lambda x, k: x * k, lambda x, k: x + k, lambda x, k: (x * k).sin()):
        f = c(fn)
        for _ in range(4):
            x, k = leaf(3), torch.randn(3)
            y = f(x, k)
            k.zero_()
            saw += [raised(lambda: y.sum().backward()), x.grad]
    return saw


@program
def parameter_stepped_before_backward(c):
    m, saw = mlp(), []
    f = c(m)
    for _ in range(4):
        x = leaf(3, 4)
        y = f(x)
        with torch.no_grad():
            m[2].weight.mul_(0.9)
        saw += [raised(lambda: y.sum().backward()), x.grad]
        m.zero_grad()
    return saw


@program
def slices_assigned(c):
    def fn(x, y):
        out = torch.zeros(4, 3)
        out[:2] = x
        out[2:] = y
        out[:, 1] *= 2
        return out

    return stepping(c, fn, lambda: [leaf(2, 3), leaf(2, 3)])


@program
def split_and_unbind(c):
    def fn(x):
        a, b = x.chunk(2)
        p, q, r = a.unbind(1)
        return p * q, r + b.sum()

    return stepping(c, fn, lambda: [leaf(4, 3)])


@program
def unbind_returned(c):
    return stepping(c, lambda x: (x * 2).unbind(0), lambda: [leaf(3, 2)])


# ---- modules ----


@program
def tied_weights(c):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, i):
            return self.head(self.embed(i))

    return training(c, Tied, lambda: [torch.randint(0, 7, (5,))])


class _Language(nn.Module):
    """The weight of a large vocabulary, shared by a padded embedding, another one that is scaled, and the last product."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(900, 24, padding_idx=3)
        self.head = nn.Linear(24, 900, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, i, j):
        return self.head(torch.tanh(self.embed(i)) + nn.functional.embedding(j, self.embed.weight))


def _positions():
    return [torch.randint(0, 900, (2, 31)), torch.randint(0, 40, (2, 31))]


@program
def tied_weights_of_a_vocabulary(c):
    return training(c, _Language, _positions)


@program
def tied_weights_under_autocast(c):
    torch.manual_seed(0)
    model, saw = _Language(), []
    f = c(model)
    for _ in range(4):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            f(*_positions()).float().square().mean().backward()
        gradient = model.embed.weight.grad
        saw += [gradient.dtype, (gradient / gradient.abs().max()).bfloat16()]  # to be compared as what was computed in bf16
    return saw


@program
def weight_norm(c):
    return training(c, lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), lambda: [torch.randn(2, 4)])


@program
def old_weight_norm(c):
    return training(c, lambda: nn.utils.weight_norm(nn.Linear(4, 3)), lambda: [torch.randn(2, 4)])


@program
def spectral_norm(c):
    return training(c, lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), lambda: [torch.randn(2, 4)])


@program
def old_spectral_norm(c):
    return training(c, lambda: nn.utils.spectral_norm(nn.Linear(4, 3)), lambda: [torch.randn(2, 4)])


@program
def orthogonal(c):
    return training(c, lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)), lambda: [torch.randn(2, 4)])


@program
def own_parametrization(c):
    class Symmetric(nn.Module):
        def forward(self, x):
            return x.triu() + x.triu(1).mT

    def make():
        m = nn.Linear(4, 4)
        nn.utils.parametrize.register_parametrization(m, "weight", Symmetric())
        return m

    return training(c, make, lambda: [torch.randn(2, 4)])


@program
def pruned(c):
    def make():
        m = nn.Linear(4, 4)
        nn.utils.prune.l1_unstructured(m, "weight", amount=0.5)
        return m

    import torch.nn.utils.prune

    return training(c, make, lambda: [torch.randn(2, 4)])


@program
def functional_call(c):
    m, saw = mlp(True), []
    f = c(lambda params, x: torch.func.functional_call(m, params, (x,)))
    for _ in range(4):
        params = {k: leaf(*v.shape) for k, v in m.named_parameters()}
        f(params, torch.randn(5, 4)).sum().backward()
        saw += [[p.grad for p in params.values()], m[1].running_mean.clone()]
    return saw + grads(m)


@program
def functional_call_of_a_compiled_module(c):
    m, saw = mlp(), []
    f = c(m)
    for i in range(5):
        params = {k: leaf(*v.shape) for k, v in m.named_parameters()}
        call = m if f is m else f
        out = raised(lambda: torch.func.functional_call(call, params if f is m else {}, (torch.randn(5, 4),)).sum() * 0 + 1)
        saw.append(out if isinstance(out, str) else out.item())
    return saw


@program
def func_grad_inside(c):
    return stepping(c, lambda x: torch.func.grad(lambda y: (y**3).sum())(x), lambda: [leaf(3)])


@program
def func_grad_outside(c):
    f, saw = c(lambda x: (x**3).sum()), []
    for _ in range(4):
        saw += [torch.func.grad(f)(torch.randn(3)), torch.func.vmap(f)(torch.randn(2, 3)), torch.func.jacrev(f)(torch.randn(3))]
    return saw


@program
def autograd_grad_inside(c):
    def fn(x):
        (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return g * x

    return stepping(c, fn, lambda: [leaf(3)])


@program
def backward_inside(c):
    m = mlp()

    def fn(x):
        loss = m(x).sum()
        loss.backward()
        return loss.detach()

    f = c(fn)
    return [f(torch.randn(3, 4)) for _ in range(4)] + grads(m)


@program
def forward_mode(c):
    f, saw = c(lambda x: x.sin() * x), []
    for _ in range(4):
        x, t = torch.randn(3), torch.randn(3)
        saw.append(torch.func.jvp(f, (x,), (t,))[1])
        with torch.autograd.forward_ad.dual_level():
            y = f(torch.autograd.forward_ad.make_dual(x, t))
            saw.append(torch.autograd.forward_ad.unpack_dual(y).tangent)
    return saw


@program
def autograd_functional(c):
    f, saw = c(lambda x: x.sin() * x), []
    for _ in range(4):
        saw += [torch.autograd.functional.jacobian(f, torch.randn(3)), torch.autograd.functional.vjp(f, torch.randn(3), torch.ones(3))[1]]
    return saw


@program
def gradcheck(c):
    f = c(lambda x, y: (x * y).sin() + x.exp())
    xs = [leaf(3, dtype=torch.float64) for _ in range(2)]
    return [raised(lambda: torch.autograd.gradcheck(f, xs)) for _ in range(3)]


@program
def grad_scaler(c):
    m, saw = mlp(), []
    f, o, s = c(m), torch.optim.SGD(m.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2)
    for _ in range(5):
        o.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = f(torch.randn(3, 4)).float().square().mean()
        s.scale(loss).backward()
        s.unscale_(o)
        saw += grads(m)
        s.step(o)
        s.update()
        saw.append(s.get_scale())
    return [x.bfloat16() if isinstance(x, torch.Tensor) else x for x in saw]


@program
def autocast_inside(c):
    m = mlp()

    def fn(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m(x)

    f, saw = c(fn), []
    for _ in range(4):
        x = leaf(3, 4)
        y = f(x)
        y.sum().backward()
        saw += [y.dtype, x.grad.bfloat16(), [g.bfloat16() for g in grads(m)], [g.dtype for g in grads(m)]]
    return saw


@program
def clip_grad_norm(c):
    m, saw = mlp(), []
    f = c(m)
    for _ in range(4):
        f(torch.randn(3, 4)).sum().backward()
        saw += [nn.utils.clip_grad_norm_(m.parameters(), 0.5), grads(m)]
        nn.utils.clip_grad_value_(m.parameters(), 0.01)
    return saw + grads(m)


@program
def deepcopy_of_a_compiled_module(c):
    f, saw = c(mlp()), []
    for _ in range(3):
        f(torch.randn(3, 4)).sum().backward()
    g = copy.deepcopy(f)
    for _ in range(3):
        g(torch.randn(3, 4)).sum().backward()
        saw += [grads(f), grads(g)]
    return saw


@program
def pickle_of_a_compiled_module(c):
    f, saw = c(mlp()), []
    for _ in range(3):
        f(torch.randn(3, 4)).sum().backward()
    g = pickle.loads(pickle.dumps(f))
    for _ in range(3):
        g(torch.randn(3, 4)).sum().backward()
        saw += [grads(f), grads(g)]
    return saw


@program
def deepcopy_of_a_result_raises(c):
    f = c(lambda x: x * 2)
    return [raised(lambda: copy.deepcopy(f(leaf(3)))) for _ in range(4)]


@program
def parameter_replaced(c):
    m, saw = mlp(), []
    f = c(m)
    for _ in range(4):
        m[0].weight = nn.Parameter(torch.randn(8, 4))
        f(torch.randn(3, 4)).sum().backward()
        saw.append(grads(m))
        m[2].bias.data = torch.randn(3)
    return saw


@program
def module_moved_to_another_type(c):
    m, saw = mlp(), []
    f = c(m)
    for dtype in (torch.float32, torch.float32, torch.float64, torch.float64, torch.float32, torch.bfloat16, torch.bfloat16):
        m.to(dtype).zero_grad()
        f(torch.randn(3, 4, dtype=dtype)).sum().backward()
        saw.append(grads(m))
    return saw


@program
def recurrent_layers(c):
    saw = []
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        saw += training(c, lambda: kind(3, 4, batch_first=True), lambda: [torch.randn(2, 5, 3)], loss=lambda out: out[0].square().mean())
    return saw


@program
def attention(c):
    return training(c, lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), lambda: [torch.randn(2, 5, 8)])


@program
def convolution_channels_last(c):
    # No bias: its gradient in front of a batch norm is nothing but rounding.
    m = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)).to(memory_format=torch.channels_last)
    f, saw = c(m), []
    for _ in range(4):
        x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
        y = f(x)
        y.square().sum().backward()
        saw += [y, x.grad, grads(m)]
        m.zero_grad()
    return saw


@program
def embedding_with_sparse_gradients(c):
    m = nn.Embedding(5, 3, sparse=True)
    f, saw = c(m), []
    for _ in range(4):
        m.zero_grad()
        f(torch.randint(0, 5, (4,))).sum().backward()
        saw += [m.weight.grad.is_sparse, m.weight.grad.to_dense()]
    return saw


@program
def embedding_padding_and_max_norm(c):
    return training(c, lambda: nn.Embedding(6, 3, padding_idx=1, max_norm=1.0), lambda: [torch.randint(0, 6, (5,))])


@program
def frozen_layers(c):
    def make():
        m = mlp()
        m[0].requires_grad_(False)
        return m

    m, saw = make(), []
    f = c(m)
    for _ in range(4):
        f(torch.randn(3, 4)).sum().backward()
        saw.append(grads(m))
    return saw


@program
def module_that_returns_a_constant_loss(c):
    f, saw = c(lambda x: torch.ones(3)), []
    for _ in range(4):
        saw += [f(leaf(3)), raised(lambda: f(leaf(3)).sum().backward())]
    return saw


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("parts", [0, 8], ids=["at once", "in parts"])
def test_program(fn, parts):
    check(fn, gradient_parts=parts)
