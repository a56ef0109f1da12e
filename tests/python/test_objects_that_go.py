"""Objects that a program lets go before it ends, by which it may go on: their finalizers, weak references, the blocks of generators."""

from __future__ import annotations

import weakref

import broach
import pytest
import torch

LOG = []


def _numbers(x):
    try:
        while True:
            x = x + (yield x)
    finally:
        LOG.append("ended")


class Listed(list):
    def __del__(self):
        LOG.append("gone")


class Named(dict):
    def __del__(self):
        LOG.append("gone")


class Asked:
    def __del__(self):
        LOG.append("gone")


def sent_to(x):
    before = len(LOG)
    g = _numbers(x)
    next(g)
    y = g.send(1)
    g = None
    return y * (len(LOG) - before)


def appended_to(x):
    before, it = len(LOG), Listed()
    it.append(1)
    it = None
    return x * (len(LOG) - before)


def updated(x):
    before, it = len(LOG), Named()
    it.update(a=1)
    it.get("a")
    it = None
    return x * (len(LOG) - before)


def weakly_seen_tensor(x):
    z = x * 2
    z.add_(1)
    z.sum()
    seen = weakref.ref(z)
    del z
    return x * (seen() is None)


def weakly_seen_generator(x):
    g = _numbers(x)
    next(g)
    g.send(1)
    seen = weakref.ref(g)
    g = None
    return x * (seen() is None)


@pytest.mark.parametrize("program", [sent_to, appended_to, updated, weakly_seen_tensor, weakly_seen_generator])
def test_programs(program):
    compiled = broach.compile(program)
    for i in range(4):
        x = torch.full((2,), i + 1.0)
        LOG.clear()
        want, wrote = program(x), list(LOG)
        LOG.clear()
        assert torch.equal(compiled(x), want) and wrote == LOG


@pytest.mark.parametrize("number", [lambda n: (n >> 1) + n, lambda n: n | 1, lambda n: n << 2])
def test_what_an_attempt_leaves_goes_within_it(number, capfd):
    counter = {"n": 0}

    def program(x):
        counter["n"] += 1
        it = Asked()  # noqa: F841
        return x + number(counter["n"])

    compiled, x = broach.compile(program), torch.zeros(2)
    for i in range(8):
        LOG.clear()
        assert torch.equal(compiled(x), x + number(i + 1)) and LOG == ["gone"], i
    assert "EndsCapture" not in "".join(capfd.readouterr())


def _what_is_handled(x):
    try:
        raise
    except RuntimeError:
        return x + 1
    except ZeroDivisionError:
        return x + 2


def _context(x):
    try:
        raise ValueError
    except ValueError as e:
        return x * (2 if e.__context__ is None else 100)


@pytest.mark.parametrize("program", [_what_is_handled, _context])
@pytest.mark.parametrize("handled_first", [False, True])
def test_an_exception_that_the_caller_handles(program, handled_first):
    compiled, x = broach.compile(program), torch.ones(2)

    def check(handled):
        try:
            if handled:
                1 / 0  # noqa: B018
            assert torch.equal(compiled(x), program(x))
        except ZeroDivisionError:
            assert torch.equal(compiled(x), program(x))

    for handled in (handled_first, handled_first, not handled_first, handled_first, not handled_first):
        check(handled)


def test_exceptions_that_are_handled_cost_others_nothing():
    compiled = broach.compile(lambda x: x + 1)
    for _ in range(3):
        try:
            raise type("Other", (Exception,), {})
        except Exception:
            compiled(torch.ones(2))
    assert compiled.stats()["compiled_calls"] == 2


def test_reasons_are_short():
    counter = {"n": 0}

    def program(x):
        counter["n"] += 1
        return x + (counter["n"] >> 1)

    compiled = broach.compile(program)
    for _ in range(4):
        compiled(torch.zeros(2))
    assert len(str(broach.explain(compiled, torch.zeros(2)))) < 6000
