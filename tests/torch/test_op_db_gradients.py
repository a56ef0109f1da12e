"""Gradients of every operation of PyTorch's own test database: the compiled call's must equal eager's.

Two float32 samples of each operation; all samples, and float64 and bfloat16, with BROACH_TEST_ALL=1. BROACH_TEST_OPS=name,name
and BROACH_TEST_TYPES=type,type narrow it.
"""

from __future__ import annotations

import itertools
import random

import direct
import pytest
import torch
from test_op_db import ALL, CONSIDERED, LARGEST, ONLY, TYPES, name_of, tensors_of
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import broach

DTYPES = [torch.float32, torch.float64, torch.bfloat16] if ALL else [torch.float32]
OPS = [op for op in op_db if op.supports_autograd and (not ONLY or name_of(op) in ONLY)]


def samples_of(op, dtype):
    torch.manual_seed(0)
    every = op.sample_inputs("cpu", dtype, requires_grad=True)
    if ALL:
        yield from every
        return
    some = [s for s in itertools.islice(every, CONSIDERED) if all(t.numel() <= LARGEST for t in tensors_of(s)[0])]
    yield from some if len(some) <= 2 else random.Random(name_of(op)).sample(some, 2)


def gradients(program, tensors, call):
    """Results, and the gradients of the tensors by random tangents; None where eager has none."""
    torch.manual_seed(call)
    own = [t.detach().requires_grad_(t0.requires_grad) for t, t0 in zip(direct.fresh(tensors), tensors)]
    results = [r for r in pytree.tree_leaves(program(*own)) if isinstance(r, torch.Tensor)]
    with_history = [r for r in results if r.requires_grad]
    wanted = [t for t in own if t.requires_grad]
    if not with_history or not wanted:
        return results, None
    # Laid out as the results are: gradients lie as eager's do in the recorded call, whose tangents do.
    tangents = [torch.rand_like(r, dtype=torch.float64).to(r.dtype) for r in with_history]
    return results, torch.autograd.grad(with_history, wanted, tangents, allow_unused=True)


def run(op, dtype, sample) -> str | None:
    """Checks one sample; the reason where it cannot be compared."""
    tensors, place = tensors_of(sample)
    if any(t.is_quantized or t.layout != torch.strided or not t.is_cpu for t in tensors):
        return "not a plain tensor"
    if not any(t.requires_grad for t in tensors):
        return "no input needs gradients"

    def program(*given):
        first, args, kwargs = place(given)
        return op(first, *args, **kwargs)

    state = torch.get_rng_state()
    try:
        wants = [gradients(program, tensors, call) for call in range(3)]
        again = gradients(program, tensors, 0)
    except Exception:
        return "eager raises"
    finally:
        torch.set_rng_state(state)
    if wants[0][1] is None:
        return "no gradient"
    try:
        direct.assert_same(again, wants[0])
    except AssertionError:
        return "eager differs from call to call"
    compiled = broach.compile(program)
    for call, (results, want) in enumerate(wants):
        have_results, have = gradients(compiled, tensors, call)
        direct.assert_same(have_results, results, f"call {call}, result")
        assert have is not None, f"call {call}: no result needs gradients, as eager's do"
        assert [r.requires_grad for r in have_results] == [r.requires_grad for r in results], f"call {call}: requires_grad differs"
        for at, (h, w) in enumerate(zip(have, want, strict=True)):
            assert (h is None) == (w is None), f"call {call}, gradient {at}: {h}, eager has {w}"
            if w is not None:
                direct.assert_same_tensor(h, w, f"call {call}, gradient {at}", slack=8.0)
    return None


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_gradient(op):
    failures, reasons, compared = [], set(), 0
    with torch.enable_grad():
        for dtype in DTYPES:
            if dtype not in op.supported_backward_dtypes("cpu") or (TYPES and direct.short(dtype) not in TYPES):
                continue
            for number, sample in enumerate(samples_of(op, dtype)):
                try:
                    why = run(op, dtype, sample)
                except Exception as error:
                    failures.append(f"{dtype} sample {number} {sample.summary()}: {type(error).__name__}: {error}")
                    continue
                compared += why is None
                reasons.add(why)
    assert not failures, "\n".join(failures)
    if not compared:
        pytest.skip(", ".join(sorted(r for r in reasons if r)) or "no samples in these types")
