"""Small versions of the models in examples/ give eager's results as users call them, and with each graph pass left out."""

from __future__ import annotations

import os

import broach
import models
import pytest
import torch
from broach._native import _C

SMALL_LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
SMALL_BERT = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 128,
    "max_position_embeddings": 64,
}
SMALL = {
    "pointwise": {"rows": 16, "columns": 40},
    "mlp": {"batch": 4, "width": 48, "layers": 2},
    "resnet50": {"batch": 2, "size": 32, "embedding_size": 16, "hidden_sizes": [32, 64], "depths": [1, 2]},
    "vit": {
        "batch": 2,
        "size": 32,
        "patch_size": 8,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    "bert": {"batch": 2, "length": 12, **SMALL_BERT},
    "gpt2": {"batch": 2, "length": 12, "n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 128},
    "llama": {"batch": 2, "length": 12, **SMALL_LLAMA},
    "llama-token": SMALL_LLAMA,
    "llama-step": {"prompt": 8, "capacity": 16, **SMALL_LLAMA},
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Every pass and every other step that an option leaves out, alone and together.
WITHOUT = {
    **{name: {"disable_passes": [name]} for name in _C.pass_names()},
    "passes": {"disable_passes": _C.pass_names()},
    "freeze": {"freeze": False},
    "fuse": {"fuse": False},
    "lower": {"lower": False},
    "anything": {"disable_passes": _C.pass_names(), "freeze": False, "fuse": False},
}
ALL = os.environ.get("BROACH_TEST_ALL") == "1"
TURNS = [(w, list(SMALL)[(i + shift) % len(SMALL)], "fp32") for shift in (0, 4) for i, w in enumerate(WITHOUT)]
# All with each model and type, or two models each so that every model has a turn.
PAIRS = [(w, m, t) for w in WITHOUT for m in SMALL for t in DTYPES] if ALL else TURNS


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    broach._backend._functions.clear()
    yield
    torch._dynamo.reset()


def _call(program: models.Program, call):
    models.rewind(program)
    return call(*program.args, **program.kwargs)


def _agree(program: models.Program, dtype: torch.dtype, **options) -> None:
    want = _call(program, program.call)
    compiled = broach.compile(program.call, options=options)
    for _ in range(2):
        found = models.error(want, _call(program, compiled))
        assert found.relative <= models.tolerance(dtype), found
    _all_compiled()


def _all_compiled() -> None:
    stats = [module.stats() for module in broach._backend._functions]
    assert [reason for s in stats for reason in s["eager_reasons"]] == []
    assert any(s["compiled_calls"] for s in stats), "nothing was compiled"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SMALL)
@torch.no_grad()
def test_model(name, dtype):
    _agree(models.build(name, dtype=DTYPES[dtype], **SMALL[name]), DTYPES[dtype])


@pytest.mark.parametrize("without, name, dtype", PAIRS)
@torch.no_grad()
def test_without(without, name, dtype):
    _agree(models.build(name, dtype=DTYPES[dtype], **SMALL[name]), DTYPES[dtype], **WITHOUT[without])


@pytest.mark.parametrize("dtype", DTYPES)
@torch.no_grad()
def test_a_padded_mask(dtype):
    _agree(models.bert(batch=3, length=12, padded=True, dtype=DTYPES[dtype], **SMALL_BERT), DTYPES[dtype])


@torch.no_grad()
def test_a_mask_given_later_changes_the_answer():
    program = models.bert(batch=3, length=12, padded=True, **SMALL_BERT)
    compiled = broach.compile(program.call)
    full = torch.ones_like(program.kwargs["attention_mask"])
    for mask in (program.kwargs["attention_mask"], full, program.kwargs["attention_mask"]):
        want = program.call(*program.args, attention_mask=mask)
        assert models.error(want, compiled(*program.args, attention_mask=mask)).relative <= 1e-4


@torch.no_grad()
def test_a_dynamic_cache():
    program = models.build("llama-step", cache="dynamic", **SMALL["llama-step"])
    _agree(program, torch.float32)


@pytest.mark.parametrize("dynamic", [True, None], ids=str)
@pytest.mark.parametrize("name", ["mlp", "bert", "llama", "vit"])
@torch.no_grad()
def test_batches_of_several_sizes(name, dynamic):
    _sizes(name, [{"batch": n} for n in (2, 3, 4)], dynamic)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@torch.no_grad()
def test_sequences_of_several_lengths(name):
    _sizes(name, [{"length": n} for n in (12, 7, 9)], True)


def _sizes(name, settings, dynamic):
    programs = [models.build(name, **{**SMALL[name], **each}) for each in settings]
    model = programs[0].call
    compiled = broach.compile(model, dynamic=dynamic)
    for _ in range(2):
        for program in programs:
            want = model(*program.args, **program.kwargs)
            found = models.error(want, compiled(*program.args, **program.kwargs))
            if not found.relative <= models.tolerance(torch.float32):
                pytest.fail(f"{name} differs from eager: {found}")
    _all_compiled()
