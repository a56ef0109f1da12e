"""Calls 1 to 15 of each model over eager's: what compiling, packing weights and trying candidates cost until all is settled.

Each sequence has a process and weights of its own, as what was measured holds for the process. Eager runs by turns with
Broach. A call is shown as the median of its repeats.
"""

from __future__ import annotations

import argparse
from typing import Any

from measure import Table, attempt, cell, dtypes, median, ratio, seconds, variant

DEFAULT = ["pointwise", "mlp", "resnet50", "vit", "bert", "gpt2", "llama", "llama-token", "unet", "dcgan"]
CALLS = 15


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(DEFAULT))
    parser.add_argument("--dtype", type=dtypes, default="fp32", help="fp32, bf16 or fp32,bf16 (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="processes for each model (default %(default)s)")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"model": model, "dtype": dtype}
        for dtype in chosen.dtype.split(",")
        for model in chosen.models.split(",")
        for _ in range(chosen.repeats)
    ]


def run(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch

    torch.set_grad_enabled(False)
    programs = {name: models.build(job["model"], dtype=models.DTYPES[job["dtype"]]) for name in ("eager", "broach")}
    calls, failed = {}, {}
    for name, program in programs.items():
        call = attempt(lambda: variant(name, program.call), failed, name)
        if call is not None:
            calls[name] = lambda call=call, program=program: call(*program.args, **program.kwargs)
    if failed:
        return {"failed": failed}
    for _ in range(2):  # eager's own first calls are no part of this
        models.rewind(programs["eager"])
        calls["eager"]()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(CALLS):
        for name, call in calls.items():
            models.rewind(programs[name])
            samples[name].append(seconds(call))
    return {"samples": samples}


def tables(results: list[dict[str, Any]]) -> list[Table]:
    headings = ["model", "eager ms", "call 1 s", *(f"{i}" for i in range(2, CALLS + 1)), "slowest", "sum", "sum + 1 call"]
    out = []
    for dtype in dict.fromkeys(result["dtype"] for result in results):
        chosen = [result for result in results if result["dtype"] == dtype]
        rows = [_row(model, chosen) for model in dict.fromkeys(result["model"] for result in chosen)]
        out.append(Table(f"Calls over eager, {dtype}: each, their sum, and that beside eager's sum and one call", headings, rows))
    return out


def _row(model: str, results: list[dict[str, Any]]) -> list[str]:
    import models

    runs = [result["samples"] for result in results if result["model"] == model and "samples" in result]
    eager = median([median(run["eager"]) for run in runs])
    over = [median([ratio(run["broach"][i], median(run["eager"])) for run in runs]) for i in range(CALLS)]
    later = [value for value in over[1:] if value is not None]
    first = median([run["broach"][0] for run in runs])
    total = sum(later) / len(later) if later else None
    return [
        models.TITLES[model],
        cell(eager and eager * 1e3),
        cell(first),
        *(cell(value) for value in over[1:]),
        cell(max(later, default=None)),
        cell(total),
        cell(sum(later) / (len(later) + 1) if later else None),
    ]
