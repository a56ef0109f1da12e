"""What every test of the libtorch side shares: a clock that ends a hanging test, a clean compiler, and the share report."""

import faulthandler
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import direct
import table

ALL = os.environ.get("BROACH_TEST_ALL") == "1"
# A test that takes this many seconds hangs: the process prints every thread's stack and exits.
LONGEST = 3600 if ALL else 300


@pytest.fixture(autouse=True)
def _clock():
    faulthandler.dump_traceback_later(LONGEST, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def pytest_terminal_summary(terminalreporter):
    """The shares, and in the file that BROACH_TEST_RANKS names, what to lower next."""
    for line in table.finish():
        terminalreporter.write_line(line)
    ranks = []
    for database in sorted({r.database for r in direct.RAN}):
        terminalreporter.section(f"{database}: how samples run once compiled")
        for line in direct.share_report(database):
            terminalreporter.write_line(line)
        ranks += [database, *direct.share_report(database), *direct.rank_report(database), ""]
    if ranks and (path := os.environ.get("BROACH_TEST_RANKS")):
        Path(path).write_text("\n".join(ranks))
