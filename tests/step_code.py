"""Custom functions for training steps, and steps through them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class _Scaled(torch.autograd.Function):
    """Attributes of the context, several inputs, some without gradients, and setup_context."""

    @staticmethod
    def forward(x, w, scale, note):
        return x * w * scale

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, w, ctx.scale, ctx.note = inputs
        ctx.save_for_backward(x, w, output)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        x, w, out = ctx.saved_tensors
        assert ctx.note == "note" and out.shape == g.shape
        return (g * w * ctx.scale if ctx.needs_input_grad[0] else None), (g * x * ctx.scale).sum(0), None, None


class _Two(torch.autograd.Function):
    """Two results, of which the program uses one or both."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, a, b):
        if a is None:
            return b * 3
        return a * 2 if b is None else a + b


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 2


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, amount):
        ctx.amount = amount
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.amount * g, None


def _in_place_of_a_window(m, out):
    out = out * 1
    _InPlace.apply(out[:, :2])
    return out


def _scaled(m, out):
    return _Scaled.apply(out, m[3].bias, 0.5, "note")


FUNCTIONS = {
    "square": lambda m, out: Square.apply(out),
    "twice": lambda m, out: Square.apply(Square.apply(out)) * 0.1,
    "scaled": _scaled,
    "first_of_two": lambda m, out: _Two.apply(out)[0],
    "second_of_two": lambda m, out: _Two.apply(out)[1],
    "both": lambda m, out: sum(_Two.apply(out)),
    "in_place": lambda m, out: _InPlace.apply(out * 1),
    "in_place_of_a_window": _in_place_of_a_window,
    "reversed": lambda m, out: _Reversed.apply(out, 0.3),
}


def step_through(program):
    def step(m, o, x, y):
        o.zero_grad()
        loss = F.mse_loss(program(m, m(x)), y)
        loss.backward()
        o.step()
        return loss.detach()

    return step
