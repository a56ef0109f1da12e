"""Values of low precision are the same numbers wherever they are read: beside the sums and extremes of their rows, in what gradients keep,
and in what they compute anew. Distances between two of them are small, and an exponential makes a small difference large."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

BF16 = torch.bfloat16

pytestmark = pytest.mark.usefixtures("with_gradients")


def _subtracted(x, y):
    return x.to(y.dtype) - y


def _subtracted_in_place(x, y):
    return y.clone().sub_(x.to(y.dtype))


def _widened(x, y):
    low = x.to(y.dtype)
    return low.float(), low.abs().float(), (-low).double(), torch.maximum(low, low).float(), low.clamp(-1, 1).float(), low.relu().float()


def _a_chain(x, y):
    z = (x.to(y.dtype) + y) * y
    return z - y, z.float() - y.float(), (z - y).sum(-1), (z * z - y).amax(0)


def _compared(x, y):
    return (x.to(y.dtype) - y) == 0, x.to(y.dtype) + 1 > y + 1, torch.where(y * 3 == y + y + y, y, -y)


@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("program", [_subtracted, _subtracted_in_place, _widened, _a_chain, _compared])
def test_arithmetic_is_rounded_as_eager_rounds_it(program, dtype):
    compiled = broach.compile(program)
    x = torch.randn(7, 33)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x, x.to(dtype)), program(x, x.to(dtype)), rtol=0, atol=0)


def _errors(program, make, modules, calls=3, options=None, autocast=False):
    """The distances of eager's and the compiled program's gradients from those in double precision, over the length of these. Sums come in
    another order than eager's, so that of the two either may be nearer: what is looked for is many times as far."""
    m, exact = modules(), modules().double()
    compiled = broach.compile(lambda *args: program(m, *args), options=options)
    for call in range(calls):
        torch.manual_seed(call)
        inputs, found = make(), []
        for f, own in ((lambda *a: program(m, *a), m), (compiled, m), (lambda *a: program(exact, *a), exact)):
            args = [(t.double() if own is exact else t.clone()).requires_grad_(t.requires_grad) for t in inputs]
            with torch.autocast("cpu", BF16, enabled=autocast and own is not exact):
                y = f(*args)
            wanted = [*(a for a in args if a.requires_grad), *own.parameters()]
            weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
            found.append([g.double() for g in torch.autograd.grad((y * weights).sum(), wanted)])
        length = sum(t.norm() ** 2 for t in found[2]) ** 0.5
        yield [(sum((a - b).norm() ** 2 for a, b in zip(f, found[2], strict=True)) ** 0.5 / length).item() for f in found[:2]]


def test_a_norm_of_an_activation_is_that_of_what_gradients_keep():
    """The gradient of what is added before a norm is nothing: what is left of it are roundings."""

    def program(y, x, b):
        return F.batch_norm(F.gelu(y) * x + b, None, None, training=True)

    compiled = broach.compile(program)
    for call in range(3):
        torch.manual_seed(call)
        y, x, w = torch.randn(2000, 32).to(BF16), torch.randn(2000, 32), torch.randn(2000, 32)
        left = []
        for f in (program, compiled):
            args = y.clone().requires_grad_(), x.clone().requires_grad_(), torch.zeros(32, requires_grad=True)
            left.append(torch.autograd.grad((f(*args) * w).sum(), args)[2].norm())
        assert left[1] < 3 * left[0] + 1e-4


class _Gated(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.n = nn.Linear(65, 65), nn.Linear(65, 65), nn.GroupNorm(5, 65)


def test_a_group_norm_behind_a_gate_under_autocast():
    def program(m, x):
        h = x + m.a(x)
        h = F.gelu(m.b(h)) * h
        return m.n(h.transpose(1, 2)).transpose(1, 2)

    for eager, own in _errors(program, lambda: [torch.randn(1, 65, 65, requires_grad=True)], _Gated, autocast=True):
        assert own < 2 * eager + 1e-3


class _Hidden(nn.Module):
    dtype = BF16

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.l, self.qkv = nn.Linear(64, 64, dtype=self.dtype), nn.Linear(64, 192, dtype=self.dtype)

    def hidden(self, x):
        return x + F.silu(self.l(x))


class _HiddenWide(_Hidden):
    dtype = torch.float32


def _softmax(m, x):
    h = m.hidden(x)
    return (h @ h.mT).softmax(-1) @ h + m.qkv(h)[..., :64]


def _logsumexp(m, x):
    h = m.hidden(x)
    return (h @ h.mT).logsumexp(-1, keepdim=True) + m.qkv(h)


def _written_out(m, x):
    h = m.hidden(x)
    scores = h @ h.mT
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True) @ m.qkv(h)


def _attention(m, x):
    q, k, v = (m.qkv(m.hidden(x)) * 8).view(1, 150, 3, 4, 16).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v)


def _norm(m, x):
    h = m.hidden(x)
    return F.layer_norm(h * 100 + 1000, (64,)) + m.qkv(h)[..., :64]


@pytest.mark.parametrize("budget", [0.0, 0.1, 0.3, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("modules", [_Hidden, _HiddenWide])
@pytest.mark.parametrize("program", [_softmax, _logsumexp, _written_out, _attention, _norm])
def test_statistics_are_of_what_is_computed_anew(program, modules, budget):
    def make():
        return [torch.randn(1, 150, 64, dtype=modules.dtype, requires_grad=True)]

    for eager, own in _errors(program, make, modules, options={"memory_budget": budget}):
        assert own < 3 * eager + (1e-2 if modules is _Hidden else 1e-6)


@pytest.mark.parametrize("program", [_softmax, _logsumexp, _written_out, _attention, _norm])
def test_statistics_within_a_checkpoint(program):
    """What leaves a checkpoint is kept, but not taken for what is computed anew inside."""

    def checkpointed(m, x):
        return checkpoint(lambda x: program(m, x), x, use_reentrant=False)

    def make():
        return [torch.randn(1, 150, 64, dtype=BF16, requires_grad=True)]

    for eager, own in _errors(checkpointed, make, _Hidden):
        assert own < 3 * eager + 1e-2


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("scale", [1e3, 1e4, 1e5, 1e8])
@pytest.mark.parametrize("dtype", [BF16, torch.float32])
def test_attention_of_large_scores(dtype, scale, mask):
    def program(q, k, v, m):
        return F.scaled_dot_product_attention(q, k, v, m if mask else None)

    compiled = broach.compile(program)
    for call in range(3):
        torch.manual_seed(call)
        q, v = (torch.randn(2, 2, 40, 16) * scale).to(dtype), torch.randn(2, 2, 40, 16).to(dtype)
        m = torch.randn(40, 40).to(dtype)
        with torch.no_grad():
            torch.testing.assert_close(compiled(q, q, v, m), program(q, q, v, m))
        found = []
        for f in (program, compiled):
            args = [t.clone().requires_grad_() for t in (q, q, v)]
            found.append(torch.autograd.grad(f(*args, m).sum(), args))
        assert all(b.isfinite().all() or not a.isfinite().all() for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("by", [0.3, 0.6, 1.2, -0.15, 7, 1e-3, 3e38, 1e-40])
def test_a_quotient_by_a_number_is_eagers(by):
    x, rows = torch.arange(1, 3, 2**-7).to(BF16), torch.full((16, 1), by).to(BF16)

    def program(x, rows):
        return x / by, x.float() / by, (x.float() / by).to(BF16), x.view(16, 16) / rows, by / x

    compiled = broach.compile(program)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x, rows), program(x, rows), rtol=0, atol=0)


@pytest.mark.parametrize("program", [lambda x, w, y: x @ w + y, lambda x, w, y: y - F.linear(x, w.t()), lambda x, w, y: F.relu(x @ w) + y])
def test_strict_rounds_a_product_before_what_follows(program):
    compiled = broach.compile(program, options={"strict": True})
    torch.manual_seed(0)
    x, w, y = (torch.randint(-16, 16, shape).to(BF16) for shape in ((9, 33), (33, 20), (9, 20)))  # sums are exact
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x, w, y * 100 + 0.5), program(x, w, y * 100 + 0.5), rtol=0, atol=0)
