"""Devices that nothing is compiled for: programs over them run as they do eagerly, and the reason names the device."""

from __future__ import annotations

import broach
import pytest
import torch

NO_TARGET = "this build has no target for"


@torch.no_grad()
@pytest.mark.parametrize("front", ["native", "dynamo"])
def test_a_call_with_tensors_on_meta(front):
    program = broach.compile(lambda x, y: torch.relu(x) + y, options={"capture": front})
    x = torch.randn(3)
    for given in [(x.to("meta"), x.to("meta")), (x, x), (x, x), (torch.ones((), device="meta"), x.to("meta"))]:
        got, want = program(*given), torch.relu(given[0]) + given[1]
        assert got.device == want.device and got.shape == want.shape
        assert got.is_meta or torch.equal(got, want)
    reasons = broach.explain(program, x.to("meta"), x.to("meta")).eager_reasons
    assert any("on meta" in why and NO_TARGET in why for why in reasons), reasons


@torch.no_grad()
def test_a_program_that_makes_tensors_on_meta():
    def program(x):
        shape = torch.empty(x.shape, device="meta").t().shape
        return x.reshape(shape) * 2

    compiled, x = broach.compile(program), torch.randn(3, 2)
    for _ in range(3):
        assert torch.equal(compiled(x), program(x))
    with pytest.raises(broach.CaptureError, match=f"a tensor on meta: {NO_TARGET} that device"):
        broach.compile(program, options={"capture": "native"})(x)


@torch.no_grad()
def test_sparse_tensors():
    compiled = broach.compile(lambda x, y: x @ y + y)
    x, y = torch.eye(3).to_sparse(), torch.randn(3, 3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), x @ y + y)
    assert any("SparseCPUFloatType" in why for why in broach.explain(compiled, x, y).eager_reasons)


@torch.no_grad()
def test_autocast_of_another_device_is_no_reason_to_run_eagerly():
    compiled, x = broach.compile(torch.nn.Linear(3, 3)), torch.randn(2, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = compiled(x)
        with torch.autocast("xpu", dtype=torch.bfloat16):
            for _ in range(2):
                assert torch.equal(compiled(x), want)
    assert compiled(x).dtype == torch.float32 and want.dtype == torch.bfloat16
