"""What the suites share: the machine's name, the variants of a callable, and timing in turns.

Times are taken by turns, one sample of each variant a round, with the order rotating, so that a slow spell of the machine
falls on all of them. Medians are compared, never means.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import os
import platform
import statistics
import subprocess
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

import device

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

Call = Callable[[], Any]
NAMES = {
    "eager": "eager",
    "inductor": "Inductor",
    "freezing": "Inductor, freezing",
    "openvino": "OpenVINO",
    "onnxruntime": "ONNX Runtime",
    "reduce-overhead": "Inductor, reduce-overhead",
    "max-autotune": "Inductor, max-autotune",
    "graph": "eager in one CUDA graph",
    "broach": "Broach",
}


@dataclass
class Table:
    title: str
    headings: list[str]
    rows: list[list[str]]


def machine() -> dict[str, Any]:
    import torch

    words = dict(
        line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines() if ":" in line
    )
    facts = {key.strip(): value.strip() for key, value in words.items()}
    flags = facts.get("flags", "").split()
    return {
        "cpu": facts.get("model name", platform.machine()),
        "family": f"{facts.get('cpu family', '?')}/{facts.get('model', '?')}",
        "cores": len(os.sched_getaffinity(0)),
        "isa": [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "commit": _commit(),
        "gpu": device.name("cuda") if torch.cuda.is_available() else "",
    }


def describe(facts: dict[str, Any]) -> str:
    return (
        f"{facts['cpu']} (family/model {facts['family']}), {facts['cores']} cores, {' '.join(facts['isa'])}, "
        f"torch {facts['torch']}, {facts['threads']} threads, Broach {facts['commit']}, load {facts['load']:.1f}"
        + (f", {facts['gpu']}" if facts["gpu"] else "")
    )


def _commit() -> str:
    done = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def variant(name: str, call: Callable, **settings) -> Callable:
    """`call` as the named variant runs it; "dynamo" is Dynamo around a graph that returns results made beforehand,
    "dynamo-fresh" around one that does no more than allocate them."""
    import torch

    if name == "eager":
        return call
    if name == "broach":
        import broach

        return broach.compile(call, **settings)
    if name == "broach-backend":
        return torch.compile(call, backend="broach", **settings)
    if name == "inductor":
        return torch.compile(call, **settings)
    if name == "reduce-overhead":
        return torch.compile(call, mode="reduce-overhead", **settings)
    if name == "max-autotune":
        return torch.compile(call, mode="max-autotune", **settings)
    if name == "graph":
        return device.Graphed(call)
    if name == "freezing":
        return torch.compile(call, options={"freezing": True}, **settings)
    if name == "dynamo":
        return torch.compile(call, backend=_empty_backend, **settings)
    if name == "dynamo-fresh":
        return torch.compile(call, backend=_allocating_backend, **settings)
    raise ValueError(f"no variant {name}")


def _empty_backend(module: Any, inputs: list) -> Callable:
    results = module(*inputs)
    return lambda *args: results


def _allocating_backend(module: Any, inputs: list) -> Callable:
    import torch

    results = module(*inputs)
    if len(results) != 1:
        return lambda *args: tuple(torch.empty_like(result) for result in results)
    like, empty = results[0], torch.empty_like
    return lambda *args: (empty(like),)


def dtypes(text: str) -> str:
    """A type for options: names of element types, separated by commas."""
    known = ("fp32", "bf16", "fp16")
    if unknown := [name for name in text.split(",") if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)} (several: fp32,bf16)")
    return text


ONE_AT_A_TIME = "compile this many (default all) beside each other, and measure one at a time; first calls are then not timed"


def at_once(parser: argparse.ArgumentParser, told: str = ONE_AT_A_TIME) -> None:
    """The option by which a suite's jobs run beside each other."""
    parser.add_argument("--at-once", type=int, nargs="?", const=0, metavar="N", help=told)


def attempt(action: Callable[[], Any], failed: dict[str, str], name: str) -> Any:
    """The action's result, or None with the reason in `failed`: one variant that breaks leaves the others measured."""
    try:
        return action()
    except Exception as problem:
        failed[name] = f"{type(problem).__name__}: {problem}"[:2000]
        return None


def fresh(function: types.FunctionType) -> types.FunctionType:
    """A copy with a code object of its own: Dynamo keeps its cache there, so copies do not lengthen each other's look-up."""
    copy = types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def seconds(call: Call, inner: int = 1, wait: Call = lambda: None) -> float:
    """`wait` until what was done is done."""
    wait()
    start = time.perf_counter()
    for _ in range(inner):
        call()
    wait()
    return (time.perf_counter() - start) / inner


def inner_calls(call: Call, sample: float, wait: Call = lambda: None) -> int:
    """How many calls take about `sample` seconds together."""
    one = min(seconds(call, wait=wait) for _ in range(5))
    return max(1, int(sample / max(one, 1e-7)))


def race(
    calls: dict[str, Call],
    budget: float,
    inner: int = 1,
    before: Call = lambda: None,
    least: int = 5,
    wait: Call = lambda: None,
) -> dict[str, list]:
    """Seconds a call, a list of samples for each variant, in about `budget` seconds altogether and `least` rounds at least."""
    names = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + budget
    turn = 0
    while turn < least or time.perf_counter() < end:
        for position in range(len(names)):
            name = names[(turn + position) % len(names)]
            before()
            samples[name].append(seconds(calls[name], inner, wait))
        turn += 1
    return samples


def median(samples: list[float] | None, scale: float = 1.0) -> float | None:
    return statistics.median(samples) * scale if samples else None


def ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def geomean(values: list[float | None]) -> float | None:
    present = [value for value in values if value]
    return statistics.geometric_mean(present) if present else None


def cell(value: float | None, form: str = "{:.2f}") -> str:
    return "-" if value is None else form.format(value)


TURNS = "BROACH_BENCH_TURNS"  # a folder where processes that run at once say how far they are


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Where processes of a suite run at once: as many as are awaited are ready before the first one measures, and one measures at a time."""
    folder = os.environ.get(TURNS)
    if not folder:
        yield
        return
    place, number, count = Path(folder), *os.environ[TURNS + "_OF"].split("/")
    (place / f"ready-{number}").touch()
    while len(list(place.glob("ready-*"))) < int(count):
        time.sleep(0.1)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def trim() -> None:
    """Gives freed memory back to the system, so that what is resident is what is in use."""
    import gc

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def resident_mib(peak: bool = False) -> float:
    key = "VmHWM:" if peak else "VmRSS:"
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {key} in /proc/self/status")


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
