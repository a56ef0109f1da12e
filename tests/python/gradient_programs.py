"""Programs that show what they observe of autograd, for holding compiled ones against eager's.

A program takes `c`, which compiles or gives back what it gets, and returns what it observed: tensors, numbers, texts, lists.
"""

import pytest
import torch
from torch import nn

import broach


class Programs(list):
    """Programs, each of which is added by decorating it with them."""

    def __call__(self, program):
        self.append(program)
        return program


@pytest.fixture(autouse=True)
def with_gradients(_no_grad):
    """For the tests of modules that import it."""
    with torch.enable_grad():
        yield


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
        # Sums round by the size of what they add: where that cancels (in front of a batch norm), the largest element tells it best.
        largest = 1.0 if low or not want.is_floating_point() or not want.numel() else max(1.0, want.detach().abs().nan_to_num(0, 0, 0).max().item())
        limits = {"atol": 2e-2, "rtol": 2e-2} if low else {"atol": 1e-5 * largest, "rtol": 1e-4}
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


def check(fn, **options):
    """Holds the program with compiled functions against the same with eager ones."""
    want = observed(fn, lambda f: f)
    made = []

    def compile(f):
        made.append(broach.compile(f, options=options))
        return made[-1]

    have = observed(fn, compile)
    for f in made:
        stats = getattr(getattr(f, "_compiled_call", f), "stats", None)
        if stats is not None and not (s := stats())["compiled_calls"]:
            print("RAN EAGERLY", s["eager_calls"], s["eager_reasons"], s["reasons"])
    same(have, want)


class Affine(torch.autograd.Function):
    """Whose gradient is none of nothing."""

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
