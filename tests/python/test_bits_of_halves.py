"""Elements of bf16 and fp16 that are only moved keep all their bits: integers packed by view(dtype), signs of NaNs and what they carry."""

import pytest
import torch

from compared import native

HALVES = [torch.bfloat16, torch.float16]

OTHER = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}

MOVES = {
    "as the other": lambda x: x.view(OTHER[x.dtype]).flip(0),
    "as the other and back": lambda x: (x.view(OTHER[x.dtype]).t().contiguous().view(x.dtype)).abs(),
    "clone": lambda x: x.clone(),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "transpose": lambda x: x.t().contiguous(),
    "cat": lambda x: torch.cat([x, x[:2]]),
    "stack": lambda x: torch.stack([x, x], 1),
    "index": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
    "index_select": lambda x: x.index_select(0, torch.arange(2)),
    "gather": lambda x: x.gather(0, torch.ones(3, x.shape[1], dtype=torch.long)),
    "where": lambda x: torch.where(torch.arange(x.shape[0])[:, None] % 2 == 0, x, x.flip(0)),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2)),
    "repeat": lambda x: x.repeat(2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "masked_fill": lambda x: x.masked_fill(torch.arange(x.shape[0])[:, None] % 3 == 0, 1.5),
    "tril": lambda x: x.tril(),
    "diagonal": lambda x: x.diagonal().clone(),
    "unfold": lambda x: x.unfold(0, 2, 1).clone(),
    "chunks": lambda x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "scatter": lambda x: torch.zeros_like(x).scatter(0, torch.zeros(1, x.shape[1], dtype=torch.long), x),
    "index_copy": lambda x: torch.zeros_like(x).index_copy(0, torch.tensor([0, 1]), x[2:4]),
    "write": lambda x: torch.zeros_like(x).index_put((torch.tensor([0, 1]),), x[2:4]),
    "shuffle": lambda x: torch.nn.functional.pixel_shuffle(x[None, :4, None, :8], 2),
    "embedding": lambda x: torch.nn.functional.embedding(torch.tensor([1, 2]), x),
    "expand": lambda x: x.expand(2, *x.shape).contiguous(),
    "every other": lambda x: x[::2].clone(),
    "row": lambda x: x[3].clone(),
    "copy": lambda x: torch.zeros_like(x).copy_(x),
}


def patterns(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(256, 256).roll(77, 1).contiguous().view(dtype)


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(torch.int16)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_what_is_moved_keeps_its_bits(name: str, dtype: torch.dtype) -> None:
    program = MOVES[name]
    compiled = native(program)
    for _ in range(3):
        x = patterns(dtype)
        assert torch.equal(_bits(compiled(x)), _bits(program(x)))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_views_inside_a_program(dtype: torch.dtype) -> None:
    def pack(ids, x):
        return torch.cat([x * 2, ids.view(dtype)], 1).flip(1)

    def unpack(x):
        return x.flip(1)[:, 4:].view(torch.int16) + 1

    packing, unpacking = native(pack), native(unpack)
    for i in range(3):
        ids = torch.arange(-12, 12, dtype=torch.int16).view(4, 6) * (1000 + i)
        x = torch.randn(4, 4).to(dtype)
        packed = packing(ids, x)
        assert torch.equal(_bits(packed), _bits(pack(ids, x)))
        assert torch.equal(unpacking(packed), ids + 1)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_values_and_bits_of_one_tensor(dtype: torch.dtype) -> None:
    def program(x, y):
        low = torch.where(x.isnan(), x, (x.float() * 0.5 + y.float()).to(dtype))
        return low, x.flip(0), torch.where(y > 0, x, y), (x.nan_to_num(0, 1, -1).float() + 1).sum(1)

    compiled = native(program)
    for i in range(3):
        x, y = patterns(dtype).roll(i, 0), patterns(dtype).roll(3 * i + 1, 1)
        (low, flipped, either, sums), (want_low, *moved, want_sums) = compiled(x, y), program(x, y)
        assert torch.equal(_bits(low)[x.isnan()], _bits(x)[x.isnan()])
        torch.testing.assert_close(low, want_low, equal_nan=True)
        assert torch.equal(_bits(flipped), _bits(moved[0])) and torch.equal(_bits(either), _bits(moved[1]))
        torch.testing.assert_close(sums, want_sums)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=str)
def test_signs_of_nan(dtype: torch.dtype) -> None:
    def program(x):
        return x.signbit(), x.flip(0).signbit(), (-x).signbit(), torch.where(x > 0, x, x.roll(1)).signbit(), x.abs().signbit()

    compiled = native(program)
    for _ in range(3):
        x = torch.tensor([float("nan"), 1.0, -0.0, 0.0, -2.0, float("inf"), -float("inf"), -float("nan")] * 8).to(dtype)
        x = torch.cat([x, x.copysign(torch.tensor(-1.0, dtype=dtype)), x.copysign(torch.tensor(1.0, dtype=dtype))])
        for have, want in zip(compiled(x), program(x), strict=True):
            assert torch.equal(have, want)


def test_block_diagonal_of_no_matrices() -> None:
    def program(parts):
        return torch.block_diag(*parts)

    compiled = native(program)
    for count in (0, 1, 0, 2, 0):
        parts = [torch.randn(2, 3) for _ in range(count)]
        have, want = compiled(parts), program(parts)
        assert have.shape == want.shape and torch.equal(have, want)


@pytest.mark.parametrize("dtype", HALVES)
def test_computed_and_then_seen_as_the_other(dtype):
    for program in (
        lambda x: (x + 1).view(OTHER[dtype]) * 1,
        lambda x: (x + 1).view(OTHER[dtype]),
        lambda x: -(x * 2).view(OTHER[dtype]),
        lambda x: x.view(OTHER[dtype]) + 1,
        lambda x: torch.where(x > 0, x.abs().view(OTHER[dtype]), (x * 3).view(OTHER[dtype])),
        lambda x: (x + 1).view(torch.int16).view(OTHER[dtype]) * 1,
    ):
        compiled = native(program)
        for _ in range(3):
            x = torch.randn(3, 40).to(dtype)
            assert torch.equal(compiled(x).view(torch.int16), program(x).view(torch.int16))
