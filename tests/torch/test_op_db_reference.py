"""A part of PyTorch's own test database on the reference target, whose memory the host cannot address and whose errors come late: what
passes there asks for no compiler, no library and no address. BROACH_TEST_TARGET=reference runs the whole database there."""

from __future__ import annotations

import direct
import pytest
import torch
from op_db_expected import EXPECTED, SKIPPED
from samples import Samples
from test_op_db import name_of, op_db, run, samples_of

EVERY = 8  # of the operations
TYPES = (torch.float32, torch.int64)


@pytest.mark.parametrize("op", op_db[3::EVERY], ids=name_of)
@torch.no_grad()
def test_op(op, monkeypatch):
    if name_of(op) in SKIPPED:
        pytest.skip(SKIPPED[name_of(op)])
    monkeypatch.setattr(direct, "TARGET", "reference")
    monkeypatch.setattr(direct, "RAN", [])  # the table is of the CPU's
    samples = Samples()
    for dtype in TYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        for sample in list(samples_of(op, dtype))[:1]:
            samples.run(dtype, sample.summary(), lambda: run(op, dtype, sample))
    samples.assert_none_failed(lambda dtype: (name_of(op), dtype) in EXPECTED)
    samples.skip_if_none_compared()
