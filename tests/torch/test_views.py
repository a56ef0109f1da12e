"""Random programs of views and in-place operations on a few inputs have eager's values, strides and aliasing."""

from __future__ import annotations

import torch
from direct import check
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
