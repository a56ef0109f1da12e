"""Numbers of a program while they are captured as symbols.

They are torch's symbolic numbers, with whose nodes its operations know what to do, and say besides that they are Python's: a
program that asks whether it was given an ``int`` or a ``float`` takes the way that it takes with the numbers themselves.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import torch


def _wrap(node: Any) -> Any:
    if node.is_constant():
        return node.guard_int("", 0)
    return Int(node) if node.is_int() else Float(node) if node.is_float() else torch.SymBool(node)


def _node(value: object, like: Any) -> Any:
    if type(value) in (Int, Float, torch.SymInt, torch.SymFloat):
        return value.node  # type: ignore[attr-defined]
    if type(value) in (int, bool):
        return like.wrap_int(int(value))  # type: ignore[call-overload]
    return like.wrap_float(value) if type(value) is float else None


def _binary(name: str, reflected: bool = False) -> Callable[[Any, object], Any]:
    def operator(self: Any, other: object) -> Any:
        node = _node(other, self.node)
        if node is None:
            return NotImplemented
        left, right = (node, self.node) if reflected else (self.node, node)
        return _wrap(getattr(left, name)(right))

    return operator


class _Number:
    node: Any

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return _wrap(self.node.neg())

    def __abs__(self) -> Any:
        return self if self >= 0 else -self  # type: ignore[operator]

    def __hash__(self) -> int:
        raise TypeError("a number that is a symbol has no hash")

    def __bool__(self) -> bool:
        return self.node.bool_()

    def __float__(self) -> float:
        return self.node.guard_float("", 0)

    def __repr__(self) -> str:
        return repr(self._plain())

    def __format__(self, spec: str) -> str:
        return format(self._plain(), spec)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self._plain(), digits)

    def __divmod__(self, other: object) -> Any:
        return self // other, self % other  # type: ignore[operator]

    def _plain(self) -> Any:
        return self.node.guard_int("", 0) if self.node.is_int() else self.node.guard_float("", 0)


for _method, _name in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv", "mod": "mod", "pow": "pow"}.items():
    setattr(_Number, f"__{_method}__", _binary(_name))
    setattr(_Number, f"__r{_method}__", _binary(_name, reflected=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(_Number, f"__{_name}__", _binary(_name))


class Int(_Number, torch.SymInt):
    """An integer."""

    __class__ = property(lambda self: int)  # type: ignore[assignment]

    def __int__(self) -> int:
        return self.node.int_()

    __index__ = __trunc__ = __floor__ = __ceil__ = __int__


class Float(_Number, torch.SymFloat):
    """A floating point number."""

    __class__ = property(lambda self: float)  # type: ignore[assignment]

    def __int__(self) -> int:
        return int(self._plain())

    def __floor__(self) -> int:
        return math.floor(self._plain())

    def __ceil__(self) -> int:
        return math.ceil(self._plain())

    __trunc__ = __int__

    def is_integer(self) -> bool:
        return self._plain().is_integer()
