"""What every test of the Python front shares: a clock that ends a hanging test, seeds, no gradients, quiet warnings, and a
clean Dynamo."""

import faulthandler
import os
import sys
import warnings

import pytest
import torch

# A test that takes this many seconds hangs: the process prints every thread's stack and exits.
LONGEST = 7200 if os.environ.get("BROACH_TEST_ALL") == "1" else 300


@pytest.fixture(autouse=True)
def _clock():
    faulthandler.dump_traceback_later(LONGEST, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.fixture
def with_gradients(_no_grad):
    """For the whole file: `pytestmark = pytest.mark.usefixtures("with_gradients")`."""
    with torch.enable_grad():
        yield


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
