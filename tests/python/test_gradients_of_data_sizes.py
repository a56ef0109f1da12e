"""Gradients of programs with sizes that depend on data: compiled, with eager's results and gradients whatever is selected."""

from __future__ import annotations

import os
import subprocess
import sys

import broach
import pytest
import torch
from compared import difference, native, stats
from gradient_programs import with_gradients  # noqa: F401
from losses_of_data import PROGRAMS, SelectingGradient, arguments, trained, weighed
from torch.utils.checkpoint import CheckpointError, checkpoint

# Captured for each count of rows: torch's gradient of masked_select asks for plain sizes, and a slice for which of two is the larger.
FIXED_ROWS = {"masked_select", "hard_negatives"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_compiled(name):
    program, calls = PROGRAMS[name], 12
    compiled = native(program)
    for call in range(calls):
        want, have = trained(program, call), trained(compiled, call)
        assert not (why := difference(want, have)), (call, why)
    told = stats(compiled)
    most = 8 if name in FIXED_ROWS else 4
    assert told["front"] == "native" and told["compiled_calls"] >= calls - most, (told["eager_reasons"], told["reasons"], told["captures"])


IN_A_NEW_PROCESS = """
from compared import native, stats
from losses_of_data import PROGRAMS, trained
compiled = native(PROGRAMS["norm_of_rows"])
for call in range(8):
    trained(compiled, call)
assert stats(compiled)["captures"] <= 3, stats(compiled)
"""


def test_what_operations_import_is_no_effect_of_the_program():
    """Torch says the sizes of some gradients by Python code that imports its compiler, which sets a variable of the environment."""
    path = os.pathsep.join(p for p in sys.path if p)
    run = subprocess.run([sys.executable, "-c", IN_A_NEW_PROCESS], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("selected", [0, 1])
@pytest.mark.parametrize("name", ["labelled_tokens", "rows_as_results", "computed_rows_put_back", "repeated_rows", "norm_of_rows", "behind_dropout"])
def test_nothing_or_one_element_is_selected(name, selected):
    program = PROGRAMS[name]
    compiled = native(program)
    for call in range(8):
        seen = []
        for f in (program, compiled):
            x, w, t = arguments(call)
            if call % 2:
                t = torch.zeros_like(t)
                t[3:3 + selected] = 2
            torch.manual_seed(call)
            results = f(x, w, t)
            weighed(results).backward()
            seen.append([results, x.grad, w.grad])
        assert not (why := difference(*seen)), (call, why)
    assert stats(compiled)["compiled_calls"] >= 3, stats(compiled)["eager_reasons"]


@pytest.mark.parametrize("name", ["labelled_tokens", "positive_elements", "rows_as_results", "all_triplets"])
def test_gradients_of_gradients(name):
    program = PROGRAMS[name]
    compiled = native(program)
    for call in range(5):
        seen = []
        for f in (program, compiled):
            x, w, t = arguments(call)
            gradients = torch.autograd.grad(weighed(f(x, w, t)), (x, w), create_graph=True)
            sum(g.pow(2).sum() for g in gradients).backward()
            seen.append([gradients, x.grad, w.grad])
        assert not (why := difference(*seen, rtol=1e-3, atol=1e-3)), (call, why)
    assert stats(compiled)["compiled_calls"] >= 2, stats(compiled)["eager_reasons"]


def test_two_calls_of_other_sizes_before_their_backwards():
    program = PROGRAMS["rows_as_results"]
    compiled = native(program)
    for call in range(4):
        trained(compiled, call)
    seen = []
    for f in (program, compiled):
        given = [arguments(call) for call in (3, 7)]
        results = [f(*args) for args in given]
        first = torch.autograd.grad(weighed(results[1]), given[1][:2])
        again = torch.autograd.grad(weighed(results[0]), given[0][:2], retain_graph=True)
        seen.append([results, first, again, torch.autograd.grad(results[0][1].sum(), given[0][0])])
    assert not (why := difference(*seen)), why


def test_errors_of_eager():
    compiled = native(PROGRAMS["labelled_tokens"])
    for call in range(4):
        trained(compiled, call)
    x, w, t = arguments(5)
    loss = compiled(x, w, t)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    x, w, t = arguments(5)
    loss = compiled(x, w, t)
    with torch.no_grad():
        w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_whole_step_of_a_masked_loss():
    def step(model, optimizer, x, t):
        optimizer.zero_grad()
        scores, labelled = model(x), t > 1
        loss = torch.nn.functional.cross_entropy(scores[labelled], t[labelled])
        loss.backward()
        optimizer.step()
        return loss

    seen = []
    for compile in (lambda f: f, native):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 5)
        f, optimizer = compile(step), torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        losses = []
        for call in range(9):
            x, _, t = arguments(call)
            losses.append(f(model, optimizer, x.detach(), t).detach())
        seen.append([losses, [p.detach() for p in model.parameters()]])
    assert not (why := difference(*seen)), why
    assert stats(f)["compiled_calls"] >= 4, stats(f)["eager_reasons"]


def test_gradients_that_find_out_sizes_are_eagers():
    def program(x):
        return SelectingGradient.apply(x)[x > 0]

    compiled = broach.compile(program)
    for call in range(6):
        seen = []
        for f in (program, compiled):
            x = torch.randn(9, generator=torch.Generator().manual_seed(call)).requires_grad_()
            y = f(x)
            weighed(y).backward()
            seen.append([y, x.grad])
        assert not (why := difference(*seen)), (call, why)
    assert stats(compiled)["compiled_calls"] == 0 and "depend on data" in stats(compiled)["reasons"][0]


def test_a_checkpoint_that_finds_out_sizes_is_eagers():
    """Eager finds them out again for gradients, and says so where they are others."""

    def program(x, w, chosen):
        return checkpoint(lambda a: (a @ w).tanh()[chosen].tanh(), x, use_reentrant=False)

    compiled = broach.compile(program)
    for call in range(8):
        seen = []
        for f in (program, compiled):
            x, w, t = arguments(call)
            chosen = torch.arange(len(t)) < 1 + call % 2
            y = f(x, w, chosen)
            if call < 5:
                y.sum().backward()
                seen.append([y, x.grad, w.grad])
            else:
                chosen.logical_not_()
                with pytest.raises(CheckpointError):
                    y.sum().backward()
                seen.append([y])
        assert not (why := difference(*seen)), (call, why)
    assert stats(compiled)["compiled_calls"] == 0 and "depend on data" in stats(compiled)["reasons"][0]
