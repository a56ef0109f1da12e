"""Time of a call of each model: eager, Inductor and Broach by turns, each model in a process of its own.

With `--device cuda` beside Inductor in its mode reduce-overhead and eager under one CUDA graph, at sizes that fill a GPU, a sample being
as many calls as take some milliseconds.

Each variant has a copy of the weights: code that Inductor generates takes their addresses as if to write to them, which Broach,
on the same weights, would have to take for writes.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import device
from measure import NAMES, Table, at_once, attempt, cell, dtypes, geomean, inner_calls, median, race, ratio, turn, variant

DEFAULT = ["pointwise", "mlp", "resnet50", "vit", "bert", "gpt2", "llama", "llama-token", "unet", "dcgan"]
ON_CUDA = ["mlp", "resnet50", "resnet50-nhwc", "vit", "bert", "gpt2", "llama"]
HEADLINE = {"resnet50", "vit", "bert", "gpt2", "llama"}  # the five that the geometric mean is taken over


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", help=f"or zoo, or zoo:some (default {','.join(DEFAULT)}; on cuda {','.join(ON_CUDA)})")
    parser.add_argument("--dtype", type=dtypes, help="fp32, bf16 or fp32,bf16 (default fp32,bf16; on cuda bf16)")
    parser.add_argument("--variants", help="also freezing (default eager,inductor,broach; on cuda reduce-overhead and graph too)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of timing for each model (default %(default)s)")
    at_once(parser)


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    return device.jobs(chosen, DEFAULT, ON_CUDA, "fp32,bf16")


def run(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch
    import torch._dynamo  # its import is no variant's own; the suite `compile` counts it

    torch.set_grad_enabled(False)
    on, wait = job["device"], device.wait(job["device"])
    programs = {name: device.build(job["model"], on, models.DTYPES[job["dtype"]]) for name in job["variants"]}
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
        wait()
        if name in failed:
            continue
        first[name] = time.perf_counter() - start
        # A first call may be the one that is recorded, with eager's own result: the answer of interest is the next.
        models.rewind(program)
        actual = attempt(lambda: call(*program.args, **program.kwargs), failed, name)
        errors[name] = attempt(lambda: models.error(expected, actual).relative, failed, name + " answer")
        calls[name] = lambda call=call, program=program: call(*program.args, **program.kwargs)
        del actual

    def rewind() -> None:
        for program in programs.values():
            models.rewind(program)

    with turn():
        for call in calls.values():  # the compilers' own measuring of candidates is over after some calls
            for _ in range(12):
                rewind()
                call()
        # A program that writes its arguments is put back before each call.
        is_written = any(program.kwargs.get("past_key_values") is not None for program in programs.values())
        inner = 1 if on == "cpu" or is_written else max(inner_calls(call, 0.02, wait) for call in calls.values())
        samples = race(calls, job["seconds"], inner, before=rewind, wait=wait)
    return {"samples": samples, "first_s": first, "relative_error": errors, "failed": failed}


def tables(results: list[dict[str, Any]]) -> list[Table]:
    if results[0]["device"] == "cuda":
        return device.tables("Time of a call", results)
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
            [device.title(result["model"], "cpu"), *(cell(ms[name]) for name in names), *map(cell, speed), *first, error]
        )
    if gains:
        means = [cell(geomean(list(column))) for column in zip(*gains.values())]
        rows.append([f"geomean of {len(gains)}", *("" for _ in names), *means, *("" for _ in others), ""])
    return Table(f"Time of a call, {dtype}", headings, rows)
