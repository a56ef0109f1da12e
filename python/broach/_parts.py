"""Programs that cannot be compiled as a whole: their own code runs as it is, and the modules that it calls are compiled."""

from __future__ import annotations

import functools
import types
from typing import Any, Callable, Iterator

from torch import nn
from torch.jit import ScriptModule

from ._native import _C

# Torch's own place for compiled code, which it looks at in each call. What a module has there by `nn.Module.compile` comes first.
nn.Module._compiled_call_impl = _C.CompiledPart()  # type: ignore[assignment]

# How far modules are looked for behind the names of a program's own code, and among how many values of a container.
_DEPTH = 4
_WIDTH = 1000
# Of modules that a program is given as arguments, so many are compiled in parts.
_MOST_ARGUMENTS = 16


class Parts:
    """Runs `program` with the modules in it compiled by `compile_part`. Each is tried by itself; of one that cannot be compiled, the modules
    within are."""

    def __init__(self, program: Callable, compile_part: Callable[[Callable], Callable]):
        self.program = program
        self.compile_part = compile_part
        self.compiled: dict[int, Callable] = {}  # by the modules' addresses; each holds its module
        self.arguments: set[int] = set()
        self.seen: set[int] = set()
        if isinstance(program, nn.Module):
            if not _is_closed(program):
                self._add_within(program)
        else:
            for module in _named_modules(program):
                self._add(module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            if isinstance(value, nn.Module) and id(value) not in self.arguments and len(self.arguments) < _MOST_ARGUMENTS:
                self.arguments.add(id(value))
                self._add(value)
        before = _C.set_parts(self.compiled)
        try:
            return self.program(*args, **kwargs)
        finally:
            _C.set_parts(before)

    def _add(self, module: nn.Module) -> None:
        if id(module) in self.seen or _is_closed(module):
            return
        self.seen.add(id(module))
        if _is_worth_it(module):
            self.compiled[id(module)] = self.compile_part(module._call_impl)
        self._add_within(module)

    def _add_within(self, module: nn.Module) -> None:
        for child in module._modules.values():
            if child is not None:
                self._add(child)


def _is_closed(module: nn.Module) -> bool:
    """Whether a module has compiled code already, its own or somebody's."""
    by_torch = isinstance(module, ScriptModule) or type(module).__module__.startswith("torch._dynamo.")
    return by_torch or "_compiled_call" in module.__dict__ or module.__dict__.get("_compiled_call_impl") is not None


def _is_worth_it(module: nn.Module) -> bool:
    """Not where a call is a single operation, or does not come through `nn.Module.__call__`."""
    is_single = type(module).__module__.startswith("torch.nn.") and not module._modules
    return not is_single and type(module).__call__ is nn.Module.__call__


def _named_modules(program: Any) -> Iterator[nn.Module]:
    """The modules that a program's code names, closes over or is bound to, and those in what is found so."""
    seen: set[int] = set()
    found = [(program, _DEPTH)]
    while found:
        value, depth = found.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if issubclass(type(value), nn.Module):
            yield value
        elif depth:
            found += [(v, depth - 1) for v in _behind(value)]


def _behind(value: Any) -> list[Any]:
    """What a value leads to, without running code of its own."""
    kind = type(value)
    if kind is types.FunctionType:
        return [*cells(value), *_globals(value, value.__code__), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if kind is types.MethodType:
        return [value.__self__, value.__func__]
    if kind is functools.partial:
        return [value.func, *value.args, *value.keywords.values()]
    for base in (list, tuple):
        if issubclass(kind, base):
            return list(base.__iter__(value))[:_WIDTH]
    if issubclass(kind, dict):
        return list(dict.values(value))[:_WIDTH]
    if issubclass(kind, (type, types.ModuleType)) or kind.__module__.split(".")[0] in ("builtins", "torch", "broach_ext"):
        return []
    try:
        return list(object.__getattribute__(value, "__dict__").values())[:_WIDTH]
    except AttributeError:  # an object without one
        return []


def cells(function: Any) -> Iterator[Any]:
    """What a function closes over."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty: of a function that names itself
            pass


def _globals(function: types.FunctionType, code: types.CodeType) -> Iterator[Any]:
    for name in code.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _globals(function, inner)
