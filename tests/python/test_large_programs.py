"""Programs of very many operations, arguments and results: what is compiled for them grows no faster than they do, and equal
parts are compiled once. And what a process keeps for sizes that change: it is bounded."""

from __future__ import annotations

import broach
import pytest
import torch
from compared import check, difference, native, r, ran_natively, stats
from torch import nn

MANY = 60


def rows(n: int = MANY, *sizes: int) -> list[torch.Tensor]:
    return [r(*(sizes or (8,))) for _ in range(n)]


def explained(compiled, *args):
    told = broach.explain(compiled, *args)
    assert told.front == "native", told.capture_reasons
    return told


def distinct(program, *args) -> tuple[int, int]:
    """How many kernels a program has, and how many of them differ, where it does what eager does."""
    compiled = check(program, args)
    told = explained(compiled, *args)
    return told.kernels, told.distinct_kernels


# ---- equal parts are one kernel ----


def test_results_that_differ_in_a_number_share_a_kernel():
    kernels, different = distinct(lambda x: [x * 0.37 + i for i in range(MANY)], r(8))
    assert kernels == MANY and different <= 3


def test_rows_taken_one_by_one_share_a_kernel():
    for program in (lambda x: [x[i].sum() for i in range(MANY)], lambda x: [t.exp() for t in x.unbind(0)], lambda x: [t.exp() for t in x.split(1)]):
        kernels, different = distinct(program, r(MANY, 8))
        assert kernels == MANY and different <= 2


def test_rows_at_both_ends_of_a_window_share_a_kernel():
    kernels, different = distinct(lambda x: [x[i] - x[i + 2] * x[i + 1] for i in range(MANY)], r(MANY + 2, 8))
    assert kernels == MANY and different == 1


def test_numbers_of_every_type_stay_what_they_are():
    numbers = [0.1, -0.0, float("inf"), float("nan"), 1e-40, 3, -7, 2**24 + 1]
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int32):
        given = r(21).mul(9).to(dtype)
        if dtype.is_floating_point:
            check(lambda x: [x * n for n in numbers], (given,), rtol=0, atol=0)
        check(lambda x: [x + int(i) for i in range(9)], (given,), rtol=0, atol=0)


def test_a_step_of_an_unrolled_loop_is_compiled_once():
    cell = nn.GRUCell(8, 8)

    def program(x):
        h = torch.zeros(2, 8)
        for t in range(x.shape[0]):
            h = cell(x[t], h)
        return h

    kernels, different = distinct(program, r(40, 2, 8))
    assert kernels >= 40 and different <= 5


# ---- nothing becomes one giant kernel ----


def test_a_long_chain_is_cut():
    def program(x):
        for i in range(1500):
            x = x * 0.99 + 0.5
        return x

    kernels, different = distinct(program, r(16))
    assert 6 <= kernels <= 60 and different <= 4


def test_a_sum_of_many_arguments_is_cut():
    def program(*given):
        total = given[0]
        for t in given[1:]:
            total = total + t
        return total

    kernels, different = distinct(program, *rows(600))
    assert 3 <= kernels <= 20 and different <= 4


@pytest.mark.parametrize("join", [torch.cat, torch.stack, lambda l: torch.stack(l, 1), torch.hstack, torch.vstack, torch.dstack, torch.column_stack])
def test_many_are_joined_without_a_kernel(join):
    compiled = check(lambda *given: join(given), tuple(rows()))
    assert explained(compiled, *rows()).kernels == 0


def test_few_are_joined_within_a_kernel():
    compiled = check(lambda *given: torch.cat(given) * 2, tuple(rows(5)))
    told = explained(compiled, *rows(5))
    assert told.kernels == 1 and not told.externs


def test_many_computed_are_joined():
    kernels, different = distinct(lambda *given: torch.stack([t * 2 + 1 for t in given]).sum(0), *rows())
    assert kernels <= MANY + 2 and different <= 3


def test_joins_of_joins_are_one():
    def program(x):
        out = x[:1]
        for i in range(1, MANY):
            out = torch.cat([out, x[i : i + 1] * 2])
        return out

    compiled = check(program, (r(MANY, 4),))
    assert explained(compiled, r(MANY, 4)).externs == [("aten::cat", 1)]


def test_a_join_that_is_read_on_the_way_stays():
    def program(x):
        out, sums = x[:1], []
        for i in range(1, 24):
            out = torch.cat([out, x[i : i + 1] * 2])
            sums.append(out.sum())
        return out, sums

    check(program, (r(24, 4),))


# ---- rows written one by one ----


def test_rows_written_one_by_one_are_joined_once():
    def program(x):
        out = torch.zeros(x.shape[0], 8)
        for i in range(x.shape[0]):
            out[i] = x[i] * 2
        return out

    compiled = check(program, (r(MANY, 8),))
    told = explained(compiled, r(MANY, 8))
    assert told.externs == [("aten::cat", 1)] and told.distinct_kernels == 1


def test_a_row_written_from_the_row_before():
    def program(x):
        out = torch.zeros_like(x)
        out[0] = x[0]
        for i in range(1, x.shape[0]):
            out[i] = out[i - 1] * 0.5 + x[i]
        return out

    check(program, (r(MANY, 8),))


@pytest.mark.parametrize("n", [3, 40])
def test_windows_of_every_kind_are_written(n):
    def program(x):
        out = torch.ones(n, n + 3)
        for i in range(n):
            out[i : i + 2] += x[i, : n + 3]  # overlaps the one before
        for i in range(n):
            out[:, i] = x[:, i] - out[:, i + 1]  # the other dimension
        out[1:2, 2:3] = 7.0
        middle = out[1 : n - 1]
        middle *= 2
        row = out[0]
        row += 1
        kept = row * 1
        out[0, :] = out[n - 1] + kept
        out[0:0] = 3.0
        return out, middle + 0, row + 0, kept

    check(program, (r(n, n + 3),))


def test_a_view_made_before_sees_what_is_written_later():
    def program(x):
        out = torch.zeros(6, 4)
        views = [out[i] for i in range(6)]
        whole = out.view(-1)
        for i in range(6):
            views[i].add_(x[i])
        out[2:4] *= 3
        return [v * 1 for v in views], whole * 1, out

    check(program, (r(6, 4),))


# ---- lists ----


@pytest.mark.parametrize("name", ["add_", "mul_", "sub_", "div_"])
def test_lists_written_in_place_run_no_host_operation(name):
    def program(params, grads):
        getattr(torch, f"_foreach_{name}")(params, grads)
        torch._foreach_mul_(params, 0.9)
        torch._foreach_sqrt_(torch._foreach_abs(params))

    compiled = check(program, (rows(20), rows(20)))
    told = explained(compiled, rows(20), rows(20))
    assert not told.externs and told.distinct_kernels <= 2


def test_lists_whose_tensors_meet_are_written_in_order():
    def program(a, b):
        torch._foreach_add_([a, b], [b, a])
        torch._foreach_mul_([a[:2], a[1:]], [a[1:], a[:2]])

    check(program, (r(3), r(3)))


# ---- recurrent layers ----


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("how", [{}, {"num_layers": 2, "bidirectional": True}, {"batch_first": True, "bias": False}])
def test_a_long_recurrent_layer_is_one_operation(kind, how):
    layer = kind(5, 6, **how).eval()
    x = r(3, 50, 5) if how.get("batch_first") else r(50, 3, 5)
    compiled = check(lambda x: layer(x * 2)[0] + 1, (x,), rtol=1e-5, atol=1e-5)
    told = explained(compiled, x)
    assert sum(count for _, count in told.externs) == 1 and told.kernels <= 4


def test_a_short_recurrent_layer_is_compiled():
    layer = nn.GRU(5, 6).eval()
    told = explained(check(layer, (r(4, 3, 5),)), r(4, 3, 5))
    assert not told.externs


def test_a_recurrent_layer_that_draws_is_not_one_operation():
    layer = nn.LSTM(5, 6, 2, dropout=0.5).train()
    compiled = broach.compile(layer)
    x = r(20, 3, 5)
    for seed in range(4):
        torch.manual_seed(seed)
        want = layer(x)[0]
        torch.manual_seed(seed)
        assert not (why := difference(want, compiled(x)[0])), why


def test_in_inference_mode_too():
    layer = nn.LSTM(5, 6, 2, dropout=0.5).train()
    compiled, x = broach.compile(layer), r(20, 3, 5)
    with torch.inference_mode():
        for seed in range(3):
            torch.manual_seed(seed)
            want = layer(x)[0]
            torch.manual_seed(seed)
            assert not (why := difference(want, compiled(x)[0])), why


# ---- programs too large to compile ----


def test_a_program_of_very_many_operations_runs_eagerly_and_says_so():
    def program(x):
        for _ in range(20_001):
            x = x + 1
        return x

    compiled = broach.compile(program)
    for _ in range(3):
        assert torch.equal(compiled(torch.zeros(1)), program(torch.zeros(1)))
    told = broach.explain(compiled, torch.zeros(1))
    assert told.front == "eager" and "operations, more than" in told.capture_reasons[0]


# ---- many arguments and results ----


def test_one_tensor_given_twice_among_many_is_another_version():
    compiled = native(lambda *given: [t * 2 for t in given])
    given = rows(40)
    for call in (given, given[:39] + [given[0]], given):
        want = [t * 2 for t in call]
        assert not (why := difference(want, compiled(*call))), why


def test_a_written_argument_that_lies_in_another_is_noticed():
    def program(*given):
        for t in given:
            t.add_(1)

    compiled = broach.compile(program)
    memory = [r(8) for _ in range(10)]
    compiled(*memory), compiled(*memory)
    whole = r(16)
    shared = [*memory[:8], whole[:8], whole[4:12]]
    kept = whole.clone()
    compiled(*shared)
    kept[:8] += 1
    kept[4:12] += 1
    assert torch.equal(whole, kept)


def test_a_dict_of_many_and_a_nest_of_many():
    check(lambda d: {k: v * 2 for k, v in d.items()}, ({f"k{i}": r(4) for i in range(200)},))
    compiled = check(lambda *given: tuple((t, t.sum(), (t > 0).any()) for t in given), tuple(rows(100)))
    ran_natively(compiled)


# ---- what is kept for sizes that change ----


def test_many_sizes_leave_bounded_tables():
    """Sizes go by in turns, more of them than anything is kept for."""
    layer = nn.Sequential(nn.Conv1d(4, 8, 3, padding=1), nn.ReLU(), nn.Conv1d(8, 4, 3, padding=1)).eval()
    compiled = native(lambda x: torch.softmax(layer(x), -1).mean(0))
    for n in [*range(2, 300, 2), *range(2, 300, 2)]:
        x = r(2, 4, n)
        assert not (why := difference(torch.softmax(layer(x), -1).mean(0), compiled(x))), why
    assert stats(compiled)["captures"] <= 3
