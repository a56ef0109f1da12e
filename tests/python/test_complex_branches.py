"""Complex functions on and beside their branch cuts, and where what they compute on the way would overflow."""

import math

import pytest
import torch

import broach

INF = math.inf
# Eager's own values, in complex64, are what is compared with: on a cut the sign of a zero decides.
CASES = {
    "asin": [2 + 0j, complex(2, -0.0), -2 + 0j, complex(-2, -0.0), 0.5 + 0j, 3j, 1 + 1j],
    "acos": [2 + 0j, complex(2, -0.0), -2 + 0j, complex(-2, -0.0), 0.5 + 0j, -3j, 1 - 1j],
    "asinh": [complex(0, -3), complex(-0.0, -3), 3j, complex(-0.0, 3), 2 + 0j, 0.5j, -1 + 1j],
    "acosh": [complex(-3, -0.0), -3 + 0j, 0.5 + 0j, complex(0.5, -0.0), 2 + 0j, 1j, -1 - 1j],
    "atanh": [2 + 0j, complex(2, -0.0), -2 + 0j, complex(-2, -0.0), complex(1, 1e-20), 3e38j, 1e20 + 1e20j, complex(0, INF), 0.5j, 0.3 - 0.2j],
    "atan": [2j, complex(-0.0, 2), -2j, complex(1e-20, 1), 3e38 + 0j, 1e20j, 0.5 + 0j, 0.2 + 0.3j],
    "sqrt": [-4 + 0j, complex(-4, -0.0), 3e38 + 0j, complex(0, INF), complex(-INF, INF), 1e-30j, 3 - 4j],
    "rsqrt": [3e38 + 0j, -4 + 0j, 3 - 4j],
    "log1p": [1e20 + 1j, 1e20j, 1e-6 + 1e-6j, complex(-2, 0.0), complex(-2, -0.0), 1023 + 3j, 1025 + 3j, -0.5 + 0.1j],
    "sin": [100j, complex(1, 100), 1 + 1j, complex(1, -0.0)],
    "cos": [100j, complex(-0.0, 100), 1 + 1j, complex(1, -0.0)],
    "sinh": [100 + 0j, complex(100, -0.0), -100 + 0j, 1 + 1j],
    "cosh": [100 + 0j, complex(100, -0.0), -100 + 0j, 1 - 1j],
}


@pytest.mark.parametrize("name", CASES)
def test_values(name):
    function = getattr(torch, name)
    compiled = broach.compile(lambda z: function(z))
    for value in CASES[name]:
        z = torch.full((3,), value, dtype=torch.complex64)
        compiled(z)
        have, want = compiled(z), function(z)
        torch.testing.assert_close(torch.view_as_real(have), torch.view_as_real(want), equal_nan=True, rtol=3e-6, atol=1e-7, msg=lambda m: f"{value}: {m}")
        zero = torch.view_as_real(want) == 0
        assert torch.equal(torch.view_as_real(have)[zero].signbit(), torch.view_as_real(want)[zero].signbit()), (value, have[0], want[0])
    assert compiled.stats()["compiled_calls"] > 0 and not compiled.stats()["eager_reasons"]
