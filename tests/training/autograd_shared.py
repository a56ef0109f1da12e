from harness import *
import copy, torch.nn as nn, torch.nn.functional as F

from torch.autograd import grad

from torch.utils.checkpoint import checkpoint


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def G(n=3, **k):
    return torch.randn(n, 4, requires_grad=True)


class Sq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x * ctx.k * 10, None


class Rev(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return -g


class RevV(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -g


class Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(a, b)
        i = a.argmax()
        ctx.mark_non_differentiable(i)
        return a * b, a + b, i

    @staticmethod
    def backward(ctx, g, h, _):
        a, b = ctx.saved_tensors
        ga = gb = None
        if g is not None:
            ga = g * b
            gb = g * a
        if h is not None:
            ga = h if ga is None else ga + h
        return ga, gb


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.exp())
        return x.exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (e,) = ctx.saved_tensors
        return g * e
