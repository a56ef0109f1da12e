"""The dispatch keys of a capture belong to torch: another library may have taken one before Broach is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

TAKE = """
import warnings
import torch
library = torch.library.Library("_", "IMPL")
library.fallback(torch.library.fallthrough_kernel, {key!r})
kernels = torch.library.Library("aten", "IMPL")
if {kernel!r}:
    kernels.impl({kernel!r}, torch.library.fallthrough_kernel, {key!r})
with warnings.catch_warnings(record=True) as shown:
    warnings.simplefilter("always")
    import broach
texts = [str(w.message) for w in shown if w.category is RuntimeWarning]
"""
RUN = """
@broach.compile
def program(x, layer):
    return torch.nn.functional.max_pool1d(layer(x), 2) * 2

with torch.no_grad():
    layer, x = torch.nn.Linear(4, 6), torch.randn(3, 4)
    for _ in range(3):
        want = torch.nn.functional.max_pool1d(layer(x), 2) * 2
        assert torch.allclose(program(x, layer), want, atol=2e-6), want  # a sum near zero is off by what its terms are rounded by
"""
REFUSED = """
explained = broach.explain(lambda x: x + 1, torch.ones(3))
assert explained.front == "eager", explained.front
assert any("has taken the dispatch key Fake" in why for why in explained.eager_reasons), explained.eager_reasons
try:
    broach.compile(lambda x: x + 1, options={"capture": "native"})(torch.ones(3))
except broach.CaptureError as error:
    assert "operations cannot be recorded" in str(error), error
else:
    raise AssertionError("the first call did not raise")
assert len(texts) == 1 and "has taken the dispatch key Fake, so every program runs eagerly" in texts[0], texts
"""
SECOND = """
assert not texts, texts
assert broach.explain(lambda x: x + 1, torch.ones(3)).front == "native"
"""


def _run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]


def test_programs_run_eagerly_where_the_key_that_records_is_taken():
    _run(TAKE.format(key="Fake", kernel="") + RUN + REFUSED)


def test_operations_that_are_registered_for_it_take_it_too():
    program = TAKE.replace("library.fallback", "(lambda *_: None)")
    _run(program.format(key="Fake", kernel="add.Tensor") + RUN + REFUSED)


@pytest.mark.parametrize("front", ["native", "dynamo"])
def test_the_key_for_composite_operations_has_a_second(front):
    run = RUN.replace("@broach.compile", f"@broach.compile(options={{'capture': {front!r}}})")
    _run(TAKE.format(key="TESTING_ONLY_GenericMode", kernel="") + run + SECOND)


def test_what_torch_remembers_during_a_capture_is_its_own():
    """`Tensor.grad` is another while a program is captured; torch makes a table of it once, which its `_dynamo` reads as it is imported."""
    _run("""
import broach, torch

@broach.compile
def program(x):
    torch.overrides.get_default_nowrap_functions()
    return x * 2

program(torch.ones(3))
assert torch.Tensor.grad.__get__ in torch.overrides.get_default_nowrap_functions()
""")
