"""Random programs that write to what they are given, in part and as a whole, through views and by copies of each other, on operands that
lie in several ways: what they give, and what they leave in each operand, is eager's, call after call and in other sizes.

`make test-all` runs some thousand programs."""

import functools
import os
import random

import broach
import pytest
import torch

ALL = os.environ.get("BROACH_TEST_ALL") == "1"
PROGRAMS, CHUNK = (6000, 50) if ALL else (240, 20)


def _whole(r, names):
    t, u = r.choice(names), r.choice(names)
    return r.choice([
        f"{t}.copy_({u})", f"{t}[:] = {u} * .5", f"{t}.add_({u})", f"{t}.mul_(.5)", f"{t}.clamp_(-1, 1)", f"torch._foreach_copy_([{t}], [{u}])",
        f"torch.add({t}, {u}, out={r.choice(names)})", f"{t}.t().copy_({u} * 1)", f"{t}.view_as({t}).sub_({u})" if t != u else f"{t}.neg_()",
        f"{t}.copy_({u}.flip(0))", f"{t}.copy_({u}.roll(1, 1))", f"{t}.zero_()",
    ])  # fmt: skip


def _part(r, names):
    t, u, i, j = r.choice(names), r.choice(names), r.randrange(2), r.randrange(2)
    rows = f"{u}[{1 - i}]" if t == u else f"{u}[{i}]"
    return r.choice([
        f"{t}[{i}] = {rows}", f"{t}[{i}] = 3.", f"{t}[:1].add_(1)", f"{t}[:, {j}].mul_(2)", f"{t}[1:].copy_({u}[1:])" if t != u else f"{t}[1:].sin_()",
        f"{t}.narrow(0, {i}, 1).add_({rows})", f"{t}[{i}], {t}[{1 - i}] = {u}[0] * 1, {u}[1] * 1", f"{t}.diagonal().add_(1)",
        f"{t}[::2].neg_()", f"{t}[{t} > 1] = 0.", f"{t}.index_add_(0, torch.tensor([0, {i}]), {u}[:2] * 1)",
        f"{t}.index_copy_(0, torch.tensor([1, 0]), {u}[:2] * 2)", f"{t}.select(1, {j}).copy_({u}.sum(1))",
        f"{t}.scatter_(0, torch.zeros(1, 2, dtype=torch.int64), {u}[:1, :2] * 1)", f"{t}.masked_fill_({u} > .5, .25)", f"{t}[{i}, {j}] += 1",
        f"{t}.fill_diagonal_(.5)", f"{t}[torch.tensor([0, 1]), torch.tensor([1, 0])] = 2.",
    ])  # fmt: skip


def _value(r, names):
    t, u = r.choice(names), r.choice(names)
    return r.choice([f"{t} * 2 + {u}", f"{t} @ {u} * .1", f"{t}.cumsum(0) * .5", f"{t}.clone()", f"({t} + {u}).relu()", f"{t} - {u}.mean(0)",
                     f"{t}.softmax(-1)", f"torch.where({t} > {u}, {t}, {u} * .5)"])  # fmt: skip


def _view(r, names):
    t = r.choice(names)
    return r.choice([f"{t}[1:]", f"{t}.t()", f"{t}[:, :1]", f"{t}[0]", f"{t}.diagonal()", f"{t}.unsqueeze(0)"])


def program(seed: int) -> str:
    """Source of a function of three square matrices."""
    r = random.Random(seed)
    given, values, views, lines = ["x", "y", "z"], [], [], []
    for n in range(r.randint(3, 9)):
        names = given + values
        kind = r.random()
        if kind < 0.3:
            lines.append(_whole(r, names))
        elif kind < 0.65:
            lines.append(_part(r, names))
        elif kind < 0.85:
            lines.append(f"v{n} = {_value(r, names)}")
            values.append(f"v{n}")
        elif kind < 0.93:
            lines.append(f"w{n} = {_view(r, names)}")
            views.append(f"w{n}")
        elif views:
            lines.append(f"{r.choice(views)}.{r.choice(['add_(1)', 'mul_(.5)', 'zero_()', 'sin_()'])}")
    gives = r.sample(values + views, min(len(values + views), 2)) + r.sample([f"{r.choice(given)}.sum()", r.choice(given)], r.randint(0, 2))
    return "\n    ".join(["def f(x, y, z):", *lines, f"return {', '.join(gives)}," if gives else "return None"])


def operands(r: random.Random, n: int) -> list[torch.Tensor]:
    """Contiguous, transposed, from the middle of other memory, with gaps."""
    made = []
    for _ in range(3):
        t = torch.tensor([[r.uniform(-2, 2) for _ in range(n)] for _ in range(n)])
        way = r.randrange(5)
        if way == 1:
            t = t.t()
        elif way == 2:
            t = torch.cat([torch.zeros(3), t.flatten()])[3:].view(n, n)
        elif way == 3:
            t = torch.cat([t, t], 1)[:, ::2]
        made.append(t)
    return made


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """That lie as they do."""
    return [torch.empty_strided((t.untyped_storage().size() // 4,), (1,)).as_strided(t.size(), t.stride(), t.storage_offset()).copy_(t)
            for t in tensors]  # fmt: skip


def outcome(f, given):
    """What a call gives and leaves; the kind of its error instead, behind which nothing is promised of what it was given."""
    try:
        given_back = f(*given) or ()
    except RuntimeError:
        return "RuntimeError"
    return [t.clone() for t in (*given_back, *given)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_random_writes(first, dynamic):
    for seed in range(first, first + CHUNK):
        source, scope = program(seed), {"torch": torch}
        exec(source, scope)
        f, r = scope["f"], random.Random(-seed)
        compiled = broach.compile(f, dynamic=dynamic)
        for n in (3, 3, 4, 4, 3):
            given = operands(r, n)
            want, got = outcome(f, copies(given)), outcome(compiled, copies(given))
            if isinstance(want, str) or isinstance(got, str):
                assert want == got, source
                continue
            for a, b in zip(want, got, strict=True):
                said = functools.partial("seed {}, size {}\n{}\n{}".format, seed, n, source)
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True, msg=said)
