"""What the tests of PyTorch's databases share: samples that are run and told of together, and gradients that are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import direct
import pytest
import torch
from torch.utils import _pytree as pytree


class Samples:
    """The samples of one operation or module: all are run, and what failed is told at the end."""

    def __init__(self) -> None:
        self.failures: list[tuple[torch.dtype, str]] = []
        self.reasons: set[str] = set()
        self.compared = 0

    def run(self, dtype: torch.dtype, name: str, check: Callable[[], str | None]) -> None:
        """`check` gives the reason where the sample cannot be compared, and raises where it differs."""
        try:
            why = check()
        except Exception as error:  # any: another sample's failure must be told too
            self.failures.append((dtype, f"{dtype} {name}: {type(error).__name__}: {error}"))
            return
        if why is None:
            self.compared += 1
        else:
            self.reasons.add(why)

    def assert_none_failed(self, expected: Callable[[torch.dtype], bool] = lambda dtype: False) -> None:
        unexpected = [text for dtype, text in self.failures if not expected(dtype)]
        assert not unexpected, "\n".join(unexpected)

    def skip_if_none_compared(self) -> None:
        if not self.compared:
            pytest.skip(", ".join(sorted(self.reasons)) or "no samples in these types")


Gradients = tuple[list[torch.Tensor], tuple[torch.Tensor | None, ...] | None]


def gradients(program: Callable, tensors: Sequence[torch.Tensor], call: int, parameters: Sequence[torch.Tensor] = ()) -> Gradients:
    """Results, and the gradients of the tensors and parameters by random tangents; None where eager has none."""
    torch.manual_seed(call)
    own = [t.detach().requires_grad_(t0.requires_grad) for t, t0 in zip(direct.fresh(tensors), tensors)]
    results = [r for r in pytree.tree_leaves(program(*own)) if isinstance(r, torch.Tensor)]
    with_history = [r for r in results if r.requires_grad]
    wanted = [t for t in (*own, *parameters) if t.requires_grad]
    if not with_history or not wanted:
        return results, None
    # Laid out as the results are: gradients lie as eager's do in the recorded call, whose tangents do.
    tangents = [torch.rand_like(r, dtype=torch.float64).to(r.dtype) for r in with_history]
    return results, torch.autograd.grad(with_history, wanted, tangents, allow_unused=True)


def assert_same_gradients(have: Gradients, want: Gradients, call: int, slack: float) -> None:
    """`slack` is of the results; gradients, sums of many terms, have 8."""
    direct.assert_same(have[0], want[0], f"call {call}, result", slack=slack)
    assert have[1] is not None, f"call {call}: no result needs gradients, as eager's do"
    assert [r.requires_grad for r in have[0]] == [r.requires_grad for r in want[0]], f"call {call}: requires_grad differs"
    for at, (h, w) in enumerate(zip(have[1], want[1], strict=True)):
        assert (h is None) == (w is None), f"call {call}, gradient {at}: {h}, eager has {w}"
        if w is not None:
            direct.assert_same_tensor(h, w, f"call {call}, gradient {at}", slack=8.0)
