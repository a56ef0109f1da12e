"""Process memory: what compiling all the models adds, and what one call needs beside its inputs, weights and results.

Both are resident memory read from the kernel, after freed memory was given back. A compiler may keep its scratch between
calls; `broach.explain` names those bytes (`arena_bytes`), and they count as part of the call, not of the compiler. Packed
copies of weights (`packed_bytes`) are listed beside what is added. The last table is a step of one token with a gigabyte of
keys and values: the bytes are those that each step of the compiled program must move, as its profile counts them. Before it stands
what a process keeps for sizes that change: a thousand pairs of them by turns, over and over, which must add nothing after the second
round.

`--steps` measures steps of training instead: forward and backward as in `training`, gradients included, also with
`options={"memory_budget": 0.3}`. What is allocated is what torch's profiler is told of; what is resident includes what the C library and
the products' library take besides, and memory that is kept for the next step, which counts as a step's own.

With `--device cuda` it is what torch's allocator reserves on the GPU for calls, or steps, beside weights and arguments.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import device
from measure import NAMES, Table, at_once, attempt, cell, dtypes, median, race, reset_peak, resident_mib, trim, variant
from suite_training import forward_on_cpu, loss_of, step_on_cpu, step_on_cuda

DEFAULT = ["mlp", "resnet50", "vit", "bert", "gpt2", "llama"]
VARIANTS = ("eager", "inductor", "broach")
MIB = 2**20


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", default=",".join(DEFAULT))
    parser.add_argument("--dtype", type=dtypes, help="(default fp32; on cuda bf16)")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--steps", action="store_true", help="steps of training instead of calls")
    at_once(parser, "this many (default all) beside each other, each in its process as ever; times are then of no use")


def jobs(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    models, variants = chosen.models.split(","), chosen.variants.split(",")
    types = (chosen.dtype or ("bf16" if chosen.device == "cuda" else "fp32")).split(",")
    kinds = [(model, dtype) for dtype in types for model in models]
    if chosen.device == "cuda":
        what = {"what": "device", "steps": chosen.steps}
        return [{**what, "models": [model], "dtype": dtype, "variant": name} for model, dtype in kinds for name in variants]
    if chosen.steps:
        variants += ["broach-0.3"] if "broach" in variants else []
        return [{"what": "step", "models": [model], "dtype": dtype, "variant": name} for model, dtype in kinds for name in variants]
    every = [
        {"what": "all", "models": models, "dtype": dtype, "variant": name}
        for dtype in types
        for name in variants
        if name != "eager"
    ]
    single = [
        {"what": "call", "models": [model], "dtype": dtype, "variant": name}
        for model, dtype in kinds
        for name in variants
    ]
    others = [{"what": what, "models": [], "dtype": "fp32", "variant": "broach"} for what in ("sizes", "cache")]
    return every + single + others


def run(job: dict[str, Any]) -> dict[str, Any]:
    if job["what"] == "cache":
        return _cache_step()
    if job["what"] == "sizes":
        return _changing_sizes()
    if job["what"] == "step":
        return _training_step(job)
    if job["what"] == "device":
        return _on_device(job)
    import models
    import torch

    torch.set_grad_enabled(False)
    programs = [models.build(name, dtype=models.DTYPES[job["dtype"]]) for name in job["models"]]
    for program in programs:
        _call(program, program.call)
    trim()
    before = resident_mib()
    failed: dict[str, str] = {}
    compiled = []
    for name, program in zip(job["models"], programs):
        call = attempt(lambda: _compiled(job["variant"], program), failed, name)
        if call is not None:
            compiled.append((program, call))
    trim()
    result = {"added_mib": resident_mib() - before, "failed": failed, "peak_mib": None}
    for kind in ("packed", "arena"):
        result[f"{kind}_mib"] = sum(_told(program, call, f"{kind}_bytes") for program, call in compiled) / MIB
    if job["what"] == "call" and compiled:
        result["peak_mib"] = _peak(*compiled[0]) + result["arena_mib"]
    return result


def _training_step(job: dict[str, Any]) -> dict[str, Any]:
    import models

    mixed = job["dtype"] == "bf16"
    program = models.build(job["models"][0])
    program.call.requires_grad_(True).train(mixed)
    name, _, budget = job["variant"].partition("-")
    call = variant(name, program.call, **({"options": {"memory_budget": float(budget)}} if budget else {}))

    def step() -> None:
        step_on_cpu(program, call, mixed)

    for _ in range(5):
        step()
    program.call.zero_grad(set_to_none=True)
    trim()
    before, kept = resident_mib(), _kept_mib() if name == "broach" else 0.0
    reset_peak()
    step()
    peak = resident_mib(peak=True) - before + kept
    gradients = sum(p.grad.nbytes for p in program.call.parameters() if p.grad is not None) / MIB
    allocated = _allocated(program, call, mixed)
    return {"peak_mib": peak, "gradients_mib": gradients, **allocated, "samples": race({"step": step}, 4.0)["step"], "failed": {}}


def _allocated(program: Any, call: Any, mixed: bool) -> dict[str, float]:
    from torch.profiler import ProfilerActivity, profile

    levels, now = [0], 0
    for _ in range(3):  # to begin with, compilers look at what the profiler has changed
        program.call.zero_grad(set_to_none=True)
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as told:
            loss = forward_on_cpu(program, call, mixed)
            begin = time.time_ns()
            loss.backward()
    events = [event for event in told.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = sum(event.nbytes() for event in events if event.start_ns() < begin)
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        levels.append(now)
    return {"allocated_mib": max(levels) / MIB, "held_mib": held / MIB}


def _on_device(job: dict[str, Any]) -> dict[str, Any]:
    import models
    import torch

    torch.set_grad_enabled(job["steps"])
    (model,), name, steps = job["models"], job["variant"], job["steps"]
    program = device.build(model, "cuda", models.DTYPES[job["dtype"]], **(device.NO_DROPOUT.get(model, {}) if steps else {}))
    if steps:
        program.call.requires_grad_(True).train(True)
    memory = device.Memory()
    if steps:
        step = step_on_cuda(name, program.call, loss_of(model, program.call), program)
    else:
        call = variant(name, program.call)
        step = lambda: call(*program.args, **program.kwargs)  # noqa: E731
    for _ in range(14):
        models.rewind(program)
        step()
    return {"peak_mib": memory.of(step), "failed": {}}


def _kept_mib() -> float:
    from broach._native import _C

    return _C.idle_arena_bytes() / MIB


def _changing_sizes() -> dict[str, Any]:
    import torch
    from torch import nn

    import broach

    torch.set_grad_enabled(False)
    image = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.GELU()).eval()
    mixed = nn.Linear(8, 16).eval()

    def program(x):
        y = image(x).flatten(2).transpose(1, 2)
        return torch.softmax(mixed(y) @ mixed(y).transpose(1, 2), -1).mean(1)

    fast = broach.compile(program)
    resident, allocated = [], []
    for round_ in range(10):
        for k in range(1000):
            fast(torch.randn(1, 3, 4 + k % 25, 4 + k // 25))
        allocated.append(_allocated_mib())
        trim()
        resident.append(resident_mib())
    return {"resident": resident, "allocated": allocated, "captures": broach.explain(fast, torch.randn(1, 3, 9, 9)).captures, "failed": {}}


def _allocated_mib() -> float:
    """What malloc has given out and not got back."""
    import ctypes

    class Info(ctypes.Structure):
        names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
        _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Info
    info = mallinfo2()
    return (info.uordblks + info.hblkhd) / MIB


def _cache_step() -> dict[str, Any]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    import broach
    from broach._native import _C

    def step(keys, values, key, value, query, at):
        keys.index_copy_(2, at, key)
        values.index_copy_(2, at, value)
        return scaled_dot_product_attention(query, keys, values)

    torch.set_grad_enabled(False)
    _C.set_profiling(True)
    keys, values = torch.randn(1, 16, 131072, 64), torch.randn(1, 16, 131072, 64)
    token, at = [torch.randn(1, 16, 1, 64) for _ in range(3)], torch.tensor([7])
    fast = broach.compile(step)
    calls = {"eager": step, "broach": fast}
    samples = race({name: lambda call=call: call(keys, values, *token, at) for name, call in calls.items()}, 4.0)
    steps = broach.explain(fast, keys, values, *token, at).steps
    moved = sum(s.gigabytes_per_second * s.milliseconds * 1e6 for s in steps)
    return {"samples": samples, "moved": moved, "needed": keys.nbytes + values.nbytes, "failed": {}}


def _call(program: Any, call: Any) -> Any:
    import models

    models.rewind(program)
    return call(*program.args, **program.kwargs)


def _compiled(name: str, program: Any) -> Any:
    call = variant(name, program.call)
    for _ in range(5):
        _call(program, call)
    return call


def _told(program: Any, call: Any, attribute: str) -> int:
    try:
        import broach

        return getattr(broach.explain(call, *program.args, **program.kwargs), attribute, 0)
    except Exception:  # eager and Inductor tell nothing
        return 0


def _peak(program: Any, call: Any) -> float:
    trim()
    before = resident_mib()
    reset_peak()
    result = _call(program, call)
    peak = resident_mib(peak=True) - before
    del result
    return peak


def tables(results: list[dict[str, Any]]) -> list[Table]:
    found = []
    every = [result for result in results if result["what"] == "all"]
    if every:
        rows = [
            [
                f"{NAMES[result['variant']]} {result['dtype']}",
                cell(result.get("added_mib"), "{:.0f}"),
                cell(result.get("packed_mib"), "{:.0f}"),
                cell(result.get("arena_mib"), "{:.0f}"),
            ]
            for result in every
        ]
        headings = ["compiler", "added MiB", "of it packed weights", "of it arenas"]
        found.append(Table(f"Memory that compiling {', '.join(every[0]['models'])} adds", headings, rows))
    single = {(r["models"][0], r["dtype"], r["variant"]): r.get("peak_mib") for r in results if r["what"] in ("call", "device")}
    on = "cuda" if results[0]["what"] == "device" else "cpu"
    if single:
        names = list(dict.fromkeys(variant_name for _, _, variant_name in single))
        kinds = dict.fromkeys((model, dtype) for model, dtype, _ in single)
        rows = [
            [f"{device.title(model, on)} {dtype}", *(cell(single.get((model, dtype, name)), "{:.1f}") for name in names)]
            for model, dtype in kinds
        ]
        of = "a step of training" if results[0].get("steps") else "a call"
        found.append(Table(f"Peak memory of {of}, results included, MiB", ["model", *(NAMES[n] for n in names)], rows))
    steps = {(r["models"][0], r["dtype"], r["variant"]): r for r in results if r["what"] == "step" and "peak_mib" in r}
    if steps:
        found.extend(_tables_of_steps(steps))
    for result in results:
        if result["what"] == "sizes" and "resident" in result:
            rows = [[name, *(cell(result[name][i], "{:.1f}") for i in (0, 1, 4, 9))] for name in ("resident", "allocated")]
            headings = ["MiB", *(f"after {n:,} calls" for n in (1000, 2000, 5000, 10000))]
            found.append(Table(f"A thousand pairs of sizes by turns, {result['captures']} captures", headings, rows))
        if result["what"] == "cache" and "samples" in result:
            times = {name: median(samples, 1e3) for name, samples in result["samples"].items()}
            row = ["fp32", cell(times["eager"], "{:.1f}"), cell(times["broach"], "{:.1f}"), cell(result["moved"] / result["needed"], "{:.3f}")]
            found.append(Table("A step of one token, 1 GiB of keys and values", ["", "eager ms", "Broach ms", "bytes moved over those of the cache"], [row]))
    return found


def _tables_of_steps(steps: dict[tuple[str, str, str], dict[str, Any]]) -> list[Table]:
    import models

    names = list(dict.fromkeys(name for _, _, name in steps))
    titles = [NAMES.get(name) or f"Broach, budget {name.partition('-')[2]}" for name in names]
    rows: dict[str, list[list[str]]] = {"allocated_mib": [], "held_mib": [], "peak_mib": []}
    for model, dtype in dict.fromkeys((model, dtype) for model, dtype, _ in steps):
        found = [steps.get((model, dtype, name), {}) for name in names]
        gradients = next(r["gradients_mib"] for r in found if r)
        for key, of in rows.items():
            row = [f"{models.TITLES[model]} {dtype}", cell(gradients, "{:.0f}"), *(cell(r.get(key), "{:.0f}") for r in found)]
            of.append(row + [cell(median(r.get("samples"), 1e3)) for r in found if key == "peak_mib"])
    headings = ["model", "gradients MiB", *titles]
    return [
        Table("Allocated at most in a step of training, gradients included, MiB", headings, rows["allocated_mib"]),
        Table("Allocated when its backward begins, MiB", headings, rows["held_mib"]),
        Table("Resident at most, MiB, and time", [*headings, *(f"{title} ms" for title in titles)], rows["peak_mib"]),
    ]
