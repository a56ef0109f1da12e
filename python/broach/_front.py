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
from ._options import OPTIONS, Options

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

    def give_up(self, why: str) -> Callable:
        """What runs the program from now on."""
        if why not in self.reasons:
            self.reasons.append(why)
        if self.options.get("capture") == "native":
            raise CaptureError(f"broach cannot capture {describe(self.program)} natively: {why}")
        if self.fullgraph and "read on the host" in why:
            raise CaptureError(f"fullgraph=True, but the way through {describe(self.program)} depends on data: {why}")
        # Dynamo raises errors of operations instead of letting the program catch them. What is too large for one front is for both.
        if (" is caught" in why and not self.fullgraph) or "operations, more than" in why:
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


def compile_with_dynamo(
    program: Callable, options: Options, fullgraph: bool, dynamic: bool | None, collected: Collected
) -> Callable:
    run = functools.partial(backend, options=options, collect=collected)
    # Dynamo names backends by this attribute in its logs.
    run.__name__ = "broach"  # type: ignore[attr-defined]
    return torch.compile(program, fullgraph=fullgraph, dynamic=dynamic, backend=run)


def compile_natively(program: Callable, options: Options, fullgraph: bool, dynamic: bool | None) -> Any:
    front = Front(program, options, fullgraph, dynamic)
    branches = 0 if fullgraph else options.get("branches", OPTIONS["branches"].default)
    native = {**native_options(options), "dynamic": dynamic, "branches": branches}
    compiled = _C.Callable(program, front, (), native, True)
    register(compiled)
    functools.update_wrapper(compiled, program, updated=("__dict__",) if inspect.isfunction(program) else ())
    return compiled
