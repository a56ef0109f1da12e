"""scaled_dot_product_attention as eager picks it on the CPU: one routine, no call of ATen."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

import broach


def _heads(batch, heads, length, depth, dtype):
    # As models have them: heads side by side in memory.
    return torch.randn(batch, length, heads, depth, dtype=dtype).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "number"])
def test_attention_equals_eager(dtype, mask):
    torch.manual_seed(0)
    q, k, v = _heads(2, 3, 37, 16, dtype), _heads(2, 3, 70, 16, dtype), _heads(2, 3, 70, 16, dtype)
    given = {"boolean": torch.rand(2, 1, 1, 70) > 0.3, "number": torch.randn(37, 70, dtype=dtype)}.get(mask)
    if mask == "boolean":
        given = given.expand(2, 1, 37, 70).clone()
        given[1, :, 5] = False  # a query that sees nothing

    def program(q, k, v):
        return attention(q, k, v, attn_mask=given, is_causal=mask == "causal")

    with torch.no_grad():
        compiled = broach.compile(program)
        compiled(q, k, v)
        actual, expected = compiled(q, k, v), program(q, k, v)
        told = broach.explain(compiled, q, k, v)
    assert not told.externs and told.routines == 1
    assert actual.stride() == expected.stride()
    torch.testing.assert_close(actual, expected, **({"rtol": 2e-5, "atol": 2e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}))


def test_gradients_are_eagers():
    torch.manual_seed(0)
    q = _heads(1, 2, 8, 16, torch.float32).requires_grad_()
    compiled = broach.compile(lambda q: attention(q, q, q))
    (expected,) = torch.autograd.grad(attention(q, q, q).square().sum(), q)
    for _ in range(2):
        (actual,) = torch.autograd.grad(compiled(q).square().sum(), q)
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("length, keys, depth, causal", [(37, 71, 16, False), (8, 5, 80, False), (197, 197, 64, False), (300, 300, 64, True), (9, 33, 15, False), (2, 64, 32, False)])
def test_half_precision_is_no_farther_from_the_truth(length, keys, depth, causal):
    """Odd numbers of keys, odd depths, and fewer queries than pay for rearranging keys go other ways through the code."""
    torch.manual_seed(0)
    q, k, v = (_heads(2, 3, n, depth, torch.bfloat16) for n in (length, keys, keys))
    with torch.no_grad():
        compiled = broach.compile(lambda q, k, v: attention(q, k, v, is_causal=causal))
        compiled(q, k, v)
        exact = attention(q.double(), k.double(), v.double(), is_causal=causal)
        actual, eager = ((program(q, k, v).double() - exact).abs() for program in (compiled, lambda *x: attention(*x, is_causal=causal)))
    assert actual.mean() <= 1.1 * eager.mean() and actual.max() <= 1.5 * eager.max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(16, 16), (2, 1, 16, 16), (2, 1, 1, 16), (2, 3, 16, 16)])
def test_rows_hidden_by_the_lowest_number_see_all_alike(shape, dtype):
    q, k, v = (torch.randn(2, 3, 16, 64, dtype=dtype) for _ in range(3))
    mask = torch.zeros(shape, dtype=dtype)
    mask[..., 0, :] = torch.finfo(dtype).min
    mask[..., -1, 5:] = torch.finfo(dtype).min
    call = lambda *a: attention(*a[:3], attn_mask=a[3])  # noqa: E731
    fast = broach.compile(call)
    with torch.no_grad():
        want = call(q.double(), k.double(), v.double(), mask.double().clamp(-1e30))
        for _ in range(3):
            torch.testing.assert_close(fast(q, k, v, mask).double(), want, rtol=2e-2, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)


def test_scores_that_leave_one_weight_are_exact():
    """Then the result is one of the values, whatever the scores are."""
    q, k, v = torch.randn(1, 4, 190, 16).mul(30).bfloat16(), torch.randn(1, 4, 190, 16).mul(30).bfloat16(), torch.randn(1, 4, 190, 16).bfloat16()
    fast = broach.compile(lambda q, k, v: attention(q, k, v, scale=5.0))
    with torch.no_grad():
        scores = q.double() @ k.double().transpose(2, 3)
        best, index = scores.topk(2, -1)
        alone = (best[..., 0] - best[..., 1]) * 5 > 60
        want = v.gather(2, index[..., :1].expand(-1, -1, -1, 16))
        for _ in range(3):
            assert torch.equal(fast(q, k, v)[alone], want[alone])
