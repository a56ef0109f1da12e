"""Hooks, checkpoints and custom functions around and within compiled programs."""

import io

import pytest
import torch
from gradient_programs import Affine, Programs, check, grads, leaf, mlp, raised, stepping, with_gradients  # noqa: F401
from torch import nn
from torch.utils.checkpoint import checkpoint

import broach

PROGRAMS = program = Programs()


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
def models_from_a_file_and_hooks_since(c):
    """Unpickling leaves a dict of hooks in each parameter, which is empty."""
    file = io.BytesIO()
    torch.save(mlp(), file)
    file.seek(0)
    m = torch.load(file, weights_only=False)
    f, saw = c(m), []
    for i in range(8):
        h = m[0].weight.register_hook(lambda g, i=i: saw.append(i) or g * i) if i % 3 == 2 else None
        m.zero_grad()
        f(torch.randn(3, 4)).sum().backward()
        if h:
            h.remove()
        saw += grads(m)
    return saw


def test_models_from_a_file_are_compiled_for_training():
    model = nn.Linear(4, 4)
    model.weight.register_hook(lambda g: g).remove()
    assert model.weight._backward_hooks is not None and not model.weight._backward_hooks
    compiled = broach.compile(model)
    for _ in range(3):
        compiled(torch.randn(3, 4)).sum().backward()
    assert not broach.explain(compiled, torch.randn(3, 4)).eager_reasons


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


@program
def custom_function(c):
    return stepping(c, lambda x: Exp.apply(x * 0.1) + x, lambda: [leaf(3)])


@program
def custom_function_with_setup_context(c):
    return stepping(c, lambda x: Affine.apply(x, 3), lambda: [leaf(3)])


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


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_program(fn):
    check(fn)


def test_full_backward_hooks_of_the_compiled_module_itself():
    seen = []
    for compiled in (False, True):
        torch.manual_seed(0)
        module = nn.Linear(3, 2)
        call = broach.compile(module) if compiled else module
        pre = call.register_full_backward_pre_hook(lambda m, g: seen.append(("pre", g[0].clone())))
        full = call.register_full_backward_hook(lambda m, gi, go: (seen.append(("full", gi[0].clone(), go[0].clone())), (3 * gi[0],))[1])
        for step in range(4):
            x = torch.ones(2, 3, requires_grad=True)
            call(x).square().sum().backward()
            seen.append(("x", x.grad))
            if step == 2:
                pre.remove(), full.remove()
        seen.append(("weight", module.weight.grad))
    half = len(seen) // 2
    assert half == 11
    for want, got in zip(seen[:half], seen[half:], strict=True):
        assert want[0] == got[0]
        torch.testing.assert_close(got[1:], want[1:])


@pytest.mark.parametrize("how", [{}, {"retain_graph": True}, {"create_graph": True}, "anomaly"])
@pytest.mark.parametrize("kind", ["hook", "post"])
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph", "ignore:Anomaly Detection")
def test_hooks_set_behind_the_call_of_leaves_that_get_nothing(kind, how):
    """Eager does not come to a leaf to which no result with a gradient leads."""

    def run(f, model):
        model.zero_grad()
        seen, x = [], torch.ones(1, 2)
        _, y = f(x)
        weight = model.heads[0].weight
        if kind == "hook":
            handle = weight.register_hook(lambda g: seen.append(g.sum().item()))
        else:
            handle = weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
        if how == "anomaly":
            with torch.autograd.detect_anomaly():
                y.sum().backward()
        else:
            y.sum().backward(**how)
        handle.remove()
        return seen, weight.grad, model.heads[1].weight.grad.tolist()

    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])

        def forward(self, x):
            return tuple(h(x).tanh() for h in self.heads)

    model = Heads()
    compiled = broach.compile(model)
    for _ in range(4):
        assert run(compiled, model) == run(model, model)
