"""Values and sizes at the edge of what operations are defined for: complex division by nothing, dimensions of size 0, types that mix."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F

INF, NAN = float("inf"), float("nan")


def same(program, *makes, calls: int = 3, **options) -> None:
    compiled = broach.compile(program, **options)
    for _ in range(calls):
        torch.testing.assert_close(compiled(*(m() for m in makes)), program(*(m() for m in makes)), equal_nan=True, rtol=1e-6, atol=0)


def numbers() -> torch.Tensor:
    return torch.tensor([1 + 1j, 0j, -2 + 0j, complex(INF, 1), 3 - 4j, complex(0, -2)], dtype=torch.complex64)


@pytest.mark.parametrize("by", [0j, -0.0 + 0j, complex(INF, 0), complex(INF, -INF), complex(1, INF), complex(0, NAN), 3 + 0j, 0.5j, 1e30 + 1e30j])
def test_complex_division(by):
    same(lambda x: x / by, numbers)
    same(lambda x: (x / torch.full_like(x, by), torch.reciprocal(torch.full_like(x, by))), numbers)


def test_complex_division_by_a_real_zero():
    same(lambda x: (x / 0, x / -0.0, x / torch.zeros(6), x / torch.tensor(0)), numbers)


def test_complex_and_double_are_compared_as_complex_doubles():
    x = torch.tensor([0.1, 0.5, 1 / 3], dtype=torch.float64)
    c = x.to(torch.complex64)
    same(lambda c, x: (c == x, x != c, c == 0.5, c != x[1]), lambda: c, lambda: x)


@pytest.mark.parametrize("x", [torch.tensor([1, 2, 3]), torch.tensor([True, False, True]), torch.tensor([1.0, 2.0])])
def test_complex_sums_of_real_numbers(x):
    same(lambda x: torch.cumsum(x, 0, dtype=torch.complex64), lambda: x)


def test_blocks_of_numbers_of_all_kinds():
    same(lambda a, b: torch.block_diag(a, b), lambda: torch.tensor([[1, 2]]), lambda: torch.tensor([[1 + 2j]], dtype=torch.complex64))


@pytest.mark.parametrize("x", [torch.zeros(1, 0, 63, dtype=torch.complex64)[..., 1::2], torch.zeros(3, dtype=torch.complex64)[3:]])
def test_parts_of_no_complex_numbers(x):
    same(lambda x: (x.conj().imag, x.imag, x.real, torch.view_as_real(x)), lambda: x)


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_losses_over_no_classes_where_all_are_ignored(reduction, dtype):
    x, target = (lambda: torch.zeros(8, 0, dtype=dtype)), (lambda: torch.zeros(8, dtype=torch.long))
    same(lambda x, t: F.cross_entropy(x, t, ignore_index=0, reduction=reduction), x, target)
    same(lambda x, t: F.nll_loss(x, t, ignore_index=0, reduction=reduction), x, target)


def test_classes_that_are_none():
    compiled = broach.compile(lambda x, t: F.nll_loss(x, t))
    for _ in range(3):
        with pytest.raises(IndexError):
            compiled(torch.zeros(8, 0), torch.zeros(8, dtype=torch.long))


def test_positions_in_no_elements():
    index, values = (lambda: torch.tensor([0])), (lambda: torch.ones(5, 1, 16))
    empty = lambda: torch.zeros(5, 0, 16)  # noqa: E731
    same(lambda a, i, v: (a.index_add(1, i, v), v * 2)[1], empty, index, values)
    same(lambda a, i, v: (a.index_add(1, i, v), v * 2), empty, index, values)
    same(lambda a, i: a[:, i[:0]], empty, index)
    for program in (lambda a, i: a.index_select(1, i), lambda a, i: a[:, i], lambda a, i: torch.take(a, i)):
        compiled = broach.compile(program)
        for _ in range(3):
            with pytest.raises((IndexError, RuntimeError)):
                compiled(empty(), index())


@pytest.mark.parametrize(
    "program",
    [
        lambda a: torch.min(torch.any(a, (1, 0)), 0),
        lambda a: torch.max(torch.all(a, (1, 0)), 0),
        lambda a: torch.min(a.sum(), 0),
        lambda a: (a.sum().argmax(), a.sum().argmin(0)),
        lambda a: torch.max(a.sum(1, keepdim=True), 1),
    ],
)
def test_position_of_the_only_element(program):
    same(program, lambda: torch.zeros(300, 0))


def test_powers_of_two_overflow_as_eagers():
    x, y = torch.tensor([-INF, INF, 0.0, 1e-30, 1e30, 1.0]), torch.tensor([-INF, -INF, INF, 150.0, -160.0, 0.5])
    same(torch.ldexp, lambda: x, lambda: y)
    same(torch.ldexp, lambda: x.to(torch.bfloat16), lambda: y)
    same(torch.ldexp, lambda: torch.tensor([1e-30, 1e30, 0.0, 3.0]), lambda: torch.tensor([150, -160, 200, 2]))


@pytest.mark.parametrize("value", [torch.tensor(300), torch.tensor(-1.5), torch.tensor(2.0)])
def test_fill_with_a_number_that_may_not_fit(value):
    def program(x, v):
        return x.masked_fill(x == 1, v)

    compiled = broach.compile(program)
    for v in (torch.tensor(2, dtype=value.dtype), torch.tensor(3, dtype=value.dtype), value):
        x = torch.tensor([1, 2, 3], dtype=torch.uint8)
        try:
            expected = program(x, v)
        except RuntimeError as e:
            with pytest.raises(RuntimeError, match=str(e)[:20]):
                compiled(x, v)
        else:
            assert compiled(x, v).equal(expected)


@pytest.mark.parametrize("compare", [torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("n", [4, 16, 37])
def test_comparisons_of_low_precision_beside_another_condition(compare, dtype, n):
    """With a call of the mathematical library between the condition and its use, for which registers are put away."""

    def program(z, h, other):
        condition = (z <= 1) & compare(h, other)
        return torch.where(condition, 0.0, torch.pow(z, h.float()) * torch.log(z)), torch.where(condition & compare(h, 0), z, torch.sin(z))

    def z():
        return torch.arange(n, dtype=torch.float32) % 3

    def halves(k):
        return (torch.arange(n) * k % 5 - 2).to(dtype) * 0.5

    same(program, z, lambda: halves(1), lambda: halves(3))


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_medians_of_the_largest_integer(dtype):
    x = torch.tensor([1, 2, 3, 4, torch.iinfo(dtype).max], dtype=dtype)
    same(lambda x: (x.median(), *x.median(-1), x.nanmedian()), lambda: x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradients_of_binary_cross_entropy_at_its_ends(dtype):
    def gradient(p):
        return torch.ops.aten.binary_cross_entropy_backward(torch.ones_like(p), p, torch.tensor([0, 1, 1, 0, 1], dtype=dtype))

    same(gradient, lambda: torch.tensor([0, 1, 0, 1, 0.5], dtype=dtype))


# One vector of the results is two registers of a processor without AVX-512, and one of them has nothing of an operand.
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.int32, torch.float32, torch.int16, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("before, after", [(5, 0), (4, 0), (3, 2), (0, 5), (8, 0), (12, 3)])
def test_operands_that_fill_a_part_of_a_vector(dtype, before, after):
    torch.manual_seed(0)
    large = torch.randint(-2, 3, (9, 64)).to(dtype)
    for rows, columns in ((4, 5), (3, 8), (1, 3)):
        x = large[2 : 2 + rows, 7 : 7 + columns]  # with others' elements around it
        same(lambda x: torch.block_diag(x, x[0]), lambda: x)
        same(lambda x: F.pad(x, (before, after, 1, 1)), lambda: x)
        same(lambda x: torch.cat([x[:, :1].expand(-1, before + after), x], 1), lambda: x)
        same(lambda x: F.pad(x, (before, after)) if x.dtype == torch.bool else F.pad(x, (before, after)) + F.pad(x, (after, before)), lambda: x)


def test_complex_numbers_beside_a_changing_one():
    programs = {
        "mul": lambda x, n: x * n,
        "sub": lambda x, n: n - x,
        "div": lambda x, n: x / n,
        "pow": lambda x, n: x**n,
        "eq": lambda x, n: x == n,
        "masked_fill": lambda x, n: x.masked_fill(x.real > 1, n),
        "lerp": lambda x, n: x.lerp(2 * x, n),
        "addcdiv": lambda x, n: torch.addcdiv(x, x, x + 1, value=n),
    }
    for name, program in programs.items():
        compiled = broach.compile(program)
        for n in (0.5, 0.25, 2.0, 3.0, 1.5):
            x = torch.tensor([1 + 1j, -2 + 0.5j, 3 - 4j], dtype=torch.complex64)
            torch.testing.assert_close(compiled(x, n), program(x, n), msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("sought", [2.5, 1e30, -INF, INF, 2, -7])
def test_numbers_among_integers(sought):
    boundaries = torch.tensor([1, 2, 5, 9])
    same(lambda b: (torch.bucketize(sought, b), torch.searchsorted(b, sought, right=True)), lambda: boundaries)
    same(lambda b: torch.searchsorted(b, sought), lambda: boundaries.double())


def test_margins_of_nan():
    x = torch.tensor([[NAN, 1.0], [0.5, 2.0]])
    same(lambda x: F.multi_margin_loss(x, torch.tensor([1, 0]), reduction="none"), lambda: x)
    same(lambda x: F.multilabel_margin_loss(x, torch.zeros(2, 2, dtype=torch.long), reduction="none"), lambda: x)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3), (3, 80), (1,), ()])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.complex64])
def test_running_sums_begin_with_a_zero(shape, dtype):
    """Of which a negative zero makes a positive one; running products begin with a one."""

    def program(x):
        sums, products = x.cumsum(0), x.cumprod(0)
        return (*(torch.view_as_real(t).signbit() if t.is_complex() else t.signbit() for t in (sums, products)), sums, products)

    same(program, lambda: torch.full(shape, -0.0, dtype=dtype))
    if not dtype.is_complex:
        for value in (-INF, -0.0):
            same(lambda x: (x.logcumsumexp(0), x.logcumsumexp(0).signbit()), lambda: torch.full(shape, value, dtype=dtype))  # noqa: B023


PARTS = [0.0, 1.0, -1.0, INF, -INF, NAN, 0.5, 1e10, -120.0]


def everywhere() -> torch.Tensor:
    return torch.tensor([complex(a, b) for a in PARTS for b in PARTS], dtype=torch.complex64)


@pytest.mark.parametrize("function", [torch.exp, torch.sigmoid])
def test_complex_exponentials_everywhere(function):
    compiled = broach.compile(function)
    for _ in range(2):
        torch.testing.assert_close(compiled(everywhere()), function(everywhere()), equal_nan=True, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exponent", [-2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3])
def test_complex_powers(exponent):
    """Where both parts are numbers, or both infinite. Torch has formulas for some exponents, and the C library's power for others."""
    z = everywhere()
    z = z[~torch.view_as_real(z).isnan().any(-1)]
    compiled = broach.compile(lambda z: z**exponent)
    for _ in range(2):
        torch.testing.assert_close(compiled(z), z**exponent, equal_nan=True, rtol=1e-5, atol=1e-6)


def test_complex_powers_of_zero():
    exponents = torch.tensor([0, 1, -1, 1j, -2 + 1j, 0.5], dtype=torch.complex64)
    zero = torch.zeros(6, dtype=torch.complex64)
    same(lambda z, e: (z**e, 0**e), lambda: zero, lambda: exponents)
