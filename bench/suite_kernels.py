"""Bandwidth of single kernels against torch's copy_ of the same bytes, into results that exist already.

Bytes are what must move at least: every input read once, the result written once. 64 MiB tensors come from memory, 256 KiB
tensors stay in the second-level cache, where a call's own cost weighs in too.
"""

from __future__ import annotations

import argparse
from typing import Any, Callable

from measure import NAMES, Table, attempt, cell, dtypes, fresh, inner_calls, median, race, ratio, variant

COLUMNS = 1024
SIZES = {"64 MiB": 64 << 20, "256 KiB": 256 << 10}
VARIANTS = ("eager", "inductor", "broach")


def elementwise(x, y, z, out):
    return out.copy_((x * y + z).relu() * 0.5)


def gelu_chain(x, y, out):
    from torch.nn.functional import gelu

    return out.copy_(gelu(x * y + 1) * x.tanh() - y.sigmoid())


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


# Of each kernel: large inputs, inputs of one row, and the shape of the result, a function of (rows, columns).
KERNELS: dict[str, tuple[Callable, int, int, Callable]] = {
    "elementwise": (elementwise, 3, 0, lambda rows, columns: (rows, columns)),
    "gelu-chain": (gelu_chain, 2, 0, lambda rows, columns: (rows, columns)),
    "softmax": (softmax, 1, 0, lambda rows, columns: (rows, columns)),
    "layer-norm": (layer_norm, 1, 2, lambda rows, columns: (rows, columns)),
    "rms-norm": (rms_norm, 1, 1, lambda rows, columns: (rows, columns)),
    "sum-rows": (sum_rows, 1, 0, lambda rows, columns: (rows,)),
    "sum-columns": (sum_columns, 1, 0, lambda rows, columns: (columns,)),
}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--dtype", type=dtypes, default="fp32,bf16", help="fp32, bf16 or fp32,bf16 (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of timing for each size (default %(default)s)")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"kernel": kernel, "dtype": dtype, "size": size, "seconds": chosen.seconds}
        for dtype in chosen.dtype.split(",")
        for kernel in chosen.kernels.split(",")
        for size in SIZES
    ]


def run(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    dtype = models.DTYPES[job["dtype"]]
    function, large, small, shape = KERNELS[job["kernel"]]
    rows = SIZES[job["size"]] // dtype.itemsize // COLUMNS
    inputs = [torch.randn(rows, COLUMNS, dtype=dtype) for _ in range(large)]
    inputs += [torch.randn(COLUMNS, dtype=dtype) for _ in range(small)]
    out = torch.zeros(shape(rows, COLUMNS), dtype=dtype)
    moved = sum(tensor.nbytes for tensor in (*inputs, out))
    expected = function(*inputs, torch.zeros_like(out))
    failed, errors = {}, {}
    source = torch.randn(moved // 2 // dtype.itemsize).to(dtype)
    target = torch.zeros_like(source)
    calls = {"copy": lambda: target.copy_(source)}
    for name in VARIANTS:
        settings = {} if name == "eager" else {"dynamic": False}
        call = attempt(lambda: variant(name, fresh(function), **settings), failed, name)
        if call is None or attempt(lambda: [call(*inputs, out) for _ in range(5)], failed, name) is None:
            continue
        errors[name] = attempt(lambda: models.error(expected, out).relative, failed, name + " answer")
        calls[name] = lambda call=call: call(*inputs, out)
    samples = race(calls, job["seconds"], inner=inner_calls(calls["copy"], 2e-3), least=9)
    return {"bytes": moved, "samples": samples, "relative_error": errors, "failed": failed}


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
