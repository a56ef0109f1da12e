"""Compares what a compiled program gives with what eager gives: structure, types, elements, layouts and aliasing."""

from __future__ import annotations

import copy
from typing import Any, Callable

import broach
import torch

PLAIN = (int, float, str, bool, complex, bytes, type(None), torch.dtype, torch.device, torch.Size)


def r(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes)


def native(program: Callable, **options: Any) -> Any:
    """Compiled, with an error where the program cannot be captured natively."""
    return broach.compile(program, options={"capture": "native", **options})


def stats(compiled: Any) -> dict[str, Any]:
    return getattr(compiled, "_compiled_call", compiled).stats()


def tensors_in(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    seen: set[int] = set()

    def walk(v: Any) -> None:
        if isinstance(v, torch.Tensor):
            found.append(v)
            return
        if isinstance(v, (*PLAIN, torch.nn.Module)) or id(v) in seen:
            return
        seen.add(id(v))
        for part in _parts(v)[1]:
            walk(part)

    walk(value)
    return found


def _parts(v: Any) -> tuple[list, list]:
    """Names and values of what an object consists of."""
    if isinstance(v, dict):
        return list(v.keys()), list(v.values())
    if isinstance(v, (list, tuple)):
        return [], list(v)
    if isinstance(v, slice):
        return [], [v.start, v.stop, v.step]
    if isinstance(v, (set, frozenset)):
        return [], sorted(v, key=repr)
    slots = [s for t in type(v).__mro__ for s in getattr(t, "__slots__", ()) if hasattr(v, s)]
    fields = {**{s: getattr(v, s) for s in slots}, **getattr(v, "__dict__", {})}
    return list(fields), list(fields.values())


def difference(want: Any, got: Any, rtol: float = 1e-4, atol: float = 1e-5, where: str = "result") -> str:
    """The first difference; empty if there is none."""
    if isinstance(want, torch.Tensor):
        if type(want) is not type(got):
            return f"{where} is a {type(got).__name__}, not a {type(want).__name__}"
        if want.dtype != got.dtype or want.shape != got.shape:
            return f"{where} is {got.dtype} {tuple(got.shape)}, not {want.dtype} {tuple(want.shape)}"
        if want.numel() and want.stride() != got.stride():
            return f"{where} has strides {got.stride()}, not {want.stride()}"
        if want.requires_grad != got.requires_grad:
            return f"{where} has requires_grad={got.requires_grad}"
        try:
            torch.testing.assert_close(got.detach(), want.detach(), rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as e:
            return f"{where}: {' '.join(str(e).split())}"
        return ""
    if type(want) is not type(got):
        return f"{where} is a {type(got).__name__}, not a {type(want).__name__}"
    if isinstance(want, float):
        return "" if want == got or (want != want and got != got) else f"{where} is {got!r}, not {want!r}"
    if isinstance(want, PLAIN):
        return "" if want == got else f"{where} is {got!r}, not {want!r}"
    if callable(want) and want is got:
        return ""
    (names, parts), (other_names, other_parts) = _parts(want), _parts(got)
    if names != other_names or len(parts) != len(other_parts):
        return f"{where} has {other_names or len(other_parts)}, not {names or len(parts)}"
    for i, (a, b) in enumerate(zip(parts, other_parts)):
        if found := difference(a, b, rtol, atol, f"{where}[{names[i]!r}]" if names else f"{where}[{i}]"):
            return found
    return ""


def aliasing(value: Any, given: Any) -> list[tuple[int, int]]:
    """For each tensor of a result, which tensor it is or shares memory with: of the inputs, then of the result before it."""
    outs, ins = tensors_in(value), tensors_in(given)
    found = []
    for i, t in enumerate(outs):
        others = ins + outs[:i]
        same = next((k for k, o in enumerate(others) if o is t), -1)
        shared = next((k for k, o in enumerate(others) if t.numel() and o.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()), -1)
        found.append((same, shared))
    return found


def check(program: Callable, *calls: Any, compiled: Any = None, repeat: int = 2, **tolerances: float) -> Any:
    """Calls the program and its compiled version with each arguments tuple (or ``(tuple, dict)``), several times over, and
    compares results, aliasing, and what became of the arguments."""
    compiled = compiled if compiled is not None else native(program)
    for _ in range(repeat):
        for call in calls:
            args, kwargs = call if len(call) == 2 and isinstance(call[0], tuple) and isinstance(call[1], dict) else (call, {})
            first, second = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
            want = program(*first[0], **first[1])
            got = compiled(*second[0], **second[1])
            assert not (why := difference(want, got, **tolerances)), why
            assert aliasing(want, first) == aliasing(got, second)
            assert not (why := difference(first, second, where="arguments", **tolerances)), why
    return compiled


def ran_natively(compiled: Any) -> None:
    """Something was captured natively, and calls run what was compiled."""
    s = stats(compiled)
    assert s["front"] == "native" and not s["reasons"] and not s["eager_reasons"], (s["front"], s["reasons"], s["eager_reasons"])
    assert s["compiled_calls"] > 0, "nothing ran compiled"


__all__ = ["aliasing", "check", "difference", "native", "ran_natively", "stats", "tensors_in"]
