"""Programs that cannot be compiled as a whole, on a GPU: the modules that they call are."""

from __future__ import annotations

import copy
import random

import broach
import pytest
import torch
from torch import nn


class Skipping(nn.Module):
    """Leaves blocks out by a number of Python's, which no compiled program draws."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(3))

    def forward(self, x, draw):
        for block in self.blocks:
            if draw.random() > 0.3:
                x = x + block(x)
        return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_modules_of_a_program_that_runs_eagerly(dtype):
    def trained(model, call):
        draw = random.Random(0)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        losses = []
        torch.manual_seed(0)
        for step in range(16):
            x = torch.randn(4 + step % 2, 5, 16, device="cuda")
            with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
                loss = call(x, draw).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return torch.tensor(losses)

    model = Skipping().cuda()
    twin = copy.deepcopy(model)
    compiled = broach.compile(model)
    tolerance = 1e-3 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(trained(model, compiled), trained(twin, twin), rtol=tolerance, atol=tolerance)
    told = broach.explain(compiled, torch.randn(4, 5, 16, device="cuda"), random.Random(0))
    assert told.front == "eager" and told.parts == 3 and told.kernels > 0
