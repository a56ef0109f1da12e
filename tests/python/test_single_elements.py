"""Tensors of half precision beside tensors without dimensions of another type, which eager rounds or not by where they stand."""

import pytest
import torch

from compared import native

PROGRAMS = {
    "x * s": lambda x, s: x * s,
    "s * x": lambda x, s: s * x,
    "x / s": lambda x, s: x / s,
    "s / x": lambda x, s: s / x,
    "x + s": lambda x, s: x + s,
    "s - x": lambda x, s: s - x,
    "x // s": lambda x, s: torch.div(x, s, rounding_mode="floor"),
    "s // x": lambda x, s: torch.div(s, x, rounding_mode="floor"),
    "trunc(x / s)": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "addcmul first": lambda x, s: torch.addcmul(x, s, x),
    "addcmul second": lambda x, s: torch.addcmul(x, x, s),
    "addcmul to": lambda x, s: torch.addcmul(s, x, x),
    "lerp": lambda x, s: torch.lerp(x, x * 3, s),
    "atan2": lambda x, s: torch.atan2(x, s),
    "maximum": lambda x, s: torch.maximum(x, s),
    "where": lambda x, s: torch.where(x > 0, s, x),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name, dtype):
    program = PROGRAMS[name]
    compiled = native(program)
    for value in (0.1, 100077.0, 1e-8, 0.3333333, -2.7182817):
        for of in (torch.float32, torch.float64):
            x = torch.linspace(-3, 3, 67).to(dtype)
            s = torch.tensor(value, dtype=of)
            torch.testing.assert_close(compiled(x, s), program(x, s), equal_nan=True, rtol=0, atol=0, msg=lambda m: f"{value} {of}: {m}")
