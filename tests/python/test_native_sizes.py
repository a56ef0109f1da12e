"""Programs captured natively and run at other sizes, strides, types and integers than the captured ones."""

from __future__ import annotations

import subprocess
import sys

import broach
import pytest
import torch
from broach._native import _C
from compared import check, difference, native, r, ran_natively, stats
from torch.nn import functional as F

SIZED = {
    "pointwise": lambda x, y: torch.tanh(x) * y + 1,
    "softmax": lambda x, y: (x * y).softmax(-1),
    "matmul": lambda x, y: x @ y.t(),
    "flatten": lambda x, y: (x + y).flatten().cumsum(0),
    "reshape": lambda x, y: torch.cat([x, y]).reshape(2, -1),
    "branch": lambda x, y: x * 2 if x.shape[0] > 3 else y - 1,
    "loop": lambda x, y: sum((x[i] for i in range(x.shape[0])), y.sum()),
    "sizes in arithmetic": lambda x, y: x / x.shape[0] + y * (x.shape[1] // 2) - x.numel() ** 0.5,
    "made by size": lambda x, y: x + torch.arange(x.size(1)) + torch.zeros(y.shape) + y.new_ones(x.shape[0], 1),
    "sizes as results": lambda x, y: (x.shape[0] * 2 + 1, x.shape, y + x.shape[-1]),
    "unpacked": lambda x, y: (lambda b, n: x.view(b * n, 1).expand(b * n, 3) + y.sum())(*x.shape),
    "split": lambda x, y: torch.stack([c.sum() for c in x.chunk(2, 1)]) + y.mean(),
    "indexed": lambda x, y: x[:, : x.shape[1] // 2 + 1].sum(1) + y[:, -1],
    "norm": lambda x, y: F.layer_norm(x, x.shape[1:]) + F.pad(y, (0, 0, 1, 0))[1:],
}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("name", SIZED)
def test_replay_at_other_sizes(name, dynamic):
    program = SIZED[name]
    compiled = broach.compile(program, dynamic=dynamic, options={"capture": "native"})
    sizes = [(4, 6), (4, 6), (5, 6), (7, 8), (2, 4), (3, 10), (6, 6), (1, 6), (4, 1), (1, 1), (0, 6), (5, 6)]
    if name == "reshape":
        sizes = [s for s in sizes if s[0]]
    if name in ("split", "indexed"):
        sizes = [s for s in sizes if s[1] > 1]
    for n, m in sizes:
        x, y = r(n, m), r(n, m)
        assert not (why := difference(program(x, y), compiled(x, y))), f"{why} at {n}x{m}"
    assert stats(compiled)["front"] == "native"


def test_other_sizes_need_no_further_captures():
    compiled = native(SIZED["softmax"])
    for n in range(2, 20):
        compiled(r(n, n + 3), r(n, n + 3))
    assert stats(compiled)["captures"] <= 3, stats(compiled)["recompilations"]


# Operands of products that are taken apart by their sizes, from two sizes that change.
STACKS = {
    "matrices and a matrix": lambda n, m: (r(2, n, m), r(m, 5)),
    "matrices and a parameter": lambda n, m: (r(2, n, 4), torch.nn.Parameter(r(4, m))),
    "a matrix and matrices": lambda n, m: (r(5, m), r(2, m, n)),
    "a parameter and matrices": lambda n, m: (torch.nn.Parameter(r(5, m)), r(2, m, n)),
    "matrices and a vector": lambda n, m: (r(2, 3, n, m), r(m)),
    "a vector and matrices": lambda n, m: (r(m), r(2, m, n)),
    "both broadcast": lambda n, m: (r(2, 1, n, m), r(3, m, n)),
    "without order": lambda n, m: (r(n, 2, m).transpose(0, 1), r(m, n, 2).permute(2, 0, 1)),
}


@pytest.mark.parametrize("name", STACKS)
def test_products_of_stacks_at_other_sizes(name):
    compiled = native(torch.matmul)
    for n, m in ((3, 4), (4, 5), (6, 9), (5, 3), (7, 8), (1, 4), (3, 0)):
        if n == 1 and name == "a parameter and matrices":
            continue  # the stride that eager gives a dimension of size 1 follows from what needs gradients
        a, b = STACKS[name](n, m)
        assert not (why := difference(a @ b, compiled(a, b))), f"{why} at {n}, {m}"
    assert "parameter" in name or stats(compiled)["captures"] <= 5, stats(compiled)["recompilations"]


def test_a_pool_that_writes_past_the_dispatcher():
    def program(x):
        return F.max_pool1d(x.relu(), 3, 2, padding=1, ceil_mode=True) + 1

    ran_natively(compiled := check(program, (r(2, 3, 9),), (r(2, 3, 12),), (r(3, 20),), (r(1, 4, 7).transpose(0, 1),)))
    x = r(2, 3, 9).requires_grad_()
    with torch.enable_grad():
        assert torch.equal(torch.autograd.grad(program(x).sum(), x)[0], torch.autograd.grad(compiled(x).sum(), x)[0])


def test_a_size_of_zero_or_one_after_others():
    compiled = native(SIZED["pointwise"])
    for n, m in ((3, 4), (5, 4), (1, 4), (0, 4), (1, 1), (3, 1), (4, 4), (0, 0)):
        x, y = r(n, m), r(n, m)
        assert not (why := difference(SIZED["pointwise"](x, y), compiled(x, y))), why
    assert stats(compiled)["front"] == "native"


def test_changed_strides_and_types():
    def program(x):
        return x * 2, x.t(), x.stride(), x.is_contiguous(), x.dtype

    x = r(4, 6)
    calls = [x, x.t().contiguous().t(), x[::2], x.double(), x[:, ::3], x.to(torch.bfloat16), x.int(), x.t()]
    compiled = native(program)
    for _ in range(2):
        for t in calls:
            assert not (why := difference(program(t), compiled(t))), why


@torch.no_grad()
@pytest.mark.parametrize("arranged", ["dense", "with gaps"])
def test_results_lie_as_the_order_of_their_operands_says(arranged):
    """Strides that become symbols could swap their order without their guards' telling."""

    def tensor(rows, columns, swapped):
        sizes = (columns, rows, 8) if swapped else (rows, columns, 8)
        t = torch.randn(sizes) if arranged == "dense" else torch.randn(*sizes[:2], 8 + rows)[..., :8]
        return t.transpose(0, 1) if swapped else t

    compiled = native(lambda x: x * 2 + 1)
    for rows, columns, swapped in [(2, 4, False), (2, 4, True), (3, 4, True), (5, 4, True), (3, 4, False), (5, 4, False), (3, 5, True), (3, 7, False)]:
        x = tensor(rows, columns, swapped)
        assert not difference(x * 2 + 1, compiled(x)), (rows, columns, swapped)
    assert stats(compiled)["captures"] <= 6


def test_integers_that_change():
    def program(x, n, flag):
        return x * n + (1 if flag else n // 2), n * 2

    compiled = native(program)
    for n in (3, 5, -2, 0, 1, 2**40):
        for flag in (True, False):
            x = r(4)
            assert not (why := difference(program(x, n, flag), compiled(x, n, flag))), why


# Sizes that the program needs to be multiples of something.
MULTIPLES = {
    "rows of eight": (lambda x: x.reshape(-1, 8).sum(1), lambda n: r(4 * n, 2)),
    "windows": (lambda x: x.view(x.shape[0], x.shape[1] // 4, 4, 3).mean(2), lambda n: r(2, 4 * n, 3)),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), lambda n: r(1, 4 * n, 5, 5)),
    "pixel unshuffle": (lambda x: F.pixel_unshuffle(x, 2), lambda n: r(1, 3, 2 * n, 6)),
    "halves by an assertion": (lambda x: _even(x).view(2, -1).sum(0), lambda n: r(2 * n)),
    "a remainder": (lambda x: x[: x.shape[0] // 3 * 3].view(-1, 3) * x[-1], lambda n: r(3 * n + 1)),
    "two sizes": (lambda x: x.view(x.shape[0] // 2, 2, x.shape[1] // 3, 3).sum((1, 3)), lambda n: r(2 * n, 3 * n + 3)),
}


def _even(x):
    assert x.shape[0] % 2 == 0
    return x


@pytest.mark.parametrize("name", MULTIPLES)
def test_multiples_stay_symbols(name):
    program, make = MULTIPLES[name]
    compiled = native(program)
    for n in (2, 3, 5, 4, 7, 6, 11, 2):
        x = make(n)
        assert not (why := difference(program(x), compiled(x))), (why, n)
    told = stats(compiled)
    assert told["captures"] <= 3, told["recompilations"]


def test_a_size_that_is_no_multiple_is_told_apart():
    compiled = native(lambda x: x.view(-1, 4) if x.shape[0] % 4 == 0 else x.view(-1, 1))
    for n in (8, 12, 16, 9, 20, 13, 10, 4, 1):
        assert compiled(r(n)).shape == ((n // 4, 4) if n % 4 == 0 else (n, 1))
    broken = native(lambda x: x.view(-1, 4))
    for n in (8, 12, 16):
        broken(r(n))
    for n in (10, 13):
        with pytest.raises(RuntimeError, match="shape"):
            broken(r(n))


# Operations that ask for plain sizes, or whose parts would.
def _pyramid(x):
    y = F.interpolate(x, size=(x.shape[-2] // 2 + 1, x.shape[-1] * 2), mode="bilinear", align_corners=False)
    return F.interpolate(y, size=x.shape[-2:], mode="nearest") + x


_LSTM, _GRU, _RNN = torch.nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True), torch.nn.GRU(8, 6), torch.nn.RNN(8, 6, nonlinearity="relu")
_PROJECTED = torch.nn.LSTM(8, 6, proj_size=3)
ASKING = {
    "resampled to sizes": (_pyramid, lambda n: (r(2, 3, n + 4, n + 6),)),
    "resampled to integers": (lambda x, n: F.interpolate(x, size=(2 * n, n), mode="bicubic"), lambda n: (r(1, 3, 8, 8), n + 3)),
    "twice as large": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), lambda n: (r(1, 3, n + 3, 2 * n + 3),)),
    "half as large again": (lambda x: F.interpolate(x, scale_factor=1.5, mode="linear"), lambda n: (r(1, 3, n + 3),)),
    "half as large": (lambda x: F.interpolate(x, scale_factor=0.5, mode="trilinear"), lambda n: (r(1, 2, n + 6, 6, n + 8),)),
    "antialiased": (lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True), lambda n: (r(1, 3, n + 8, n + 9),)),
    "exact": (lambda x: F.interpolate(x, scale_factor=2.5, mode="nearest-exact"), lambda n: (r(1, 3, n + 3, n + 4),)),
    "by a third": (lambda x: F.interpolate(x, scale_factor=1 / 3, mode="nearest"), lambda n: (r(1, 3, 3 * (n % 3) + 6, 9),)),
    "windows": (lambda x: x.unfold(1, 4, 2).mean(-1) * 2, lambda n: (r(2, n + 8),)),
    "windows of windows": (lambda x: x.unfold(2, 3, 1).unfold(1, 2, 2).sum((0, 3)), lambda n: (r(2, n + 8, n + 6),)),
    "unflattened": (lambda x: x.unflatten(1, (4, -1)).sum(-1), lambda n: (r(3, 4 * n),)),
    "LSTM by length": (lambda x: _LSTM(x), lambda n: (r(2, n + 2, 8),)),
    "LSTM by batch and length": (lambda x: _LSTM(x)[0].tanh(), lambda n: (r(n + 2, 2 * n + 1, 8),)),
    "LSTM with a projection": (lambda x: _PROJECTED(x), lambda n: (r(n + 2, 3, 8),)),
    "LSTM with states": (lambda x, h, c: _LSTM(x, (h, c)), lambda n: (r(n + 2, 4, 8), r(4, n + 2, 6), r(4, n + 2, 6))),
    "GRU by length": (lambda x: _GRU(x), lambda n: (r(n + 2, 3, 8),)),
    "RNN by batch": (lambda x: _RNN(x), lambda n: (r(3, n + 2, 8),)),
}


@pytest.mark.parametrize("name", ASKING)
def test_operations_that_ask_for_plain_sizes(name):
    program, make = ASKING[name]
    with torch.no_grad():
        compiled = native(program)
        for n in (1, 2, 3, 5, 4, 7, 6, 9, 2):
            given = make(n)
            assert not (why := difference(program(*given), compiled(*given))), (why, n)
    told = stats(compiled)
    # A number that is no small fraction fixes the sizes it multiplies.
    assert told["captures"] <= (4 if name in ("by a third", "unflattened") else 3), told["recompilations"]


def test_recurrent_layers_with_gradients_or_autocast():
    def program(x):
        return _LSTM(x)[0] * 2

    compiled = broach.compile(program)
    for n in (3, 4, 5, 6):
        x = r(2, n, 8)
        # On processors without AVX-512 torch has no such layer in bf16.
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=_C.has_bf16_contractions()):
            assert not (why := difference(program(x), compiled(x), rtol=5e-2, atol=5e-2)), why
        with torch.enable_grad():
            got, want = (torch.autograd.grad(f(x).sum(), _LSTM.weight_ih_l0)[0] for f in (compiled, program))
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("training", [False, True])
def test_encoders_of_transformers_keep_their_sizes_as_symbols(training):
    """Each of their outputs is asked whether it is a tensor, by the name of its type."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50)).eval()
    fast = broach.compile(model)
    with torch.set_grad_enabled(training):
        for batch, length in ((2, 12), (3, 9), (4, 7), (5, 8), (6, 11)):
            ids = torch.randint(0, 50, (batch, length))
            got, want = fast(input_ids=ids)[0], model(input_ids=ids)[0]
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            if training:
                got.square().mean().backward()
    assert stats(fast)["captures"] == 2


def test_other_code_that_asks_for_the_name_of_a_type_has_numbers():
    def infer_framework_from_repr(x):
        return str(type(x))

    def program(x):
        return x * 2, infer_framework_from_repr(x.shape[0])

    fast = broach.compile(program)
    for n in (3, 4, 5, 6):
        assert fast(torch.ones(n))[1] == "<class 'int'>"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_lists_of_elements_that_get_too_long(dtype):
    """Short ones are made of elements that the recording knows; what is behind a longer one is read past it."""
    program = lambda x: x * x.tolist()[0]  # noqa: E731
    compiled = broach.compile(program)
    for i, n in enumerate((60, 62, 64, 66, 70, 70, 60, 62, 70, 70)):
        x = torch.full((n,), i + 1).to(dtype)
        assert torch.equal(compiled(x), program(x)), (i, n)


def test_tensors_of_numbers_that_change():
    def program(x, n):
        low, high = x.min().item(), x.max().item()
        pair = torch.tensor([[low, 1], [high, True]])
        return pair, torch.tensor(n), torch.as_tensor([n, low]), torch.tensor(x.argmax().item(), dtype=torch.uint8), torch.tensor(x.shape)

    compiled = broach.compile(program, options={"capture": "native"})
    for i in range(10):
        x = torch.randn(4 + i % 3, 2)
        for want, got in zip(program(x, i), compiled(x, i)):
            assert want.dtype == got.dtype and torch.equal(want, got) and got.is_leaf
    assert compiled.stats()["compiled_calls"] > 3


LENGTHS = {
    "divisor": lambda x: x.sum() / len(x) + len([1, 2]),
    "bound": lambda x: x.clamp(-1, len(x) - 1) + torch.arange(len(x)).unsqueeze(1),
    "of a view": lambda x: x[len(x) // 2 :] * len(x[0]) / len(x.T),
    "result": lambda x: (x + 1, len(x), len(x.T)),
    "branch": lambda x: x * 2 if len(x) > 6 else x - len(x),
    "of a parameter": lambda x: x * len(WEIGHT) + len(WEIGHT.data),
}
PLAIN_LENGTHS = {
    "list": lambda x: torch.tensor([0.5] * len(x)) * x[:, 0],
    "loop": lambda x: sum(x[i] for i in range(len(x))),
    "type": lambda x: x * 2 if type(len(x)) is int else x,
    "text": lambda x: x + len(f"{len(x)}"),
    "key": lambda x: {len(x): x + 1}[len(x)],
}
WEIGHT = torch.nn.Parameter(torch.ones(5, 2))


@pytest.mark.parametrize("name", [*LENGTHS, *PLAIN_LENGTHS])
def test_lengths_of_tensors_are_sizes(name):
    program = {**LENGTHS, **PLAIN_LENGTHS}[name]
    compiled = broach.compile(program)
    for n in (3, 6, 9, 5, 8, 12, 7, 3, 11, 10):
        x = torch.randn(n, 4)
        have, want = compiled(x), program(x)
        torch.testing.assert_close(have, want)
        assert not isinstance(want, tuple) or [type(v) for v in have] == [type(v) for v in want]
    assert name in PLAIN_LENGTHS or stats(compiled)["captures"] <= 5, stats(compiled)["eager_reasons"]


def test_a_number_has_no_length():
    with pytest.raises(TypeError, match="len.. of a 0-d tensor"):
        broach.compile(lambda x, y: x / len(y), dynamic=True)(torch.ones(3), torch.tensor(1.0))


DRAWS = {
    "like": lambda x, b: x + b * torch.randn_like(x) + torch.rand_like(x[:, :1]),
    "around": lambda x, b: torch.normal(x, 0.5) * b + torch.normal(0.0, x.abs() + 1),
    "whole": lambda x, b: x * torch.randint(0, 3, x.shape) + torch.randint_like(x, 2, 5),
    "of sizes": lambda x, b: x + b * torch.randn(x.shape[0], 1) + torch.rand(x.shape[1]),
    "picked": lambda x, b: torch.bernoulli(x.sigmoid()) * b + F.dropout(x, 0.5),
    "sampled": lambda x, b: F.grid_sample(x[None, None], x[None, :, :2, None].expand(1, -1, 2, 2).tanh(), align_corners=False) * b,
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_sizes_that_change(name):
    """One program for all, whose capture does not import Dynamo, as torch's own code for their sizes does."""
    program = DRAWS[name]
    compiled = broach.compile(program, options={"rng": "eager"})
    for k in range(9):
        x = torch.randn(3 + k, 4)
        torch.manual_seed(k)
        want = program(x, 0.1 * k)
        torch.manual_seed(k)
        torch.testing.assert_close(compiled(x, 0.1 * k), want)
    told = stats(compiled)
    assert told["captures"] <= 3 and told["compiled_calls"] >= 6, (told["reasons"], told["eager_reasons"])


def test_draws_import_no_compiler_of_torchs():
    code = """
import sys, torch, torch.nn.functional as F, broach
compiled = broach.compile(lambda x: F.dropout(x + torch.randn_like(x), 0.5) * torch.normal(x, 1.0))
for k in range(3, 8): compiled(torch.randn(k))
assert "torch._dynamo" not in sys.modules and "torch._inductor" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=120)
