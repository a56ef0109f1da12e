"""What `broach.explain` gives: numbers as attributes, and a table when printed."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Any, Callable

from ._native import _C


def _graph_breaks() -> Counter[str]:
    """Dynamo's own count; importing Dynamo takes seconds, so only if somebody did."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return Counter(dynamo.counters["graph_break"]) if dynamo else Counter()


class Step:
    """One kind of step of a compiled program: what equal steps took together, each in its fastest run."""

    def __init__(self, name: str, runs: list[tuple]):
        self.name = name
        self.lines = sorted({r[1] for r in runs if r[1]})
        self.count = len(runs)
        self.milliseconds = 1e3 * sum(r[3] for r in runs)
        self.gigabytes_per_second = 1e-9 * sum(r[4] for r in runs) / max(sum(r[3] for r in runs), 1e-12)
        self.gigaflops_per_second = 1e-9 * sum(r[5] for r in runs) / max(sum(r[3] for r in runs), 1e-12)

    def __str__(self) -> str:
        flops = f", {self.gigaflops_per_second:.1f} GFLOP/s" if self.gigaflops_per_second else ""
        return f"{self.milliseconds:.3f} ms ({self.count}x, {self.gigabytes_per_second:.1f} GB/s{flops})"


def _steps(programs: list[dict[str, Any]]) -> list[Step]:
    runs: dict[str, list[tuple]] = {}
    for p in programs:
        for step in p["steps"]:
            runs.setdefault(step[0], []).append(step)
    return sorted((Step(name, r) for name, r in runs.items()), key=lambda s: -s.milliseconds)


class Kept:
    """Equal copies that are kept beside the weights: what reads them, why they are kept, their bytes, and, where measured, what these
    contractions take in one call with them and by the best way without."""

    def __init__(self, what: str, why: str):
        self.what, self.why = what, why
        self.count = self.bytes = 0
        self.milliseconds = self.milliseconds_unpacked = 0.0

    def __str__(self) -> str:
        return f"{self.bytes / 2**20:.1f} MiB, {self.count}x, {_gain([self]) or self.why}"


def _gain(kept: list[Kept]) -> str:
    with_them, without = sum(k.milliseconds for k in kept), sum(k.milliseconds_unpacked for k in kept)
    return f"{with_them:.3f} ms for {without:.3f} ms without" if without else ""


def _kept(programs: list[dict[str, Any]]) -> list[Kept]:
    groups: dict[tuple, Kept] = {}
    counted = set()  # programs share the copies of a weight that they read alike
    for address, size, what, why, seconds, unpacked in (k for p in programs for k in p["kept"]):
        group = groups.setdefault((what, why, seconds, unpacked), Kept(what, why))
        group.count += 1
        group.bytes += 0 if address in counted else size
        counted.add(address)
        group.milliseconds += 1e3 * seconds
        group.milliseconds_unpacked += 1e3 * unpacked
    return sorted(groups.values(), key=lambda k: -k.bytes)


class Explanation:
    def __init__(self, modules: list[dict[str, Any]], graph_breaks: list[str], seconds: float, native: dict[str, Any] | None):
        self.modules = modules
        self.graph_breaks = graph_breaks
        self.seconds = seconds
        programs = [p for m in self.modules for p in m["programs"]]
        self.graphs = sum(bool(m["programs"] or m["calls"]) for m in self.modules)
        self.programs = programs
        self.kernels = sum(p["kernels"] for p in programs)
        self.distinct_kernels = sum(p["distinct_kernels"] for p in programs)
        self.contractions = sum(p["contractions"] for p in programs)
        self.routines = sum(p["routines"] for p in programs)
        externs: Counter[str] = Counter()
        for p in programs:
            externs.update(p["externs"])
        self.externs = sorted(externs.items(), key=lambda e: (-e[1], e[0]))
        self.passes: dict[str, float] = {}
        for p in programs:
            for name, s in p["seconds"]:
                self.passes[name] = self.passes.get(name, 0.0) + s
        self.capture_seconds = sum(sum(m["capture_seconds"]) for m in self.modules)
        self.compile_seconds = sum(sum(m["compile_seconds"]) for m in self.modules)
        # What is kept beside the weights: copies rearranged for the contractions that read them, and what is computed once.
        self.kept = _kept(programs)
        self.packed_bytes = sum(k.bytes for k in self.kept)
        self.arena_bytes = sum(p["arena_bytes"] for p in programs)
        self.saved_bytes = sum(p["saved_bytes"] for p in programs)
        self.reruns = sum(p["reruns"] for p in programs)
        # Of launches on a GPU: parts of programs that are put into its queue as one piece of work.
        self.recordings = sum(p["recordings"] for p in programs)
        self.replays, self.recordable_runs = (sum(p[key] for p in programs) for key in ("replays", "recordable_runs"))
        self.code_bytes = sum(p["code_bytes"] for p in programs)
        self.picks = Counter(pick for p in programs for pick in p["picks"])
        self.eager_reasons = [r for m in self.modules for r in m["eager_reasons"]]
        self.recompilations = [r for m in self.modules for r in m["recompilations"]]
        self.guards = [g for p in programs for g in p["guards"]]
        # How the program was captured: "native" or "dynamo", or "eager" if not at all, and why not natively.
        self.front = "dynamo" if not native or native["front"] == "fallback" else native["front"]
        if native and native["runs_eagerly"]:
            self.front = "eager" if native["front"] == "fallback" else native["front"]
        # Of the modules that a program calls which is not compiled as a whole: how many are compiled by themselves.
        self.parts = sum(m["is_part"] and bool(m["compiled_calls"]) for m in self.modules)
        self.captures = native["captures"] if native else 0
        self.capture_reasons: list[str] = native["reasons"] if native else []
        if native and native["runs_eagerly"]:  # also where only calls with gradients do
            self.eager_reasons += [why for why in self.capture_reasons if why not in self.eager_reasons]
        # What each capture was tried with, what came of it, why, and what that led to; the native ones first.
        tried = [native] if native and native not in self.modules else []
        self.attempts: list[tuple[str, str, str, str]] = [a for m in [*tried, *self.modules] for a in m["attempts"]]
        self.verified = native["verified"] if native else 0
        # Where the program keeps what it computes; written back after each compiled call.
        self.places: list[str] = native["places"] if native else []
        # Of so many tensors it reads or writes the gradient.
        self.gradients: int = native["gradients"] if native else 0
        # For each version: the Python state that it holds for.
        self.state: list[list[str]] = native["state"] if native else []
        # The longest first; only while BROACH_PROFILE=1, since measuring each step costs time.
        self.steps = _steps(programs)

    @classmethod
    def of(cls, fn: Callable, args: tuple, kwargs: dict, known: Any, observers: Any, compile: Callable) -> "Explanation":
        is_compiled = isinstance(fn, _C.Callable) or hasattr(fn, "_torchdynamo_orig_callable") or hasattr(fn, "_orig_mod")
        compiled = fn if is_compiled else compile(fn)
        native = compiled if isinstance(compiled, _C.Callable) else getattr(compiled, "_compiled_call", None)
        before, observers.current = observers.current, []
        breaks_before = _graph_breaks()
        start = time.perf_counter()
        try:
            # A second call shows the steady state: what the first one recorded is in use. Some programs settle later.
            for _ in range(3):
                if native is not None and not native.stats()["settled"]:
                    compiled(*args, **kwargs)
            for _ in range(10 if _C.is_profiling() else 2):
                compiled(*args, **kwargs)
            seconds = time.perf_counter() - start
            modules = native.policy.collected if native is not None else known.get(compiled, observers.current)
        finally:
            observers.current = before
        breaks = _graph_breaks() - breaks_before
        stats = {**native.stats(), "runs_eagerly": native.policy.runs_eagerly} if native is not None else None
        told = [stats] if stats is not None and stats["front"] == "native" else []
        told += [m.stats() for m in modules]
        out = cls(told, [f"{why} ({n}x)" for why, n in breaks.items()], seconds, stats)
        if getattr(compiled, "_forward_is_replaced", False):
            out.eager_reasons.append("the compiled module's `forward` was replaced: what is there runs as it is, around the compiled call")
        return out

    @property
    def graph_text(self) -> str:
        return "\n\n".join(p["graph"] for p in self.programs)

    @property
    def schedule_text(self) -> str:
        return "\n\n".join(p["schedule"] for p in self.programs)

    def rows(self) -> list[tuple[str, str]]:
        def ms(s: float) -> str:
            return f"{1e3 * s:.1f} ms"

        def mib(b: int) -> str:
            return f"{b / 2**20:.1f} MiB"

        out = [
            ("captured", self.front if not self.captures else f"{self.front}, {self.captures} times"),
            *([("in parts", f"{self.parts} of its modules")] if self.parts else []),
            ("graphs", f"{self.graphs}"),
            ("kernels", f"{self.kernels} ({self.distinct_kernels} distinct, {self.code_bytes / 1024:.0f} KiB of code)"),
            ("contractions", f"{self.contractions}"),
            ("routines", f"{self.routines}"),
            ("capture", ms(self.capture_seconds)),
            ("compile", ms(self.compile_seconds)),
        ]
        out += [(f"  {name}", ms(s)) for name, s in self.passes.items()]
        gain = _gain(self.kept)
        out.append(("packed weights", mib(self.packed_bytes) + (f", {gain}" if gain else "")))
        out += [(f"  {k.what}", str(k)) for k in self.kept]
        out.append(("arena", mib(self.arena_bytes)))
        if self.saved_bytes:
            out.append(("saved for gradients", mib(self.saved_bytes)))
        if self.reruns:
            out.append(("run again", f"{self.reruns}x, for gradients"))
        if self.recordings:
            out.append(("launches recorded", f"{self.recordings}x, used in {self.replays} of {self.recordable_runs} runs"))
        out += [("extern " + name, f"{n}x") for name, n in self.externs]
        out += [("pick " + name, f"{n}x") for name, n in self.picks.items()]
        out += [("step " + s.name, str(s)) for s in self.steps]
        out += [("tried with " + tried, outcome + (f": {why}" if why else "") + (f" ({then})" if then else "")) for tried, outcome, why, then in self.attempts]
        out += [("recompiled", why) for why in self.recompilations]
        out += [("runs eagerly", why) for why in self.eager_reasons]
        unsaid = [why for why in self.capture_reasons if why not in self.eager_reasons]
        out += [("not captured natively" if self.front != "native" else "not captured", why) for why in unsaid]
        out += [("verified", f"{self.verified} calls against eager")] if self.verified else []
        out += [("written back", where) for where in self.places]
        out += [("gradients", f"of {self.gradients} tensors, read or written in each call")] if self.gradients else []
        out += [("state", f"{sum(map(len, self.state))} objects watched")] if self.state else []
        out += [("graph break", why) for why in self.graph_breaks]
        return out

    def __str__(self) -> str:
        rows = self.rows()
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)

    __repr__ = __str__
