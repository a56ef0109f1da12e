"""Operations that are written in Python (`torch.library.custom_op`): their code runs in every call, with the state that it finds."""

import itertools

import pytest
import torch
from gradient_programs import with_gradients  # noqa: F401 a fixture

import broach

_names = (f"in_python::op{i}" for i in itertools.count())


def operation(body, **gradient):
    """An operation from one tensor to one like it."""

    def of_tensor(x: torch.Tensor) -> torch.Tensor:
        return body(x)

    op = torch.library.custom_op(next(_names), mutates_args=())(of_tensor)
    op.register_fake(torch.empty_like)
    if gradient:
        op.register_autograd(gradient["backward"], setup_context=gradient.get("setup"))
    return op


def agree(make, calls=8, compiled_calls=None):
    """`make` gives a program, and what to do before call number i; both are made anew for each side."""
    seen = []
    for compile in (lambda f: f, broach.compile):
        program, prepare = make()
        run, got = compile(program), []
        for i in range(calls):
            prepare(i)
            x = torch.full((3,), i + 1.0, requires_grad=i % 2 == 0)
            out = run(x)
            if out.requires_grad:
                out.sum().backward()
            got.append((out.detach(), x.grad))
        seen.append(got)
    assert run.stats()["compiled_calls"] >= (compiled_calls or 0), run.stats()["eager_reasons"]
    torch.testing.assert_close(seen[1], seen[0])


def counter_read_by_the_operation():
    k = 1

    def set_k(i):
        nonlocal k
        k = i

    op = operation(lambda x: x * k)
    return lambda x: op(x.detach()) + 1, set_k


def counter_read_by_both():
    k = 1

    def set_k(i):
        nonlocal k
        k = i

    op = operation(lambda x: x * k)
    return lambda x: op(x.detach()) + k, set_k


def counter_written_by_the_program():
    n = 0
    op = operation(lambda x: x * n)

    def program(x):
        nonlocal n
        n += 1
        return op(x.detach()) + 1

    return program, lambda i: None


def attribute_written_by_the_program():
    class Box:
        n = 0

    box = Box()
    op = operation(lambda x: x * box.n)

    def program(x):
        box.n += 1
        return op(x.detach()) + 1

    return program, lambda i: None


def list_that_the_operation_appends_to():
    seen = []

    def body(x):
        seen.append(1)
        return x * len(seen)

    op = operation(body)
    return lambda x: op(x.detach()) + 1, lambda i: None


GLOBAL = 1


def global_read_by_the_operation():
    op = operation(lambda x: x * GLOBAL)
    return lambda x: op(x.detach()) + 1, _set_global


def global_read_by_both():
    op = operation(lambda x: x * GLOBAL)
    return lambda x: op(x.detach()) + GLOBAL, _set_global


def _set_global(i):
    global GLOBAL
    GLOBAL = i


def gradient_that_reads_a_global():
    op = operation(lambda x: x * 2, backward=lambda ctx, g: g * GLOBAL)
    return lambda x: op(x) + 1, _set_global


def gradient_that_reads_a_closure():
    k = 1

    def set_k(i):
        nonlocal k
        k = i

    op = operation(lambda x: x * 2, backward=lambda ctx, g: g * k)
    return lambda x: op(x) + 1, set_k


def gradient_that_appends():
    seen = []

    def backward(ctx, g):
        seen.append(1)
        return g * len(seen)

    op = operation(lambda x: x * 2, backward=backward)
    return lambda x: op(x) + 1, lambda i: None


@pytest.mark.parametrize(
    "make",
    [
        *(counter_read_by_the_operation, counter_read_by_both, counter_written_by_the_program, attribute_written_by_the_program),
        *(list_that_the_operation_appends_to, global_read_by_the_operation, global_read_by_both),
        *(gradient_that_reads_a_global, gradient_that_reads_a_closure, gradient_that_appends),
    ],
)
def test_state(make):
    agree(make)


def scaled_by_what_it_kept():
    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    op = operation(torch.sin, backward=lambda ctx, g: g * ctx.saved_tensors[0].cos() * 2, setup=setup)
    return lambda x: op(x * 2) + x, lambda i: None


CONSTANT = 3


def constant_read_by_both():
    op = operation(lambda x: x * CONSTANT)
    return lambda x: op(x.detach()) + CONSTANT, lambda i: None


@pytest.mark.parametrize("make", [scaled_by_what_it_kept, constant_read_by_both, counter_read_by_the_operation])
def test_what_does_not_meet_the_programs_state_is_compiled(make):
    agree(make, compiled_calls=4)
