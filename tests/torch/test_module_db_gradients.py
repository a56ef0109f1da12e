"""Gradients of every module of PyTorch's own test database: those of its inputs and parameters must equal eager's, and so must
the buffers that a step of training leaves.

Two float32 samples of each module in training; all samples, both modes, and float64, with BROACH_TEST_ALL=1.
BROACH_TEST_OPS=name,name narrows it to modules.
"""

from __future__ import annotations

import copy
import random

import direct
import pytest
import torch
from test_module_db import ALL, ONLY, placed
from torch.testing._internal.common_modules import module_db
from torch.utils import _pytree as pytree

import broach

DTYPES = [torch.float32, torch.float64] if ALL else [torch.float32]
CALLS = 3


def samples_of(info, dtype, training):
    torch.manual_seed(0)
    every = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    return every if ALL or len(every) <= 2 else random.Random(info.name).sample(every, 2)


def gradients(program, module, tensors, call):
    """Results, and the gradients of inputs and parameters by random tangents; None where eager has none."""
    torch.manual_seed(call)
    own = [t.detach().requires_grad_(t0.requires_grad) for t, t0 in zip(direct.fresh(tensors), tensors)]
    results = [r for r in pytree.tree_leaves(program(*own)) if isinstance(r, torch.Tensor)]
    with_history = [r for r in results if r.requires_grad]
    wanted = [t for t in (*own, *module.parameters()) if t.requires_grad]
    if not with_history or not wanted:
        return results, None
    tangents = [torch.rand_like(r, dtype=torch.float64).to(r.dtype) for r in with_history]
    return results, torch.autograd.grad(with_history, wanted, tangents, allow_unused=True)


def run(info, dtype, training, sample) -> str | None:
    """Checks one sample; the reason where it cannot be compared."""
    given = sample.constructor_input
    theirs = info.module_cls(*given.args, **given.kwargs).to(dtype).train(training)
    tensors, place = placed(sample.forward_input.args, sample.forward_input.kwargs)
    if not tensors or any(t.layout != torch.strided or type(t) is not torch.Tensor for t in tensors):
        return "not a plain tensor"

    def program(module):
        def forward(*ts):
            args, kwargs = place(ts)
            return module(*args, **kwargs)

        return forward

    if info.is_lazy:  # its parameters exist after a first call
        program(theirs)(*direct.fresh(tensors))
    ours = copy.deepcopy(theirs)
    try:
        wants = [gradients(program(theirs), theirs, tensors, call) for call in range(CALLS)]
    except (RuntimeError, NotImplementedError):
        return "eager raises"
    if wants[0][1] is None:
        return "no gradient"
    compiled = broach.compile(program(ours))
    for call, (results, want) in enumerate(wants):
        have_results, have = gradients(compiled, ours, tensors, call)
        direct.assert_same(have_results, results, f"call {call}, result", slack=4.0)
        assert have is not None, f"call {call}: no result needs gradients, as eager's do"
        for at, (h, w) in enumerate(zip(have, want, strict=True)):
            assert (h is None) == (w is None), f"call {call}, gradient {at}: {h}, eager has {w}"
            if w is not None:
                direct.assert_same_tensor(h, w, f"call {call}, gradient {at}", slack=8.0)
    direct.assert_same(dict(ours.state_dict()), dict(theirs.state_dict()), "parameter or buffer")
    return None


@pytest.mark.parametrize("info", [m for m in module_db if not ONLY or m.name in ONLY], ids=lambda m: m.formatted_name)
def test_gradient(info):
    failures, reasons, compared = [], set(), 0
    for dtype in DTYPES:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        for training in (True, False) if ALL else (True,):
            for number, sample in enumerate(samples_of(info, dtype, training)):
                try:
                    why = run(info, dtype, training, sample)
                except Exception as error:
                    failures.append(f"{dtype} {'train' if training else 'eval'} sample {number} {sample.desc}: {type(error).__name__}: {error}")
                    continue
                compared += why is None
                reasons.add(why)
    assert not failures, "\n".join(failures)
    if not compared:
        pytest.skip(", ".join(sorted(r for r in reasons if r)) or "no samples in these types")
