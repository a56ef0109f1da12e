"""Numbers where their type matters: written to other element types, beyond what those hold, beyond the digits of a double."""

import math

import broach
import pytest
import torch
import torch.nn.functional as F

BIG = 2**53
WHOLE = torch.tensor([1, BIG, BIG + 1, BIG + 2])
COMPLEX = torch.tensor([[1 + 1j, 2 + 2j]])

OF_TENSORS = {
    "threshold beyond a double": (lambda x: F.threshold(x, BIG + 1, BIG + 1), WHOLE),
    "value beyond a double": (lambda x: F.threshold(x, 5, BIG + 1), WHOLE),
    "largest threshold": (lambda x: F.threshold(x, 2**63 - 1, 7), WHOLE),
    "largest value": (lambda x: F.threshold(x, 5, 2**63 - 1), WHOLE),
    "threshold of fractions": (lambda x: F.threshold(x, 1.5, 2.5), torch.tensor([1.0, 2.0])),
    "a whole number among complex ones": (lambda x: x.index_fill(1, torch.tensor([0]), torch.tensor(3)), COMPLEX),
    "the same in place": (lambda x: x.clone().index_fill_(1, torch.tensor([0]), torch.tensor(True)), COMPLEX),
    "a fraction among complex ones": (lambda x: x.index_fill(1, torch.tensor([0]), torch.tensor(3.5)), COMPLEX),
    "powers of whole numbers": (lambda x: torch.ldexp(x, torch.tensor([128, 2**31, -(2**63), 2**32])), torch.tensor([0, 0, 1, 3])),
    "powers of bytes": (lambda x: torch.ldexp(x, torch.tensor([128, 300, -(2**63), 2**32])), torch.tensor([0, 0, 1, 3]).byte()),
    "powers of truth values": (lambda x: torch.ldexp(x, torch.tensor([1, 300, -3])), torch.tensor([True, False, True])),
    "powers of fractions": (lambda x: torch.ldexp(x, torch.tensor([1, 130, -3])), torch.tensor([1.0, 0.1, 3.0])),
}


@pytest.mark.parametrize("name", OF_TENSORS)
def test_numbers_that_stay(name):
    program, x = OF_TENSORS[name]
    compiled = broach.compile(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(x.clone()), program(x.clone()), rtol=0, atol=0, equal_nan=True)


FILLS = {
    "fill_": lambda x, s: x.fill_(s),
    "full_like": lambda x, s: torch.full_like(x, s),
    "masked_fill": lambda x, s: x.masked_fill(x == x, s),
    "an element": lambda x, s: (x.__setitem__(0, s), x)[1],
    "index_fill": lambda x, s: x.index_fill(0, torch.tensor([1]), s),
    "full": lambda x, s: torch.full((2,), s, dtype=x.dtype),
}
NUMBERS = [0.5, 2.0, 1e-50, -0.0, 16777217.0, 3e9, 1e30, math.inf, math.nan]


def told(program, *arguments):
    try:
        return program(*arguments)
    except RuntimeError as error:
        return str(error).splitlines()[0]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.int32, torch.float32, torch.float16])
@pytest.mark.parametrize("name", FILLS)
def test_fractions_that_change_from_call_to_call(name, dtype):
    program, compiled = FILLS[name], broach.compile(FILLS[name])
    for s in NUMBERS + NUMBERS[::-1]:
        x = torch.ones(2, dtype=dtype)
        expected, got = told(program, x.clone(), s), told(compiled, x.clone(), s)
        if isinstance(expected, str):
            assert got == expected, s
        else:
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True, msg=str(s))


@pytest.mark.parametrize("program", [lambda x, s: torch.add(x, x, alpha=s), lambda x, s: x.masked_fill(x == x, s)])
def test_numbers_that_complex_parts_do_not_hold(program):
    compiled, x = broach.compile(program), torch.tensor([1 + 1j])
    for s in (2.0, 3.0, 1e300, 4.0):
        expected, got = told(program, x, s), told(compiled, x, s)
        assert got == expected if isinstance(expected, str) else torch.equal(got, expected), s


@pytest.mark.parametrize("program", [lambda x: torch.tensor(x.tolist()), lambda x: torch.tensor([x.sum().item(), 2.0])])
@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 1, 2)])
def test_a_tensor_made_of_numbers_is_no_view(program, shape):
    compiled = broach.compile(program)
    for i in range(4):
        x = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape) + i
        result = compiled(x)
        torch.testing.assert_close(result, program(x))
        assert not result._is_view()
        result.detach_()
