"""Training steps in one function each: forward, a backward within, what is done to gradients, and the optimizer's step."""

from __future__ import annotations

import broach
import torch
import torch.nn.functional as F
from torch import nn

O = torch.optim


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def _convolutions():
    return nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 4))


def _attention():
    return nn.Sequential(nn.Unflatten(1, (4, 4)), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), nn.Flatten(), nn.Linear(16, 4))


def _dropout():
    return nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.3), nn.Linear(32, 4))


class _Frozen(nn.Module):
    """A part without gradients, and a parameter that is used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16).requires_grad_(False), nn.Linear(16, 16)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.second(F.relu(self.second(self.first(x)))))


MODELS = {"mlp": mlp, "convolutions": _convolutions, "attention": _attention, "dropout": _dropout, "frozen": _Frozen}


def loss_of(m, x, y):
    return F.mse_loss(m(x), y)


def usual(m, o, x, y):
    o.zero_grad()
    loss = loss_of(m, x, y)
    loss.backward()
    o.step()
    return loss


def _number(m, o, x, y):
    return usual(m, o, x, y).item()


def _detached(m, o, x, y):
    return usual(m, o, x, y).detach()


def zero_grad_last(m, o, x, y):
    loss_of(m, x, y).backward()
    o.step()
    o.zero_grad(set_to_none=False)


def _accumulated(m, o, x, y):
    for a, b in zip(x.chunk(2), y.chunk(2)):
        (loss_of(m, a, b) / 2).backward()
    o.step()
    o.zero_grad()


def _clipped(m, o, x, y):
    o.zero_grad()
    loss = loss_of(m, x, y) * 100
    loss.backward()
    norm = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step()
    return loss.detach(), norm


def _noisy_gradients(m, o, x, y):
    loss = loss_of(m, x, y)
    loss.backward()
    for p in m.parameters():
        if p.grad is not None:
            p.grad = p.grad.sign() * 0.01
    o.step()
    o.zero_grad()
    return loss.detach()


def _asked_for(m, o, x, y):
    ps = [p for p in m.parameters() if p.requires_grad]
    loss = loss_of(m, x, y)
    for p, g in zip(ps, torch.autograd.grad(loss, ps)):
        p.grad = g
    o.step()
    return loss.detach()


def _by_hand(m, o, x, y):
    ps = [p for p in m.parameters() if p.requires_grad]
    loss = loss_of(m, x, y)
    with torch.no_grad():
        for p, g in zip(ps, torch.autograd.grad(loss, ps)):
            p -= 0.1 * g
    return loss.detach()


def _penalty(m, o, x, y):
    ps = [p for p in m.parameters() if p.requires_grad]
    o.zero_grad()
    grads = torch.autograd.grad(loss_of(m, x, y), ps, create_graph=True)
    loss = loss_of(m, x, y) + 0.1 * sum(g.square().sum() for g in grads)
    loss.backward()
    o.step()
    return loss.detach()


def _closure(m, o, x, y):
    def loss():
        o.zero_grad()
        out = loss_of(m, x, y)
        out.backward()
        return out

    return o.step(loss)


def backward_alone(m, o, x, y):
    loss = loss_of(m, x, y)
    loss.backward()
    return loss.detach()


STEPS = {
    f.__name__.strip("_"): f
    for f in (
        usual, _number, _detached, zero_grad_last, _accumulated, _clipped,
        _noisy_gradients, _asked_for, _by_hand, _penalty, _closure, backward_alone,
    )
}  # fmt: skip
OPTIMIZERS = {"momentum": lambda p: O.SGD(p, 0.05, momentum=0.9), "adamw": lambda p: O.AdamW(p, 1e-2)}


def close(a, b, what):
    torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5, msg=lambda m: f"{what}: {m}")


class Pair:
    """The same twice: `programs` run eagerly, and compiled."""

    def __init__(self, step, model=mlp, optimizer=OPTIMIZERS["momentum"], device="cpu", **options):
        self.device = device
        self.models = []
        for _ in range(2):
            torch.manual_seed(0)
            self.models.append(model().to(device))
        self.optimizers = [optimizer(m.parameters()) for m in self.models]
        self.programs = [lambda x, y, k=k: step(self.models[k], self.optimizers[k], x, y) for k in range(2)]
        self.compiled = broach.compile(self.programs[1], **options)

    def run(self, i, rows=8):
        torch.manual_seed(100 + i)
        x, y = torch.randn(rows, 16).to(self.device), torch.randn(rows, 4).to(self.device)
        results = []
        for program in (self.programs[0], self.compiled):
            torch.manual_seed(i)
            results.append(program(x, y))
        self.compare(*results)
        return results[1]

    def compare(self, want, got):
        close(want, got, "result")
        if isinstance(want, torch.Tensor):
            assert want.requires_grad == got.requires_grad
        (a, b), (oa, ob) = self.models, self.optimizers
        for (name, p), q in zip([*a.named_parameters(), *a.named_buffers()], [*b.parameters(), *b.buffers()]):
            close(p, q, name)
            if isinstance(p, nn.Parameter):
                assert (p.grad is None) == (q.grad is None) and p.requires_grad == q.requires_grad and p.is_leaf == q.is_leaf
                if p.grad is not None:
                    close(p.grad, q.grad, f"gradient of {name}")
                for key, value in oa.state.get(p, {}).items():
                    close(value, ob.state[q][key], f"{key} of {name}")
