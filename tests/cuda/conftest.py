"""Tests on a GPU. Without one they are skipped."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    here = Path(__file__).parent
    for item in items:
        if here in Path(item.fspath).parents:
            item.add_marker(pytest.mark.skip(reason="torch.cuda.is_available() is false: there is no GPU, or torch is built without CUDA"))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
