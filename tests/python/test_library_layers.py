"""A recurrent layer as cuDNN's operations, which nothing but a GPU has: here others take their places, that do as much wrong as cuDNN's may."""

from __future__ import annotations

import broach
import pytest
import torch
from torch import nn


def _forward(x, weights, _stride, together, hx, cx, *_rest):
    assert together is None
    kept = torch.full((x.numel(),), 7, dtype=torch.uint8)
    return x @ weights[0].T + weights[1] + hx[0], hx + 0.5, cx * 2, kept, torch.cat([w.flatten() for w in weights])


def _backward(x, weights, _stride, together, hx, cx, y, dy, dhy, dcy, *rest):
    kept, asked = rest[-2:]
    assert (kept == 7).all()
    kept.zero_()  # as cuDNN does
    dy = torch.zeros_like(y) if dy is None else dy
    one = torch.empty(together.numel())  # in which all gradients lie
    split = weights[0].numel()
    parts = [one[:split].view_as(weights[0]), one[split:].view_as(weights[1])]
    parts[0].copy_(dy.flatten(0, 1).T @ x.flatten(0, 1))
    parts[1].copy_(dy.flatten(0, 1).sum(0))
    dhx = dy.sum(0)[None] + (0 if dhy is None else dhy)
    return dy @ weights[0], dhx, torch.zeros_like(cx) if dcy is None else 2 * dcy, parts if asked[3] else []


@pytest.fixture(autouse=True)
def _operations():
    library = torch.library.Library("aten", "IMPL")
    library.impl("_cudnn_rnn", _forward, "CPU")
    library.impl("_cudnn_rnn_backward", _backward, "CPU")
    with torch.enable_grad():
        yield
    library._destroy()


class _Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias, self.out = nn.Parameter(torch.randn(6, 5)), nn.Parameter(torch.randn(6)), nn.Linear(6, 3)

    def forward(self, x):
        h = torch.zeros(1, x.shape[1], 6)
        rest = (2, None, h, h + 1, 2, 6, 0, 1, False, 0.0, True, False, [], None)
        y, hy, _cy, _kept, _together = torch.ops.aten._cudnn_rnn(torch.tanh(x), [self.weight, self.bias], *rest)
        return torch.tanh(self.out(y)).sum() + hy.sum()


def _step(call, model, x):
    x = x.clone().requires_grad_()
    model.zero_grad()
    call(x).backward()
    return [x.grad, *(p.grad for p in model.parameters())]


def test_gradients_that_lie_in_one_piece():
    model = _Model()
    compiled = broach.compile(model)
    for _ in range(6):
        x = torch.randn(4, 2, 5)
        torch.testing.assert_close(_step(compiled, model, x), _step(model, model, x))
    told = broach.explain(compiled, x)
    assert not told.eager_reasons and "aten::_cudnn_rnn" in dict(told.externs)


def test_what_a_layer_keeps_serves_twice():
    model, x = _Model(), torch.randn(4, 2, 5)
    compiled = broach.compile(model)
    for _ in range(4):
        loss = compiled(x)
        first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        torch.testing.assert_close(first, torch.autograd.grad(loss, list(model.parameters())))


def test_gradients_that_lie_in_one_piece_are_added_to_and_written():
    model, own, x = _Model(), _Model(), torch.randn(4, 2, 5)
    own.load_state_dict(model.state_dict())
    compiled = broach.compile(own)
    for _ in range(5):
        for call in (model, compiled):
            call(x).backward()
        for m in (model, own):
            m.weight.grad.mul_(0.5)
            m.bias.grad.add_(1)
        torch.testing.assert_close([p.grad for p in own.parameters()], [p.grad for p in model.parameters()])
