"""Launches that are recorded as a CUDA graph, and made at once: nothing of it may show but the time."""

from __future__ import annotations

import threading

import broach
import pytest
import torch
import torch.nn.functional as F
from torch import nn


class _Layers(nn.Module):
    """Products with elementwise work and norms between them, the first and the last of them kernels or products."""

    def __init__(self, width=64, layers=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms):
            x = x + layer(norm(x))
        return x


def _softmaxes(x):
    for i in range(8):
        x = torch.softmax(x * 2, i % 2)
    return x


def _model(**kwargs):
    return _Layers(**kwargs).cuda().eval()


def _close(have, want):
    torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


def _recordings(compiled, *args):
    return broach.explain(compiled, *args).recordings


@torch.no_grad()
def test_calls_that_repeat_are_recorded():
    model, x = _model(), torch.randn(16, 64, device="cuda")
    want, compiled = model(x), broach.compile(model)
    for _ in range(12):
        _close(compiled(x), want)
    assert _recordings(compiled, x) > 0


@torch.no_grad()
@pytest.mark.parametrize("program", [_softmaxes, _model], ids=["kernels", "products"])
def test_results_stay_valid(program):
    program = program() if program is _model else program
    compiled, xs = broach.compile(lambda x: program(x)), [torch.randn(16, 64, device="cuda") for _ in range(5)]
    want = [program(x) for x in xs]
    for _ in range(6):
        have = [compiled(x) for x in xs]
        for a, b in zip(have, want):
            _close(a, b)
        again = [compiled(x.clone()) for x in xs]
        for a, b in zip(have + again, want + want):
            _close(a, b)
    assert _recordings(compiled, xs[0]) > 0


@torch.no_grad()
def test_inputs_and_weights_are_freed_and_written_between_calls():
    model = _model()
    compiled = broach.compile(model)
    for step in range(20):
        x = torch.randn(16, 64, device="cuda")
        _close(compiled(x), model(x))
        junk = [torch.full((16, 64), float("nan"), device="cuda") for _ in range(step % 4)]
        for p in model.parameters():
            p.mul_(0.98)
        if step % 6 == 5:
            model.layers[0][0].weight.data = model.layers[0][0].weight.data.clone()
        del junk, x


@torch.no_grad()
def test_an_input_that_is_not_aligned():
    """Its kernel is another one."""
    memory, xs = torch.randn(17 * 64, device="cuda"), []
    for start in (0, 1, 0, 3, 64, 1):
        xs.append(memory[start : start + 1024].view(16, 64))
    compiled = broach.compile(_softmaxes)
    for _ in range(4):
        for x in xs:
            _close(compiled(x), _softmaxes(x))


@torch.no_grad()
def test_inputs_that_are_written():
    def program(x, y):
        h = torch.tanh(y @ y.T)
        x.mul_(0.5).add_(h)
        return torch.softmax(x, 0) @ y

    x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda") / 8
    theirs, ours, compiled = x.clone(), x.clone(), broach.compile(program)
    for _ in range(12):
        _close(compiled(ours, y), program(theirs, y))
        _close(ours, theirs)


@torch.no_grad()
def test_sizes_that_change():
    model = _model()
    compiled = broach.compile(model)
    for _ in range(4):
        for n in (16, 16, 7, 7, 16, 33, 33, 2):
            x = torch.randn(n, 64, device="cuda")
            _close(compiled(x), model(x))


@torch.no_grad()
def test_numbers_that_change():
    model = _model()

    def program(x, t):
        return model(x) * t + t

    compiled, x = broach.compile(program), torch.randn(16, 64, device="cuda")
    for step in range(16):
        _close(compiled(x, 0.1 * (step // 2)), program(x, 0.1 * (step // 2)))


@torch.no_grad()
def test_streams_and_the_callers_own_graph():
    model, x = _model(), torch.randn(16, 64, device="cuda")
    compiled, streams = broach.compile(model), [torch.cuda.Stream() for _ in range(3)]
    want = model(x)
    torch.cuda.synchronize()
    for _ in range(8):
        for stream in streams:
            with torch.cuda.stream(stream):
                have = compiled(x)
            stream.synchronize()
            _close(have, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compiled(x)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        _close(captured, model(x))
        _close(compiled(x), model(x))


@torch.no_grad()
def test_a_little_memory_for_intermediates_is_kept():
    """A call takes memory for its result alone; what a user records lies in memory of his graph, which other calls do not write."""
    x = torch.randn(16, 64, device="cuda")
    compiled = broach.compile(_softmaxes)
    for _ in range(8):
        compiled(x)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(10):
        compiled(x)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] - before == 10

    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        captured = compiled(x)
    y = torch.randn(16, 64, device="cuda")
    want, other = _softmaxes(x), _softmaxes(y)
    torch.cuda.synchronize()
    for _ in range(50):
        with torch.cuda.stream(side):
            graph.replay()
        have = compiled(y)
        torch.cuda.synchronize()
        _close(captured, want)
        _close(have, other)


def test_threads():
    model, xs, errors = _model(), [torch.randn(16, 64, device="cuda") for _ in range(4)], []
    compiled = broach.compile(model)
    with torch.no_grad():
        want = [model(x) for x in xs]
        for _ in range(6):
            compiled(xs[0])

    def work(x, y):
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            try:
                for _ in range(60):
                    _close(compiled(x), y)
            except Exception as e:  # noqa: BLE001 whatever it is, the test shall say it
                errors.append(e)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(xs, want)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]


@torch.no_grad()
def test_memory_stays_as_it_is():
    model, x = _model(width=256), torch.randn(64, 256, device="cuda")
    compiled = broach.compile(model)
    for _ in range(10):
        compiled(x)
    before = torch.cuda.memory_allocated()
    for _ in range(300):
        compiled(x)
    assert torch.cuda.memory_allocated() == before
    del compiled
    broach.reset()


@torch.no_grad()
def test_a_product_with_odd_rows():
    """A large one goes through memory of its own, whose rows the library's fast kernels can write."""
    x, w = torch.randn(700, 64, device="cuda", dtype=torch.bfloat16), torch.randn(1001, 64, device="cuda", dtype=torch.bfloat16)
    compiled = broach.compile(lambda x: F.linear(x, w))
    for n in (700, 700, 700, 650):
        want = F.linear(x[:n], w)
        have = compiled(x[:n])
        assert have.stride() == want.stride()
        torch.testing.assert_close(have, want, rtol=1.6e-2, atol=1e-2)


@torch.no_grad()
def test_a_mask_that_repeats_along_the_keys():
    q = torch.randn(2, 4, 40, 64, device="cuda", dtype=torch.bfloat16)
    rows = torch.arange(40, device="cuda")[:, None] >= 0

    def program(q):
        return F.scaled_dot_product_attention(q, q, q, attn_mask=rows[None, None].expand(2, 1, 40, 40))

    compiled = broach.compile(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(q), program(q), rtol=1.6e-2, atol=1.6e-2)
    assert any("attention" in name for name, _ in broach.explain(compiled, q).externs)


class _Projections(nn.Module):
    """Several products of one value, which are recorded beside each other, in memory that the next layer uses again."""

    def __init__(self, width=64, layers=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleList(nn.Linear(width, width) for _ in range(5)) for _ in range(layers))

    def forward(self, x):
        for a, b, c, d, out in self.layers:
            x = x + out(torch.softmax(a(x) * b(x), -1) * c(x) + torch.tanh(d(x)))
        return x


@torch.no_grad()
def test_products_beside_each_other():
    model, xs = _Projections().cuda().eval(), [torch.randn(32, 64, device="cuda") for _ in range(3)]
    want, compiled = [model(x) for x in xs], broach.compile(model)
    for i in range(24):
        _close(compiled(xs[i % 3]), want[i % 3])
    assert _recordings(compiled, xs[0]) > 0
