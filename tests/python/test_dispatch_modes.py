"""Modes of torch's that see operations, around gradients alone."""

import contextlib

import pytest
import torch
from gradient_programs import with_gradients  # noqa: F401 a fixture
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import broach


class Tenfold(TorchDispatchMode):
    """Makes cosines ten times as large."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        return result * 10 if function is torch.ops.aten.cos.default else result


def _calls(program):
    """After some calls without a mode: the gradient under a mode that changes it, products that a mode counts, and one without again."""
    for _ in range(3):
        program(torch.ones(2, 2, requires_grad=True)).sum().backward()
    seen = []
    for mode in (Tenfold(), FlopCounterMode(display=False), contextlib.nullcontext()):
        x = torch.ones(2, 2, requires_grad=True)
        y = program(x)
        with mode:
            y.sum().backward()
        seen.append(x.grad)
        if isinstance(mode, FlopCounterMode):
            seen.append(torch.tensor(mode.get_total_flops()))
    return seen


def test_a_mode_around_gradients_sees_them_and_not_the_call():
    def program(x):
        return x.sin() @ x.t() + x.cos()

    compiled = broach.compile(program)
    torch.testing.assert_close(_calls(compiled), _calls(program))
    assert compiled.stats()["compiled_calls"] >= 3


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("trace", ["make_fx", "export"])
def test_a_program_that_traces_with_symbolic_sizes(trace, dynamic):
    class Module(torch.nn.Module):
        def forward(self, x):
            return (torch.relu(x) @ x.t()).sum(0) * x.shape[0]

    def program(x):
        if trace == "make_fx":
            return make_fx(Module(), tracing_mode="symbolic")(x)(x)
        return torch.export.export(Module(), (x,), dynamic_shapes=({0: torch.export.Dim("n")},)).module()(x)

    compiled = broach.compile(program, dynamic=dynamic)
    for n in (4, 4, 5, 6, 7):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("name", ["grad", "deterministic", "dtype", "precision"])
def test_settings_that_a_program_of_dynamos_leaves_behind(name):
    change, undo, read = {
        "grad": (lambda: torch.set_grad_enabled(False), lambda: torch.set_grad_enabled(True), torch.is_grad_enabled),
        "deterministic": (
            lambda: torch.use_deterministic_algorithms(True),
            lambda: torch.use_deterministic_algorithms(False),
            torch.are_deterministic_algorithms_enabled,
        ),
        "dtype": (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32), torch.get_default_dtype),
        "precision": (
            lambda: torch.set_float32_matmul_precision("high"),
            lambda: torch.set_float32_matmul_precision("highest"),
            torch.get_float32_matmul_precision,
        ),
    }[name]

    def program(x):
        change()
        return x * 2

    seen = []
    for compile in (lambda f: f, lambda f: torch.compile(f, backend="broach")):
        torch._dynamo.reset()
        compiled = compile(program)
        for _ in range(4):
            try:
                compiled(torch.ones(2))
                seen.append(read())
            finally:
                undo()
    assert seen[:4] == seen[4:]


def test_what_a_custom_function_marks_is_not_lost_in_dynamo():
    class Marks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            positive = (x > 0).float()
            ctx.mark_non_differentiable(positive)
            return x * 2, positive

        @staticmethod
        def backward(ctx, g, h):
            return g + 10 * h

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: Marks.apply(x), backend="broach")
    for _ in range(3):
        x = torch.tensor([1.0, -1.0], requires_grad=True)
        a, b = compiled(x)
        assert not b.requires_grad
        (a.sum() + b.sum()).backward()
        assert x.grad.tolist() == [1.0, 1.0]
