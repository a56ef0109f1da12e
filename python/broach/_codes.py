"""What a captured run does without calling a function that the interpreter tells about: bytecode that stores to, or reads,
attributes written in C; and numpy's random numbers."""

from __future__ import annotations

import dis
import functools
import sys
import types
import weakref
from typing import Callable

# Attributes of tensors whose change is invisible to the recording of operations.
STORED = frozenset({"data", "grad", "real", "imag", "names", "_backward_hooks", "_grad"})
# Attributes whose value is a tensor that can be replaced without its owner's changing, or that says how a tensor came about.
READ = frozenset({"grad", "grad_fn", "_version", "_base", "__cuda_array_interface__", "__array_interface__"})
NAMES = STORED | READ

# How bytecode compares.
COMPARED = frozenset({"IS_OP", "COMPARE_OP", "CONTAINS_OP"})


def _once(find: Callable[[types.CodeType], str]) -> Callable[[types.CodeType], str]:
    """Remembers the answer for each code object, as long as that lives."""
    seen: weakref.WeakKeyDictionary[types.CodeType, str] = weakref.WeakKeyDictionary()

    @functools.wraps(find)
    def found(code: types.CodeType) -> str:
        answer = seen.get(code)
        if answer is None:
            answer = seen[code] = find(code)
        return answer

    return found


@_once
def invisible(code: types.CodeType) -> str:
    """Why a run of this code cannot be replayed from its operations; empty if it can."""
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


@_once
def asks_for_type_of_number(code: types.CodeType) -> str:
    """Where the code compares what `type` gives with `int` or `float`, which tells a number from what stands for it; else empty."""
    if "type" not in code.co_names or not {"int", "float"}.intersection(code.co_names):
        return ""
    steps = list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        if not step.opname.startswith("LOAD") or step.argval not in ("int", "float"):
            continue
        asked = any(s.opname.startswith("LOAD") and s.argval == "type" for s in steps[max(0, i - 16) : i])
        if asked and any(s.opname in COMPARED for s in steps[i + 1 : i + 5]):
            return f"compares the type of a number in {code.co_qualname if hasattr(code, 'co_qualname') else code.co_name}"
    return ""


def numpy_random_state() -> object:
    """Where numpy's own generator stands; None if nobody has imported it."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return None
    state = numpy_random.get_state(legacy=False)
    words = state["state"]
    return {k: v.tobytes() if hasattr(v, "tobytes") else v for k, v in words.items()}, state["has_gauss"], state["gauss"]
