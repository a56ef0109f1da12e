"""The options of `broach.compile` and of the backend: their names, defaults and meaning in one table."""

from __future__ import annotations

import difflib
import logging
from dataclasses import dataclass
from typing import Any, Callable

log = logging.getLogger("broach")


@dataclass(frozen=True)
class Option:
    name: str
    default: Any
    kind: type
    doc: str


OPTIONS = {
    o.name: o
    for o in (
        Option("capture", "auto", str, "how programs are captured: natively, by Dynamo, or natively where possible (auto)"),
        Option("verify", 0, int, "compare natively captured calls with eager: this many first ones, then ever more rarely"),
        Option("branches", 16, int, "most programs kept for the ways that data lets a program take; 0: it goes to Dynamo"),
        Option("strict", False, bool, "results bit-equal to eager's for everything but contractions; slower"),
        Option("deterministic", False, bool, "choose products and convolutions by rule, not by what was measured: equal bits from run to run"),
        Option("freeze", True, bool, "keep weights packed for the kernels that read them; a write to a weight is noticed"),
        Option("fuse", True, bool, "compute several operations in one kernel (off: one kernel each, to find a difference)"),
        Option("lower", True, bool, "compile operations (off: call each one in libtorch, to find a difference)"),
        Option("compile_threads", 0, int, "threads that compile kernels; 0: one a core"),
        Option("disable_passes", (), tuple, "names of graph passes to leave out"),
        Option("progress", None, bool, "show progress while kernels compile; by default when standard error is a terminal"),
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
CAPTURES = ("auto", "native", "dynamo")
_noted: set[str] = set()


def note_once(text: str) -> None:
    if text not in _noted:
        _noted.add(text)
        log.info(text)


class Options(dict):
    """Checked options: unknown names raise an error that lists the valid ones; foreign ones are dropped with a note."""

    def __init__(self, given: dict[str, Any] | None = None, mode: str | None = None):
        super().__init__()
        if mode is not None and mode not in MODES:
            raise ValueError(f"mode={mode!r} is not known; valid modes are {', '.join(MODES)}")
        if mode not in (None, "default"):
            note_once(f"mode {mode!r} changes nothing here: Broach measures its candidates in every mode")
        for name, value in (given or {}).items():
            self._set(name, value)

    def _set(self, name: str, value: Any) -> None:
        option = OPTIONS.get(name)
        if option is None:
            if name in FOREIGN or name.startswith(FOREIGN_PREFIXES):
                note_once(f"option {name!r} belongs to another backend and means nothing here")
                return
            close = difflib.get_close_matches(name, OPTIONS, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"options: {name!r} is not an option of Broach{hint} Valid names: {', '.join(OPTIONS)}")
        if option.kind is tuple:
            value = list(value)
        elif option.kind is bool and not isinstance(value, bool):
            raise TypeError(f"options: {name!r} must be True or False, not {value!r}")
        elif name == "capture" and value not in CAPTURES:
            raise ValueError(f"options: 'capture' must be one of {', '.join(CAPTURES)}, not {value!r}")
        elif option.kind is int and (isinstance(value, bool) or not isinstance(value, int)):
            raise TypeError(f"options: {name!r} must be a whole number, not {value!r}")
        self[name] = value


Callback = Callable[[int, int], None]
