"""Broach compiles PyTorch programs: ``fast = broach.compile(model)``.

The same results as eager PyTorch, from one optimised graph of fused native code. ``torch.compile(model, backend="broach")``
is the same compiler behind an unchanged call.
"""

from ._api import compile, disable, explain, list_options, reset
from ._backend import backend
from ._front import CaptureError
from ._options import Options

__all__ = ["CaptureError", "Options", "backend", "compile", "disable", "explain", "list_options", "reset"]
__version__ = "0.1.0"
