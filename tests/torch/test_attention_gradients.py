"""Gradients of scaled_dot_product_attention as eager picks it on the CPU: one routine, no call of ATen."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

import broach

# Sums of some hundred products of standard normal numbers, in another order.
CLOSE = {"rtol": 1e-4, "atol": 2e-5}


def heads(batch, count, length, depth, dtype=torch.float32):
    return torch.randn(batch, length, count, depth, dtype=dtype).transpose(1, 2)


def compare(fast, program, tensors, tolerance, needed=None):
    needed = tensors if needed is None else needed
    for t in needed:
        t.requires_grad_()
    got, want = fast(*tensors), program(*tensors)
    torch.testing.assert_close(got, want, **tolerance)
    tangent = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(got, needed, tangent), torch.autograd.grad(want, needed, tangent), strict=True):
        assert a.stride() == b.stride() and a.dtype == b.dtype
        torch.testing.assert_close(a, b, **tolerance)


def externs(fast):
    return {op for p in fast.stats()["programs"] for op in p["externs"]}


@pytest.mark.parametrize("sizes", [(2, 3, 37, 70, 16), (1, 2, 200, 300, 64), (1, 1, 5, 9, 3), (2, 2, 130, 130, 80), (40, 1, 8, 8, 128)])
@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "number"])
def test_gradients_equal_eagers(mask, sizes):
    torch.manual_seed(0)
    batch, count, rows, keys, depth = sizes
    given = {"boolean": torch.rand(batch, 1, 1, keys) > 0.3, "number": torch.randn(rows, keys)}.get(mask)
    program = lambda q, k, v: attention(q, k, v, attn_mask=given, is_causal=mask == "causal").sin()
    fast = broach.compile(program)
    for _ in range(3):
        compare(fast, program, [heads(batch, count, n, depth) for n in (rows, keys, keys)], CLOSE)
    assert not externs(fast)


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 2)])
def test_only_the_gradients_that_are_needed(which):
    program = lambda q, k, v: attention(q, k, v, scale=0.7)
    fast = broach.compile(program)
    for _ in range(3):
        tensors = [heads(2, 3, n, 16) for n in (20, 33, 33)]
        compare(fast, program, tensors, CLOSE, [tensors[i] for i in which])


def test_one_tensor_for_all():
    program = lambda x: attention(x, x, x, is_causal=True)
    fast = broach.compile(program)
    for _ in range(3):
        compare(fast, program, [heads(2, 2, 65, 32)], CLOSE)


@pytest.mark.parametrize("lie", ["contiguous", "transposed", "strided"])
def test_operands_as_they_lie(lie):
    def lay(t):
        return {"contiguous": t.contiguous(), "transposed": t.mT.contiguous().mT, "strided": torch.stack([t, t], -1)[..., 0]}[lie].detach()

    program = lambda q, k, v: attention(q, k, v)
    fast = broach.compile(program)
    for _ in range(3):
        compare(fast, program, [lay(heads(2, 3, n, 24)) for n in (20, 33, 33)], CLOSE)


def test_a_row_that_sees_nothing_is_as_in_eager():
    given = torch.ones(2, 1, 9, 20, dtype=torch.bool)
    given[1, :, 5] = False
    program = lambda q, k, v: attention(q, k, v, attn_mask=given)
    fast = broach.compile(program)
    for _ in range(3):
        compare(fast, program, [heads(2, 3, n, 16) for n in (9, 20, 20)], {**CLOSE, "equal_nan": True})


def test_the_length_changes_without_another_program():
    program = lambda x: attention(x, x, x, is_causal=True).exp()
    fast = broach.compile(program, dynamic=True)
    for batch, length in ((2, 30), (3, 30), (2, 140), (5, 7)):
        compare(fast, program, [heads(batch, 2, length, 16)], CLOSE)
    assert fast.stats()["captures"] <= 2 and not externs(fast)


@pytest.mark.parametrize("sizes", [(37, 71, 16, False), (197, 197, 64, False), (150, 150, 64, True), (9, 33, 15, False)])
def test_half_precision_is_no_farther_from_the_truth(sizes):
    rows, keys, depth, causal = sizes
    torch.manual_seed(0)
    program = lambda q, k, v: attention(q, k, v, is_causal=causal)
    fast = broach.compile(program)
    tensors = [heads(2, 3, n, depth, torch.bfloat16).requires_grad_() for n in (rows, keys, keys)]
    tangent = torch.randn(2, 3, rows, depth, dtype=torch.bfloat16)
    grad = lambda run, ts, t: torch.autograd.grad(run(*ts), ts, t)
    grad(fast, tensors, tangent)
    exact = grad(program, [t.detach().double().requires_grad_() for t in tensors], tangent.double())
    for true, mine, eagers in zip(exact, grad(fast, tensors, tangent), grad(program, tensors, tangent), strict=True):
        mine, eagers = (mine.double() - true).abs(), (eagers.double() - true).abs()
        assert mine.mean() <= 1.1 * eagers.mean() and mine.max() <= 1.5 * eagers.max()
    assert not externs(fast)


@pytest.mark.parametrize("sizes", [(1, 2, 0, 5), (1, 2, 5, 0), (0, 2, 5, 5)])
def test_empty(sizes):
    batch, count, rows, keys = sizes
    program = lambda q, k, v: attention(q, k, v)
    fast = broach.compile(program)
    for _ in range(3):
        compare(fast, program, [heads(batch, count, n, 8) for n in (rows, keys, keys)], CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count, own, mask", [(6, 2, "none"), (4, 1, "causal"), (4, 2, "number")])
def test_grouped_queries(count, own, mask, dtype):
    """Keys and values of fewer heads, each for several of the queries', and lengths that change."""
    torch.manual_seed(0)
    given = torch.randn(2, 1, 40, 40, dtype=dtype) if mask == "number" else None

    def program(q, k, v):
        rows, keys = q.shape[2], k.shape[2]
        sliced = None if given is None else given[:, :, :rows, :keys]
        return attention(q, k, v, attn_mask=sliced, is_causal=mask == "causal", enable_gqa=True)

    fast = broach.compile(program)
    tolerance = CLOSE if dtype == torch.float32 else {"rtol": 3e-2, "atol": 6e-2}
    for rows, keys in ((20, 33), (20, 33), (40, 40), (7, 12)):
        compare(fast, program, [heads(2, n, length, 16, dtype) for n, length in ((count, rows), (own, keys), (own, keys))], tolerance)
    assert not externs(fast)
    with torch.no_grad():
        q, k, v = (heads(2, n, 20, 16, dtype) for n in (count, own, own))
        torch.testing.assert_close(fast(q, k, v), program(q, k, v), **tolerance)
        assert not broach.explain(fast, q, k, v).externs
