"""Decides how a program runs: captured natively, through TorchDynamo, or not compiled; and says why."""

from __future__ import annotations

import functools
import inspect
import logging
import operator
import threading
import types
import warnings
from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree

from . import _checkpoint, _gradients, _numbers, _optimizers  # noqa: F401: what stands in for others' while programs are captured
from ._backend import Collected, backend, native_options, register
from ._native import _C
from ._options import OPTIONS, Options
from ._parts import Parts, cells

log = logging.getLogger("broach")


class CaptureError(RuntimeError):
    """A program that cannot be captured, where something else is not allowed (``capture="native"``, ``fullgraph=True``)."""


class Front:
    """What the C side asks when it cannot go on with a program. Holds no reference to the compiled callable."""

    def __init__(self, program: Callable, options: Options, fullgraph: bool, dynamic: bool | None, is_part: bool):
        self.program = program
        self.options = options
        self.fullgraph = fullgraph
        self.dynamic = dynamic
        self.is_part = is_part  # of one that runs eagerly otherwise
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
        # Dynamo answers otherwise than eager in more ways than are known: it runs what is made for it, and where that is asked for.
        is_for_dynamo = not self.is_part and (fallback == "torch.compile" or self.options.get("capture") == "either")
        is_eager = fallback == "eager" or computes_with_numpy(self.program) or not is_for_dynamo
        if fallback == "nothing" or (is_eager and not self.fullgraph):
            self.runs_eagerly = True
            log.info("%s runs eagerly: %s", describe(self.program), why)
            return self.program if fallback == "nothing" else self.in_parts()
        log.info("%s goes through Dynamo: %s", describe(self.program), why)
        run = compile_with_dynamo(self.program, self.options, self.fullgraph, self.dynamic, self.collected, self.skip_gradients)
        run = _WithSettings(run, suppress_errors=not self.fullgraph)
        return run if self.fullgraph else self.apart_from_gradients(run)

    def in_parts(self) -> Callable:
        """What runs the program eagerly, with the modules compiled that it calls. Not where numbers are drawn by a counter: a reentrant
        checkpoint's second run, which is eager, would draw others."""
        wanted = self.options.get("parts", OPTIONS["parts"].default) and self.options.get("rng") != "counter"
        if self.is_part or not wanted:
            return self.program

        self.collected.clear()  # of before a reset

        def compile_part(program: Callable) -> Callable:
            self.collected.append(compile_natively(program, self.options, False, self.dynamic, is_part=True))
            return self.collected[-1]

        return Parts(self.program, compile_part)

    def skip_gradients(self) -> None:
        """What Dynamo makes of hooks, checkpoints and custom functions is for a compiler that treats them in its own way."""
        why = "while gradients are needed the program runs eagerly: it cannot be captured natively"
        if why not in self.reasons:
            self.reasons.append(why)
            log.info("%s: %s", describe(self.program), why)

    def apart_from_gradients(self, through_dynamo: Callable) -> Callable:
        program = self.program

        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and _may_need_gradients(program, args, kwargs):
                self.skip_gradients()
                return program(*args, **kwargs)
            return through_dynamo(*args, **kwargs)

        return run

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


def _may_need_gradients(program: Any, args: tuple, kwargs: dict) -> bool:
    """As far as can be told without running it; what is missed here the backend finds."""
    owner = getattr(program, "__self__", program)
    for x in (owner, *cells(program), *pytree.tree_leaves((args, kwargs))):
        if isinstance(x, torch.nn.Module) and any(p.requires_grad for p in x.parameters()):
            return True
        if isinstance(x, torch.Tensor) and x.requires_grad:
            return True
    return False


def describe(program: Callable) -> str:
    return getattr(program, "__qualname__", None) or type(program).__qualname__


def computes_with_numpy(program: Callable) -> bool:
    """Whether the program's own code names numpy or something of it. What it calls is not looked at."""
    function = inspect.unwrap(type(program).forward if isinstance(program, torch.nn.Module) else program)
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    return any(_is_of_numpy(function.__globals__.get(name)) for name in code.co_names)


def _is_of_numpy(value: Any) -> bool:
    """Without asking the value, which may answer by code of the program's."""
    kind = type(value)
    if issubclass(kind, types.ModuleType):
        name = object.__getattribute__(value, "__dict__").get("__name__")
    elif issubclass(kind, (types.FunctionType, types.BuiltinFunctionType)):
        name = value.__module__
    else:
        name = type.__dict__["__module__"].__get__(value if issubclass(kind, type) else kind)
    return isinstance(name, str) and name.split(".")[0] == "numpy"


def suspends(program: Any) -> str:
    """Why there is nothing to capture in a call of it; empty if its code runs."""
    call = program.forward if isinstance(program, torch.nn.Module) else program
    for target in (call, getattr(type(call), "__call__", None)):
        for kind, test in (("coroutine", inspect.iscoroutinefunction), ("generator", inspect.isgeneratorfunction), ("async_generator", inspect.isasyncgenfunction)):
            if test(target):
                return f"a call gives a {kind}, whose code runs as its caller drives it"
    return ""


def compile_with_dynamo(
    program: Callable,
    options: Options,
    fullgraph: bool,
    dynamic: bool | None,
    collected: Collected,
    skip_gradients: Callable[[], None] | None = None,
) -> Callable:
    run = functools.partial(backend, options=options, collect=collected, skip_gradients=skip_gradients)
    # Dynamo names backends by this attribute in its logs.
    run.__name__ = "broach"  # type: ignore[attr-defined]
    return torch.compile(program, fullgraph=fullgraph, dynamic=dynamic, backend=run)


class _WithSettings:
    """Calls what Dynamo compiles under the settings with which it answers as eager does, on this thread only: guards that it leaves
    out by default, on hooks of modules and on which parameters are one object; and code of which it cannot make a program runs as it is,
    so that the error of a wrong call is eager's own."""

    def __init__(self, compiled: Callable, suppress_errors: bool):
        _quiet_dynamo()
        self.compiled = compiled
        self.free: list[Any] = []  # patches, each of which would leave a variable in the thread's context
        self.settings = {"skip_nnmodule_hook_guards": False, "skip_no_tensor_aliasing_guards_on_parameters": False, "suppress_errors": suppress_errors}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        gradients = torch.is_grad_enabled()
        try:
            patch = self.free.pop()
        except IndexError:
            patch = torch._dynamo.config.patch(self.settings)
        try:
            with patch, _Quiet():
                return self.compiled(*args, **kwargs)
        except BaseException:  # of the program, whose `with torch.no_grad()` Dynamo's code does not leave then
            torch.set_grad_enabled(gradients)
            raise
        finally:
            self.free.append(patch)


class _Quiet:
    """While it lasts, what Dynamo warns of code that it leaves as it is goes to Broach's log on this thread."""

    threads = threading.local()

    def __enter__(self) -> None:
        self.threads.depth = getattr(self.threads, "depth", 0) + 1

    def __exit__(self, *error: Any) -> None:
        self.threads.depth -= 1

    @classmethod
    def passes(cls, record: logging.LogRecord) -> bool:
        if not getattr(cls.threads, "depth", 0) or record.levelno > logging.WARNING:
            return True
        log.info("Dynamo leaves a part of the program as it is: %s", record.getMessage())
        return False


@functools.cache
def _quiet_dynamo() -> None:
    logging.getLogger("torch._dynamo.convert_frame").addFilter(_Quiet.passes)


def compile_natively(program: Callable, options: Options, fullgraph: bool, dynamic: bool | None, is_part: bool = False) -> Any:
    front = Front(program, options, fullgraph, dynamic, is_part)
    native = {**native_options(options), "dynamic": dynamic, "whole": fullgraph, "is_part": is_part}
    compiled = _C.Callable(program, front, (), native, True)
    register(compiled)
    functools.update_wrapper(compiled, program, updated=("__dict__",) if inspect.isfunction(program) else ())
    return compiled


def _of_function(read: Callable) -> property:
    """What the function that was compiled, or the module's `forward`, has of this."""

    def get(compiled: Any) -> Any:
        program = compiled.__wrapped__
        return read(program.forward if isinstance(program, torch.nn.Module) else program)

    return property(get)


# Libraries tell methods that were overridden by their code, and ask functions for their arguments.
for _name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__"):
    setattr(_C.Callable, _name, _of_function(operator.attrgetter(_name)))
_C.Callable.__signature__ = _of_function(inspect.signature)
