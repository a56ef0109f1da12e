"""How much of the zoo is captured natively and equals eager: every model in a process of its own, several at once.

    python tests/python/zoo_report.py [--training [--dropout]] [--jobs 2] [--seconds 120] [--json FILE] [NAME ...]

A model is called with changed batch and length, a padded mask and one changed flag, and then once more with all of these. With
--training it is trained for some steps of changed sizes instead, without dropout unless that is asked for.
Prints one line a model and the shares; fails if a result differs, or if fewer of the models are native than there were.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import multiprocessing
import os
import sys
import time
import warnings
from multiprocessing.connection import Connection, wait
from typing import Any, Callable

import broach
import compared
import torch
import zoo
import zoo_training

RTOL, ATOL = 1e-3, 1e-4


def examine(name: str) -> dict[str, Any] | None:
    """What became of one model; None if it does not run eagerly."""
    entry = zoo.build(name)
    if entry is None:
        return None
    found: dict[str, Any] = {"name": name, "differs": [], "seconds": []}
    expected = []
    for call, more in zoo.calls():
        torch.manual_seed(1)
        began = time.perf_counter()
        expected.append(entry.model(**zoo.inputs(entry, *call), **more))
        found["eager_seconds"] = time.perf_counter() - began
    compiled = broach.compile(entry.model)
    for _ in range(2):
        for (call, more), want in zip(zoo.calls(), expected):
            torch.manual_seed(1)
            began = time.perf_counter()
            got = compiled(**zoo.inputs(entry, *call), **more)
            found["seconds"].append(round(time.perf_counter() - began, 4))
            if why := compared.difference(want, got, RTOL, ATOL):
                found["differs"].append(f"{call} {more}: {why}")
    told = compared.stats(compiled)
    for key in ("front", "captures", "compiled_calls", "reasons", "eager_reasons", "compile_seconds", "capture_seconds"):
        found[key] = told[key]
    found["programs"] = len(told["programs"])
    found["native"] = told["front"] == "native" and told["compiled_calls"] >= len(expected)
    return found


def examine_training(name: str, dropout: bool) -> dict[str, Any] | None:
    entry = zoo.build(name, dropout)
    with torch.enable_grad():
        return entry and zoo_training.train(entry)


def _child(name: str, examine: Callable, to_parent: Connection) -> None:
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 some models print
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    try:
        found = examine(name)
    except BaseException as e:  # noqa: BLE001 an error is a result
        found = {"name": name, "error": f"{type(e).__name__}: {' '.join(str(e).split())[:400]}"}
    to_parent.send(found)
    to_parent.close()


def examine_all(names: list[str], examine: Callable, jobs: int, seconds: float) -> list[dict[str, Any]]:
    """In processes that are forked from this one, which has imported everything and started no threads."""
    context = multiprocessing.get_context("fork")
    left, running, results = list(reversed(names)), {}, []
    while left or running:
        while left and len(running) < jobs:
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(name := left.pop(), examine, theirs))
            process.start()
            theirs.close()
            running[mine] = (process, name, time.monotonic() + seconds)
        ready = wait(list(running), timeout=1)
        for pipe, (process, name, deadline) in list(running.items()):
            if pipe in ready:
                try:
                    found = pipe.recv()
                except EOFError:
                    process.join()
                    found = {"name": name, "error": f"the process ended with {process.exitcode}"}
            elif time.monotonic() > deadline:
                process.kill()
                found = {"name": name, "error": f"took more than {seconds:.0f} s"}
            else:
                continue
            process.join()
            del running[pipe]
            if found:
                results.append(found)
                print(line(found), flush=True)
    return results


def line(found: dict[str, Any]) -> str:
    if "error" in found:
        return f"{found['name']:32} ERROR {found['error']}"
    verdict = "DIFFERS" if found["differs"] else "native" if found["native"] else "eager" if found["front"] == "native" else found["front"]
    why = "; ".join([*found["differs"][:1], *found["reasons"], *found["eager_reasons"]])[:300]
    times = " ".join(f"{s:.2f}" for s in found["seconds"])
    return f"{found['name']:32} {verdict:9} captures {found['captures']:2} programs {found['programs']:2} [{times}] {why}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*")
    options.add_argument("--training", action="store_true")
    options.add_argument("--dropout", action="store_true")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--seconds", type=float, default=120)
    options.add_argument("--json")
    given = options.parse_args()
    how = functools.partial(examine_training, dropout=given.dropout) if given.training else examine
    results = examine_all(given.names or zoo.names(), how, given.jobs, given.seconds)
    share = zoo_training.NATIVE_SHARE if given.training else zoo.NATIVE_SHARE
    equal = [r for r in results if "error" not in r and not r["differs"]]
    native = [r for r in equal if r["native"]]
    print(f"{len(results)} models run eagerly, {len(equal)} equal eager, {len(native)} natively captured ({len(native) / max(len(results), 1):.1%})")
    if given.json:
        with open(given.json, "w") as out:
            json.dump(results, out, indent=1)
    return 0 if len(equal) == len(results) and len(native) >= share * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
