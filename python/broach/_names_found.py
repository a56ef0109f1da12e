"""Which names of modules the code of a run finds.

Names lead to what cannot be watched (a generator of random numbers, all modules that there are), and often no run of the program goes
there: they stand in branches for training, or for the first call. Such names are looked for, instruction by instruction, while one run
goes on, in all code but torch's own. What is asked of modules by names that code makes up is none of this: that code is judged elsewhere.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
import types
from typing import Any

import torch

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OWN = os.path.dirname(__file__) + os.sep
_MONITORED = sys.version_info >= (3, 12)
_TOOLS = (4, 3)  # that nobody is meant to take


def _offsets(code: types.CodeType, names: frozenset[str]) -> dict[int, str]:
    """Where the code finds one of the names, or may ask for it by a text."""
    if code.co_filename.startswith((_TORCH, _OWN)) or not names.intersection((*code.co_names, *(k for k in code.co_consts if isinstance(k, str)))):
        return {}
    steps = dis.get_instructions(code)
    return {step.offset: name for step in steps for name in names if step.argval == name and isinstance(step.argval, str)}


class NamesFound:
    """Looks for names in the code that this thread runs between `start` and `stop`. `ends`: raised where one is found, if not None."""

    def __init__(self, names: tuple[str, ...], ends: type[BaseException] | None) -> None:
        self.names = frozenset(names)
        self.ends = ends
        self.thread = threading.get_ident()
        self.found: set[str] = set()
        self.offsets: dict[types.CodeType, dict[int, str]] = {}
        self.tool: int | None = None

    def start(self) -> bool:
        """False where somebody else, such as a debugger, is told about instructions: then no name is looked for. Both this and `stop` may be
        begun once more where a signal's handler has ended them."""
        if sys.gettrace() is not None:
            return getattr(sys.gettrace(), "__self__", None) is self
        if not _MONITORED:
            sys.settrace(self._on_call)
            return True
        if self.tool is None:
            self.tool = next((tool for tool in _TOOLS if sys.monitoring.get_tool(tool) is None), None)
        if self.tool is None:
            return False
        events = sys.monitoring.events
        if sys.monitoring.get_tool(self.tool) is None:
            sys.monitoring.use_tool_id(self.tool, "broach")
        sys.monitoring.register_callback(self.tool, events.PY_START, self._on_start)
        sys.monitoring.register_callback(self.tool, events.INSTRUCTION, self._on_instruction)
        sys.monitoring.set_events(self.tool, events.PY_START)
        return True

    def stop(self) -> tuple[str, ...]:
        """The names that were found."""
        if not _MONITORED:
            if getattr(sys.gettrace(), "__self__", None) is self:
                sys.settrace(None)
        elif self.tool is not None and sys.monitoring.get_tool(self.tool) is not None:
            for code in [code for code, offsets in self.offsets.items() if offsets]:
                sys.monitoring.set_local_events(self.tool, code, 0)
            sys.monitoring.set_events(self.tool, 0)
            sys.monitoring.free_tool_id(self.tool)
            self.tool = None
        return tuple(self.found)

    def _of(self, code: types.CodeType) -> dict[int, str]:
        if (offsets := self.offsets.get(code)) is None:
            offsets = self.offsets[code] = _offsets(code, self.names)
        return offsets

    def _meet(self, code: types.CodeType, offset: int) -> None:
        name = self._of(code).get(offset)
        if name is None or threading.get_ident() != self.thread:
            return
        self.found.add(name)
        if self.ends is not None and code.co_name != "__exit__":  # which is to put back what its block has set
            raise self.ends(f"finds {name}, which cannot be watched")

    # Up to Python 3.11.
    def _on_call(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if not self._of(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._on_step

    def _on_step(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self._meet(frame.f_code, frame.f_lasti)
        return self._on_step

    # From Python 3.12 on, for all threads.
    def _on_start(self, code: types.CodeType, offset: int) -> None:
        if self._of(code):
            sys.monitoring.set_local_events(self.tool, code, sys.monitoring.events.INSTRUCTION)

    def _on_instruction(self, code: types.CodeType, offset: int) -> None:
        self._meet(code, offset)
