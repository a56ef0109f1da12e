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
from samples import Samples, assert_same_gradients, gradients
from test_op_db import ALL, CONSIDERED, LARGEST, ONLY, TYPES, name_of, tensors_of
from torch.testing._internal.common_methods_invocations import op_db

import broach

DTYPES = [torch.float32, torch.float64, torch.bfloat16] if ALL else [torch.float32]
OPS = [op for op in op_db if op.supports_autograd and (not ONLY or name_of(op) in ONLY)]


def samples_of(op, dtype):
    torch.manual_seed(0)
    every = op.sample_inputs(direct.DEVICE, dtype, requires_grad=True)
    if ALL:
        yield from every
        return
    some = [s for s in itertools.islice(every, CONSIDERED) if all(t.numel() <= LARGEST for t in tensors_of(s)[0])]
    yield from some if len(some) <= 2 else random.Random(name_of(op)).sample(some, 2)


def run(op, dtype, sample) -> str | None:
    """Checks one sample; the reason where it cannot be compared."""
    tensors, place = tensors_of(sample)
    if any(t.is_quantized or t.layout != torch.strided or t.device.type != direct.DEVICE for t in tensors):
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
    for call, want in enumerate(wants):
        assert_same_gradients(gradients(compiled, tensors, call), want, call, slack=1.0)
    return None


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_gradient(op):
    samples = Samples()
    with torch.enable_grad():
        for dtype in DTYPES:
            if dtype not in op.supported_backward_dtypes("cpu") or (TYPES and direct.short(dtype) not in TYPES):
                continue
            for number, sample in enumerate(samples_of(op, dtype)):
                samples.run(dtype, f"sample {number} {sample.summary()}", lambda: run(op, dtype, sample))
    samples.assert_none_failed()
    samples.skip_if_none_compared()
