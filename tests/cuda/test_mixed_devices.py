"""Programs with tensors of the host and of a device: each part runs where it lies, and copies between them are steps."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import broach


def _check(f, *args, calls=6, **tolerance):
    """Compiled calls give what eager gives, also for arguments of other elements, and do run compiled."""
    compiled = broach.compile(f)
    with torch.no_grad():
        for i in range(calls):
            given = [a + i if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
            want, have = f(*copy.deepcopy(given)), compiled(*copy.deepcopy(given))
            for a, b in zip(*(t if isinstance(t, tuple) else (t,) for t in (have, want))):
                assert a.device == b.device and a.dtype == b.dtype and a.stride() == b.stride()
                torch.testing.assert_close(a, b, **(tolerance or {"rtol": 1e-4, "atol": 1e-4}))
    report = broach.explain(compiled, *args)
    assert compiled.stats()["compiled_calls"] >= calls - 3, report.eager_reasons
    return report


def _gpu(*sizes):
    return torch.randn(*sizes, device="cuda")


def test_a_part_on_each_side():
    def program(x, y):
        h = torch.softmax(x * 2 + 1, -1)
        return h.cuda() * y + 1, h - 3, (y.sin() + 1).cpu() * h

    report = _check(program, torch.randn(40, 60), _gpu(40, 60))
    assert report.kernels >= 3


def test_there_and_back_and_there():
    def program(x):
        a = (x * 2).cpu()
        b = (a.cumsum(0) + 1).cuda()
        c = (b * b).cpu() + a
        return c.cuda() + x, c

    _check(program, _gpu(33, 5))


def test_positions_and_masks_made_on_the_host():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places, self.out = nn.Embedding(50, 32), nn.Embedding(64, 32), nn.Linear(32, 50)

        def forward(self, ids):
            n = ids.shape[1]
            places = torch.arange(n).unsqueeze(0)
            mask = torch.full((n, n), float("-inf")).triu(1)
            h = self.words(ids) + self.places(places.to(ids.device))
            w = torch.softmax(h @ h.transpose(1, 2) + mask.to(h.device), -1)
            return self.out(w @ h)

    model = Model().cuda()
    compiled = broach.compile(model)
    for n in (5, 9, 17, 9, 33, 20):
        ids = torch.randint(0, 50, (3, n), device="cuda")
        got = []
        for run in (model, compiled):
            model.zero_grad()
            out = run(ids)
            out.square().mean().backward()
            got.append([out, *[p.grad.clone() for p in model.parameters()]])
        for a, b in zip(*got):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    report = broach.explain(compiled, ids)
    assert report.front == "native" and report.kernels > 3, report.eager_reasons


@pytest.mark.parametrize("pinned", [False, True])
def test_indices_of_the_host(pinned):
    x, i = _gpu(100, 8), torch.randint(0, 100, (37,))
    i = i.pin_memory() if pinned else i
    compiled = broach.compile(lambda x, i: x[i] * 2)
    for _ in range(50):
        want, have = x[i] * 2, compiled(x, i)
        i.random_(0, 100)  # at once: nobody may still read it
        assert torch.equal(want, have)
    _check(lambda x, i: x[i % 7, i % 3] + x[:37, 0], x, i.clone())


def test_numbers_computed_of_the_hosts_tensors():
    _check(lambda x, y: y * x.sum() + x.amax().exp(), torch.randn(1000) / 30, _gpu(30, 40))
    _check(lambda x, y: torch.where(y > x.mean(), y, x[3]), torch.randn(10), _gpu(30, 40))


def test_products_and_convolutions_on_the_host():
    def program(x, w, y):
        h = F.gelu(x @ w) + 1
        c = F.conv1d(h.unsqueeze(0), torch.ones(1, h.shape[0], 3)).relu()
        return c.cuda().sum() + F.gelu(y @ y.t()), c

    _check(program, torch.randn(20, 30), torch.randn(30, 40) / 8, _gpu(8, 16) / 8)


def test_writes_on_both_sides():
    def program(x, y):
        x[1:].mul_(2)
        y.add_(x.sum(0).cuda())
        x.copy_(y.expand(4, 6))
        return x + 1, y * 2

    _check(program, torch.randn(4, 6), _gpu(6))


def test_sizes_that_change():
    compiled = broach.compile(lambda x, y: (x.exp().cuda() @ y, (y * 2).cpu().sum(0) + x[0, 0]))
    for n in (3, 8, 1, 40, 21, 8, 100):
        x, y = torch.randn(n, 16), _gpu(16, n)
        with torch.no_grad():
            for a, b in zip(compiled(x, y), (x.exp().cuda() @ y, (y * 2).cpu().sum(0) + x[0, 0])):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert compiled.stats()["compiled_calls"] >= 3


def test_a_value_that_the_host_reads():
    def program(x, y):
        scale = (x * 2).sum().item()
        return y * scale, (y.sum().cpu() + x) * scale

    _check(program, torch.randn(9), _gpu(7, 5))


def test_gradients_for_both_sides():
    w, v = torch.randn(6, 5, requires_grad=True), _gpu(5, 4).requires_grad_()
    program = lambda x: ((x @ w).tanh().cuda() @ v).square().mean()  # noqa: E731
    compiled = broach.compile(program)
    for n in (3, 3, 3, 7, 7, 5):
        x = torch.randn(n, 6)
        want, have = torch.autograd.grad(program(x), (w, v)), torch.autograd.grad(compiled(x), (w, v))
        for a, b in zip(have, want):
            assert a.device == b.device
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_of_a_result_on_the_host():
    v = _gpu(5, 4).requires_grad_()
    program = lambda x: (x @ v).cpu().square().mean()  # noqa: E731
    compiled = broach.compile(program)
    for _ in range(4):
        x = _gpu(3, 5)
        torch.testing.assert_close(*(torch.autograd.grad(f(x), v)[0] for f in (compiled, program)), rtol=1e-4, atol=1e-5)


def test_a_copy_that_is_not_waited_for():
    def program(x):
        there = (x * 2).to("cpu", non_blocking=True)
        torch.cuda.synchronize()
        return there + 1

    compiled = broach.compile(program)
    for _ in range(5):
        x = _gpu(1 << 20)
        assert torch.equal(compiled(x), program(x))


def test_dropout_on_both_sides():
    program = lambda x, y: (F.dropout(x, 0.3).cuda() + F.dropout(y, 0.5), torch.rand(3) + x[0, 0])  # noqa: E731
    compiled = broach.compile(program)
    x, y = torch.randn(20, 3), _gpu(20, 3)
    for seed in range(5):
        got = []
        for f in (program, compiled):
            torch.manual_seed(seed)
            got.append((*f(x, y), torch.rand(1), torch.rand(1, device="cuda")))
        for a, b in zip(*got):
            torch.testing.assert_close(a, b)


def test_side_streams():
    compiled = broach.compile(lambda x, y: ((x * 2).cuda() + y, y.cpu() + x))
    stream = torch.cuda.Stream()
    for i in range(10):
        x = torch.randn(1000, 100)
        with torch.cuda.stream(stream):
            y = _gpu(1000, 100)
            a, b = compiled(x, y)
            assert torch.equal(a, (x * 2).cuda() + y) and torch.equal(b, y.cpu() + x)
