"""Lying traces: programs whose state, arguments and settings are changed one thing at a time between calls. After each change
the compiled program must do what the program does: results, their layouts and aliasing, what becomes of the arguments and
what is left in the state. `make test-all` runs ten thousand changes."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import functools
import math
import os
import random
import time
import types
from typing import Any, Callable
from unittest import mock

import broach
import pytest
import torch
from compared import aliasing, difference, native, stats
from mutations import Globals, Kept, change, reachable, tables_in
from torch import nn
from torch.nn import functional as F

ALL = os.environ.get("BROACH_TEST_ALL") == "1"
CHANGES = int(os.environ.get("BROACH_TEST_CHANGES", "10000" if ALL else "450"))
SECONDS = float("inf") if ALL else 40.0
SEED = int(os.environ.get("BROACH_TEST_SEED", "20240611"))


# ---- programs ----


@dataclasses.dataclass
class Call:
    """How the next call's arguments are made."""

    batch: int = 2
    length: int = 4
    dtype: torch.dtype = torch.float32
    layout: str = "plain"
    alias: str = "none"
    optional: bool = True
    number: float = 1.5
    count: int = 2
    flag: bool = True
    sign: int = 1

    def tensor(self, *sizes: int, own: torch.Tensor | None = None) -> torch.Tensor:
        if self.alias == "own" and own is not None:
            return own
        t = (torch.randn(sizes).abs() * self.sign + 0.1).to(self.dtype)
        if self.layout == "strided":
            t = torch.stack([t, t], -1)[..., 0]
        if self.layout == "transposed" and t.dim() > 1:
            t = t.transpose(0, 1).contiguous().transpose(0, 1)
        if self.layout == "offset":
            t = torch.cat([t[:1], t])[1:]
        return t

    def second(self, first: torch.Tensor, *sizes: int) -> torch.Tensor:
        if self.alias == "same":
            return first
        if self.alias == "view":
            return first.view_as(first) if self.layout == "plain" else first[:]
        return self.tensor(*sizes)


CALL_CHANGES: dict[str, list] = {
    "batch": [0, 1, 2, 3, 5], "length": [1, 2, 4, 7], "dtype": [torch.float32, torch.float64, torch.bfloat16],
    "layout": ["plain", "strided", "transposed", "offset"], "alias": ["none", "same", "view", "own"], "optional": [True, False],
    "number": [1.5, 2.0, 0.0, -0.0, float("nan")], "count": [0, 1, 2, 3], "flag": [True, False], "sign": [1, -1],
}  # fmt: skip


@dataclasses.dataclass
class Subject:
    name: str
    program: Callable
    make: Callable[[Call], tuple]
    roots: list = dataclasses.field(default_factory=list)
    classes: tuple = ()
    own: torch.Tensor | None = None
    may_be_refused: bool = False  # natively: it depends on the call
    every: int = 1  # its turn comes once in so many rounds


G_SCALE, G_LIST, G_TABLE, G_TENSOR = 2.0, [1.0, 2.0], {"a": 1.0, "deep": {"b": 2.0}}, torch.randn(4)


def g_helper(x):
    return x * G_SCALE


def _plain(c: Call) -> tuple:
    x = c.tensor(c.batch, 4, own=G_TENSOR)
    return (x, c.second(x, c.batch, 4)), {}


def _globals() -> Subject:
    def program(x, y):
        return g_helper(x) + sum(G_LIST) * y + G_TABLE["a"] + G_TABLE["deep"].get("b", 0.0), G_TENSOR * 2

    return Subject("globals", program, _plain, [Globals(globals(), "G_SCALE", "G_LIST", "G_TABLE", "G_TENSOR", "g_helper")], own=G_TENSOR)


def _closures() -> Subject:
    scale, box, table, w = 2.0, [1.0, [2.0]], {"k": 3.0}, torch.randn(4)

    def inner(x, a=2.0, *, b=0.5):
        return x * a + b

    def program(x, y, third=1.0, *, fourth=2):
        z = inner(x) * scale + box[0] + box[-1][-1] if box and isinstance(box[-1], list) and box[-1] else x
        return z + w * table.get("k", 1.0) + y * third, [z, fourth]

    return Subject("closures", program, _plain, [program, inner], own=w)


def _control() -> Subject:
    def program(x, y, n, f, flag, extra=None):
        out = x
        for i in range(n):
            out = out * f + i
        if flag and x.shape[0] > 2:
            out = out.sum(0, keepdim=True)
        if extra is not None:
            out = out + extra
        if x.dtype == torch.float64 or torch.is_grad_enabled():
            out = out - 1
        return {"out": out, "y": y if flag else y * 2, "same": x is y, "n": n + 1}

    def make(c: Call) -> tuple:
        x = c.tensor(c.batch, c.length)
        kwargs = {"extra": c.tensor(c.length)} if c.optional else {}
        return (x, c.second(x, c.batch, c.length), c.count, c.number, c.flag), kwargs

    return Subject("control", program, make)


class Thing:
    factor = 3.0
    bias = torch.randn(4)

    def __init__(self):
        self.x, self.items, self.names = 1.5, [1.0, 2.0, torch.randn(4)], {"a", "b"}
        self.table = collections.OrderedDict(a=1.0, b=torch.randn(4))
        self.pair, self.queue, self.act = (1.0, [2.0]), collections.deque([1.0, 2.0]), "relu"
        self.counts = collections.defaultdict(float, k=1.0)
        self.space = types.SimpleNamespace(a=1.0, b=[2.0])

    @property
    def doubled(self):
        return self.x * 2

    def scaled(self, x):
        return x * self.factor

    def __call__(self, x, y):
        for i in self.items:
            x = x + i
        for k, v in self.table.items():
            x = x * v - len(k)
        x = getattr(torch, self.act)(x) + self.pair[0] * self.pair[1][0] + self.space.a * self.space.b[0]
        x = self.scaled(x) + self.doubled + self.bias + self.counts.get("k", 0.0) * self.queue[0]
        return x * len(self.names) + ("c" in self.names), y


class Slotted:
    __slots__ = ("a", "w", "items")

    def __init__(self):
        self.a, self.w, self.items = 2.0, torch.randn(4), [1.0]

    def run(self, x, y):
        return x * self.a + self.w * sum(self.items), y + 1


@dataclasses.dataclass
class Record:
    scale: float = 2.0
    more: Any = dataclasses.field(default_factory=lambda: {"k": [1.0, 2.0]})
    w: Any = dataclasses.field(default_factory=lambda: torch.randn(4))

    def run(self, x, y):
        return dataclasses.replace(self, w=x * self.scale + self.w + sum(self.more["k"])), y


def _objects() -> list[Subject]:
    thing, slotted, record = Thing(), Slotted(), Record()
    return [
        Subject("object", thing, _plain, [thing], (Thing,), own=thing.items[2]),
        Subject("slots", slotted.run, _plain, [slotted], (), own=slotted.w),
        Subject("dataclass", record.run, _plain, [record], (), own=record.w),
    ]


def _partial() -> Subject:
    w = torch.randn(4)
    options = {"scale": 2.0, "parts": [1.0]}

    def f(w, x, y, *, options, power=2):
        return (x * w) ** power * options["scale"] + sum(options["parts"]), y

    return Subject("partial", functools.partial(f, w, options=options), _plain, [options, f, w], own=w)


def _containers() -> Subject:
    def program(d, pair, *rest, **more):
        d["new"] = d["x"] * 2
        d["list"].append(pair[0] + 1)
        d.pop("old", None)
        return [pair, {k: v + 1 for k, v in more.items()}, sum(rest, pair[1]), d]

    def make(c: Call) -> tuple:
        x = c.tensor(c.batch, c.length)
        d = {"x": x, "list": [x] * c.count}
        if c.optional:
            d["old"] = c.number
        more = {f"k{i}": c.tensor(c.length) for i in range(c.count)}
        return (d, (x, c.second(x, c.batch, c.length)), *([x] if c.flag else [])), more

    return Subject("containers", program, make)


def _in_place() -> Subject:
    # Has no tensors of its own: an argument that shares memory with one is known to be missed where it is written.
    def program(x, y, flag):
        x.mul_(2)
        view = y[..., :1]
        if flag:
            view.add_(1)
        return x, x[:1], view, x + y

    def make(c: Call) -> tuple:
        x = c.tensor(c.batch, c.length)
        return (x, c.second(x, c.batch, c.length), c.flag), {}

    return Subject("in place", program, make)


def _views() -> Subject:
    def program(x, y):
        z = x + 1
        return x.t(), z.view(-1)[1:], z, y, (y.unsqueeze(0), x.reshape(-1))

    def make(c: Call) -> tuple:
        x = c.tensor(c.batch, c.length)
        return (x, c.second(x, c.batch, c.length)), {}

    return Subject("views", program, make)


class Cache:
    def __init__(self):
        self.keys: list = []
        self.seen = 0

    def update(self, k):
        self.keys.append(k)
        self.seen += k.shape[0]
        return torch.cat(self.keys)


def _cache() -> Subject:
    w = nn.Parameter(torch.randn(4), requires_grad=False)

    def program(x, cache):
        return (cache.update(x * w)).sum(0), cache, cache.seen

    def make(c: Call) -> tuple:
        cache = Cache()
        for i in range(c.count):
            cache.update(c.tensor(1 + i, 4))
        return (c.tensor(c.batch + 1, 4), cache), {}

    return Subject("cache", program, make, [program], own=w)


def _data_branch() -> Subject:
    limits = [0.0]

    def program(x, y):
        if bool((x.sum() > limits[0])):
            return x * 2, y
        return x - 1, y * 3

    return Subject("branch on data", program, _plain, [program], may_be_refused=True)


def _counted() -> list[Subject]:
    table, kept = {"limit": 0.0, "times": 2}, [torch.randn(4)]

    def by_masks(x, y):
        rows = x[x.sum(1) > table["limit"]]
        place, column = torch.where(y > table["limit"])
        out = torch.zeros_like(y).index_add_(0, place, y[place] * table["times"])
        y[y < table["limit"]] = 0.5
        return rows + kept[0], out, column, place.numel(), y

    def by_numbers(x, y):
        n = (x > table["limit"]).sum().item()
        lengths = (y > table["limit"]).sum(1).tolist()
        most = math.sqrt(abs(x.sum().item())) if n > table["times"] else 1
        parts = [y[i, :k] for i, k in enumerate(lengths)]
        return x[:n] * n, torch.arange(n) + len(lengths), x * most, torch.cat(parts) if parts else y, isinstance(n, int)

    def by_elements(x, y):
        values, counts = (x * 2).round().unique(return_counts=True)
        return values, counts, y.repeat_interleave((y > table["limit"]).sum(1), 0), (x > 0).flatten().long().bincount()

    return [Subject(f"counted {p.__name__}", p, _plain, [p], own=kept[0], may_be_refused=True) for p in (by_masks, by_numbers, by_elements)]


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.act = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU()
        self.drop, self.b = nn.Dropout(0.3), nn.Linear(6, 4)
        self.scale, self.residual, self.factors = nn.Parameter(torch.randn(4)), True, [1.0, 0.5]
        self.register_buffer("shift", torch.randn(4))
        self.loose = torch.randn(4)

    def forward(self, x, y):
        h = self.b(self.drop(self.act(self.norm(self.a(x)))))
        h = h * self.scale * getattr(self.scale, "scale", 1.0) + self.shift + self.loose * sum(self.factors)
        return (h + x if self.residual else h), y


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()), nn.Sequential(nn.Conv2d(4, 4, 1), nn.GELU())])
        self.head = nn.Linear(4, 2)
        self.pool = "mean"

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        x = x.mean((2, 3)) if self.pool == "mean" else x.amax((2, 3))
        return {"logits": self.head(x), "features": x}


class Attention(nn.Module):
    class Config:
        def __init__(self):
            self.heads, self.act, self.dropout, self.scale, self.layers = 2, "tanh", 0.0, 0.7, 2

    def __init__(self):
        super().__init__()
        self.config = self.Config()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.register_buffer("table", torch.randn(16, 8))
        self.registry = {"tanh": nn.Tanh(), "relu": nn.ReLU(), "sigmoid": nn.Sigmoid(), "silu": nn.SiLU()}

    def forward(self, x, mask=None):
        b, n, c = x.shape
        x = x + self.table[:n]
        for _ in range(self.config.layers):
            q, k, v = self.qkv(self.norm(x)).view(b, n, 3, self.config.heads, -1).permute(2, 0, 3, 1, 4)
            bias = None if mask is None else torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -1e9)[:, None, None]
            o = F.scaled_dot_product_attention(q, k, v, bias, self.config.dropout if self.training else 0.0, scale=self.config.scale)
            x = x + self.registry[self.config.act](self.out(o.transpose(1, 2).reshape(b, n, c)))
        return x, (q, k)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.steps = nn.GRUCell(4, 4), 3
        self.start = nn.ParameterList([nn.Parameter(torch.zeros(4))])
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x, y):
        h = self.start[0].expand(x.shape[0], 4)
        outs = []
        for i in range(self.steps):
            h = self.cell(x + i, h)
            outs.append(h)
        with torch.no_grad():
            self.seen.mul_(0.9).add_(h.detach().sum(0) * 0.1)
        return torch.stack(outs), y


class Statistics(nn.Module):
    """Keeps what it computes."""

    def __init__(self):
        super().__init__()
        self.mean, self.rate, self.steps, self.table, self.log = torch.zeros(4), 0.9, 2, {"k": 1.0}, []
        self.register_buffer("peak", torch.zeros(4))

    def forward(self, x, y):
        self.mean = self.rate * self.mean + (1 - self.rate) * x.sum(0)
        self.peak = self.peak + x.sum(0)
        self.table["out"] = x * self.table["k"]
        self.steps += 1
        self.log = [x]
        return x - self.mean * self.steps, y


def _modules() -> list[Subject]:
    mlp, conv, attention, recurrent, statistics = (m.eval() for m in (MLP(), Conv(), Attention(), Recurrent(), Statistics()))
    sequence = nn.Sequential(collections.OrderedDict(a=nn.Linear(4, 4), act=nn.ReLU(), b=nn.LayerNorm(4), c=nn.Linear(4, 4))).eval()

    def image(c: Call) -> tuple:
        return (c.tensor(c.batch, 3, c.length + 2, 5),), {}

    def words(c: Call) -> tuple:
        mask = torch.arange(c.length) < max(1, c.length - c.count)
        return (c.tensor(c.batch, c.length, 8),), {"mask": mask.expand(c.batch, c.length)} if c.optional else {}

    def one(c: Call) -> tuple:
        return (c.tensor(c.batch, 4),), {}

    return [
        Subject("MLP", mlp, _plain, [mlp], (MLP,), own=mlp.loose),
        Subject("convolutions", conv, image, [conv]),
        Subject("attention", attention, words, [attention], (Attention,)),
        Subject("recurrent", recurrent, _plain, [recurrent]),
        Subject("statistics", statistics, _plain, [statistics]),
        Subject("sequential", sequence, one, [sequence]),
        Subject("method of a module", functools.partial(MLP.forward, copy.deepcopy(mlp)), _plain, []),
    ]


def _zoo() -> list[Subject]:
    import zoo

    found = []
    for name in ("bert", "gpt2", "llama", "t5", "vit") if ALL else ("bert", "llama"):
        entry = zoo.build(name)
        assert entry is not None, name

        def make(c: Call, entry=entry) -> tuple:
            return (), zoo.inputs(entry, c.batch + 1, max(3, c.length), c.optional)

        found.append(Subject(name, entry.model, make, [entry.model], every=8))
    return found


def _subjects() -> list[Subject]:
    torch.manual_seed(SEED)
    return [_globals(), _closures(), _control(), *_objects(), _partial(), _containers(), _in_place(), _views(), _cache(), _data_branch(), *_counted(), *_modules(), *_zoo()]


# ---- settings ----

SETTINGS: dict[str, Callable] = {
    "grad": lambda: torch.enable_grad(),
    "inference": lambda: torch.inference_mode(),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": lambda: _for_a_while(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "deterministic": lambda: _for_a_while(torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True),
    "precision": lambda: _for_a_while(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "threads": lambda: _for_a_while(torch.get_num_threads, torch.set_num_threads, 1),
}


@contextlib.contextmanager
def _for_a_while(get, set_, value):
    before = get()
    set_(value)
    try:
        yield
    finally:
        set_(before)


# ---- the fuzzer ----


class Stale(AssertionError):
    pass


class Fuzzer:
    """One program with its compiled version, which is made anew now and then."""

    RENEWED_AFTER = 24

    def __init__(self, subject: Subject, rng: random.Random):
        self.subject, self.rng = subject, rng
        self.call = Call()
        self.done, self.refused, self.raised, self.told = 0, 0, 0, 0
        self.undo: list[Callable] = []
        self.log: list[str] = []
        self.renew()

    def renew(self) -> None:
        while self.undo:
            self.undo.pop()()
        self.call = Call()
        self.compiled = native(self.subject.program)
        self.age = 0
        self.log = []
        for _ in range(2):
            self.compare("no change")

    def outcome(self, program: Callable, objects: list[Any]) -> tuple[Any, Any, Any, Any]:
        """Result or error, aliasing, arguments afterwards, state afterwards."""
        own = self.subject.own
        memo = {id(own): own} if own is not None else {}
        torch.manual_seed(self.done)
        args, kwargs = copy.deepcopy(self.subject.make(self.call), memo)
        kept = Kept(objects)
        try:
            result = program(*args, **kwargs)
            alias = aliasing(result, (args, kwargs, own))
            result = copy.deepcopy(result, memo) if not _needs_grad(result) else result
        except broach.CaptureError:
            kept.restore()
            raise
        except Exception as e:
            result, alias = type(e), None
        after = kept.as_value()
        kept.restore()
        return result, alias, (args, kwargs), after

    def compare(self, what: str) -> bool:
        """False if the native front refuses the program as it is now."""
        self.log.append(what)
        objects = [o for o in reachable(self.subject.roots, self.subject.classes)]
        want = self.outcome(self.subject.program, objects)
        try:
            got = self.outcome(self.compiled, objects)
        except broach.CaptureError:
            self.refused += 1
            return False
        if want[1] is None:
            self.raised += 1
        # Where products may be rounded to bf16 they are, on processors that have instructions for it.
        rounded = torch.is_autocast_enabled("cpu") or self.call.dtype == torch.bfloat16 or torch.get_float32_matmul_precision() != "highest"
        loose = {"rtol": 5e-2, "atol": 5e-2} if rounded else {"rtol": 1e-3, "atol": 1e-4}
        why = unlike(want, got, loose)
        if why:
            # A library may do something else while `is_compiling()` is true, which is right as well.
            with mock.patch.object(torch.compiler, "_is_compiling_flag", True):
                compiling = self.outcome(self.subject.program, objects)
            if unlike(compiling, got, loose):
                raise Stale(f"{self.subject.name}: after {self.log[-6:]}: {why}")
            self.told += 1
        return True

    def step(self) -> None:
        self.done += 1
        self.age += 1
        setting: Any = contextlib.nullcontext()
        kind = self.rng.random()
        if kind < 0.3:
            name = self.rng.choice(list(CALL_CHANGES))
            setattr(self.call, name, self.rng.choice(CALL_CHANGES[name]))
            what = f"argument: {name}={getattr(self.call, name)}"
        elif kind < 0.4 or not self.subject.roots:
            what = self.rng.choice(list(SETTINGS))
            setting = SETTINGS[what]()
        else:
            what = self.change_state()
        with setting:
            fine = self.compare(what)
        raised = self.raised
        if fine and self.rng.random() < 0.3:
            fine = self.compare("again")
        if self.raised != raised:
            self.call.dtype = torch.float32
        if self.undo and (self.rng.random() < 0.5 or len(self.undo) > 4 or self.raised != raised):
            self.undo.pop()()
            fine = fine and self.compare("undone")
        if not fine or self.age > self.RENEWED_AFTER:
            self.renew()

    def change_state(self) -> str:
        objects = reachable(self.subject.roots, self.subject.classes)
        tables = tables_in(objects)
        for _ in range(20):
            if found := change(self.rng.choice(objects), self.rng, tables):
                self.undo.append(found[1])
                return found[0]
        return "nothing"


def unlike(want: tuple, got: tuple, loose: dict[str, float]) -> str:
    """Where two outcomes differ, or ""."""
    for name, a, b in zip(("result", "aliasing", "arguments", "state"), want, got):
        why = difference(a, b, where=name, **loose) if not isinstance(a, type) else "" if a is b else f"{a} and {b}"
        if why and not (want[1] is None and name in ("arguments", "state")):
            return why
    return ""


def _needs_grad(result: Any) -> bool:
    from compared import tensors_in

    return any(t.requires_grad for t in tensors_in(result))


@pytest.fixture(scope="module")
def counts():
    told: dict[str, int] = collections.Counter()
    yield told
    print(f"\nlying traces: {dict(told)}")


def test_lying_traces(counts):
    mutations_done, rounds, start = 0, 0, time.monotonic()
    with torch.no_grad():
        fuzzers = [Fuzzer(s, random.Random(f"{SEED} {s.name}")) for s in _subjects()]
        stale = []
        while mutations_done < CHANGES and time.monotonic() - start < SECONDS:
            rounds += 1
            for f in fuzzers:
                if rounds % f.subject.every:
                    continue
                try:
                    f.step()
                except Stale as e:
                    stale.append(str(e))
                    f.renew()
                mutations_done += 1
    for f in fuzzers:
        counts[f"{f.subject.name} refused"] += f.refused
        counts["raised"] += f.raised
        counts["right only while is_compiling()"] += f.told
    counts["changes"] = mutations_done
    assert not stale, f"{len(stale)} of {mutations_done}: " + "\n".join(stale[:20])
    for f in fuzzers:
        assert f.subject.may_be_refused or f.refused <= f.done // 4, f"{f.subject.name} was refused {f.refused} times: {stats(f.compiled)['reasons']}"


def test_the_fuzzer_notices_a_lying_trace(monkeypatch):
    def lying(program):
        first: dict[Any, Any] = {}

        def replay(x, y):
            key = x.shape, x.dtype, x.stride(), x is y
            if key not in first:
                first[key] = program(x, y)[0] - x
            return first[key] + x, y

        return replay

    def program(x, y):
        return x + G_SCALE * G_TABLE["a"], y

    monkeypatch.setitem(globals(), "native", lying)
    subject = Subject("lied to", program, _plain, [Globals(globals(), "G_SCALE", "G_TABLE")])
    fuzzer = Fuzzer(subject, random.Random(SEED))
    with torch.no_grad(), pytest.raises(Stale, match="lied to: after"):
        for _ in range(40):
            fuzzer.step()
    while fuzzer.undo:
        fuzzer.undo.pop()()
