"""What a captured run does without calling a function that the interpreter tells about: bytecode that stores to, or reads,
attributes written in C; and numpy's random numbers."""

from __future__ import annotations

import dis
import sys
import types
import weakref

# Attributes of tensors whose change is invisible to the recording of operations.
STORED = frozenset({"data", "grad", "real", "imag", "names", "_backward_hooks", "_grad"})
# Attributes whose value is a tensor that can be replaced without its owner's changing, or that says how a tensor came about.
READ = frozenset({"grad", "grad_fn", "_version", "_base", "__cuda_array_interface__", "__array_interface__"})
NAMES = STORED | READ

_seen: "weakref.WeakKeyDictionary[types.CodeType, str]" = weakref.WeakKeyDictionary()


def invisible(code: types.CodeType) -> str:
    """Why a run of this code cannot be replayed from its operations; empty if it can."""
    found = _seen.get(code)
    if found is None:
        found = _seen[code] = _find(code)
    return found


def _find(code: types.CodeType) -> str:
    if not NAMES.intersection(code.co_names):
        return ""
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        if step.starts_line:
            line = step.line_number if hasattr(step, "line_number") else step.starts_line
        if step.opname in ("STORE_ATTR", "DELETE_ATTR") and step.argval in STORED:
            return f"writes an attribute .{step.argval} at {code.co_filename}:{line}"
        if step.opname.startswith("LOAD_ATTR") and step.argval in READ:
            return f"reads an attribute .{step.argval} at {code.co_filename}:{line}"
    return ""


def numpy_random_state() -> object:
    """Where numpy's own generator stands; None if nobody has imported it."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return None
    state = numpy_random.get_state(legacy=False)
    words = state["state"]
    return {k: v.tobytes() if hasattr(v, "tobytes") else v for k, v in words.items()}, state["has_gauss"], state["gauss"]
