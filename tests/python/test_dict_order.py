"""The order of a dict's keys, where values of it change from call to call or are written by the program."""

from __future__ import annotations

import collections

import pytest
import torch
from compared import native


class Holder:
    pass


def _values(d):
    return list(d.items()) if isinstance(d, dict) else list(vars(d).items())


def _fold(x, d):
    for k, v in _values(d):
        x = x * v if k == "a" else x + v
    return x, [k for k, _ in _values(d)]


KINDS = {"dict": dict, "defaultdict": lambda **k: collections.defaultdict(int, **k), "counter": collections.Counter}


def _moved(d, key):
    fields = d if isinstance(d, dict) else vars(d)
    fields[key] = fields.pop(key)


@pytest.mark.parametrize("kind", [*KINDS, "object"])
def test_items_whose_numbers_change(kind):
    d = KINDS[kind](a=1, b=2) if kind in KINDS else Holder()
    if kind == "object":
        d.a, d.b = 1, 2
    f = native(lambda x: _fold(x, d))
    x = torch.ones(3)
    for i in range(16):
        if i % 5 == 3:
            (d if isinstance(d, dict) else vars(d))["a"] += 1
        if i in (7, 11, 12):
            _moved(d, "a" if i != 11 else "b")
        (want, order), (got, found) = _fold(x, d), f(x)
        assert torch.equal(want, got) and order == found, i


def test_an_item_that_the_program_writes():
    d = {"a": torch.zeros(3), "b": torch.ones(3)}

    def program(x):
        first = next(iter(d.values()))
        d["a"] = x * 2
        return first * 10, list(d)

    f = native(program)
    x = torch.ones(3)
    for i in range(12):
        if i in (5, 8, 9):
            _moved(d, "a" if i != 8 else "b")
        want = next(iter(d.values())) * 10, list(d)
        got = f(x)
        assert torch.equal(want[0], got[0]) and want[1] == got[1], i


def test_a_counter_that_the_program_writes():
    d = {"n": 0, "scale": 2.0}

    def program(x):
        d["n"] += 1
        return x * d["scale"], list(d), d["n"]

    f = native(program)
    for i in range(12):
        if i in (6, 9):
            _moved(d, "n")
        order = list(d)
        assert f(torch.ones(2))[1:] == (order, i + 1)
