"""What leaves get from a backward, by whichever way it reaches them."""

import threading

import pytest
import torch
from leaf_gradients import SCENARIOS, compare_scenario
from torch import nn

import broach

pytestmark = pytest.mark.usefixtures("with_gradients")


def _ready():
    """A compiled loss of a model, whose calls run its code."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    run = broach.compile(lambda x: model(x).square().mean())
    for _ in range(3):
        run(torch.ones(5, 6)).backward()
    model.zero_grad(set_to_none=True)
    return model, run


@pytest.mark.parametrize("name", SCENARIOS)
def test_leaves_get_what_eager_gives_them(name):
    compare_scenario(name, "cpu")


def test_edges_are_there_again_after_the_backward():
    model, run = _ready()
    value = run(torch.ones(5, 6))
    value.backward()
    leaves = {n.variable.data_ptr() for n, _ in value.grad_fn.next_functions if n is not None}
    assert leaves == {p.data_ptr() for p in model.parameters()}


def test_several_threads_give_one_leaf_its_gradients():
    """Each thread's backward adds to the same `.grad`, of a program that the threads share."""
    model, run = _ready()
    run(torch.ones(5, 6)).backward()
    once = [p.grad.clone() for p in model.parameters()]
    for _ in range(20):
        model.zero_grad(set_to_none=True)
        start = threading.Barrier(4)

        def work():
            with torch.enable_grad():
                for _ in range(5):
                    start.wait()
                    run(torch.ones(5, 6)).backward()

        threads = [threading.Thread(target=work) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        for p, want in zip(model.parameters(), once, strict=True):
            torch.testing.assert_close(p.grad, want * 20, rtol=1e-4, atol=1e-6)


def test_no_hook_runs_for_a_leaf_without_a_gradient():
    """Where only one of the results is differentiated, which does not depend on the leaf."""
    model = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def program(x):
        inner = model[0](x)
        return model[1](inner), inner

    seen = []
    run = broach.compile(program)
    for call in range(6):
        if call == 3:
            handle = model[1].weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad))
        model.zero_grad()
        run(torch.ones(2, 3))[1].sum().backward()
        assert model[1].weight.grad is None and model[0].weight.grad is not None
    assert not seen
    sum(r.sum() for r in run(torch.ones(2, 3))).backward()
    assert len(seen) == 1 and seen[0] is not None
    handle.remove()


@pytest.mark.parametrize("program", [lambda w: w.clone().t(), lambda w: w.t().clone(), lambda w: (w[None] + 1).movedim(0, 2)])
def test_a_gradient_is_no_view(program):
    """`zero_grad` without `set_to_none` detaches gradients in place, which views do not bear."""
    compiled, w = broach.compile(program), nn.Parameter(torch.ones(3, 4))
    for _ in range(3):
        w.grad = None
        compiled(w).pow(2).sum().backward()
        w.grad.detach_().zero_()
