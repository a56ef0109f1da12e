"""What is otherwise in the interpreter while programs are captured."""

from __future__ import annotations

from typing import Any, Callable


class Replacements:
    """What stands in a class or module while programs are captured, by name: but where somebody else, as a test that mocks a function, has
    put something there, before or meanwhile."""

    def __init__(self, owner: Any, stand_ins: dict[str, Any]):
        self.owner = owner
        self.stand_ins = stand_ins
        self.originals = {name: vars(owner).get(name) for name in stand_ins}  # None for what it inherits

    def begin(self) -> None:
        for name, stand_in in self.stand_ins.items():
            if vars(self.owner).get(name) is self.originals[name]:
                setattr(self.owner, name, stand_in)

    def end(self) -> None:
        for name, stand_in in self.stand_ins.items():
            if vars(self.owner).get(name) is not stand_in:
                continue
            if self.originals[name] is None:
                delattr(self.owner, name)
            else:
                setattr(self.owner, name, self.originals[name])


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
