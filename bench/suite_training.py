"""Time of forward and backward of each model: eager, Inductor and Broach by turns, each model in a process of its own.

With `--device cuda` beside Inductor in its mode reduce-overhead and eager under one CUDA graph, at sizes that fill a GPU; the models are
then in the type themselves, in training mode without dropout, and the loss (a language model's own) is part of the program.

On the CPU the loss is the mean square of the floating point results, summed. In fp32 there is no dropout; "bf16" is autocast to bfloat16 with
the models in training mode, dropout as their configurations have it. Each variant has weights of its own, made from one seed; a
variant's answer is its gradients, compared with eager's where nothing is drawn at random.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any

import device
from measure import NAMES, Table, at_once, attempt, cell, dtypes, geomean, inner_calls, median, race, ratio, turn, variant

DEFAULT = ["mlp", "resnet50", "vit", "bert", "gpt2", "llama", "unet"]
ON_CUDA = ["mlp", "resnet50", "vit", "bert", "gpt2", "llama"]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", help=f"or zoo, or zoo:some (default {','.join(DEFAULT)}; on cuda {','.join(ON_CUDA)})")
    parser.add_argument("--dtype", type=dtypes, help="fp32, bf16 or fp32,bf16 (default fp32; on cuda bf16)")
    parser.add_argument("--variants", help="(default eager,inductor,broach; on cuda reduce-overhead and graph too)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of timing for each model (default %(default)s)")
    at_once(parser)


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    return device.jobs(chosen, DEFAULT, ON_CUDA, "fp32")


def run(job: dict[str, Any]) -> dict[str, Any]:
    return run_on_cuda(job) if job["device"] == "cuda" else run_on_cpu(job)


def run_on_cuda(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch
    import torch._dynamo  # its import is no variant's own

    torch._dynamo.config.cache_size_limit = 64
    config = device.NO_DROPOUT.get(job["model"], {})
    programs = {n: device.build(job["model"], "cuda", models.DTYPES[job["dtype"]], **config) for n in job["variants"]}
    steps, first, errors, failed, wanted = {}, {}, {}, {}, None
    for name, program in programs.items():
        model = program.call.requires_grad_(True).train(True)
        step = attempt(lambda: step_on_cuda(name, model, loss_of(job["model"], model), program), failed, name)
        if step is None:
            continue
        start = time.perf_counter()
        attempt(step, failed, name)
        torch.cuda.synchronize()
        first[name] = time.perf_counter() - start
        for _ in range(4):
            attempt(step, failed, name)
        if name in failed:
            continue
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        wanted = [g.clone() for g in gradients] if name == "eager" else wanted
        errors[name] = attempt(lambda: _distance(wanted, gradients), failed, name + " answer") if wanted else None
        del gradients
        steps[name] = step
    with turn():
        race(steps, 0, least=8, wait=torch.cuda.synchronize)  # each settles beside the others: where memory lies decides what is launched at once
        inner = max((inner_calls(step, 0.04, torch.cuda.synchronize) for step in steps.values()), default=1)
        samples = race(steps, job["seconds"], inner, wait=torch.cuda.synchronize)
    return {"samples": samples, "first_s": first, "relative_error": errors, "failed": failed}


def loss_of(name: str, model: Any) -> Any:
    if name in device.LANGUAGE:
        return lambda ids, **_: model(ids, labels=ids)[0]
    return lambda *args, **kwargs: mean_square(model(*args, **kwargs))


def step_on_cuda(name: str, model: Any, loss: Any, program: Any) -> Any:
    import torch

    call = loss if name == "graph" else variant(name, loss)

    def step() -> None:
        if name in ("reduce-overhead", "max-autotune"):  # both keep results in their graphs' memory
            torch.compiler.cudagraph_mark_step_begin()
        model.zero_grad(set_to_none=True)
        call(*program.args, **program.kwargs).backward()

    return device.Graphed(step) if name == "graph" else step


def _distance(want: list, have: list) -> float:
    """Of all gradients together, relative to their length."""
    total = sum(w.double().square().sum() for w in want)
    return (sum((w.double() - h.double()).square().sum() for w, h in zip(want, have, strict=True)) / total).sqrt().item()


def step_on_cpu(program: Any, call: Any, mixed: bool) -> None:
    program.call.zero_grad(set_to_none=True)
    forward_on_cpu(program, call, mixed).backward()


def forward_on_cpu(program: Any, call: Any, mixed: bool) -> Any:
    import torch

    with torch.autocast("cpu", torch.bfloat16) if mixed else contextlib.nullcontext():
        return mean_square(call(*program.args, **program.kwargs))


def mean_square(result: Any) -> Any:
    import models

    return sum(t.float().square().mean() for t in models._tensors(result) if t.requires_grad)


def run_on_cpu(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch
    import torch._dynamo  # its import is no variant's own

    mixed = job["dtype"] == "bf16"
    programs = {name: device.build(job["model"], "cpu", torch.float32) for name in job["variants"]}
    steps, first, errors, failed, gradients = {}, {}, {}, {}, {}

    for name, program in programs.items():
        program.call.requires_grad_(True).train(mixed)
        call = attempt(lambda: variant(name, program.call), failed, name)
        if call is None:
            continue
        start = time.perf_counter()
        attempt(lambda: step_on_cpu(program, call, mixed), failed, name)
        if name in failed:
            continue
        first[name] = time.perf_counter() - start
        for _ in range(2):
            attempt(lambda: step_on_cpu(program, call, mixed), failed, name)
        gradients[name] = [p.grad for p in program.call.parameters() if p.grad is not None]
        if not mixed and "eager" in gradients:
            errors[name] = attempt(lambda: _worst(gradients["eager"], gradients[name]), failed, name + " answer")
        steps[name] = lambda program=program, call=call: step_on_cpu(program, call, mixed)
    gradients.clear()
    with turn():
        for each in steps.values():
            for _ in range(3):
                each()
        samples = race(steps, job["seconds"])
        rate = _product_rate()
    return {"samples": samples, "first_s": first, "relative_error": errors, "failed": failed, "gflops": rate}


# A gradient that is zero but for rounding (of a bias that a softmax cancels) has no relative error.
def _worst(want: list, have: list) -> float:
    scale = max(w.abs().max().item() for w in want)
    return max(((w - h).abs().max() / max(w.abs().max().item(), 1e-6 * scale)).item() for w, h in zip(want, have, strict=True))


def _product_rate(n: int = 1024) -> float:
    """GFLOP/s of eager's products of two n x n matrices in this process."""
    import torch

    a, b = torch.randn(n, n), torch.randn(n, n)
    samples = race({"mm": lambda: a @ b}, 0.5)["mm"]
    return 2 * n**3 / min(samples) / 1e9


def tables(results: list[dict[str, Any]]) -> list[Table]:
    if results[0]["device"] == "cuda":
        return device.tables("Time of forward and backward", results)
    return [_table(dtype, [r for r in results if r["dtype"] == dtype]) for dtype in dict.fromkeys(r["dtype"] for r in results)]


def _table(dtype: str, results: list[dict[str, Any]]) -> Table:
    import models

    names = list(results[0]["variants"])
    others = [name for name in names if name != "eager"]
    headings = ["model", *(f"{NAMES[name]} ms" for name in names), *(f"{NAMES[name]} over eager" for name in others)]
    headings += ["Broach over Inductor", *(f"{NAMES[name]} first step s" for name in others), "Broach error", "GFLOP/s"]
    rows, gains = [], []
    for result in results:
        ms = {name: median(result.get("samples", {}).get(name), 1e3) for name in names}
        speed = [ratio(ms.get("eager"), ms[name]) for name in others] + [ratio(ms.get("inductor"), ms.get("broach"))]
        gains.append(speed)
        first = [cell(result.get("first_s", {}).get(name)) for name in others]
        error = cell(result.get("relative_error", {}).get("broach"), "{:.1e}")
        rows.append([device.title(result["model"], "cpu"), *(cell(ms[name]) for name in names), *map(cell, speed), *first, error,
                     cell(result.get("gflops"), "{:.0f}")])  # fmt: skip
    means = [cell(geomean(list(column))) for column in zip(*gains)]
    rows.append([f"geomean of {len(gains)}", *("" for _ in names), *means, *("" for _ in others), "", ""])
    return Table(f"Time of forward and backward, {dtype}", headings, rows)
