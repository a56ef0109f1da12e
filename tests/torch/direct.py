"""Functions of tensors compiled without Dynamo, and how their effects are compared with eager's."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch
from broach._native import _C
from torch.utils import _pytree as pytree

WAYS = ("native", "extern", "eager")


@dataclass(frozen=True)
class Ran:
    """How a sample of a test database ran once compiled: without extern, with some (`why` names them), or eagerly (and why)."""

    database: str
    group: str
    name: str
    dtype: torch.dtype
    way: str
    why: tuple[str, ...]


RAN: list[Ran] = []

# What the databases run on: with "reference", every schedule is checked without a compiler or a library.
TARGET = os.environ.get("BROACH_TEST_TARGET", "cpu")
# Where the tensors of their samples are.
DEVICE = "cpu"


class Direct:
    """`fn` captured on its first call and compiled for the following ones. Arguments are tensors, results any structure."""

    def __init__(self, fn: Callable, constant: Sequence[bool] = (), **options: Any):
        self._spec = None

        def flat(*args):
            leaves, self._spec = pytree.tree_flatten(fn(*args))
            return tuple(leaves)

        self.function = _C.Callable(flat, None, tuple(constant), {"target": TARGET, **options}, False)

    def __call__(self, *tensors: torch.Tensor) -> Any:
        return pytree.tree_unflatten(list(self.function(*tensors)), self._spec)

    def stats(self) -> dict[str, Any]:
        return self.function.stats()

    @property
    def externs(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for program in self.stats()["programs"]:
            total.update(program["externs"])
        return total

    @property
    def way(self) -> str:
        stats = self.stats()
        return "eager" if stats["eager_reasons"] or not stats["programs"] else "extern" if self.externs else "native"


def random_state() -> torch.Tensor:
    """Of the generators that programs may draw from."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if DEVICE == "cuda" else [])]
    return torch.cat(states)


def compile_direct(fn: Callable, *tensors: torch.Tensor, constant: Sequence[bool] = (), **options: Any) -> Direct:
    """Captures `fn` on copies of `tensors`, so that the next call runs compiled code."""
    compiled = Direct(fn, constant, **options)
    if tensors:
        compiled(*fresh(tensors))
    return compiled


def fresh(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies with the same strides and offsets, which share memory with each other where the originals do."""
    storages: dict[int, torch.UntypedStorage] = {}
    made: dict[int, torch.Tensor] = {}
    for t in tensors:
        if id(t) in made:
            continue
        if t.layout != torch.strided or t.is_quantized or type(t) not in (torch.Tensor, torch.nn.Parameter):
            made[id(t)] = t.detach().clone()
            continue
        storage = t.untyped_storage()
        copy = storages.setdefault(storage._cdata, storage.clone() if storage._cdata not in storages else None)
        new = torch.empty(0, dtype=t.dtype, device=t.device).set_(copy, t.storage_offset(), t.size(), t.stride())
        new = new.conj() if t.is_conj() else new
        new = torch._neg_view(new) if t.is_neg() else new
        made[id(t)] = new.requires_grad_(t.requires_grad)
    return [made[id(t)] for t in tensors]


@dataclass(frozen=True)
class Tolerance:
    relative: float  # of an element
    scaled: float  # of the largest magnitude in the tensor, and at least of 1


# Another order of summation and other polynomials for transcendental functions account for a few units in the last place of
# an element, and for a few of the largest value where terms cancel. bfloat16 rounds once here and after every step in eager.
TOLERANCES = {
    torch.float64: Tolerance(1e-11, 1e-12),
    torch.float32: Tolerance(1e-5, 3e-6),
    torch.bfloat16: Tolerance(1.6e-2, 1.6e-2),
    torch.float16: Tolerance(2e-3, 2e-3),
    torch.complex128: Tolerance(1e-11, 1e-12),
    torch.complex64: Tolerance(1e-5, 3e-6),
}


def assert_same_tensor(have: torch.Tensor, want: torch.Tensor, where: str = "result", slack: float = 1.0) -> None:
    assert type(have) is type(want), f"{where}: {type(have).__name__}, eager has {type(want).__name__}"
    assert have.dtype == want.dtype, f"{where}: {have.dtype}, eager has {want.dtype}"
    assert have.shape == want.shape, f"{where}: shape {tuple(have.shape)}, eager has {tuple(want.shape)}"
    if want.layout != torch.strided:
        return torch.testing.assert_close(have, want, equal_nan=True, msg=lambda m: f"{where}: {m}")
    if want.numel() > 1 and not _overlaps(want):
        pairs = [(h, w) for h, w, n in zip(have.stride(), want.stride(), want.shape) if n > 1]
        assert all(h == w for h, w in pairs), f"{where}: strides {have.stride()}, eager has {want.stride()}"
    if want.is_quantized or want.numel() == 0:
        return
    limit = TOLERANCES.get(want.dtype)
    if limit is None:
        wrong = have != want
        assert not wrong.any(), f"{where}: {int(wrong.sum())} of {want.numel()} elements differ: {_first(have, want, wrong)}"
        return
    wide = torch.complex128 if want.is_complex() else torch.float64
    h, w = have.detach().to(wide), want.detach().to(wide)
    equal = (have == want) | (have.isnan() & want.isnan())
    finite = w.abs()[w.isfinite()]
    largest = max(1.0, float(finite.max()) if finite.numel() else 1.0)
    gap = (h - w).abs()
    near = gap <= slack * (limit.relative * w.abs().nan_to_num(0, 0, 0) + limit.scaled * largest)
    wrong = ~(equal | (near & w.isfinite()))
    assert not wrong.any(), f"{where}: {int(wrong.sum())} of {want.numel()} elements differ: {_first(have, want, wrong)}"


def assert_no_worse(have: Any, want: Any, exact: Any, factor: float = 4.0) -> None:
    """No tensor is further from `exact`, the same in float64, than eager's is, by more than the factor."""
    for i, (h, w, e) in enumerate(zip(*(pytree.tree_leaves(x) for x in (have, want, exact)))):
        if not isinstance(w, torch.Tensor) or not w.is_floating_point() or not isinstance(e, torch.Tensor):
            assert_same(h, w, f"result {i}")
            continue
        assert h.dtype == w.dtype and h.shape == w.shape == e.shape
        known = e.isfinite()
        ours, theirs = ((t.double() - e)[known].abs().nan_to_num(torch.inf) for t in (h, w))
        assert not ours.numel() or ours.max() <= factor * theirs.max(), f"result {i}: {ours.max()} from float64, eager {theirs.max()}"
        assert torch.equal(h.isnan()[~known], w.isnan()[~known]), f"result {i}: other elements are NaN"


def _first(have: torch.Tensor, want: torch.Tensor, wrong: torch.Tensor) -> str:
    at = tuple(int(i) for i in wrong.nonzero()[0])
    return f"{have[at].item()!r} at {list(at)}, eager has {want[at].item()!r}"


def _overlaps(t: torch.Tensor) -> bool:
    reach = 1
    for stride, size in sorted((abs(s), n) for s, n in zip(t.stride(), t.shape) if n > 1):
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False


def assert_same(have: Any, want: Any, where: str = "result", slack: float = 1.0) -> None:
    """The same structure, with tensors equal within tolerance and everything else equal."""
    haves, spec = pytree.tree_flatten(have)
    wants, wanted = pytree.tree_flatten(want)
    assert spec == wanted, f"{where}: structure {spec}, eager has {wanted}"
    for i, (h, w) in enumerate(zip(haves, wants)):
        if isinstance(w, torch.Tensor):
            assert_same_tensor(h, w, f"{where} {i}", slack)
        else:
            assert h == w or (h != h and w != w), f"{where} {i}: {h!r}, eager has {w!r}"


def aliasing(results: Any, inputs: Sequence[torch.Tensor]) -> list[tuple]:
    """For each tensor of the results: which inputs it is, shares memory with, and which earlier results."""

    def home(t):
        return t.untyped_storage()._cdata if t.layout == torch.strided else id(t)

    leaves = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
    out = []
    for n, t in enumerate(leaves):
        same = [i for i, x in enumerate(inputs) if x is t]
        shares = [i for i, x in enumerate(inputs) if home(x) == home(t)]
        offset = t.storage_offset() if shares and t.layout == torch.strided else 0
        out.append((same, shares, offset, [k for k in range(n) if home(leaves[k]) == home(t)]))
    return out


def _versions(inputs: Sequence[torch.Tensor]) -> list[int]:
    return [0 if t.is_inference() else t._version for t in inputs]


def check(fn: Callable, *tensors: torch.Tensor, slack: float = 1.0, **options: Any) -> Direct:
    """Compiles `fn` and compares a compiled call with eager's: results, aliasing, what was written into the inputs, and whose
    version counters went up."""
    compiled = compile_direct(fn, *tensors, **options)
    ours, theirs = fresh(tensors), fresh(tensors)
    before = [_versions(ours), _versions(theirs)]
    want = fn(*theirs)
    have = compiled(*ours)
    assert_same(have, want, slack=slack)
    assert_same(ours, theirs, "input", slack)
    assert aliasing(have, ours) == aliasing(want, theirs), "aliasing differs"
    bumps = [[now != then for now, then in zip(_versions(ts), old)] for ts, old in zip((ours, theirs), before)]
    assert bumps[0] == bumps[1], f"version counters bumped {bumps[0]}, by eager {bumps[1]}"
    return compiled


def note_share(database: str, group: str, name: str, dtype: torch.dtype, compiled: Direct) -> None:
    way = compiled.way
    why = () if way == "native" else tuple(sorted(compiled.externs)) if way == "extern" else tuple(compiled.stats()["eager_reasons"])
    RAN.append(Ran(database, group, name, dtype, way, why))


def _shares(title: str, key: Callable[[Ran], str], ran: Sequence[Ran]) -> list[str]:
    rows: dict[str, Counter[str]] = {}
    for r in ran:
        rows.setdefault(key(r), Counter())[r.way] += 1
    lines = [f"{title:<16} {'samples':>8} {'native':>8} {'extern':>8} {'eager':>8}"]
    for name, ways in [*sorted(rows.items()), ("all", sum(rows.values(), Counter()))]:
        total = sum(ways.values())
        lines.append(f"{name:<16} {total:>8} " + " ".join(f"{ways[w] / total:>8.1%}" for w in WAYS))
    return lines


def share_report(database: str) -> list[str]:
    """Shares by group of operations and by element type."""
    ran = [r for r in RAN if r.database == database]
    return [*_shares("group", lambda r: r.group, ran), "", *_shares("element type", lambda r: short(r.dtype), ran)]


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def rank_report(database: str) -> list[str]:
    """What keeps samples from running without extern, most samples first: how many it is in, in how many it is the only cause,
    their element types and their operations."""
    lines = []
    for way in ("extern", "eager"):
        ran = [r for r in RAN if r.database == database and r.way == way]
        causes = Counter(why for r in ran for why in r.why)
        lines += ["", f"{'in':>6} {'alone':>6}  {way}"]
        for why, count in causes.most_common():
            own = [r for r in ran if why in r.why]
            alone = sum(len(r.why) == 1 for r in own)
            types = Counter(short(r.dtype) for r in own).most_common()
            names = Counter(r.name for r in own).most_common(8)
            lines.append(f"{count:>6} {alone:>6}  {why}  [{' '.join(f'{t}:{n}' for t, n in types)}]  {' '.join(f'{o}:{n}' for o, n in names)}")
    return lines
