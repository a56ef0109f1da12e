"""An index outside is eager's error also where only a part of what it selects is read. And rows are added to what a tensor has, though it
begins with zeros."""

import broach
import pytest
import torch
import torch.nn.functional as F

TABLE = torch.arange(12.0).view(4, 3)

LOOKUPS = {
    "first position": lambda ids: F.embedding(ids, TABLE)[:, 0] * 2,
    "last position": lambda ids: TABLE[ids][:, -1],
    "scaled, then cut": lambda ids: (TABLE[ids] * 2 + 1)[:1].exp(),
    "sum of one row": lambda ids: TABLE[ids].sum(-1)[:, 0],
    "behind a product": lambda ids: (TABLE[ids] @ TABLE.t())[:, 0],
    "selected again": lambda ids: TABLE[ids].flatten(0, 1)[torch.tensor([0])],
    "gathered": lambda ids: TABLE.t()[:1].expand(ids.shape[0], -1).gather(1, ids)[:, 0],
    "of columns": lambda ids: TABLE.t().index_select(1, ids.flatten())[:, 0],
}


@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.parametrize("grows", [False, True])
def test_an_index_outside_is_an_error_though_a_part_is_read(name, grows):
    program, compiled = LOOKUPS[name], broach.compile(LOOKUPS[name])
    for n in (3, 4, 5, 6):
        ids = torch.zeros(2, n if grows else 3, dtype=torch.long)
        ids[1, 1] = 3
        torch.testing.assert_close(compiled(ids), program(ids))
    ids[1, 1] = 9
    for run in (program, compiled, compiled):
        with pytest.raises((IndexError, RuntimeError), match="index|INDICES"):  # eager's are of both types
            run(ids)


def cleared_row(x, i):
    t = x * 2
    t[0].zero_()
    return t.index_add_(0, i, x)


def cleared_column(x, i):
    t = x * 2
    t[:, 0].zero_()
    return t.index_add(0, i, x)


def behind_zeros(x, i):
    return torch.cat([torch.zeros(1, x.shape[1], dtype=x.dtype), x]).index_add(0, i, x)


def padded(x, i):
    return F.pad(x, (0, 0, 1, 0)).index_put((i,), x, accumulate=True)


def counted(x, i):
    t = torch.ones(40, dtype=x.dtype)
    t[0].zero_()
    return t.scatter_add_(0, i, x[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("program", [cleared_row, cleared_column, behind_zeros, padded, counted])
def test_rows_are_added_to_what_only_begins_with_zeros(program, dtype):
    compiled = broach.compile(program)
    for n in (4, 4, 5, 20, 20, 21):
        x, i = torch.ones(n, 3, dtype=dtype), torch.arange(n)
        torch.testing.assert_close(compiled(x, i), program(x, i))
