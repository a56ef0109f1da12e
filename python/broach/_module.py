"""The module that ``broach.compile(module)`` gives: the given module seen through one whose call is compiled.

As with torch.compile, attributes, training flag, moves and hooks are the given module's own, its parameters appear under
``_orig_mod``, and ``forward`` is the compiled call: whoever wraps it and puts the result there, as for mixed precision, has that run,
around the compiled call. Libraries that save, unwrap or distribute models ask by `isinstance` for what torch.compile gives, and are told
that it is one.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, Callable

from torch import nn

from ._native import _C
from ._options import Options

# Fields of the wrapper itself; everything else is read from and written to the given module.
_OWN = frozenset({"_orig_mod", "_compiled_call", "_broach_settings", "forward", "__dict__", "_wrapper_is_made", "_is_full_backward_hook"})


class CompiledModule(nn.Module):
    """A module whose call is compiled."""

    def __init__(self, module: nn.Module, settings: tuple):
        # First, because reads and writes of other attributes go to the module.
        object.__setattr__(self, "_orig_mod", module)
        self._wrapper_is_made = False
        super().__init__()
        self._wrapper_is_made = True
        self._orig_mod = module
        self._broach_settings = settings
        self._make_call()

    def _make_call(self) -> None:
        self.forward = self._compiled_call = self.dynamo_ctx(self._modules["_orig_mod"])

    # __call__ is a method written in C, set below.

    @property
    def _forward_is_replaced(self) -> bool:
        return self.__dict__["forward"] is not self._compiled_call

    def __reduce__(self) -> Any:
        return type(self), (self._orig_mod, self._broach_settings), {"forward": self.forward} if self._forward_is_replaced else None

    @property
    def training(self) -> bool:  # type: ignore[override]
        return self._orig_mod.training

    @training.setter
    def training(self, value: bool) -> None:
        # nn.Module.__init__ sets its own default, which is not the given module's.
        if self._wrapper_is_made:
            self._orig_mod.training = value

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """torch.compile's class of modules, once somebody has loaded it: who asks for it has, and it takes most of a second."""
        return getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", type(self))

    def _get_name(self) -> str:
        return type(self).__name__

    def dynamo_ctx(self, function: Callable) -> Any:
        """Compiles another function as the module was: what Lightning does with the steps of a compiled model, each time that it gets it."""
        from ._front import compile_natively

        options, fullgraph, dynamic = self._broach_settings
        function = function.__wrapped__ if isinstance(function, _C.Callable) else function
        return compile_natively(function, Options(options), fullgraph, dynamic)

    @property
    def _compile_kwargs(self) -> dict[str, Any]:
        """What Lightning Fabric gives to torch.compile, to compile the model again as it has wrapped it."""
        options, fullgraph, dynamic = self._broach_settings
        return {"backend": "broach", "options": dict(options), "fullgraph": fullgraph, "dynamic": dynamic}

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self._modules["_orig_mod"]
        if name == "__signature__":  # which a method written in C has not
            return inspect.signature(self._orig_mod)
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or hasattr(type(self), name):
            return super().__setattr__(name, value)
        return setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name == "forward":
            if not self._forward_is_replaced:
                raise AttributeError(name)
            self.forward = self._compiled_call
            return None
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
