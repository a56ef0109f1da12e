"""Gradients of programs with sizes that depend on data, on a GPU."""

from __future__ import annotations

import broach
import pytest
import torch
from losses_of_data import PROGRAMS, trained


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_compiled(name):
    program, calls = PROGRAMS[name], 10
    compiled = broach.compile(lambda *args: program(*args))
    for call in range(calls):
        torch.testing.assert_close(trained(compiled, call, "cuda"), trained(program, call, "cuda"), rtol=1e-3, atol=1e-3)
    assert compiled.stats()["compiled_calls"] >= 3, compiled.stats()["eager_reasons"]
