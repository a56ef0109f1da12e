"""The option `verify`: a compiled call is tried on copies of its arguments, then the program itself runs on the real ones, and
both answers are compared. What the trial wrote is taken back first, so nothing happens twice; the caller gets eager's answer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

# Largest error over the largest element, for programs that compute in a type. A wrong trace errs by more, as a rule.
LIMITS = {torch.float64: 1e-8, torch.float32: 2e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}
LIMITS |= {torch.complex128: 1e-8, torch.complex64: 2e-3}
# A unit of the last place of the largest numbers: next to a tie, what was computed before rounds to either side.
LIMITS |= {torch.float8_e4m3fn: 8e-2, torch.float8_e5m2: 0.15}


def _memory(t: torch.Tensor) -> int:
    return t.untyped_storage()._cdata if t.layout == torch.strided else id(t)


class _Made(torch.autograd.Function):
    """The same memory, as the result of an operation: it may be written to, as what a program was given may."""

    @staticmethod
    def forward(ctx, x):
        return x.data

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Trial:
    """`given`: the tensors among the arguments; `held`: those that the program reaches by itself."""

    def __init__(self, given: list[torch.Tensor], held: list[torch.Tensor]):
        mine = {_memory(t) for t in held}
        with torch.no_grad():
            # What shares memory with the program's own tensors stays itself, and is put back afterwards.
            kept = held + [t for t in given if _memory(t) in mine]
            self.saved = [(t, t.detach().clone(), -1 if t.is_inference() else t._version) for t in kept]
            copied: dict[int, torch.Tensor] = {}
            self.copies = [t if _memory(t) in mine else self._duplicate(t, copied) for t in given]
        self.random = torch.get_rng_state()
        self.left: list[torch.Tensor | None] = []

    @staticmethod
    def _duplicate(t: torch.Tensor, copied: dict[int, torch.Tensor]) -> torch.Tensor:
        """A copy at the same place of a copy of the whole memory, which all tensors in that memory share."""
        if t.layout != torch.strided or t.is_conj() or t.is_neg():
            return t.clone()
        whole = copied.get(_memory(t))
        if whole is None:
            with torch.inference_mode(t.is_inference()):
                flat = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
                whole = copied[_memory(t)] = flat.clone()
        with torch.inference_mode(t.is_inference()):
            copy = torch.empty(0, dtype=t.dtype, device=t.device)
            copy.set_(whole.untyped_storage(), t.storage_offset(), t.shape, t.stride())
        if type(t) is not torch.Tensor:  # parameters and buffers
            copy = t.__class__(copy, requires_grad=False) if isinstance(t, torch.nn.Parameter) else copy
        if not t.requires_grad:
            return copy
        copy.requires_grad_()
        with torch.enable_grad():
            return copy if t.is_leaf else _Made.apply(copy)

    def rewind(self) -> None:
        """Remembers what the trial wrote to the program's own tensors, and takes it back."""
        with torch.no_grad():
            for t, before, version in self.saved:
                # Not every write moves the version on: that of running statistics does not.
                written = (version >= 0 and t._version != version) or not (t.is_meta or torch.equal(t, before))
                self.left.append(t.detach().clone() if written else None)
                if written:
                    with torch.inference_mode(t.is_inference()), torch.no_grad():  # the former may turn gradients on
                        t.copy_(before)
                    if version >= 0:  # gradients of calls before this one may need it as it was
                        torch._C._autograd._unsafe_set_version_counter((t,), (version,))
        torch.set_rng_state(self.random)

    def difference(self, want: Any, got: Any, given: tuple, copies: tuple) -> str:
        """What is not as eager left it, first of all; empty if there is nothing. To be asked after eager has run."""
        limits = Limits(self._roughest([want, got, *given]), max(map(_size, [*self._all([want, *given]), *(t for t, _, _ in self.saved)]), default=0.0))
        for name, a, b in (("output", want, got), *((f"argument {i}, written by the program,", x, y) for i, (x, y) in enumerate(zip(given, copies)))):
            if found := first_difference(a, b, name, limits, {}):
                return found
        for (t, before, _), trial in zip(self.saved, self.left):
            compiled = before if trial is None else trial
            if found := first_difference(t.detach(), compiled, f"a tensor of the program, {tuple(t.shape)},", limits, {}):
                return found
        return ""

    @staticmethod
    def _all(values: list) -> list[torch.Tensor]:
        return [t for v in values for t in _tensors(v, set())]

    def _roughest(self, values: list) -> float:
        found = [LIMITS.get(t.dtype, 0.0) for t, _, _ in self.saved]
        if torch.is_autocast_enabled("cpu"):
            found.append(LIMITS[torch.bfloat16])
        found += [LIMITS.get(t.dtype, 0.0) for t in self._all(values)]
        return max(found, default=0.0)


class Limits(NamedTuple):
    relative: float  # to the largest element of a tensor
    largest: float  # element of any tensor: what is zero but for rounding (the gradient of a bias before a batch norm) is that of its terms

    def of(self, t: torch.Tensor, size: float) -> float:
        return max(self.relative * max(size, 1e-30), 64 * torch.finfo(t.dtype).eps * self.largest)


def _size(t: torch.Tensor) -> float:
    """The largest finite element, 0 of what is not floating point."""
    if not (t.is_floating_point() or t.is_complex()) or not t.numel() or t.layout != torch.strided or t.is_meta:
        return 0.0
    finite = t.detach()[torch.isfinite(t.detach())]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _fields(v: Any) -> list[tuple[str, Any]]:
    if isinstance(v, dict):
        return [(f"[{k!r}]", x) for k, x in v.items()]
    if isinstance(v, (list, tuple)):
        return [(f"[{i}]", x) for i, x in enumerate(v)]
    if isinstance(v, (torch.nn.Module, type)) or callable(v):
        return []
    slots = [s for t in type(v).__mro__ for s in t.__dict__.get("__slots__", ()) if isinstance(s, str) and hasattr(v, s)]
    return [(f".{k}", x) for k, x in [*getattr(v, "__dict__", {}).items(), *((s, getattr(v, s)) for s in slots)]]


def _tensors(v: Any, seen: set[int]) -> list[torch.Tensor]:
    if isinstance(v, torch.Tensor):
        return [v]
    if id(v) in seen:
        return []
    seen.add(id(v))
    return [t for _, x in _fields(v) for t in _tensors(x, seen)]


def first_difference(want: Any, got: Any, name: str, limits: Limits, seen: dict[int, Any]) -> str:
    if isinstance(want, torch.Tensor) and isinstance(got, torch.Tensor):
        return _tensor_difference(want, got, name, limits)
    if want is got or id(want) in seen:
        return ""
    seen[id(want)] = want
    if type(want) is not type(got):
        return f"{name} is a {type(got).__name__}, eager's is a {type(want).__name__}"
    if isinstance(want, float) and abs(want - got) <= limits.relative * max(1.0, abs(want)):  # it may be an element that was computed
        return ""
    if isinstance(want, (int, float, complex, str, bytes)):
        return "" if want == got or want != want else f"{name} is {got!r}, eager's is {want!r}"
    a, b = _fields(want), _fields(got)
    if [k for k, _ in a] != [k for k, _ in b]:
        return f"{name} has {len(b)} parts, eager's has {len(a)}"
    for (k, x), (_, y) in zip(a, b):
        if found := first_difference(x, y, name + k, limits, seen):
            return found
    return ""


def _tensor_difference(want: torch.Tensor, got: torch.Tensor, name: str, limits: Limits) -> str:
    if want.dtype != got.dtype or want.shape != got.shape:
        return f"{name} is {got.dtype} {tuple(got.shape)}, eager's is {want.dtype} {tuple(want.shape)}"
    if want is got or not want.numel() or want.layout != torch.strided or want.is_meta:
        return ""
    a, b = want.detach(), got.detach()
    if not (a.is_floating_point() or a.is_complex()):
        wrong = int((a != b).sum())
        return f"{name} has {wrong} of {a.numel()} elements that are not eager's" if wrong else ""
    a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (a, b))
    same = (a == b) | ((a != a) & (b != b))
    if bool(same.all()):
        return ""
    error = torch.where(same, 0.0, (a - b).abs())
    worst = float(error.max())
    if worst == worst and worst <= limits.of(want, _size(a)):
        return ""
    at = int(torch.nan_to_num(error, nan=float("inf")).argmax())
    return f"{name} differs by {worst:.3g} at element {at}: {b.flatten()[at].item():.6g}, eager's is {a.flatten()[at].item():.6g}"
