"""Rows added up where an index says, into zeros: what the gradient of a selection is, and what programs do themselves."""

from __future__ import annotations

import broach
import pytest
import torch
from compared import difference, native, stats
from gradient_programs import with_gradients  # noqa: F401 a fixture
from selections import SELECTIONS, selected_with_gradient
from torch import nn

ROWS = (3, 8, 9, 300)


def _into(rows, width, index, values):
    return (
        torch.zeros(rows, width, dtype=values.dtype).index_add(0, index, values),
        torch.zeros(rows, width, dtype=values.dtype).index_put((index,), values, accumulate=True),
        torch.zeros(rows, width, dtype=values.dtype).scatter_add(0, index[:, None].expand_as(values), values),
        torch.zeros(1, rows, width, dtype=values.dtype).index_add(1, index, values[None]),
        torch.zeros(width, rows, dtype=values.dtype).index_add(1, index, values.t()),
        torch.zeros(rows, dtype=values.dtype).index_add(0, index, values[:, 0]),
    )


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_rows_are_added_up(rows, dtype):
    compiled = native(lambda i, v: _into(rows, 5, i, v))
    for count in (40, 40, 17, 1, 0, 40):
        index = torch.randint(0, rows, (count,))
        values = torch.randint(-8, 9, (count, 5)).to(dtype)  # whose sums are exact in every order
        assert not difference(_into(rows, 5, index, values), compiled(index, values))
    assert stats(compiled)["compiled_calls"] >= 2


def test_negative_zeros_stay_where_nothing_is_added():
    def program(i, v):
        return torch.full((300, 4), -0.0).index_add(0, i, v)

    compiled = native(program)
    for _ in range(3):
        index, values = torch.randint(0, 20, (30,)), torch.ones(30, 4)
        assert torch.equal(torch.signbit(program(index, values)), torch.signbit(compiled(index, values)))


@pytest.mark.parametrize("rows", ROWS)
def test_indices_count_from_the_end_where_eager_lets_them(rows):
    def program(i, v):
        return torch.zeros(rows, 4).index_put((i,), v, accumulate=True)

    compiled = native(program)
    for _ in range(3):
        index, values = torch.randint(-rows, rows, (30,)), torch.randint(-8, 9, (30, 4)).float()
        index[:2] = torch.tensor([-1, -rows])
        assert not difference(program(index, values), compiled(index, values))


@pytest.mark.parametrize("rows", ROWS)
def test_an_index_outside_is_the_error_that_it_is_in_eager(rows):
    def put(i, v):
        return torch.zeros(rows, 4).index_put((i,), v, accumulate=True)

    def add(i, v):
        return torch.zeros(rows, 4).index_add(0, i, v)

    for program, outside in ((put, (rows, -rows - 1, 10 * rows)), (add, (rows, -1, -rows - 1))):
        compiled = native(program)
        good = torch.randint(0, rows, (30,))
        values = torch.ones(30, 4)
        for _ in range(3):
            compiled(good, values)
        for wrong in outside:
            index = good.clone()
            index[7] = wrong
            with pytest.raises((IndexError, RuntimeError)) as want:
                program(index, values)
            with pytest.raises(want.type, match="out of (bounds|range)"):
                compiled(index, values)
        assert not difference(program(good, values), compiled(good, values))


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("rows", [9, 300])
def test_gradients_of_selections(name, rows):
    select = SELECTIONS[name]
    table = nn.Parameter(torch.randn(rows, 4, dtype=torch.float64))
    compiled = native(select)
    for count in (40, 40, 12, 40):
        index = torch.randint(-9, 9, (count,))
        want, have = (selected_with_gradient(program, table, index) for program in (select, compiled))
        assert not difference(want, have, rtol=1e-12, atol=1e-12)
    told = stats(compiled)
    assert told["compiled_calls"] >= 2 and not told["eager_reasons"], told["eager_reasons"]


def test_positions_of_a_bias_between_windows():
    """Swin's table: few rows, named by all pairs of a window's elements."""

    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(49, 3))
            at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
            apart = (at[:, :, None] - at[:, None, :] + 3).permute(1, 2, 0)
            self.register_buffer("index", apart[..., 0] * 7 + apart[..., 1])

        def forward(self, x):
            bias = self.table[self.index.view(-1)].view(16, 16, 3).permute(2, 0, 1)
            return ((x @ x.mT) + bias).softmax(-1) @ x

    model = Scores()
    compiled = broach.compile(model, options={"capture": "native"})
    for _ in range(4):
        x, got = torch.randn(2, 3, 16, 8), []
        for call in (model, compiled):
            model.zero_grad()
            call(x).square().sum().backward()
            got.append(model.table.grad.clone())
        assert not difference(*got)
    assert not stats(compiled)["eager_reasons"]
