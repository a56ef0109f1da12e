"""A part of each catalogue; BROACH_TEST_ALL=1 runs all of them, by both ways of compiling, for half an hour."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from accepted import KNOWN

HERE = Path(__file__).parent
ALL = os.environ.get("BROACH_TEST_ALL") == "1"
FILES = "arguments combinations networks pointwise reductions views situations situations_more".split()


@pytest.mark.parametrize("name", FILES)
def test_answers_are_eagers(name):
    args = ["--front=broach", "--front=torch"] if ALL else ["--front=broach", "--part=25"]
    ran = subprocess.run([sys.executable, f"{name}.py", *args], cwd=HERE, capture_output=True, text=True, timeout=7200 if ALL else 300)
    assert "\nDONE" in ran.stdout, ran.stdout[-500:] + ran.stderr[-2000:]
    known = tuple(KNOWN.get(name, {}))
    different = [line for line in ran.stdout.splitlines() if line.startswith("DIFF") and not line[5:].startswith(known or ("\n",))]
    assert not different, "\n".join(different)
