"""Results that a call makes anew besides tensors and plain containers: classes, methods of what it makes, modules."""

import collections
import dataclasses
import functools
import types

import pytest
import torch

import broach


def _instance(x):
    y = x * 2

    class Out:
        t = y

        def get(self):
            return y

    return Out()


def _class(x):
    y = x * 2

    class Out:
        t = y

    return Out


def _class_in_a_list(x):
    return [type("Out", (), {"t": x * 2})]


def _partial_method(x):
    return type("Out", (), {"get": functools.partialmethod(lambda self, y: y, x * 2)})()


def _module(x):
    m = types.ModuleType("made")
    m.t = x * 2
    return m


READERS = {
    "instance": (_instance, lambda o: (o.t, o.get())),
    "class": (_class, lambda o: o.t),
    "class in a list": (_class_in_a_list, lambda o: o[0].t),
    "partial method": (_partial_method, lambda o: o.get()),
    "module": (_module, lambda o: o.t),
    "method of a tensor": (lambda x: (x * 2).add, lambda o: o(0)),
    "method of an argument": (lambda x: x.mul, lambda o: o(2)),
    "method of a list": (lambda x: [x * 2].__getitem__, lambda o: o(0)),
    "method of a dict": (lambda x: {"a": x * 2}.get, lambda o: o("a")),
    "method of a deque": (lambda x: collections.deque([x * 2]).pop, lambda o: o()),
}


@pytest.mark.parametrize("name", READERS)
def test_each_call_has_its_own(name):
    program, read = READERS[name]
    compiled = broach.compile(program)
    for i in range(5):
        x = torch.full((2,), float(i))
        torch.testing.assert_close(read(compiled(x)), read(program(x)))


def test_a_class_is_another_one_in_each_call():
    def program(x):
        class Error(Exception):
            seen = 0

        return x + 1, Error

    compiled, classes = broach.compile(program), []
    for i in range(5):
        classes.append(compiled(torch.ones(1))[1])
        assert classes[-1].seen == 0
        classes[-1].seen = i + 1
    assert len(set(classes)) == 5


def test_a_list_that_only_its_method_leads_to():
    compiled = broach.compile(lambda x: (x + 1, [].append))
    for i in range(5):
        method = compiled(torch.ones(1))[1]
        method(i)
        assert method.__self__ == [i]


def _compiled(program, read):
    compiled = broach.compile(program)
    for i in range(5):
        x = torch.full((2,), float(i))
        torch.testing.assert_close(read(compiled(x)), read(program(x)))
    assert compiled.stats()["compiled_calls"] >= 3, compiled.stats()["eager_reasons"]


def test_what_was_there_before_stays_compiled():
    @dataclasses.dataclass
    class Local:
        t: torch.Tensor

    Point = collections.namedtuple("Point", "t u")
    Made = type("Made", (), {})

    def made(x):
        out = Made()
        out.t = x + 3
        return out

    kept = []
    _compiled(lambda x: Local(x + 1), lambda o: o.t)
    _compiled(lambda x: Point(x + 1, x), lambda o: (o.t, o.u))
    _compiled(made, lambda o: o.t)
    _compiled(lambda x: (x + 1, torch.nn.Linear, torch, torch.add), lambda o: (o[0], o[1] is torch.nn.Linear, o[2] is torch))
    _compiled(lambda x: (x + 1, Local, Point, int), lambda o: (o[0], o[1] is Local, o[2] is Point))
    _compiled(lambda x: (x + 1, kept.append), lambda o: (o[0], o[1].__self__ is kept))
