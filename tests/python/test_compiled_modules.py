"""What others do with the module that `broach.compile` gives: wrap its `forward`, ask for its signature, copy it."""

import copy
import functools
import inspect
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_model_state_dict

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


def compiled_by(compile):
    module = Scaled()
    compiled = compile(module)
    compiled(torch.randn(1, 4))
    return module, compiled


@pytest.mark.parametrize("compile", [functools.partial(torch.compile, backend="eager"), broach.compile])
def test_libraries_find_the_given_module(compile):
    """Accelerate and Lightning unwrap, and torch saves, what is an instance of torch.compile's class."""
    module, compiled = compiled_by(compile)
    assert isinstance(compiled, torch._dynamo.OptimizedModule) and isinstance(compiled, nn.Module)
    assert compiled._orig_mod is module
    saved = get_model_state_dict(compiled)
    assert saved.keys() == module.state_dict().keys()
    other = Scaled()
    assert not set_model_state_dict(compile(other), saved).missing_keys
    assert torch.equal(other.inner.weight, module.inner.weight)
    optimizer = torch.optim.Adam(compiled.parameters())
    names = get_optimizer_state_dict(compiled, optimizer)["param_groups"][0]["params"]
    assert names == [name for name, _ in module.named_parameters()]


def test_a_compiled_module_shows_what_it_is():
    _, compiled = compiled_by(broach.compile)
    assert isinstance(compiled, torch._dynamo.OptimizedModule)
    assert repr(compiled).startswith("CompiledModule(\n  (_orig_mod): Scaled(")
    assert type(copy.deepcopy(compiled)) is type(compiled) is type(pickle.loads(pickle.dumps(compiled)))
    assert isinstance(compiled, type(compiled)) and not isinstance(compiled, Scaled)


def test_dynamo_is_not_loaded_where_it_has_nothing_to_do():
    code = """
import sys, torch
plain, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1)), torch.randn(3, 4)
plain(x).sum().backward()
by_torch = "torch._dynamo" in sys.modules

import broach
m = broach.compile(plain)
for n in (3, 2, 3):
    m(x[:n]).sum().backward()
assert broach.explain(m, x).front == "native" and (by_torch or type(m) is m.__class__)
assert ("torch._dynamo" in sys.modules) == by_torch
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_steps_are_compiled_as_the_module_was():
    """As Lightning does with those of a model that it unwraps."""
    module, compiled = compiled_by(functools.partial(broach.compile, fullgraph=True))
    step = compiled.dynamo_ctx(lambda x: module(x).square().mean())
    x = torch.randn(3, 4)
    torch.testing.assert_close(step(x), module(x).square().mean())
    assert broach.explain(step, x).graphs == 1
    assert compiled.dynamo_ctx(step).__wrapped__ is step.__wrapped__  # and not compiled twice
    parted = compiled.dynamo_ctx(lambda x: torch.tensor(x.tolist()))
    parted(x)
    with pytest.raises(RuntimeError, match="fullgraph=True"):
        parted(x)


@torch.enable_grad()
def test_torch_compile_takes_what_it_was_compiled_with():
    """As Lightning Fabric does once it has wrapped the model."""
    module, compiled = compiled_by(functools.partial(broach.compile, dynamic=False, options={"rng": "eager"}))
    again = torch.compile(module, **compiled._compile_kwargs)
    x = torch.randn(3, 4)
    torch.testing.assert_close(again(x), module(x))
    again(x).sum().backward()
    assert module.inner.weight.grad is not None


def scaled(x: torch.Tensor, by: float = 2.0, *, shift=(lambda: 1)()):
    """Doubles."""
    return x * by + shift


@pytest.mark.parametrize("given", [scaled, Scaled().forward, Scaled()])
def test_a_compiled_function_is_asked_as_the_given_one(given):
    compiled, function = broach.compile(given), given.forward if isinstance(given, nn.Module) else given
    asked = compiled.forward if isinstance(given, nn.Module) else compiled
    for name in ("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__"):
        assert getattr(asked, name) is getattr(function, name)
    assert inspect.signature(asked) == inspect.signature(function)
    if not isinstance(given, nn.Module):
        # Of a bound method without `self`, as it is called.
        want = inspect.getfullargspec(function)
        assert inspect.getfullargspec(asked) == want._replace(args=[name for name in want.args if name != "self"])
        assert asked.__doc__ == given.__doc__


def test_compiled_callables_without_code():
    for given in (torch.sigmoid, functools.partial(scaled, by=3.0), torch.nn.functional.relu):
        x = torch.randn(3)
        torch.testing.assert_close(broach.compile(given)(x), given(x))
