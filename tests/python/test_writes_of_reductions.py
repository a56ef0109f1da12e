"""What is written into an input and read on by others: reductions and what is computed of them, which a kernel of their reader could store."""

from __future__ import annotations

import broach
import pytest
import torch

INDEX = torch.tensor([0, 4, 2, 1])


def assign(a, out):
    out[:] = a.sum(-1)
    return torch.take(out, INDEX)


PROGRAMS = {
    "copy_": lambda a, out: torch.take(out.copy_(a.sum(-1)), INDEX),
    "assign": assign,
    "out=": lambda a, out: torch.take(torch.amax(a, -1, out=out), INDEX),
    "of a reduction": lambda a, out: torch.special.log_ndtr(torch.var(a, -1, out=out)),
    "norm": lambda a, out: (a / out.copy_(a.norm(dim=-1)).unsqueeze(-1), out[INDEX]),
    "twice": lambda a, out: out.copy_(a.sum(-1)).cumsum(0) + out.mul_(2).flip(0),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_inputs_hold_what_was_written(name):
    program = PROGRAMS[name]
    compiled = broach.compile(program)
    for _ in range(3):
        a = torch.randn(5, 9)
        ours, eagers = torch.full((5,), 7.0), torch.full((5,), 7.0)
        with torch.no_grad():
            torch.testing.assert_close(compiled(a, ours), program(a, eagers))
        torch.testing.assert_close(ours, eagers)
