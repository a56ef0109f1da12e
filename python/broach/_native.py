"""Loads the extension; torch must be there first, because the extension shares its libraries (and its OpenMP runtime)."""

import glob
import inspect
import os
import sys
import sysconfig
import warnings

import torch

try:
    from broach_ext import _C
except ImportError as error:
    raise ImportError(
        "broach's native extension is not built or cannot be loaded (run `make build`): " + str(error)
    ) from error

from . import _pure

# oneDNN comes as a Python package that puts its library under the prefix; the extension opens it by path.
if "BROACH_ONEDNN_LIBRARY" not in os.environ:
    for found in sorted(glob.glob(os.path.join(sys.prefix, "lib", "libdnnl.so.3"))):
        _C.set_onednn_path(found)


def _describe_libraries() -> None:
    """Says whose code and state is not the user's, and what is known of what is written in C."""
    folders = set()
    for name in ("stdlib", "platstdlib"):
        path = sysconfig.get_path(name)
        folders |= {path + os.sep, os.path.realpath(path) + os.sep}
    modules = {*sys.stdlib_module_names, "builtins", "numpy", "torchgen", "_pytest", "pluggy"}
    modules.discard("__main__")
    _C.set_library(os.path.dirname(__file__) + os.sep, os.path.dirname(torch.__file__) + os.sep, sorted(folders), modules)
    _C.set_native_functions(set(_pure.PURE), set(_pure.ANSWERS), set(_pure.impure()), set(_pure.OF_LIBRARIES), set(_pure.operators()), set(_pure.EAGER), set(_pure.OPTIMIZERS), _pure.TOLD)
    _C.set_native_types(set(_pure.VALUES), set(_pure.STATELESS), set(_pure.MAKERS))
    _C.set_unwatched(_pure.UNWATCHED)


class _MemoryPool:
    """Memory of torch's allocator on one device from which only its owner takes; or, where there is no other left and it `lends`, everybody."""

    def __init__(self, device: int, lends: bool) -> None:
        options = {"use_on_oom": True} if lends and "use_on_oom" in inspect.signature(torch.cuda.MemPool.__init__).parameters else {}
        self._device, self._pool, self._entered = device, torch.cuda.MemPool(**options), None

    def enter(self) -> None:
        self._entered = torch.cuda.use_mem_pool(self._pool, self._device)
        self._entered.__enter__()

    def leave(self) -> None:
        entered, self._entered = self._entered, None
        entered.__exit__(None, None, None)


_describe_libraries()
if torch.version.cuda:
    _C.set_memory_pools(_MemoryPool)

if _C.capture_obstacle():
    warnings.warn("broach: " + _C.capture_obstacle(), RuntimeWarning, stacklevel=2)

__all__ = ["_C"]
