"""On a GPU eager's compiler makes one instruction of a product and a sum, too, and rounds some numbers otherwise than on a CPU."""

from __future__ import annotations

import pytest
import torch
from rounded_once import OPERATIONS, compare_operation

MORE = {
    "lists": lambda x, y, z: torch._foreach_addcdiv(torch._foreach_addcmul([x, y], [y, z], [z, x], value=0.7), [z, x], [y, z], value=0.1),
    "division by a tensor": lambda x, y, z: (x / y, x / y[0, 0]),
    "division by numbers": lambda x, y, z: (x / 3.7, x / 45.1, x.div(1e-3), (x * 10).int() / 3, x / (x.shape[0] * 1.1), x.clone().div_(7)),
    "division of lists": lambda x, y, z: torch._foreach_div([x, y], 45.1),
    "division by a number of the host": lambda x, y, z: x / torch.tensor(45.1, dtype=torch.float64),
}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [*OPERATIONS, *MORE])
def test_operations(name, dtype):
    compare_operation({**OPERATIONS, **MORE}[name], dtype, "cuda")
