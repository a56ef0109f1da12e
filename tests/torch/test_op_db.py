"""Every operation of PyTorch's own test database, captured directly: the compiled call must equal eager's.

A seeded sample of each operation's arguments; all of them with BROACH_TEST_ALL=1. BROACH_TEST_OPS=name,name and
BROACH_TEST_TYPES=type,type narrow it. BROACH_TEST_RANKS=file ranks there what keeps samples from running without extern.
How they run must be what op_db.txt says (table.py).
"""

from __future__ import annotations

import itertools
import os
import random

import direct
import pytest
import table
import torch
from op_db_expected import EXPECTED, INEXACT, SKIPPED
from samples import Samples
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

# Entries of random operations set the seed and put the generator's state back, which would hide that they draw from it.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)

ALL = os.environ.get("BROACH_TEST_ALL") == "1"
ONLY = [name for name in os.environ.get("BROACH_TEST_OPS", "").split(",") if name]
TYPES = [name for name in os.environ.get("BROACH_TEST_TYPES", "").split(",") if name]
# By element type, the samples of each operation in the bounded run.
SAMPLES = {
    torch.float32: 3,
    torch.int64: 1,
    torch.bfloat16: 1,
    torch.float16: 1,
    torch.float64: 1,
    torch.int32: 1,
    torch.int8: 1,
    torch.uint8: 1,
    torch.bool: 1,
    torch.complex64: 1,
}
CONSIDERED = 24  # of an operation's samples, from which the bounded run draws
LARGEST = 1 << 16  # elements of one tensor in the bounded run


def name_of(op) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def group_of(op) -> str:
    for prefix in ("nn.functional", "linalg", "fft", "special", "signal", "masked", "torch.ops.aten", "_refs"):
        if op.name.startswith(prefix):
            return prefix
    return "torch"


def samples_of(op, dtype):
    torch.manual_seed(0)
    every = op.sample_inputs(direct.DEVICE, dtype, requires_grad=False)
    if ALL:
        yield from every
        return
    some = [s for s in itertools.islice(every, CONSIDERED) if all(t.numel() <= LARGEST for t in tensors_of(s)[0])]
    count = SAMPLES[dtype]
    yield from some if len(some) <= count else random.Random(name_of(op)).sample(some, count)


def tensors_of(sample):
    """The distinct tensors of a sample, and a function that puts others in their places."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    tensors: list[torch.Tensor] = []
    places = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            at = next((i for i, t in enumerate(tensors) if t is leaf), len(tensors))
            tensors += [leaf] if at == len(tensors) else []
            places.append(at)
        else:
            places.append(None)

    def place(given):
        return pytree.tree_unflatten([x if p is None else given[p] for x, p in zip(leaves, places)], spec)

    return tensors, place


def run(op, dtype, sample) -> str | None:
    """Checks one sample; the reason where it cannot be compared."""
    tensors, place = tensors_of(sample)
    if any(t.is_quantized or t.layout != torch.strided for t in tensors):
        return "not a plain tensor"

    def program(*given):
        first, args, kwargs = place(given)
        return op(first, *args, **kwargs)

    state = direct.random_state()
    theirs = direct.fresh(tensors)
    try:
        want = program(*theirs)
    except Exception:
        return "eager raises"
    results = [leaf for leaf in pytree.tree_leaves(want) if isinstance(leaf, torch.Tensor)]
    if not results:
        return "no tensor in the result"
    if direct.DEVICE == "cpu" and any(not t.is_cpu for t in (*results, *tensors)):
        return "not on the CPU"  # some samples name a GPU, if there is one
    if not torch.equal(state, direct.random_state()):
        return "draws random numbers"
    compiled = direct.compile_direct(program, *tensors, compile_threads=1)
    if not tensors:
        compiled()
    ours = direct.fresh(tensors)
    have = compiled(*ours)
    direct.note_share("op_db", group_of(op), name_of(op), dtype, compiled)
    try:
        direct.assert_same(have, want)
    except AssertionError:
        if name_of(op) not in INEXACT or dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise
        exact = program(*(t.double() if t.is_floating_point() else t for t in direct.fresh(tensors)))
        direct.assert_no_worse(have, want, exact)
    direct.assert_same(ours, theirs, "input")
    assert direct.aliasing(have, ours) == direct.aliasing(want, theirs), "aliasing differs"
    return None


@pytest.mark.parametrize("op", [op for op in op_db if not ONLY or name_of(op) in ONLY], ids=name_of)
@torch.no_grad()
def test_op(op):
    if name_of(op) in SKIPPED:
        pytest.skip(SKIPPED[name_of(op)])
    samples, ran = Samples(), len(direct.RAN)
    dtypes = [t for t in SAMPLES if t in op.supported_dtypes("cpu") and (not TYPES or direct.short(t) in TYPES)]
    for dtype in dtypes:
        for number, sample in enumerate(samples_of(op, dtype)):
            samples.run(dtype, f"sample {number} {sample.summary()}", lambda: run(op, dtype, sample))
    samples.assert_none_failed(lambda dtype: (name_of(op), dtype) in EXPECTED)
    failed = [dtype for dtype, _ in samples.failures]
    table.OP_DB.check(name_of(op), table.cells(direct.RAN[ran:], failed), dtypes)
    if failed:
        pytest.xfail("; ".join(sorted({EXPECTED[name_of(op), dtype] for dtype in failed})))
    samples.skip_if_none_compared()


def test_the_table():
    """Every line is of an operation that there is, once, and has been compared."""
    if why := table.why_not_compared():
        pytest.skip(why)
    names = [name_of(op) for op in op_db]
    assert len(names) == len(set(names))
    assert table.OP_DB.rows and not set(table.OP_DB.rows) - set(names)
