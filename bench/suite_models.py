"""Time of a call of each model: eager, Inductor and Broach by turns, each model in a process of its own.

Each variant has a copy of the weights: code that Inductor generates takes their addresses as if to write to them, which Broach,
on the same weights, would have to take for writes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from measure import NAMES, Table, attempt, cell, geomean, median, race, ratio, variant

DEFAULT = ["pointwise", "mlp", "resnet50", "vit", "bert", "gpt2", "llama", "llama-token", "unet", "dcgan"]
HEADLINE = {"resnet50", "vit", "bert", "gpt2", "llama"}  # the five that the geometric mean is taken over


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(DEFAULT))
    parser.add_argument("--dtype", default="fp32,bf16", help="fp32, bf16 or both (default %(default)s)")
    parser.add_argument("--variants", default="eager,inductor,broach", help="also freezing (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of timing for each model (default %(default)s)")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"model": model, "dtype": dtype, "variants": chosen.variants.split(","), "seconds": chosen.seconds}
        for dtype in chosen.dtype.split(",")
        for model in chosen.models.split(",")
    ]


def run(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch
    import torch._dynamo  # its import is no variant's own; the suite `compile` counts it

    torch.set_grad_enabled(False)
    programs = {name: models.build(job["model"], dtype=models.DTYPES[job["dtype"]]) for name in job["variants"]}
    program = programs[job["variants"][0]]
    models.rewind(program)
    expected = program.call(*program.args, **program.kwargs)
    calls, first, errors, failed = {}, {}, {}, {}
    for name, program in programs.items():
        call = attempt(lambda: variant(name, program.call), failed, name)
        if call is None:
            continue
        models.rewind(program)
        start = time.perf_counter()
        attempt(lambda: call(*program.args, **program.kwargs), failed, name)
        if name in failed:
            continue
        first[name] = time.perf_counter() - start
        # A first call may be the one that is recorded, with eager's own result: the answer of interest is the next.
        models.rewind(program)
        actual = attempt(lambda: call(*program.args, **program.kwargs), failed, name)
        errors[name] = attempt(lambda: models.error(expected, actual).relative, failed, name + " answer")
        calls[name] = lambda call=call, program=program: call(*program.args, **program.kwargs)

    def rewind() -> None:
        for program in programs.values():
            models.rewind(program)

    for call in calls.values():  # the compilers' own measuring of candidates is over after some calls
        for _ in range(12):
            rewind()
            call()
    samples = race(calls, job["seconds"], before=rewind)
    return {"samples": samples, "first_s": first, "relative_error": errors, "failed": failed}


def tables(results: list[dict[str, Any]]) -> list[Table]:
    dtypes = dict.fromkeys(result["dtype"] for result in results)
    return [_table(dtype, [result for result in results if result["dtype"] == dtype]) for dtype in dtypes]


def _table(dtype: str, results: list[dict[str, Any]]) -> Table:
    import models

    names = [name for name in results[0]["variants"]]
    others = [name for name in names if name != "eager"]
    headings = ["model", *(f"{NAMES[name]} ms" for name in names), *(f"{NAMES[name]} over eager" for name in others)]
    headings += ["Broach over Inductor", *(f"{NAMES[name]} first call s" for name in others), "Broach error"]
    rows, gains = [], {}
    for result in results:
        ms = {name: median(result.get("samples", {}).get(name), 1e3) for name in names}
        speed = [ratio(ms.get("eager"), ms[name]) for name in others]
        speed.append(ratio(ms.get("inductor"), ms.get("broach")))
        if result["model"] in HEADLINE:
            gains[result["model"]] = speed
        first = [cell(result.get("first_s", {}).get(name)) for name in others]
        error = cell(result.get("relative_error", {}).get("broach"), "{:.1e}")
        rows.append(
            [models.TITLES[result["model"]], *(cell(ms[name]) for name in names), *map(cell, speed), *first, error]
        )
    if gains:
        means = [cell(geomean(list(column))) for column in zip(*gains.values())]
        rows.append([f"geomean of {len(gains)}", *("" for _ in names), *means, *("" for _ in others), ""])
    return Table(f"Time of a call, {dtype}", headings, rows)
