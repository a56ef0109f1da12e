"""Two builds of Broach in turns: what a change costs or brings, as ratios of medians.

    python bench/versions.py OLD [NEW] [--models mlp,bert] [--seconds 10]

OLD and NEW are checkouts with a build/; NEW is this one unless given. Each program runs in a process of either build, and the two
processes take turns, so that a busy moment of the machine falls on both. Below 1: NEW is faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CALLS = {"three_ops": "three ops on ten floats", "parameters": "300 parameters in 100 submodules"}
MODELS = ["mlp", "resnet50", "bert", "gpt2", "llama-token", "unet"]


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        return worker(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=10.0, help="of timing for each program (default %(default)s)")
    chosen = parser.parse_args()
    print(f"{'program':44} {'old':>10} {'new':>10} {'new/old':>8}   compile new/old")
    for program in [*CALLS, *filter(None, chosen.models.split(","))]:
        show(CALLS.get(program, program), compare(program, chosen))
    return 0


def compare(program: str, chosen: argparse.Namespace) -> list[dict[str, Any]]:
    workers = [start(root, program) for root in (chosen.old, chosen.new)]
    compiled = [ask(w, {}) for w in workers]
    samples: list[list[float]] = [[], []]
    share = chosen.seconds / 40
    for turn in range(20):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        for i in order:
            samples[i] += ask(workers[i], {"seconds": share})["samples"]
    for w in workers:
        w.stdin.close()
        w.wait()
    return [{"call": median(s), **c} for s, c in zip(samples, compiled)]


def show(name: str, results: list[dict[str, Any]]) -> None:
    old, new = results
    print(
        f"{name:44} {1e6 * old['call']:8.2f}us {1e6 * new['call']:8.2f}us {new['call'] / old['call']:8.3f}   "
        f"{new['compile'] / old['compile']:.2f} ({1e3 * old['compile']:.0f} ms), kernels known {new['again'] / old['again']:.2f} "
        f"({1e3 * old['again']:.1f} ms)",
        flush=True,
    )


def start(root: Path, program: str) -> subprocess.Popen:
    root = root.resolve()
    paths = [str(root / "python"), str(root / "build" / "python"), str(ROOT / "examples"), str(ROOT / "bench")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, __file__, "--worker", program]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(process: subprocess.Popen, order: dict[str, Any]) -> dict[str, Any]:
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def worker(name: str) -> int:
    """Answers its first line with the seconds that compiling took, at first and with all kernels known, the others with samples of calls."""
    import torch

    import broach

    torch.set_grad_enabled(False)
    call, times = prepared(name, broach)
    sys.stdin.readline()
    print(json.dumps({"compile": times[0], "again": min(times[1:])}), flush=True)
    from measure import inner_calls, seconds

    inner = inner_calls(call, 2e-3)
    for line in sys.stdin:
        left, samples = json.loads(line)["seconds"], []
        while left > 0 or not samples:
            samples.append(seconds(call, inner))
            left -= samples[-1] * inner
        print(json.dumps({"samples": samples}), flush=True)
    return 0


def prepared(name: str, broach: Any) -> tuple[Any, list[float]]:
    import models
    import suite_overhead
    import torch
    from measure import fresh

    x, y = torch.randn(10), torch.randn(10)
    times = []
    for _ in range(3):
        if name in CALLS:
            program = fresh(suite_overhead.three_ops) if name == "three_ops" else suite_overhead.many_parameters(10)
            compiled, arguments, keywords = broach.compile(program), (x, y), {}
        else:
            built = models.build(name)
            compiled, arguments, keywords = broach.compile(built.call), built.args, built.kwargs
        compiled(*arguments, **keywords)
        times.append(broach.explain(compiled, *arguments, **keywords).compile_seconds)
    for _ in range(40):
        compiled(*arguments, **keywords)
    return lambda: compiled(*arguments, **keywords), times


if __name__ == "__main__":
    sys.exit(main())
