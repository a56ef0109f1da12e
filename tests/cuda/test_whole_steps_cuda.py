"""Whole training steps on a GPU; its optimizers work on lists of tensors."""

from __future__ import annotations

import pytest
from whole_steps import MODELS, OPTIMIZERS, STEPS, Pair, usual


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("step", STEPS)
def test_steps_as_eager(step, optimizer):
    pair = Pair(STEPS[step], optimizer=OPTIMIZERS[optimizer], device="cuda", options={"capture": "native"})
    for i in range(8):
        pair.run(i)
    seen = pair.compiled.stats()
    assert seen["front"] == "native" and seen["eager_calls"] == 0, seen["reasons"]


@pytest.mark.parametrize("model", MODELS)
def test_models(model):
    pair = Pair(usual, MODELS[model], device="cuda")
    for i in range(8):
        pair.run(i)
