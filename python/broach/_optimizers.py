"""Steps of optimizers that are one kernel of torch's (`fused=True`), as operations, while a program is captured.

The formulas are those of `torch.optim`'s documentation in the order of torch's kernels: in fp32 for parameters of two bytes, each result
rounded once, where it is stored.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

import torch
from torch import Tensor

from ._native import _C

Update = Callable[..., "list[tuple[Tensor, Tensor]]"]  # what is stored, and where


def _fits(together: list[Tensor], steps: list[Tensor]) -> bool:
    """Torch's kernels go through memory as it lies, and through that of two-byte types on the CPU in a way of their own."""
    p = together[0]
    types = [torch.float32, torch.float64] + ([torch.bfloat16, torch.float16] if p.is_cuda else [])
    alike = all(
        t.dtype == p.dtype and t.device == p.device and t.shape == p.shape and t.stride() == p.stride() and t.layout == torch.strided
        for t in together
    )
    return alike and p.dtype in types and all(t.device == p.device and t.numel() == 1 for t in steps)


def _wide(t: Tensor) -> Tensor:
    return t if t.element_size() >= 4 else t.float()


def _taken_apart(original: Callable, lists: int, steps: int, update: Update) -> Callable:
    """`lists`: of the arguments, how many are lists of tensors, of which the last `steps` are counts."""
    known = {name for name, p in inspect.signature(update).parameters.items() if p.kind is p.KEYWORD_ONLY} | {"maximize"}

    @functools.wraps(original)
    def function(*given: Any, lr: Any, grad_scale: Tensor | None = None, found_inf: Tensor | None = None, **how: Any) -> None:
        whole = functools.partial(original, *given, lr=lr, grad_scale=grad_scale, found_inf=found_inf, **how)
        if not _C.is_capturing() or len(given) != lists or how.keys() != known or torch.is_grad_enabled():
            return whole()
        maximize = how.pop("maximize")
        count = len(given[0])
        used = [tensors for tensors in given if tensors]
        if any(len(tensors) != count for tensors in used) or not given[0] or not given[1]:
            return whole()  # whose error it is
        kinds = used[: len(used) - steps], used[len(used) - steps :]
        if not all(_fits([t[i] for t in kinds[0]], [t[i] for t in kinds[1]]) for i in range(count)):
            return whole()
        rate = lr.double() if isinstance(lr, Tensor) else lr
        for i in range(count):
            at = [tensors[i] if tensors else None for tensors in given]
            gradient = _wide(at[1])
            stored = []
            if grad_scale is not None:
                gradient = gradient / grad_scale
                stored.append((at[1], gradient))
            stored += update(at, -gradient if maximize else gradient, rate, **how)
            with torch.autograd._unsafe_preserve_version_counter(tuple(place for place, _ in stored)):  # as torch's kernels do
                for place, value in stored:
                    place.copy_(value if found_inf is None else torch.where(found_inf == 1, place, value))

    return function


def _adam(decoupled: bool) -> Update:
    def update(at: list[Tensor], g: Tensor, lr: Any, *, beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool) -> list[tuple[Tensor, Tensor]]:  # fmt: skip
        place, _, first, second, most, step = at
        p, count = _wide(place), step.double()
        if not step.is_cuda:
            count = count.trunc()
        size, root = lr / (1 - beta1**count), (1 - beta2**count).sqrt()
        if weight_decay != 0 and decoupled:
            p = p - p * (lr * weight_decay)
        elif weight_decay != 0:
            g = g + p * weight_decay
        m = torch.lerp(_wide(first), g, 1 - beta1)
        v = _wide(second) * beta2 + g * g * (1 - beta2)
        stored = [(first, m), (second, v)]
        if amsgrad:
            v = torch.maximum(_wide(most), v)
            stored.append((most, v))
        return [*stored, (place, p - size * m / (v.sqrt() / root + eps))]

    return update


def _sgd(at: list[Tensor], g: Tensor, lr: Any, *, momentum: float, weight_decay: float, dampening: float, nesterov: bool, is_first_step: bool) -> list[tuple[Tensor, Tensor]]:  # fmt: skip
    place, _, kept = at
    p = _wide(place)
    if weight_decay != 0:
        g = g + p * weight_decay
    stored = []
    if momentum != 0:
        m = g if is_first_step else _wide(kept) * momentum + g * (1 - dampening)
        stored.append((kept, m))
        g = g + m * momentum if nesterov else m
    return [*stored, (place, p - g * lr)]


def _adagrad(at: list[Tensor], g: Tensor, lr: Any, *, lr_decay: float, weight_decay: float, eps: float) -> list[tuple[Tensor, Tensor]]:  # fmt: skip
    place, _, total, step = at
    p, rate = _wide(place), lr / (1 + (step.double() - 1) * lr_decay)
    if weight_decay != 0:
        g = g + p * weight_decay
    s = _wide(total) + g * g
    return [(total, s), (place, p - rate * g / (s.sqrt() + eps))]


_REPLACED = {
    "_fused_adam_": _taken_apart(torch._fused_adam_, 6, 1, _adam(decoupled=False)),
    "_fused_adamw_": _taken_apart(torch._fused_adamw_, 6, 1, _adam(decoupled=True)),
    "_fused_sgd_": _taken_apart(torch._fused_sgd_, 3, 0, _sgd),
    "_fused_adagrad_": _taken_apart(torch._fused_adagrad_, 4, 1, _adagrad),
}
_C.add_stand_ins("optimizers", torch, _REPLACED)
