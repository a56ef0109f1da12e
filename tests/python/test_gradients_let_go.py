"""Gradients that are asked for after a backward has let go of what was saved, where eager still gives them or says why not."""

import pytest
import torch

import broach


@pytest.fixture(autouse=True)
def _gradients():
    with torch.enable_grad():
        yield


def _both(program, use, calls=3):
    """`use`, which gives numbers or an error's text, after a call of the program and of what was compiled of it."""
    compiled = broach.compile(program)
    for call in range(calls):
        found = []
        for run in (program, compiled):
            torch.manual_seed(call)
            try:
                found.append(use(run))
            except RuntimeError as e:
                found.append(str(e)[:40])
        assert type(found[0]) is type(found[1]), found
        assert found[0] == found[1] if isinstance(found[0], str) else torch.equal(*found), (call, found)


def _on_the_way(x):
    h = x * 2
    return h.sin(), h


@pytest.mark.parametrize("of", ["the result between", "the input"])
def test_result_behind_one_whose_graph_was_let_go(of):
    def use(run):
        x = torch.randn(3, requires_grad=True)
        a, h = run(x)
        h.sum().backward()
        return torch.autograd.grad(a.sum(), h if of == "the result between" else x)[0]

    _both(_on_the_way, use)


@pytest.mark.parametrize("depends", [False, True])
def test_gradients_of_gradients_of_what_was_let_go(depends):
    def use(run):
        x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        a, b = run(x, w)
        (a + b).sum().backward()
        (found,) = torch.autograd.grad((b if depends else a.square()).sum(), w, create_graph=True, allow_unused=True)
        return torch.zeros(()) if found is None else found

    _both(lambda x, w: (x * 2, x * w), use)


def test_memory_of_arguments_is_let_go():
    compiled = broach.compile(lambda x, w: (x @ w).sin().sum())
    w = torch.randn(64, 64, requires_grad=True)
    for _ in range(3):
        x = torch.randn(64, 64)
        storage = torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage())
        loss = compiled(x, w)
        loss.backward()
        del x
        assert storage.expired()
