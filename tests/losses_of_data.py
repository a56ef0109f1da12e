"""Programs with gradients whose sizes depend on data, as losses of what a mask picks, for tests of what computes these on any device.

Each takes `x` of [n, 8], `w` of [8, 5] and `t`, n integers from 0 to 4."""

from __future__ import annotations

from typing import Any, Callable

import torch
import torch.nn.functional as F

PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]] = {}


def _program(f: Callable) -> Callable:
    PROGRAMS[f.__name__] = f
    return f


@_program
def labelled_tokens(x, w, t):
    scores, labelled = x @ w, t > 1
    return F.cross_entropy(scores[labelled], t[labelled], reduction="sum")


@_program
def two_masks(x, w, t):
    y = x @ w
    return y[t > 1].pow(2).sum() + y[t < 3].exp().sum()


@_program
def positive_elements(x, w, t):
    y = x @ w
    return y[y > 0].sqrt().sum()


@_program
def rows_as_results(x, w, t):
    y = (x @ w)[t > 1]
    return y.relu(), y.sum(1), x * 2


@_program
def written_under_a_mask(x, w, t):
    y = (x @ w).clone()
    y[t > 1] = 0.0
    return y.sin()


@_program
def computed_rows_put_back(x, w, t):
    y, mask = x @ w, t > 1
    out = torch.zeros_like(y)
    out[mask] = y[mask].exp()
    return out


@_program
def masked_select(x, w, t):
    return torch.masked_select(x @ w, (t > 1)[:, None]).pow(2).sum()


@_program
def pooled_by_distinct_labels(x, w, t):
    labels, where = t.unique(return_inverse=True)
    return torch.zeros(labels.shape[0], 5, device=x.device).index_add(0, where, x @ w).tanh()


@_program
def as_many_rows_as_counted(x, w, t):
    return (x @ w)[: (t > 1).sum().item()].exp()


@_program
def repeated_rows(x, w, t):
    return (x @ w).repeat_interleave(t, 0).cos()


@_program
def experts(x, w, t):
    out = torch.zeros(x.shape[0], 5, device=x.device)
    for expert in range(2):
        rows = (t % 2 == expert).nonzero().flatten()
        out = out.index_add(0, rows, (x[rows] @ w) * (expert + 1))
    return out


@_program
def behind_dropout(x, w, t):
    return F.dropout(x @ w, 0.5)[t > 1].pow(2)


@_program
def norm_of_rows(x, w, t):
    return F.layer_norm((x @ w)[t > 1], (5,)).pow(3)


@_program
def focal_loss(x, w, t):
    probabilities, positive = (x @ w).softmax(-1), t >= 1
    p = probabilities[positive].gather(1, t[positive][:, None])
    return (-((1 - p) ** 2) * p.log()).sum()


@_program
def all_triplets(x, w, t):
    e = F.normalize(x @ w)
    distances = (e[:, None] - e[None]).pow(2).sum(-1)
    same = t[:, None] == t[None]
    a, p = torch.where(same)
    b, n = torch.where(~same)
    return distances[a, p].sum() + F.relu(0.5 - distances[b, n]).sum()


@_program
def hard_negatives(x, w, t):
    losses, positive = F.cross_entropy(x @ w, t, reduction="none"), t > 1
    negatives = losses[~positive].sort(descending=True)[0]
    return losses[positive].sum() + negatives[: 2 * positive.sum()].sum()


@_program
def graph_with_self_loops(x, w, t):
    source, target = t, torch.roll(t, 1)
    kept = source != target
    loops = torch.arange(5, device=x.device)
    source, target = torch.cat([source[kept], loops]), torch.cat([target[kept], loops])
    degree = torch.zeros(5, device=x.device).index_add(0, target, torch.ones(target.shape[0], device=x.device)).pow(-0.5)
    nodes = (x @ w)[:5]
    return torch.zeros(5, 5, device=x.device).index_add(0, target, nodes[source] * (degree[source] * degree[target])[:, None])


@_program
def written_rows(x, w, t):
    y = (x @ w)[t > 1]
    y.mul_(2).relu_()
    return y * y


@_program
def centred_rows_put_back(x, w, t):
    mask, y = (t > 1)[:, None], x @ w
    rows = y[t > 1]
    return y.masked_scatter(mask.expand_as(y), rows - rows.mean(0, keepdim=True))


class SelectingGradient(torch.autograd.Function):
    """Of the gradient of twice x only the elements above -1 come back."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        chosen = (gradient > -1).nonzero(as_tuple=True)
        out = torch.zeros_like(gradient)
        out[chosen] = gradient[chosen] * 2
        return out


def arguments(call: int, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Other elements for each call, of twelve rows in the first six, and of other counts behind them."""
    random = torch.Generator().manual_seed(call)
    rows = 12 if call < 6 else 8 + call
    x, w = torch.randn(rows, 8, generator=random), torch.randn(8, 5, generator=random)
    t = torch.randint(0, 5, (rows,), generator=random)
    t[:6] = torch.tensor([0, 1, 2, 3, 4, 0])  # of each label there is one, of each selection more than one
    return x.to(device).requires_grad_(), w.to(device).requires_grad_(), t.to(device)


def weighed(results: Any) -> torch.Tensor:
    """A sum of results that need gradients, in which no two elements weigh the same."""
    results = results if isinstance(results, tuple) else (results,)
    return sum((r * torch.linspace(-1, 1.5, r.numel(), device=r.device).view_as(r)).sum() for r in results if r.requires_grad)


def trained(program: Callable, call: int, device: str = "cpu") -> list[torch.Tensor]:
    """The results of a call, and the gradients of its arguments."""
    given = arguments(call, device)
    torch.manual_seed(call)
    results = program(*given)
    gradients = torch.autograd.grad(weighed(results), given[:2], allow_unused=True)
    results = results if isinstance(results, tuple) else (results,)
    return [r.detach() for r in results] + [g for g in gradients if g is not None]
