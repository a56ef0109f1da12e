"""Time of a call by the number of threads, 1 to as many as the machine has cores: eager, Broach and, if asked for, Inductor by turns.

Each model and number has a process of its own, which is told the number before it begins (OMP_NUM_THREADS). Calls 2 to 30, in which
Broach packs weights and tries candidates, are columns of their own: what they take together over as many of eager's, the slowest of
them over one of eager's, and how many times faster they are together than as many of the fastest other variant's. The columns of gain say
how many times faster a variant is than itself on one thread.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from measure import NAMES, Table, at_once, attempt, cell, dtypes, geomean, inner_calls, median, race, ratio, seconds, turn, variant

DEFAULT = ["pointwise", "mlp", "resnet50", "vit", "bert", "gpt2", "llama", "llama-token", "unet"]
COUNTS = [1, 2, 4, 8, 16, 32, 64, 128]
CALLS = 30


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(DEFAULT), help="(default %(default)s)")
    parser.add_argument("--threads", default=",".join(map(str, _counts())), help="numbers of threads (default %(default)s)")
    parser.add_argument("--dtype", type=dtypes, default="fp32", help="fp32, bf16 or fp32,bf16 (default %(default)s)")
    parser.add_argument("--variants", default="eager,broach", help="also inductor, freezing (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of timing for each model and number (default %(default)s)")
    at_once(parser)


def _counts() -> list[int]:
    cores = len(os.sched_getaffinity(0))
    return sorted({count for count in COUNTS if count < cores} | {cores})


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"model": model, "dtype": dtype, "threads": int(count), "variants": chosen.variants.split(","), "seconds": chosen.seconds,
         "environment": {"OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}}
        for dtype in chosen.dtype.split(",")
        for model in chosen.models.split(",")
        for count in chosen.threads.split(",")
    ]  # fmt: skip


def run(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch

    torch.set_grad_enabled(False)
    if torch.get_num_threads() != job["threads"]:
        raise RuntimeError(f"torch has {torch.get_num_threads()} threads, not {job['threads']}")
    programs = {name: models.build(job["model"], dtype=models.DTYPES[job["dtype"]]) for name in job["variants"]}
    calls, first, failed = {}, {}, {}
    for name, program in programs.items():
        call = attempt(lambda: variant(name, program.call), failed, name)
        if call is None:
            continue
        calls[name] = lambda call=call, program=program: call(*program.args, **program.kwargs)
        models.rewind(program)
        start = time.perf_counter()
        if attempt(lambda: (calls[name](), True), failed, name) is None:
            del calls[name]
        else:
            first[name] = time.perf_counter() - start

    def rewind() -> None:
        for program in programs.values():
            models.rewind(program)

    settling: dict[str, list[float]] = {name: [] for name in calls}
    with turn():
        for _ in range(CALLS - 1):
            for name, call in calls.items():
                rewind()
                settling[name].append(seconds(call))
        is_written = any(program.kwargs.get("past_key_values") is not None for program in programs.values())
        inner = 1 if is_written else max((inner_calls(call, 0.02) for call in calls.values()), default=1)
        samples = race(calls, job["seconds"], inner, before=rewind) if calls else {}
    return {"samples": samples, "settling": settling, "first_s": first, "failed": failed}


def tables(results: list[dict[str, Any]]) -> list[Table]:
    return [_table(dtype, [r for r in results if r["dtype"] == dtype]) for dtype in dict.fromkeys(r["dtype"] for r in results)]


def _table(dtype: str, results: list[dict[str, Any]]) -> Table:
    import models

    names = list(results[0]["variants"])
    others = [name for name in names if name != "broach"]
    headings = ["model", "threads", *(f"{NAMES[name]} ms" for name in names), *(f"Broach over {NAMES[name]}" for name in others)]
    headings += [*(f"{NAMES[name]}'s gain" for name in names), "calls 2 to 30 over eager", "the slowest", "over the best in these"]
    ms = {(r["model"], r["threads"]): {name: median(r.get("samples", {}).get(name), 1e3) for name in names} for r in results}
    rows, speeds = [], {}
    for result in results:
        model, count = result["model"], result["threads"]
        here, alone = ms[model, count], ms.get((model, 1), {})
        speed = [ratio(here[name], here.get("broach")) for name in others]
        speeds.setdefault(count, []).append(speed)
        gains = [ratio(alone.get(name), here[name]) for name in names]
        rows.append([models.TITLES[model], str(count), *(cell(here[name]) for name in names), *map(cell, speed), *map(cell, gains), *map(cell, _settling(result))])
    for count, found in sorted(speeds.items()):
        means = [cell(geomean(list(column))) for column in zip(*found)]
        rows.append([f"geomean of {len(found)}", str(count), *("" for _ in names), *means, *("" for _ in names), "", "", ""])
    return Table(f"Time of a call by threads, {dtype}", headings, rows)


def _settling(result: dict[str, Any]) -> tuple[float | None, float | None, float | None]:
    found = result.get("settling", {})
    eager, broach = median(found.get("eager")), found.get("broach")
    if not eager or not broach:
        return None, None, None
    best = min(median(times) for name, times in found.items() if name != "broach")
    return sum(broach) / len(broach) / eager, max(broach) / eager, best / (sum(broach) / len(broach))
