"""Models of the zoo in training: losses and every gradient of a compiled model, beside eager's on a copy with the same weights."""

from __future__ import annotations

import copy
import time
from typing import Any, Iterator

import broach
import compared
import torch
import zoo

# Of the models that train eagerly, those whose calls with gradients run what was compiled.
NATIVE_SHARE = 0.9
# Of a gradient, relative to its own largest element and to the largest gradient of the model: sums of another order round so.
RELATIVE, SHARED = 1e-3, 1e-5


def steps() -> Iterator[tuple]:
    """Arguments of `zoo.inputs`: batch and length change, and the mask is padded."""
    yield from ((2, 12), (3, 9), (3, 10, True), (2, 12), (4, 7), (2, 12), (3, 10, True), (5, 8))


def step(entry: zoo.Entry, model: Any, call: tuple, seed: int) -> tuple[torch.Tensor, list[torch.Tensor | None], bool]:
    """Mean squares of all results, the gradients of all parameters, and whether the results are those of a compiled call."""
    entry.model.zero_grad()
    torch.manual_seed(seed)
    dtype = next(entry.model.parameters()).dtype
    given = {name: t.to(dtype) if t.is_floating_point() else t for name, t in zoo.inputs(entry, *call).items()}
    results = [t for t in compared.tensors_in(model(**given)) if t.requires_grad]
    loss = sum(t.square().mean() for t in results)
    loss.backward()
    compiled = any(t.grad_fn.name() == "BroachBackward" for t in results if t.grad_fn is not None)
    return loss.detach(), [p.grad for p in entry.model.parameters()], compiled


def unlike(want: list[torch.Tensor | None], got: list[torch.Tensor | None], names: list[str]) -> str:
    """Where gradients differ, or ""."""
    largest = max((float(g.abs().max()) for g in want if g is not None and g.numel()), default=0.0)
    for name, w, g in zip(names, want, got):
        if (w is None) != (g is None):
            return f"gradient of {name}: {'None' if g is None else 'a tensor'}, eager has {'None' if w is None else 'a tensor'}"
        if w is None:
            continue
        if g.dtype != w.dtype or g.stride() != w.stride():
            return f"gradient of {name}: {g.dtype} {g.stride()}, eager has {w.dtype} {w.stride()}"
        if w.numel() and not (gap := float((g - w).abs().max())) <= RELATIVE * float(w.abs().max()) + SHARED * largest:
            return f"gradient of {name} differs by {gap:.3g}, its largest element is {float(w.abs().max()):.3g}, of all {largest:.3g}"
    return ""


def train(entry: zoo.Entry, **options: Any) -> dict[str, Any]:
    """What became of some steps of gradient descent. Where eager's own roundings are as large as gradients (a batch norm over two
    elements), float64 tells right from wrong."""
    exact = copy.deepcopy(entry.model)
    found = _train(entry, options)
    if found["differs"] and any("differs by" in why or "loss" in why for why in found["differs"]):
        found["differs"] = _train(zoo.Entry(entry.name, exact.double(), entry.kind), options)["differs"]
    return found


def _train(entry: zoo.Entry, options: dict[str, Any]) -> dict[str, Any]:
    """Weights are eager's after each step, so that roundings do not add up."""
    theirs = zoo.Entry(entry.name, entry.model.train(), entry.kind)
    ours = zoo.Entry(entry.name, copy.deepcopy(entry.model), entry.kind)
    names = [name for name, _ in ours.model.named_parameters()]
    compiled = broach.compile(ours.model, options=options or None)
    found: dict[str, Any] = {"name": entry.name, "differs": [], "seconds": [], "compiled": []}
    for seed, call in enumerate(steps()):
        want, wants, _ = step(theirs, theirs.model, call, seed)
        drawn = torch.get_rng_state()
        began = time.perf_counter()
        have, haves, native = step(ours, compiled, call, seed)
        found["seconds"].append(time.perf_counter() - began)
        found["compiled"].append(native)
        if not torch.equal(drawn, torch.get_rng_state()):
            found["differs"].append(f"{call}: the state of random numbers")
        if not torch.allclose(have, want, rtol=1e-4, atol=1e-5, equal_nan=True):
            found["differs"].append(f"{call}: loss {float(have)}, eager has {float(want)}")
        elif why := unlike(wants, haves, names):
            found["differs"].append(f"{call}: {why}")
        for (name, t), o in zip(theirs.model.named_buffers(), ours.model.buffers()):
            if not torch.allclose(o, t, rtol=1e-4, atol=1e-5, equal_nan=True):
                found["differs"].append(f"{call}: buffer {name}")
        descend(theirs.model, ours.model)
    told = compared.stats(compiled)
    for key in ("front", "captures", "compiled_calls", "reasons", "eager_reasons", "compile_seconds", "capture_seconds"):
        found[key] = told[key]
    found["programs"] = len(told["programs"])
    found["native"] = told["front"] == "native" and sum(found["compiled"]) >= 2
    return found


def descend(theirs: torch.nn.Module, ours: torch.nn.Module, rate: float = 1e-3) -> None:
    with torch.no_grad():
        for t, o in zip(theirs.parameters(), ours.parameters()):
            if t.grad is not None:
                t.sub_(t.grad, alpha=rate)
            o.copy_(t)
        for t, o in zip(theirs.buffers(), ours.buffers()):
            o.copy_(t)
