"""Gradients of every module of PyTorch's own test database: those of its inputs and parameters must equal eager's, and so must
the buffers that a step of training leaves.

Two float32 samples of each module in training; all samples, both modes, and float64, with BROACH_TEST_ALL=1.
BROACH_TEST_OPS=name,name narrows it to modules.
"""

from __future__ import annotations

import random

import direct
import pytest
import torch
from samples import Samples, assert_same_gradients, gradients
from test_module_db import ALL, ONLY, build
from torch.testing._internal.common_modules import module_db

import broach

DTYPES = [torch.float32, torch.float64] if ALL else [torch.float32]
CALLS = 3


def samples_of(info, dtype, training):
    torch.manual_seed(0)
    every = info.module_inputs_func(info, device=direct.DEVICE, dtype=dtype, requires_grad=True, training=training)
    return every if ALL or len(every) <= 2 else random.Random(info.name).sample(every, 2)


def run(info, dtype, training, sample) -> str | None:
    """Checks one sample; the reason where it cannot be compared."""
    built = build(info, dtype, training, sample)
    if built is None:
        return "not a plain tensor"
    theirs, ours, program, tensors = built
    try:
        wants = [gradients(program(theirs), tensors, call, [*theirs.parameters()]) for call in range(CALLS)]
    except (RuntimeError, NotImplementedError):
        return "eager raises"
    if wants[0][1] is None:
        return "no gradient"
    compiled = broach.compile(program(ours))
    for call, want in enumerate(wants):
        assert_same_gradients(gradients(compiled, tensors, call, [*ours.parameters()]), want, call, slack=4.0)
    direct.assert_same(dict(ours.state_dict()), dict(theirs.state_dict()), "parameter or buffer")
    return None


@pytest.mark.parametrize("info", [m for m in module_db if not ONLY or m.name in ONLY], ids=lambda m: m.formatted_name)
def test_gradient(info):
    samples = Samples()
    for dtype in DTYPES:
        if dtype not in info.supported_dtypes("cpu"):
            continue
        for training in (True, False) if ALL else (True,):
            for number, sample in enumerate(samples_of(info, dtype, training)):
                name = f"{'train' if training else 'eval'} sample {number} {sample.desc}"
                samples.run(dtype, name, lambda: run(info, dtype, training, sample))
    samples.assert_none_failed()
    samples.skip_if_none_compared()
