"""Checkpoints in a captured program.

Eager runs a checkpointed function once more when gradients are asked for, instead of keeping what it computes. The first captured run
finds that there are checkpoints, and is eager's own in all. The next ones let the function run once, plainly, and are told where it begins
and ends: compiled gradients compute again what is made in between. What the second run might do otherwise stays torch's own.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator

import torch
import torch.utils.checkpoint as checkpoints

from ._native import _C


def _is_plain(context_fn: Any, determinism_check: Any, debug: Any) -> bool:
    """Whether nothing but the function runs, and no one watches it."""
    wants_debug = getattr(checkpoints, "_checkpoint_debug_enabled", None)
    return (
        context_fn is checkpoints.noop_context_fn
        and determinism_check in ("default", "none")
        and not (debug if wants_debug is None else wants_debug)
        and getattr(torch._C, "_get_graph_exec_group", lambda: None)() is None
    )


def _tensors(args: tuple) -> list[torch.Tensor]:
    return [a for a in args if isinstance(a, torch.Tensor)]


def _runs_once(function: Callable, args: tuple, kwargs: dict, keeps_random: bool) -> Iterator[None]:
    _C.begin_checkpoint(function, (args, kwargs), _tensors(args), False, keeps_random)
    try:
        yield
    finally:
        _C.end_checkpoint()


def _runs_plainly() -> Iterator[None]:
    yield


def _runs(fn: Callable, args: tuple, kwargs: dict, keeps_random: bool, is_plain: bool) -> Iterator[None] | None:
    """What a capture does instead of torch's own checkpoint; None where it does not."""
    if not _C.is_capturing() or not is_plain:
        return None
    if not torch.is_grad_enabled():
        return _runs_plainly()
    return _runs_once(fn, args, kwargs, keeps_random) if _C.meets_checkpoint() else None


def _stand_in_for_generator(original: Callable) -> Callable:
    @functools.wraps(original)
    def generator(
        fn: Callable,
        preserve_rng_state: bool = True,
        context_fn: Any = checkpoints.noop_context_fn,
        determinism_check: Any = "default",
        debug: Any = False,
        *more: Any,
        **kwargs: Any,
    ) -> Iterator[None]:
        own = _runs(fn, more[_MORE_SETTINGS:], kwargs, preserve_rng_state, _is_plain(context_fn, determinism_check, debug))
        return own or original(fn, preserve_rng_state, context_fn, determinism_check, debug, *more, **kwargs)

    return generator


def _stand_in_for_generator_of_settings(original: Callable) -> Callable:
    """The same from torch 2.15 on, where the function's own arguments come in a tuple and a dict."""

    @functools.wraps(original)
    def generator(fn: Callable, args: tuple, kwargs: dict, **settings: Any) -> Iterator[None]:
        context_fn, check = settings.get("context_fn", checkpoints.noop_context_fn), settings.get("determinism_check", "default")
        is_known = settings.keys() <= _SETTINGS and settings.get("respect_saved_tensors_hooks") is None
        is_plain = is_known and _is_plain(context_fn, check, settings.get("debug", False))
        own = _runs(fn, args, kwargs, settings.get("preserve_rng_state", True), is_plain)
        return own or original(fn, args, kwargs, **settings)

    return generator


def _stand_in_for_reentrant(original: Any) -> Callable:
    def apply(function: Callable, preserve: bool, *args: Any) -> Any:
        needs_gradients = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        if not _C.is_capturing() or not needs_gradients or not _C.meets_checkpoint():
            return original.apply(function, preserve, *args)
        _C.begin_checkpoint(function, (args, {}), _tensors(args), True, preserve)
        try:
            results = function(*args)
            _C.check_results_of_checkpoint(results)
        finally:
            _C.end_checkpoint()
        return results

    @functools.wraps(original, updated=())
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    stand_in.apply = apply  # type: ignore[attr-defined]
    return stand_in


_GENERATOR, _REENTRANT = "_checkpoint_without_reentrant_generator", "CheckpointFunction"
_OF_SETTINGS = "_checkpoint_without_reentrant_generator_impl"
_SETTINGS = {"preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop", "respect_saved_tensors_hooks"}
_MAKE = {_GENERATOR: _stand_in_for_generator, _OF_SETTINGS: _stand_in_for_generator_of_settings, _REENTRANT: _stand_in_for_reentrant}
_ORIGINAL = {name: getattr(checkpoints, name, None) for name in _MAKE}
_REPLACED = {name: _MAKE[name](original) for name, original in _ORIGINAL.items() if original is not None}
_NAMED = ("fn", "preserve_rng_state", "context_fn", "determinism_check", "debug")
if _GENERATOR in _REPLACED and _ORIGINAL[_GENERATOR].__code__.co_varnames[: len(_NAMED)] != _NAMED:
    del _REPLACED[_GENERATOR]  # of another version of torch, whose checkpoints are left to eager


def _number_of_settings() -> int:
    """Parameters of the generator behind those that the stand-in names, in front of the function's own arguments."""
    original = _ORIGINAL[_GENERATOR]
    if original is None:
        return 0
    return original.__code__.co_argcount - len(_NAMED)


_MORE_SETTINGS = _number_of_settings()
_C.add_stand_ins("checkpoints", checkpoints, _REPLACED)  # checkpoints of captured programs run once
