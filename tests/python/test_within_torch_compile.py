"""Compiled functions and modules within what torch.compile has compiled: Dynamo leaves what they capture alone."""

import pytest
import torch
from torch import nn

import broach


class _Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.layer(x)) * 2


def _function(x):
    return torch.sin(x) * 2


@pytest.fixture(autouse=True)
def _reset():
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_function_that_is_captured_within(backend):
    fast = broach.compile(_function)
    outer = torch.compile(lambda x: fast(x) + 1, backend=backend)
    for n in (3, 3, 4, 5, 3, 1):
        x = torch.randn(n)
        torch.testing.assert_close(outer(x), _function(x) + 1)
    assert broach.explain(fast, torch.randn(3)).graphs > 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_module_under_gradients(backend):
    net = _Net()
    fast = broach.compile(net)
    outer = torch.compile(lambda x: fast(x).sum() + 1, backend=backend)
    with torch.enable_grad():
        for n in (3, 4, 3, 5, 3):
            x = torch.randn(n, 8)
            gradients = []
            for run in (outer, lambda x: net(x).sum() + 1):
                net.zero_grad()
                run(x).backward()
                gradients.append([p.grad for p in net.parameters()])
            for have, want in zip(*gradients):
                torch.testing.assert_close(have, want)


def test_dynamo_goes_on_behind_it():
    fast = broach.compile(_function)
    counter = torch._dynamo.testing.CompileCounter()
    outer = torch.compile(lambda x: torch.cos(fast(x)) + 1, backend=counter)
    x = torch.randn(3)
    for _ in range(3):
        torch.testing.assert_close(outer(x), torch.cos(_function(x)) + 1)
    assert counter.frame_count >= 1
