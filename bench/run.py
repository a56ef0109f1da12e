"""Measures Broach against eager and Inductor.

    python bench/run.py                          all suites
    python bench/run.py models --dtype bf16      one suite; `python bench/run.py models --help` lists its options

Every job runs in a process of its own. Tables go to the terminal, samples as JSON to bench/results/. What fails shows as
"-", with the reason below the table and in the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import measure
import suite_bound
import suite_compile
import suite_kernels
import suite_memory
import suite_models
import suite_overhead
import suite_peers
import suite_settle
import suite_steps
import suite_threads
import suite_training

SUITES = {
    "models": suite_models,
    "peers": suite_peers,
    "training": suite_training,
    "steps": suite_steps,
    "threads": suite_threads,
    "settle": suite_settle,
    "overhead": suite_overhead,
    "kernels": suite_kernels,
    "compile": suite_compile,
    "memory": suite_memory,
    "bound": suite_bound,
}
RESULTS = measure.ROOT / "bench" / "results"


def main() -> int:
    if sys.argv[1:2] == ["--job"]:
        return child(*sys.argv[2:])
    chosen = arguments()
    facts = measure.machine()
    print(measure.describe(facts), flush=True)
    if facts["load"] > facts["cores"] / 4:
        print("The machine is busy with something else: its figures will not repeat.", flush=True)
    names = list(SUITES) if chosen.suite is None else [chosen.suite]
    for name in names:
        suite_options = chosen if chosen.suite else default_options(name)
        saved = RESULTS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
        results = run_suite(name, suite_options, lambda done: save(saved, name, facts, done))
        show(SUITES[name].tables(results), chosen.markdown)
        show_failures(results)
        print(f"\nsamples: {saved.relative_to(measure.ROOT)}", flush=True)
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="tables in Markdown")
    suites = parser.add_subparsers(dest="suite")
    for name, suite in SUITES.items():
        described = suites.add_parser(name, help=suite.__doc__.splitlines()[0], description=suite.__doc__)
        described.add_argument("--markdown", action="store_true", default=argparse.SUPPRESS, help="tables in Markdown")
        described.add_argument("--timeout", type=float, default=1800, help="seconds for one process (default %(default)s)")
        suite.options(described)
    return parser.parse_args()


def default_options(name: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=1800)
    SUITES[name].options(parser)
    return parser.parse_args([])


def run_suite(name: str, options: argparse.Namespace, keep: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    """Results of all jobs; `keep` gets those that are there whenever one is done, so that whoever stops a suite has them."""
    jobs = SUITES[name].jobs(options)
    at_once = getattr(options, "at_once", None)
    workers = 1 if at_once is None else at_once or len(jobs)
    awaited = len(jobs) if 1 < workers and workers >= len(jobs) else 0
    results: dict[int, dict[str, Any]] = {}
    lock = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="broach-bench-") as folder, ThreadPoolExecutor(workers) as pool:

        def one(number: int, job: dict[str, Any]) -> None:
            result = {**job, **run_job(name, job, Path(folder), number, options.timeout, beside(folder, number, workers, awaited))}
            if workers > 1:
                result["first_s"] = {}
                (Path(folder) / "turns" / f"ready-{number}").touch()  # nobody waits for one that broke
            with lock:
                results[number] = result
                print(f"[{len(results)}/{len(jobs)}] {name} {told(result)}", file=sys.stderr, flush=True)
                keep([results[n] for n in sorted(results)])

        list(pool.map(one, range(1, len(jobs) + 1), jobs))
    return [results[n] for n in sorted(results)]


def told(result: dict[str, Any]) -> str:
    label = " ".join(value for key, value in result.items() if isinstance(value, str) and key != "what")
    samples = result.get("samples")
    ms = {name: measure.median(s, 1e3) for name, s in samples.items()} if isinstance(samples, dict) else {}
    return label + "".join(f", {name} {value:.3f} ms" for name, value in ms.items() if isinstance(value, float))


def beside(folder: str, number: int, workers: int, awaited: int) -> dict[str, str]:
    """What a job is told that runs beside others: `workers` are compiled at a time, and one is measured, after `awaited` are compiled.
    This saves most of the time but says nothing of first calls."""
    if workers == 1:
        return {}
    turns = Path(folder) / "turns"
    turns.mkdir(exist_ok=True)
    compilers = str(max(2, (os.cpu_count() or 1) // workers))
    return {measure.TURNS: str(turns), measure.TURNS + "_OF": f"{number}/{awaited}", "TORCHINDUCTOR_COMPILE_THREADS": compilers}


def run_job(name: str, job: dict[str, Any], folder: Path, number: int, timeout: float, given: dict[str, str]) -> dict[str, Any]:
    cache = folder / "cache" / job.get("cache", str(number))
    answer, log = folder / f"{number}.json", folder / f"{number}.log"
    environment = {
        **os.environ,
        **job.get("environment", {}),
        **given,
        "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "BROACH_CACHE_DIR": str(cache / "broach"),
    }
    command = [sys.executable, __file__, "--job", name, json.dumps(job), str(answer)]
    start = time.perf_counter()
    with log.open("w") as output:
        try:
            subprocess.run(command, stdout=output, stderr=output, env=environment, timeout=timeout, check=True)
            return {**json.loads(answer.read_text()), "process_s": time.perf_counter() - start}
        except (subprocess.SubprocessError, OSError, ValueError) as problem:
            said = log.read_text(errors="replace").strip() or str(problem)
            return {"failed": {"process": said.splitlines()[-1][:2000]}, "said": said[-8000:], "process_s": time.perf_counter() - start}


def child(name: str, job: str, answer: str) -> int:
    Path(answer).write_text(json.dumps(SUITES[name].run(json.loads(job))))
    return 0


def save(path: Path, name: str, facts: dict[str, Any], results: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"suite": name, "machine": facts, "results": results}, indent=1))


def show(tables: list[measure.Table], markdown: bool) -> None:
    for table in tables:
        print()
        if markdown:
            print(f"{table.title}\n")
            for row in (table.headings, ["---"] * len(table.headings), *table.rows):
                print(f"| {' | '.join(row)} |")
        else:
            show_plainly(table)


def show_plainly(table: measure.Table) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=160, no_color=True, highlight=False)
    drawn = Table(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for position, heading in enumerate(table.headings):
        drawn.add_column(heading, justify="right" if position else "left", no_wrap=not position)
    for row in table.rows:
        drawn.add_row(*row)
    console.print(drawn)


def show_failures(results: list[dict[str, Any]]) -> None:
    for result in results:
        label = " ".join(str(result[key]) for key in ("model", "models", "kernel", "size", "dtype", "threads", "variant") if key in result)
        for name, reason in result.get("failed", {}).items():
            print(f"failed: {label} {name}: {reason.splitlines()[0]}")


if __name__ == "__main__":
    sys.exit(main())
