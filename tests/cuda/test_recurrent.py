"""Recurrent layers of cuDNN's, with and without gradients."""

from __future__ import annotations

import copy
import warnings

import broach
import pytest
import torch
from torch import nn

KINDS = {
    "lstm": lambda: nn.LSTM(12, 20),
    "gru": lambda: nn.GRU(12, 20, num_layers=3),
    "rnn": lambda: nn.RNN(12, 20, nonlinearity="relu"),
    "both ways": lambda: nn.LSTM(12, 20, num_layers=2, bidirectional=True),
    "projected": lambda: nn.LSTM(12, 20, proj_size=7),
    "batch first": lambda: nn.GRU(12, 20, batch_first=True, bias=False),
}


class _Model(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers, self.out = layers, nn.LazyLinear(5)

    def forward(self, x):
        y, states = self.layers(torch.tanh(x))
        last = states if isinstance(states, tuple) else (states,)
        return torch.softmax(self.out(y), -1).square().sum() + sum(s.sum() for s in last)


def _pair(kind, dtype=torch.float32):
    torch.manual_seed(0)
    model = _Model(KINDS[kind]()).cuda().to(dtype)
    model(torch.randn(4, 6, 12, device="cuda", dtype=dtype))
    return model, copy.deepcopy(model)


def _step(call, model, x):
    x = x.clone().requires_grad_()
    model.zero_grad()
    loss = call(x)
    loss.backward()
    return [loss.detach(), x.grad, *(p.grad for p in model.parameters())]


def _close(have, want, dtype=torch.float32):
    tolerance = 3e-2 if dtype == torch.bfloat16 else 2e-3
    for h, w in zip(have, want, strict=True):
        assert (h.double() - w.double()).norm() <= tolerance * w.double().norm() + 1e-6


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_layer_is_trained(kind, dtype):
    """In one program with what is around it, whose weights may lie apart: eager's warning of that is not the program's."""
    model, own = _pair(kind, dtype)
    compiled = broach.compile(own)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*contiguous chunk.*")
        have = [_step(compiled, own, torch.full((4, 6, 12), i / 8, device="cuda", dtype=dtype)) for i in range(8)]
    want = [_step(model, model, torch.full((4, 6, 12), i / 8, device="cuda", dtype=dtype)) for i in range(8)]
    for h, w in zip(have, want):
        _close(h, w, dtype)
    told = broach.explain(compiled, torch.randn(4, 6, 12, device="cuda", dtype=dtype))
    assert not told.eager_reasons and told.front == "native"
    assert "aten::_cudnn_rnn" in dict(told.externs)


def test_weights_change_between_steps():
    model, own = _pair("lstm")
    compiled = broach.compile(own)
    steps = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, own)]
    for i in range(8):
        x = torch.randn(4, 6, 12, device="cuda")
        _close(_step(compiled, own, x), _step(model, model, x))
        for s in steps:
            s.step()


def test_a_graph_is_gone_through_twice():
    """cuDNN's gradients write to what the layer has kept for them."""
    model, own = _pair("both ways")
    compiled, x = broach.compile(own), torch.randn(4, 6, 12, device="cuda")
    for _ in range(6):
        loss = compiled(x)
        first = torch.autograd.grad(loss, list(own.parameters()), retain_graph=True)
        second = torch.autograd.grad(loss, list(own.parameters()))
        want = torch.autograd.grad(model(x), list(model.parameters()))
        _close(first, want)
        _close(second, want)


def test_states_are_carried():
    torch.manual_seed(0)
    model = nn.LSTM(12, 20, batch_first=True).cuda()
    own = copy.deepcopy(model)
    compiled = broach.compile(own)
    for call, layer, seen in ((model, model, want := []), (compiled, own, have := [])):
        torch.manual_seed(1)
        states = (torch.zeros(1, 4, 20, device="cuda"), torch.zeros(1, 4, 20, device="cuda"))
        for _ in range(8):
            y, states = call(torch.randn(4, 6, 12, device="cuda"), states)
            y.square().sum().backward()
            states = tuple(s.detach() for s in states)
            seen += [y.detach(), *states]
        seen += [p.grad for p in layer.parameters()]
    _close(have, want)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_a_short_sequence_is_one_operation(kind):
    model, _ = _pair(kind)
    compiled = broach.compile(model)
    for i in range(6):
        x = torch.randn(2, 3, 12, device="cuda") + i
        _close([compiled(x)], [model(x)])
    told = broach.explain(compiled, x)
    assert not told.eager_reasons and len(told.externs) == 1


def test_dropout_between_layers_is_drawn_anew():
    torch.manual_seed(0)
    model = _Model(nn.LSTM(12, 20, num_layers=2, dropout=0.5)).cuda()
    x = torch.randn(4, 6, 12, device="cuda")
    model(x)
    compiled = broach.compile(model)
    losses = [_step(compiled, model, x)[0].item() for _ in range(6)]
    assert len(set(losses)) == len(losses)
