"""Ways to tell a number from what stands for it while a program is captured for all its values: identity, names of types, numpy's functions,
and values beyond what a symbol holds."""

from __future__ import annotations

import math
import operator

import broach
import numpy as np
import pytest
import torch
import torch.nn.functional as F

DEFAULT = 1.0


def _check(program, calls):
    """Each call by a compiled program that has been given the calls before."""
    compiled = broach.compile(program)
    for arguments in calls:
        with np.errstate(all="ignore"):
            want, got = program(*arguments), compiled(*arguments)
        assert str(got) == str(want), arguments
        for g, w in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, want)), strict=True):
            assert type(g) is type(w) and getattr(g, "dtype", None) == getattr(w, "dtype", None), arguments
    return compiled


def test_identity():
    x = torch.ones(2)
    _check(lambda x, scale=DEFAULT: x * 2 if scale is DEFAULT else x * scale, [(x, 3.0), (x, 4.0), (x, DEFAULT), (x,), (x, 5.0)])
    _check(lambda x, a, b: x + 1 if a is b else x, [(x, 3, 4), (x, 3, 5), (x, 5, 5), (x, 5, 6)])
    _check(lambda x, a, b: x if a is not b else x - 1, [(x, 3, 4), (x, 3, 5), (x, 5, 5), (x, 5, 6)])


@pytest.mark.parametrize("program", [
    lambda x, n, m, b: x * (1.0 if n is m else 2.0),
    lambda x, n, m, b: x * float(n is m),
    lambda x, n, m, b: x * (1.0 if operator.is_(n, m) else 2.0),
    lambda x, n, m, b: x * (2.0 if operator.is_not(n, m) else 1.0),
    lambda x, n, m, b: x * (1.0 if n is (m if b else None) else 2.0),
    lambda x, n, m, b: x * (1.0 if (n if b else None) is m else 2.0),
    lambda x, n, m, b: x * (1.0 if (lambda k: k is m)(n) else 2.0),
    lambda x, n, m, b: x * (1.0 if [n, x][0] is m else 2.0),
    lambda x, n, m, b: x * (1.0 if x is not None and n is m and x is x else 2.0),
])  # fmt: skip
def test_ways_to_ask_for_identity(program):
    x = torch.ones(2)
    _check(program, [(x, 5, 6, True), (x, 6, 7, True), (x, 7, 7, True), (x, 8, 9, True), (x, 9, 9, True)])


class _Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.act = F.relu

    def forward(self, q, k, scale):
        if q is k and q.dtype is k.dtype and k is not MISSING:
            return q * scale
        return self.act(k * scale) if self.act is not F.relu else k * scale + q


MISSING = object()


def test_what_asks_for_the_identity_of_tensors():
    """Attention does: numbers stay symbols."""
    q, k = torch.ones(2), torch.ones(2)
    compiled = broach.compile(_Attention())
    for i in range(12):
        for pair in ((q, k), (q, q)):
            assert torch.equal(compiled(*pair, 1.5 + i), _Attention()(*pair, 1.5 + i))
    assert compiled._compiled_call.stats()["compiled_calls"] >= 16, broach.explain(compiled, q, k, 2.0)


def test_what_asks_nothing_of_numbers_by_identity():
    """Programs that compare something else so keep their symbols."""

    class Mode:
        first = "first"

    class Holder:
        def __init__(self):
            self.act = torch.relu

        def __call__(self, x, scale):
            y = x * scale if x is not None else x
            return self.act(y) if Mode is not Holder and x.dtype is torch.float32 and self is not None else y

    x = torch.ones(2)
    compiled = _check(Holder(), [(x, s) for s in (3.0, 4.0, 5.0, 6.0, 7.0)])
    assert compiled.stats()["captures"] <= 3, broach.explain(compiled, x, 8.0)


@pytest.mark.parametrize("program", [
    lambda x: x.sum() * (2 if type(x.shape[0]).__name__ == "int" else 3),
    lambda x: x.sum() * (2 if type(x.shape[0]).__qualname__ == "int" else 3),
    lambda x: x.sum() * (2 if isinstance(x.shape[0], torch.SymInt) else 3),
    lambda x: x.sum() * (2 if isinstance(x.shape[0], (int, torch.SymInt)) else 3),
    lambda x: (x.sum(), type(len(x)).__name__, type(x.size(1)).__module__),
    lambda x: x.sum() * (2 if isinstance(x.sum().item(), torch.SymFloat) else 3),
])  # fmt: skip
def test_types_by_name(program):
    _check(program, [(torch.ones(n, 4),) for n in (3, 5, 6, 3)])


def test_a_tuple_of_classes_keeps_symbols():
    compiled = _check(lambda x: x * 2 if isinstance(x.shape[0], (int, torch.SymInt)) else x, [(torch.ones(n),) for n in (3, 5, 6, 7, 8)])
    assert compiled.stats()["captures"] <= 3


@pytest.mark.parametrize("program", [
    lambda x, a: x * np.floor(a),
    lambda x, a: x * np.ceil(a / 4),
    lambda x, a: x / np.ceil(a / 4),
    lambda x, a: x * np.maximum(a, 1),
    lambda x, a: x * np.logical_and(a, 1),
    lambda x, a: torch.as_tensor(np.float32(1) * a) + x,
    lambda x, a: torch.as_tensor(np.add(a, 1)),
    lambda x, a: x * np.sign(a),
    lambda x, a: torch.from_numpy(np.array([a, a + 1])) * 2,
    lambda x, a: torch.from_numpy(np.asarray(a)[None]),
    lambda x, a: x * np.reciprocal(int(np.nan_to_num(a)) + 3),
    lambda x, a: x * np.abs(a) + np.int64(3) * round(np.nan_to_num(a)),
])  # fmt: skip
def test_numpys_functions(program):
    _check(program, [(torch.arange(3), a) for a in (1.5, 2.5, -1.5, 0.1, math.nan, -0.0)])


def test_numpys_functions_of_sizes():
    _check(lambda x: x * np.log2(x.shape[0]) + np.prod(x.shape), [(torch.ones(n, 2),) for n in (3, 5, 6, 9)])


def test_signs_of_zeros():
    x = torch.tensor([1.0, -1.0])
    _check(lambda x, a: (x / abs(a), abs(a)), [(x, a) for a in (2.5, 3.5, 0.0, -0.0, math.inf, -math.inf)])
    _check(lambda x, a: (x / abs(-a), math.sqrt(abs(a))), [(x, a) for a in (2.5, 3.5, 0.0, -0.0)])


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16, np.complex128])
def test_numpys_scalars_bit_for_bit(kind):
    x = torch.ones(2)
    _check(lambda x, s: x / s, [(x, kind(s)) for s in (0.0, 0.0, -0.0, 0.0, 2.0, -0.0)])
    compiled = _check(lambda x, s: x * s, [(x, kind(math.nan))] * 5)
    assert compiled.stats()["captures"] <= 2


def test_ranges_that_are_equal_but_differ():
    x = torch.ones(2)
    ranges = [range(0, 3, 2), range(0, 4, 2), range(0, 3, 2), range(0), range(2, 2), range(3, 1)]
    _check(lambda x, r: x * r.stop + r.start, [(x, r) for r in ranges])


@pytest.mark.parametrize("program", [
    lambda x, y: (x * 2, (y.item() * 6364136223846793005 + 1442695040888963407) % 2**32),
    lambda x, y: (x * 2, y.sum().item() ** 2 % 1000003),
    lambda x, y: (x * 2, y.item() ** 3),
    lambda x, y: (x.add_(1) * 2, y.max().item() ** 2 % 1000003),
])  # fmt: skip
def test_integers_have_no_end(program):
    compiled = broach.compile(program)
    for value in (3, 4, 5, 2**40, 3, 2**62, 7):
        arguments = [(torch.ones(2), torch.tensor(value)) for _ in range(2)]
        want, got = program(*arguments[0]), compiled(*arguments[1])
        assert torch.equal(got[0], want[0]) and got[1] == want[1] and torch.equal(arguments[0][0], arguments[1][0])


def test_integers_that_are_no_doubles():
    values = (3, 4, 2**53 + 1, 2**31 - 1, 2**62 + 1)
    _check(lambda x, n: (x * (2 if n * 1.0 == n else 3), n / 3), [(torch.ones(2), n) for n in values])


@pytest.mark.parametrize("index", [99, -99])
def test_texts_of_errors_name_sizes(index):
    def program(x):
        try:
            return x[index]
        except IndexError as e:
            return x * 2, str(e)

    _check(program, [(torch.ones(n),) for n in (4, 4, 5, 6, 4)])


def test_sizes_that_are_kept_are_sizes():
    class Holder:
        kept = None

    def run(f, holder):
        told = []
        for n in (3, 3, 4, 5):
            f(torch.ones(n, 2))
            told.append(repr(holder.kept))
        return told

    def program_of(holder):
        def program(x):
            holder.kept = (x.shape, [x.size()], 1)
            return x * 1

        return program

    ours, theirs = Holder(), Holder()
    assert run(broach.compile(program_of(ours)), ours) == run(program_of(theirs), theirs)
