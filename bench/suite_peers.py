"""Time of a call beside other compilers for CPUs: Inductor in three modes, OpenVINO, ONNX Runtime and Broach by turns, in one process.

OpenVINO and ONNX Runtime are installed by hand (peers.py says how); without them the suite runs and names what is absent. Each has
as many threads as torch. OpenVINO is told the type to compute in and to answer soon; ONNX Runtime runs in fp32 only. Inductor's
max-autotune is with freezing, as on a CPU it tries products of its own for frozen weights only. Each variant has weights of its own.

Beside each model stands what a product of 512x768x3072 reaches in that process, in GFLOP/s: the best of eager's and Broach's, which
measures oneDNN's. It bounds what a model made of products can gain, and tells a slow moment of the machine.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Callable

import peers
from measure import NAMES, Table, attempt, cell, dtypes, geomean, inner_calls, median, race, ratio, variant
from suite_models import DEFAULT, HEADLINE

INDUCTOR = ["inductor", "freezing", "max-autotune"]
VARIANTS = ["eager", *INDUCTOR, "openvino", "onnxruntime", "broach"]
PRODUCT = (512, 768, 3072)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default=",".join(DEFAULT), help="(default %(default)s)")
    parser.add_argument("--dtype", type=dtypes, default="fp32,bf16", help="fp32, bf16 or fp32,bf16 (default %(default)s)")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="(default %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of timing for each model (default %(default)s)")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    wanted = chosen.variants.split(",")
    absent = {name: peers.missing(name) for name in wanted if peers.missing(name)}
    for name, packages in absent.items():
        print(f"{NAMES[name]} is absent: pip install {' '.join(packages)}", flush=True)
    present = [name for name in wanted if name not in absent]
    return [
        {
            "model": model,
            "dtype": dtype,
            "variants": [name for name in present if name != "onnxruntime" or dtype == "fp32"],
            "absent": sorted(absent),
            "seconds": chosen.seconds,
        }
        for dtype in chosen.dtype.split(",")
        for model in chosen.models.split(",")
    ]


def run(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch
    import torch._dynamo  # its import is no variant's own

    torch.set_grad_enabled(False)
    dtype = models.DTYPES[job["dtype"]]
    expected = _tensors(_called(models.build(job["model"], dtype=dtype)))
    calls: dict[str, Callable] = {}
    first, errors, failed = {}, {}, {}
    for name in job["variants"]:
        start = time.perf_counter()
        made = attempt(lambda: _made(name, job), failed, name)
        if made is None:
            continue
        calls[name], answer = made
        first[name] = time.perf_counter() - start
        errors[name] = attempt(lambda: models.error(expected, _as(answer(), expected)).relative, failed, name + " answer")
    for call in calls.values():  # the compilers' own measuring of candidates is over after some calls
        for _ in range(12):
            call()
    inner = max((inner_calls(call, 0.03) for call in calls.values()), default=1)
    samples = race(calls, job["seconds"], inner, before=_rest) if calls else {}
    product = attempt(lambda: product_rate(dtype), failed, "product")
    return {"samples": samples, "first_s": first, "relative_error": errors, "failed": failed, "product": product}


def _made(name: str, job: dict[str, Any]) -> tuple[Callable, Callable]:
    """A call of this variant, which has been made once, and one that gives its answer. Others than torch's export what is in fp32."""
    import models

    if name in peers.PACKAGES:
        found = peers.peer(name, models.build(job["model"]), job["dtype"])
        found()
        return found, found.answer
    program = models.build(job["model"], dtype=models.DTYPES[job["dtype"]])
    compiled = program._replace(call=variant(name, program.call))
    _called(compiled)
    return lambda: _called(compiled), lambda: _tensors(_called(compiled))


def _called(program: Any) -> Any:
    return program.call(*program.args, **program.kwargs)


def _tensors(result: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _as(answer: list[Any], expected: list[Any]) -> list[Any]:
    return [found.to(want.dtype) for found, want in zip(answer, expected)] if len(answer) == len(expected) else answer


def _rest() -> None:
    """Each library has threads of its own, which spin for a while behind a call; the next one's turn begins when they sleep."""
    time.sleep(0.005)


def product_rate(dtype: Any) -> float:
    import torch

    rows, depth, columns = PRODUCT
    layer, x = torch.nn.Linear(depth, columns).eval().to(dtype), torch.randn(rows, depth, dtype=dtype)
    again = torch.nn.Linear(depth, columns).eval().to(dtype)
    calls = {"eager": lambda: layer(x), "broach": lambda fast=variant("broach", again): fast(x)}
    for call in calls.values():
        for _ in range(40):
            call()
    samples = race(calls, 2.0)
    return 2e-9 * rows * depth * columns / min(median(times) for times in samples.values())


def tables(results: list[dict[str, Any]]) -> list[Table]:
    found = []
    for dtype in dict.fromkeys(result["dtype"] for result in results):
        chosen = [result for result in results if result["dtype"] == dtype]
        found += [_times(dtype, chosen), _beside(dtype, chosen)]
    return found


def _times(dtype: str, results: list[dict[str, Any]]) -> Table:
    import models

    names, absent = list(results[0]["variants"]), results[0]["absent"]
    headings = ["model", *(f"{_short(name)} ms" for name in names), "Inductor's best", "Broach over eager", "over Inductor's best"]
    headings += ["over the fastest other", "product GFLOP/s"]
    rows, gains = [], {}
    for result in results:
        ms = {name: median(result.get("samples", {}).get(name), 1e3) for name in names}
        inductor = _fastest(ms, INDUCTOR)
        other = _fastest(ms, [name for name in names if name != "broach"])
        speed = [ratio(ms.get(name) if name else None, ms.get("broach")) for name in ("eager", inductor, other)]
        if result["model"] in HEADLINE:
            gains[result["model"]] = speed
        best = "-" if inductor is None else "default" if inductor == "inductor" else _short(inductor)
        rows.append([models.TITLES[result["model"]], *(cell(ms[name]) for name in names), best, *map(cell, speed), cell(result.get("product"), "{:.0f}")])
    if gains:
        means = [cell(geomean(list(column))) for column in zip(*gains.values())]
        rows.append([f"geomean of {len(gains)}", *("" for _ in names), "", *means, ""])
    without = f", without {', '.join(NAMES[name] for name in absent)} (not installed)" if absent else ""
    rate = max((result["product"] for result in results if result.get("product")), default=None)
    return Table(f"Time of a call, {dtype}{without}; products at up to {cell(rate, '{:.0f}')} GFLOP/s", headings, rows)


def _short(name: str) -> str:
    return NAMES[name].removeprefix("Inductor, ")


def _fastest(ms: dict[str, float | None], among: list[str]) -> str | None:
    return min((name for name in among if ms.get(name) is not None), key=lambda name: ms[name], default=None)


def _beside(dtype: str, results: list[dict[str, Any]]) -> Table:
    import models

    names = [name for name in results[0]["variants"] if name != "eager"]
    rows = []
    for result in results:
        first, error = result.get("first_s", {}), result.get("relative_error", {})
        shown = (f"{cell(first.get(name), '{:.1f}')} ({cell(error.get(name), '{:.0e}')})" for name in names)
        rows.append([models.TITLES[result["model"]], *shown])
    return Table(f"Seconds until the first answer, {dtype} (its largest difference from eager's)", ["model", *map(_short, names)], rows)
