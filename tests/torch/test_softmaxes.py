"""Softmax and its kin where values are not finite: their maximum may pass over NaNs, which must come back in what is stored."""

import pytest
import torch

import broach

INF, NAN = float("inf"), float("nan")

FUNCTIONS = {
    "softmax": lambda x, d: x.softmax(d),
    "log_softmax": lambda x, d: x.log_softmax(d),
    "logsumexp": lambda x, d: x.logsumexp(d),
    "with its maximum": lambda x, d: (x.softmax(d), x.amax(d)),
    "masked": lambda x, d: torch.where(x > 0, x.softmax(d), 0.0),
    "greatest weight": lambda x, d: x.softmax(d).amax(d),
    "by hand": lambda x, d: (x - x.amax(d, keepdim=True)).exp() / (x - x.amax(d, keepdim=True)).exp().sum(d, keepdim=True),
    "one term of two": lambda x, d: x.amax(d, keepdim=True) * 2 + x.softmax(d).clamp(0, 1),
    "weighted": lambda x, d: x / (x - x.amax(d, keepdim=True)).exp().sum(d, keepdim=True),
}


def _rows(columns):
    torch.manual_seed(0)
    x = torch.randn(10, columns) * 8
    x[0, 3] = NAN
    x[1, columns - 1] = NAN
    x[2, 0], x[2, 5] = NAN, INF
    x[3] = NAN
    x[4, 7] = INF
    x[5, 2:9] = INF
    x[6] = -INF
    x[7, : columns // 2] = -INF
    x[8, 1] = 3e38
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("columns", [13, 150, 1024])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_not_finite(name, columns, dtype):
    function, rows = FUNCTIONS[name], _rows(columns).to(dtype)
    # Eager's log_softmax of bf16 loses logarithms below 4e-3.
    tolerance = {"rtol": 2e-2, "atol": 5e-3} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    for x, dim in ((rows, 1), (rows.t().contiguous(), 0)):
        with torch.no_grad():
            fast = broach.compile(lambda x: function(x, dim), fullgraph=True)
            fast(x)
            torch.testing.assert_close(fast(x), function(x, dim), equal_nan=True, **tolerance)


def test_quotients_are_rounded_as_divided_ones():
    def parts(x):
        terms = (x - x.amax(1, keepdim=True)).exp()
        return terms, terms.sum(1, keepdim=True)

    torch.manual_seed(0)
    x = torch.randn(64, 1000) * 5
    with torch.no_grad():
        weights, (terms, total) = [[fast(x), fast(x)][1] for fast in (broach.compile(lambda x: x.softmax(1)), broach.compile(parts))]
    # By the inverse alone every fourth would differ.
    assert (weights != terms / total).double().mean() < 1e-3
