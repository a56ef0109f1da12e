"""Parameters that are frozen, needed again or written between a compiled call and gradients for which the program runs once more."""

from __future__ import annotations

import broach
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("with_gradients")


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Softplus(), nn.Linear(4, 1))


def gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: p.grad for name, p in module.named_parameters()}


def penalty(compile_it, change, warm: int = 0, freeze: bool = False):
    module = network().requires_grad_(not freeze)
    call = compile_it(module)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    for _ in range(warm):
        call(x).sum().backward()
    module.zero_grad()
    y = call(x)
    change(module)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return gradients(module), [p.requires_grad for p in module.parameters()]


WAYS = {"static": broach.compile, "dynamic": lambda m: broach.compile(m, dynamic=True)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("name", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_frozen_since(way, warm, name):
    change = lambda m: m.get_parameter(name).requires_grad_(False)  # noqa: E731
    torch.testing.assert_close(penalty(WAYS[way], change, warm), penalty(lambda m: m, change, warm))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("warm", [0, 3])
def test_needed_since(way, warm):
    change = lambda m: m.requires_grad_(True)  # noqa: E731
    torch.testing.assert_close(penalty(WAYS[way], change, warm, True), penalty(lambda m: m, change, warm, True))


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.weight", "1.bias"])
def test_frozen_and_laid_out_anew_since(name):
    def step(compile_it):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1))
        call, x = compile_it(module), torch.randn(3, 4, 6, 6)
        call(x)
        loss = call(x).square().mean()
        module.to(memory_format=torch.channels_last)
        module.get_parameter(name).requires_grad_(False)
        loss.backward()
        return gradients(module)

    torch.testing.assert_close(step(broach.compile), step(lambda m: m))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["register_forward_hook", "register_full_backward_hook"])
def test_frozen_since_with_hooks(way, kind):
    def step(compile_it):
        module = network()
        getattr(module[1], kind)(lambda *a: None)
        call = compile_it(module)
        x = torch.ones(3, 4).requires_grad_()
        y = call(x)
        module[0].weight.requires_grad_(False)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        g.pow(2).sum().backward()
        return gradients(module)

    torch.testing.assert_close(step(WAYS[way]), step(lambda m: m))


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("which", ["0.weight", "0.bias", "scale", "held"])
def test_written_since(which, batched):
    """The program would run again with other numbers: that is said, whether eager needs the old ones or not."""

    def gradients_of(compile_it):
        module = network()
        module.register_buffer("scale", torch.ones(1))
        held = torch.ones(1)
        call = compile_it(lambda x: (module(x) * module.scale + held).sin().sum(-1))
        x = torch.ones(3, 4)
        for _ in range(3):
            call(x).sum().backward()
        out = call(x)
        with torch.no_grad():
            (held if which == "held" else module.get_parameter(which) if "." in which else module.scale).mul_(0.5)
        if batched:
            return torch.autograd.grad(out, module[2].bias, torch.eye(3), is_grads_batched=True)
        return torch.autograd.grad(out.sum(), module[2].bias, create_graph=True)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients_of(broach.compile)


def test_what_the_program_writes_itself_is_no_news():
    def step(compile_it):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
        call = compile_it(module)
        x = torch.randn(3, 4).requires_grad_()
        for _ in range(4):
            (g,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
            g.pow(2).sum().backward()
        return gradients(module), dict(module.named_buffers())

    torch.testing.assert_close(step(broach.compile), step(lambda m: m))
