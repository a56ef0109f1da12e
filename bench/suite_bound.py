"""How near a call, or a step of training, comes to what the machine allows: its products at the best rate, and the other bytes at copy speed.

The best rate is that of the fastest product, convolution or attention seen in the process: of the model's own steps, or of a product of
512x768x3072, which Broach and eager compute as well. Other bytes are what the steps that are no products must move, each window once, as the
program's profile counts them; a copy of 64 MiB tells how fast. With `--steps` it is forward and backward as in `training`, with the loss in the
compiled function: of one number only the square is taken outside. Beside each model
stand the rates of all its products together and of attention alone. Times are taken with the profile off.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from measure import Table, attempt, cell, dtypes, median, race, ratio, variant
from suite_peers import product_rate
from suite_training import mean_square, step_on_cpu

DEFAULT = ["resnet50", "vit", "bert", "gpt2", "llama"]
SETTLING = 40  # calls in which candidates are measured


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(DEFAULT), help="(default %(default)s)")
    parser.add_argument("--dtype", type=dtypes, default="fp32,bf16", help="fp32, bf16 or fp32,bf16 (default %(default)s)")
    parser.add_argument("--steps", action="store_true", help="of training instead of calls; bf16 is autocast then")
    parser.add_argument("--seconds", type=float, default=6.0, help="of timing for each model (default %(default)s)")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"model": model, "dtype": dtype, "steps": chosen.steps, "seconds": chosen.seconds}
        for dtype in chosen.dtype.split(",")
        for model in chosen.models.split(",")
    ]


def run(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch

    import broach
    from broach._native import _C

    mixed = job["steps"] and job["dtype"] == "bf16"
    torch.set_grad_enabled(job["steps"])
    program = models.build(job["model"], dtype=torch.float32 if job["steps"] else models.DTYPES[job["dtype"]])
    if job["steps"]:
        program.call.requires_grad_(True).train(mixed)

    def settled() -> tuple[Any, Any]:
        call = variant("broach", (lambda *args, **kwargs: mean_square(program.call(*args, **kwargs))) if job["steps"] else program.call)

        def once() -> None:
            models.rewind(program)
            step_on_cpu(program, call, mixed) if job["steps"] else call(*program.args, **program.kwargs)

        for _ in range(SETTLING):
            once()
        return call, once

    samples = race({"broach": settled()[1]}, job["seconds"])["broach"]
    _C.set_profiling(True)
    call, _ = settled()  # what was compiled without it has no profile
    with torch.autocast("cpu", torch.bfloat16) if mixed else contextlib.nullcontext():
        steps = broach.explain(call, *program.args, **program.kwargs).steps
    _C.set_profiling(False)
    failed: dict[str, str] = {}
    with torch.no_grad():
        product = attempt(lambda: product_rate(models.DTYPES[job["dtype"]]), failed, "product")
    return {"samples": samples, "failed": failed, **_totals(steps), "product": product, "copy": _copy_rate()}


def _totals(steps: list[Any]) -> dict[str, float]:
    """Of products: operations, GFLOP/s of all, of attention alone and of the best; bytes of the rest."""
    products = [s for s in steps if s.gigaflops_per_second]
    attention = [s for s in products if s.name.startswith("routine attention")]

    def flops(some: list[Any]) -> float:
        return sum(s.gigaflops_per_second * s.milliseconds * 1e6 for s in some)

    def rate(some: list[Any]) -> float | None:
        return flops(some) / sum(s.milliseconds * 1e6 for s in some) if some else None

    return {
        "flops": flops(products),
        "rate": rate(products),
        "attention_rate": rate(attention),
        "best": max((s.gigaflops_per_second for s in products), default=0.0),
        "other_bytes": sum(s.gigabytes_per_second * s.milliseconds * 1e6 for s in steps if not s.gigaflops_per_second),
    }


def _copy_rate() -> float:
    """Bytes read and written in a second."""
    import torch

    source, target = torch.randn(1 << 24), torch.zeros(1 << 24)
    return 2 * source.nbytes / min(race({"copy": lambda: target.copy_(source)}, 0.5)["copy"])


def tables(results: list[dict[str, Any]]) -> list[Table]:
    import models

    of = "a step of training" if results[0]["steps"] else "a call"
    headings = ["model", "ms", "bound ms", "share", "best GFLOP/s", "its products' GFLOP/s", "attention's GFLOP/s", "copy GB/s"]
    rows = []
    for result in results:
        ms = median(result.get("samples"), 1e3)
        best = max(result.get("best") or 0.0, result.get("product") or 0.0)
        bound = 1e3 * (result["flops"] / best / 1e9 + result["other_bytes"] / result["copy"]) if best and "flops" in result else None
        rows.append([
            f"{models.TITLES[result['model']]} {result['dtype']}", cell(ms, "{:.1f}"), cell(bound, "{:.1f}"), cell(ratio(bound, ms)),
            cell(best, "{:.0f}"), cell(result.get("rate"), "{:.0f}"), cell(result.get("attention_rate"), "{:.0f}"),
            cell(ratio(result.get("copy"), 1e9), "{:.1f}"),
        ])  # fmt: skip
    return [Table(f"Time of {of} against products at the best rate and other bytes at copy speed", headings, rows)]
