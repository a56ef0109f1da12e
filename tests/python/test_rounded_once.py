"""What rounds once in eager, and what comes of a last bit: bytes of images, and steps of optimizers."""

from __future__ import annotations

import broach
import pytest
import torch
from rounded_once import OPERATIONS, compare_operation

MORE = {
    "sub": lambda x, y, z: torch.sub(x, y, alpha=-2.7),
    "in place": lambda x, y, z: x.clone().add_(y, alpha=-1e-3).sub_(z, alpha=0.9),
    "lerp to the end": lambda x, y, z: torch.lerp(x, y, 0.8),
    "lists": lambda x, y, z: torch._foreach_lerp(torch._foreach_addcmul([x, y], [y, z], [z, x], value=0.7), [z, x], 0.1),
    "a row": lambda x, y, z: torch.add(x, y[0], alpha=0.3137),
    "every other": lambda x, y, z: torch.add(x.t(), y.t(), alpha=0.3137)[::2],
    "of another type": lambda x, y, z: torch.add(x, (y * 10).int(), alpha=0.3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*OPERATIONS, *MORE])
def test_operations(name, dtype):
    compare_operation({**OPERATIONS, **MORE}[name], dtype, "cpu")


def test_images():
    """A blend of bytes, as torchvision's transforms compute it, of which the last bit decides where it is cut off."""

    def blend(image, other):
        return image.mul(0.7).add_(other, alpha=1.0 - 0.7).clamp_(0, 255).to(torch.uint8)

    compiled = broach.compile(blend)
    image, other = (torch.arange(256, dtype=torch.uint8).expand(256, 256).contiguous() for _ in range(2))
    for _ in range(3):
        assert torch.equal(compiled(image, other.t().float()), blend(image, other.t().float()))


def _adam(parameter, gradient, mean, square, step):
    """But for the root of the mean square, which eager has from MKL, in its last bit or not."""
    mean.lerp_(gradient, 0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    parameter.addcdiv_(mean, (square / (1 - 0.999**step) ** 0.5).add_(1e-8), value=-1e-3 / (1 - 0.9**step))


def _momentum(parameter, gradient, mean, square, step):
    gradient = gradient.add(parameter, alpha=1e-2)
    mean.mul_(0.9).add_(gradient, alpha=0.1)
    parameter.add_(gradient.add(mean, alpha=0.9), alpha=-1e-2)


@pytest.mark.parametrize("update", [_adam, _momentum])
def test_steps_of_an_optimizer_stay_equal(update):
    torch.manual_seed(0)
    state = [torch.randn(501), torch.zeros(501), torch.zeros(501)]
    copies = [t.clone() for t in state]
    compiled = broach.compile(update)
    for step in range(1, 30):
        gradient = torch.randn(501)
        update(state[0], gradient, *state[1:], step)
        compiled(copies[0], gradient.clone(), *copies[1:], step)
        for have, want in zip(copies, state, strict=True):
            assert torch.equal(have, want)


NUMBERS = {
    "lerp": lambda x, y, k: torch.lerp(x, y, k),
    "addcmul": lambda x, y, k: torch.addcmul(x, y, torch.ones_like(y), value=k),
    "addcdiv": lambda x, y, k: torch.addcdiv(x, y, torch.ones_like(y), value=k),
    "product": lambda x, y, k: x * k + y / k,
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_change_are_not_rounded(name, dtype):
    """Such as what an average over models takes of the last one, 0.999."""
    compiled = broach.compile(NUMBERS[name])
    x, y = torch.full((40,), 1000.0, dtype=dtype), torch.full((40,), -997.0, dtype=dtype)
    for k in (0.5, 1.0, 0.999, 1.003, 0.3):
        assert torch.equal(compiled(x, y, k), NUMBERS[name](x, y, k)), k
