"""Programs on a GPU: what generated kernels, cuBLASLt's products and libtorch's operations give there, beside eager on the same device."""

from __future__ import annotations

import copy
import subprocess
import sys

import broach
import pytest
import torch
import torch.nn.functional as F
from selections import SELECTIONS, selected_with_gradient
from torch import nn

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def _close(have, want, dtype=None):
    # A function may give the number next to eager's, and sums come in another order: two units of the last place of what is added up.
    tolerance = {torch.bfloat16: (1.6e-2, 1.6e-2), torch.float16: (2e-3, 4e-3)}.get(dtype, (1e-4, 1e-4))
    torch.testing.assert_close(have, want, rtol=tolerance[0], atol=tolerance[1], equal_nan=True)


def _compiled(program, **options):
    """As a function, which counts its calls."""
    return broach.compile(lambda *args: program(*args), options=options or None)


@torch.no_grad()
def _agree(program, *args, dtype=None, calls=3, native=True, **options):
    """The compiled program gives what the program gives, for inputs that are written too; and runs compiled."""
    compiled = _compiled(program, **options)
    for _ in range(calls):
        theirs, ours = [[a.clone() if isinstance(a, torch.Tensor) else a for a in args] for _ in range(2)]
        want, have = program(*theirs), compiled(*ours)
        _close(have, want, dtype)
        _close(ours, theirs, dtype)
    report = broach.explain(compiled, *args)
    assert compiled.stats()["compiled_calls"] >= calls - 2, (report.eager_reasons, report.attempts)
    if native:
        assert not report.externs, report.externs
    return report


def _on_gpu(*sizes, dtype=torch.float32):
    return torch.randn(sizes, device="cuda", dtype=dtype)


# ---- kernels ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(7,), (1000, 768), (3, 5, 64), (), (0, 4)])
def test_elements(sizes, dtype):
    x, y = (_on_gpu(*sizes, dtype=DTYPES[dtype]) for _ in range(2))
    _agree(lambda x, y: (torch.tanh(x) * y + F.gelu(x) - torch.sigmoid(y), F.silu(y) * 2, x > y), x, y, dtype=DTYPES[dtype])


UNARY = ["abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "digamma", "erf", "erfc", "erfinv", "exp", "exp2",
         "expm1", "floor", "frac", "isnan", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "relu", "round", "rsqrt", "sgn",
         "sigmoid", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc"]  # fmt: skip
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1e-30, 1e30, float("inf"), -float("inf"), float("nan")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions(dtype):
    x = torch.cat([torch.tensor(SPECIAL), torch.randn(1000) * 3]).to("cuda", dtype)
    _agree(lambda x: [getattr(torch, name)(x) for name in UNARY], x)
    _agree(lambda x: [F.gelu(x), F.gelu(x, approximate="tanh"), F.silu(x), F.softplus(x), F.mish(x), F.hardswish(x), F.elu(x)], x)


@torch.no_grad()
def test_two_operands():
    x, y = (torch.cat([torch.tensor(SPECIAL), torch.randn(400)]).cuda() for _ in range(2))
    x, y = x[:, None], y[None]
    _agree(lambda x, y: [x / y, torch.fmod(x, y), torch.remainder(x, y), torch.pow(x.abs(), y), torch.atan2(x, y), torch.maximum(x, y),
                         torch.minimum(x, y), torch.copysign(x, y), x // y, torch.hypot(x, y), torch.nextafter(x, y)], x, y)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_roots_as_powers(dtype):
    x = torch.tensor([float("-inf"), float("inf"), float("nan"), -0.0, 0.0, -1.0, 2.0, 3.3, 1e-7, 60000.0], device="cuda", dtype=DTYPES[dtype])
    for exponent in (0.5, -0.5, -1, 2, 3, -2, 1.5):
        compiled = _compiled(lambda x, exponent=exponent: x**exponent)
        for _ in range(2):
            torch.testing.assert_close(compiled(x), x**exponent, rtol=2e-3, atol=0, equal_nan=True)


def test_bounds_that_are_no_numbers():
    x = torch.tensor([0.0, -0.0, 1.5, -2.0, float("nan"), float("inf")], device="cuda")
    programs = (
        lambda x, s: x.clamp(max=s), lambda x, s: x.clamp(min=s), lambda x, s: x.clamp(-1.0, s), lambda x, s: x.clamp_max(s),
        lambda x, s: F.hardtanh(x, -1.0, s), lambda x, s: x.bfloat16().clamp(max=s),
    )  # fmt: skip
    for program in programs:
        compiled = _compiled(program)
        for s in (1.0, 0.5, float("nan"), 2.0, float("nan"), float("inf")):
            torch.testing.assert_close(compiled(x, s), program(x, s), rtol=0, atol=0, equal_nan=True)
    compiled = _compiled(lambda x: torch.signbit(F.relu(x)))
    for _ in range(3):
        assert torch.equal(compiled(x), torch.signbit(F.relu(x)))


@torch.no_grad()
def test_gradients_of_a_cell_without_one_of_its_results():
    """What libtorch's backward is given for the other result is a zero on the device."""
    torch.manual_seed(0)
    cell = nn.LSTMCell(9, 33).cuda()
    theirs, compiled = copy.deepcopy(cell), broach.compile(cell)
    x, state = _on_gpu(4, 9), (_on_gpu(4, 33), _on_gpu(4, 33))
    for which in (0, 1, 0, 1, 2):
        for run, module in ((compiled, cell), (theirs, theirs)):
            module.zero_grad()
            with torch.enable_grad():
                results = run(x, state)
                (results[which] if which < 2 else results[0] + results[1]).sum().backward()
        for ours, other in zip(cell.parameters(), theirs.parameters(), strict=True):
            _close(ours.grad, other.grad)


def test_integers():
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        x = torch.randint(0, 100, (300,), device="cuda").to(dtype)
        y = torch.randint(1, 7, (300,), device="cuda").to(dtype)
        _agree(lambda x, y: [x * y - x, x // y, x % y, x << y, x >> y, x & y, x ^ y, -x, x.float() / y, x.clamp(3, 50), x == y, x.bool()], x, y)
        _agree(lambda x, y: [x.sum(), x.amax(), x.argmin(), (x > 50).any(), (x > 50).sum(), x.float().to(torch.uint8)], x, y)


def test_divisions_by_constants():
    """As eager's on a GPU, which multiply by an inverse, and on the host, which divide."""
    exponents = torch.randint(-80, 80, (1 << 16,))
    x = torch.cat([torch.randn(1 << 16) * 2.0**exponents, torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan")])])
    divisors = (3.0, 49.0, 50176.0, -7.0, 1e-3, 45.1, 1e10, 2.0**-20, 1e30, 1e-30, float("inf"), 0.0, 3)
    for device in ("cuda", "cpu"):
        compiled, x = _compiled(lambda x: [x / d for d in divisors]), x.to(device)
        for _ in range(3):
            results = compiled(x)  # of which the first are eager's
        for ours, divisor in zip(results, divisors):
            torch.testing.assert_close(ours, x / divisor, rtol=0, atol=2.0**-149, equal_nan=True)


@pytest.mark.parametrize("classes", [1000, 1003, 50257])
def test_cross_entropy(classes):
    """Behind a product whose rows may be odd; targets that are ignored, and gradients."""
    weight = (_on_gpu(classes, 256) * 0.1).bfloat16().requires_grad_()
    x, target = _on_gpu(512, 256).bfloat16().requires_grad_(), torch.randint(classes, (512,), device="cuda")
    target[::7] = -100

    def loss(x, target):
        return F.cross_entropy((x @ weight.t()).view(4, 128, classes).float().view(-1, classes), target)

    want, compiled = (loss(x, target), *torch.autograd.grad(loss(x, target), (x, weight))), broach.compile(loss)
    for _ in range(4):
        have = compiled(x, target)
        for a, b in zip((have, *torch.autograd.grad(have, (x, weight))), want):
            assert (a - b).float().norm() <= 1e-2 * b.float().norm()


def test_channels():
    """Batch norms whose sums are split, their gradients and running statistics."""
    results = []
    for sizes in ((8, 16, 64, 64), (64, 8, 12, 12), (3, 5, 33, 65)):
        norm, x = nn.BatchNorm2d(sizes[1]).cuda(), (_on_gpu(*sizes) * 3 + 5).requires_grad_()
        x = x.detach().to(memory_format=torch.channels_last).requires_grad_()
        other = copy.deepcopy(norm)
        compiled = broach.compile(norm)
        for _ in range(3):
            for program in (compiled, other):
                x.grad = None
                program.zero_grad()
                program(x).relu().square().sum().backward()
                results.append((x.grad, *[p.grad.clone() for p in program.parameters()], *[b.clone() for b in program.buffers()]))
            _close(*results[-2:])


class _Pointwise(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 5, padding=2, bias=False), nn.BatchNorm2d(32)
        self.into, self.out, self.beside = nn.Conv2d(16, 32, 1, bias=False), nn.Conv2d(32, 16, 1), nn.Conv2d(16, 16, 3, padding=1)
        self.strided = nn.Conv2d(16, 24, 1, stride=2)

    def forward(self, x):
        x = self.stem(x)
        h = x + self.out(F.relu(self.norm(self.into(x))))
        return self.strided(F.relu(h + self.beside(h)))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels-last"])
def test_gradients_of_convolutions(dtype, layout):
    """As close to those in fp32 as eager's are: the sums of a batch norm's gradient cancel."""
    torch.manual_seed(0)
    model = _Pointwise().cuda().to(DTYPES[dtype], memory_format=layout)
    wide, x = copy.deepcopy(model).float(), _on_gpu(4, 3, 17, 18, dtype=DTYPES[dtype]).to(memory_format=layout).requires_grad_()

    def gradients(call, model, x):
        return torch.autograd.grad(call(x).float().square().mean(), [x, *model.parameters()])

    compiled = broach.compile(model)
    want, theirs = gradients(wide, wide, x.detach().float().requires_grad_()), gradients(model, model, x)
    for _ in range(4):
        ours = gradients(compiled, model, x)
    for a, b, c in zip(ours, theirs, want):
        assert a.shape == b.shape
        assert (a - c).norm() <= 2 * (b - c).norm() + 1e-3 * c.norm(), ((a - c).norm() / c.norm(), (b - c).norm() / c.norm())


def test_a_division_by_zero_is_no_error():
    x, y = torch.arange(4, device="cuda"), torch.tensor([1, 0, 2, 0], device="cuda")
    compiled = broach.compile(lambda x, y: x // y)
    for _ in range(3):
        assert torch.equal(compiled(x, y)[::2], (x // y)[::2])
    torch.cuda.synchronize()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows,columns", [(5, 7), (64, 768), (2048, 1024), (3, 50257), (40000, 33), (1, 1 << 20)])
def test_rows(rows, columns, dtype):
    x = _on_gpu(rows, columns, dtype=DTYPES[dtype])
    w, b = (_on_gpu(columns, dtype=DTYPES[dtype]) for _ in range(2))
    _agree(lambda x: torch.softmax(x, -1), x, dtype=DTYPES[dtype])
    _agree(lambda x: torch.log_softmax(x.float(), -1), x, dtype=DTYPES[dtype])
    _agree(lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), x, w, b, dtype=DTYPES[dtype])
    _agree(lambda x, w: x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * w, x, w, dtype=DTYPES[dtype])
    _agree(lambda x: (x.argmax(-1), x.argmin(-1), x.amax(-1), x.float().sum(-1)), x, dtype=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(5, 7), (2048, 768), (100000, 3), (513, 1000), (2, 3, 4, 5)])
def test_columns(sizes, dtype):
    x = _on_gpu(*sizes, dtype=DTYPES[dtype])
    _agree(lambda x: (x.float().sum(0), x.amax(0), x.argmax(0)), x, dtype=DTYPES[dtype])
    _agree(lambda x: x - x.float().mean(0).to(x.dtype), x, dtype=DTYPES[dtype])


def test_whole_tensors():
    for n in (1, 1000, 1 << 22):
        x = torch.rand(n, device="cuda")
        _agree(lambda x: (x.sum(), x.mean(), x.max(), x.argmax(), x.std(), x.prod()), x)


def test_sums_and_products_of_nothing():
    for shape in ((0,), (0, 1), (0, 5), (0, 3000)):
        _agree(lambda x: (x.sum(0), x.prod(0), (x * 2).sum(), torch.logsumexp(x, 0)), torch.empty(shape, device="cuda"))
    for dtype in (torch.float32, torch.bfloat16):
        x, w, b = (torch.ones(s, device="cuda", dtype=dtype) for s in ((4, 0), (5, 0), (5,)))
        _agree(lambda x, w, b: (F.linear(x, w), F.linear(x, w, b), F.gelu(F.linear(x, w, b), approximate="tanh")), x, w, b, dtype=dtype, native=False)


def test_a_gradient_of_zeros_without_memory():
    """That of a sign is a tensor that has sizes only."""
    x = _on_gpu(20, 20).requires_grad_()
    compiled = broach.compile(torch.sgn)
    for _ in range(4):
        (gradient,) = torch.autograd.grad(compiled(x), x, torch.ones_like(x))
        assert not (gradient + 0).any()


@torch.no_grad()
def test_statistics_that_an_evaluation_gives():
    x, weight, bias, mean = _on_gpu(3, 2, 3, 4), *(torch.randn(2, device="cuda") for _ in range(3))
    _agree(lambda *given: torch.native_batch_norm(*given, False, 0.1, 0.5), x, weight, bias, mean, torch.rand(2, device="cuda"))


def test_nans_in_reductions():
    x = _on_gpu(4, 300)
    x[1, 17] = float("nan")
    x[2, 3] = float("inf")
    _agree(lambda x: (x.amax(1), x.argmax(1), x.amin(1), x.argmin(1), torch.softmax(x, 1), torch.softmax(x, 0)), x)


def test_views_and_movement():
    x = _on_gpu(6, 10, 14)
    _agree(lambda x: (x.transpose(0, 2) * 2, x.flip(1) + 1, F.pad(x, (1, 2, 3, 0)) * 3, torch.cat([x, x[:, :3]], 1), x[:, ::3] + 1, x.roll(2, 1)), x)
    index = torch.randint(0, 10, (5,), device="cuda")
    _agree(lambda x, i: (x.index_select(1, i) * 2, x[:, i], F.embedding(i, x[0])), x, index)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_embeddings(dtype):
    backward = torch.ops.aten.embedding_dense_backward
    for positions, rows, width in ((2000, 500, 768), (300, 2, 64), (40, 100, 33), (64, 30, 5000), (5, 30000, 8)):
        index = torch.randint(0, rows, (positions,), device="cuda")
        index[::3] = rows - 1  # often
        gradient = _on_gpu(positions, width, dtype=DTYPES[dtype])
        exact = torch.zeros(rows, width, device="cuda", dtype=torch.float64).index_add(0, index, gradient.double())
        for padding in (-1, rows - 1):
            compiled = _compiled(lambda g, i: backward(g, i, rows, padding, False))
            want = exact.clone()
            if padding >= 0:
                want[padding] = 0
            for g, i in ((gradient, index), (gradient, index.int()), (gradient.t().contiguous().t(), index), (gradient, index)):
                compiled(g, i)  # may be captured: eager's own result, which adds up in the low precision
                _close(compiled(g, i).double(), want, DTYPES[dtype])
            assert not broach.explain(compiled, gradient, index).externs
    expanded = _on_gpu(1, 64).expand(300, 64)
    _agree(lambda g, i: backward(g, i, 50, -1, False), expanded, torch.randint(0, 50, (300,), device="cuda"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("start", DTYPES)
def test_gradients_of_embeddings_used_elsewhere_too(dtype, start):
    for positions, rows, width in ((200, 500, 768), (300, 20, 64), (40, 100, 33)):
        index = torch.randint(0, rows, (positions,), device="cuda")
        gradient, other = _on_gpu(positions, width, dtype=DTYPES[dtype]), _on_gpu(width, rows, dtype=DTYPES[start]).t()

        def program(g, i, x):
            return x.to(g.dtype) + torch.ops.aten.embedding_dense_backward(g, i, rows, -1, False)

        compiled = _compiled(program)
        exact = torch.zeros(rows, width, device="cuda", dtype=torch.float64).index_add(0, index, gradient.double())
        for x in (other, other.contiguous(), other.contiguous().repeat(1, 2)[:, 1 : width + 1]):
            compiled(gradient, index, x)
            _close(compiled(gradient, index, x).double(), exact + x.double(), DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_beside_what_they_sum(dtype):
    def program(g, x, w):
        d = g * torch.sigmoid(x) + x
        return d @ w, d, d.sum(0) / 50, g.sum(0) / 50  # eager has rounded each of what it adds up

    for rows, columns in ((2048, 3072), (1024, 770), (4096, 64)):
        args = [_on_gpu(rows, columns, dtype=DTYPES[dtype]) / 8 for _ in range(2)]
        _agree(program, *args, _on_gpu(columns, 16, dtype=DTYPES[dtype]) / 16, dtype=DTYPES[dtype])


def test_buffers_that_begin_between_pieces():
    x = _on_gpu(4 * 768 + 8)
    compiled = broach.compile(lambda x: (x * 2, torch.softmax(x, -1)))
    for start in (0, 1, 2, 4, 3):
        part = x[start : start + 4 * 768].view(4, 768)
        for have, want in zip(compiled(part), (part * 2, torch.softmax(part, -1))):
            _close(have, want)


def test_sizes_as_symbols():
    compiled = broach.compile(lambda x, w: torch.softmax(F.gelu(x @ w) + x[:, :1], -1).sum(0))
    w = _on_gpu(64, 96)
    for rows in (4, 9, 17, 1, 200, 33, 9):
        x = _on_gpu(rows, 64)
        _close(compiled(x, w), torch.softmax(F.gelu(x @ w) + x[:, :1], -1).sum(0))
    assert len(compiled.stats()["programs"]) <= 4 and compiled.stats()["compiled_calls"] >= 4


def test_numbers_of_the_host():
    x, s = _on_gpu(50), torch.tensor(2.5)
    report = _agree(lambda x, s: (x * s + s.exp().to(x.device), s * 2), x, s, native=False)
    assert report.kernels > 0
    _agree(lambda x, k: x * k + k, x, 3.5)


def test_writes_in_place():
    def program(x, y):
        x[1:].mul_(2)
        y.add_(x.sum(0))
        return x.t() + 1

    _agree(program, _on_gpu(5, 6), _on_gpu(6), native=False)


def test_more_than_two_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 20 << 30:
        pytest.skip("less than 20 GiB of free memory")
    x = torch.ones((1 << 31) + 64, dtype=torch.int8, device="cuda")
    x[-1] = 5
    compiled = broach.compile(lambda x: (x * 2 + 1)[-3:].clone())
    for _ in range(3):
        assert compiled(x).tolist() == [3, 3, 11]
    whole = broach.compile(lambda x: x * 2 + 1)
    for _ in range(3):
        y = whole(x)
        assert y[-1].item() == 11 and y[1 << 30].item() == 3 and y.shape == x.shape


def test_an_index_out_of_bounds_is_the_assertion_that_eager_gives():
    program = """
import broach, torch
w = torch.randn(10, 8, device="cuda")
f = broach.compile(lambda i, w: torch.nn.functional.embedding(i, w) * 2)
good, bad = torch.tensor([1, 2], device="cuda"), torch.tensor([1, 12], device="cuda")
for _ in range(2):
    f(good, w)
torch.cuda.synchronize()
assert f.stats()["compiled_calls"] >= 1
f(bad, w)
try:
    torch.cuda.synchronize()
except Exception as e:
    print("raised", e)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert "raised" in run.stdout and "device-side assert" in run.stdout, run.stdout + run.stderr
    assert "index out of bounds" in run.stderr


# ---- products ----


@pytest.mark.parametrize("dtype", [*DTYPES, "f64"])
def test_products(dtype):
    dtype = {**DTYPES, "f64": torch.float64}[dtype]
    x, w, b, r = _on_gpu(33, 64, dtype=dtype), _on_gpu(40, 64, dtype=dtype), _on_gpu(40, dtype=dtype), _on_gpu(33, 40, dtype=dtype)
    w, r = w / 8, r / 8
    picks = _agree(lambda x, w: F.linear(x, w), x, w, dtype=dtype).picks
    assert set(picks) == {"cublaslt"}
    for program in (
        lambda x, w, b, r: F.linear(x, w, b),
        lambda x, w, b, r: F.relu(F.linear(x, w, b)),
        lambda x, w, b, r: F.gelu(F.linear(x, w, b), approximate="tanh"),
        lambda x, w, b, r: F.gelu(F.linear(x, w, b)),
        lambda x, w, b, r: F.linear(x, w, b) + r,
        lambda x, w, b, r: F.linear(x, w) + r[0],
        lambda x, w, b, r: F.relu(F.linear(x, w) + r) * 2,
        lambda x, w, b, r: (w @ x.t()).t() + r,
        lambda x, w, b, r: x.t() @ r,
        lambda x, w, b, r: x[:, ::2] @ w[:, ::2].t(),
        lambda x, w, b, r: x[0] @ w.t(),
        lambda x, w, b, r: x @ w[0],
        lambda x, w, b, r: x[:0] @ w.t(),
        lambda x, w, b, r: x[:, :0] @ w[:, :0].t(),
    ):
        _agree(program, x, w, b, r, dtype=dtype, native=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_product_with_rows_that_begin_between_pieces(dtype):
    dtype = DTYPES[dtype]
    x, w, b = _on_gpu(300, 600, dtype=dtype), _on_gpu(5003, 600, dtype=dtype) / 24, _on_gpu(5003, dtype=dtype)
    for program in (lambda x, w, b: F.linear(x, w, b), lambda x, w, b: F.linear(x, w)):
        parts = "cublaslt" if dtype == torch.float32 else "cublaslt in parts"
        assert set(_agree(program, x, w, b, dtype=dtype).picks) == {parts}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [(1024, 512), (4096, 1024), (770, 333), (64, 1), (1, 5), (40000, 3)])
def test_products_of_one_row(sizes, dtype):
    """As of a language model's next token: a kernel sums them, and what stands before and behind is part of it."""
    dtype, (depth, columns) = DTYPES[dtype], sizes
    x, w, b = _on_gpu(1, depth, dtype=dtype), _on_gpu(columns, depth, dtype=dtype) / depth**0.5, _on_gpu(columns, dtype=dtype)
    programs = {
        "plain": lambda x, w, b: F.linear(x, w),
        "epilogue": lambda x, w, b: F.gelu(F.linear(x, w, b)) + b,
        "three dimensions": lambda x, w, b: F.linear(x[None], w, b),
        "a vector": lambda x, w, b: w @ x[0],
        "prologue": lambda x, w, b: F.linear(F.rms_norm(F.silu(x), (depth,)), w) * F.linear(x, w, b),
        "a weight that is computed": lambda x, w, b: F.linear(x, w * 2, b),
        "a weight whose columns lie side by side": lambda x, w, b: F.linear(x, w.t().contiguous().t(), b),
        "a window of a weight": lambda x, w, b: F.linear(x[:, 1:], w[:, 1:]),
        "a weight in reverse": lambda x, w, b: F.linear(x, w.flip(1)),
    }
    for name, program in programs.items():
        report = _agree(program, x, w, b, dtype=dtype, native=False)
        if name in ("plain", "epilogue", "three dimensions", "prologue"):
            assert not report.contractions and not report.externs, name
    x[0, 0] = float("nan")
    _agree(programs["epilogue"], x, w, b, dtype=dtype)


def test_a_row_beside_rows():
    """Sizes that change: one row is another program than several."""
    model = Mlp(256).cuda().eval()
    compiled = _compiled(model)
    with torch.no_grad():
        for rows in (1, 3, 1, 2, 1, 7):
            x = _on_gpu(rows, 256)
            _close(compiled(x), model(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_one_row(dtype):
    model = Mlp(128).to("cuda", DTYPES[dtype])
    theirs, x = copy.deepcopy(model), _on_gpu(1, 128, dtype=DTYPES[dtype])
    compiled = broach.compile(model)
    for _ in range(3):
        for run, m in ((compiled, model), (theirs, theirs)):
            m.zero_grad()
            run(x).float().square().sum().backward()
        for ours, other in zip(model.parameters(), theirs.parameters(), strict=True):
            error = (ours.grad - other.grad).float().norm() / other.grad.float().norm()  # of sums that were rounded in another order
            assert error < {"f32": 1e-4, "bf16": 3e-2, "f16": 4e-3}[dtype], error


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_stacks(dtype):
    dtype = DTYPES[dtype]
    q, k = _on_gpu(2, 30, 4, 16, dtype=dtype), _on_gpu(2, 25, 4, 16, dtype=dtype)
    _agree(lambda q, k: torch.softmax(q.transpose(1, 2) @ k.permute(0, 2, 3, 1) / 4, -1) @ k.transpose(1, 2), q, k, dtype=dtype, native=False)
    _agree(lambda q, k: torch.bmm(q.flatten(0, 1), k.flatten(0, 1)[:50].mT[:, :, :3]), q[:, :25], k, dtype=dtype, native=False)
    _agree(lambda q, k: torch.einsum("bmhd,bnhd->bhmn", q, k), q, k, dtype=dtype, native=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_of_windows(dtype):
    """Rows whose dimensions lie apart, with a bias and with an activation behind it."""
    dtype = DTYPES[dtype]
    x, w, b = _on_gpu(2, 28, 28, 24, dtype=dtype), _on_gpu(40, 24, dtype=dtype) / 5, _on_gpu(40, dtype=dtype)

    def program(x, w, b):
        windows = x.view(2, 4, 7, 4, 7, 24).permute(0, 1, 3, 2, 4, 5)
        return F.linear(windows, w, b), F.gelu(F.linear(windows.reshape(-1, 7, 7, 24), w, b)), F.linear(windows[0, 0, :, 0, 0], w, b)

    _agree(program, x, w, b, dtype=dtype, native=False)


def test_a_nan_behind_a_product():
    x, w = _on_gpu(4, 8), _on_gpu(8, 8)
    x[1, 2] = float("nan")
    _agree(lambda x, w: F.gelu(x @ w, approximate="tanh"), x, w)


def test_tf32_as_it_is_set():
    x, w = _on_gpu(256, 512), _on_gpu(512, 256)
    exact = (x.double() @ w.double()).float()
    compiled, errors = broach.compile(lambda x, w: x @ w), {}
    before = torch.get_float32_matmul_precision()
    for precision in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(precision)
        for _ in range(2):
            errors[precision] = (compiled(x, w) - exact).abs().max().item()
    torch.set_float32_matmul_precision(before)
    assert errors["highest"] < 1e-3 < errors["high"]


# ---- models, streams, memory ----


class Mlp(nn.Sequential):
    def __init__(self, width=512):
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, 10))


@pytest.mark.parametrize("dtype", DTYPES)
def test_mlp(dtype):
    model = Mlp().to("cuda", DTYPES[dtype]).eval()
    report = _agree(model, _on_gpu(64, 512, dtype=DTYPES[dtype]), dtype=DTYPES[dtype])
    assert report.contractions >= 3 and report.front == "native"


def _transformer(name, dtype):
    import transformers as t

    small = dict(num_hidden_layers=2, vocab_size=1000)
    if name == "bert":
        model = t.BertModel(t.BertConfig(**small))
    elif name == "gpt2":
        model = t.GPT2Model(t.GPT2Config(n_layer=2, vocab_size=1000))
    else:
        model = t.LlamaModel(t.LlamaConfig(hidden_size=256, intermediate_size=512, num_attention_heads=8, num_key_value_heads=4, **small))
    return model.to("cuda", dtype).eval()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@torch.no_grad()
def test_transformers(name, dtype):
    model, ids = _transformer(name, DTYPES[dtype]), torch.randint(1000, (4, 64), device="cuda")
    compiled = broach.compile(lambda ids: model(ids, use_cache=False)[0])
    want = model(ids, use_cache=False)[0]
    for _ in range(3):
        have = compiled(ids)
        error = (have - want).float().norm() / want.float().norm()
        assert error < {"f32": 1e-4, "bf16": 2e-2, "f16": 3e-3}[dtype], error
    assert compiled.stats()["compiled_calls"] >= 1, broach.explain(compiled, ids).eager_reasons


def test_a_small_network_of_convolutions():
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(8, 5)).cuda().eval()  # fmt: skip
    report = _agree(model, _on_gpu(4, 3, 32, 32), native=False)
    assert report.kernels > 0


def test_autocast():
    model, x = Mlp(64).cuda().eval(), _on_gpu(8, 64)
    compiled = _compiled(model)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        want = model(x)
        for _ in range(3):
            _close(compiled(x), want, torch.bfloat16)
    assert compiled.stats()["compiled_calls"] >= 1


@torch.no_grad()
def test_another_stream_and_a_graph_of_the_callers_own():
    model, x = Mlp(256).cuda().eval(), _on_gpu(16, 256)
    compiled, stream = _compiled(model), torch.cuda.Stream()
    want = model(x)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            have = compiled(x)
        _close(have, want)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compiled(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    _close(captured, model(x))
    assert compiled.stats()["compiled_calls"] >= 10


@torch.no_grad()
def test_memory_stays_as_it_is():
    model, x = Mlp(256).cuda().eval(), _on_gpu(64, 256)
    compiled = broach.compile(model)
    for _ in range(5):
        compiled(x)
    before = torch.cuda.memory_allocated()
    for _ in range(200):
        compiled(x)
    assert torch.cuda.memory_allocated() == before


@torch.no_grad()
def test_results_of_calls_stay_valid():
    compiled, xs = broach.compile(Mlp(64).cuda().eval()), [_on_gpu(8, 64) for _ in range(6)]
    first = [compiled(x) for x in xs]
    for x, y in zip(xs, first):
        assert torch.equal(compiled(x), y) or (compiled(x) - y).abs().max() < 1e-5


def test_threads():
    import threading

    compiled, x, errors = _compiled(Mlp(64).cuda().eval()), _on_gpu(8, 64), []
    with torch.no_grad():
        want = compiled(x)
        compiled(x)

    def work():
        with torch.no_grad():
            for _ in range(50):
                try:
                    _close(compiled(x), want)
                except Exception as e:  # noqa: BLE001 whatever it is, the test shall say it
                    errors.append(e)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]


@pytest.mark.parametrize("name", ["rows", "rows by a matrix", "elements", "columns", "largest", "sorted", "gather"])
@pytest.mark.parametrize("rows", [9, 300, 200000])
def test_gradients_of_selections(name, rows):
    select, table = SELECTIONS[name], _on_gpu(rows, 4, dtype=torch.float64).requires_grad_()
    compiled = _compiled(select)
    for _ in range(6):
        index = torch.randint(-9, 9, (2000,), device="cuda")
        want, have = (selected_with_gradient(program, table, index)[1] for program in (select, compiled))
        torch.testing.assert_close(have, want, rtol=1e-9, atol=1e-9)
    told = compiled.stats()
    assert told["compiled_calls"] >= 4 and not told["eager_reasons"], told["eager_reasons"]


def test_elements_are_written_where_an_index_says():
    """As a mixture of experts sorts its tokens and puts them back: the program is compiled, whoever writes."""

    def program(x, choice):
        order = torch.argsort(choice, stable=True)
        back = torch.empty_like(order)
        back[order] = torch.arange(order.numel(), device="cuda")
        ends = torch.zeros(4, dtype=torch.int64, device="cuda").scatter_add_(0, choice, torch.ones_like(choice)).cumsum(0)
        return (x[order].tanh() * 2)[back], x.clone().index_copy_(0, order[:3], x[:3]), ends

    _agree(program, _on_gpu(48, 8), torch.randint(4, (48,), device="cuda"), calls=5, native=False)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradients_of_attention_that_drops(dtype):
    """Drawn as eager draws, and dropped again for the gradients by the seed that the call gave."""
    q, k, v = (_on_gpu(2, 4, 24, 16, dtype=DTYPES[dtype]).requires_grad_() for _ in range(3))
    masks = [None, torch.rand(2, 1, 1, 24, device="cuda") > 0.2]
    for mask in masks:

        def program(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.3)

        compiled = broach.compile(program)
        for seed in range(6):
            got = []
            for call in (program, compiled):
                torch.manual_seed(seed)
                y = call(q, k, v)
                got.append((y.detach(), *torch.autograd.grad(y.float().square().sum(), (q, k, v)), torch.rand(1, device="cuda")))
            for have, want in zip(got[1], got[0]):
                _close(have, want, DTYPES[dtype])
        told = compiled.stats()
        assert told["compiled_calls"] >= 4 and not told["eager_reasons"], told["eager_reasons"]


@pytest.mark.parametrize("tokens", [49, 64])
def test_a_bias_of_attention_that_is_computed(tokens):
    """Its rows lie as the kernel wants them, whatever layout the program's own kernels give what it is made of."""
    heads = 4
    table = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, heads)).cuda()
    at = _on_gpu(tokens, tokens, 2)
    q, k, v = (_on_gpu(3, heads, tokens, 16).requires_grad_() for _ in range(3))

    def program(q, k, v):
        bias = table(at).permute(2, 0, 1).unsqueeze(0).contiguous()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias), F.scaled_dot_product_attention(q, k, v, attn_mask=16 * bias.sigmoid())

    for learns in (False, True):
        compiled = broach.compile(program)
        with torch.set_grad_enabled(learns):
            for _ in range(5):
                want, have = program(q, k, v), compiled(q, k, v)
                _close(have, want)
                if learns:
                    wanted = [q, k, v, *table.parameters()]
                    grads = [torch.autograd.grad(sum(y.square().sum() for y in r), wanted) for r in (want, have)]
                    for a, b in zip(*grads):
                        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-3)
        assert not compiled.stats()["eager_reasons"], compiled.stats()["eager_reasons"]


@pytest.mark.parametrize("name", ["mlp", "convolutions", "gpt2"])
def test_gradients(name):
    """Parameters' gradients and the input's are eager's, whoever computes them."""
    if name == "mlp":
        model, x = Mlp(64).cuda(), _on_gpu(8, 64).requires_grad_()
    elif name == "convolutions":
        model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)).cuda(), _on_gpu(4, 3, 8, 8)
    else:
        gpt = _transformer("gpt2", torch.float32).train(False)
        model, x = gpt, torch.randint(1000, (2, 32), device="cuda")

    def loss(x):
        out = model(x)
        out = out if isinstance(out, torch.Tensor) else out[0]
        return (out * torch.linspace(0, 1, out.shape[-1], device="cuda")).square().sum()

    def gradients(program):
        wanted = [*model.parameters(), *([x] if x.requires_grad else [])]
        return torch.autograd.grad(program(x), wanted, allow_unused=True)

    state = {k: v.clone() for k, v in model.state_dict().items()}
    want, compiled = gradients(loss), broach.compile(loss)
    for _ in range(4):
        model.load_state_dict(state)
        for a, b in zip(gradients(compiled), want):
            assert (a is None) == (b is None)
            if a is not None:
                assert (a - b).norm() <= 1e-3 * b.norm() + 1e-4, (a - b).norm() / b.norm()


@pytest.mark.parametrize("size,stride,padding", [(7, 2, 3), (8, 3, 0)])
def test_convolutions_of_few_channels(size, stride, padding):
    """What their rows meet becomes channels, and nothing else is read: an infinity stays within the windows that meet it."""
    model = nn.Conv2d(3, 64, size, stride, padding).cuda().bfloat16()
    x = torch.randn(4, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    _agree(model, x, dtype=torch.bfloat16)
    x[1, 2, 100, 101] = torch.inf
    with torch.no_grad():
        compiled = _compiled(model)
        for _ in range(3):
            have = compiled(x)
        assert torch.equal(have.isfinite(), model(x).isfinite())
