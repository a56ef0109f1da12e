"""Calls in a graph of Dynamo's that are more than an operation: higher-order operators, and functions that Dynamo was told to leave
whole (``allow_in_graph``).

Operators whose own implementation does nothing but operations on tensors are recorded through it: a condition reads its predicate
on the host, so each branch is a way of its own. Loops and whatever is not known are one operation of the program, `broach::region`:
it runs torch's own implementation, in which each sub-graph is a program that is compiled by itself.
"""

from __future__ import annotations

import itertools
import types
import weakref
from typing import Any, Callable

import torch
from torch.utils import _pytree as pytree

from ._native import _C

# Operators that are recorded through their own implementation.
TRANSPARENT = frozenset(
    """
    cond associative_scan hints_wrapper out_dtype strict_mode invoke_subgraph flex_attention custom_function_call
    autograd_function_apply wrap wrap_with_autocast wrap_with_set_grad_enabled wrap_activation_checkpoint
    tag_activation_checkpoint dynamo_bypassing_wrapper auto_functionalized auto_functionalized_v2
    """.split()
)
# Of these the carried tensors come back with the sizes that they have.
CARRYING = frozenset({"while_loop"})
# Whose functions are operations on tensors, or Python's own. Torch lets Dynamo leave einops' whole.
KNOWN = frozenset({"torch", "_operator", "operator", "builtins", "math", "einops"})

_regions: "weakref.WeakValueDictionary[int, Region]" = weakref.WeakValueDictionary()
_numbers = itertools.count()


def let_captures_pass() -> None:
    """The keys by which a capture sees operations mean nothing to operators of higher order, as they mean nothing to others."""
    keys = [torch._C._dispatch_key_parse(name) for name in _C.capture_keys()]
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.extend(keys)  # for those that are still to come
    for operator in list(torch._ops._higher_order_ops.values()):
        for key in keys:
            operator.fallthrough(key)


def _home(thing: Any) -> str:
    """The package that it belongs to."""
    return (getattr(thing, "__module__", None) or type(thing).__module__).split(".")[0]


def _is_transparent(target: Any) -> bool:
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name() in TRANSPARENT
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    owner = target.__self__ if isinstance(target, types.MethodType) else target
    return _home(target) in KNOWN and _home(owner) in KNOWN


def is_region(node: torch.fx.Node, operands: Any) -> bool:
    """Whether a call in a graph is recorded as one operation."""
    if node.op != "call_function":
        return False
    if not _is_transparent(node.target):
        return True
    if not isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    inner = [m for m in pytree.tree_leaves(operands) if isinstance(m, torch.fx.GraphModule)]
    return any(_has_region(m) for m in inner)


# What a graph may say of gradients beside what its operations are: methods of tensors, and packages of functions.
OF_AUTOGRAD = frozenset(
    """
    register_hook register_post_accumulate_grad_hook retain_grad requires_grad_ backward grad grad_fn detach_ _backward_hooks
    """.split()
)
FUNCTORCHS = ("torch._C._functorch", "torch._functorch", "torch.func")
AUTOGRADS = ("torch.autograd", "torch._C._autograd", "torch.utils", "torch._dynamo", *FUNCTORCHS)


def _module(target: Any) -> str:
    return getattr(target, "__module__", None) or ""


def differs_under_gradients(gm: torch.fx.GraphModule) -> str:
    """What of a graph of Dynamo's means something else to autograd than the calls that it stands for: it leaves that to compilers
    which treat it in their own way. Empty if there is nothing such."""
    for n in gm.graph.nodes:
        if n.op == "call_method" and n.target in OF_AUTOGRAD:
            return f"calls Tensor.{n.target}"
        if n.op != "call_function":
            continue
        if isinstance(n.target, torch._ops.HigherOrderOperator):
            return f"calls the higher-order operator {n.target.name()}"
        if not _is_transparent(n.target):
            return f"calls {n.target}, which Dynamo was told to leave whole"
        if _module(n.target).startswith(AUTOGRADS):
            return f"calls {_module(n.target)}.{getattr(n.target, '__name__', n.target)}"
        if n.target is getattr and n.args[1] in OF_AUTOGRAD:
            return f"reads Tensor.{n.args[1]}"
    return ""


def must_run_as_it_is(gm: torch.fx.GraphModule, gradients: bool) -> str:
    """Why a graph of Dynamo's is run by its own calls. It leaves settings of torch behind; or, under gradients, applies custom functions:
    were the frame left to eager, Dynamo would compile their ``forward`` by itself, and lose what that marks. Empty if there is no reason."""
    grad_mode = torch.is_grad_enabled()
    for n in gm.graph.nodes:
        if n.op != "call_function":
            continue
        name = getattr(n.target, "__name__", "")
        if n.target is torch._C._set_grad_enabled:
            grad_mode = n.args[0]
        elif _module(n.target) in ("torch", "torch._C") and name.lstrip("_").startswith("set_"):
            return f"calls {name}"
        elif gradients and name == "autograd_function_apply":
            return "applies a custom autograd.Function under gradients"
    return "" if grad_mode == torch.is_grad_enabled() else "leaves gradients enabled or disabled"


def transforms_functions(gm: torch.fx.GraphModule) -> bool:
    """Whether a graph of Dynamo's has the steps of `torch.func`: it has taken custom functions apart, whose own rules are lost."""
    return any(n.op == "call_function" and _module(n.target).startswith(FUNCTORCHS) for n in gm.graph.nodes)


def _has_region(module: torch.fx.GraphModule) -> bool:
    graphs = [m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule)]
    return any(n.op == "call_function" and not _is_transparent(n.target) for g in graphs for n in g.nodes)


class Region:
    """One such call, as it was recorded: what it is given besides tensors and sizes, and the form of what it gives."""

    def __init__(self, target: Callable, operands: Any, compiled: Callable[[torch.fx.GraphModule], Callable]):
        self.target = target
        self.number = next(_numbers)
        leaves, self.form = pytree.tree_flatten(operands)
        self.tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        self.sizes = [i for i, x in enumerate(leaves) if isinstance(x, torch.SymInt)]
        self.given = [leaves[i] for i in self.tensors], [leaves[i] for i in self.sizes]
        taken = {*self.tensors, *self.sizes}
        self.leaves = [None if i in taken else self._constant(x, compiled) for i, x in enumerate(leaves)]
        self.carries = isinstance(target, torch._ops.HigherOrderOperator) and target.name() in CARRYING
        self.result: Any = None  # the form of what it gives, and the leaves that are no tensors
        self.problem = ""
        _regions[self.number] = self

    @staticmethod
    def _constant(x: Any, compiled: Callable[[torch.fx.GraphModule], Callable]) -> Any:
        if isinstance(x, torch.fx.GraphModule):
            return compiled(x)
        return float(x) if isinstance(x, torch.SymFloat) else x

    def record(self) -> Any:
        """Runs it while a program is captured, for which it becomes one operation."""
        given, self.given = self.given, ([], [])
        outputs = iter(torch.ops.broach.region(*given, self.number))
        if self.problem:
            _C.reject_capture(f"{self.target} {self.problem}")
        form, constants = self.result
        return pytree.tree_unflatten([next(outputs) if x is _TENSOR else x for x in constants], form)

    def run(self, tensors: list[torch.Tensor], sizes: list[int]) -> list[torch.Tensor]:
        leaves = list(self.leaves)
        for i, x in zip(self.tensors + self.sizes, [*tensors, *sizes]):
            leaves[i] = x
        args, kwargs = pytree.tree_unflatten(leaves, self.form)
        if self.result is not None:
            return _apart([x for x in pytree.tree_leaves(self.target(*args, **kwargs)) if isinstance(x, torch.Tensor)], tensors)
        versions = [_version(t) for t in tensors]
        outputs, form = pytree.tree_flatten(self.target(*args, **kwargs))
        self.result = form, [_TENSOR if isinstance(x, torch.Tensor) else x for x in outputs]
        if [_version(t) for t in tensors] != versions:
            self.problem = "writes to what it is given"
        elif any(x is not _TENSOR and x is not None for x in self.result[1]):
            self.problem = "gives something that is no tensor"
        elif torch.is_autocast_enabled("cpu"):
            self.problem = "is called under autocast"
        return _apart([x for x in outputs if isinstance(x, torch.Tensor)], tensors)

    def like(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors without elements that lie like what it gives."""
        if not self.carries or self.problem:
            raise NotImplementedError(f"{self.target} has no rule for sizes")
        count = sum(x is _TENSOR for x in self.result[1])
        return [torch.empty_like(t) for t in tensors[:count]]


class _Tensor:
    """Stands for the next tensor among the leaves of a result."""


_TENSOR = _Tensor()


def _version(t: torch.Tensor) -> int:
    return -1 if t.is_inference() else t._version


def _apart(outputs: list[torch.Tensor], given: list[torch.Tensor]) -> list[torch.Tensor]:
    """Results in memory of their own, as an operation gives them."""
    taken = {t.untyped_storage()._cdata for t in given if not t.is_meta}
    out = []
    for t in outputs:
        memory = t.untyped_storage()._cdata
        out.append(t.clone() if memory in taken else t)
        taken.add(memory)
    return out


def _region(operands: list[torch.Tensor], sizes: list[int], number: int) -> list[torch.Tensor]:
    return _regions[number].run(operands, sizes)


def _region_meta(operands: list[torch.Tensor], sizes: list[int], number: int) -> list[torch.Tensor]:
    return _regions[number].like(operands)


_library = torch.library.Library("broach", "FRAGMENT")
_library.define("region(Tensor[] operands, SymInt[] sizes, int number) -> Tensor[]")
_library.impl("region", _region, "CompositeExplicitAutograd")
_library.impl("region", _region_meta, "Meta")
let_captures_pass()
