"""What results are for autograd beside their elements: views or not, of whose version they are, and whether they may be written."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F
from compared import native
from losses_of_data import weighed
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

pytestmark = pytest.mark.usefixtures("with_gradients")


CALLS = 5


@pytest.mark.parametrize("needs", [False, True])
def test_a_detached_argument_is_no_view_and_counts_with_it(needs):
    f = native(lambda x: x.detach())
    for _ in range(CALLS):
        x = torch.ones(3, requires_grad=needs) * 1
        out = f(x)
        assert not out._is_view() and out._base is None
        out.mul_(2)
        assert x._version == out._version == 1 and torch.equal(x, out)
        out.detach_()


def test_data_of_an_argument_counts_apart():
    f, g = native(lambda x: x.data), native(lambda x: (x.sin(), x.data))
    for _ in range(CALLS):
        x = torch.randn(3, requires_grad=True)
        y = x.sin()
        f(x).mul_(2)
        assert x._version == 0
        y.sum().backward()  # which eager allows, right or not
        g(x)[1].mul_(2)
        assert x._version == 0


@pytest.mark.parametrize("program", [lambda x: x.chunk(2), lambda x: x.split([1, 3]), lambda x: x.unbind(), lambda x: x.chunk(2)[:1]])
def test_one_of_several_views_is_not_written(program):
    f = native(program)
    for _ in range(CALLS):
        x = torch.randn(4, requires_grad=True) * 1
        before = x.detach().clone()
        with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
            f(x)[0].mul_(2)
        assert torch.equal(x, before)
        plain = torch.randn(4)
        f(plain)[0].mul_(2)  # without gradients it may be


def test_one_view_is_written():
    f = native(lambda x: x[1:])
    for _ in range(CALLS):
        leaf = torch.ones(4, requires_grad=True)
        x = leaf * 1
        view = f(x)
        assert view._is_view() and view._base is x
        view.mul_(3)
        x.sum().backward()
        assert leaf.grad.tolist() == [1, 3, 3, 3]


def test_unsafe_chunks_are_written():
    f = native(lambda x: x.unsafe_chunk(2))
    for _ in range(CALLS):
        a, b = f(torch.randn(4))
        assert not a._is_view() and not b._is_view()
        a.detach_(), a.mul_(2)


def test_a_result_and_the_same_detached():
    def program(x):
        y = x * 2
        return y, y.detach(), y[0]

    f = native(program)
    for _ in range(CALLS):
        for needs in (False, True):
            y, same, row = f(torch.ones(2, 2, requires_grad=needs))
            assert not same._is_view() and row._is_view()
            same.add_(1)
            assert y.tolist() == [[3, 3], [3, 3]] and row.tolist() == [3, 3]


def test_gradients_and_losses_of_a_step_are_no_views():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        for p in model.parameters():
            if p.grad is not None:
                p.grad = None
        loss = F.mse_loss(model(x), torch.ones(3).expand(5, 3))
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = native(step)
    for _ in range(8):
        f(torch.randn(5, 4)).detach_()
        for p in model.parameters():
            assert not p.grad._is_view()
            p.grad.detach_()
            p.grad.zero_()


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
def test_fused_steps_count_no_versions(optimizer):
    model = nn.Linear(4, 3)
    fused = optimizer(model.parameters(), 0.1, fused=True)

    def step(x):
        fused.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        fused.step()
        return loss.detach()

    f = native(step)
    for _ in range(8):
        before = model(torch.ones(2, 4)).sum()
        versions = [p._version for p in model.parameters()]
        f(torch.randn(5, 4))
        assert [p._version for p in model.parameters()] == versions
        before.backward()


def test_a_used_up_loss_is_called_by_its_node():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), torch.zeros(5, 3))
        loss.backward()
        optimizer.step()
        return loss

    f = native(step)
    for _ in range(8):
        assert "grad_fn=<MseLossBackward0>" in repr(f(torch.randn(5, 4)))


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


def test_a_used_up_loss_behind_a_function():
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(x):
        optimizer.zero_grad()
        loss = F.mse_loss(_Twice.apply(model(x)), torch.zeros(5, 3))
        loss.backward()
        optimizer.step()
        return loss

    f = native(step)
    for _ in range(8):
        loss = f(torch.randn(5, 4))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    assert f.stats()["compiled_calls"] > 3


@pytest.mark.parametrize(
    "program, prepare",
    [
        (lambda x: x * 2 if x._backward_hooks else x * 1, lambda x: x.register_hook(lambda g: g)),
        (lambda x: x * 2 if x.retains_grad else x * 1, lambda x: x.retain_grad()),
    ],
)
@pytest.mark.parametrize("pattern", range(1, 8))
def test_hooks_of_an_argument_that_the_program_asks_for(program, prepare, pattern):
    import broach

    f = broach.compile(program)
    for i in range(CALLS):
        x = torch.ones(3, requires_grad=True) * 1
        if pattern >> (i % 3) & 1:
            prepare(x)
        assert torch.equal(f(x), program(x))


def _rows(x):
    y = LAYER(x)
    return y[:, 0], y[:, 1:]


def _beside_detached(x):
    y = LAYER(x)
    return y[:, :3], y[:, 3:], y.detach()


def _two_bases(x):
    y = LAYER(x)
    z = y.exp()
    return *y.chunk(2, -1), *z.split(2, -1), x * 2


def _selected(x):
    y = LAYER(x)[x[:, 0] > -5]
    return y[:, :1], y[:, 1:]


def _overlapping(x):
    y = LAYER(x)
    return y[:, :4], y[:, 2:]


def _parts_of_complex(x):
    z = torch.fft.rfft(LAYER(x))
    return z.real, z.imag


def _beside_its_whole(x):
    y = LAYER(x)
    return y[:, :3], y[:, :3].exp(), y


def _made_of_a_view(x):
    y = LAYER(x)
    head = y[:, :3]
    return head, head.exp(), y


def _made_of_a_view_of_what_is_given(x):
    head = x[:, :3]
    return head, x[:, 3:], LAYER(x) + head.exp().sum()


def _one_besides(x):
    a, b = LAYER(x).chunk(2, -1)
    return a, b, a.exp()


LAYER = nn.Linear(6, 6)
# Results in one memory, of which the program does not give the whole.
SEVERAL = [
    lambda x: LAYER(x).chunk(2, -1),
    lambda x: LAYER(x).unbind(0),
    lambda x: LAYER(x).view(-1, 3, 2).unbind(1),
    lambda x: LAYER(x).t().split([1, 5]),
    _rows,
    _beside_detached,
    _two_bases,
    _selected,
    _overlapping,
    _parts_of_complex,
    _one_besides,
    _beside_its_whole,
    _made_of_a_view,
    _made_of_a_view_of_what_is_given,
]


def _written(results):
    results[0].mul_(2).add_(1)
    return sum(r.exp().sum() for r in results if r.requires_grad)


def _written_without_gradients(results):
    with torch.no_grad():
        results[0].mul_(2)
    return sum(r.exp().sum() for r in results if r.requires_grad)


def _written_behind_what_reads_its_neighbour(results):
    square = results[1].pow(2).sum()
    results[0].add_(1)
    return square + results[0].sum()


def _with_hook(results):
    results[0].register_hook(lambda g: g * 3)
    return weighed(results)


def _of_gradients(results):
    loss = weighed(results)
    (g,) = torch.autograd.grad(loss, LAYER.weight, create_graph=True)
    return loss + g.pow(2).sum()


USES = [
    weighed,
    _written,
    _written_without_gradients,
    _written_behind_what_reads_its_neighbour,
    _with_hook,
    _of_gradients,
    lambda results: results[0].pow(2).sum(),
    lambda results: results[1].pow(2).sum(),
    lambda results: results[0]._base.abs().pow(2).sum() + results[1].sum(),
]


def _seen(f, use, x):
    """Elements, how they lie and what they are for autograd, gradients; or whether the error is that something was modified."""
    LAYER.zero_grad()
    results = f(x)
    first = results[0].untyped_storage()._cdata
    facts = [(r.stride(), r.storage_offset(), r.is_leaf, r._is_view(), r._version, r.untyped_storage()._cdata == first) for r in results]
    try:
        use(results).backward()
    except RuntimeError as error:
        return facts, "modified" in str(error)
    return facts, [r.detach().clone() for r in results] + [x.grad, LAYER.weight.grad, LAYER.bias.grad]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("program", SEVERAL)
def test_several_results_in_one_memory(program, use):
    f = native(program)
    for call in range(CALLS):
        torch.manual_seed(call)
        x = torch.randn(4 if call < 3 else 5, 6)
        (facts, want), (ours, have) = (_seen(g, use, x.clone().requires_grad_()) for g in (program, f))
        assert ours == facts
        if isinstance(want, bool):
            assert have is want
        else:
            torch.testing.assert_close(have, want, rtol=1e-3, atol=1e-4)
    assert f.stats()["compiled_calls"] >= 2, f.stats()["eager_reasons"]


def test_gradients_of_halves_are_compiled():
    """Not run again, and not summed of tensors that are zero in one half. A variational encoder gives such halves and what is made of them."""

    def encode(x):
        mean, scale = LAYER(x).chunk(2, -1)
        return mean, scale, mean + (scale / 2).exp() * x[:, :3]

    f = native(encode)
    for _ in range(3):
        mean, scale, drawn = f(torch.randn(4, 6))
        loss = drawn.pow(2).sum() + (mean.pow(2) + scale.exp() - scale).sum()
        with torch.profiler.profile() as profile:
            loss.backward()
    called = {event.key for event in profile.key_averages()}
    assert not called & {"AsStridedBackward0", "aten::zeros", "aten::slice_backward", "aten::addmm"}, called
    assert broach.explain(f, torch.randn(4, 6)).reruns == 0


def test_what_is_saved_is_freed_once_all_halves_were_used():
    f = native(lambda x: LAYER(x).exp().chunk(2, -1))
    held = []
    for call in range(4):
        x = torch.randn(4, 6)
        a, b = f(x)
        held.append(StorageWeakRef(x.untyped_storage()))
        del x
        (a.sum() + b.pow(2).sum()).backward()  # the halves live on
        assert call == 0 or held[-1].expired()
    a, b = f(torch.randn(4, 6))
    a.sum().backward(retain_graph=True)
    b.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        a.sum().backward()
