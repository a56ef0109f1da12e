"""Ordinary functions: control flow, containers, closures and state, as users write them. All equal eager over calls with other
sizes and values, and nearly all run from what was captured natively."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
from typing import Any, Callable, NamedTuple

import broach
import pytest
import torch
from compared import check, r, stats
from torch import nn
from torch.nn import functional as F

# Of the functions below, how many may go another way than the native one.
NOT_NATIVE = 0.05

SCALES = {"wide": 2.0, "narrow": 0.5}
STEPS = [1, 2, 3]


class Mode(enum.Enum):
    SUM = "sum"
    MEAN = "mean"


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Settings:
    rate: float = 0.1
    mode: Mode = Mode.SUM
    layers: tuple[int, ...] = (4, 4)


# ---- control flow ----


def branches_on_sizes(x, y):
    if x.shape[0] > 4:
        return x.mean(0)
    return x.sum(0) if x.dim() == 2 else x


def branches_on_data(x, y):
    return x * 2 if x.sum() > 0 else y - 1


def loops_until_small(x, y):
    n = 0
    while x.abs().max() > 0.5 and n < 4:
        x, n = x / 2, n + 1
    return x, n


def breaks_and_continues(x, y):
    total = torch.zeros_like(x)
    for i in range(10):
        if i % 2:
            continue
        if i > STEPS[-1] * 2:
            break
        total = total + x * i
    else:
        total = total * 0
    return total


def matches_patterns(x, y):
    match x.shape:
        case (1, _):
            return x + 1
        case (n, 4):
            return x * n
        case _:
            return y


def chooses_by_an_enum(x, y):
    settings = Settings(mode=Mode("mean"))
    return {Mode.SUM: torch.sum, Mode.MEAN: torch.mean}[settings.mode](x, 0) * settings.rate


def recurses(x, y):
    def power(t, n):
        return t if n == 1 else t * power(t, n - 1)

    return power(x, 5)


def catches_its_own_errors(x, y):
    try:
        return x * {"a": 1}["b"]
    except KeyError as e:
        return x * len(e.args)
    finally:
        y.sum()


def asserts(x, y):
    assert x.shape == y.shape, "sizes differ"
    assert x.dtype.is_floating_point
    return x + y


def walks_an_iterator(x, y):
    scales = iter((1.0, 2.0, 3.0))
    first = next(scales)
    return x * first + y * sum(scales) + next(scales, 7.0)


# ---- containers ----


def fills_a_list(x, y):
    rows = []
    for row in x.unbind(0):
        rows.append(row.tanh())
        rows.extend([row, row + 1])
    rows.insert(0, rows.pop())
    return torch.stack(rows), len(rows)


def sorts_by_size(x, y):
    parts = sorted([x[:1], y, x[:2]], key=lambda t: t.shape[0], reverse=True)
    return torch.cat(parts), [p.shape[0] for p in parts]


def builds_a_dict(x, y):
    out = {f"scaled {k}": x * v for k, v in SCALES.items()}
    out.update(both=x + y)
    out.setdefault("both", y)
    out["nested"] = {"pair": (x, [y])}
    return out


def groups(x, y):
    groups = collections.defaultdict(list)
    for i, row in enumerate(x.unbind(0)):
        groups[i % 2].append(row)
    return {k: torch.stack(v).sum(0) for k, v in groups.items()}


def uses_a_queue(x, y):
    window = collections.deque(maxlen=2)
    out = []
    for t in (x, y, x - y, x + y):
        window.append(t)
        out.append(sum(window))
    return tuple(out)


def counts(x, y):
    counter = collections.Counter("abracadabra")
    return x * counter["a"] + y * len(counter)


def unpacks(x, y):
    (a, *others), scale = [x, y, x * y], 3
    first, second = others
    return [*others, a * scale], {**{"a": first}, "b": second}


def makes_named_tuples(x, y):
    pair = Pair(x, second=y)
    return pair._replace(first=pair.second * 2), pair._asdict()


def makes_sets(x, y):
    names = {"a", "b"} | {c for c in "bcd"}
    return x * len(names & {"b", "z"}) + len(names)


def zips_and_chains(x, y):
    pairs = zip(x.chunk(2, -1), y.chunk(2, -1), strict=True)
    return torch.cat(list(itertools.chain.from_iterable(pairs)), -1), list(map(torch.Tensor.dim, (x, y)))


def slices(x, y):
    window = slice(1, None, 2)
    return x[:, window], y[..., -2:], x[None, 0], x[[0, -1]]


def formats_and_parses(x, y):
    layer, width = "layer-12".split("-")
    return x * int(width) + len(f"{layer}:{x.dim():02d}")


# ---- closures ----


def _with_closure():
    weight, settings = torch.full((4,), 2.0), Settings()

    def program(x, y):
        return x * weight + settings.rate

    return program


def _counting_closure():
    n = 0

    def program(x, y):
        nonlocal n
        n += 1
        return x * 2, n

    return program


def composes(x, y):
    add = functools.partial(torch.add, alpha=2)
    return functools.reduce(add, [x, y, x])


def makes_functions(x, y):
    scalers = [lambda t, k=k: t * k for k in range(3)]
    return [s(x) for s in scalers]


def applies_a_decorator(x, y):
    def twice(f):
        @functools.wraps(f)
        def wrapper(*args, **kwargs):
            return f(f(*args, **kwargs))

        return wrapper

    @twice
    def grow(t):
        return t * 1.5 + 1

    return grow(x)


def yields(x, y):
    def halves(t):
        while t.shape[-1] > 1:
            t = t[..., : t.shape[-1] // 2]
            yield t
        return

    return [h.sum() for h in halves(x)]


def manages_a_context(x, y):
    @contextlib.contextmanager
    def doubled(t):
        yield t * 2

    with doubled(x) as t, torch.no_grad():
        return t + y


@functools.lru_cache(maxsize=None)
def _power_of_two(n):
    return 2.0**n


def uses_a_cache(x, y):
    return x * _power_of_two(3) + math.sqrt(_power_of_two(4))


# ---- state ----


class Running:
    """Keeps what it has seen in attributes."""

    momentum = 0.9

    def __init__(self):
        self.mean, self.seen, self.history = torch.zeros(4), 0, {}

    def __call__(self, x, y):
        self.mean = self.momentum * self.mean + (1 - self.momentum) * x.mean(0)
        self.history["last"] = x.sum()
        return (x - self.mean) * self.scale

    @property
    def scale(self):
        return 1 / (1 + self.momentum)


class Layered(nn.Module):
    """Layers in containers, buffers, and a parameter that several share."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.by_name = nn.ModuleDict({"norm": nn.LayerNorm(4), "act": nn.GELU()})
        self.scales = nn.ParameterList([nn.Parameter(torch.rand(4)) for _ in range(2)])
        self.register_buffer("shift", torch.ones(4))
        self.layers[2].weight = self.layers[0].weight

    def forward(self, x, y):
        for i, layer in enumerate(self.layers):
            x = x + self.by_name["act"](layer(self.by_name["norm"](x))) * self.scales[i % 2]
        return {"x": x, "y": y + self.shift}


class Writer(nn.Module):
    """Writes its own buffer in place and counts."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x, y):
        self.total += x.sum(0)
        self.calls.add_(1)
        return y * self.total / self.calls


class Recurrent(nn.Module):
    """A cell over time, with a state that goes in and comes out."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(4, 4)

    def forward(self, x, y):
        h, out = torch.zeros_like(x), []
        for t in (x, y, x + y):
            h = self.cell(t, h)
            out.append(h)
        return torch.stack(out, 1), h


def writes_its_arguments(x, y):
    x.mul_(2)
    y[0] = x[-1]
    return x + y, x


def searches(x, y):
    """Greedy choice among rows: the sizes that come out do not depend on the data, the indices do."""
    scores = x @ y.t()
    best = scores.argmax(-1)
    return y[best], scores.topk(1).values, F.one_hot(best, y.shape[0])


PLAIN = [
    branches_on_sizes, branches_on_data, loops_until_small, breaks_and_continues, matches_patterns, chooses_by_an_enum, recurses,
    catches_its_own_errors, asserts, walks_an_iterator, fills_a_list, sorts_by_size, builds_a_dict, groups, uses_a_queue, counts,
    unpacks, makes_named_tuples, makes_sets, zips_and_chains, slices, formats_and_parses, composes, makes_functions,
    applies_a_decorator, yields, manages_a_context, uses_a_cache, writes_its_arguments, searches,
]  # fmt: skip
# What each makes is a program of its own: some keep state.
MAKERS: dict[str, Callable[[], Any]] = {
    **{f.__name__: (lambda f=f: f) for f in PLAIN},
    "with a closure": _with_closure,
    "with a closure that counts": _counting_closure,
    "object with running statistics": Running,
    "module of containers": Layered,
    "module that writes buffers": Writer,
    "recurrent module": Recurrent,
}


@functools.cache
def _native(name: str) -> bool:
    """Compares a program's compiled twin with the program itself over calls; whether it ran natively."""
    torch.manual_seed(0)
    mine = MAKERS[name]()
    torch.manual_seed(0)
    twin = MAKERS[name]()
    compiled = broach.compile(twin)
    calls = [(r(n, 4).abs() * sign, r(n, 4)) for n, sign in ((3, 1), (5, 1), (5, -1), (2, 1), (3, 1), (6, -1))]
    check(mine, *calls, compiled=compiled, repeat=3)
    told = stats(compiled)
    return told["front"] == "native" and told["compiled_calls"] >= len(calls) and not told["eager_reasons"]


@pytest.mark.parametrize("name", MAKERS)
def test_equals_eager(name):
    _native(name)


def test_nearly_all_are_captured_natively():
    others = [name for name in MAKERS if not _native(name)]
    assert len(MAKERS) >= 30 and len(others) <= NOT_NATIVE * len(MAKERS), f"{len(others)} of {len(MAKERS)} are not: {others}"


def test_labels_for_profilers_are_there_where_a_profiler_is():
    class Labelled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, x):
            with torch.profiler.record_function("first"):
                h = self.layer(x).relu()
            with torch.autograd.profiler.record_function("second"):
                return h.sum(1) * 2

    module = Labelled()
    call, x = broach.compile(module), torch.randn(3, 4)
    for _ in range(5):
        torch.testing.assert_close(call(x), module.forward(x))
    assert call._compiled_call.stats()["compiled_calls"] >= 2
    with torch.profiler.profile() as profile:
        torch.testing.assert_close(call(x), module.forward(x))
    keys = {e.key: e.count for e in profile.key_averages()}
    assert keys["first"] == keys["second"] == 2
    before = call._compiled_call.stats()["compiled_calls"]
    call(x)
    assert call._compiled_call.stats()["compiled_calls"] == before + 1


TWICE = {
    **{name: getattr(torch.special, name, None) or getattr(torch, name)
       for name in ("exp", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erfc", "erfinv", "digamma")},
    "lgamma": torch.lgamma,
    "atan2": lambda x: torch.atan2(x, x + 0.5),
    "hypot": lambda x: torch.hypot(x, x + 0.5),
    "pow": lambda x: x.abs() ** 1.7,
    "pow of two": lambda x: x.abs() ** x,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TWICE)
def test_a_function_is_one_number_for_a_row_and_for_each_element(name, dtype):
    """One of them is computed for one element, the other for several at a time."""
    torch.manual_seed(0)
    u = (lambda x: torch.acosh(x.abs() + 1)) if name == "acosh" else TWICE[name]
    programs = (
        lambda x: (u(x)[:, None] == u(x)).sum(),
        lambda x: (u(x)[:, None] - u(x)).abs().amin(1).amax(),
        lambda x: (u(x.view(5, -1))[:, 3:4] == u(x.view(5, -1))).sum(),
    )
    for program in programs:
        compiled = broach.compile(program)
        for n in (40, 95, 40):
            x = torch.rand(n, dtype=dtype) * 1.8 - 0.9
            assert torch.equal(compiled(x), program(x))


@pytest.mark.parametrize("u", [torch.asinh, torch.atan, lambda x: torch.atan2(x, x + 2)])
@torch.enable_grad()
def test_the_gradient_of_an_extreme_of_products_finds_it(u):
    def gradient(program, x):
        x = x.clone().requires_grad_()
        program(x).sum().backward()
        return x.grad

    torch.manual_seed(0)
    program = lambda x: (u(x)[:, None] * u(x)).amax(1)  # noqa: E731
    compiled = broach.compile(program)
    for _ in range(3):
        x = torch.randn(100)
        torch.testing.assert_close(gradient(compiled, x), gradient(program, x))
