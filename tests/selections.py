"""Ways to select elements of a table by an index, and their gradients, for tests of what computes these on any device."""

from __future__ import annotations

from typing import Callable

import torch

# Of a table of at least nine rows and four columns, by indices from -9 to 8, at least three of them and of an even count.
SELECTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "rows": lambda t, i: t[i],
    "rows by a matrix": lambda t, i: t[i.view(-1, 2)],
    "elements": lambda t, i: t[i, i % 4],
    "columns": lambda t, i: t[:, i % 4],
    "index_select": lambda t, i: t.index_select(0, i.abs() % 9),
    "gather": lambda t, i: t.gather(0, (i.abs() % 9)[:, None].expand(-1, 4)),
    "take": lambda t, i: t.take(i),
    "a vector": lambda t, i: t[:, 0][i],
    "twice": lambda t, i: t[i] + t[i.flip(0)] * 2,
    "sorted": lambda t, i: t.sort(0)[0][i],
    "largest": lambda t, i: t.topk(3, 0)[0] * i[:3, None],
}


def selected_with_gradient(program: Callable, table: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the program selects, and the gradient of a sum of it in which no two elements weigh the same."""
    y = program(table, index)
    weight = torch.linspace(-1, 1, y.numel(), device=y.device, dtype=y.dtype).view_as(y)
    return y.detach(), torch.autograd.grad((y * weight).sum(), table)[0]
