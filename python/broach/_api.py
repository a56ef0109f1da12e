"""What users call: compile, explain, disable, reset, list_options."""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from typing import Any, Callable

import torch

from ._backend import Collected, _observers, reset_functions
from ._explain import Explanation
from ._front import CaptureError, compile_natively, compile_with_dynamo, describe, suspends
from ._module import CompiledModule
from ._options import OPTIONS, Options, check_arguments


log = logging.getLogger("broach")

# What each compiled callable consists of so far, for `explain`.
_compiled: weakref.WeakKeyDictionary[Any, list] = weakref.WeakKeyDictionary()


def compile(
    model: Callable | torch.nn.Module | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Compiles a module or function; also a decorator, with or without arguments.

    fullgraph: raise where the program cannot be compiled as one graph, instead of running parts of it eagerly.
    dynamic: True starts with symbolic sizes; False specialises for every size; None decides when a size changes.
    mode: torch.compile's modes are accepted.
    options: see `list_options`; an unknown name raises ValueError.
    disable: give the model back as it is.

    Raises ValueError or TypeError for bad options. What runs outside compiled code is counted and shown by `explain`.
    """
    check_arguments(fullgraph=fullgraph, dynamic=dynamic, disable=disable)
    checked = Options(options, mode)
    if model is None:
        return functools.partial(
            compile, fullgraph=fullgraph, dynamic=dynamic, mode=mode, options=options, disable=disable
        )
    if not callable(model):
        raise TypeError(f"broach.compile: model must be a module or another callable, not {model!r}")
    if disable:
        return model
    if why := suspends(model):
        if fullgraph or checked.get("capture") == "native":
            raise CaptureError(f"broach cannot capture {describe(model)}: {why}; compile the functions that it calls")
        log.info("%s runs eagerly: %s", describe(model), why)
        return model
    if checked.get("capture", OPTIONS["capture"].default) != "dynamo":
        if isinstance(model, torch.nn.Module):
            return CompiledModule(model, (dict(checked), fullgraph, dynamic))
        return compile_natively(model, checked, fullgraph, dynamic)
    modules = Collected()
    compiled = compile_with_dynamo(model, checked, fullgraph, dynamic, modules)
    _compiled[compiled] = modules
    return compiled


def explain(fn: Callable, /, *args: Any, **kwargs: Any) -> Explanation:
    """Compiles (if need be) and calls ``fn(*args, **kwargs)``, then says what was compiled and what was not.

    It is called up to five times, with all that it does: a training step takes as many steps.
    `fn` may be compiled already, or plain: then it is compiled for the explanation only.
    """
    if not callable(fn):
        raise TypeError(f"broach.explain: fn must be a module or another callable, not {fn!r}")
    explanation = Explanation.of(fn, args, kwargs, _compiled, _observers, compile)
    if why := suspends(fn):
        explanation.front, explanation.capture_reasons = "eager", [why]
    return explanation


disable = torch.compiler.disable


def reset() -> None:
    """Forgets everything compiled and gives pooled memory back."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    reset_functions()


def list_options() -> dict[str, str]:
    """Every option with its default and meaning."""
    return {o.name: f"{o.doc} (default: {o.default!r})" for o in OPTIONS.values()}
