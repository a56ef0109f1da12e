"""Real models with random weights, built from their public configurations: what the demo, the benchmarks and the tests run.

A builder gives a Program: a callable in eval mode and one set of arguments for it. Nothing is downloaded, and the same seed
gives the same program everywhere.
"""

from __future__ import annotations

import os
from typing import Any, Callable, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree


class Program(NamedTuple):
    call: Callable[..., Any]
    args: tuple
    kwargs: dict[str, Any]


def pointwise(rows: int = 2048, columns: int = 1024, dtype: torch.dtype = torch.float32) -> Program:
    torch.manual_seed(0)

    def chain(x, y):
        return torch.softmax(F.gelu(x * y + 1) * torch.tanh(x) - torch.sigmoid(y), dim=-1)

    return Program(chain, (torch.randn(rows, columns, dtype=dtype), torch.randn(rows, columns, dtype=dtype)), {})


def mlp(batch: int = 64, width: int = 512, layers: int = 8, dtype: torch.dtype = torch.float32) -> Program:
    torch.manual_seed(0)
    model = nn.Sequential(
        *(block for _ in range(layers) for block in (nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()))
    )
    return Program(prepared(model, dtype), (torch.randn(batch, width, dtype=dtype),), {})


def resnet50(batch: int = 4, size: int = 224, dtype: torch.dtype = torch.float32, **config) -> Program:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000, **config))
    return Program(prepared(model, dtype), (torch.randn(batch, 3, size, size, dtype=dtype),), {})


def vit(batch: int = 4, size: int = 224, dtype: torch.dtype = torch.float32, **config) -> Program:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(num_labels=1000, image_size=size, **config))
    return Program(prepared(model, dtype), (torch.randn(batch, 3, size, size, dtype=dtype),), {})


def bert(batch: int = 4, length: int = 128, dtype: torch.dtype = torch.float32, padded: bool = False, **config) -> Program:
    """With `padded`, an attention mask in which each row ends two tokens before the row above it."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    settings = BertConfig(**config)
    model = BertModel(settings)
    ids = torch.randint(settings.vocab_size, (batch, length))
    kwargs = {}
    if padded:
        ends = (length - 2 * torch.arange(batch)).clamp(min=1)
        kwargs["attention_mask"] = (torch.arange(length) < ends[:, None]).long()
    return Program(prepared(model, dtype), (ids,), kwargs)


def gpt2(batch: int = 1, length: int = 256, dtype: torch.dtype = torch.float32, **config) -> Program:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    settings = GPT2Config(**{"use_cache": False, **config})
    model = GPT2LMHeadModel(settings)
    return Program(prepared(model, dtype), (torch.randint(settings.vocab_size, (batch, length)),), {})


def llama(
    batch: int = 1,
    length: int = 64,
    dtype: torch.dtype = torch.float32,
    cache: str | None = None,
    prompt: int = 64,
    capacity: int = 128,
    **config,
) -> Program:
    """Twelve layers, 1024 wide. With `cache` "static" or "dynamic", the step after a prompt of `prompt` tokens: every call
    writes the cache, so call `rewind` before the next one."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings = LlamaConfig(
        **{
            "hidden_size": 1024,
            "intermediate_size": 2816,
            "num_hidden_layers": 12,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "use_cache": cache is not None,
            **config,
        }
    )
    model = prepared(LlamaForCausalLM(settings), dtype)
    ids = torch.randint(settings.vocab_size, (batch, length))
    if cache is None:
        return Program(model, (ids,), {})
    past = _filled_cache(model, settings, cache, batch, prompt, capacity)
    positions = torch.arange(prompt, prompt + length).expand(batch, length)
    return Program(model, (ids,), {"past_key_values": past, "position_ids": positions})


def llama_token(batch: int = 1, dtype: torch.dtype = torch.float32, **config) -> Program:
    return llama(batch, 1, dtype, **config)


def llama_step(batch: int = 1, dtype: torch.dtype = torch.float32, cache: str = "static", **config) -> Program:
    return llama(batch, 1, dtype, cache, **config)


def unet(
    batch: int = 1, size: int = 32, text: int = 77, dtype: torch.dtype = torch.float32, **config
) -> Program:
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    settings = {"block_out_channels": (64, 128, 256, 256), "cross_attention_dim": 256, **config}
    model = UNet2DConditionModel(sample_size=size, **settings)
    sample = torch.randn(batch, 4, size, size, dtype=dtype)
    states = torch.randn(batch, text, settings["cross_attention_dim"], dtype=dtype)
    return Program(prepared(model, dtype), (sample, torch.tensor(10), states), {})


def dcgan(batch: int = 64, width: int = 64, latent: int = 100, dtype: torch.dtype = torch.float32) -> Program:
    """The generator: transposed convolutions from a vector to an image of 64x64."""
    torch.manual_seed(0)
    layers, channels = [], latent
    for step, wide in enumerate((8 * width, 4 * width, 2 * width, width)):
        stride, padding = (1, 0) if step == 0 else (2, 1)
        layers += [nn.ConvTranspose2d(channels, wide, 4, stride, padding, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
        channels = wide
    model = nn.Sequential(*layers, nn.ConvTranspose2d(channels, 3, 4, 2, 1, bias=False), nn.Tanh())
    return Program(prepared(model, dtype), (torch.randn(batch, latent, 1, 1, dtype=dtype),), {})


BUILDERS: dict[str, Callable[..., Program]] = {
    "pointwise": pointwise,
    "mlp": mlp,
    "resnet50": resnet50,
    "vit": vit,
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "llama-token": llama_token,
    "llama-step": llama_step,
    "unet": unet,
    "dcgan": dcgan,
}
TITLES = {
    "pointwise": "pointwise 2Kx1K",
    "mlp": "MLP 8x512 b64",
    "resnet50": "ResNet-50 b4",
    "vit": "ViT-B/16 b4",
    "bert": "BERT-base 4x128",
    "gpt2": "GPT-2 1x256",
    "llama": "Llama 1x64",
    "llama-token": "Llama 1 token",
    "llama-step": "Llama step at 64",
    "unet": "UNet 1x4x32x32",
    "dcgan": "DCGAN generator b64",
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def build(name: str, **parameters) -> Program:
    return BUILDERS[name](**parameters)


def rewind(program: Program) -> None:
    """Puts a key-value cache among the arguments back to the length it had when the program was built."""
    past = program.kwargs.get("past_key_values")
    if past is None:
        return
    length = int(program.kwargs["position_ids"][0, 0])
    for layer in past.layers:
        if isinstance(getattr(layer, "cumulative_length", None), torch.Tensor):
            layer.cumulative_length.fill_(length)
        else:
            layer.crop(length - layer.get_seq_length())


class Error(NamedTuple):
    """`relative` is the largest difference in a result tensor over the largest magnitude in eager's; the worst tensor counts."""

    absolute: float
    relative: float


def error(expected: Any, actual: Any) -> Error:
    """Compares two results of one program. Raises ValueError where structure, shape or dtype differ."""
    wanted, found = _tensors(expected), _tensors(actual)
    if len(wanted) != len(found):
        raise ValueError(f"{len(found)} tensors in the result, eager has {len(wanted)}")
    worst = Error(0.0, 0.0)
    for want, have in zip(wanted, found):
        if want.shape != have.shape or want.dtype != have.dtype:
            raise ValueError(f"{have.dtype} {tuple(have.shape)} in the result, eager has {want.dtype} {tuple(want.shape)}")
        one = _error(want.detach().double(), have.detach().double())
        worst = Error(max(worst.absolute, one.absolute), max(worst.relative, one.relative))
    return worst


def tolerance(dtype: torch.dtype) -> float:
    """The largest relative error that another order of summation explains in a model of this depth."""
    return {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}[dtype]


def _error(want: torch.Tensor, have: torch.Tensor) -> Error:
    if want.numel() == 0 or torch.equal(want, have):
        return Error(0.0, 0.0)
    gap = (want - have).abs()
    gap[(want == have) | (want.isnan() & have.isnan())] = 0
    gap = gap.nan_to_num(nan=float("inf"))
    largest = want.nan_to_num(0, 0, 0).abs().max().item()
    absolute = gap.max().item()
    return Error(absolute, absolute / largest if largest else absolute)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def prepared(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Fresh models have constant biases, scales and running statistics, which would hide one that a compiler drops."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point() and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all()):
                tensor.add_(torch.randn_like(tensor), alpha=0.05)
    return model.eval().to(dtype)


def _filled_cache(model: nn.Module, settings: Any, kind: str, batch: int, prompt: int, capacity: int) -> Any:
    from transformers import DynamicCache, StaticCache

    past = DynamicCache(config=settings) if kind == "dynamic" else StaticCache(config=settings, max_cache_len=capacity)
    with torch.no_grad():
        model(torch.randint(settings.vocab_size, (batch, prompt)), past_key_values=past)
    return past
