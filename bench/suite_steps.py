"""Time of whole training steps: gradients set to none, forward, backward and an optimizer's step, by turns in one process for each model
and optimizer.

Inductor compiles the model and the optimizer's step, each by itself; Broach does the same in "parts", and in its own column it compiles the
step as one function. The loss is a language model's own, else the mean square of what the model gives; there is no dropout. On the CPU all is
fp32; on a GPU weights are fp32 and the model runs under autocast to bf16. Each variant has weights of its own, made from one seed. The error
is that of the sixth step's loss, relative to eager's.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any, Callable

import device
from measure import NAMES, Table, attempt, cell, geomean, inner_calls, median, race, ratio, turn, variant

DEFAULT = ["mlp", "bert", "gpt2", "llama"]
OPTIMIZERS = {
    "sgd": ("SGD, momentum", "SGD", {"lr": 1e-4, "momentum": 0.9}),
    "adamw": ("AdamW", "AdamW", {"lr": 1e-5}),
    "adamw-fused": ("AdamW, fused", "AdamW", {"lr": 1e-5, "fused": True}),
}
PARTS = "broach-parts"
TITLES = {**NAMES, PARTS: "Broach in parts"}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", default=",".join(DEFAULT), help="(default %(default)s)")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS), help="(default %(default)s)")
    parser.add_argument("--variants", default=f"eager,inductor,{PARTS},broach", help="(default %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of timing for each model and optimizer (default %(default)s)")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"model": m, "optimizer": o, "device": chosen.device, "variants": chosen.variants.split(","), "seconds": chosen.seconds}
        for m in chosen.models.split(",")
        for o in chosen.optimizers.split(",")
    ]


def training_step(name: str, job: dict[str, Any]) -> Callable[[], Any]:
    """One step of a new model, which gives its loss."""
    import models
    import torch

    program = device.build(job["model"], job["device"], torch.float32, **device.NO_DROPOUT.get(job["model"], {}))
    model = program.call.requires_grad_(True).train(True)
    _, kind, settings = OPTIMIZERS[job["optimizer"]]
    optimizer = getattr(torch.optim, kind)(model.parameters(), **settings)
    parts = {"inductor": "inductor", PARTS: "broach"}.get(name, "eager")
    forward, update = variant(parts, model), variant(parts, optimizer.step)
    mixed = job["device"] == "cuda"

    def step() -> Any:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if mixed else contextlib.nullcontext():
            if job["model"] in device.LANGUAGE:
                loss = forward(*program.args, labels=program.args[0], **program.kwargs)[0]
            else:
                loss = sum(t.float().square().mean() for t in models._tensors(forward(*program.args, **program.kwargs)))
        loss.backward()
        update()
        return loss.detach()

    return variant("broach", step) if name == "broach" else step


def run(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch._dynamo  # its import is no variant's own

    torch._dynamo.config.cache_size_limit = 64
    wait = device.wait(job["device"])
    steps: dict[str, Callable] = {}
    first, losses, failed = {}, {}, {}
    for name in job["variants"]:
        step = attempt(lambda: training_step(name, job), failed, name)
        start = time.perf_counter()
        made = [attempt(step, failed, name) for _ in range(6) if step is not None and name not in failed]
        wait()
        if step is None or name in failed:
            continue
        first[name], losses[name], steps[name] = time.perf_counter() - start, float(made[-1]), step
    with turn():
        race(steps, 0, least=6, wait=wait)
        inner = max(inner_calls(step, 0.04, wait) for step in steps.values())
        samples = race(steps, job["seconds"], inner, wait=wait)
    want = losses.get("eager")
    errors = {name: abs(loss - want) / abs(want) for name, loss in losses.items() if want}
    return {"samples": samples, "first_s": first, "relative_error": errors, "failed": failed}


def tables(results: list[dict[str, Any]]) -> list[Table]:
    names = list(results[0]["variants"])
    headings = ["model", "optimizer", *(f"{TITLES[n]} ms" for n in names), "Broach over the fastest other", "first six steps s", "error"]
    rows, gains = [], []
    for result in results:
        ms = {n: median(result.get("samples", {}).get(n), 1e3) for n in names}
        others = [ms[n] for n in names if not n.startswith("broach") and ms[n] is not None]
        gains.append(ratio(min(others, default=None), ms.get("broach")))
        first, error = result.get("first_s", {}).get("broach"), result.get("relative_error", {}).get("broach")
        rows.append([device.title(result["model"], result["device"]), OPTIMIZERS[result["optimizer"]][0],
                     *(cell(ms[n], "{:.2f}") for n in names), cell(gains[-1]), cell(first), cell(error, "{:.1e}")])  # fmt: skip
    rows.append([f"geomean of {len(gains)}", "", *("" for _ in names), cell(geomean(gains)), "", ""])
    return [Table(f"Time of a training step, {'bf16 autocast on a GPU' if results[0]['device'] == 'cuda' else 'fp32'}", headings, rows)]
