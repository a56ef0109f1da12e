"""What is otherwise in the interpreter while programs are captured."""

from __future__ import annotations

from typing import Callable


def counted(begin: Callable[[], None], end: Callable[[], None]) -> tuple[Callable[[], None], Callable[[], None]]:
    """`enter` and `leave` of one of those: several threads may capture at once, of which the first begins it and the last ends it."""
    captures = 0

    def enter() -> None:
        nonlocal captures
        captures += 1
        if captures == 1:
            begin()

    def leave() -> None:
        nonlocal captures
        captures -= 1
        if captures == 0:
            end()

    return enter, leave
