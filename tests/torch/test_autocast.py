"""Autocast around compiled programs."""

from __future__ import annotations

import broach
import pytest
import torch
from direct import assert_same
from torch import nn


@pytest.mark.parametrize("through", ["native", "dynamo"])
@pytest.mark.parametrize("asks", [False, True], ids=["", "with a block of its own"])
@torch.no_grad()
def test_autocasts_copies_of_weights_are_not_the_programs(through, asks):
    """They are kept from an eager run before, in the same block."""

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            if asks:
                with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
                    return self.other(self.one(x))
            return self.other(self.one(x))

    model, x = Layers().eval(), torch.randn(4, 8)
    compiled = broach.compile(model, options={"capture": through})
    for _ in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = model(x)
            assert_same(compiled(x), expected, slack=20)
            assert torch.is_autocast_cache_enabled()
        model.one.weight.data = torch.randn(8, 8)
        model.other.weight.copy_(torch.randn(8, 8))
