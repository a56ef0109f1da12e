"""Every module of PyTorch's own test database, captured directly: the compiled forward must equal eager's, and leave the same buffers.

Float32 in the bounded run; BROACH_TEST_ALL=1 adds the other element types. BROACH_TEST_OPS=name,name narrows it to modules.
How they run must be what module_db.txt says (table.py).
"""

from __future__ import annotations

import copy
import os

import direct
import pytest
import table
import torch
from op_db_expected import INEXACT
from samples import Samples
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

ALL = os.environ.get("BROACH_TEST_ALL") == "1"
ONLY = [name for name in os.environ.get("BROACH_TEST_OPS", "").split(",") if name]
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16] if ALL else [torch.float32]
# Of a module's inputs in the bounded run.
SAMPLES = 24


def placed(args, kwargs):
    """The tensors among the arguments, and a function that puts others in their places."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def place(tensors):
        filled = list(leaves)
        for i, t in zip(places, tensors):
            filled[i] = t
        return pytree.tree_unflatten(filled, spec)

    return [leaves[i] for i in places], place


def build(info, dtype, training, sample):
    """A sample's module twice, what makes of a module a function of tensors, and these; None where some are no plain tensors."""
    given = sample.constructor_input
    theirs = info.module_cls(*given.args, **given.kwargs).to(direct.DEVICE, dtype).train(training)
    tensors, place = placed(sample.forward_input.args, sample.forward_input.kwargs)
    if not tensors or any(t.layout != torch.strided or type(t) is not torch.Tensor for t in tensors):
        return None

    def program(module):
        def forward(*ts):
            args, kwargs = place(ts)
            return module(*args, **kwargs)

        return forward

    if info.is_lazy:  # its parameters exist after a first call
        program(theirs)(*direct.fresh(tensors))
    return theirs, copy.deepcopy(theirs), program, tensors


def run(info, dtype, training, sample) -> str | None:
    """Checks one sample; the reason where it cannot be compared."""
    built = build(info, dtype, training, sample)
    if built is None:
        return "not a plain tensor"
    theirs, ours, program, tensors = built
    state = direct.random_state()
    try:
        program(theirs)(*direct.fresh(tensors))
        if not torch.equal(state, direct.random_state()):
            return "draws random numbers"
        want = program(theirs)(*direct.fresh(tensors))
    except (RuntimeError, NotImplementedError):
        return "eager raises"
    compiled = direct.compile_direct(program(ours), *tensors, compile_threads=1)
    have = compiled(*direct.fresh(tensors))
    direct.note_share("module_db", "torch.nn", info.name, dtype, compiled)
    try:
        direct.assert_same(have, want)
    except AssertionError:
        if info.name not in INEXACT or dtype == torch.float64:
            raise
        exact = program(copy.deepcopy(theirs).double())(*(t.double() if t.is_floating_point() else t for t in direct.fresh(tensors)))
        direct.assert_no_worse(have, want, exact)
    direct.assert_same(dict(ours.state_dict()), dict(theirs.state_dict()), "parameter or buffer")
    return None


@pytest.mark.parametrize("info", [m for m in module_db if not ONLY or m.name in ONLY], ids=lambda m: m.formatted_name)
@torch.no_grad()
def test_module(info):
    samples, ran = Samples(), len(direct.RAN)
    dtypes = [t for t in TYPES if t in info.supported_dtypes("cpu")]
    for dtype in dtypes:
        for training in (False, True) if info.train_and_eval_differ or ALL else (False,):
            every = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=training)
            for number, sample in enumerate(every if ALL else every[:SAMPLES]):
                name = f"{'train' if training else 'eval'} sample {number} {sample.desc}"
                samples.run(dtype, name, lambda: run(info, dtype, training, sample))
    samples.assert_none_failed()
    table.MODULE_DB.check(info.name, table.cells(direct.RAN[ran:]), dtypes)
    samples.skip_if_none_compared()


def test_the_table():
    """Every line is of a module that there is, once, and has been compared."""
    if why := table.why_not_compared():
        pytest.skip(why)
    names = [m.name for m in module_db]
    assert len(names) == len(set(names))
    assert table.MODULE_DB.rows and not set(table.MODULE_DB.rows) - set(names)
