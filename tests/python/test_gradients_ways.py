"""Gradients of programs that go by what they compute: a version for each way, and the gradients are those of the way taken."""

import pytest
import torch
import torch.nn.functional as F
from gradient_programs import check, grads, leaf
from torch import nn

import broach

pytestmark = pytest.mark.usefixtures("with_gradients")


class DropsLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            if self.training and torch.rand([]) < 0.4:
                continue
            x = F.dropout(layer(x).tanh(), 0.2, self.training) + x
        return x


def _observe(c, calls=24):
    model = DropsLayers()
    f, saw = c(model), []
    for i in range(calls):
        model.train(i % 6 != 5)
        model.zero_grad()
        x = leaf(3, 4)
        f(x).square().sum().backward()
        saw += [x.grad, grads(model), torch.get_rng_state().sum().item()]
    return saw


def test_layers_that_are_dropped_at_random():
    check(_observe)


def test_ways_are_compiled():
    model = DropsLayers()
    f = broach.compile(model)
    for _ in range(40):
        f(leaf(3, 4)).sum().backward()
    told = f.stats() if hasattr(f, "stats") else f._compiled_call.stats()
    assert told["compiled_calls"] >= 15 and not told["eager_reasons"], (told["eager_reasons"], told["reasons"])


def _branches_on_a_sum(x, w):
    y = (x @ w).relu()
    if y.sum() > 6:
        return y.exp(), x * 2
    return y.sin(), x * 3


def _counts(x, w):
    y = x * w
    n = int((y > 0).sum())
    return y * n if n > 4 else y[:1] * 2


def _writes_a_buffer(x, w):
    _writes_a_buffer.seen.add_(1)
    if _writes_a_buffer.seen.sum() % 2 < 1 and (x.sum() > 0):
        return x * w * _writes_a_buffer.seen[0]
    return x.sin() * w


def _scales_by_an_element(x, w):
    y = x * w
    scale = y.detach().abs().max().item()
    return y * scale if scale > 1 else y


@pytest.mark.parametrize("program", [_branches_on_a_sum, _counts, _writes_a_buffer, _scales_by_an_element])
def test_gradients_of_the_way_taken(program):
    def run(c):
        _writes_a_buffer.seen = torch.zeros(2)
        f, saw = c(program), []
        for i in range(14):
            x, w = leaf(3, 3), leaf(3, 3)
            out = f(x, w)
            outs = out if isinstance(out, tuple) else (out,)
            sum(o.square().sum() for o in outs).backward()
            saw += [list(outs), x.grad, w.grad, _writes_a_buffer.seen.clone()]
        return saw

    check(run)


def test_the_way_changes_between_forward_and_backward():
    def run(c):
        f, saw = c(_branches_on_a_sum), []
        for _ in range(8):
            pairs = [(leaf(3, 3), leaf(3, 3)) for _ in range(2)]
            outs = [f(*p) for p in pairs]
            for out, p in reversed(list(zip(outs, pairs))):
                out[0].sum().backward(retain_graph=True)
                saw += [t.grad.clone() for t in p]
        return saw

    check(run)


def test_sizes_that_are_equal_for_a_reason_that_only_a_guard_tells():
    """A length that is padded to a multiple: the gradient of what was padded has another expression for it."""
    norm = torch.nn.LayerNorm(8)

    def program(x):
        padded = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 16))
        y = norm(padded)
        return y.reshape(x.shape[0], -1, 16, 8).sum(2)

    fast = broach.compile(program)
    for batch, length in ((2, 5), (3, 7), (2, 9), (4, 12)):
        x = torch.randn(batch, length, 8, requires_grad=True)
        for a, b in zip(*(torch.autograd.grad(run(x).sin().sum(), (x, norm.weight, norm.bias)) for run in (program, fast)), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
