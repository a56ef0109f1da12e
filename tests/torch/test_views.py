"""Random programs of views and in-place operations on a few inputs have eager's values, strides and aliasing."""

from __future__ import annotations

import pytest
import torch
from direct import check, fresh
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

# Each takes a tensor and a number and gives a view of the tensor, or None where it does not apply.
VIEWS = {
    "row": lambda t, k: t[k % len(t)] if t.dim() and len(t) else None,
    "rows": lambda t, k: t[k % 2 :] if t.dim() else None,
    "every other": lambda t, k: t[..., k % 2 :: 2] if t.dim() else None,
    "narrow": lambda t, k: t.narrow(-1, 0, 1 + k % t.shape[-1]) if t.dim() and t.shape[-1] else None,
    "transpose": lambda t, k: t.transpose(0, -1) if t.dim() else None,
    "flatten": lambda t, k: t.view(-1) if t.is_contiguous() else None,
    "unsqueeze": lambda t, k: t.unsqueeze(k % (t.dim() + 1)) if t.dim() < 4 else None,
    "squeeze": lambda t, k: t.squeeze(),
    "diagonal": lambda t, k: t.diagonal() if t.dim() >= 2 else None,
    "half": lambda t, k: t.chunk(2, -1)[-1] if t.dim() and t.shape[-1] > 1 else None,
    "split": lambda t, k: t.unbind(-1)[0] if t.dim() and t.shape[-1] else None,
    "windows": lambda t, k: t.unfold(-1, 1 + k % 2, 2) if 0 < t.dim() < 4 and t.shape[-1] > 1 else None,
    "strided": lambda t, k: t.as_strided((2, 2), (2, 1)) if t.is_contiguous() and t.numel() > 3 else None,
    "spread": lambda t, k: t.as_strided((2,), (3,), t.storage_offset() + k % 2) if t.is_contiguous() and t.numel() > 4 else None,
}
WRITES = {
    "add": lambda t, k, other: t.add_(k),
    "mul": lambda t, k, other: t.mul_(0.5 + k),
    "neg": lambda t, k, other: t.neg_(),
    "fill": lambda t, k, other: t.fill_(k),
    "zero": lambda t, k, other: t.zero_(),
    "clamp": lambda t, k, other: t.clamp_(-k, k),
    "sum of another": lambda t, k, other: t.add_(other.sum() * 0.01),
    "mask": lambda t, k, other: t.masked_fill_(t > 0.5, k),
}

step = st.tuples(
    st.sampled_from(["view", "write", "new"]),
    st.integers(0, 7),
    st.integers(0, 5),
    st.integers(0, 7),
    st.sampled_from(list(VIEWS)),
    st.sampled_from(list(WRITES)),
)
program = st.lists(step, min_size=1, max_size=8)
shapes = st.lists(st.sampled_from([(3, 4), (4,), (2, 3, 2), (1, 5), (4, 4)]), min_size=1, max_size=3)


def build(steps):
    def run(*inputs):
        known = list(inputs)
        for kind, which, k, other, view, write in steps:
            t = known[which % len(known)]
            if kind == "view":
                seen = VIEWS[view](t, k)
                known += [] if seen is None else [seen]
            elif kind == "new":
                known.append(t * 2 - k)
            else:
                WRITES[write](t, k, known[other % len(known)])
        # Reads of everything, so that every view's value is looked at, and the last ones themselves.
        return tuple(t + 0 for t in known) + tuple(known[-3:])

    return run


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(program, shapes, st.booleans())
def test_random_views_and_writes(steps, shapes, transposed):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=generator) for s in shapes]
    if transposed:
        inputs = [t.t() if t.dim() == 2 else t for t in inputs]
    with torch.no_grad():
        check(build(steps), *inputs, slack=20)


def overlapping(x):
    windows = x.unfold(-1, 3, 1)
    x[0].mul_(2)
    return windows * 1, windows, x.as_strided((3, 3), (1, 2), 1) + 0


def bits(x):
    halves = x.view(torch.int32)
    halves[..., 1::2].neg_()
    return halves, halves.view(torch.int16) + 1, x * 2


def wider(x):
    pairs = x.view(torch.float64)
    pairs.mul_(2)
    return pairs, x + 1


def conjugate_views(z):
    lazy = z.conj()
    lazy[0].mul_(2 + 1j)
    lazy.imag.add_(1)
    z.real.mul_(3)
    return lazy, lazy * 1j, z.imag, torch.view_as_real(z), z.mH @ z, lazy.imag


def from_pairs(x):
    z = torch.view_as_complex(x)
    z.mul_(1j)
    return z, z.abs(), x


def fresh_views(z):
    made = z * 2
    return made.conj(), made.imag, torch.view_as_real(made)[..., 0], made.conj().imag


@pytest.mark.parametrize(
    "program, given",
    [
        (overlapping, torch.randn(3, 6)),
        (bits, torch.randint(-9, 9, (3, 4)) << 20),
        (bits, torch.randn(3, 4, dtype=torch.float64)),
        (wider, torch.randn(3, 4)),
        (conjugate_views, torch.randn(3, 3, dtype=torch.complex64)),
        (from_pairs, torch.randn(3, 4, 2)),
        (fresh_views, torch.randn(3, 4, dtype=torch.complex64)),
    ],
    ids=lambda p: getattr(p, "__name__", str(getattr(p, "dtype", ""))),
)
@torch.no_grad()
def test_views_of_other_elements(program, given):
    compiled = check(program, given)
    assert compiled.way == "native", (compiled.externs, compiled.stats()["eager_reasons"])
    ours, theirs = compiled(*fresh([given])), program(*fresh([given]))
    assert [(t.is_conj(), t.is_neg()) for t in ours] == [(t.is_conj(), t.is_neg()) for t in theirs]


# Where such rows are joined of parts, LLVM's code generator has ended the process.
@pytest.mark.parametrize("size", range(3, 10))
@pytest.mark.parametrize("edge_order", [1, 2])
def test_gradients_of_short_complex_rows(size, edge_order):
    z = torch.randn(size, size, dtype=torch.complex64)
    at = torch.sort(torch.randn(size, dtype=torch.float32)).values.to(torch.complex64)
    check(lambda z, at: torch.gradient(z, spacing=(at, at), edge_order=edge_order), z, at, slack=4)
    check(lambda z: torch.gradient(z, spacing=2.0, edge_order=edge_order), z)
