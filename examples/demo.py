"""Compiles real models, checks each against eager and prints what was gained.

    python examples/demo.py [--models resnet50,bert] [--dtype fp32|bf16] [--quick]

Exits with 1 if a compiled model's answer is wrong.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import traceback
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

sys.path.insert(0, str(Path(__file__).resolve().parent))

import models
import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

MODELS = ["mlp", "resnet50", "vit", "bert", "gpt2", "llama"]
PLAIN_WIDTH = 100  # of a log file, which has no width of its own


@dataclass
class Row:
    name: str
    eager_ms: float = float("nan")
    broach_ms: float = float("nan")
    first_call_s: float = float("nan")
    error: models.Error | None = None
    kernels: int | None = None
    externs: list[tuple[str, int]] | None = None
    problem: str = ""


def main() -> int:
    options = arguments()
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH, no_color=True, highlight=False)
    import broach

    torch.set_grad_enabled(False)
    dtype = models.DTYPES[options.dtype]
    console.print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.dtype}")
    with reporter(console, len(options.models) * len(STAGES)) as report:
        rows = [measure(broach, name, dtype, 3 if options.quick else 11, report) for name in options.models]
    limit = models.tolerance(dtype)
    wrong = [row for row in rows if row.problem or row.error is None or not row.error.relative <= limit]
    console.print(table(rows, wrong))
    console.print(f"\nThe relative error, over the largest value of eager's result, may be {limit:g} in {options.dtype}.")
    for row in rows:
        if row.externs:
            console.print(f"{row.name} calls ATen for {', '.join(f'{name} ({count})' for name, count in row.externs)}")
    for row in wrong:
        console.print(f"{row.name}: {row.problem or 'the answer differs from eager'}", markup=False)
    return 1 if wrong else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(models.BUILDERS)} (default %(default)s)")
    parser.add_argument("--dtype", default="fp32", choices=models.DTYPES)
    parser.add_argument("--quick", action="store_true", help="three timed calls of each instead of eleven")
    options = parser.parse_args()
    options.models = [name.strip() for name in options.models.split(",") if name.strip()]
    unknown = set(options.models) - set(models.BUILDERS)
    if unknown:
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(models.BUILDERS)}")
    return options


Report = Callable[[str, str], None]
STAGES = ("building", "running eager", "compiling", "measuring")


@contextmanager
def reporter(console: Console, steps: int) -> Iterator[Report]:
    """Says which model is at which stage: a bar on a terminal, one line a stage otherwise. The bar moves only between stages,
    since a thread that redraws it would take time from what is measured."""
    if not console.is_terminal:
        yield lambda name, stage: console.print(f"{name}: {stage}")
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        bar = progress.add_task("", total=steps)
        started = 0

        def show(name: str, stage: str) -> None:
            nonlocal started
            progress.update(bar, description=f"{name}: {stage}", completed=started, refresh=True)
            started += 1

        yield show


def measure(broach: Any, name: str, dtype: torch.dtype, rounds: int, report: Report) -> Row:
    title = models.TITLES[name]
    row = Row(title)
    try:
        report(title, STAGES[0])
        program = models.build(name, dtype=dtype)
        report(title, STAGES[1])
        timed(program, program.call)
        _, expected = timed(program, program.call)
        report(title, STAGES[2])
        compiled = broach.compile(program.call)
        row.first_call_s, _ = timed(program, compiled)
        _, actual = timed(program, compiled)  # the first call gives what eager computed while it was recorded
        row.error = models.error(expected, actual)
        report(title, STAGES[3])
        row.eager_ms, row.broach_ms = race(program, compiled, rounds)
        models.rewind(program)
        explained = broach.explain(compiled, *program.args, **program.kwargs)
        row.kernels, row.externs = explained.kernels, explained.externs
    except Exception as problem:
        traceback.print_exc(file=sys.stderr)
        row.problem = f"{type(problem).__name__}: {problem}"
    gc.collect()
    return row


def timed(program: models.Program, call: Callable) -> tuple[float, Any]:
    models.rewind(program)
    start = time.perf_counter()
    result = call(*program.args, **program.kwargs)
    return time.perf_counter() - start, result


def race(program: models.Program, compiled: Callable, rounds: int) -> tuple[float, float]:
    """Medians in ms of eager and compiled calls that take turns."""
    timed(program, compiled)
    times = [(timed(program, program.call)[0], timed(program, compiled)[0]) for _ in range(rounds)]
    return tuple(statistics.median(column) * 1e3 for column in zip(*times))


def table(rows: list[Row], wrong: list[Row]) -> Table:
    result = Table("model", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in ("eager ms", "broach ms", "speed up", "first call_s", "max error", "relative error", "kernels", "externs"):
        result.add_column(heading.replace(" ", "\n").replace("_", " "), justify="right", no_wrap=True)
    for row in rows:
        result.add_row(
            row.name,
            number(row.eager_ms, "{:.2f}"),
            number(row.broach_ms, "{:.2f}"),
            number(row.eager_ms / row.broach_ms, "{:.2f}x"),
            number(row.first_call_s, "{:.2f}"),
            *(f"{value:.1e}" for value in row.error or (float("nan"), float("nan"))),
            "-" if row.kernels is None else str(row.kernels),
            "-" if row.externs is None else str(sum(count for _, count in row.externs)),
            style="red" if row in wrong else "",
        )
    return result


def number(value: float, form: str) -> str:
    return form.format(value) if value == value else "-"


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=FutureWarning)
    sys.exit(main())
