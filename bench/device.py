"""Where a suite's models run: the CPU, or a GPU with sizes that fill one, waited for, its memory counted and its CUDA graphs."""

from __future__ import annotations

import argparse
import functools
from typing import Any, Callable

LANGUAGE = ("gpt2", "llama")  # those that compute their own loss
CUDA_SIZES: dict[str, dict[str, Any]] = {
    "resnet50": {"batch": 32},
    "resnet50-nhwc": {"batch": 32},
    "vit": {"batch": 32},
    "bert": {"batch": 16, "length": 128},
    "gpt2": {"batch": 4, "length": 512},
    "llama": {"batch": 1, "length": 128},
}
CUDA_TITLES = {
    "resnet50": "ResNet-50 b32",
    "resnet50-nhwc": "ResNet-50 b32 channels-last",
    "vit": "ViT-B/16 b32",
    "bert": "BERT-base 16x128",
    "gpt2": "GPT-2 4x512",
    "llama": "Llama 1x128",
}
NO_DROPOUT: dict[str, dict[str, Any]] = {
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}


def jobs(chosen: argparse.Namespace, on_cpu: list[str], on_cuda: list[str], types: str) -> list[dict[str, Any]]:
    cuda = chosen.device == "cuda"
    names = named(chosen.models) if chosen.models else on_cuda if cuda else on_cpu
    variants = chosen.variants or ("eager,inductor,reduce-overhead,graph,broach" if cuda else "eager,inductor,broach")
    return [
        {"model": model, "dtype": dtype, "device": chosen.device, "variants": variants.split(","), "seconds": chosen.seconds}
        for dtype in (chosen.dtype or ("bf16" if cuda else types)).split(",")
        for model in names
    ]


def named(models: str) -> list[str]:
    """Names separated by commas; `zoo` stands for all models of the zoo, `zoo:swin,t5` for some."""
    import zoo

    return list(zoo.FAMILIES) if models == "zoo" else models.removeprefix("zoo:").split(",")


def tables(what: str, results: list[dict[str, Any]]) -> list[Any]:
    dtypes = dict.fromkeys(result["dtype"] for result in results)
    return [_table(f"{what} on a GPU, {dtype}", [r for r in results if r["dtype"] == dtype]) for dtype in dtypes]


def _table(heading: str, results: list[dict[str, Any]]) -> Any:
    from measure import NAMES, Table, cell, geomean, median, ratio

    names = list(results[0]["variants"])
    headings = ["model", *(f"{NAMES[n]} ms" for n in names), "Broach over the fastest other", "first call s", "error"]
    rows, ratios = [], []
    for result in results:
        ms = {n: median(result.get("samples", {}).get(n), 1e3) for n in names}
        fastest = min((ms[n] for n in names if n != "broach" and ms[n] is not None), default=None)
        ratios.append(ratio(ms.get("broach"), fastest))
        first, error = result.get("first_s", {}).get("broach"), result.get("relative_error", {}).get("broach")
        rows.append([title(result["model"], "cuda"), *(cell(ms[n], "{:.3f}") for n in names), cell(ratios[-1]), cell(first),
                     cell(error, "{:.1e}")])  # fmt: skip
    rows.append([f"geomean of {len(rows)}", *("" for _ in names), cell(geomean(ratios)), "", ""])
    return Table(heading, headings, rows)


def title(model: str, device: str) -> str:
    import models

    return (CUDA_TITLES if device == "cuda" else {}).get(model, models.TITLES.get(model, model))


def build(model: str, device: str, dtype: Any, **config: Any) -> Any:
    """The program with its weights and arguments on the device."""
    import models
    import torch
    import zoo
    from torch.utils import _pytree as pytree

    if model in zoo.FAMILIES:
        program = zoo.build(model, device, dtype)
    else:
        program = models.build(model.removesuffix("-nhwc"), dtype=dtype, **(CUDA_SIZES.get(model, {}) if device == "cuda" else {}), **config)
    if device == "cpu":
        return program
    layout = torch.channels_last if model.endswith("-nhwc") else torch.preserve_format

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.to(device, memory_format=layout if leaf.dim() == 4 else torch.preserve_format)

    call = program.call.to(device, memory_format=layout) if isinstance(program.call, torch.nn.Module) else program.call
    args, kwargs = pytree.tree_map(move, (program.args, program.kwargs))
    return program._replace(call=call, args=args, kwargs=kwargs)


def wait(device: str) -> Callable[[], None]:
    if device == "cpu":
        return lambda: None
    import torch

    return torch.cuda.synchronize


def name(device: str) -> str:
    if device == "cpu":
        return ""
    import torch

    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


class Graphed:
    """A call as one CUDA graph, captured as it is first made: the same arguments ever after, and results that the next call overwrites."""

    def __init__(self, call: Callable) -> None:
        self.call, self.graph, self.result = call, None, None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.graph is None:
            self._capture(functools.partial(self.call, *args, **kwargs))
        self.graph.replay()
        return self.result

    def _capture(self, call: Callable) -> None:
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.result = call()
        self.graph = graph


class Memory:
    """MiB of a GPU that a program holds and takes in a call, over what was there when this was made; pools of graphs are in it."""

    def __init__(self) -> None:
        self.before = self._settled()

    def of(self, call: Callable) -> float:
        import torch

        self._settled()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_reserved() - self.before) / 2**20

    # Torch's workspaces for products are nobody's own, but whoever records graphs lets go of them.
    def _make_workspaces(self) -> None:
        import torch

        with torch.enable_grad():
            x = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            (x @ x).sum().backward()

    def _settled(self) -> int:
        import gc

        import torch

        gc.collect()
        self._make_workspaces()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()
