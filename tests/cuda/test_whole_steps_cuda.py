"""Whole training steps on a GPU; its optimizers work on lists of tensors."""

from __future__ import annotations

import pytest
import torch
from step_code import FUNCTIONS, step_through
from torch import nn
from whole_steps import MODELS, OPTIMIZERS, STEPS, Pair, usual


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("step", STEPS)
def test_steps_as_eager(step, optimizer):
    pair = Pair(STEPS[step], optimizer=OPTIMIZERS[optimizer], device="cuda", options={"capture": "native"})
    for i in range(8):
        pair.run(i)
    seen = pair.compiled.stats()
    assert seen["front"] == "native" and seen["eager_calls"] == 0, seen["reasons"]


@pytest.mark.parametrize("model", MODELS)
def test_models(model):
    pair = Pair(usual, MODELS[model], device="cuda")
    for i in range(8):
        pair.run(i)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_custom_functions(function):
    pair = Pair(step_through(FUNCTIONS[function]), device="cuda", options={"capture": "native"})
    for i in range(8):
        pair.run(i)
    seen = pair.compiled.stats()
    if function != "in_place_of_a_window":  # autograd keeps the function within a node of its own
        assert seen["compiled_calls"] > 2 and seen["eager_calls"] == 0, seen


def test_what_hooks_read_and_write():
    factor, seen = [1.0], {}

    def program(m, out):
        out.register_hook(lambda g: g * factor[0])
        out.register_hook(lambda g: seen.__setitem__(out.is_cuda, g.norm()))
        return out

    pair = Pair(step_through(program), device="cuda")
    for i in range(10):
        factor[0] = 1.0 + i // 5
        pair.run(i)


def test_old_gradients_make_room_for_new_ones():
    def large():
        return nn.Sequential(nn.Unflatten(1, (4, 4)), nn.Flatten(), nn.Linear(16, 4096), *(nn.Linear(4096, 4096) for _ in range(4)), nn.Linear(4096, 4))

    pair = Pair(usual, large, optimizer=lambda p: torch.optim.SGD(p, 1e-3), device="cuda")
    peaks = []
    for run in (pair.programs[0], pair.compiled):
        for i in range(6):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run(torch.randn(8, 16, device="cuda"), torch.randn(8, 4, device="cuda"))
            peak = torch.cuda.max_memory_allocated() - before
        peaks.append(peak)
    assert peaks[1] <= peaks[0] + (16 << 20), peaks  # not the 256 MiB of another set
