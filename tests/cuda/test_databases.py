"""PyTorch's own databases of operations and modules on the GPU: results and gradients must equal eager's there.

Of an operation's results two samples in float32, bfloat16 and int64, of a module's three in float32, of gradients one; BROACH_TEST_ALL=1
takes all of test_op_db.py's and test_module_db.py's, BROACH_TEST_OPS=name,name narrows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch"))

pytest.importorskip("expecttest", reason="torch.testing._internal needs it")

import direct
import test_module_db
import test_module_db_gradients
import test_op_db
import test_op_db_gradients
from op_db_expected import SKIPPED
from samples import Samples
from test_op_db import ALL, ONLY, name_of, op_db
from torch.testing._internal.common_modules import module_db

OPS = [op for op in op_db if not ONLY or name_of(op) in ONLY]
MODULES = [m for m in module_db if not ONLY or m.name in ONLY]
SKIPPED_HERE = SKIPPED | {"torch.ops.aten._efficient_attention_forward": "without dropout its seed is memory that nothing has written"}
FEW = 3  # of a module's samples in the bounded run


@pytest.fixture(autouse=True)
def _on_the_gpu(monkeypatch):
    monkeypatch.setattr(direct, "DEVICE", "cuda")
    monkeypatch.setattr(direct, "RAN", [])  # the table is of the CPU's
    # Eager's convolutions and ours may take different algorithms, whose TF32 differs in the third digit.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def some(samples, count: int):
    samples = list(samples)
    return samples if ALL else samples[:count]


@pytest.mark.parametrize("op", OPS, ids=name_of)
@torch.no_grad()
def test_op(op):
    if name_of(op) in SKIPPED_HERE:
        pytest.skip(SKIPPED_HERE[name_of(op)])
    samples = Samples()
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        if dtype in op.supported_dtypes("cuda"):
            for sample in some(test_op_db.samples_of(op, dtype), 2):
                samples.run(dtype, sample.summary(), lambda: test_op_db.run(op, dtype, sample))
    samples.assert_none_failed()
    samples.skip_if_none_compared()


@pytest.mark.parametrize("op", [op for op in OPS if op.supports_autograd], ids=name_of)
def test_gradient_of_an_op(op):
    samples = Samples()
    if torch.float32 in op.supported_backward_dtypes("cuda"):
        for sample in some(test_op_db_gradients.samples_of(op, torch.float32), 1):
            samples.run(torch.float32, sample.summary(), lambda: test_op_db_gradients.run(op, torch.float32, sample))
    samples.assert_none_failed()
    samples.skip_if_none_compared()


@pytest.mark.parametrize("info", MODULES, ids=lambda m: m.formatted_name)
@torch.no_grad()
def test_module(info):
    samples = Samples()
    for training in (False, True) if info.train_and_eval_differ else (False,):
        every = info.module_inputs_func(info, device="cuda", dtype=torch.float32, requires_grad=False, training=training)
        for sample in some(every, FEW):
            samples.run(torch.float32, sample.desc, lambda: test_module_db.run(info, torch.float32, training, sample))
    samples.assert_none_failed()
    samples.skip_if_none_compared()


@pytest.mark.parametrize("info", MODULES, ids=lambda m: m.formatted_name)
def test_gradient_of_a_module(info):
    samples = Samples()
    for sample in some(test_module_db_gradients.samples_of(info, torch.float32, True), 1):
        samples.run(torch.float32, sample.desc, lambda: test_module_db_gradients.run(info, torch.float32, True, sample))
    samples.assert_none_failed()
    samples.skip_if_none_compared()
