"""Models of transformers from small configurations in training: loss, every gradient and the buffers equal eager's over steps with changed
batch, length and mask, and what runs is compiled natively.

Measured with transformers 5.23 (`zoo_report.py --training`), before programs that go by values were compiled: of the 140 models from the
first by name to `nanochat` that train eagerly 130 are native. Five of the others go by values that they compute, one by sizes, one has a
function of its own with gradients, one writes to its state, one returns two windows of memory that is no result itself.
"""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
import zoo
import zoo_training

ALL = os.environ.get("BROACH_TEST_ALL") == "1"
# Of every family one: encoders, decoders, both, mixtures of experts, images with a row of a result beside it.
SOME = ["bert", "dinov2", "flex_olmo", "gpt2", "llama", "t5", "vit"]
WITH_DROPOUT = ["bert", "gpt2"]
native: dict[str, bool] = {}  # by model that ran

pytestmark = pytest.mark.usefixtures("with_gradients")


@pytest.mark.parametrize("name", zoo.names() if ALL else SOME)
def test_training(name):
    entry = zoo.build(name, dropout=False)
    if entry is None:
        assert name not in SOME, f"{name} used to build"
        pytest.skip("does not build from a small configuration, or takes other inputs than ids or pixels")
    if name == "fastspeech2_conformer":
        pytest.skip("wants labels in training")
    found = zoo_training.train(entry)
    assert not found["differs"], found["differs"]
    native[name] = found["native"]
    assert native[name] or name not in SOME, (found["reasons"], found["eager_reasons"])


@pytest.mark.parametrize("name", WITH_DROPOUT)
def test_training_with_dropout(name):
    found = zoo_training.train(zoo.build(name))
    assert not found["differs"] and found["native"], (found["differs"], found["reasons"], found["eager_reasons"])


@pytest.mark.skipif(not ALL, reason="each of the models of the bounded run is native")
def test_native_share():
    others = [name for name, yes in native.items() if not yes]
    assert len(native) > len(SOME), "run together with the models"
    assert len(others) <= (1 - zoo_training.NATIVE_SHARE) * len(native), others
