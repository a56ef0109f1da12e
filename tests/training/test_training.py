"""Runs each file of programs in a process of its own: they set global hooks, default types and threads."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
FILES = sorted(p.stem for p in HERE.glob("*.py") if p.read_text().rstrip().endswith("main()") and p.stem != "harness")


@pytest.mark.parametrize("name", FILES)
def test_trains_as_eager(name):
    if name == "transformers_models":
        pytest.importorskip("transformers")
    ran = subprocess.run(
        [sys.executable, HERE / f"{name}.py"], capture_output=True, text=True, timeout=900, env={**os.environ, "PYTHONWARNINGS": "ignore"}
    )
    lines = ran.stdout.splitlines()
    failed = [line for line in lines if not line.startswith("ok ")]
    assert ran.returncode == 0 and lines and lines[-1] == "failed 0", "\n".join([*failed, ran.stderr[-3000:]])
    assert sum(line.startswith("ok ") for line in lines) > 4
