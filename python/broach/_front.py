"""Decides how a program runs: captured natively, through TorchDynamo, or not compiled; and says why."""

from __future__ import annotations

import functools
import inspect
import logging
import warnings
from typing import Any, Callable

import torch

from ._backend import Collected, backend, native_options, register
from ._native import _C
from ._options import Options

log = logging.getLogger("broach")


class CaptureError(RuntimeError):
    """A program that cannot be captured, where something else is not allowed (``capture="native"``, ``fullgraph=True``)."""


class Front:
    """What the C side asks when it cannot go on with a program. Holds no reference to the compiled callable."""

    def __init__(self, program: Callable, options: Options, fullgraph: bool, dynamic: bool | None):
        self.program = program
        self.options = options
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.reasons: list[str] = []
        self.collected = Collected()
        self.runs_eagerly = False  # instead of through Dynamo

    def give_up(self, why: str, fallback: str) -> Callable:
        """What runs the program from now on. `fallback` is the name of a `Fallback` (torch/attempts.h)."""
        if why not in self.reasons:
            self.reasons.append(why)
        if self.options.get("capture") == "native":
            raise CaptureError(f"broach cannot capture {describe(self.program)} natively: {why}")
        if self.fullgraph and fallback == "in parts":
            raise CaptureError(f"fullgraph=True, but the way through {describe(self.program)} depends on data: {why}")
        known = (fallback == "eager" or computes_with_numpy(self.program)) and not self.fullgraph
        if known or fallback == "nothing":
            self.runs_eagerly = True
            log.info("%s runs eagerly: %s", describe(self.program), why)
            return self.program
        log.info("%s goes through Dynamo: %s", describe(self.program), why)
        return compile_with_dynamo(self.program, self.options, self.fullgraph, self.dynamic, self.collected)

    def differs(self, why: str, changed: str, written: list[str]) -> Callable:
        """What runs the program from now on, after `verify` has found another answer than eager's."""
        what = changed or (f"written since the capture: {', '.join(written[:5])}" if written else "")
        what = what or "nothing that Broach watches has changed since the capture"
        text = f"broach: {describe(self.program)} differs from eager and runs eagerly from now on: {why} ({what})"
        self.reasons.append(text)
        self.runs_eagerly = True
        log.warning(text)
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return self.program

    def reduce(self, compiled: Any) -> Any:
        """For pickling: functions by their name where it leads to the compiled one, else compiled anew."""
        name = getattr(self.program, "__qualname__", None)
        module = inspect.getmodule(self.program)
        found: Any = module
        for part in (name or "").split("."):
            found = getattr(found, part, None)
        if name and found is compiled:
            return name
        return _again, (self.program, dict(self.options), self.fullgraph, self.dynamic)


def _again(program: Callable, options: dict, fullgraph: bool, dynamic: bool | None) -> Any:
    return compile_natively(program, Options(options), fullgraph, dynamic)


def describe(program: Callable) -> str:
    return getattr(program, "__qualname__", None) or type(program).__qualname__


def computes_with_numpy(program: Callable) -> bool:
    """Whether the program's own code names numpy or something of it. What it calls is not looked at."""
    function = inspect.unwrap(type(program).forward if isinstance(program, torch.nn.Module) else program)
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    named = [function.__globals__.get(name) for name in code.co_names]
    return any((getattr(value, "__module__", None) or getattr(value, "__name__", "")).split(".")[0] == "numpy" for value in named if value is not None)


def suspends(program: Any) -> str:
    """Why there is nothing to capture in a call of it; empty if its code runs."""
    call = program.forward if isinstance(program, torch.nn.Module) else program
    for target in (call, getattr(type(call), "__call__", None)):
        for kind, test in (("coroutine", inspect.iscoroutinefunction), ("generator", inspect.isgeneratorfunction), ("async_generator", inspect.isasyncgenfunction)):
            if test(target):
                return f"a call gives a {kind}, whose code runs as its caller drives it"
    return ""


def compile_with_dynamo(
    program: Callable, options: Options, fullgraph: bool, dynamic: bool | None, collected: Collected
) -> Callable:
    run = functools.partial(backend, options=options, collect=collected)
    # Dynamo names backends by this attribute in its logs.
    run.__name__ = "broach"  # type: ignore[attr-defined]
    return torch.compile(program, fullgraph=fullgraph, dynamic=dynamic, backend=run)


def compile_natively(program: Callable, options: Options, fullgraph: bool, dynamic: bool | None) -> Any:
    front = Front(program, options, fullgraph, dynamic)
    native = {**native_options(options), "dynamic": dynamic, "whole": fullgraph}
    compiled = _C.Callable(program, front, (), native, True)
    register(compiled)
    functools.update_wrapper(compiled, program, updated=("__dict__",) if inspect.isfunction(program) else ())
    return compiled
