"""Scenarios of what leaves get from a backward, by whichever way it reaches them: each scenario sees the same with eager's graph and with a compiled one.

Compiled nodes give leaves their gradients themselves where nobody would see the difference; these scenarios look for one.
"""

import copy

import pytest
import torch
from torch import nn

import broach

_device = "cpu"


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def _x(seed=1):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)).to(_device)


def _grads(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def _plain(model, loss):
    loss(_x()).backward()
    return _grads(model), [(p.grad.is_leaf, p.grad.requires_grad, p.grad.grad_fn, p.grad.stride()) for p in model.parameters()]


def _accumulated_over_calls(model, loss):
    first = {}
    for seed in range(3):
        loss(_x(seed)).backward()
        first = first or {n: p.grad for n, p in model.named_parameters()}
    return _grads(model), all(first[n] is p.grad for n, p in model.named_parameters())  # in place


def _two_calls_in_one_graph(model, loss):
    (loss(_x(1)) + 2 * loss(_x(2))).backward()
    return _grads(model)


def _beside_a_use_of_eager_code(model, loss):
    (loss(_x()) + sum((p * p).sum() for p in model.parameters())).backward()
    return _grads(model)


def _retained(model, loss):
    value = loss(_x())
    value.backward(retain_graph=True)
    once = _grads(model)
    value.backward()
    return once, _grads(model)


def _a_second_backward(model, loss):
    value = loss(_x())
    value.backward()
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(value, list(model.parameters()))
    return _grads(model)


def _some_inputs(model, loss):
    value = loss(_x())
    value.backward(inputs=[model[0].weight, model[4].bias])
    return _grads(model)


def _returned_gradients(model, loss):
    out = torch.autograd.grad(loss(_x()), list(model.parameters()))
    return _grads(model), out


def _a_node_called_by_hand(model, loss):
    loss(_x()).grad_fn(torch.ones((), device=_device))
    return _grads(model)


def _tensor_hooks(model, loss):
    seen = []
    handles = [p.register_hook(lambda g, n=n: seen.append((n, g.clone())) or g * 2) for n, p in model.named_parameters() if "weight" in n]
    loss(_x()).backward()
    [h.remove() for h in handles]
    return [g for _, g in sorted(seen, key=lambda s: s[0])], _grads(model)


def _hooks_after_accumulation(model, loss):
    seen = []
    handles = [p.register_post_accumulate_grad_hook(lambda p, n=n: seen.append((n, p.grad.clone()))) for n, p in model.named_parameters()]
    loss(_x()).backward()
    [h.remove() for h in handles]
    return [g for _, g in sorted(seen, key=lambda s: s[0])], _grads(model)


def _hooks_between_forward_and_backward(model, loss):
    seen = []
    value = loss(_x())
    handle = model[2].weight.register_hook(lambda g: seen.append(g.clone()))
    after = model[0].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))
    value.backward()
    handle.remove(), after.remove()
    return sorted(seen, key=lambda t: t.dim()), _grads(model)


def _a_hook_of_the_accumulating_node(model, loss):
    seen = []
    weight = model[2].weight
    node = weight.view_as(weight).grad_fn.next_functions[0][0]
    handles = [node.register_prehook(lambda g: seen.append(g[0].clone())), node.register_hook(lambda i, o: seen.append(weight.grad.clone()))]
    loss(_x()).backward()
    [h.remove() for h in handles]
    return seen, _grads(model)


def _a_hook_of_the_results_node(model, loss):
    value, seen = loss(_x()), []
    value.grad_fn.register_prehook(lambda g: seen.append(g[0].clone()))
    value.backward()
    return seen, _grads(model)


def _a_hook_on_the_result(model, loss):
    value, seen = loss(_x()), []
    value.register_hook(lambda g: seen.append(g.clone()))
    value.retain_grad()
    value.backward()
    return seen, value.grad, _grads(model)


def _anomalies(model, loss):
    value = loss(_x()) * float("nan")  # a call of the compiled function would run as it is
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="nan"):
        value.backward()
    return len(_grads(model))


def _a_leaf_frozen_before_the_backward(model, loss):
    value = loss(_x())
    frozen = model[2].weight.requires_grad_(False)
    value.backward()
    out = [p is not frozen and p.grad is not None for p in model.parameters()]  # what the frozen one gets differs between versions of torch
    frozen.requires_grad_(True)
    return out


def _gradients_held_by_others(model, loss):
    loss(_x(1)).backward()
    held = [p.grad for p in model.parameters()]
    before = [g.clone() for g in held]
    model.zero_grad(set_to_none=True)
    loss(_x(2)).backward()
    return [torch.equal(a, b) for a, b in zip(held, before)], before, _grads(model)


def _zeroed_in_place(model, loss):
    loss(_x(1)).backward()
    model.zero_grad(set_to_none=False)
    loss(_x(2)).backward()
    return _grads(model)


def _a_gradient_of_other_layout(model, loss):
    weight = model[2].weight
    weight.grad = torch.zeros(8, 8, device=_device).t()
    loss(_x()).backward()
    return weight.grad.stride(), _grads(model)


def _gradients_of_another_type(model, loss):
    weight = model[2].weight
    if not hasattr(weight, "grad_dtype"):
        return None
    out = []
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        model.zero_grad(set_to_none=True)
        weight.grad_dtype = dtype
        loss(_x()).backward()
        out.append(weight.grad)
    return out


def _create_graph(model, loss):
    loss(_x()).backward(create_graph=True)
    penalty = sum(p.grad.square().sum() for p in model.parameters())
    return penalty.requires_grad, _grads(model), torch.autograd.grad(penalty, list(model.parameters()), allow_unused=True)


def _callbacks_at_the_end(model, loss):
    value, seen = loss(_x()), []
    value.register_hook(lambda g: torch.autograd.Variable._execution_engine.queue_callback(lambda: seen.append(_grads(model))))
    value.backward()
    return seen, _grads(model)


def _inside_another_backward(model, loss):
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t.clone()

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                loss(_x(3)).backward()
            return g

    outer = Nested.apply(torch.ones(2, requires_grad=True, device=_device)).sum()
    (outer + loss(_x(2))).backward()
    return _grads(model)


def _an_input_with_a_gradient(model, loss):
    leaf = _x().requires_grad_()
    inner = _x(4).requires_grad_()
    for _ in range(3):
        (loss(leaf) + loss(inner * 2)).backward()
    return leaf.grad, inner.grad, _grads(model)


def _the_same_leaf_twice(model, loss):
    model[4].bias = nn.Parameter(torch.ones(3, device=_device))
    shared = nn.Parameter(torch.full((8, 8), 0.1, device=_device))
    model[2].weight = shared
    loss(_x()).backward()
    (loss(_x()) + shared.sum()).backward()
    return _grads(model)


def _by_name(scenarios):
    return {f.__name__.lstrip("_"): f for f in scenarios}


SCENARIOS = _by_name(
    [
        _plain,
        _accumulated_over_calls,
        _two_calls_in_one_graph,
        _beside_a_use_of_eager_code,
        _retained,
        _a_second_backward,
        _some_inputs,
        _returned_gradients,
        _a_node_called_by_hand,
        _tensor_hooks,
        _hooks_after_accumulation,
        _hooks_between_forward_and_backward,
        _a_hook_of_the_accumulating_node,
        _a_hook_of_the_results_node,
        _a_hook_on_the_result,
        _anomalies,
        _a_leaf_frozen_before_the_backward,
        _gradients_held_by_others,
        _zeroed_in_place,
        _a_gradient_of_other_layout,
        _gradients_of_another_type,
        _create_graph,
        _callbacks_at_the_end,
        _inside_another_backward,
        _an_input_with_a_gradient,
        _the_same_leaf_twice,
    ]
)


def compare_scenario(name, device):
    global _device
    _device, seen, model = device, [], _model().to(device)
    for compile_it in (False, True):
        own = copy.deepcopy(model)

        def loss(x):
            return own(x).square().mean()

        run = broach.compile(loss) if compile_it else loss
        for _ in range(3 if compile_it else 0):
            run(_x()).backward()
        own.zero_grad(set_to_none=True)
        before = run.stats()["compiled_calls"] if compile_it else 0
        seen.append(SCENARIOS[name](own, run))
        if compile_it:  # the same leaf twice: new parameters, which calls record first
            assert run.stats()["compiled_calls"] > before or name == "the_same_leaf_twice", run.stats()["eager_reasons"]
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-4, atol=1e-5)
