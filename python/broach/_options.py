"""The options of `broach.compile` and of the backend: their names, defaults and meaning in one table."""

from __future__ import annotations

import difflib
import logging
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

log = logging.getLogger("broach")

CAPTURES = ("auto", "native", "dynamo", "either")
RNGS = ("eager", "counter")
LARGEST = 2**31 - 1  # of a count


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("must be True or False")
    return value


def _flag_or_none(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise TypeError("must be True, False or None")
    return value


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"must be a whole number from 0 to {LARGEST}")
    if not 0 <= value <= LARGEST:
        raise ValueError(f"must be a whole number from 0 to {LARGEST}")
    return int(value)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError("must be a number from 0 to 1")
    if not 0 <= value <= 1:
        raise ValueError("must be a number from 0 to 1")
    return float(value)


def _capture(value: Any) -> str:
    if not isinstance(value, str) or value not in CAPTURES:
        raise (ValueError if isinstance(value, str) else TypeError)(f"must be one of {', '.join(map(repr, CAPTURES))}")
    return value


def _rng(value: Any) -> str:
    if not isinstance(value, str) or value not in RNGS:
        raise (ValueError if isinstance(value, str) else TypeError)(f"must be one of {', '.join(map(repr, RNGS))}")
    return value


def _target(value: Any) -> str:
    from ._native import _C

    if not isinstance(value, str) or value not in _C.target_names():
        raise (ValueError if isinstance(value, str) else TypeError)(f"must be one of {', '.join(map(repr, _C.target_names()))}")
    return value


def _passes(value: Any) -> list[str]:
    from ._native import _C

    valid = ", ".join(map(repr, _C.pass_names()))
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise TypeError(f"must be a list of names of graph passes ({valid})")
    for name in value:
        if name not in _C.pass_names():
            raise ValueError(f"must be a list of names of graph passes ({valid}), and {name!r} is none")
    return list(value)


@dataclass(frozen=True)
class Option:
    name: str
    default: Any
    checked: Callable[[Any], Any]  # the value as it is used; an error says what it must be
    doc: str


OPTIONS = {
    o.name: o
    for o in (
        Option("capture", "auto", _capture, "how programs are captured: natively, by Dynamo, by either, natively first, or natively and else not at all (auto)"),
        Option("verify", 0, _count, "compare natively captured calls with eager: this many first ones, then ever more rarely"),
        Option("branches", 16, _count, "most programs kept for the ways that data lets a program take; what takes more is no longer captured"),
        Option("parts", True, _flag, "where a program cannot be captured as a whole, compile the modules that it calls, each by itself"),
        Option("strict", False, _flag, "results bit-equal to eager's for everything but contractions; slower"),
        Option("deterministic", False, _flag, "choose products and convolutions by rule, not by what was measured: equal bits from run to run"),
        Option("freeze", True, _flag, "keep weights packed for the kernels that read them; a write to a weight is noticed"),
        Option("memory_budget", 1.0, _share, "save at most this part of what is saved for gradients by default, and compute the rest anew"),
        Option("gradient_parts", 0, _count, "compute gradients in so many parts, after each of which what was saved for it goes; 0: on a GPU, by how much is saved"),
        Option("rng", "eager", _rng, "numbers that dropout draws: eager's own, or, faster, numbers by a counter, which fuse"),
        Option("fuse", True, _flag, "compute several operations in one kernel (off: one kernel each, to find a difference)"),
        Option("lower", True, _flag, "compile operations (off: call each one in libtorch, to find a difference)"),
        Option("compile_threads", 0, _count, "threads that compile kernels; 0: one a core"),
        Option("disable_passes", (), _passes, "names of graph passes to leave out"),
        Option("target", "cpu", _target, "what computes: the CPU, or the reference interpreter, to find a difference (very slow)"),
        Option("progress", None, _flag_or_none, "show progress while kernels compile; by default when standard error is a terminal"),
    )
}

# Names that torch.compile's own backend understands and that mean nothing here: accepted with a note, so that a program
# written for it runs unchanged.
FOREIGN_PREFIXES = ("triton.", "cuda.", "cpp.", "aot_inductor.", "trace.", "halide.", "rocm.")
FOREIGN = {
    "max_autotune", "max_autotune_gemm", "max_autotune_pointwise", "max_autotune_gemm_backends", "epilogue_fusion",
    "shape_padding", "freezing", "cpp_wrapper", "coordinate_descent_tuning", "fallback_random", "layout_optimization",
    "permute_fusion", "pattern_matcher", "dce", "size_asserts", "nan_asserts", "debug", "conv_1x1_as_mm",
    "split_reductions", "aggressive_fusion", "combo_kernels", "use_mixed_mm", "group_fusion", "batch_fusion",
    "post_grad_fusion_options", "pre_grad_fusion_options", "graph_partition", "guard_filter_fn",
}  # fmt: skip
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_noted: set[str] = set()


def note_once(text: str) -> None:
    if text not in _noted:
        _noted.add(text)
        log.info(text)


class Options(dict):
    """Checked options: unknown names raise an error that lists the valid ones; foreign ones are dropped with a note."""

    def __init__(self, given: Mapping[str, Any] | None = None, mode: str | None = None):
        super().__init__()
        _check_mode(mode)
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"options must be a dict of option names and values, not {given!r}")
        for name, value in (given or {}).items():
            self._set(name, value)
        for name in ("strict", "verify"):
            if self.get(name) and self.get("rng") == "counter":
                raise ValueError(f"options: 'rng' must be 'eager' where {name!r} compares with eager's numbers")

    def _set(self, name: str, value: Any) -> None:
        option = OPTIONS.get(name)
        if option is None:
            return _note_foreign(name)
        try:
            self[name] = option.checked(value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"options: {name!r} {error}, not {value!r}") from None


def _check_mode(mode: Any) -> None:
    if mode is not None and not isinstance(mode, str):
        raise TypeError(f"mode must be None or one of {', '.join(map(repr, MODES))}, not {mode!r}")
    if mode is not None and mode not in MODES:
        raise ValueError(f"mode={mode!r} is not known; valid modes are {', '.join(map(repr, MODES))}")
    if mode not in (None, "default"):
        note_once(f"mode {mode!r} changes nothing here: Broach measures its candidates in every mode")


def _note_foreign(name: Any) -> None:
    if isinstance(name, str) and (name in FOREIGN or name.startswith(FOREIGN_PREFIXES)):
        return note_once(f"option {name!r} belongs to another backend and means nothing here")
    close = difflib.get_close_matches(str(name), OPTIONS, 1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise ValueError(f"options: {name!r} is not an option of Broach{hint} Valid names: {', '.join(OPTIONS)}")


def check_arguments(**given: Any) -> None:
    """Those of `compile` besides model, mode and options: by name, True or False, and `dynamic` may be None."""
    for name, value in given.items():
        try:
            (_flag_or_none if name == "dynamic" else _flag)(value)
        except TypeError as error:
            raise TypeError(f"broach.compile: {name} {error}, not {value!r}") from None


Callback = Callable[[int, int], None]
