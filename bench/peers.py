"""OpenVINO and ONNX Runtime around a program of examples/models.py. Both are installed by hand:

    pip install openvino
    pip install onnxruntime onnx onnxscript
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

PACKAGES = {"openvino": ["openvino"], "onnxruntime": ["onnxruntime", "onnx", "onnxscript"]}


def missing(variant: str) -> list[str]:
    """The packages that this variant needs and that are not installed."""
    return [name for name in PACKAGES.get(variant, []) if importlib.util.find_spec(name) is None]


def peer(variant: str, program: Any, dtype: str) -> Any:
    return OpenVino(program, dtype) if variant == "openvino" else OnnxRuntime(program)


def _flat(program: Any) -> tuple[Any, tuple]:
    """The program as a module from tensors to tensors, and these tensors: what both exporters take."""
    import torch
    from torch.utils import _pytree as pytree

    leaves, form = pytree.tree_flatten((program.args, program.kwargs))
    given = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.call = program.call

        def forward(self, *tensors: torch.Tensor) -> tuple:
            filled = list(leaves)
            for i, tensor in zip(given, tensors):
                filled[i] = tensor
            args, kwargs = pytree.tree_unflatten(filled, form)
            return tuple(t for t in pytree.tree_leaves(self.call(*args, **kwargs)) if isinstance(t, torch.Tensor))

    return Flat().eval(), tuple(leaves[i] for i in given)


class OpenVino:
    """Converted in fp32; the plugin computes in the type that it is told to, which it may decline."""

    def __init__(self, program: Any, dtype: str) -> None:
        import openvino
        import torch

        module, self.inputs = _flat(program)
        with torch.no_grad():
            model = openvino.convert_model(torch.export.export(module, self.inputs, strict=False))
        wanted = {"fp32": "f32", "bf16": "bf16"}[dtype]
        settings = {"INFERENCE_PRECISION_HINT": wanted, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads()}
        self.model = openvino.Core().compile_model(model, "CPU", settings)
        used = self.model.get_property("INFERENCE_PRECISION_HINT").to_string()
        if used != wanted:
            raise RuntimeError(f"OpenVINO computes in {used} here, not in {wanted}")
        self.request = self.model.create_infer_request()
        self.arrays = [tensor.numpy() for tensor in self.inputs]

    def __call__(self) -> Any:
        return self.request.infer(self.arrays, share_inputs=True, share_outputs=True)

    def answer(self) -> list[Any]:
        import torch

        found = self()
        return [torch.from_numpy(found[i].copy()) for i in range(len(self.model.outputs))]


class OnnxRuntime:
    """Its threads stop to spin when a call is over, so that they take nothing from the variant whose turn is next."""

    def __init__(self, program: Any) -> None:
        import onnxruntime
        import torch

        module, tensors = _flat(program)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        with tempfile.TemporaryDirectory(prefix="broach-onnx-") as folder:
            path = Path(folder) / "model.onnx"
            with torch.no_grad():
                torch.onnx.export(module, tensors, str(path), dynamo=True, external_data=True, verbose=False)
            self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [given.name for given in self.session.get_inputs()]
        if len(names) != len(tensors):
            raise RuntimeError(f"the exported program takes {len(names)} tensors of {len(tensors)}")
        self.feed = {name: tensor.numpy() for name, tensor in zip(names, tensors)}

    def __call__(self) -> Any:
        return self.session.run(None, self.feed)

    def answer(self) -> list[Any]:
        import torch

        return [torch.from_numpy(array.copy()) for array in self()]
