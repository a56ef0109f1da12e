"""Results of one call of which one is made from another: each has a node of its own, as in eager, so that gradients of one with respect to
another, hooks and kept gradients are eager's."""

from __future__ import annotations

import gc
import weakref
from typing import Any, Callable

import broach
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("with_gradients")


class Net(nn.Module):
    """Features, what is made of them, a result apart, and what is made of all."""

    def __init__(self, dropout: float = 0.0):
        super().__init__()
        self.a, self.b, self.c, self.drop = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(4, 5), nn.Dropout(dropout)

    def forward(self, x):
        first = self.drop(self.a(x).tanh())
        second = self.b(first).sigmoid()
        apart = self.c(x).cos()
        return first, second, apart, first * second + apart


def _kept(call, x):
    first, _, apart, last = call(x)
    first.retain_grad(), apart.retain_grad()
    (last.sum() + (2 * first).sum()).backward()
    return [first.grad, apart.grad]


def _hook_that_changes(call, x):
    first, second, _, last = call(x)
    first.register_hook(lambda g: 3 * g)
    (last.square().sum() + second.sum()).backward()
    return []


def _hooks_in_a_row(call, x):
    first, second, _, last = call(x)
    seen = []
    second.register_hook(lambda g: seen.append(g.clone()))
    first.register_hook(lambda g: seen.append(g.clone()))
    last.sum().backward()
    return seen


def _hook_on_what_has_no_part(call, x):
    first, second, apart, last = call(x)
    seen = []
    for t in (second, apart, last):
        t.register_hook(lambda g: seen.append(g.clone()))
    first.sum().backward()
    return seen


def _with_respect_to_results(call, x):
    first, second, apart, last = call(x)
    return [
        *torch.autograd.grad(last.sum(), [first, second, apart], retain_graph=True),
        *torch.autograd.grad(second.sum(), [first, x], retain_graph=True),
        *torch.autograd.grad(last.square().sum(), [x, first], retain_graph=True),
        *torch.autograd.grad(first.sum(), second, allow_unused=True),
    ]


def _into_one_result_only(call, x):
    first, _, _, last = call(x)
    last.sum().backward(inputs=[first])
    return [first.grad, x.grad]


def _changed_in_place_afterwards(call, x):
    first, second, apart, last = call(x)
    apart.mul_(2)
    (last.sum() + apart.sum()).backward()
    return []


def _node_hooks(call, x):
    first, second, _, last = call(x)
    seen = []
    second.grad_fn.register_prehook(lambda g: seen.append(g[0].clone()))
    last.grad_fn.register_hook(lambda inputs, outputs: seen.append(outputs[0].clone()))
    last.sum().backward()
    return seen


def _twice(call, x):
    first, second, _, last = call(x)
    first.retain_grad()
    last.sum().backward(retain_graph=True)
    (last.sum() + second.sum()).backward()
    return [first.grad]


def _second_time_is_an_error(call, x):
    first, _, _, last = call(x)
    first.retain_grad()
    last.sum().backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        last.sum().backward()
    return []


def _penalty_on_features(call, x):
    first, second, _, last = call(x)
    (g,) = torch.autograd.grad(second.sum(), first, create_graph=True)
    (last.sum() + g.square().sum()).backward()
    return [g]


def _half_of_them_dropped(call, x):
    first = call(x)[0]
    first.square().sum().backward()
    return []


USES: dict[str, Callable[[Any, torch.Tensor], list]] = {f.__name__[1:].replace("_", " "): f for f in (
    _kept, _hook_that_changes, _hooks_in_a_row, _hook_on_what_has_no_part, _with_respect_to_results, _into_one_result_only,
    _changed_in_place_afterwards, _node_hooks, _twice, _second_time_is_an_error, _penalty_on_features, _half_of_them_dropped,
)}  # fmt: skip


@pytest.mark.parametrize("dropout", [0.0, 0.5], ids=["", "dropout"])
@pytest.mark.parametrize("name", USES)
def test_results_of_one_call(name, dropout):
    seen = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = Net(dropout)
        call = broach.compile(net) if compiled else net
        values = []
        for step in range(5):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step), requires_grad=True)
            net.zero_grad()
            values += [*USES[name](call, x), x.grad, *(p.grad for p in net.parameters())]
        seen.append([None if v is None else v.detach().clone() for v in values])
        if compiled:
            assert call._compiled_call.stats()["compiled_calls"] >= 3
    assert [v is None for v in seen[1]] == [v is None for v in seen[0]]
    for got, want in zip(*reversed(seen), strict=True):
        if want is not None:
            torch.testing.assert_close(got, want)


def test_nothing_is_run_again_where_nobody_looks():
    net = Net()
    call = broach.compile(net)
    for look in (False, True):
        for _ in range(4):
            first, _, _, last = call(torch.randn(3, 4))
            if look:
                first.retain_grad()
            (last.sum() + first.sum()).backward()
        reruns = sum(p["reruns"] for p in call._compiled_call.stats()["programs"])
        assert reruns == (4 if look else 0)


def test_saved_values_go_with_the_results():
    """No result holds the nodes that hold it."""
    call = broach.compile(Net())
    for _ in range(4):
        x = torch.randn(3, 4, requires_grad=True)
        results = call(x)
    held = [weakref.ref(t) for t in (x, *results)]
    gc.disable()
    try:
        del x, results
        assert [r() for r in held] == [None] * 5
    finally:
        gc.enable()


def test_gradients_in_parts_where_a_result_is_looked_at():
    """An optimizer that steps as gradients arrive, and a kept gradient of a result on the way."""
    seen = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = Net()
        call = broach.compile(net) if compiled else net

        def update(p):
            p.data.sub_(p.grad, alpha=0.01)

        handles = [p.register_post_accumulate_grad_hook(update) for p in (net.a.weight, net.c.weight)]
        for step in range(5):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step), requires_grad=True)
            net.zero_grad()
            first, _, apart, last = call(x)
            first.retain_grad()
            (last.sum() if step % 2 else apart.sum() + last.square().sum()).backward()
            seen.append([first.grad, x.grad, *(p.grad.clone() for p in net.parameters())])
        [h.remove() for h in handles]
    for got, want in zip(seen[5:], seen[:5], strict=True):
        torch.testing.assert_close(got, want)
