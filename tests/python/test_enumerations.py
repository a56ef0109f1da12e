"""Members of enumerations that C++ code makes, as torch's backends of attention are: named, kept, compared and changed."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F
from compared import difference, native, stats
from torch import nn
from torch.nn.attention import SDPBackend


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.backends, self.preferred = [SDPBackend.MATH], SDPBackend.FLASH_ATTENTION
        self.by_backend = {SDPBackend.MATH: 2.0, SDPBackend.FLASH_ATTENTION: 3.0}

    def forward(self, q):
        q = q * self.by_backend[self.preferred]
        if self.preferred == SDPBackend.MATH or SDPBackend.EFFICIENT_ATTENTION in self.backends:
            q = q + 1
        return F.scaled_dot_product_attention(q, q, q), self.preferred.name


def test_a_member_that_changes_is_seen():
    model = _Attention()
    compiled = native(model)
    q = torch.randn(2, 4, 6, 8)

    def check():
        for _ in range(3):
            assert not difference(model(q), compiled(q))

    check()
    model.preferred = SDPBackend.MATH
    check()
    model.preferred = SDPBackend.FLASH_ATTENTION
    model.backends.append(SDPBackend.EFFICIENT_ATTENTION)
    check()
    model.by_backend[SDPBackend.FLASH_ATTENTION] = 5.0
    check()
    assert stats(compiled)["compiled_calls"] >= 4


@pytest.mark.parametrize("make", [lambda: SDPBackend.MATH, lambda: SDPBackend(int(SDPBackend.MATH))], ids=["named", "by number"])
def test_a_member_as_an_argument(make):
    def program(q, backend):
        return q * (2 if backend == SDPBackend.MATH else 3)



    compiled = broach.compile(program)
    for _ in range(3):
        for backend in (make(), SDPBackend.FLASH_ATTENTION):
            q = torch.randn(3)
            assert not difference(program(q, backend), compiled(q, backend))
