"""What results are for autograd beside their elements: views or not, of whose version they are, and whether they may be written."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from compared import native
from torch import nn


@pytest.fixture(autouse=True)
def _with_gradients(_no_grad):
    with torch.enable_grad():
        yield


CALLS = 5


@pytest.mark.parametrize("needs", [False, True])
def test_a_detached_argument_is_no_view_and_counts_with_it(needs):
    f = native(lambda x: x.detach())
    for _ in range(CALLS):
        x = torch.ones(3, requires_grad=needs) * 1
        out = f(x)
        assert not out._is_view() and out._base is None
        out.mul_(2)
        assert x._version == out._version == 1 and torch.equal(x, out)
        out.detach_()


def test_data_of_an_argument_counts_apart():
    f, g = native(lambda x: x.data), native(lambda x: (x.sin(), x.data))
    for _ in range(CALLS):
        x = torch.randn(3, requires_grad=True)
        y = x.sin()
        f(x).mul_(2)
        assert x._version == 0
        y.sum().backward()  # which eager allows, right or not
        g(x)[1].mul_(2)
        assert x._version == 0


@pytest.mark.parametrize("program", [lambda x: x.chunk(2), lambda x: x.split([1, 3]), lambda x: x.unbind(), lambda x: x.chunk(2)[:1]])
def test_one_of_several_views_is_not_written(program):
    f = native(program)
    for _ in range(CALLS):
        x = torch.randn(4, requires_grad=True) * 1
        before = x.detach().clone()
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            f(x)[0].mul_(2)
        assert torch.equal(x, before)
        plain = torch.randn(4)
        f(plain)[0].mul_(2)  # without gradients it may be


def test_one_view_is_written():
    f = native(lambda x: x[1:])
    for _ in range(CALLS):
        leaf = torch.ones(4, requires_grad=True)
        x = leaf * 1
        view = f(x)
        assert view._is_view() and view._base is x
        view.mul_(3)
        x.sum().backward()
        assert leaf.grad.tolist() == [1, 3, 3, 3]


def test_unsafe_chunks_are_written():
    f = native(lambda x: x.unsafe_chunk(2))
    for _ in range(CALLS):
        a, b = f(torch.randn(4))
        assert not a._is_view() and not b._is_view()
        a.detach_(), a.mul_(2)


def test_a_result_and_the_same_detached():
    def program(x):
        y = x * 2
        return y, y.detach(), y[0]

    f = native(program)
    for _ in range(CALLS):
        for needs in (False, True):
            y, same, row = f(torch.ones(2, 2, requires_grad=needs))
            assert not same._is_view() and row._is_view()
            same.add_(1)
            assert y.tolist() == [[3, 3], [3, 3]] and row.tolist() == [3, 3]


def test_gradients_and_losses_of_a_step_are_no_views():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        for p in model.parameters():
            if p.grad is not None:
                p.grad = None
        loss = F.mse_loss(model(x), torch.ones(3).expand(5, 3))
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = native(step)
    for _ in range(8):
        f(torch.randn(5, 4)).detach_()
        for p in model.parameters():
            assert not p.grad._is_view()
            p.grad.detach_()
            p.grad.zero_()


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_steps_count_no_versions(optimizer):
    model = nn.Linear(4, 3)
    fused = optimizer(model.parameters(), 0.1, fused=True)

    def step(x):
        fused.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        fused.step()
        return loss.detach()

    f = native(step)
    for _ in range(8):
        before = model(torch.ones(2, 4)).sum()
        versions = [p._version for p in model.parameters()]
        f(torch.randn(5, 4))
        assert [p._version for p in model.parameters()] == versions
        before.backward()


def test_a_used_up_loss_is_called_by_its_node():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), torch.zeros(5, 3))
        loss.backward()
        optimizer.step()
        return loss

    f = native(step)
    for _ in range(8):
        assert "grad_fn=<MseLossBackward0>" in repr(f(torch.randn(5, 4)))


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_a_used_up_loss_behind_a_function():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = F.mse_loss(_Twice.apply(model(x)), torch.zeros(5, 3))
        loss.backward()
        optimizer.step()
        return loss

    f = native(step)
    for _ in range(8):
        loss = f(torch.randn(5, 4))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    assert f.stats()["compiled_calls"] > 3


@pytest.mark.parametrize(
    "program, prepare",
    [
        (lambda x: x * 2 if x._backward_hooks else x * 1, lambda x: x.register_hook(lambda g: g)),
        (lambda x: x * 2 if x.retains_grad else x * 1, lambda x: x.retain_grad()),
    ],
)
@pytest.mark.parametrize("pattern", range(1, 8))
def test_hooks_of_an_argument_that_the_program_asks_for(program, prepare, pattern):
    import broach

    f = broach.compile(program)
    for i in range(CALLS):
        x = torch.ones(3, requires_grad=True) * 1
        if pattern >> (i % 3) & 1:
            prepare(x)
        assert torch.equal(f(x), program(x))
