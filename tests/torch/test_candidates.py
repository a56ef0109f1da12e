"""Matrix products are computed by whichever candidate is the fastest on the program's own calls, unless that is pinned."""

import threading

import pytest
import torch
from torch import nn

import broach
from broach._native import _C

pytestmark = pytest.mark.skipif(not _C.has_onednn(), reason="without oneDNN there is one candidate only")

ENOUGH = 220  # calls after which everything is decided and packed

NO_BF16 = pytest.mark.skipif(not _C.has_bf16_contractions(), reason="on this processor the library has no products of bf16")
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=NO_BF16)]


def _linears(rows, width, count=3):
    """Every test has a width of its own, since what was measured holds for the process, and one that needs no padding."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count))).eval(), torch.randn(rows, width)


def _many(fast, x, calls=ENOUGH):
    return [fast(x) for _ in range(calls)]


def _settled(fast, x):
    """What is told once everything is decided. Where the machine is busy, that takes more calls, and may have to be done again."""
    for _ in range(10):
        results = _many(fast, x)
        told = broach.explain(fast, x)
        if not any("being measured" in pick for pick in told.picks):
            break
    return told, results


# A machine that is busy may have no time for one of the candidates, and then decides among the others: another shape is a new start.
@pytest.mark.parametrize("rows, widths", [(256, (576, 512, 544, 608)), (4, (640, 672, 736, 768))])
def test_candidates_are_measured_and_agree(rows, widths):
    for width in widths:
        model, x = _linears(rows, width)
        with torch.no_grad():
            fast, expected = broach.compile(model), model(x)
            fast(x)
            fast(x)
            (early,) = broach.explain(fast, x).picks
            told, results = _settled(fast, x)
        (pick,) = told.picks
        assert "being measured" in early and "being measured" not in pick
        for actual in results:
            torch.testing.assert_close(actual, expected)
        assert all(torch.equal(results[-1], r) for r in results[-10:])
        if all(f"{name} " in pick.split("[")[1] for name in ("plain", "packed", "aten")):
            return
    pytest.fail(f"of no shape all candidates were measured: {pick}")


def test_only_what_won_stays_packed():
    model, x = _linears(256, 704)
    with torch.no_grad():
        fast = broach.compile(model)
        _many(fast, x, 2)
        assert broach.explain(fast, x).packed_bytes <= 1.1 * model[0].weight.nbytes  # one to try
        told, _ = _settled(fast, x)
    assert told.packed_bytes == (3 * model[0].weight.nbytes if " packed [" in next(iter(told.picks)) else 0)


def test_a_write_is_seen_before_and_after_the_decision():
    model, x = _linears(256, 832)
    with torch.no_grad():
        fast = broach.compile(model)
        for _ in range(30):
            model[1].weight[3, 5] += 1.0
            torch.testing.assert_close(fast(x), model(x))
        _many(fast, x)
        model[1].weight[3, 5] -= 7.0
        torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("how", ["option", "algorithms", "mkldnn"])
def test_the_rule_can_be_pinned(how):
    model, x = _linears(256, 896)
    torch.use_deterministic_algorithms(how == "algorithms")
    try:
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=True, deterministic=how == "mkldnn", allow_tf32=None):
            fast = broach.compile(model, options={"deterministic": how == "option"})
            fast(x)
            results = _many(fast, x, 20)
            picks = broach.explain(fast, x).picks
    finally:
        torch.use_deterministic_algorithms(False)
    assert all("[" not in pick for pick in picks)
    assert all(torch.equal(results[0], r) for r in results)


def test_threads_measure_together():
    model, x = _linears(256, 960)
    wrong = []
    with torch.no_grad():
        fast, expected = broach.compile(model), model(x)
        fast(x)

    def work():
        with torch.no_grad():
            wrong.extend(r for r in _many(fast, x, 30) if not torch.allclose(r, expected, rtol=1e-4, atol=1e-5))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    with torch.no_grad():
        told, _ = _settled(fast, x)  # calls at the same time may count as one
    assert not any("being measured" in pick for pick in told.picks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, width, most", [(4, 592, 1.03), (64, 592, 1.06), (4, 1000, 1.01), (4, 608, 1.0)])
def test_packed_weights_are_padded_little(rows, width, most, dtype):
    torch.manual_seed(0)
    model, x = nn.Linear(512, width).eval().to(dtype), torch.randn(rows, 512).to(dtype)
    with torch.no_grad():
        fast = broach.compile(model, options={"deterministic": True})
        fast(x)
        actual, told = fast(x), broach.explain(fast, x)
        close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(actual, model(x), **close)
    assert 0.999 * model.weight.nbytes <= told.packed_bytes <= most * model.weight.nbytes


CONVOLUTIONS = {
    "transposed": (lambda: nn.ConvTranspose2d(32, 16, 2, stride=2), (2, 32, 24, 24)),
    "transposed, large kernel": (lambda: nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1), (2, 32, 24, 24)),
    "transposed, grouped": (lambda: nn.ConvTranspose2d(32, 16, 3, groups=4), (2, 32, 24, 24)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(32, 16, 4, stride=2), (4, 32, 400)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(8, 8, 2, stride=2), (1, 8, 12, 12, 12)),
    "3d": (lambda: nn.Conv3d(8, 8, 3), (1, 8, 12, 16, 16)),
    "grouped": (lambda: nn.Conv2d(32, 32, 3, groups=4), (2, 32, 24, 24)),
    "depthwise": (lambda: nn.Conv2d(32, 32, 3, groups=32), (2, 32, 24, 24)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_no_convolution_runs_by_the_librarys_plain_loops(name, dtype):
    layer, shape = CONVOLUTIONS[name]
    model = nn.Sequential(layer(), nn.ReLU()).eval().to(dtype)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    with torch.no_grad():
        fast = broach.compile(model)
        for batch in (*[shape[0]] * 8, shape[0] + 1, shape[0] + 2):
            x = torch.randn(batch, *shape[1:], dtype=dtype)
            torch.testing.assert_close(fast(x), model(x), **close)
        picks = broach.explain(fast, x).picks
    assert picks and all("ref:" not in pick and "gemm:" not in pick for pick in picks), picks


def test_pinned_weights_are_packed_at_once():
    model, x = _linears(4, 1024)
    with torch.no_grad():
        fast = broach.compile(model, options={"deterministic": True})
        results = [fast(x) for _ in range(6)]
        assert broach.explain(fast, x).packed_bytes >= 3 * model[0].weight.nbytes
    assert all(torch.equal(results[1], r) for r in results[1:])


def test_measured_weights_are_packed_a_few_in_a_call():
    model, x = _linears(64, 1088, count=12)
    packed = []
    with torch.no_grad():
        fast, expected = broach.compile(model), model(x)
        for call in range(2 * ENOUGH):
            torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5)
            if call < 40:
                packed.append(broach.explain(fast, x).packed_bytes)  # which is a call, too
    if packed[-1] >= len(model) * model[0].weight.nbytes:  # packing won here; where it loses, the copies are given back
        # One for the trial, then as many as the clock allows: a call that was disturbed is long, and pays for more, or for all that are left.
        assert packed == sorted(packed) and packed[0] < packed[-1]


class _Residual(nn.Module):
    """What follows a product in a network: a bias or a norm's numbers, an activation, and a sum."""

    def __init__(self, layer, norm, act):
        super().__init__()
        self.layer, self.norm, self.act = layer, norm, act

    def forward(self, x, residual):
        return self.act(self.norm(self.layer(x))) + residual


FOLLOWED = {
    "linear": (lambda: _Residual(nn.Linear(320, 448), nn.Identity(), nn.GELU()), (77, 320), (77, 448)),
    "rows apart": (lambda: _Residual(nn.Linear(320, 448), nn.Identity(), nn.SiLU()), (77, 640), (77, 448)),
    "points": (lambda: _Residual(nn.Conv2d(64, 192, 1, bias=False), nn.BatchNorm2d(192), nn.ReLU()), (3, 64, 9, 11), (3, 192, 9, 11)),
    "points of one image": (lambda: _Residual(nn.Conv2d(96, 256, 1), nn.Identity(), nn.Hardswish()), (1, 96, 14, 14), (1, 256, 1, 14)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FOLLOWED)
def test_all_candidates_compute_what_follows(name, dtype, layout):
    """Until one is decided for, every call may be another's."""
    make, shape, other = FOLLOWED[name]
    torch.manual_seed(0)
    model, x, residual = make().eval().to(dtype), torch.randn(shape, dtype=dtype), torch.randn(other, dtype=dtype)
    if isinstance(model.norm, nn.BatchNorm2d):
        model.norm.running_mean.normal_(), model.norm.running_var.uniform_(0.5, 2)
    if x.dim() == 4:
        x, model = x.to(memory_format=layout), model.to(memory_format=layout)
    if name == "rows apart":
        x = x[:, 5:325]
    close = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 3e-2}
    with torch.no_grad():
        fast, expected = broach.compile(model), model(x, residual)
        for _ in range(ENOUGH // 4):
            torch.testing.assert_close(fast(x, residual), expected, **close)
        x[0] = float("nan")  # of one row, or image, and of no other
        actual = fast(x, residual).isnan()
        assert not actual[1:].any()
        assert actual[0].all() or isinstance(model.act, nn.ReLU)  # the library's may make 0 of it
