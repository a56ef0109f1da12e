"""Models of transformers built from small configurations: every class that builds and runs eagerly from a shrunken default
configuration, found by trying, never by a list of what works."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import inspect
import warnings
from typing import Any, Iterator, NamedTuple

import torch

# What a field of a configuration becomes, by its name.
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "dim": 32,
    "embed_dim": 32,
    "embedding_size": 32,
    "emb_dim": 32,
    "intermediate_size": 48,
    "ffn_dim": 48,
    "n_inner": 48,
    "d_ff": 48,
    "hidden_dim": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "head_dim": 8,
    "d_kv": 8,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "image_size": 32,
    "patch_size": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "type_vocab_size": 2,
    "chunk_size": 16,
    "mamba_chunk_size": 16,
    "mamba_d_state": 16,
    "ssm_state_size": 16,
}
# Models whose defaults stay too large or that need inputs of a kind of their own.
LARGEST = 20_000_000
# Of the models that run eagerly, those that are captured natively and then run what was compiled.
NATIVE_SHARE = 0.97


class Entry(NamedTuple):
    name: str
    model: torch.nn.Module
    kind: str  # "text" or "image"


def names() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def _without_dropout(config: Any) -> None:
    from transformers import PretrainedConfig

    for field, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            _without_dropout(value)
        elif "drop" in field and isinstance(value, float):
            setattr(config, field, 0.0)


def build(name: str, dropout: bool = True) -> Entry | None:
    """The model, or None if it does not build from its defaults or does not run with plain ids or pixels."""
    from transformers import AutoConfig, AutoModel

    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            default = AutoConfig.for_model(name)
            given: dict[str, Any] = {field: value for field, value in SMALL.items() if type(getattr(default, field, None)) is int}
            if isinstance(getattr(default, "image_size", None), (list, tuple)):
                given["image_size"] = [64, 64]
            config = AutoConfig.for_model(name, **given)
            if not dropout:
                _without_dropout(config)
            with torch.device("meta"):
                size = sum(p.numel() for p in AutoModel.from_config(config).parameters())
            if size > LARGEST:
                return None
            model = AutoModel.from_config(config).eval()
            parameters = inspect.signature(model.forward).parameters
            kind = "text" if "input_ids" in parameters else "image" if "pixel_values" in parameters else ""
            if not kind:
                return None
            entry = Entry(name, model, kind)
            with torch.no_grad():
                model(**inputs(entry, 2, 12))
            return entry
    except Exception:  # noqa: BLE001 whatever does not run eagerly is no case for a compiler
        return None


def inputs(entry: Entry, batch: int, length: int, padded: bool = False) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(batch * 100 + length)
    if entry.kind == "image":
        config = entry.model.config
        size = getattr(config, "image_size", 32)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        return {"pixel_values": torch.randn(batch, getattr(config, "num_channels", 3), height, width, generator=generator)}
    ids = torch.randint(3, 90, (batch, length), generator=generator)
    given: dict[str, Any] = {"input_ids": ids}
    parameters = inspect.signature(entry.model.forward).parameters
    if "decoder_input_ids" in parameters:
        given["decoder_input_ids"] = ids[:, : length // 2].clone()
    if padded and "attention_mask" in parameters:
        ends = (length - 2 * torch.arange(batch)).clamp(min=1)
        given["attention_mask"] = (torch.arange(length) < ends[:, None]).long()
    return given


def calls() -> Iterator[tuple[tuple, dict[str, Any]]]:
    """Arguments of `inputs` and further ones of the model: batch and length change, the mask is padded, a flag changes."""
    yield (2, 12), {}
    yield (3, 9), {}
    yield (3, 10, True), {}
    yield (2, 12), {"output_hidden_states": True}
    yield (2, 12), {}  # captured again: the flag has made the library install hooks, for good
    yield (2, 12), {}
