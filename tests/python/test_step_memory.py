"""Memory of training steps: it is used again from one to the next, what was saved is let go as the gradients are computed, and nothing
is kept for programs that are gone."""

import ctypes
import gc
import itertools
import pathlib
import resource

import broach
import pytest
import torch
from broach._native import _C
from torch import nn

MIB = 2**20
LAYERS = 12


def resident_mib():
    ctypes.CDLL(None).malloc_trim(0)  # what the C library keeps for itself is not counted
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / MIB


def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.fixture(autouse=True)
def gradients():
    with torch.enable_grad():
        yield


@pytest.fixture
def net(gradients):
    """Of which each layer saves 2 MiB, and has a gradient of 1 MiB."""
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(512, 512, bias=False), nn.Sigmoid())]
    broach.reset()
    gc.collect()  # what is left of other tests' programs may give memory back when it goes
    _C.release_memory()
    return nn.Sequential(*layers)


def program_of(net):
    return lambda x: net(x).square().mean()


def step(net, call, x):
    net.zero_grad(set_to_none=True)
    call(x).backward()


def test_torchs_profiler_sees_what_is_saved_and_intermediates(net):
    call, x = broach.compile(program_of(net)), torch.randn(2048, 512)
    step(net, call, x)
    for _ in range(3):  # the first of them captures anew
        net.zero_grad(set_to_none=True)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as told:
            step(net, call, x)
            net.zero_grad(set_to_none=True)
    sizes = [e.nbytes() for e in told.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert sizes.count(MIB) == LAYERS and sizes.count(4 * MIB) > LAYERS  # gradients; what is saved, and intermediates
    assert 4 * LAYERS * MIB < max(itertools.accumulate(sizes)) < (4 * LAYERS + 16) * MIB
    assert sum(sizes) == 0


def test_the_same_pages_serve_every_step(net):
    call, x = broach.compile(program_of(net)), torch.randn(1024, 512)
    for _ in range(8):
        step(net, call, x)
    before = faults()
    for _ in range(5):
        step(net, call, x)
    # Of 9,000 that the results of one step lie on. Where there is no AVX-512, some 360 were fresh in each step of a process that had run for
    # long, and none in another: as many as a buffer would take that the products' library gets from the C library, but that is not proven.
    assert faults() - before < (50 if _C.has_bf16_contractions() else 5 * 900)


def test_what_is_saved_is_let_go_for_gradients(net):
    call, x = broach.compile(program_of(net)), torch.randn(1024, 512)
    for _ in range(8):
        step(net, call, x)
    net.zero_grad(set_to_none=True)
    saved = broach.explain(call, x).saved_bytes
    assert saved >= LAYERS * 2 * MIB
    call(x)  # is gone by now, as all that was explained
    _C.release_memory()
    assert _C.idle_arena_bytes() == 0
    step(net, call, x)
    most = _C.idle_arena_bytes() + LAYERS * MIB
    net.zero_grad(set_to_none=True)
    assert most < saved + 8 * MIB  # where it would be 12 if all of it stayed


def test_a_graph_that_is_kept_keeps_what_it_saved(net):
    call, x = broach.compile(program_of(net)), torch.randn(1024, 512)
    for _ in range(3):
        step(net, call, x)
    want = [p.grad for p in net.parameters()]
    net.zero_grad(set_to_none=True)
    loss = call(x)
    for times in (1, 2, 3):
        loss.backward(retain_graph=times < 3)
        for p, w in zip(net.parameters(), want):
            torch.testing.assert_close(p.grad, times * w)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_results_of_one_call_that_are_differentiated_in_turn(net):
    call = broach.compile(lambda x: (net(x).square().mean(), net(x).sum()))
    x = torch.randn(1024, 512)
    for _ in range(3):
        net.zero_grad(set_to_none=True)
        for loss in call(x):
            loss.backward()
    have = [p.grad for p in net.parameters()]
    net.zero_grad(set_to_none=True)
    for loss in (net(x).square().mean(), net(x).sum()):
        loss.backward()
    for p, h in zip(net.parameters(), have):
        torch.testing.assert_close(h, p.grad, rtol=1e-3, atol=1e-3)


def test_gradients_of_some_parameters(net):
    call, x = broach.compile(program_of(net)), torch.randn(1024, 512)
    some = [net[4].weight, net[20].weight]
    for _ in range(4):
        have = torch.autograd.grad(call(x), some)
        torch.testing.assert_close(have, torch.autograd.grad(program_of(net)(x), some))


def test_nothing_is_kept_for_programs_that_are_gone(net):
    x = torch.randn(16384, 512)
    program_of(net)(x).backward()
    net.zero_grad(set_to_none=True)
    gc.collect()
    small = broach.compile(program_of(net))  # stays
    for _ in range(3):
        step(net, small, x[:1])
    before = resident_mib()
    call = broach.compile(program_of(net))
    for _ in range(3):
        step(net, call, x)
    net.zero_grad(set_to_none=True)
    assert resident_mib() - before > 300
    del call
    gc.collect()
    assert resident_mib() - before < 150  # arenas, which any program may take


def test_results_outlive_the_program(net):
    call, x = broach.compile(net), torch.randn(1024, 512)
    for _ in range(3):
        y = call(x)
        y.sum().backward()
    want, gradients = net(x), [p.grad.clone() for p in net.parameters()]
    del call
    gc.collect()
    other = broach.compile(program_of(net))
    kept = [p.grad for p in net.parameters()]
    for _ in range(3):
        step(net, other, x)
    torch.testing.assert_close(y, want)
    for k, g in zip(kept, gradients):
        assert torch.equal(k, g)


def test_a_result_that_the_caller_has_let_go_of_goes_when_it_has_been_read():
    w, x = nn.Parameter(torch.randn(1024, 1024) / 32), torch.randn(1024, 1024)
    call = broach.compile(lambda x: (x @ w).tanh())
    for _ in range(5):
        w.grad = None
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as told:
            (call(x) * 2).sum().backward()
    sizes = [e.nbytes() for e in told.profiler.kineto_results.events() if e.name() == "[memory]"]
    gradient = len(sizes) - 1 - sizes[::-1].index(4 * MIB)  # which is made last
    assert sum(sizes[: gradient + 1]) < 9 * MIB  # it and an intermediate; the result would be a third
