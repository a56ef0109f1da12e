"""What a call costs beside its work, from Python: a function of three ops on ten floats, and a module of a hundred submodules
with three hundred parameters.

Variants take turns, so that each finds the processor's caches full of another's work; Broach is timed by itself as well.

The floor of anything that goes through Dynamo is Dynamo around a graph that does nothing; of anything that returns tensors of
its own, Dynamo around a graph that allocates them.
"""

from __future__ import annotations

import argparse
from typing import Any

import device
from measure import Table, attempt, cell, fresh, median, race, variant

VARIANTS = {
    "eager": "eager",
    "dynamo": "Dynamo around an empty graph",
    "dynamo-fresh": "Dynamo around an allocation",
    "inductor": "Inductor",
    "reduce-overhead": "Inductor, reduce-overhead",
    "broach-backend": 'Broach, torch.compile(backend="broach")',
    "broach": "Broach, broach.compile",
}
ALONE = "Broach, broach.compile, by itself"

PROGRAMS = {"function": "Three ops on ten floats", "module": "300 parameters in 100 submodules"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="on cuda: what a call costs the host")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="broach: nothing else was in its process (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of timing (default %(default)s)")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    common = {"seconds": chosen.seconds, "device": chosen.device, "variants": chosen.variants.split(",")}
    return [{"program": name, **common} for name in PROGRAMS]


def run(job: dict[str, Any]) -> dict[str, Any]:
    import copy

    import torch

    torch.set_grad_enabled(False)
    where, wait = job["device"], device.wait(job["device"])
    x, y = torch.randn(10, device=where), torch.randn(10, device=where)
    program = three_ops if job["program"] == "function" else many_parameters(10).to(where)
    calls, failed = {}, {}
    for name in job["variants"]:
        if name == "reduce-overhead" and where == "cpu":
            continue
        # Weights of its own: Inductor's kernels take pointers to them at each call, after which Broach compares their elements.
        own = fresh(program) if job["program"] == "function" else copy.deepcopy(program)
        call = attempt(lambda: variant(name, own), failed, name)
        if call is None or attempt(lambda: (call(x, y), call(x, y)), failed, name) is None:
            continue
        calls[name] = lambda call=call: call(x, y)
    for call in calls.values():
        for _ in range(20):
            call()
    # On a GPU few enough that the device's queue never makes the host wait.
    inner = 50 if where == "cuda" else 2000 if job["program"] == "function" else 100
    samples = race(calls, job["seconds"], inner=inner, least=15, before=wait)
    if "broach" in calls:
        samples[ALONE] = race({ALONE: calls["broach"]}, job["seconds"] / 4, inner=50 if where == "cuda" else 2000, before=wait)[ALONE]
    return {"samples": samples, "failed": failed}


def three_ops(x, y):
    return (x + y) * x - y


def many_parameters(size: int) -> Any:
    """Its work is small on purpose: a sum of three hundred vectors of this size."""
    import torch
    from torch import nn

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Parameter(torch.randn(size)) for _ in range(3))

        def forward(self, x):
            return x * self.a + self.b * self.c

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(Part() for _ in range(100))

        def forward(self, x, y):
            for part in self.parts:
                x = part(x)
            return x + y

    return Whole().eval()


def tables(results: list[dict[str, Any]]) -> list[Table]:
    out = []
    for title, result in zip(PROGRAMS.values(), results):
        samples = result.get("samples", {})
        times = {name: median(samples.get(name), 1e6) for name in (*VARIANTS, ALONE)}
        rows = [
            [text, cell(times[name]), _above(times[name], times["dynamo"]), _above(times[name], times["dynamo-fresh"])]
            for name, text in (*VARIANTS.items(), (ALONE, ALONE))
            if name in samples or name in result.get("failed", {})
        ]
        out.append(Table(f"{title}, a call", ["variant", "µs", "above Dynamo", "above an allocation"], rows))
    return out


def _above(time: float | None, floor: float | None) -> str:
    return "" if time is None or floor is None else cell(time - floor, "{:+.2f}")
