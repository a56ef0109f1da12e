"""Seconds of the first call: every model and variant in a process and with a cache directory of its own, cold and then warm.

The clock starts once the model is built, so the first call includes importing the compiler. Dynamo alone is the floor of
what reads bytecode; Broach's own time is split by stage from `broach.explain`. On a GPU eager has made two calls before; `--backward`
takes the first step of training (on a GPU only).
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from measure import NAMES, Table, attempt, cell, dtypes, variant

DEFAULT = ["pointwise", "mlp", "resnet50", "vit", "bert", "gpt2", "llama", "unet"]
VARIANTS = ("eager", "dynamo", "inductor", "broach")
STAGES_SHOWN = 5
REPEATED = 5  # captures that are timed


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(DEFAULT))
    parser.add_argument("--dtype", type=dtypes, default="fp32")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backward", action="store_true", help="the first step of training, on a GPU")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    if chosen.backward and chosen.device != "cuda":
        raise SystemExit("--backward needs --device cuda; `bench/run.py training` measures steps on the CPU")
    return [
        {"model": model, "dtype": dtype, "variant": name, "warm": warm, "cache": f"{model}-{dtype}-{name}", "device": chosen.device,
         "backward": chosen.backward}
        for dtype in chosen.dtype.split(",")
        for model in chosen.models.split(",")
        for name in chosen.variants.split(",")
        for warm in ((False, True) if name in ("inductor", "broach") else (False,))
    ]


def run(job: dict[str, Any]) -> dict[str, Any]:
    import device
    import models
    import torch

    dtype = models.DTYPES[job["dtype"]]
    if job["backward"]:
        return _first_step(job, dtype)
    torch.set_grad_enabled(False)
    program = device.build(job["model"], job["device"], dtype)
    wait = device.wait(job["device"])
    for _ in range(2 if job["device"] == "cuda" else 0):
        program.call(*program.args, **program.kwargs)
    wait()
    start = time.perf_counter()
    call = variant(job["variant"], program.call)
    call(*program.args, **program.kwargs)
    wait()
    result: dict[str, Any] = {"first_s": time.perf_counter() - start, "failed": {}}
    if job["variant"] == "broach":
        result["explained"] = attempt(lambda: _explained(program, call), result["failed"], "explain")
    return result


def _first_step(job: dict[str, Any], dtype: Any) -> dict[str, Any]:
    import device
    import suite_training

    program = device.build(job["model"], "cuda", dtype, **device.NO_DROPOUT.get(job["model"], {}))
    model = program.call.requires_grad_(True).train(True)
    loss, wait = suite_training.loss_of(job["model"], model), device.wait("cuda")
    loss(*program.args).backward()
    model.zero_grad(set_to_none=True)
    wait()
    start = time.perf_counter()
    call = variant(job["variant"], loss)
    call(*program.args).backward()
    wait()
    result: dict[str, Any] = {"first_s": time.perf_counter() - start, "failed": {}}
    if job["variant"] == "broach":
        result["explained"] = attempt(lambda: _compile_seconds(program._replace(kwargs={}), call), result["failed"], "explain")
    return result


def _compile_seconds(program: Any, call: Any) -> dict[str, Any]:
    import broach

    told = broach.explain(call, *program.args, **program.kwargs)
    return {"compile_s": told.compile_seconds, "passes": dict(told.passes), "kernels": told.kernels}


def _explained(program: Any, call: Any) -> dict[str, Any]:
    return {"capture_s": _capture_seconds(program), **_compile_seconds(program, call)}


def _capture_seconds(program: Any) -> float:
    """What a capture takes beyond the eager run that it contains: both in turns, after the first ones."""
    import broach

    eager, captured = [], []
    for _ in range(REPEATED):
        start = time.perf_counter()
        program.call(*program.args, **program.kwargs)
        eager.append(time.perf_counter() - start)
        fresh = broach.compile(program.call)
        fresh(*program.args, **program.kwargs)
        captured.append(broach.explain(fresh, *program.args, **program.kwargs).capture_seconds)
    return statistics.median(captured) - statistics.median(eager)


def tables(results: list[dict[str, Any]]) -> list[Table]:
    import device

    grouped: dict[tuple[str, str], dict[tuple[str, bool], dict[str, Any]]] = {}
    for result in results:
        grouped.setdefault((result["model"], result["dtype"]), {})[result["variant"], result["warm"]] = result
    possible = [(name, warm) for warm in (False, True) for name in VARIANTS]
    variants = [key for key in possible if any(key in found for found in grouped.values())]
    headings = ["model", *(_heading(name, warm) for name, warm in variants), "Broach captures, beyond an eager run", "Broach compiles", "kernels"]
    rows, stages = [], []
    for (model, dtype), found in grouped.items():
        title = f"{device.title(model, next(iter(found.values()))['device'])} {dtype}"
        told = found.get(("broach", False), {}).get("explained") or {}
        times = [cell(found.get(key, {}).get("first_s")) for key in variants]
        rows.append([title, *times, cell(told.get("capture_s"), "{:.3f}"), cell(told.get("compile_s"), "{:.3f}"), str(told.get("kernels", "-"))])
        if told:
            stages.append([title, cell(told["compile_s"] * 1e3, "{:.1f}"), _longest(told["passes"])])
    found_tables = [Table("First call, seconds", headings, rows)]
    if stages:
        found_tables.append(Table("Broach's compile time by stage", ["model", "total ms", "longest stages, ms"], stages))
    return found_tables


def _heading(name: str, warm: bool) -> str:
    return {**NAMES, "dynamo": "Dynamo only"}[name] + (", warm" if warm else "")


def _longest(passes: dict[str, float]) -> str:
    longest = sorted(passes.items(), key=lambda entry: -entry[1])[:STAGES_SHOWN]
    return ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in longest)
