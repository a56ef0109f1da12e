"""Gradients of products of elements, whose own in torch ask whether there are zeros among them."""

from __future__ import annotations

import broach
import compared
import pytest
import torch

PROGRAMS = {
    "all": lambda x: x.prod(),
    "rows": lambda x: x.prod(-1),
    "columns, kept": lambda x: x.prod(0, keepdim=True),
    "up to each": lambda x: x.cumprod(-1),
    "up to each, by columns": lambda x: x.sin().cumprod(0) * 2,
    "in place": lambda x: (x * 1).cumprod_(1),
    "of a view": lambda x: x.t()[1:].prod(0) + x[..., ::2].cumprod(1).sum(1)[0],
    "rays": lambda x: (x.abs().tanh() * torch.cumprod(torch.cat([torch.ones(len(x), 1, dtype=x.dtype), 1 - x.abs().tanh()], 1), 1)[:, :-1]).sum(1),
    "of one element": lambda x: x[:, :1].prod(1) + x[0, 0].prod() + x[:1].cumprod(0).sum(),
}
ZEROS = {"none": [], "one": [(1, 2)], "two in a row": [(1, 2), (1, 4)], "in several": [(0, 0), (2, 5), (3, 1), (3, 2), (3, 5)]}


def _given(zeros, dtype, seed):
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 1
    for at in ZEROS[zeros]:
        x[at] = 0
    return x.to(dtype)

pytestmark = pytest.mark.usefixtures("with_gradients")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_products(name, dtype):
    run, compiled = PROGRAMS[name], broach.compile(PROGRAMS[name])
    for seed, zeros in enumerate([*ZEROS, "none", *ZEROS]):
        given = _given(zeros, dtype, seed)
        a, b = (given.clone().requires_grad_() for _ in range(2))
        want, got = run(a), compiled(b)
        torch.testing.assert_close(got, want)
        tangent = torch.randn(want.shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
        want.backward(tangent), got.backward(tangent)
        torch.testing.assert_close(b.grad, a.grad)
    told = compared.stats(compiled)
    assert told["compiled_calls"] >= 6 and not told["eager_reasons"], (told["attempts"], told["eager_reasons"])


RARE = [1.0, 0.0, torch.inf, -torch.inf, torch.nan, -0.0, 2.0, -3.0]


@pytest.mark.parametrize("name", ["all", "rows", "columns, kept", "up to each"])
def test_elements_that_are_no_numbers(name):
    run, compiled = PROGRAMS[name], broach.compile(PROGRAMS[name])
    for seed in range(60):
        g = torch.Generator().manual_seed(seed)
        given = torch.tensor(RARE)[torch.randint(2 + seed % 7, (3, 5), generator=g)]
        a, b = (given.clone().requires_grad_() for _ in range(2))
        want, got = run(a), compiled(b)
        tangent = torch.randn(want.shape, generator=g)
        want.backward(tangent), got.backward(tangent)
        torch.testing.assert_close(b.grad, a.grad, equal_nan=True)


@pytest.mark.parametrize("name", ["all", "rows", "up to each"])
def test_second_derivatives_are_eagers(name):
    run, compiled = PROGRAMS[name], broach.compile(PROGRAMS[name])
    for zeros in ZEROS:
        given = _given(zeros, torch.float64, 3)
        a, b = (given.clone().requires_grad_() for _ in range(2))
        of_a, of_b = (torch.autograd.grad(f(x).sum(), x, create_graph=True)[0] for f, x in ((run, a), (compiled, b)))
        torch.testing.assert_close(of_b, of_a)
        of_a.square().sum().backward(), of_b.square().sum().backward()
        torch.testing.assert_close(b.grad, a.grad)


@pytest.mark.parametrize("name", ["all", "rows", "up to each"])
def test_second_derivatives_within(name):
    def run(x):
        (g,) = torch.autograd.grad(PROGRAMS[name](x).sum(), x, create_graph=True)
        return g.square().sum()

    compiled = broach.compile(run)
    for zeros in ZEROS:
        given = _given(zeros, torch.float64, 3)
        a, b = (given.clone().requires_grad_() for _ in range(2))
        run(a).backward(), compiled(b).backward()
        torch.testing.assert_close(b.grad, a.grad)


@pytest.mark.parametrize("name", ["all", "rows", "columns, kept", "up to each"])
def test_strides_of_gradients(name):
    run = PROGRAMS[name]
    compiled = broach.compile(lambda x: torch.autograd.grad(run(x).sum(), x)[0])
    for seed in range(4):  # without zeros: eager's depend on them
        x = _given("none", torch.float32, seed).t().requires_grad_()
        want, got = torch.autograd.grad(run(x).sum(), x)[0], compiled(x)
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


def test_repeats_whose_number_is_given():
    layer = torch.nn.Linear(4, 8)

    def run(x, n, total):
        return layer(x).repeat_interleave(n, 0, output_size=total)

    compiled = broach.compile(run)
    for n in ([2, 5, 1], [3, 3, 2], [0, 4, 4], [8, 0, 0], [1, 1, 6], [2, 4, 2]):
        x = torch.randn(3, 4)
        grads = []
        for f in (run, compiled):
            layer.zero_grad()
            f(x, torch.tensor(n), 8).square().sum().backward()
            grads.append(layer.weight.grad)
        torch.testing.assert_close(grads[1], grads[0])
    told = compared.stats(compiled)
    assert told["compiled_calls"] >= 3, (told["attempts"], told["eager_reasons"])
    with pytest.raises(RuntimeError) as wanted:
        run(x, torch.tensor([2, 5, 2]), 8)
    with pytest.raises(RuntimeError) as found:
        compiled(x, torch.tensor([2, 5, 2]), 8)
    assert str(found.value) == str(wanted.value)
