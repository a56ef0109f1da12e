"""How each operation and module of torch's test databases runs once compiled, recorded in a text file: one line a name, with its
element types by the way in which they run.

    native   generated kernels, routines and contractions, without a call of libtorch
    extern   with calls of libtorch's operations
    eager    not compiled
    fails    differs from eager as `op_db_expected.py` says

Of several samples the worst counts. A test fails where a cell is worse than recorded, where it is gone, and where an expected
failure passes. BROACH_TEST_RECORD=1 rewrites the lines of what was run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Iterable

import direct
import torch
from broach._native import _C

WAYS = (*direct.WAYS, "fails")  # from the best to the worst
VERSION = "2.13"
ALL = os.environ.get("BROACH_TEST_ALL") == "1"
RECORDS = os.environ.get("BROACH_TEST_RECORD") == "1"
SHORT = {
    torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.complex64: "c64",
    torch.int64: "i64", torch.int32: "i32", torch.int8: "i8", torch.uint8: "u8", torch.bool: "b1",
}  # fmt: skip

Cells = dict[str, str]  # the way, by element type


def why_not_compared() -> str:
    """Why this run has other ways than the recorded one; empty if it has the same."""
    if not torch.__version__.startswith(VERSION + "."):
        return f"the table is of torch {VERSION}: others take operations apart differently"
    if ALL:
        return "the table is of the samples that the bounded run draws"
    return "" if _C.has_onednn() else "the table is of runs with oneDNN, which was not found"


def cells(ran: Iterable[direct.Ran], failed: Iterable[torch.dtype] = ()) -> Cells:
    found: Cells = {}
    for dtype, way in [*((r.dtype, r.way) for r in ran), *((dtype, "fails") for dtype in failed)]:
        found[SHORT[dtype]] = max(way, found.get(SHORT[dtype], way), key=WAYS.index)
    return found


class Table:
    def __init__(self, file: str):
        self.path = Path(__file__).parent / file
        self.rows = self._read()
        self.found: dict[str, Cells] = {}
        self.better: list[str] = []

    def _read(self) -> dict[str, Cells]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return dict(self._parsed(line) for line in lines if line and not line.startswith("#"))

    @staticmethod
    def _parsed(line: str) -> tuple[str, Cells]:
        name, *groups = (part.split() for part in line.split("|"))
        return name[0], {code: way for way, *codes in groups for code in codes}

    @staticmethod
    def _line(name: str, row: Cells) -> str:
        codes = {way: [c for c in SHORT.values() if row.get(c) == way] for way in WAYS}
        return " | ".join([name, *(f"{way} {' '.join(those)}" for way, those in codes.items() if those)])

    def check(self, name: str, found: Cells, tried: Iterable[torch.dtype]) -> None:
        """Raises where what was found for the types that were tried is not what is recorded."""
        if RECORDS:
            kept = {code: way for code, way in self.rows.get(name, {}).items() if code not in {SHORT[t] for t in tried}}
            self.found[name] = {**kept, **found}
        if RECORDS or why_not_compared():
            return
        row = self.rows.get(name, {})
        problems = [p for t in tried if (p := self._problem(name, SHORT[t], row.get(SHORT[t]), found.get(SHORT[t])))]
        assert not problems, "; ".join(problems) + f" (in {self.path.name}, which BROACH_TEST_RECORD=1 rewrites if this is meant)"

    def _problem(self, name: str, code: str, recorded: str | None, now: str | None) -> str:
        if recorded == now:
            return ""
        if recorded is None or now is None:
            return f"{name} {code} is recorded as {recorded or 'not run'}, and now is {now or 'not run'}"
        if WAYS.index(now) > WAYS.index(recorded):
            return f"{name} {code} is recorded as {recorded}, and now is {now}"
        if recorded == "fails":
            return f"{name} {code} is recorded as an expected failure, and now is {now}"
        self.better.append(f"{name} {code} {now}, recorded as {recorded}")
        return ""

    def write(self) -> None:
        rows = {name: row for name, row in {**self._read(), **self.found}.items() if row}
        head = [f"# How samples run once compiled, by torch {VERSION}: table.py says what the words mean and how this file is made."]
        self.path.write_text("\n".join(head + [self._line(name, rows[name]) for name in sorted(rows)]) + "\n")


OP_DB = Table("op_db.txt")
MODULE_DB = Table("module_db.txt")


def finish() -> list[str]:
    """Writes what was recorded; lines for the report of the run."""
    out = []
    for table in (OP_DB, MODULE_DB):
        if table.found:
            table.write()
            out.append(f"{table.path.name}: {len(table.found)} lines written")
        if table.better:
            out += [f"{table.path.name} can be rewritten (BROACH_TEST_RECORD=1), these are better:", *table.better]
    return out
