"""The comparison with the recorded tables fails where it has to."""

from __future__ import annotations

import pytest
import table
import torch
from direct import Ran

TYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool]


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(table, "RECORDS", False)
    monkeypatch.setattr(table, "why_not_compared", lambda: "")
    path = tmp_path / "some.txt"
    path.write_text("# a comment\nsome.op | native f32 | extern i64 | fails bf16\n")
    return table.Table(str(path))


def test_the_same_is_well(recorded):
    recorded.check("some.op", {"f32": "native", "i64": "extern", "bf16": "fails"}, TYPES)
    recorded.check("some.op", {"f32": "native"}, [torch.float32])  # no other type was tried
    assert not recorded.better


@pytest.mark.parametrize(
    "changed, words",
    [
        ({"f32": "extern"}, "f32 is recorded as native, and now is extern"),
        ({"f32": "eager"}, "f32 is recorded as native, and now is eager"),
        ({"i64": "eager"}, "i64 is recorded as extern, and now is eager"),
        ({"f32": "fails"}, "f32 is recorded as native, and now is fails"),
        ({"f32": None}, "f32 is recorded as native, and now is not run"),
        ({"b1": "native"}, "b1 is recorded as not run, and now is native"),
        ({"bf16": "native"}, "bf16 is recorded as an expected failure, and now is native"),
    ],
    ids=str,
)
def test_worse_ways_and_failures_that_pass(recorded, changed, words):
    found = {"f32": "native", "i64": "extern", "bf16": "fails", **changed}
    with pytest.raises(AssertionError, match=words):
        recorded.check("some.op", {code: way for code, way in found.items() if way}, TYPES)


def test_an_operation_without_a_line(recorded):
    with pytest.raises(AssertionError, match="other.op f32 is recorded as not run, and now is native"):
        recorded.check("other.op", {"f32": "native"}, TYPES)


def test_better_ways_are_told(recorded):
    recorded.check("some.op", {"f32": "native", "i64": "native", "bf16": "fails"}, TYPES)
    assert recorded.better == ["some.op i64 native, recorded as extern"]


def test_lines_of_what_was_run_are_rewritten(recorded, monkeypatch):
    monkeypatch.setattr(table, "RECORDS", True)
    monkeypatch.setattr(table, "why_not_compared", lambda: "the table is being recorded")
    recorded.check("some.op", {"f32": "extern"}, [torch.float32])
    recorded.check("a", {"i64": "eager"}, TYPES)
    recorded.write()
    lines = recorded.path.read_text().splitlines()
    assert lines[1:] == ["a | eager i64", "some.op | extern f32 i64 | fails bf16"]


def test_the_worst_sample_counts():
    ran = [Ran("op_db", "g", "n", torch.float32, way, ()) for way in ("native", "eager", "extern")]
    assert table.cells(ran) == {"f32": "eager"}
    assert table.cells(ran, [torch.float32]) == {"f32": "fails"}
