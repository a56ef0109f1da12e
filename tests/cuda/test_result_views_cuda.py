"""Several results in one memory that are views of a tensor which the program does not give, on a GPU."""

from __future__ import annotations

import copy

import broach
import pytest
import torch
from losses_of_data import weighed
from torch import nn


def _complex(y):
    z = torch.fft.rfft(y)
    return z.real, z.imag


PROGRAMS = {
    "chunk": lambda y: y.chunk(2, -1),
    "rows": lambda y: (y[:, 0], y[:, 1:]),
    "overlapping": lambda y: (y[:, :4], y[:, 2:]),
    "transposed": lambda y: y.t().split([1, 5]),
    "selected": lambda y: y[y[:, 0] > -9].unbind(-1),
    "complex": _complex,
    "beside what is made of one": lambda y: (*y.chunk(2, -1), y.chunk(2, -1)[0].exp()),
}


def _with_hook(results):
    results[0].register_hook(lambda g: g * 3)
    return weighed(results)


def _seen(f, layer, use, call):
    torch.manual_seed(call)
    layer.zero_grad()
    x = torch.randn(4 + call % 2, 6, device="cuda", requires_grad=True)
    results = f(x)
    facts = [(r.stride(), r.storage_offset(), r._is_view()) for r in results]
    use(results).backward()
    return facts, [*results, x.grad, layer.weight.grad, layer.bias.grad]


@pytest.mark.parametrize("use", [weighed, _with_hook, lambda results: results[1].pow(2).sum()])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_views(name, use):
    layer = nn.Linear(6, 6, device="cuda")
    twin = copy.deepcopy(layer)
    compiled = broach.compile(lambda x: PROGRAMS[name](layer(x)))
    for call in range(6):
        (ours, have), (facts, want) = _seen(compiled, layer, use, call), _seen(lambda x: PROGRAMS[name](twin(x)), twin, use, call)
        assert ours == facts
        torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-3)
    assert compiled.stats()["compiled_calls"] >= 2, compiled.stats()["eager_reasons"]
