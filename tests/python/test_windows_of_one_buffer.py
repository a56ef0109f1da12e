"""Arguments and state that are windows of one buffer, some of which the program writes: parameters laid out flat, buckets of gradients."""

from __future__ import annotations

import broach
import pytest
import torch
from compared import difference, stats
from gradient_programs import with_gradients  # noqa: F401
from torch import nn


def _adds(a, b):
    a.add_(b)
    return a * 2 + b


def _both(a, b):
    a.mul_(2)
    b.sub_(a)
    return b.sum() + a.sum()


def _in_turn(a, b):
    a += b.square()
    view = a[1:]
    view.neg_()
    return view, b + a.sum()


PROGRAMS = {"one": _adds, "both": _both, "views": _in_turn}
# Windows of twelve elements of one buffer.
LAYOUTS = {
    "apart": lambda x: (x[:12].view(3, 4), x[12:24].view(3, 4)),
    "the other way round": lambda x: (x[12:24].view(3, 4), x[:12].view(3, 4)),
    "with a gap": lambda x: (x[2:14].view(3, 4), x[20:32].view(3, 4)),
    "overlapping": lambda x: (x[:12].view(3, 4), x[8:20].view(3, 4)),
    "within": lambda x: (x[:24].view(6, 4)[::2], x[4:16].view(3, 4)),
    "interleaved": lambda x: (x[:24].view(3, 8)[:, ::2], x[:24].view(3, 8)[:, 1::2]),
    "the same": lambda x: (x[:12].view(3, 4), x[:12].view(3, 4)),
    "a detached alias": lambda x: (x[:12].view(3, 4), x.detach()[12:24].view(3, 4)),
    "two buffers": lambda x: (x[:12].view(3, 4), x[12:24].clone().view(3, 4)),
    "one expanded": lambda x: (x[:12].view(3, 4), x[12:16].expand(3, 4)),
}


def _compiled(program):
    return broach.compile(lambda *args: program(*args))


def _call(program, layout, seed):
    buffer = torch.randn(32, generator=torch.Generator().manual_seed(seed))
    a, b = LAYOUTS[layout](buffer)
    with torch.no_grad():
        try:
            result = program(a, b)
        except RuntimeError as error:
            result = str(error).splitlines()[0]
    return result, buffer, a, b, [t._version for t in (buffer, a, b)]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_layout(program, layout):
    compiled = _compiled(PROGRAMS[program])
    for seed in range(6):
        assert not (why := difference(_call(PROGRAMS[program], layout, seed), _call(compiled, layout, seed))), why
    if layout in ("apart", "the other way round", "with a gap", "a detached alias", "two buffers"):
        assert stats(compiled)["compiled_calls"] >= 4, stats(compiled)


@pytest.mark.parametrize("program", PROGRAMS)
def test_layouts_in_turn(program):
    compiled = _compiled(PROGRAMS[program])
    for seed in range(4):
        for layout in [*LAYOUTS, *reversed(LAYOUTS)]:
            assert not (why := difference(_call(PROGRAMS[program], layout, seed), _call(compiled, layout, seed))), (layout, why)


def test_many_windows():
    """More than a few that are written, some beside others that are only read."""

    def program(*windows):
        for i, w in enumerate(windows):
            if i % 3:
                w.mul_(i).add_(windows[i - 1] + 1)
        return sum(w.sum() for w in windows)

    def call(program, order, shift):
        x = torch.arange(80.0)
        windows = [x[8 * i + 8 : 8 * i + 16] for i in order]
        windows[5] = x[8 * order[5] + shift + 8 : 8 * order[5] + shift + 16]
        return program(*windows), x

    compiled = _compiled(program)
    for order in ([0, 1, 2, 3, 4, 5, 6, 7], [7, 3, 1, 0, 2, 6, 5, 4]):
        with torch.no_grad():
            for _ in range(4):
                assert not (why := difference(call(program, order, 0), call(compiled, order, 0))), (order, why)
    assert stats(compiled)["compiled_calls"] >= 6, stats(compiled)
    for order in ([0, 1, 2, 3, 4, 5, 6, 7], [7, 3, 1, 0, 2, 6, 5, 4]):
        with torch.no_grad():
            for shift in (2, -2, 7, 0, 2):
                assert not (why := difference(call(program, order, shift), call(compiled, order, shift))), (order, shift, why)


class _Flat(nn.Module):
    """Whose parameters are windows of one buffer, and their gradients of another, as a bucket has them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 6)
        parameters = list(self.parameters())
        sizes = [p.numel() for p in parameters]
        flat, bucket = torch.cat([p.detach().flatten() for p in parameters]), torch.zeros(sum(sizes))
        for p, w, g in zip(parameters, flat.split(sizes), bucket.split(sizes), strict=True):
            p.data, p.grad = w.view_as(p), g.view_as(p)
        self.flat, self.bucket = flat, bucket

    def forward(self, x):
        return self.b(self.a(x).tanh())


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_step_of_flat_parameters(optimizer):
    ours, theirs = _Flat(), _Flat()

    def step_of(model):
        update = optimizer(model.parameters(), lr=0.1)

        def step(x):
            update.zero_grad(set_to_none=False)
            loss = model(x).square().mean()
            loss.backward()
            update.step()
            return loss.detach()

        return step

    compiled, step = _compiled(step_of(ours)), step_of(theirs)
    for seed in range(8):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))
        have, want = compiled(x), step(x)
        assert not (why := difference((want, theirs.flat, theirs.bucket), (have, ours.flat, ours.bucket))), (seed, why)
        assert all(p.grad.untyped_storage().data_ptr() == ours.bucket.untyped_storage().data_ptr() for p in ours.parameters())
    assert stats(compiled)["compiled_calls"] >= 4, stats(compiled)


def test_state_beside_an_argument():
    """A module's buffer is written while what is beside it in memory is an argument, or a weight that is computed with once."""
    memory = torch.randn(20)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", memory[:4], persistent=False)
            self.register_buffer("weight", memory[4:8], persistent=False)

        def forward(self, x):
            self.count.copy_(self.count + x)
            return self.count * self.weight.exp()

    model = Model().eval()
    compiled = broach.compile(model)
    with torch.no_grad():
        for begin in (8, 12, 8, 16, 8, 12, 2, 8, 2):  # at 2 it meets both
            before = memory.clone()
            want = (before[:4] + before[begin : begin + 4]) * before[4:8].exp()
            torch.testing.assert_close(compiled(memory[begin : begin + 4]), want)
            torch.testing.assert_close(memory[:4], before[:4] + before[begin : begin + 4])
            assert torch.equal(memory[4:], before[4:])
            if begin == 16:
                assert stats(compiled)["compiled_calls"] > 0, stats(compiled)
