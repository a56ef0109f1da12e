"""Sequences of calls between which something changes: modules' state, arguments, globals, hooks, modes, weights. Each is a function that
compiles with `c` and logs with `L`, which copies what it is given at once; `programs_sequences.py` makes programs of them."""
import io
import json
import math
import os
import pickle
import sys
import tempfile

import torch
import torch.nn.functional as F
from torch import nn

CASES = {}
FOLDER = tempfile.gettempdir()
_generator = torch.Generator()


def case(function):
    assert function.__name__ not in CASES, function.__name__
    CASES[function.__name__] = function
    return function


def R(*sizes, grad=False, dtype=torch.float32):
    """Random numbers that leave torch's own generator alone."""
    return torch.randn(*sizes, generator=_generator).to(dtype).requires_grad_(grad)


def A(*sizes, dtype=torch.float32):
    n = math.prod(sizes) if sizes else 1
    return (torch.arange(n) - n // 3).to(dtype).reshape(sizes)


def described(tensor, depth):
    plain = tensor.detach().as_subclass(torch.Tensor)
    strides = list(tensor.stride()) if plain.layout is torch.strided else str(plain.layout)
    plain = plain if plain.layout is torch.strided else plain.to_dense()
    grad = tensor.grad if tensor.is_leaf else None
    return (type(tensor).__name__, str(tensor.dtype), strides, tensor.requires_grad, tensor.is_leaf,
            plain.resolve_conj().resolve_neg().clone().contiguous(), None if grad is None else described(grad, depth + 1))


def snapshot(value, depth=0):
    """What `value` is by now, of which later changes show nothing."""
    below = depth + 1
    if isinstance(value, torch.Tensor):
        return described(value, depth)
    if value is None or type(value) in (bool, int, float, complex, str, bytes):
        return value
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, [snapshot(v, below) for v in value])
    if isinstance(value, dict):
        return (type(value).__name__, [(snapshot(k, below), snapshot(v, below)) for k, v in value.items()])
    if isinstance(value, (set, frozenset)):
        return (type(value).__name__, sorted((snapshot(v, below) for v in value), key=repr))
    if type(value).__module__ == "numpy":
        return (type(value).__name__, str(value.dtype), list(value.shape), value.tolist())
    if isinstance(value, (torch.dtype, torch.device)):
        return repr(value)
    if hasattr(value, "__dict__") and not callable(value) and depth < 12:
        return (type(value).__name__, {k: snapshot(v, below) for k, v in vars(value).items()})
    return (type(value).__name__,)


class Log(list):
    def __call__(self, *values):
        self.extend(snapshot(v) for v in values)
        return values[0] if len(values) == 1 else values

    def t(self, function, *args, **kwargs):
        """Logs the result, or the type of the error."""
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            self.append(("raised", type(error).__name__))
            return None
        return self(result)


def run(name, c):
    _generator.manual_seed(sum(map(ord, name)))
    torch.manual_seed(7)
    log = Log()
    CASES[name](c, log)
    return list(log)
