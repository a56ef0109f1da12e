"""Models of many families beside those by which Broach was made faster, from their configurations, with weights at random.

Each function here makes one, and gives it with its arguments: `bench/run.py models --models zoo` times all, `--models zoo:swin,t5` some.
Those of transformers take six layers of 768; sizes of batches and images are for the device.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

WORDS, WIDTH, LAYERS, HEADS = 32000, 768, 6, 12


class Sizes(NamedTuple):
    batch: int
    length: int
    image: int


SIZES = {"cpu": Sizes(1, 128, 224), "cuda": Sizes(8, 256, 224)}
Made = tuple[nn.Module, tuple, dict]
FAMILIES: dict[str, Callable[[Sizes], Made]] = {}


def build(name: str, device: str, dtype: torch.dtype) -> Any:
    import models

    torch.manual_seed(0)
    with torch.device(device):  # a GPU has drawn the weights at once
        module, args, kwargs = FAMILIES[name](SIZES[device])
    for part in module.modules():
        _draw_nothing(part)
    floats = lambda x: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x  # noqa: E731
    args, kwargs = torch.utils._pytree.tree_map(floats, (args, kwargs))
    return models.Program(models.prepared(module, dtype), args, kwargs)


def _draw_nothing(part: nn.Module) -> None:
    """No dropout of elements, paths or layers, be it a module's or a number that a layer or its configuration gives to a function."""
    if isinstance(part, nn.Dropout):
        part.p = 0.0
    for holder in (part, getattr(part, "config", None)):
        for name, value in list(vars(holder).items()) if holder is not None else []:
            if "drop" in name and isinstance(value, float):
                setattr(holder, name, 0.0)


def family(make: Callable[[Sizes], Made]) -> Callable[[Sizes], Made]:
    FAMILIES[make.__name__] = make
    return make


def _words(s: Sizes, length: int | None = None) -> torch.Tensor:
    return torch.randint(5, WORDS, (s.batch, length or s.length))


def _images(s: Sizes, size: int | None = None, batch: int | None = None) -> torch.Tensor:
    return torch.randn(batch or s.batch, 3, size or s.image, size or s.image)


# ---- transformers ----


def _hugging(name: str, model: str, config: str, given: Callable[[Sizes], tuple[tuple, dict]], **settings: Any) -> None:
    """`model(config(settings))`, both of transformers."""

    def make(s: Sizes) -> Made:
        import transformers

        transformers.logging.set_verbosity_error()
        module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return module, *given(s)

    FAMILIES[name] = make


def _of_words(s: Sizes) -> tuple[tuple, dict]:
    mask = torch.ones(s.batch, s.length, dtype=torch.long)
    mask[0, s.length // 2 :] = 0
    return (_words(s),), {"attention_mask": mask}


def _of_words_alone(s: Sizes) -> tuple[tuple, dict]:
    return (_words(s),), {"use_cache": False}


def _of_images(s: Sizes) -> tuple[tuple, dict]:
    return (_images(s),), {}


COMMON = {"vocab_size": WORDS, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
ENCODER = {**COMMON, "intermediate_size": 4 * WIDTH, "max_position_embeddings": 520}
DECODER = {**COMMON, "intermediate_size": 2 * WIDTH, "num_key_value_heads": 3, "max_position_embeddings": 1024, "pad_token_id": 0,
           "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
PICTURE = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH,
           "image_size": 224, "patch_size": 16}  # fmt: skip
BOTH = {"vocab_size": WORDS, "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "encoder_ffn_dim": 4 * WIDTH, "decoder_ffn_dim": 4 * WIDTH}  # fmt: skip

_hugging("roberta", "RobertaForMaskedLM", "RobertaConfig", _of_words, **ENCODER)
_hugging("electra", "ElectraModel", "ElectraConfig", _of_words, **ENCODER, embedding_size=128)
_hugging("albert", "AlbertModel", "AlbertConfig", _of_words, **ENCODER, embedding_size=128)
_hugging("mpnet", "MPNetModel", "MPNetConfig", _of_words, **ENCODER)
_hugging("modernbert", "ModernBertModel", "ModernBertConfig", _of_words, **ENCODER, pad_token_id=0, local_attention=64)
_hugging("deberta", "DebertaV2Model", "DebertaV2Config", _of_words, **ENCODER, relative_attention=True,
         pos_att_type=["p2c", "c2p"], position_buckets=64)  # fmt: skip
_hugging("mistral", "MistralForCausalLM", "MistralConfig", _of_words_alone, **DECODER, sliding_window=64)
_hugging("qwen2", "Qwen2ForCausalLM", "Qwen2Config", _of_words_alone, **DECODER)
_hugging("qwen3", "Qwen3ForCausalLM", "Qwen3Config", _of_words_alone, **DECODER, head_dim=64)
_hugging("qwen3-moe", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", _of_words_alone, **DECODER, head_dim=64, num_experts=16,
         num_experts_per_tok=4, moe_intermediate_size=WIDTH // 2)  # fmt: skip
_hugging("mixtral", "MixtralForCausalLM", "MixtralConfig", _of_words_alone, **DECODER, num_local_experts=8, num_experts_per_tok=2)
_hugging("gemma2", "Gemma2ForCausalLM", "Gemma2Config", _of_words_alone, **DECODER, head_dim=64, sliding_window=64)
_hugging("gemma3", "Gemma3ForCausalLM", "Gemma3TextConfig", _of_words_alone, **DECODER, head_dim=64, sliding_window=64)
_hugging("phi3", "Phi3ForCausalLM", "Phi3Config", _of_words_alone, **DECODER)
_hugging("olmo2", "Olmo2ForCausalLM", "Olmo2Config", _of_words_alone, **DECODER)
_hugging("gpt-neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", _of_words_alone, **DECODER)
_hugging("falcon", "FalconForCausalLM", "FalconConfig", _of_words_alone, **DECODER, multi_query=True)
_hugging("bloom", "BloomForCausalLM", "BloomConfig", _of_words_alone, vocab_size=WORDS, hidden_size=WIDTH, n_layer=LAYERS, n_head=HEADS)
_hugging("mamba", "MambaForCausalLM", "MambaConfig", _of_words_alone, vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=2)
_hugging("opt", "OPTForCausalLM", "OPTConfig", _of_words_alone, **COMMON, ffn_dim=4 * WIDTH, word_embed_proj_dim=WIDTH)
_hugging("distilbert", "DistilBertModel", "DistilBertConfig", lambda s: ((_words(s),), {}), vocab_size=WORDS, dim=WIDTH, n_layers=LAYERS,
         n_heads=HEADS, hidden_dim=4 * WIDTH)  # fmt: skip
_hugging("t5", "T5ForConditionalGeneration", "T5Config",
         lambda s: ((), {"input_ids": _words(s), "decoder_input_ids": _words(s, s.length // 4), "use_cache": False}),
         vocab_size=WORDS, d_model=WIDTH, d_kv=64, d_ff=4 * WIDTH, num_layers=LAYERS, num_heads=HEADS, decoder_start_token_id=0)  # fmt: skip
_hugging("bart", "BartForConditionalGeneration", "BartConfig",
         lambda s: ((), {"input_ids": _words(s), "decoder_input_ids": _words(s, s.length // 4), "use_cache": False}),
         **BOTH, max_position_embeddings=512)  # fmt: skip
_hugging("whisper", "WhisperForConditionalGeneration", "WhisperConfig",
         lambda s: ((), {"input_features": torch.randn(s.batch, 80, 400), "decoder_input_ids": _words(s, 32), "use_cache": False}),
         **BOTH, max_source_positions=200, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
         suppress_tokens=None, begin_suppress_tokens=None)  # fmt: skip
_hugging("clip", "CLIPModel", "CLIPConfig", lambda s: ((), {"input_ids": _words(s, 32), "pixel_values": _images(s)}),
         text_config={**COMMON, "intermediate_size": 4 * WIDTH}, vision_config=PICTURE)  # fmt: skip
_hugging("siglip", "SiglipVisionModel", "SiglipVisionConfig", _of_images, **PICTURE)
_hugging("dinov2", "Dinov2Model", "Dinov2Config", _of_images, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
         image_size=224, patch_size=16)  # fmt: skip
_hugging("beit", "BeitModel", "BeitConfig", _of_images, **PICTURE, use_relative_position_bias=True)
_hugging("swin", "SwinModel", "SwinConfig", _of_images)
_hugging("convnext", "ConvNextModel", "ConvNextConfig", _of_images)
_hugging("convnextv2", "ConvNextV2Model", "ConvNextV2Config", _of_images)
_hugging("segformer", "SegformerForSemanticSegmentation", "SegformerConfig", _of_images)
_hugging("efficientnet", "EfficientNetModel", "EfficientNetConfig", _of_images, image_size=224, width_coefficient=1.0,
         depth_coefficient=1.0, hidden_dim=1280)  # fmt: skip
_hugging("mobilenetv2", "MobileNetV2Model", "MobileNetV2Config", _of_images)
_hugging("mobilevit", "MobileViTModel", "MobileViTConfig", lambda s: ((_images(s, 256),), {}))
_hugging("regnet", "RegNetModel", "RegNetConfig", _of_images)
_hugging("resnet18", "ResNetModel", "ResNetConfig", _of_images, layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2])
_hugging("poolformer", "PoolFormerModel", "PoolFormerConfig", _of_images)
_hugging("sam", "SamVisionModel", "SamVisionConfig", lambda s: ((_images(s, 256, 1),), {}), hidden_size=WIDTH, num_hidden_layers=LAYERS,
         num_attention_heads=HEADS, image_size=256, global_attn_indexes=[1], window_size=7, output_channels=64)  # fmt: skip


# ---- diffusers and timm, where they are installed ----


@family
def unet2d(s: Sizes) -> Made:
    from diffusers import UNet2DConditionModel

    module = UNet2DConditionModel(
        sample_size=32, block_out_channels=(128, 256, 512), layers_per_block=2, cross_attention_dim=WIDTH, attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
    )  # fmt: skip
    return module, (torch.randn(s.batch, 4, 32, 32), torch.tensor([3]), torch.randn(s.batch, 77, WIDTH)), {"return_dict": False}


@family
def dit(s: Sizes) -> Made:
    from diffusers import DiTTransformer2DModel

    module = DiTTransformer2DModel(num_attention_heads=HEADS, attention_head_dim=64, num_layers=LAYERS, sample_size=32, out_channels=8)
    return module, (torch.randn(s.batch, 4, 32, 32), torch.tensor([5] * s.batch), torch.tensor([3] * s.batch)), {"return_dict": False}


def _timm(names: str) -> None:
    def make(name: str) -> Callable[[Sizes], Made]:
        def of(s: Sizes) -> Made:
            import timm

            return timm.create_model(name), (_images(s),), {}

        return of

    for name in names.split():
        FAMILIES[name] = make(name)


_timm(
    "mixer_b16_224 densenet121 mobilenetv3_large_100 inception_v3 ghostnet_100 nf_resnet50 cait_xxs24_224 volo_d1_224 coatnet_0_224 vgg16_bn "
    "repvgg_b0 res2net50_26w_4s hrnet_w18 crossvit_9_240 xcit_tiny_12_p16_224"
)


# ---- written out here ----


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]):
        super().__init__()
        self.words, self.layers, self.out = nn.Embedding(WORDS, 384), kind(384, 384, 2, batch_first=True), nn.Linear(384, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.layers(self.words(ids))[0])


@family
def lstm(s: Sizes) -> Made:
    return _Recurrent(nn.LSTM), (_words(s, 64),), {}


@family
def gru(s: Sizes) -> Made:
    return _Recurrent(nn.GRU), (_words(s, 64),), {}


class _Recommender(nn.Module):
    """As Facebook's DLRM: sums of embeddings, of which each pair is multiplied."""

    def __init__(self, tables: int = 16, width: int = 64):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(WORDS, width, mode="sum") for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + tables * (tables + 1) // 2, 512), nn.ReLU(), nn.Linear(512, 1))

    def forward(self, dense: torch.Tensor, sparse: list[torch.Tensor]) -> torch.Tensor:
        x = self.bottom(dense)
        all = torch.stack([x, *(table(ids) for table, ids in zip(self.tables, sparse))], 1)
        i, j = torch.tril_indices(all.shape[1], all.shape[1], -1, device=x.device)
        return torch.sigmoid(self.top(torch.cat([x, torch.bmm(all, all.transpose(1, 2))[:, i, j]], 1)))


@family
def dlrm(s: Sizes) -> Made:
    rows = 256 * s.batch
    return _Recommender(), (torch.randn(rows, 13), [torch.randint(WORDS, (rows, 4)) for _ in range(16)]), {}


class _Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128) for _ in range(4))

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        count = torch.zeros(len(x), device=x.device, dtype=x.dtype).index_add(0, target, torch.ones_like(target, dtype=x.dtype)).clamp(min=1)
        for layer in self.layers:
            x = torch.relu(x + torch.zeros_like(x).index_add(0, target, layer(x)[source]) / count[:, None])
        return x


@family
def graph_network(s: Sizes) -> Made:
    nodes, edges = 2500 * s.batch, 25000 * s.batch
    return _Graph(), (torch.randn(nodes, 128), torch.randint(nodes, (edges,)), torch.randint(nodes, (edges,))), {}


class _Field(nn.Module):
    """As NeRF: colours along rays."""

    def __init__(self, width: int = 256):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(w, width) for w in (63, width, width, width, width + 63, width, width, width))
        self.out = nn.Linear(width, 4)

    def forward(self, origin: torch.Tensor, direction: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        points = origin[:, None] + direction[:, None] * at[..., None]
        waves = (points[..., None] * 2.0 ** torch.arange(10, device=at.device, dtype=at.dtype)).flatten(-2)
        encoded = x = torch.cat([points, waves.sin(), waves.cos()], -1)
        for i, layer in enumerate(self.layers):
            x = torch.relu(layer(torch.cat([x, encoded], -1) if i == 4 else x))
        x = self.out(x)
        opaque = 1 - torch.exp(-torch.relu(x[..., 3]) * 0.01)
        left = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque], -1), -1)[:, :-1]
        return ((opaque * left)[..., None] * torch.sigmoid(x[..., :3])).sum(1)


@family
def nerf(s: Sizes) -> Made:
    rays = 128 * s.batch
    return _Field(), (torch.randn(rays, 3), torch.randn(rays, 3), torch.rand(rays, 64).sort(-1)[0]), {}


class _Wave(nn.Module):
    def __init__(self, width: int = 64, depth: int = 16):
        super().__init__()
        self.first, self.last = nn.Conv1d(1, width, 1), nn.Conv1d(width, 256, 1)
        self.filters, self.gates = (
            nn.ModuleList(nn.Conv1d(width, width, 2, dilation=2 ** (i % 8)) for i in range(depth)) for _ in range(2)
        )
        self.mixers = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, skipped = self.first(x), 0
        for i, (filter, gate, mixer) in enumerate(zip(self.filters, self.gates, self.mixers)):
            padded = F.pad(x, (2 ** (i % 8), 0))
            y = mixer(torch.tanh(filter(padded)) * torch.sigmoid(gate(padded)))
            x, skipped = x + y, skipped + y
        return self.last(torch.relu(skipped))


@family
def wavenet(s: Sizes) -> Made:
    return _Wave(), (torch.randn(s.batch, 1, 4000),), {}


class _Sharper(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        conv = lambda out=width: nn.Conv2d(width, out, 3, padding=1)  # noqa: E731
        self.first, self.last, self.up = nn.Conv2d(3, width, 3, padding=1), conv(3), conv(4 * width)
        self.blocks = nn.ModuleList(nn.Sequential(conv(), nn.ReLU(), conv()) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = y = self.first(x)
        for block in self.blocks:
            y = y + 0.1 * block(y)
        return self.last(F.pixel_shuffle(self.up(x + y), 2))


@family
def superresolution(s: Sizes) -> Made:
    return _Sharper(), (_images(s, 128),), {}


@family
def encoder_decoder(s: Sizes) -> Made:
    module = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, 4 * WIDTH, dropout=0.0, batch_first=True)
    return module, (torch.randn(s.batch, s.length, WIDTH), torch.randn(s.batch, 100, WIDTH)), {}
