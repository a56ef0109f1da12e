"""What a call costs beside its work: a function of three ops on ten floats, from Python.

The floor of anything that goes through Dynamo is Dynamo around a graph that does nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

from measure import Table, attempt, cell, fresh, median, race, variant

VARIANTS = {
    "eager": "eager",
    "dynamo": "Dynamo around an empty graph",
    "inductor": "Inductor",
    "broach-backend": 'Broach, torch.compile(backend="broach")',
    "broach": "Broach, broach.compile",
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=20.0, help="of timing (default %(default)s)")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    return [{"seconds": chosen.seconds}]


def run(job: dict[str, Any]) -> dict[str, Any]:
    import torch

    torch.set_grad_enabled(False)
    x, y = torch.randn(10), torch.randn(10)
    calls, failed = {}, {}
    for name in VARIANTS:
        call = attempt(lambda: variant(name, fresh(three_ops)), failed, name)
        if call is None or attempt(lambda: (call(x, y), call(x, y)), failed, name) is None:
            continue
        calls[name] = lambda call=call: call(x, y)
    return {"samples": race(calls, job["seconds"], inner=2000, least=15), "failed": failed}


def three_ops(x, y):
    return (x + y) * x - y


def tables(results: list[dict[str, Any]]) -> list[Table]:
    samples = results[0].get("samples", {})
    times = {name: median(samples.get(name), 1e6) for name in VARIANTS}
    floor = times["dynamo"]
    rows = [
        [title, cell(times[name]), "" if None in (times[name], floor) else cell(times[name] - floor, "{:+.2f}")]
        for name, title in VARIANTS.items()
    ]
    return [Table("Three ops on ten floats, a call", ["variant", "µs", "above Dynamo µs"], rows)]
