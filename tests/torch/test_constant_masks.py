"""Masks that a program makes of sizes alone: attention is told what they say."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

import broach


def _below(n):
    positions = torch.arange(n)
    return (positions[None, :] <= positions[:, None]) & torch.ones((), dtype=torch.bool)


MASKS = {
    "causal": (lambda q: _below(q.shape[-2]), True, False),
    "causal, by number": (lambda q: torch.zeros(q.shape[-2], q.shape[-2]).masked_fill(~_below(q.shape[-2]), -torch.inf), True, False),
    "open": (lambda q: (torch.arange(q.shape[-2]) >= 0).expand(q.shape[-2], -1), False, False),
    "a band": (lambda q: _below(q.shape[-2]) & ~_below(q.shape[-2]).roll(4, 0), False, True),
    "of what is given": (lambda q: _below(q.shape[-2]) | (q[0, 0, :, :1] > 100), False, True),
    "a finite number": (lambda q: torch.zeros(q.shape[-2], q.shape[-2]).masked_fill(~_below(q.shape[-2]), -3.0), False, True),
}


@torch.no_grad()
@pytest.mark.parametrize("name", MASKS)
def test_constant_masks_are_recognised(name):
    make, is_causal, has_mask = MASKS[name]
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 16, 8) for _ in range(3))

    def program(q, k, v):
        return attention(q, k, v, attn_mask=make(q))

    compiled = broach.compile(program)
    compiled(q, k, v)
    torch.testing.assert_close(compiled(q, k, v), program(q, k, v), rtol=1e-5, atol=1e-6)
    text = broach.explain(compiled, q, k, v).graph_text
    calls = [line for line in text.splitlines() if " attention(" in line]
    assert len(calls) == 1
    assert ("causal=1" in calls[0]) == is_causal, calls
    assert (calls[0].split("attention(")[1].split(",")[3].strip().startswith("%")) == has_mask, calls


@torch.no_grad()
def test_other_sizes_have_masks_of_their_own():
    """In another size the mask is not causal any more."""

    def program(q):
        n = q.shape[-2]
        near = torch.arange(n)[:, None] - torch.arange(n)[None, :]
        return attention(q, q, q, attn_mask=(near >= 0) & (near < 8))

    compiled = broach.compile(program)
    for n in (6, 6, 12, 12, 20, 6):
        q = torch.randn(1, 2, n, 8)
        torch.testing.assert_close(compiled(q), program(q), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_a_mask_that_is_written_is_read_anew():
    mask = torch.ones(8, 8, dtype=torch.bool)

    def program(q):
        own = torch.ones(8, 8, dtype=torch.bool)
        own[:, 4:] = q[0, 0, 0, 0] > 0
        return attention(q, q, q, attn_mask=own), attention(q, q, q, attn_mask=mask)

    compiled = broach.compile(program)
    for i in range(6):
        q = torch.randn(1, 2, 8, 8)
        q[0, 0, 0, 0] = 1.0 if i % 2 else -1.0
        mask[:, 6] = i % 3 > 0
        torch.testing.assert_close(compiled(q), program(q), rtol=1e-5, atol=1e-6)
