"""Elements that torch reads past the dispatcher, or where captures are left out: what follows from them may not be kept from the
recorded call."""

from __future__ import annotations

import broach
import pytest
import torch
from compared import difference
from torch.nn import functional as F
from torch.nn.utils import rnn

X = [torch.arange(6.0).reshape(2, 3) + 5 * i for i in range(5)]
T = [torch.tensor([i % 3, (i + 1) % 3]) for i in range(5)]


def agrees(program, *makes, options=None):
    compiled = broach.compile(program, options=options or {})
    for given in zip(*makes):
        copies = [t.clone() if isinstance(t, torch.Tensor) else t for t in given]
        assert not (why := difference(program(*copies), compiled(*given))), why


def written(x, t):
    y = x.clone()
    y[:, [t[0], t[1]]] = 0
    return y


@pytest.mark.parametrize(
    "program",
    [
        lambda x, t: torch.tensor([x[0, 0], x[1, 1]]) * 2,
        lambda x, t: torch.tensor([x.mean(), x.max()]),
        lambda x, t: torch.tensor(list(x[0])) + 1,
        lambda x, t: torch.tensor([[t[0]], [t[1]]]),
        lambda x, t: torch.tensor([t[:1], t[1:]]) + x[0, 0],
        lambda x, t: torch.tensor([v > 7 for v in x[0]]),
        lambda x, t: torch.as_tensor([x.max(), x.min()], dtype=torch.float64),
        lambda x, t: x.new_tensor([x[0, 1], 2.0]),
        lambda x, t: torch.Tensor([x[1, 2], x[0, 2]]),
        lambda x, t: torch.LongTensor([t[0], t[1]]),
        lambda x, t: x[:, [t[0], t[1]]],
        lambda x, t: x[[0, 1], [t[0], t[1]]],
        lambda x, t: x.gather(1, torch.tensor([[t[0]], [t[1]]])),
        lambda x, t: torch.sparse_coo_tensor([[t[0]]], [x[0, 0]], (3,)).to_dense(),
        lambda x, t: torch.bucketize(x, torch.tensor([x.min() + 1, x.max()])),
        written,
    ],
)
def test_lists_that_hold_tensors(program):
    agrees(program, X, T)


def test_a_list_of_losses_in_training():
    torch.manual_seed(0)
    model, kept = torch.nn.Linear(3, 2), []

    def step(x, y):
        loss, size = F.cross_entropy(model(x), y), model.weight.square().sum()
        kept.append(torch.tensor([loss.detach(), size.detach()]))
        return loss + 0.01 * size

    compiled, wanted = broach.compile(step), []
    for _ in range(5):
        x, y = torch.randn(4, 3), torch.randint(2, (4,))
        with torch.no_grad():
            wanted.append([F.cross_entropy(model(x), y).item(), model.weight.square().sum().item()])
        with torch.enable_grad():
            compiled(x, y).backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    torch.testing.assert_close(torch.stack(kept), torch.tensor(wanted))


@pytest.mark.parametrize("kind", [torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_packed_sequences_of_other_lengths(kind, with_gradients):
    torch.manual_seed(0)
    layer = kind(3, 4, bidirectional=True)
    compiled = broach.compile(layer)
    with torch.set_grad_enabled(with_gradients):
        for lengths in ([4, 4, 1], [4, 3, 2], [4, 4, 1], [4, 3, 2], [4, 4, 1], [3, 3, 3]):
            packed = rnn.pack_sequence([torch.randn(n, 3) for n in lengths])
            answers = []
            for run in (layer, compiled):
                layer.zero_grad()
                y, _ = run(packed)
                if with_gradients:
                    y.data.square().sum().backward()
                answers.append((y.data.detach(), [p.grad.clone() for p in layer.parameters()] if with_gradients else []))
            torch.testing.assert_close(*answers)


def test_padding_of_packed_sequences_of_other_lengths():
    def program(data, sizes):
        return rnn.pad_packed_sequence(rnn.PackedSequence(data, sizes), batch_first=True)[0] * 2

    packed = [rnn.pack_sequence([torch.randn(n, 2) for n in lengths]) for lengths in ([4, 4, 1], [4, 3, 2], [4, 4, 1], [4, 3, 2])]
    agrees(program, [p.data for p in packed], [p.batch_sizes for p in packed])


@pytest.mark.parametrize("made", [lambda t: t, lambda t: torch.diff(t, prepend=t[:1] * 0).cumsum(0)])
def test_splits_at_a_tensor(made):
    at = [torch.tensor(v) for v in ([1, 3], [2, 4], [1, 5], [2, 4], [0, 6])]
    agrees(lambda x, t: [part.sum() for part in x.tensor_split(made(t))], [torch.arange(6.0)] * 5, at)


def test_ctc_loss_of_other_lengths():
    torch.manual_seed(0)
    x, targets = torch.randn(8, 2, 5).log_softmax(-1), torch.randint(1, 5, (2, 3))
    inputs = [torch.tensor(v) for v in ([8, 8], [8, 7], [6, 8], [8, 7])]
    lengths = [torch.tensor(v) for v in ([3, 2], [2, 3], [1, 3], [3, 3])]
    agrees(lambda i, t: F.ctc_loss(x, targets, i, t, reduction="none"), inputs, lengths)


@pytest.mark.parametrize(
    "program", [lambda x: torch.arange(0, x.item(), 0.5) * 2, lambda x: torch.arange(0, 1, 1 / x.item()), lambda x: torch.arange(x) + 1]
)
def test_ranges_whose_length_is_read(program):
    agrees(program, [torch.tensor(v) for v in (1.0, 2.0, 3.0, 2.0, 4.0, 5.0)])
