"""Models of transformers and diffusers from small configurations: results equal eager's over calls with changed batch, length,
mask and flags, captured natively; and text generation with both kinds of caches."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import broach
import compared
import pytest
import torch
import zoo

ALL = os.environ.get("BROACH_TEST_ALL") == "1"
# Of every family one: encoders, decoders with rotary and learned positions, both, mixtures of experts, state space, images.
SOME = ["albert", "bart", "bert", "deit", "gemma2", "gpt2", "llama", "mamba", "mixtral", "roberta", "t5", "vit"]
native: dict[str, bool] = {}  # by model that ran
GENERATING = ["gpt2", "llama", "gemma", "mistral", "opt", "phi", "qwen2", "gpt_neox", "bloom", "t5"]

def _agree(entry, compiled, *call, **more) -> str:
    given = {**zoo.inputs(entry, *call), **more}
    torch.manual_seed(1)
    want = entry.model(**given)
    torch.manual_seed(1)
    return compared.difference(want, compiled(**given), 1e-3, 1e-4)


@pytest.mark.parametrize("name", zoo.names() if ALL else SOME)
def test_model(name):
    entry = zoo.build(name)
    if entry is None:
        assert name not in SOME, f"{name} used to build"
        pytest.skip("does not build from a small configuration, or takes other inputs than ids or pixels")
    compiled = broach.compile(entry.model)
    for call, more in zoo.calls():
        assert not (why := _agree(entry, compiled, *call, **more)), f"{why} at {call} {more}"
    told = compared.stats(compiled)
    native[name] = told["front"] == "native" and told["compiled_calls"] >= 1
    assert native[name] or name not in SOME, (told["reasons"], told["eager_reasons"])


@pytest.mark.skipif(not ALL, reason="each of the models of the bounded run is native")
def test_native_share():
    others = [name for name, yes in native.items() if not yes]
    assert len(native) > len(SOME), "run together with the models"
    assert len(others) <= (1 - zoo.NATIVE_SHARE) * len(native), others


def _generator(name):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    default = AutoConfig.for_model(name)
    config = AutoConfig.for_model(name, **{k: v for k, v in zoo.SMALL.items() if type(getattr(default, k, None)) is int})
    torch.manual_seed(0)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    model = kind.from_config(config).eval()
    model.generation_config.decoder_start_token_id = 1
    return model


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", GENERATING if ALL else GENERATING[:2])
def test_generation(name, cache):
    model = _generator(name)
    ids = torch.randint(3, 90, (2, 7))
    mask = torch.ones_like(ids)
    mask[0, :2] = 0
    options = {"max_new_tokens": 10, "do_sample": False, "cache_implementation": cache if cache == "static" else None, "disable_compile": True}

    def generate(m):
        return m.generate(ids, attention_mask=mask, **options)

    want = generate(model)
    forward = model.forward
    model.forward = broach.compile(forward)
    try:
        for _ in range(2):
            assert torch.equal(generate(model), want)
        told = compared.stats(model.forward)
    finally:
        del model.forward
    assert told["front"] == "native" and told["compiled_calls"] > 10, (told["front"], told["reasons"], told["eager_reasons"], told["captures"])


# ---- diffusers ----

DIFFUSERS = {
    "unet": lambda d: (
        d.UNet2DConditionModel(sample_size=8, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=8, attention_head_dim=4,
                               down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D")),
        lambda n, s: ((torch.randn(n, 4, s, s), torch.tensor(7), torch.randn(n, 5, 8)), {}),
    ),
    "vae": lambda d: (
        d.AutoencoderKL(block_out_channels=(8, 16), norm_num_groups=4, down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4),
        lambda n, s: ((torch.randn(n, 3, s, s),), {}),
    ),
    "dit": lambda d: (
        d.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=4, in_channels=4, out_channels=8, num_layers=2, sample_size=8, patch_size=2, norm_num_groups=4, num_embeds_ada_norm=10),
        lambda n, s: ((torch.randn(n, 4, s, s),), {"timestep": torch.arange(n), "class_labels": torch.arange(n) % 3}),
    ),
    "pixart": lambda d: (
        d.PixArtTransformer2DModel(num_attention_heads=2, attention_head_dim=4, in_channels=4, out_channels=8, num_layers=2, cross_attention_dim=8, sample_size=8, patch_size=2, norm_num_groups=4,
                                   caption_channels=6, interpolation_scale=1, use_additional_conditions=False),
        lambda n, s: ((torch.randn(n, 4, s, s),), {"encoder_hidden_states": torch.randn(n, 5, 6), "timestep": torch.arange(n), "encoder_attention_mask": (torch.arange(5) < 4 - torch.arange(n)[:, None]).float(),
                                                   "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}),
    ),
    "flux": lambda d: (
        d.FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=8, pooled_projection_dim=8, axes_dims_rope=(2, 2, 4)),
        lambda n, s: ((), {"hidden_states": torch.randn(n, s * s // 4, 4), "encoder_hidden_states": torch.randn(n, 5, 8), "pooled_projections": torch.randn(n, 8), "timestep": torch.rand(n),
                           "img_ids": torch.randint(0, 4, (s * s // 4, 3)).float(), "txt_ids": torch.zeros(5, 3)}),
    ),
    "sd3": lambda d: (
        d.SD3Transformer2DModel(sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=2, joint_attention_dim=8, caption_projection_dim=16,
                                pooled_projection_dim=8, out_channels=4, pos_embed_max_size=16),
        lambda n, s: ((), {"hidden_states": torch.randn(n, 4, s, s), "encoder_hidden_states": torch.randn(n, 5, 8), "pooled_projections": torch.randn(n, 8), "timestep": torch.rand(n)}),
    ),
    "unet of video": lambda d: (
        d.UNet3DConditionModel(block_out_channels=(8, 16), down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"), cross_attention_dim=8,
                               attention_head_dim=4, norm_num_groups=4, layers_per_block=1),
        lambda n, s: ((torch.randn(n, 4, 3, s, s), torch.tensor(7), torch.randn(n, 5, 8)), {}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFUSERS)
def test_diffusers(name):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    model, make = DIFFUSERS[name](diffusers)
    model = model.eval()
    compiled = broach.compile(model)
    for n, size in ((2, 8), (2, 8), (3, 8), (1, 16), (3, 16)):
        args, kwargs = make(n, size)
        want, got = model(*args, **kwargs), compiled(*args, **kwargs)
        assert not (why := compared.difference(want, got, 1e-3, 1e-4)), why
    told = compared.stats(compiled)
    assert told["front"] == "native" and told["compiled_calls"] > 0, (told["reasons"], told["eager_reasons"])
