"""Lists that a program appends to in each call: where it does nothing else with them, they are no reason to capture it anew."""

from __future__ import annotations

import collections
import copy
import dataclasses
import operator

import broach
import pytest
import torch
from compared import difference
from torch import nn

CALLS = 14


class Holder:
    def __init__(self):
        self.log, self.other, self.n = [], [], 0

    def __len__(self):
        return len(self.log)

    @property
    def last(self):
        return self.log[-1] if self.log else 1.0


@dataclasses.dataclass
class Record:
    log: list = dataclasses.field(default_factory=list)
    scale: float = 2.0


class Sub(list):
    pass


def _snapshot(values):
    """Numbers as tensors, of which the last bits may differ."""

    def shown(v):
        return v.detach().clone() if isinstance(v, torch.Tensor) else ("float", torch.tensor(v)) if type(v) is float else copy.deepcopy(v)

    return [shown(v) for v in values]


def _compare(make, between=None, calls=CALLS):
    """`make`: gives a program and a function that shows its lists. Returns the compiled one."""
    seen = []
    for wrap in (lambda f: f, broach.compile):
        torch.manual_seed(0)
        program, look, *more = make()
        f = wrap(program)
        rows = []
        for i in range(calls):
            if between:
                between(i, *more)
            result = f(torch.randn(3))
            rows.append((_snapshot([result]), _snapshot(look())))
        seen.append(rows)
    for i, (want, got) in enumerate(zip(*seen)):
        assert not difference(want, got), (i, difference(want, got))
    return f


# ---- only appended to ----


def _closure():
    log = []

    def program(x):
        y = x * 2
        log.append(y.sum().item())
        return y

    return program, lambda: log


def _tensors():
    log = []

    def program(x):
        y = x * 2
        log.append(y)
        return y

    return program, lambda: log


def _method():
    o = Holder()

    def step(self, x):
        self.log.append((x.mean(), "mean"))
        self.n += 1
        return x * self.n

    Holder.step = step
    return o.step, lambda: o.log


def _by_key():
    state = {"log": [], "n": 0, "norms": []}

    def program(x):
        state["n"] += 1
        state["log"].append(x.sum().item())
        state["norms"].extend([x.norm(), {"n": 1}])
        return x * state["n"]

    return program, lambda: state["log"] + state["norms"]


def _within_a_loop():
    log = []

    def program(x):
        for row in x:
            log.append(row * 2)
        return x

    return program, lambda: log


def _by_a_helper():
    log = []

    def keep(v):
        log.append(v)

    def program(x):
        keep(x.max())
        [keep(v) for v in (1, 2.5)]
        return x + 1

    return program, lambda: log


GLOBAL: list = []


def _global():
    GLOBAL.clear()

    def program(x):
        GLOBAL.append(x.sum().item())
        return x + 1

    return program, lambda: GLOBAL


def _training():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    history = {"loss": [], "norm": []}

    def program(x):
        with torch.enable_grad():
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
        optimizer.step()
        history["loss"].append(loss.item())
        history["norm"].append(model.weight.grad.norm())
        return loss.detach()

    return program, lambda: history["loss"] + history["norm"]


def _by_a_hook():
    model = nn.Linear(3, 2)
    norms = []

    def program(x):
        with torch.enable_grad():
            model.zero_grad()
            out = model(x)
            out.register_hook(lambda g: norms.append(g.norm()))
            out.square().sum().backward()
        return model.weight.grad.clone()

    return program, lambda: norms


def _in_some_calls():
    log = []

    def program(x):
        if x.sum() > 0:
            log.append(x.sum())
        return x * 2

    return program, lambda: log


APPENDED = [_closure, _tensors, _method, _by_key, _within_a_loop, _by_a_helper, _global, _training, _by_a_hook, _in_some_calls]


@pytest.mark.parametrize("make", APPENDED)
def test_appended_only(make):
    f = _compare(make)
    seen = f.stats()
    assert seen["compiled_calls"] >= CALLS - 10, seen


def test_what_is_appended_is_the_result():
    log = []

    def program(x):
        y = x * 2
        log.append(y)
        return y

    f = broach.compile(program)
    for _ in range(6):
        y = f(torch.randn(3))
        assert log[-1] is y
    assert f.stats()["compiled_calls"] > 1


# ---- read in some way ----

READS = {
    "length": lambda log, x: x * len(log),
    "truth": lambda log, x: x * (2 if log else 3),
    "every_fifth": lambda log, x: x * 5 if len(log) % 5 == 0 else x,
    "last": lambda log, x: x * (log[-1] if log else 1.0),
    "sum": lambda log, x: x + sum(log),
    "loop": lambda log, x: x + sum(1 for _ in log),
    "membership": lambda log, x: x * (2 if 3.0 in log else 1),
    "equality": lambda log, x: x * (2 if log == [0.0, 1.0, 2.0] else 1),
    "passed": lambda log, x: x * float(max(log, default=1.0)),
    "unpacked": lambda log, x: x * len([*log, 1]),
    "text": lambda log, x: x * len(f"{log}"),
    "method": lambda log, x: x * log.__len__(),
    "index": lambda log, x: x * (log.index(3.0) if log.count(3.0) else 1),
    "slice": lambda log, x: x + sum(log[-2:]),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("holder", ["closure", "attribute", "item"])
def test_appended_and_read(holder, read):
    def make():
        o, state, log, n = Holder(), {"log": []}, [], [0.0]
        kept = {"closure": log, "attribute": o.log, "item": state["log"]}[holder]

        def program(x):
            if holder == "closure":
                log.append(n[0])
                return READS[read](log, x)
            if holder == "attribute":
                o.log.append(n[0])
                return READS[read](o.log, x)
            state["log"].append(n[0])
            return READS[read](state["log"], x)

        def count(i):
            n[0] = float(i)

        return program, lambda: kept, count

    _compare(make, between=lambda i, count: count(i))


ROUNDABOUT = {
    "values": lambda o, d, x: x * sum(len(v) for v in d.values()),
    "items": lambda o, d, x: x * sum(len(v) for k, v in d.items()),
    "get": lambda o, d, x: x * len(d.get("log")),
    "variable_key": lambda o, d, x: x * sum(len(d[k]) for k in ("l" + "og",)),
    "copied": lambda o, d, x: x * len(dict(d)["log"]),
    "keywords": lambda o, d, x: x * (lambda **k: len(k["log"]))(**d),
    "text_of_dict": lambda o, d, x: x * len(str(d)),
    "equal_dicts": lambda o, d, x: x * (2 if d == {"log": [1.0, 1.0]} else 1),
    "vars": lambda o, d, x: x * len(vars(o)["log"]),
    "dict": lambda o, d, x: x * len(o.__dict__["log"]),
    "getattr": lambda o, d, x: x * len(getattr(o, "lo" + "g")),
    "attrgetter": lambda o, d, x: x * len(operator.attrgetter("lo" + "g")(o)),
    "property": lambda o, d, x: x * o.last,
    "len": lambda o, d, x: x * len(o),
    "copy": lambda o, d, x: x * len(copy.copy(o)),
    "match": lambda o, d, x: x * len(collections.ChainMap(d)["log"]),
}


@pytest.mark.parametrize("way", ROUNDABOUT)
def test_read_in_a_roundabout_way(way):
    def make():
        o, d = Holder(), {"log": []}

        def program(x):
            o.log.append(1.0)
            d["log"].append(1.0)
            return ROUNDABOUT[way](o, d, x)

        return program, lambda: o.log + d["log"]

    _compare(make)


def test_a_dataclass_compares_its_lists():
    def make():
        a, b = Record(), Record(log=[1.0] * 5)

        def program(x):
            a.log.append(1.0)
            return x * (2 if a == b else 3)

        return program, lambda: a.log

    _compare(make)


def test_another_name_for_the_list():
    def make():
        log = []
        alias = log

        def program(x):
            log.append(1.0)
            return x * len(alias)

        return program, lambda: log

    _compare(make)


def test_another_name_that_comes_later():
    def make():
        o = Holder()

        def program(x):
            o.log.append(1.0)
            return x * (1 + len(o.other))

        return program, lambda: o.log, o

    def between(i, o):
        if i == 7:
            o.other = o.log

    _compare(make, between)


def test_a_reading_way_that_is_taken_later():
    def make():
        log, reads = [], [False]

        def program(x):
            log.append(1.0)
            return x * len(log) if reads[0] else x

        return program, lambda: log, reads

    def between(i, reads):
        reads[0] = i in (7, 8, 11)

    _compare(make, between)


def test_data_lead_to_a_reading_way():
    def make():
        log = []

        def program(x):
            log.append(1.0)
            return x * len(log) if x.sum() > 0 else x

        return program, lambda: log

    _compare(make, calls=20)


def test_the_caller_changes_the_list():
    def make():
        o = Holder()

        def program(x):
            o.log.append(x.sum().item())
            return x * 2

        return program, lambda: o.log, o

    def between(i, o):
        if i == 5:
            o.log.clear()
        if i == 7:
            o.log = ["another"]
        if i == 9:
            o.log.insert(0, "first")
        if i == 11:
            o.log = Sub()

    _compare(make, between)


def test_a_call_that_fails_behind_the_append():
    def make():
        log = []

        def program(x):
            log.append(1.0)
            y = x * 2
            log.append(2.0)
            return torch.nn.functional.embedding(torch.tensor([0, int(x.numel()) - 3]), y[:, None])

        return program, lambda: log

    seen = []
    for wrap in (lambda f: f, broach.compile):
        program, look = make()
        f, lengths = wrap(program), []
        for n in (4, 4, 4, 4, 2, 4, 2, 4):
            try:
                f(torch.ones(n))
            except IndexError:
                lengths.append("error")
            lengths.append(len(look()))
        seen.append(lengths)
    assert seen[0] == seen[1]


def test_the_list_is_given_back():
    def make():
        log = []

        def program(x):
            log.append(x.sum().item())
            return log

        return program, lambda: log

    _compare(make)


def test_the_list_is_an_argument_too():
    log = []

    def program(x, given):
        log.append(1.0)
        return x * len(given)

    f = broach.compile(program)
    for i in range(10):
        log_is_given = i % 3 == 2
        got = f(torch.ones(2), log if log_is_given else [1])
        assert got.tolist() == [float(i + 1 if log_is_given else 1)] * 2 and len(log) == i + 1


def test_captures_stop_where_a_list_is_read():
    """The slower way stays as it was: so many captures, then eager."""
    log = []

    def program(x):
        log.append(1.0)
        return x * len(log)

    f = broach.compile(program)
    for i in range(40):
        assert f(torch.ones(2)).tolist() == [i + 1.0] * 2
    assert f.stats()["captures"] <= 32


@pytest.mark.parametrize("option", ["verify", "dynamic"])
def test_with_options(option):
    log = []

    def program(x):
        y = x * 2
        log.append(y.sum().item())
        return y

    f = broach.compile(program, options={"verify": 8}) if option == "verify" else broach.compile(program, dynamic=True)
    for i in range(12):
        x = torch.full((3 + i % 4,), float(i))
        assert torch.equal(f(x), x * 2) and len(log) == i + 1 and log[-1] == x.sum().item() * 2
