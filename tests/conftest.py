"""What every Python test shares: graphs are verified after every step, and a bug of Broach that users would only be warned of
fails the test that met it, also where the program caught the exception."""

import os

os.environ.setdefault("BROACH_VERIFY", "1")

import pytest
import torch
from broach._native import _C


@pytest.fixture(autouse=True)
def _no_bugs():
    _C.take_bugs()
    yield
    bugs = _C.take_bugs()
    assert not bugs, "\n".join(bugs)


@pytest.fixture(scope="module", autouse=True)
def _settable():
    """torch's own test helpers, once a test module imports them, forbid to set a backend's flags as users do."""
    with getattr(torch.backends, "__allow_nonbracketed_mutation")():
        yield
