"""What lies behind a compiled call is run, and hooks are called, only where a result that was differentiated depends on it."""

import gc
import weakref

import pytest
import torch

import broach

pytestmark = pytest.mark.usefixtures("with_gradients")


class Twice(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        Twice.calls += 1
        return 2 * g


def program(x, y, w):
    return torch.tanh(x * w), (y * 2).exp(), x * y


def made():
    return [torch.linspace(0.1, 0.9, 6).add(k).requires_grad_() for k in range(3)]


@pytest.mark.parametrize("which", [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]])
def test_hooks_of_leaves_are_called_as_in_eager(which):
    fast = broach.compile(program)
    for _ in range(3):
        told = []
        for run in (program, fast):
            seen, tensors = [], made()
            for k, t in enumerate(tensors):
                t.register_hook(lambda g, k=k: seen.append((k, g is None)) or 2 * g)
            results = run(*tensors)
            torch.autograd.backward([results[i] for i in which], [torch.ones(6)] * len(which))
            told.append((sorted(seen), [t.grad for t in tensors]))
        assert told[0][0] == told[1][0]
        for a, b in zip(told[0][1], told[1][1], strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(b, a)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_others_code_behind_an_input_is_run_as_in_eager(which):
    fast = broach.compile(program)
    for _ in range(3):
        told = []
        for run in (program, fast):
            Twice.calls, tensors = 0, made()
            results = run(Twice.apply(tensors[0]), tensors[1], Twice.apply(tensors[2]))
            results[which].sum().backward()
            told.append((Twice.calls, [t.grad is None for t in tensors]))
        assert told[0] == told[1]


def test_results_apart_are_differentiated_one_after_another():
    fast = broach.compile(program)
    for _ in range(3):
        grads = []
        for run in (program, fast):
            tensors = made()
            tensors[2].register_hook(lambda g: 3 * g)
            results = run(*tensors)
            results[1].sum().backward(retain_graph=True)
            results[0].sum().backward()
            (results[1].sum() + results[2].sum()).backward()
            with pytest.raises(RuntimeError, match="second time"):
                results[0].sum().backward()
            grads.append([t.grad for t in tensors])
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(b, a)


def test_a_result_that_is_written_is_noticed_by_each_node():
    fast = broach.compile(program)
    for _ in range(3):
        tensors = made()
        tensors[2].register_hook(lambda g: g)
        results = fast(*tensors)
        results[1].detach().mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            results[1].sum().backward()


def test_results_apart_do_not_keep_each_other():
    def both(x, y):
        a, b = torch.exp(x), torch.exp(y)
        return a, b, a * b

    fast = broach.compile(both)
    for _ in range(4):
        x, y = made()[:2]
        x.register_hook(lambda g: g)
        results = fast(x, y)
        gone = [weakref.ref(r) for r in results]
        assert results[0].grad_fn is not results[1].grad_fn
        del results
        gc.collect()
        assert all(r() is None for r in gone)


def test_equal_gradients_lie_apart():
    """Two parameters that are only added have one gradient, which each accumulates by itself."""
    w, d = (torch.nn.Parameter(torch.randn(3, 8)) for _ in range(2))
    programs = [lambda x: torch.nn.functional.linear(x, w + d).tanh().sum(), lambda x: ((w - d) @ x.t()).tanh().sum(), lambda x: (w * d.detach() + d).tanh().sum() + (w + d).sum() * x.sum()]
    for program in programs:
        fast = broach.compile(program)
        for _ in range(4):
            x, got = torch.randn(4, 8), []
            for run in (program, fast):
                w.grad = d.grad = None
                run(x).backward()
                run(x).backward()
                assert w.grad.data_ptr() != d.grad.data_ptr()
                got.append((w.grad, d.grad))
                first, second = torch.autograd.grad(run(x), (w, d))
                got[-1] += (first, second)
            for a, b in zip(*got, strict=True):
                torch.testing.assert_close(b, a)
