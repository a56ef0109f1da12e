"""Calls of libtorch's that are part of a program's CUDA graph: nothing of it may show but the time."""

from __future__ import annotations

import gc
import threading

import broach
import pytest
import torch
import torch.nn.functional as F
from torch import nn


class _Attention(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        n, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + torch.tanh(self.out(y.transpose(1, 2).reshape(n, length, width)))


def _transformer(layers=3, dtype=torch.bfloat16):
    return nn.Sequential(*(_Attention() for _ in range(layers))).cuda().to(dtype).eval()


def _convolutions():
    layers = [m for i in range(4) for m in (nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).cuda()


def _close(have, want):
    torch.testing.assert_close(have, want, rtol=2e-2, atol=2e-2)


def _launches(call):
    """How many kernels and copies a call launches that are part of no graph."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(2):  # to begin with, a program looks at what the profiler has changed
        call()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as told:
            call()
            torch.cuda.synchronize()
    launching = ("cudaLaunchKernel", "cuLaunchKernel", "cudaMemcpy", "cuMemcpy")
    return sum(event.count for event in told.key_averages() if event.key.startswith(launching))


@torch.no_grad()
@pytest.mark.parametrize("make, sizes", [(_transformer, (2, 32, 64)), (lambda: _convolutions().eval(), (4, 16, 16, 16))], ids=["attention", "convolution"])
def test_a_call_is_one_graph(make, sizes):
    model = make()
    x = torch.randn(sizes, device="cuda", dtype=next(model.parameters()).dtype)
    want, compiled = model(x), broach.compile(model)
    for _ in range(12):
        _close(compiled(x), want)
    assert _launches(lambda: compiled(x)) == 0
    assert broach.explain(compiled, x).recordings > 0


class _Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layers, self.out = kind(32, 48, 2, batch_first=True, dropout=0.3), nn.Linear(48, 8)

    def forward(self, x):
        return torch.softmax(self.out(self.layers(x)[0]), -1)


class _Bags(nn.Module):
    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 32, mode=mode) for mode in ("sum", "mean", "max"))

    def forward(self, x):
        places = (x.abs() * 10).long().clamp(max=49)
        return torch.tanh(sum(bag(places) for bag in self.bags)).softmax(-1)


def _encoder():
    layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2)
    return nn.Sequential(layers, nn.Softmax(-1)).cuda().eval()


def _orders(x):
    values, places = x.sort(-1)
    most = x.topk(4, dim=-1).values
    return torch.softmax(values.cumsum(-1) + most.sum(-1, keepdim=True), -1) + places.gather(-1, places) % 3


def _resized(x):
    y = F.interpolate(F.relu(x) + 1, size=(20, 24), mode="bilinear") * torch.ones_like(x[..., :1, :1])
    return torch.softmax(F.avg_pool2d(y, 3, 2, ceil_mode=True, count_include_pad=False).tril(), -1) + F.interpolate(y, scale_factor=0.5, mode="bicubic").mean()


@torch.no_grad()
@pytest.mark.parametrize(
    "make, sizes",
    [
        (lambda: _Recurrent(nn.LSTM).cuda().eval(), (4, 20, 32)),
        (lambda: _Recurrent(nn.GRU).cuda().eval(), (4, 20, 32)),
        (lambda: _Bags().cuda().eval(), (64, 5)),
        (_encoder, (4, 20, 32)),  # whose layers are calls of torch's
        (lambda: _orders, (16, 40)),
        (lambda: _resized, (2, 3, 16, 16)),
    ],
    ids=["lstm", "gru", "bags", "encoder", "orders", "resized"],
)
def test_a_call_of_these_is_one_graph_too(make, sizes):
    """And nothing of it is computed on the host, or copied from there."""
    program = make()
    x = torch.randn(sizes, device="cuda")
    compiled = broach.compile(program)
    for _ in range(12):
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(compiled(x * 2), program(x * 2), rtol=1e-3, atol=1e-4)
    assert _launches(lambda: compiled(x)) == 0


@torch.no_grad()
@pytest.mark.parametrize("make", [lambda: nn.LSTM(32, 48, 2, batch_first=True).cuda(), lambda: _encoder()[0]], ids=["lstm", "encoder"])
def test_a_call_that_is_all_of_a_program_is_a_graph(make):
    """And what it gives is copied out of that, by one launch."""
    program = make()
    x = torch.randn(4, 20, 32, device="cuda")
    compiled = broach.compile(program)
    results = []
    for _ in range(12):
        for given in (x, x * 2):
            results.append((compiled(given), program(given)))
    torch.testing.assert_close([have for have, _ in results], [want for _, want in results], rtol=1e-3, atol=1e-4)
    assert _launches(lambda: compiled(x)) <= 1


def test_dropout_between_recurrent_layers_is_drawn_anew():
    model = _Recurrent(nn.LSTM).cuda().train()
    x = torch.randn(4, 20, 32, device="cuda")
    compiled = broach.compile(model)
    with torch.no_grad():
        results = [compiled(x) for _ in range(8)]
    assert len({tuple(r.flatten().tolist()) for r in results}) == len(results)


def test_memory_is_set_by_kernels():
    """cuDNN sets some before it computes (on an H200 at these sizes): in a graph the device would stand still around such a node."""
    from torch.profiler import ProfilerActivity, profile

    layers = [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=2, padding=1)]
    model, x = nn.Sequential(*layers).cuda().bfloat16(), torch.randn(32, 64, 56, 56, device="cuda", dtype=torch.bfloat16)
    compiled = broach.compile(lambda x: model(x).float().square().mean())

    def step():
        model.zero_grad()
        compiled(x).backward()

    model(x).float().square().mean().backward()
    want = [p.grad for p in model.parameters()]
    for _ in range(12):
        step()
    for _ in range(2):  # to begin with, a program looks at what the profiler has changed
        with profile(activities=[ProfilerActivity.CUDA]) as told:
            for _ in range(3):
                step()
            torch.cuda.synchronize()
    ran = [event.name for event in told.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert ran and not [name for name in ran if "memset" in name.lower()]
    for p, gradient in zip(model.parameters(), want):
        assert (p.grad - gradient).norm() < 2e-2 * gradient.norm()


@torch.no_grad()
def test_results_stay_valid():
    """That of a call of libtorch's among them."""
    model = _transformer(2)

    def program(x):
        y = model(x)
        q = y.view(2, 32, 4, 16).transpose(1, 2)
        return y, F.scaled_dot_product_attention(q, q, q), q.sum()

    compiled, xs = broach.compile(program), [torch.randn(2, 32, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    want = [program(x) for x in xs]
    for _ in range(6):
        have = [compiled(x) for x in xs] + [compiled(x) for x in reversed(xs)]
        for a, b in zip(have, want + want[::-1]):
            for s, t in zip(a[:2], b[:2]):
                _close(s, t)
                assert s.stride() == t.stride()
        places = {result.data_ptr() for results in have for result in results}
        assert len(places) == 3 * len(have)
    assert broach.explain(compiled, xs[0]).recordings > 0


@torch.no_grad()
def test_inputs_and_weights_are_written_and_freed_between_calls():
    model = _transformer()
    compiled = broach.compile(model)
    for step in range(24):
        x = torch.randn(2, 32, 64, device="cuda", dtype=torch.bfloat16)
        _close(compiled(x), model(x))
        junk = [torch.full((2, 32, 64), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(step % 4)]
        for p in model.parameters():
            p.mul_(0.98)
        if step % 6 == 5:
            torch.cuda.empty_cache()
        del junk, x


@pytest.mark.parametrize("training", [False, True])
def test_gradients(training):
    for make, sizes in ((lambda: _transformer(dtype=torch.bfloat16), (2, 32, 64)), (_convolutions, (4, 16, 16, 16))):
        torch.manual_seed(0)
        ours = make().train(training)
        theirs = make().train(training)
        theirs.load_state_dict(ours.state_dict())
        compiled = broach.compile(ours)
        for step in range(10):
            x = torch.randn(sizes, device="cuda", dtype=next(ours.parameters()).dtype)
            losses = []
            for model, call in ((ours, compiled), (theirs, theirs)):
                model.zero_grad(set_to_none=step % 2 == 0)
                loss = call(x).float().square().mean()
                loss.backward()
                losses.append(loss.detach())
            _close(*losses)
            for p, q in zip(ours.parameters(), theirs.parameters()):
                _close(p.grad, q.grad)
            for a, b in zip(ours.buffers(), theirs.buffers()):
                _close(a, b)


@torch.no_grad()
def test_streams_threads_and_the_callers_own_graph():
    model, xs = _transformer(), [torch.randn(2, 32, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    compiled, want, errors = broach.compile(model), [model(x) for x in xs], []
    for _ in range(6):
        _close(compiled(xs[0]), want[0])

    def work(x, y):
        stream = torch.cuda.Stream()
        with torch.no_grad(), torch.cuda.stream(stream):
            stream.wait_stream(torch.cuda.default_stream())
            try:
                for _ in range(40):
                    _close(compiled(x), y)
            except Exception as e:  # noqa: BLE001 whatever it is, the test shall say it
                errors.append(e)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(xs, want)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors[0]
    torch.cuda.synchronize()
    graph, x = torch.cuda.CUDAGraph(), xs[0].clone()
    with torch.cuda.graph(graph):
        captured = compiled(x)
    for _ in range(3):
        x.copy_(torch.randn_like(x))
        graph.replay()
        _close(captured, model(x))
        _close(compiled(x), model(x))


@torch.no_grad()
def test_what_draws_or_counts_stays_outside():
    def draws(x):
        for _ in range(3):
            x = torch.tanh(F.scaled_dot_product_attention(x, x, x, dropout_p=0.5))
        return x

    def counts(x):
        y = torch.tanh(x).flatten()
        return y[y > 0].sum() + F.scaled_dot_product_attention(x, x, x).sum()

    x = torch.randn(2, 4, 32, 16, device="cuda", dtype=torch.bfloat16)
    drawing, counting = broach.compile(draws), broach.compile(counts)
    for _ in range(8):
        results = [drawing(x) for _ in range(3)]
        assert not torch.equal(results[0], results[1]) and not torch.equal(results[1], results[2])
        torch.testing.assert_close(counting(x), counts(x), rtol=2e-2, atol=1)


@torch.no_grad()
def test_memory_is_torchs_and_comes_back():
    torch.cuda.synchronize()
    model, x = _transformer(), torch.randn(2, 32, 64, device="cuda", dtype=torch.bfloat16)
    model(x)
    broach.reset()  # what programs before this one left goes as well
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    compiled = broach.compile(model)
    for _ in range(10):
        compiled(x)
    allocated = torch.cuda.memory_allocated()
    for _ in range(300):
        compiled(x)
    assert torch.cuda.memory_allocated() == allocated
    del compiled
    broach.reset()
    gc.collect()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before[1]
    assert torch.cuda.memory_reserved() <= before[0]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_convolutions(dtype):
    """With channels last between them, whatever the program says of its own tensors."""

    def program(x, layers):
        a, b, c, d, e = layers
        y = torch.relu(b(torch.relu(a(x))) + x)
        return c(y), d(y), e(y)

    layers = [
        nn.Conv2d(16, 24, 3, padding=1),
        nn.Conv2d(24, 16, 1, bias=False),
        nn.Conv2d(16, 8, 4, stride=4),
        nn.ConvTranspose2d(16, 8, 3, stride=2),
        nn.Conv2d(16, 32, 5, stride=2, padding=2, groups=4, dilation=1),
    ]
    layers = [layer.cuda().to(dtype) for layer in layers]
    x = torch.randn(3, 16, 20, 20, device="cuda", dtype=dtype)
    for given in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3), x[:, :, ::2, ::2]):
        compiled = broach.compile(lambda x: program(x, layers))
        want = program(given, layers)
        for _ in range(5):
            for s, t in zip(compiled(given), want):
                _close(s, t)
                assert s.stride() == t.stride()
