"""Names that lead to what cannot be watched, and stand where a run does not go: they keep nothing from being compiled until it does."""

from __future__ import annotations

import sys
import textwrap
import threading
import types

import broach
import pytest
import torch
from compared import difference, native, ran_natively, stats

BEGINNING = """
import itertools, random, sys
import torch
generator = random.Random(7)
randrange = generator.randrange
other_name = randrange
counter = itertools.count()
"""


def program_of(text):
    """A program of a module of its own: two of them share no state."""
    names = {"__name__": "a_program"}
    exec(compile(BEGINNING + textwrap.dedent(text), "a_program.py", "exec"), names)
    return names["f"]


PROGRAMS = {
    "a branch": "def f(x, flag):\n    if flag:\n        x = x + randrange(1000)\n    return x * 2",
    "an operand": "def f(x, flag):\n    return x * 2 if not flag or generator.random() < 0.5 else x * 3",
    "a conditional expression": "def f(x, flag): return x + (next(counter) if flag else 0)",
    "a loop": "def f(x, flag):\n    for _ in range(3 if flag else 0):\n        x = x + next(counter)\n    return x * 2",
    "a comprehension": "def f(x, flag): return x + sum([randrange(100) for _ in range(2 if flag else 0)])",
    "a generator": "def f(x, flag): return x + sum(next(counter) for _ in range(2 if flag else 0))",
    "a function within": "def f(x, flag):\n    def inner(): return x + next(counter)\n    return inner() if flag else x * 2",
    "another function": "def helper(x): return x + randrange(1000)\ndef f(x, flag): return helper(x) if flag else x * 2",
    "the modules": "def f(x, flag): return x + (len(sys.modules) > 3 if flag else 5)",
    "by a text": "import types\nme = types.ModuleType('me')\nme.counter = counter\ndef f(x, flag): return x + (next(getattr(me, 'counter')) if flag else 0)",
    "an import": "def f(x, flag):\n    if flag:\n        from random import randrange as draw\n        x = x + draw(1, 2)\n    return x * 2",
    "another name": "def helper(x, flag): return x + (other_name(100) if flag else 0)\ndef f(x, flag):\n    if x is None: randrange(2)\n    return helper(x, flag)",
    "a default": "def f(x, flag, draw=randrange): return x + (draw(100) if flag else 0)",
    "a handler": "def f(x, flag):\n    try:\n        if flag: raise KeyError\n        return x * 2\n    except KeyError:\n        return x + next(counter)",
    "a name of the block": "def f(x, flag):\n    global randrange\n    if flag: randrange = lambda n: 5\n    return x * 2 if not flag else x + randrange(3)",
    "a deleted name": "def f(x, flag):\n    global counter\n    if flag:\n        counter = None\n    return x * (2 if counter is not None else 3)",
}


@pytest.mark.parametrize("sizes", ["one size", "other sizes"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_equals_eager_whichever_way_it_goes(name, sizes):
    compiled, eager = broach.compile(program_of(PROGRAMS[name])), program_of(PROGRAMS[name])
    flags = [False, False, False, True, False, True, True, False, False, True, True, True]
    for i, flag in enumerate(flags):
        x = torch.arange(3 + (i % 4 if sizes == "other sizes" else 0), dtype=torch.float32)
        assert not difference(eager(x, flag), compiled(x, flag)), i


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"a default", "a deleted name"}))
def test_is_compiled_where_it_does_not_go(name):
    compiled = broach.compile(program_of(PROGRAMS[name]), options={"capture": "native"})
    for i in range(6):
        compiled(torch.ones(3 + i % 2), False)
    ran_natively(compiled)
    assert stats(compiled)["compiled_calls"] >= 2


def test_first_runs_that_find_it():
    """A cache that is filled by looking through all modules, as einops looks for a tensor's framework."""
    text = """
        found = {}
        def framework(x):
            known = found.get(type(x))
            if known is None:
                known = found[type(x)] = [name for name in ("torch", "tensorflow") if name in sys.modules][0]
            return known
        def f(x, flag):
            return x * (2 if framework(x) == "torch" else 3)
    """
    compiled = broach.compile(program_of(text))
    for _ in range(6):
        torch.testing.assert_close(compiled(torch.ones(3), False), torch.full((3,), 2.0))
    ran_natively(compiled)
    torch.testing.assert_close(compiled(torch.nn.Parameter(torch.ones(3)), False), torch.full((3,), 2.0))


def test_under_a_debugger():
    """Which is told about every instruction: the program runs eagerly meanwhile, and neither misses anything."""
    text, lines = PROGRAMS["a branch"], []
    compiled, eager = broach.compile(program_of(text)), program_of(text)

    def trace(frame, event, argument):
        lines.append((frame.f_code.co_name, event))
        return trace

    for flag in (False, False, True, False, True):
        sys.settrace(trace)
        try:
            have = compiled(torch.ones(3), flag)
            assert sys.gettrace() is trace
        finally:
            sys.settrace(None)
        assert not difference(eager(torch.ones(3), flag), have)
    assert ("f", "line") in lines


def test_leaves_no_trace():
    compiled = broach.compile(program_of(PROGRAMS["a branch"]))
    for _ in range(4):
        compiled(torch.ones(3), False)
        assert sys.gettrace() is None
    if sys.version_info >= (3, 12):
        assert sys.monitoring.get_tool(3) is None and sys.monitoring.get_tool(4) is None


def test_on_several_threads():
    programs = [(broach.compile(program_of(PROGRAMS[name])), program_of(PROGRAMS[name])) for name in ("a branch", "a generator", "a loop")]
    barrier, wrong = threading.Barrier(len(programs)), []

    def work(compiled, eager):
        for i in range(30):
            if i < 6:
                barrier.wait(20)
            x, flag = torch.ones(3 + i % 3), i > 20 and i % 5 == 0
            with torch.no_grad():
                if why := difference(eager(x, flag), compiled(x, flag)):
                    wrong.append((i, why))

    threads = [threading.Thread(target=work, args=pair) for pair in programs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


class _Answers:
    """Asked for anything but its weight, it runs code of the program's."""

    weight = 3.0

    def __getattribute__(self, name):
        if name != "weight":
            raise KeyError(name)
        return object.__getattribute__(self, name)


def _module_that(answers):
    module = types.ModuleType("a_module")
    module.weight = 3.0
    module.__getattr__ = answers
    return module


def _raises(name):
    raise KeyError(name)


@pytest.mark.parametrize(
    "make", [_Answers, lambda: _module_that(lambda name: 5.0), lambda: _module_that(_raises)], ids=["object", "module that answers", "module that raises"]
)
@pytest.mark.parametrize("finds", [False, True])
def test_objects_that_answer_by_code_of_the_programs_are_not_asked(make, finds):
    """Neither while they are watched nor where the program is given up."""
    text = "def f(x, flag): return x * thing.weight + (next(counter) if flag and thing is not None else 0)"
    pair = [program_of(text) for _ in range(2)]
    for program in pair:
        program.__globals__["thing"] = make()
    eager, compiled = pair[0], broach.compile(pair[1])
    for flag in (False, False, False, finds, False, finds):
        assert not difference(eager(torch.ones(2), flag), compiled(torch.ones(2), flag))


def test_a_variable_of_the_script_with_the_name_of_an_attribute():
    """What the caller does to its own `loss` is nothing to a program that reads an attribute of that name; a global that it reads is."""
    scope = {"torch": torch}
    code = """
class Out: pass
def program(x):
    out = Out()
    out.loss = x * 2
    out.scale = 3.0
    return out.loss + out.scale
def other(x):
    return x * scale
"""
    exec(compile(code, "/tmp/script.py", "exec"), scope)
    compiled, reads = native(scope["program"]), native(scope["other"])
    for i in range(8):
        x = torch.randn(3)
        scope["loss"], scope["scale"] = compiled(x), float(i)
        assert torch.equal(scope["loss"], x * 2 + 3)
        assert torch.equal(reads(x), x * i)
    assert stats(compiled)["captures"] <= 2, stats(compiled)["attempts"]
