"""Programs that read on the host what they compute: compiled for the ways that data takes, and nothing of a wrong way is seen."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F
from torch import nn


def _stats(compiled):
    return getattr(compiled, "_compiled_call", compiled).stats()


def _agree(program, compiled, *given):
    kept = [g.clone() if isinstance(g, torch.Tensor) else g for g in given]
    got, want = compiled(*given), program(*kept)
    torch.testing.assert_close(got, want, equal_nan=True)
    torch.testing.assert_close(given, tuple(kept), equal_nan=True)
    return got


def test_two_ways():
    def program(x):
        if x.sum() > 0:
            return x * 2
        return x - 1

    compiled = broach.compile(program, options={"capture": "native"})
    for _ in range(20):
        _agree(program, compiled, torch.randn(5))
    told = _stats(compiled)
    assert told["captures"] == 2 and told["compiled_calls"] == 18 and 0 < told["other_ways"] < 18
    assert any("read on the host" in g and "test_branches.py" in g for g in broach.explain(compiled, torch.randn(5)).guards)


def test_nothing_of_a_wrong_way_is_written():
    def program(x, buffer):
        buffer.add_(1)
        count = (x > 0).sum().item()
        y = x + buffer
        if count > 3:
            buffer.mul_(2)
            return y.cos(), count
        return y, buffer

    compiled = broach.compile(program, options={"capture": "native"})
    for _ in range(60):
        x, buffer = torch.randn(7), torch.zeros(7)
        got = _agree(program, compiled, x, buffer)
        assert (got[1] is buffer) == (not isinstance(got[1], int))
    told = _stats(compiled)
    assert told["other_ways"] > 0 and told["compiled_calls"] > 40


def test_random_numbers_are_drawn_once():
    def program(x):
        r = torch.rand(3)
        return r + x if (r.sum() > 1.5).item() else r - x

    compiled = broach.compile(program, options={"capture": "native"})
    for seed in range(30):
        x = torch.randn(3)
        torch.manual_seed(seed)
        got, after = compiled(x), torch.rand(2)
        torch.manual_seed(seed)
        assert torch.equal(got, program(x)) and torch.equal(after, torch.rand(2))
    assert _stats(compiled)["other_ways"] > 0


def test_a_loop_that_data_ends():
    def program(x):
        steps = 0
        while x.norm() > 1:
            x, steps = x * 0.5, steps + 1
        return x, steps

    compiled = broach.compile(program, options={"capture": "native"})
    for i in range(40):
        _agree(program, compiled, torch.randn(4) * 2 ** (i % 6))


def test_an_index_that_only_the_wrong_way_exceeds():
    def program(x, i):
        if (i.max() < 4).item():
            return x[:4][i]
        return x[i]

    compiled = broach.compile(program, options={"capture": "native"})
    x = torch.randn(9)
    for top in (3, 8, 3, 8, 3):
        _agree(program, compiled, x, torch.tensor([0, top]))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([0, 9]))
    _agree(program, compiled, x, torch.tensor([0, 3]))


def test_lists_and_comparisons_of_tensors():
    def counts(x):
        n = (x > 0).sum(0).tolist()
        return x * n[0] - n[-1], n

    def same(x, y):
        return x + 1 if torch.equal(x * 2, y) else y - 1

    compiled = broach.compile(counts, options={"capture": "native"})
    for _ in range(20):
        x = torch.randn(2, 2)
        _agree(counts, compiled, x)
    compiled = broach.compile(same, options={"capture": "native"})
    for i in range(6):
        x = torch.randn(2, 3)
        _agree(same, compiled, x, x * 2 if i % 2 else x * 3)
    nan = torch.full((2, 3), float("nan"))
    _agree(same, compiled, nan, nan * 2)
    assert _stats(compiled)["captures"] == 2


def test_too_many_ways_go_to_dynamo():
    def many(x):
        return x + int((x.sum() * 1000).long())

    compiled = broach.compile(many, options={"branches": 3})
    for _ in range(6):
        _agree(many, compiled, torch.randn(4))
    told = _stats(compiled)
    assert told["front"] == "fallback" and any("more than 3 ways" in r for r in told["reasons"]), told["reasons"]


def test_fullgraph_names_the_line():
    compiled = broach.compile(lambda x: x if x.sum() > 0 else -x, fullgraph=True)
    with pytest.raises(broach.CaptureError, match=r"depends on data.*test_branches\.py"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("layer", [nn.LSTM(8, 8, batch_first=True), nn.RNN(8, 8, 2), nn.GRU(8, 8, bidirectional=True)], ids=lambda m: type(m).__name__)
def test_recurrent_layers(layer):
    compiled = broach.compile(layer, options={"capture": "native"})
    for n in (3, 5, 7, 3):
        x = torch.randn(2, n, 8)
        torch.testing.assert_close(compiled(x), layer(x))


def test_integers_among_the_arguments():
    def program(x, n, k=2):
        return x[:n] * k + n

    compiled = broach.compile(program, options={"capture": "native"})
    for n in (3, 4, 5, 6, 7, 8, 2, 1, 0, 12):
        x = torch.randn(20 + n)
        torch.testing.assert_close(compiled(x, n, k=2 + n), program(x, n, k=2 + n))
    assert _stats(compiled)["captures"] <= 5

    def repeated(x, n):
        for _ in range(n):
            x = x.sin()
        return x

    compiled = broach.compile(repeated, options={"capture": "native"})
    for n, size in ((3, 4), (4, 4), (5, 6), (3, 8), (4, 9), (5, 10)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x, n), repeated(x, n))


def test_one_hot_is_one_way_for_all_classes():
    def program(classes):
        return F.one_hot(classes.t(), 50) * 2

    compiled = broach.compile(program)
    for n in range(20):
        classes = torch.randint(50, (3, 5 + n % 4))
        assert _agree(program, compiled, classes).stride() == program(classes).stride()
    assert _stats(compiled)["captures"] <= 2
    for bad, why in ((50, "smaller than num_classes"), (-1, "non-negative")):
        with pytest.raises(RuntimeError, match=why):
            compiled(torch.full((3, 5), bad))


def test_one_hot_of_as_many_classes_as_there_are():
    compiled = broach.compile(F.one_hot)
    for n in range(4):
        _agree(F.one_hot, compiled, torch.randint(2 + n, (9,)))
    _agree(F.one_hot, compiled, torch.zeros(1, 3, dtype=torch.long))
