"""Integers that index a tensor and change from call to call, as a position in a sequence or a step of a schedule, are symbols."""

from __future__ import annotations

import threading

import broach
import compared
import pytest
import torch

TABLE = torch.arange(50 * 6 * 8.0).reshape(50, 6, 8).sin()
ROWS = torch.tensor([3, 0, 4])
MASK = torch.arange(48).reshape(6, 8) % 3 == 0


def _written(x, i):
    x = x.clone()
    x[i] = 2.0
    x[:, i % 5] += 1
    x[i, 1:4, 2] = x[i + 1, :3, 3]
    x[..., i % 7] = ROWS.sum()
    x[i, ROWS] = x[0, ROWS] * 3
    x[i, 5] = i
    return x


def _scheduled(x, i):
    before = TABLE[i - 1, 0] if i > 0 else TABLE[0, 1]
    return (x - TABLE[i, 0].sqrt().nan_to_num()) * before


def _is_beyond(x, i):
    try:
        return x[i + 20] + 1
    except IndexError:
        return x.sum(0)


PROGRAMS = {
    "row": lambda x, i: x * TABLE[i],
    "column": lambda x, i: x[:, i % 5] + 1,
    "from behind": lambda x, i: x[-i] - x[:, :, -(i % 7) - 1].sum(),
    "ellipsis": lambda x, i: x[..., i % 7] * 2,
    "with None and slices": lambda x, i: x[None, i, 1:3, None] + x[i : i + 1, :2],
    "behind None": lambda x, i: (x[:, None, i % 5], x[None, :2, None, i % 5], x[..., None, i % 7], x.mT[:, None, i % 7, None]),
    "two": lambda x, i: x[i, i % 5] * x[i + 1],
    "before rows": lambda x, i: x[i, ROWS] + 1,
    "between rows": lambda x, i: x[ROWS, i % 5, ROWS],
    "behind rows": lambda x, i: x[ROWS, i % 5] + x[ROWS, :, i % 7].sum(1, keepdim=True),
    "with a mask": lambda x, i: x[i, MASK].sum(),
    "of a view": lambda x, i: x.transpose(0, 2)[i % 7].T[i],
    "an operand": lambda x, i: (x + i) * torch.full((8,), i),
    "in a list": lambda x, i: x[[i, 0]] + x[0, [i % 5, 2], 1:3].sum(),
    "written": _written,
    "schedule": _scheduled,
    "caught": _is_beyond,
}
SYMBOLS_IN_VAIN = {"caught"}  # an error that a program catches is a way of its own


@pytest.mark.parametrize("name", PROGRAMS)
def test_indices_that_change(name):
    run = PROGRAMS[name]
    compiled, x = broach.compile(run), TABLE.clone()
    for i in (3, 7, 8, 2, 11, 5, 30, 13, 22, 6, 41, 17):
        torch.testing.assert_close(compiled(x, i), run(x, i), rtol=1e-5, atol=1e-5, check_stride=True)  # sums in another order
    told = compared.stats(compiled)
    assert name in SYMBOLS_IN_VAIN or told["captures"] <= 4, (told["captures"], told["reasons"], told["eager_reasons"])
    assert name in SYMBOLS_IN_VAIN or told["compiled_calls"] >= 8, told["eager_reasons"]


def test_gradients_of_what_an_index_selects():
    weights = [torch.nn.Parameter(TABLE.clone()) for _ in range(2)]

    def loss(w, x, i):
        return (w[i] * x).sum() + w[:, i % 5, 0].square().sum()

    compiled = broach.compile(loss)
    with torch.enable_grad():
        for i in (3, 7, 8, 2, 11, 5, 30):
            for run, w in zip((loss, compiled), weights, strict=True):
                run(w, TABLE[1], i).backward()
            torch.testing.assert_close(weights[1].grad, weights[0].grad)
    assert compared.stats(compiled)["captures"] <= 4


class _Cache(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("keys", torch.zeros(4, 40, 8))
        self.project, self.position = torch.nn.Linear(8, 8), 0

    def forward(self, x):
        self.keys[:, self.position] = self.project(x)
        self.position += 1
        return (x.unsqueeze(1) @ self.keys[:, : self.position].mT).softmax(-1) @ self.keys[:, : self.position]


def test_a_cache_that_is_written_at_a_position():
    torch.manual_seed(0)
    plain, given = _Cache(), _Cache()
    given.load_state_dict(plain.state_dict())
    compiled = broach.compile(given)
    for _ in range(24):
        x = torch.randn(4, 8)
        torch.testing.assert_close(compiled(x), plain(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(given.keys, plain.keys)
    assert given.position == 24
    assert compared.stats(compiled)["compiled_calls"] >= 16


POSITIONS = {
    "a number": lambda k: k.item(),
    "a number that is computed": lambda k: (k * 2 - k).item(),
    "an element": lambda k: k,
    "an element that is computed": lambda k: (k + 3).argmax() + k - 1 + 1,
    "of another type": lambda k: k.int(),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_a_position_that_is_an_element(name):
    position = POSITIONS[name]

    def run(x, k):
        x = x.clone()
        x[position(k), 2] = x[position(k) % 5, 1]
        return x[position(k)] * 2, x[:, position(k) % 5].sum(), x

    compiled = broach.compile(run)
    for i in (3, 7, 8, 2, 11, 5, 30, 13, 22, 6, 41, 17, 18, 19, 20, 21, 23, 24, 25, 26):
        k = torch.tensor(i)
        torch.testing.assert_close(compiled(TABLE, k), run(TABLE, k))
    told = compared.stats(compiled)
    assert told["captures"] <= 8 and told["compiled_calls"] >= 12, (told["captures"], told["reasons"], told["eager_reasons"])


def test_elements_that_index_from_behind_or_are_bytes():
    def run(x, k, byte, flag):
        return x[k], x[byte], x[flag]

    compiled = broach.compile(run)
    for i in (-3, 7, -1, 2, -50, 0, 1, 30):
        given = TABLE, torch.tensor(i), torch.tensor(i % 2, dtype=torch.uint8), torch.tensor(i % 3 == 0)
        torch.testing.assert_close(compiled(*given), run(*given))


def test_indexing_of_other_threads_stays_torchs():
    stop, wrong = threading.Event(), []

    def index():
        x = torch.arange(12.0).reshape(3, 4)
        while not stop.is_set():
            y = x.clone()
            y[1, 2] = y[2][torch.tensor(1)]
            if y[1].tolist() != [4, 5, 9, 7]:
                wrong.append(y)

    threads = [threading.Thread(target=index) for _ in range(2)]
    for t in threads:
        t.start()
    for _ in range(6):
        compiled = broach.compile(lambda x, i: x[i] * 2)
        for i in (3, 7, 8):
            torch.testing.assert_close(compiled(TABLE, i), TABLE[i] * 2)
    stop.set()
    for t in threads:
        t.join()
    assert not wrong


class _Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, classes, args=(), kwargs=None):
        result = super().__torch_function__(function, classes, args, kwargs or {})
        return result + 1 if function is torch.Tensor.__getitem__ else result


def test_a_tensor_of_a_class_of_its_own_keeps_its_indexing():
    def run(x, i):
        return x.as_subclass(_Own)[i].as_subclass(torch.Tensor)

    compiled = broach.compile(run)
    for i in (3, 7, 8, 2, 11):
        torch.testing.assert_close(compiled(TABLE, i), run(TABLE, i))


def test_an_index_beyond_the_tensor_is_eagers_error():
    def run(x, i):
        return x[i] * 2

    compiled = broach.compile(run)
    for i in (3, 7, 8, 2):
        compiled(TABLE, i)
    with pytest.raises(IndexError, match="index 50 is out of bounds for dimension 0 with size 50"):
        compiled(TABLE, 50)
    torch.testing.assert_close(compiled(TABLE, 49), TABLE[49] * 2)
