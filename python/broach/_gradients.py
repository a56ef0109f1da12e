"""`Tensor.grad` while a program is captured: functions of Python's, whose calls the watch sees (`Watch::on_own_call`)."""

from __future__ import annotations

import torch

from ._native import _C

_own = torch._C.TensorBase.grad  # type: ignore[attr-defined]
torch.overrides.get_default_nowrap_functions()  # remembers for good what `Tensor.grad` is as it is first called


def read_gradient(self: torch.Tensor) -> torch.Tensor | None:
    return _own.__get__(self)


def write_gradient(self: torch.Tensor, *value: object) -> None:
    if value:
        _own.__set__(self, *value)
    else:
        _own.__delete__(self)


_seen = property(read_gradient, write_gradient, write_gradient, _own.__doc__)


_C.add_stand_ins("gradients", torch.Tensor, {"grad": _seen})
