"""The module that ``broach.compile(module)`` gives: the given module seen through one whose call is compiled.

As with torch.compile, attributes, training flag, moves and hooks are the given module's own, and its parameters appear under
``_orig_mod``.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ._native import _C
from ._options import Options

# Fields of the wrapper itself; everything else is read from and written to the given module.
_OWN = frozenset({"_orig_mod", "_compiled_call", "_settings", "forward", "__dict__", "_wrapper_is_made", "_is_full_backward_hook"})


class CompiledModule(nn.Module):
    def __init__(self, module: nn.Module, settings: tuple):
        # First, because reads and writes of other attributes go to the module.
        object.__setattr__(self, "_orig_mod", module)
        self._wrapper_is_made = False
        super().__init__()
        self._wrapper_is_made = True
        self._orig_mod = module
        self._settings = settings
        self._make_call()

    def _make_call(self) -> None:
        from ._front import compile_natively

        options, fullgraph, dynamic = self._settings
        self._compiled_call = compile_natively(self._modules["_orig_mod"], Options(options), fullgraph, dynamic)
        self.forward = self._compiled_call

    # __call__ is a method written in C, set below.

    def __reduce__(self) -> Any:
        return type(self), (self._orig_mod, self._settings)

    @property
    def training(self) -> bool:  # type: ignore[override]
        return self._orig_mod.training

    @training.setter
    def training(self, value: bool) -> None:
        # nn.Module.__init__ sets its own default, which is not the given module's.
        if self._wrapper_is_made:
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if (name in _OWN or hasattr(type(self), name)) and not (name == "forward" and "_compiled_call" in self.__dict__ and value is not self._compiled_call):
            return super().__setattr__(name, value)
        return setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN or hasattr(type(self), name):
            return super().__delattr__(name)
        return delattr(self._orig_mod, name)

    def __len__(self) -> int:
        return len(self._orig_mod)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return not hasattr(type(self._orig_mod), "__len__") or len(self) > 0

    def __dir__(self) -> list[str]:
        names = self._orig_mod.__dir__()
        return names + [name for name in super().__dir__() if name not in names]


_C.install_module_call(CompiledModule)
