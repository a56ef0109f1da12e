"""Gradients as PyTorch documents them: each program is run with its function compiled and not, and what it observes must be equal.

A program takes `c`, which compiles or gives back what it gets, and returns what it observed: tensors, numbers, texts, lists.
"""

import collections
import copy
import dataclasses
import functools
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import broach

PROGRAMS = []


@pytest.fixture(autouse=True)
def _with_gradients(_no_grad):
    with torch.enable_grad():
        yield


def program(fn):
    PROGRAMS.append(fn)
    return fn


def same(have, want, where="observed"):
    if isinstance(want, torch.Tensor):
        assert isinstance(have, torch.Tensor), f"{where}: {have!r}, eager has a tensor"
        assert type(have) is type(want), f"{where}: {type(have)}, eager has {type(want)}"
        assert have.dtype == want.dtype and have.shape == want.shape, (where, have.dtype, have.shape, want.dtype, want.shape)
        assert have.requires_grad == want.requires_grad, f"{where}: requires_grad {have.requires_grad}"
        assert have.is_leaf == want.is_leaf, f"{where}: is_leaf {have.is_leaf}"
        if want.numel() > 1:
            pairs = [(h, w) for h, w, n in zip(have.stride(), want.stride(), want.shape) if n > 1]
            assert all(h == w for h, w in pairs), f"{where}: strides {have.stride()}, eager has {want.stride()}"
        low = want.dtype in (torch.bfloat16, torch.float16)
        limits = {"atol": 2e-2, "rtol": 2e-2} if low else {"atol": 1e-5, "rtol": 1e-4}
        torch.testing.assert_close(have.detach(), want.detach(), equal_nan=True, msg=lambda m: f"{where}: {m}", **limits)
    elif isinstance(want, (list, tuple)):
        assert type(have) is type(want) and len(have) == len(want), f"{where}: {have!r}, eager has {want!r}"
        for i, (h, w) in enumerate(zip(have, want)):
            same(h, w, f"{where}[{i}]")
    elif isinstance(want, dict):
        assert list(have) == list(want), f"{where}: {have!r}, eager has {want!r}"
        for k in want:
            same(have[k], want[k], f"{where}[{k!r}]")
    elif isinstance(want, float):
        assert have == pytest.approx(want, rel=1e-4, abs=1e-5), f"{where}: {have}, eager has {want}"
    else:
        assert have == want, f"{where}: {have!r}, eager has {want!r}"


def observed(fn, compile):
    torch.manual_seed(0)
    saw = fn(compile)
    return [*saw, "random state", torch.get_rng_state().sum().item()]


def raised(fn):
    """The error's type, or what the call gives."""
    try:
        return fn()
    except Exception as error:
        return f"raises {type(error).__name__}"


def leaf(*sizes, **options):
    return torch.randn(sizes, **options).requires_grad_()


def grads(module):
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def stepping(c, fn, make, calls=4):
    """`fn` on new leaves each call: results and the leaves' gradients."""
    f, saw = c(fn), []
    for _ in range(calls):
        args = make()
        out = f(*args)
        outs = out if isinstance(out, (tuple, list)) else [out]
        total = sum((o.abs() * torch.rand(o.shape)).sum() for o in outs if isinstance(o, torch.Tensor) and o.requires_grad)
        if isinstance(total, torch.Tensor):
            total.backward()
        saw += [outs, [a.grad if isinstance(a, torch.Tensor) and a.is_leaf else None for a in args]]
    return [list(x) for x in saw]


def training(c, make, data, steps=4, loss=lambda out: out.square().mean()):
    model = make()
    run, saw = c(model), []
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        opt.zero_grad()
        value = loss(run(*data()))
        value.backward()
        saw += [value.detach().clone(), grads(model)]
        opt.step()
    return [*saw, {k: v.clone() for k, v in model.state_dict().items()}]


def mlp(bn=False):
    return nn.Sequential(nn.Linear(4, 8), *([nn.BatchNorm1d(8)] if bn else []), nn.Tanh(), nn.Linear(8, 3))


# ---- the basic contract ----


@program
def accumulation(c):
    m = mlp()
    f = c(m)
    for _ in range(5):
        f(torch.randn(6, 4)).sum().backward()
    return grads(m)


@program
def optimizers(c):
    saw = []
    for kind in (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop):
        m = mlp()
        f, o = c(m), kind(m.parameters(), lr=0.01)
        for _ in range(4):
            o.zero_grad(set_to_none=False)
            f(torch.randn(5, 4)).square().mean().backward()
            o.step()
        saw += [p.detach().clone() for p in m.parameters()]
    return saw


@program
def lbfgs_with_a_closure(c):
    m = mlp()
    f, o, x = c(m), torch.optim.LBFGS(m.parameters(), max_iter=4), torch.randn(5, 4)

    def closure():
        o.zero_grad()
        loss = f(x).square().mean()
        loss.backward()
        return loss

    return [o.step(closure).item() for _ in range(2)]


@program
def batch_norm(c):
    return training(c, lambda: mlp(True), lambda: [torch.randn(6, 4)])


@program
def batch_norm_train_and_eval(c):
    m = mlp(True)
    f, saw = c(m), []
    for i in range(8):
        m.train(i % 2 == 0)
        out = f(torch.randn(6, 4))
        out.sum().backward()
        saw += [out, grads(m)]
    return [*saw, [b.clone() for b in m.buffers()]]


@program
def dropout_draws_eagers_numbers(c):
    return training(c, lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)), lambda: [torch.randn(6, 4)])


@program
def two_backwards_in_both_orders(c):
    saw = []
    f = c(lambda x, w: (x @ w).tanh())
    w = leaf(4, 4)
    for i in range(5):
        xs = [leaf(2, 4), leaf(2, 4)]
        outs = [f(x, w) for x in xs]
        for k in (0, 1) if i % 2 else (1, 0):
            outs[k].sum().backward()
        saw += [x.grad for x in xs] + [w.grad.clone()]
    return saw


@program
def called_twice_before_one_backward(c):
    m = mlp()
    f = c(m)
    for _ in range(4):
        (f(torch.randn(2, 4)) * f(torch.randn(2, 4))).sum().backward()
    return grads(m)


@program
def a_call_fed_to_itself(c):
    f, saw = c(lambda x, w: torch.tanh(x @ w)), []
    for _ in range(4):
        x, w = leaf(3, 4), leaf(4, 4)
        f(f(f(x, w), w), w).sum().backward()
        saw += [x.grad, w.grad]
    return saw


@program
def nested_compiled_functions(c):
    inner = c(lambda x: x.sin() * x)
    outer = c(lambda x: inner(x).exp() + inner(x * 2))
    saw = []
    for _ in range(4):
        x = leaf(5)
        outer(x).sum().backward()
        saw.append(x.grad)
    return saw


@program
def retain_graph(c):
    f, saw = c(lambda x: (x * x).sum()), []
    for _ in range(4):
        x = leaf(4)
        y = f(x)
        y.backward(retain_graph=True)
        y.backward()
        saw += [x.grad, raised(y.backward)]
    return saw


@program
def freed_buffers_raise(c):
    f, saw = c(lambda x: x.exp().sum()), []
    for _ in range(4):
        y = f(leaf(4))
        y.backward()
        saw.append(raised(y.backward))
    return saw


@program
def grad_of_some_inputs(c):
    f, saw = c(lambda x, y, z: x * y + z), []
    for i in range(6):
        a = [leaf(3), leaf(3), leaf(3)]
        saw += torch.autograd.grad(f(*a).sum(), a[i % 3])
    return saw


@program
def backward_with_inputs(c):
    m, saw = mlp(), []
    f = c(m)
    for _ in range(4):
        x = leaf(3, 4)
        f(x).sum().backward(inputs=[x, m[0].weight])
        saw += [x.grad, grads(m)]
    return saw


@program
def unused_input(c):
    f, saw = c(lambda x, y: x * 2), []
    for _ in range(4):
        x, y = leaf(3), leaf(3)
        z = f(x, y).sum()
        saw += [raised(lambda: torch.autograd.grad(z, y)), torch.autograd.grad(f(x, y).sum(), [x, y], allow_unused=True)]
        saw += torch.autograd.grad(f(x, y).sum(), [x, y], allow_unused=True, materialize_grads=True)
    return saw


@program
def results_without_a_gradient(c):
    f, saw = c(lambda x: (x * 2, x.detach(), x.argmax(), x > 0, x.sum().item() > 1e9)), []
    for _ in range(4):
        x = leaf(3)
        a, b, d, e, k = f(x)
        a.sum().backward()
        saw += [a, b, d, e, k, x.grad, raised(lambda: d.sum().backward())]
    return saw


@program
def only_one_of_several_results_is_used(c):
    f, saw = c(lambda x, y: (x * 2, y.exp(), x * y)), []
    for i in range(9):
        x, y = leaf(3), leaf(3)
        f(x, y)[i % 3].sum().backward()
        saw += [x.grad, y.grad]
    return saw


@program
def sequence_of_backward_calls_over_results(c):
    f, saw = c(lambda x: (x.sin(), x.cos())), []
    for _ in range(4):
        x = leaf(3)
        a, b = f(x)
        a.sum().backward(retain_graph=True)
        saw.append(x.grad.clone())
        saw += [raised(lambda: b.sum().backward()), x.grad]
    return saw


@program
def two_results_without_retain_graph(c):
    # their graphs share no node with saved tensors: eager allows both
    f, saw = c(lambda x, y: (x.sin(), y.cos())), []
    for _ in range(4):
        x, y = leaf(3), leaf(3)
        a, b = f(x, y)
        a.sum().backward()
        saw += [raised(lambda: b.sum().backward()), x.grad, y.grad]
    return saw


@program
def non_scalar_needs_a_gradient(c):
    f, saw = c(lambda x: x * 2), []
    for _ in range(4):
        x = leaf(3)
        y = f(x)
        saw += [raised(lambda: y.backward()), raised(lambda: y.backward(torch.ones(4))), raised(lambda: y.backward(torch.ones(3)))]
    return [*saw, x.grad]


@program
def gradients_given_with_other_types_and_layouts(c):
    f, saw = c(lambda x: x.sin() * 3), []
    for g in (torch.ones(()).expand(4, 3), torch.randn(3, 4).t(), torch.randn(4, 3, dtype=torch.float64), torch.zeros(4, 3), torch.randn(4, 6)[:, ::2]):
        x = leaf(4, 3)
        y = f(x)
        saw += [raised(lambda: y.backward(g)), x.grad]
    return saw


@program
def is_grads_batched(c):
    f, saw = c(lambda x: x.sin() * x), []
    for _ in range(4):
        x = leaf(3)
        saw.append(raised(lambda: torch.autograd.grad(f(x), x, torch.eye(3), is_grads_batched=True)))
    return saw


@program
def double_backward(c):
    # today an error that says so
    f, saw = c(lambda x: (x**3).sum()), []
    for _ in range(4):
        x = leaf(3)
        (g,) = torch.autograd.grad(f(x), x, create_graph=True)
        saw.append(g.detach())
    return saw


@program
def called_with_gradients_within_no_grad(c):
    f, saw = c(lambda x: x.sin().sum()), []
    for _ in range(4):
        x = leaf(3)
        with torch.no_grad():
            (g,) = torch.autograd.grad(_grad_on(f, x), x)
        saw.append(g)
    return saw


def _grad_on(f, x):
    with torch.enable_grad():
        return f(x)


# ---- grad modes ----


@program
def no_grad_around(c):
    f, saw = c(lambda x: x * 2 + 1), []
    for i in range(6):
        x = leaf(3)
        with torch.set_grad_enabled(i % 2 == 0):
            y = f(x)
        saw += [y, y.requires_grad]
    return saw


@program
def inference_mode_around(c):
    f, saw = c(lambda x: x * 2 + 1), []
    for i in range(6):
        x = leaf(3)
        with torch.inference_mode(i % 2 == 0):
            y = f(x)
            saw += [y.is_inference(), y.requires_grad]
    return saw


@program
def no_grad_inside(c):
    def fn(x, y):
        with torch.no_grad():
            s = x.abs().amax()
        return x / s * y

    return stepping(c, fn, lambda: [leaf(3), leaf(3)])


@program
def set_grad_enabled_inside_and_left(c):
    def fn(x):
        y = x * 2
        torch.set_grad_enabled(False)
        return y

    f, saw = c(fn), []
    for _ in range(4):
        x = leaf(3)
        y = f(x)
        saw += [torch.is_grad_enabled(), y]
        torch.set_grad_enabled(True)
        y.sum().backward()
        saw.append(x.grad)
    return saw


@program
def enable_grad_inside_no_grad(c):
    def fn(x):
        with torch.enable_grad():
            return x.sin() * 2

    f, saw = c(fn), []
    for _ in range(4):
        x = leaf(3)
        with torch.no_grad():
            y = f(x)
        y.sum().backward()
        saw += [y, x.grad]
    return saw


@program
def inference_mode_inside(c):
    def fn(x):
        with torch.inference_mode():
            m = x.mean().item()
        return x * 2 if m > -1e9 else x

    return stepping(c, fn, lambda: [leaf(3)])


@program
def requires_grad_inside(c):
    def fn(x):
        x = x.detach().requires_grad_()
        return x, (x * x).sum()

    f, saw = c(fn), []
    for _ in range(4):
        x, y = f(torch.randn(3))
        y.backward()
        saw += [x, x.grad]
    return saw


@program
def requires_grad_on_the_input(c):
    f, saw = c(lambda x: (x.requires_grad_() * 2).sum()), []
    for _ in range(4):
        x = torch.randn(3)
        f(x).backward()
        saw += [x, x.grad]
    return saw


@program
def parameter_made_inside(c):
    def fn(x):
        p = nn.Parameter(torch.ones(3))
        return p, (p * x).sum()

    f, saw = c(fn), []
    for _ in range(4):
        p, y = f(torch.randn(3))
        y.backward()
        saw += [p.grad, type(p).__name__, p.is_leaf]
    return saw


@program
def leaf_made_inside_and_kept(c):
    kept = []

    def fn(x):
        e = torch.zeros(3, requires_grad=True)
        kept.append(e)
        return ((x + e) ** 2).sum()

    f, saw = c(fn), []
    for _ in range(4):
        x = leaf(3)
        f(x).backward()
        saw += [len(kept), x.grad, kept[-1].grad]
    return saw


@program
def detach_inside(c):
    return stepping(c, lambda x: (x.detach() * x, x.detach()), lambda: [leaf(3)])


@program
def detach_in_place(c):
    def fn(x):
        y = x * 2
        y.detach_()
        return y * x

    return stepping(c, fn, lambda: [leaf(3)])


@program
def data_read_and_written(c):
    def fn(x):
        y = x * 2
        y.data.mul_(3)
        return y * x.data

    return stepping(c, fn, lambda: [leaf(3)])


@program
def data_of_a_parameter_written(c):
    m = nn.Linear(3, 3)

    def fn(x):
        m.weight.data.mul_(0.9)
        return m(x)

    f, saw = c(fn), []
    for _ in range(4):
        f(torch.randn(2, 3)).sum().backward()
        saw += [m.weight.detach().clone(), grads(m)]
    return saw


@program
def requires_grad_changes_between_calls(c):
    m = mlp()
    f, saw = c(m), []
    for i in range(6):
        m.requires_grad_(i % 2 == 0)
        m[2].weight.requires_grad_()
        m.zero_grad()
        f(torch.randn(2, 4)).sum().backward()
        saw.append(grads(m))
    return saw


@program
def input_sometimes_needs_gradients(c):
    f, saw = c(lambda x, y: x * y), []
    for i in range(8):
        x, y = torch.randn(3), torch.randn(3)
        x.requires_grad_(bool(i & 1)), y.requires_grad_(bool(i & 2))
        z = f(x, y)
        saw += [z, raised(lambda: z.sum().backward()), x.grad, y.grad]
    return saw


@program
def input_with_a_history(c):
    f, saw = c(lambda x: x.exp() * 2), []
    for _ in range(4):
        x = leaf(3)
        h = x * 3
        h.retain_grad()
        f(h).sum().backward()
        saw += [x.grad, h.grad]
    return saw


@program
def grad_of_a_result_retained(c):
    f, saw = c(lambda x: x.exp() * 2), []
    for _ in range(4):
        x = leaf(3)
        y = f(x)
        y.retain_grad()
        (y * y).sum().backward()
        saw += [x.grad, y.grad]
    return saw


@program
def retain_grad_inside(c):
    def fn(x):
        h = x * 2
        h.retain_grad()
        return h, h.sin()

    f, saw = c(fn), []
    for _ in range(4):
        x = leaf(3)
        h, y = f(x)
        y.sum().backward()
        saw += [x.grad, h.grad, h.retains_grad]
    return saw


# ---- hooks ----


@program
def tensor_hooks_on_inputs_and_results(c):
    f, saw = c(lambda x: x.sin()), []
    for _ in range(4):
        x = leaf(3)
        x.register_hook(lambda g: saw.append(("x", g.clone())) or g * 2)
        y = f(x)
        y.register_hook(lambda g: saw.append(("y", g.clone())) or g + 1)
        y.sum().backward()
        saw.append(x.grad)
    return saw


@program
def hook_removed_between_calls(c):
    w = leaf(3)
    f, saw = c(lambda x: x * w), []
    for i in range(6):
        h = w.register_hook(lambda g, i=i: saw.append(i)) if i % 2 else None
        f(torch.randn(3)).sum().backward()
        if h:
            h.remove()
        saw.append(w.grad.clone())
    return saw


@program
def post_accumulate_grad_hook(c):
    m = mlp()
    f, saw = c(m), []
    names = {p: n for n, p in m.named_parameters()}
    for p in m.parameters():
        p.register_post_accumulate_grad_hook(lambda p: saw.append((names[p], p.grad.sum().item())))
    for _ in range(4):
        start = len(saw)
        f(torch.randn(3, 4)).sum().backward()
        saw[start:] = sorted(saw[start:])  # the order of leaves is not documented
    return saw


@program
def order_of_parameter_hooks(c):
    m = mlp()
    f, saw = c(m), []
    for n, p in m.named_parameters():
        p.register_hook(lambda g, n=n: saw.append(n))
    for _ in range(4):
        f(torch.randn(3, 4)).sum().backward()
    return saw


@program
def optimizer_in_backward(c):
    m = mlp()
    f, opts = c(m), {p: torch.optim.SGD([p], lr=0.1) for p in m.parameters()}

    def hook(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(hook)
    for _ in range(4):
        f(torch.randn(3, 4)).square().mean().backward()
    return [*grads(m), *(p.detach().clone() for p in m.parameters())]


@program
def hook_inside(c):
    saw = []

    def fn(x):
        h = x * 2
        h.register_hook(lambda g: saw.append(g.clone()) or g * 10)
        return h.sin()

    f = c(fn)
    for _ in range(4):
        x = leaf(3)
        f(x).sum().backward()
        saw.append(x.grad)
    return saw


def _module_hooks(c, when):
    m = mlp()
    saw = []

    def register():
        m[0].register_forward_pre_hook(lambda m, a: saw.append("pre"))
        m[1].register_forward_hook(lambda m, a, out: saw.append("forward") or out * 2)
        m[2].register_full_backward_hook(lambda m, gi, go: saw.append(("full", [*gi], [*go])))
        m[1].register_full_backward_pre_hook(lambda m, go: saw.append(("pre", [*go])))
        m.register_forward_hook(lambda m, a, k, out: saw.append("outer"), with_kwargs=True, always_call=True)
        m.register_full_backward_hook(lambda m, gi, go: saw.append(("top", [*gi], [*go])))

    if when == "before":
        register()
    f = c(m)
    if when == "after":
        register()
    for i in range(5):
        if when == "between" and i == 2:
            register()
        f(torch.randn(3, 4)).sum().backward()
        saw.append(grads(m))
    return saw


@program
def module_hooks_before_compile(c):
    return _module_hooks(c, "before")


@program
def module_hooks_after_compile(c):
    return _module_hooks(c, "after")


@program
def module_hooks_between_calls(c):
    return _module_hooks(c, "between")


@program
def backward_hook_on_the_outer_module_only(c):
    m = mlp()
    saw = []
    f = c(m)
    m.register_full_backward_hook(lambda m, gi, go: saw.append(([*gi], [*go])) or tuple(g * 2 for g in gi if g is not None) or None)
    for _ in range(4):
        x = leaf(3, 4)
        f(x).sum().backward()
        saw += [x.grad, grads(m)]
    return saw


@program
def forward_hook_collects_an_inner_result(c):
    m = mlp()
    saw, kept = [], []
    m[0].register_forward_hook(lambda m, a, out: kept.append(out))
    f = c(m)
    for _ in range(4):
        y = f(torch.randn(3, 4))
        (y.sum() + kept[-1].square().sum()).backward()
        saw += [len(kept), grads(m)]
    return saw


@program
def global_module_hooks(c):
    m = mlp()
    f, saw = c(m), []
    for i in range(5):
        h = nn.modules.module.register_module_forward_hook(lambda m, a, out: saw.append(type(m).__name__)) if i == 3 else None
        f(torch.randn(3, 4)).sum().backward()
        if h:
            h.remove()
    return [*saw, *grads(m)]


@program
def saved_tensors_hooks(c):
    f, saw = c(lambda x: x.sin().exp()), []
    for i in range(5):
        x = leaf(3)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t * 1):
            y = f(x)
        y.sum().backward()
        saw.append(x.grad)
    return saw


@program
def save_on_cpu(c):
    m = mlp()
    f = c(m)
    for _ in range(4):
        with torch.autograd.graph.save_on_cpu():
            y = f(torch.randn(3, 4))
        y.sum().backward()
    return grads(m)


@program
def multi_grad_hook(c):
    f, saw = c(lambda x, y: x * y + y), []
    for _ in range(4):
        x, y = leaf(3), leaf(3)
        torch.autograd.graph.register_multi_grad_hook([x, y], lambda g: saw.append([*g]))
        f(x, y).sum().backward()
    return saw


@program
def multi_grad_hook_any(c):
    f, saw = c(lambda x, y: x * y + y), []
    for _ in range(4):
        x, y = leaf(3), leaf(3)
        torch.autograd.graph.register_multi_grad_hook([x, y], lambda g: saw.append("any"), mode="any")
        f(x, y).sum().backward()
    return saw


@program
def an_error_in_a_hook(c):
    f, saw = c(lambda x: x.sin() * 2), []
    for i in range(5):
        x = leaf(3)

        def hook(g):
            raise KeyError("mine")

        y = f(x)
        if i % 2:
            y.register_hook(hook)
        saw += [raised(lambda: y.sum().backward()), x.grad]
    return saw


@program
def grad_fn_is_there_and_has_edges(c):
    f, saw = c(lambda x: x.sin() * 2), []
    for _ in range(4):
        x = leaf(3)
        y = f(x)
        todo, leaves = [y.grad_fn], []
        while todo:
            node = todo.pop()
            leaves += [node.variable is x] if hasattr(node, "variable") else []
            todo += [n for n, _ in node.next_functions if n is not None]
        saw += [y.grad_fn is not None, sorted(set(leaves)), y.output_nr]
    return saw


@program
def hooks_on_grad_fn(c):
    f, saw = c(lambda x: x.sin() * 2), []
    for _ in range(4):
        x = leaf(3)
        y = f(x)
        y.grad_fn.register_prehook(lambda g: saw.append("pre"))
        y.grad_fn.register_hook(lambda gi, go: saw.append("post"))
        y.sum().backward()
        saw.append(x.grad)
    return saw


# ---- checkpoint and custom functions ----


@program
def checkpoint_without_reentry(c):
    m = mlp()
    f, saw = c(lambda x: checkpoint(m, x, use_reentrant=False)), []
    for _ in range(4):
        x = leaf(3, 4)
        f(x).sum().backward()
        saw += [x.grad, grads(m)]
    return saw


@program
def checkpoint_with_reentry(c):
    m = mlp()
    f, saw = c(lambda x: checkpoint(m, x, use_reentrant=True)), []
    for _ in range(4):
        x = leaf(3, 4)
        f(x).sum().backward()
        saw += [x.grad, grads(m)]
    return saw


@program
def checkpoint_of_a_compiled_module(c):
    m = mlp()
    f, saw = c(m), []
    for i in range(6):
        x = leaf(3, 4)
        checkpoint(f, x, use_reentrant=i % 2 == 0).sum().backward()
        saw += [x.grad, grads(m)]
    return saw


@program
def checkpoint_of_a_compiled_dropout(c):
    m = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5))
    f, saw = c(m), []
    for i in range(6):
        x = leaf(3, 4)
        checkpoint(f, x, use_reentrant=i % 2 == 0).sum().backward()
        saw += [x.grad, grads(m)]
    return saw


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * 5


class Many(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k, materialize):
        ctx.set_materialize_grads(materialize)
        ctx.k = k
        values, at = x.sort()
        ctx.mark_non_differentiable(at)
        ctx.save_for_backward(at)
        return values * k, at, x.sin()

    @staticmethod
    def backward(ctx, g, _, h):
        (at,) = ctx.saved_tensors
        out = torch.zeros(at.shape)
        if g is not None:
            out = out.scatter(0, at, g * ctx.k)
        return out + (100 if h is None else h), None, None


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 7


class SetupContext(torch.autograd.Function):
    @staticmethod
    def forward(x, n):
        return x**n

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.n = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.n * x ** (ctx.n - 1) + 1, None


@program
def custom_function(c):
    return stepping(c, lambda x: Exp.apply(x * 0.1) + x, lambda: [leaf(3)])


@program
def custom_function_with_setup_context(c):
    return stepping(c, lambda x: SetupContext.apply(x, 3), lambda: [leaf(3)])


@program
def custom_function_of_several_results(c):
    saw = []
    for materialize in (True, False):
        f = c(lambda x: Many.apply(x, 3.0, materialize))
        for i in range(5):
            x = leaf(4)
            a, b, d = f(x)
            (a if i % 2 else d).sum().backward()
            saw += [a, b, d, x.grad]
    return saw


@program
def custom_function_marks_dirty(c):
    return stepping(c, lambda x: Dirty.apply(x * 3).sin(), lambda: [leaf(3)])


@program
def custom_function_that_always_raises_in_backward(c):
    class Bad(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise ValueError("no")

    f, saw = c(lambda x: Bad.apply(x).sum()), []
    for _ in range(4):
        saw.append(raised(lambda: f(leaf(3)).backward()))
    return saw


@program
def straight_through_estimator(c):
    return stepping(c, lambda x: x + (x.round() - x).detach(), lambda: [leaf(5)])


@program
def gradient_reversal(c):
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -g

    m = mlp()
    return stepping(c, lambda x: m(Reverse.apply(x)), lambda: [leaf(3, 4)]) + grads(m)


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
    m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)).to(memory_format=torch.channels_last)
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
    want = observed(fn, lambda f: f)
    made = []

    def compile(f):
        made.append(broach.compile(f))
        return made[-1]

    have = observed(fn, compile)
    for f in made:
        stats = getattr(getattr(f, "_compiled_call", f), "stats", None)
        if stats is not None and not (s := stats())["compiled_calls"]:
            print("RAN EAGERLY", s["eager_calls"], s["eager_reasons"], s["reasons"])
    same(have, want)
