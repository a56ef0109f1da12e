"""Bandwidth of single kernels against torch's copy_ of the same bytes, into results that exist already.

Bytes are what must move at least: every input read once, the results written once. On the CPU 64 MiB tensors come from memory,
256 KiB tensors stay in the second-level cache, where a call's own cost weighs in too. On a GPU (`--device cuda`) they are of 256 MiB.
What a backward reads beside the gradient is what torch saves for it: a softmax's result, a norm's input and statistics.
"""

from __future__ import annotations

import argparse
import functools
from typing import Any, Callable

import device
from measure import NAMES, Table, at_once, attempt, cell, dtypes, fresh, inner_calls, median, race, ratio, turn, variant

COLUMNS = 1024
SIZES = {"cpu": {"64 MiB": 64 << 20, "256 KiB": 256 << 10}, "cuda": {"256 MiB": 256 << 20}}
VARIANTS = ("eager", "inductor", "broach")


def elementwise(x, y, z, out):
    return out.copy_((x * y + z).relu() * 0.5)


def gelu_chain(x, y, out):
    from torch.nn.functional import gelu

    return out.copy_(gelu(x * y + 1) * x.tanh() - y.sigmoid())


def transpose(x, out):
    return out.copy_(x.view(x.shape[1], x.shape[0]).t())


def softmax(x, out):
    return out.copy_(x.softmax(-1))


def layer_norm(x, weight, bias, out):
    from torch.nn.functional import layer_norm

    return out.copy_(layer_norm(x, (x.shape[-1],), weight, bias))


def rms_norm(x, weight, out):
    from torch.nn.functional import rms_norm

    return out.copy_(rms_norm(x, (x.shape[-1],), weight, 1e-6))


def sum_rows(x, out):
    return out.copy_(x.sum(-1))


def sum_columns(x, out):
    return out.copy_(x.sum(0))


def gelu_backward(grad, x, out):
    import torch

    return out.copy_(torch.ops.aten.gelu_backward(grad, x))


def softmax_backward(grad, result, out):
    import torch

    return out.copy_(torch.ops.aten._softmax_backward_data(grad, result, -1, grad.dtype))


def layer_norm_backward(grad, x, weight, bias, mean, rstd, out, weight_out, bias_out):
    import torch

    gradients = torch.ops.aten.native_layer_norm_backward(grad, x, (x.shape[-1],), mean, rstd, weight, bias, [True, True, True])
    return tuple(to.copy_(gradient) for to, gradient in zip((out, weight_out, bias_out), gradients))


# Of each kernel: its inputs and its results, by letters: m is a matrix, r a row of it, c a column, s a matrix of softmax's results, n a
# matrix and (last) the two statistics of its rows.
KERNELS: dict[str, tuple[Callable, str, str]] = {
    "elementwise": (elementwise, "mmm", "m"),
    "gelu-chain": (gelu_chain, "mm", "m"),
    "transpose": (transpose, "m", "m"),
    "gelu-backward": (gelu_backward, "mm", "m"),
    "softmax": (softmax, "m", "m"),
    "softmax-backward": (softmax_backward, "ms", "m"),
    "layer-norm": (layer_norm, "mrr", "m"),
    "layer-norm-backward": (layer_norm_backward, "mnrr", "mrr"),
    "rms-norm": (rms_norm, "mr", "m"),
    "sum-rows": (sum_rows, "m", "c"),
    "sum-columns": (sum_columns, "m", "r"),
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--dtype", type=dtypes, help="fp32, bf16 or fp32,bf16 (default fp32,bf16; on cuda bf16)")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="(default %(default)s)")
    at_once(parser)
    parser.add_argument("--seconds", type=float, default=6.0, help="of timing for each size (default %(default)s)")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"kernel": kernel, "dtype": dtype, "size": size, "variants": chosen.variants.split(","), "seconds": chosen.seconds, "device": chosen.device}
        for dtype in (chosen.dtype or ("bf16" if chosen.device == "cuda" else "fp32,bf16")).split(",")
        for kernel in chosen.kernels.split(",")
        for size in SIZES[chosen.device]
    ]


def run(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    dtype, where, wait = models.DTYPES[job["dtype"]], job["device"], device.wait(job["device"])
    function, takes, gives = KERNELS[job["kernel"]]
    rows = SIZES[where][job["size"]] // dtype.itemsize // COLUMNS
    inputs = _inputs(takes, functools.partial(torch.randn, dtype=dtype, device=where), rows)
    shapes = {"m": (rows, COLUMNS), "r": (COLUMNS,), "c": (rows,)}
    results = [torch.zeros(shapes[letter], dtype=dtype, device=where) for letter in gives]
    moved = sum(tensor.nbytes for tensor in (*inputs, *results))
    expected = function(*inputs, *map(torch.zeros_like, results))
    failed, errors = {}, {}
    source = torch.randn(moved // 2 // dtype.itemsize, device=where).to(dtype)
    target = torch.zeros_like(source)
    calls = {"copy": lambda: target.copy_(source)}
    for name in job["variants"]:
        settings = {} if name == "eager" else {"dynamic": False}
        call = attempt(lambda: variant(name, fresh(function), **settings), failed, name)
        if call is None or attempt(lambda: [call(*inputs, *results) for _ in range(5)], failed, name) is None:
            continue
        have = results[0] if len(results) == 1 else tuple(results)
        errors[name] = attempt(lambda: models.error(expected, have).relative, failed, name + " answer")
        calls[name] = lambda call=call: call(*inputs, *results)
    with turn():
        samples = race(calls, job["seconds"], inner=inner_calls(calls["copy"], 2e-3 if where == "cpu" else 2e-2, wait), least=9, wait=wait)
    return {"bytes": moved, "samples": samples, "relative_error": errors, "failed": failed}


def _inputs(letters: str, random: Callable, rows: int) -> list[Any]:
    import torch

    made, statistics = [], []
    for letter in letters:
        made.append(random(COLUMNS) if letter == "r" else random(rows, COLUMNS))
        if letter == "s":
            made[-1] = made[-1].softmax(-1)
        if letter == "n":
            statistics = list(torch.native_layer_norm(made[-1], (COLUMNS,), None, None, 1e-5)[1:])
    return made + statistics


def tables(results: list[dict[str, Any]]) -> list[Table]:
    kinds = dict.fromkeys((result["dtype"], result["size"]) for result in results)
    headings = ["kernel", "MiB moved", "copy GB/s", *(f"{NAMES[name]} GB/s" for name in VARIANTS)]
    headings += ["Inductor of copy", "Broach of copy", "Broach over Inductor"]
    return [
        Table(
            f"Bandwidth, {dtype}, tensors of {size}",
            headings,
            [_row(result) for result in results if (result["dtype"], result["size"]) == (dtype, size)],
        )
        for dtype, size in kinds
    ]


def _row(result: dict[str, Any]) -> list[str]:
    samples, moved = result.get("samples", {}), result.get("bytes", 0)
    times = {name: median(samples.get(name)) for name in ("copy", *VARIANTS)}
    rates = [cell(ratio(moved / 1e9, time), "{:.1f}") for time in times.values()]
    share = [cell(ratio(times["copy"], times[name]), "{:.0%}") for name in ("inductor", "broach")]
    gain = cell(ratio(times["inductor"], times["broach"]))
    return [result["kernel"], f"{moved / 2**20:.1f}", *rates, *share, gain]
