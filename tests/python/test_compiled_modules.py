"""What others do with the module that `broach.compile` gives: wrap its `forward`, ask for its signature, copy it."""

import copy
import functools
import inspect
import pickle

import pytest
import torch
from torch import nn

import broach


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self._settings = {"scale": 3.0}  # a name that a wrapper might want for itself

    def forward(self, input_ids, attention_mask=None):
        return self.inner(input_ids) * self._settings["scale"]


def twice(function):
    return functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs) * 2)


def as_it_is(module):
    return module


@pytest.mark.parametrize("compile", [as_it_is, broach.compile])
def test_a_wrapped_forward_runs_around_the_compiled_call(compile):
    """As libraries for mixed precision do: what they took from `forward` must not lead back to what they put there."""
    module, x = Scaled(), torch.randn(3, 4)
    want = module(x)
    compiled = compile(module)
    for factor in (2, 4):
        compiled.forward = twice(compiled.forward)
        torch.testing.assert_close([compiled(x), compiled.forward(x)], [want * factor] * 2)
    with compiled.register_forward_hook(lambda module, args, out: out + 1):
        torch.testing.assert_close(compiled(x), want * 4 + 1)
    torch.testing.assert_close(copy.deepcopy(compiled)(x), want * 4)
    del compiled.forward
    torch.testing.assert_close(compiled(x), want)
    with pytest.raises(AttributeError, match="forward"):
        del compiled.forward


def test_a_wrapped_forward_is_told_and_its_call_compiled():
    compiled, x = broach.compile(Scaled()), torch.randn(3, 4)
    compiled.forward = twice(compiled.forward)
    told = broach.explain(compiled, x)
    assert told.front == "native" and told.graphs == 1
    assert ["`forward` was replaced" in why for why in told.eager_reasons] == [True]
    del compiled.forward
    assert broach.explain(compiled, x).eager_reasons == []


@torch.enable_grad()
def test_mixed_precision_around_a_compiled_module_in_training():
    module, x = Scaled(), torch.randn(3, 4)
    other = copy.deepcopy(module)
    compiled = broach.compile(other)

    def mixed(function):
        return lambda *args: torch.autocast("cpu", torch.bfloat16)(function)(*args).float()

    module.forward, compiled.forward = mixed(module.forward), mixed(compiled.forward)
    for _ in range(3):
        want, have = module(x), compiled(x)
        torch.testing.assert_close(have, want, rtol=2e-2, atol=2e-2)
        want.square().mean().backward(), have.square().mean().backward()
        torch.testing.assert_close(other.inner.weight.grad, module.inner.weight.grad, rtol=2e-2, atol=2e-2)
    assert other.inner.weight.grad is not None and have.dtype == torch.float32


def test_signatures():
    module = Scaled()
    compiled = broach.compile(module)
    assert inspect.signature(compiled) == inspect.signature(module)
    assert inspect.signature(compiled.forward) == inspect.signature(module.forward)
    assert "module" in inspect.signature(type(compiled)).parameters


def test_names_of_the_given_module_are_its_own():
    module = Scaled()
    compiled = broach.compile(module)
    assert compiled._settings is module._settings
    compiled._settings = {"scale": 5.0}
    x = torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), module.inner(x) * 5.0)
    torch.testing.assert_close(pickle.loads(pickle.dumps(compiled))(x), module.inner(x) * 5.0)
