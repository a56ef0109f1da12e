"""Gradients of a batch norm that was evaluated: eager reads the running statistics as they are by then, which a training call in between has
written though nobody counts that, and all else as the call left it."""

import broach
import pytest
import torch
from torch import nn

MODELS = {
    "behind a product": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
    "two in a row": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)),
    "with activations": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GELU()),
    "behind convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Sigmoid()
    ),
}


def gradients(make, compile_):
    torch.manual_seed(0)
    model = make().double()
    run, out = compile_(model), []
    for _ in range(4):
        evaluated, trained = torch.randn(6, 4, dtype=torch.float64) * 3 + 1, torch.randn(6, 4, dtype=torch.float64) * 3 + 1
        with torch.enable_grad():
            model.eval()
            result = run(evaluated)
            model.train()
            run(trained)
            result.pow(3).mean().backward()
        out += [p.grad for p in model.parameters()]
        model.zero_grad()
    return out


@pytest.mark.parametrize("budget", [1.0, 0.3])
@pytest.mark.parametrize("name", MODELS)
def test_a_training_call_before_the_backward_of_an_evaluation(name, budget):
    expected = gradients(MODELS[name], lambda model: model)
    got = gradients(MODELS[name], lambda model: broach.compile(model, options={"memory_budget": budget}))
    for a, b in zip(got, expected):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)
