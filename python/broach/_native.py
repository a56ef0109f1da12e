"""Loads the extension; torch must be there first, because the extension shares its libraries (and its OpenMP runtime)."""

import glob
import os
import sys

import torch  # noqa: F401

try:
    from broach_ext import _C
except ImportError as error:
    raise ImportError(
        "broach's native extension is not built or cannot be loaded (run `make build`): " + str(error)
    ) from error

# oneDNN comes as a Python package that puts its library under the prefix; the extension opens it by path.
if "BROACH_ONEDNN_LIBRARY" not in os.environ:
    for found in sorted(glob.glob(os.path.join(sys.prefix, "lib", "libdnnl.so.3"))):
        _C.set_onednn_path(found)

__all__ = ["_C"]
