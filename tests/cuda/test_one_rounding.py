"""On a GPU eager's compiler makes one instruction of a product and a sum, too, and rounds some numbers otherwise than on a CPU."""

from __future__ import annotations

import broach
import pytest
import torch

OPERATIONS = {
    "add": lambda x, y, z: torch.add(x, y, alpha=0.3137),
    "rsub": lambda x, y, z: torch.rsub(x, y, alpha=0.3137),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.3),
    "addcmul by one": lambda x, y, z: torch.addcmul(x, y, z),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=0.3),
    "lerp": lambda x, y, z: torch.lerp(x, y, 0.3),
    "lerp by weights": lambda x, y, z: torch.lerp(x, y, z),
    "lists": lambda x, y, z: torch._foreach_addcdiv(torch._foreach_addcmul([x, y], [y, z], [z, x], value=0.7), [z, x], [y, z], value=0.1),
    "gradient of tanh": lambda x, y, z: torch.ops.aten.tanh_backward(x, y),
    "division by a tensor": lambda x, y, z: (x / y, x / y[0, 0]),
    "separate": lambda x, y, z: x * y + z,
}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name, dtype):
    program = OPERATIONS[name]
    compiled = broach.compile(program)
    for seed in range(5):
        torch.manual_seed(seed)
        x, y, z = (torch.randn(37 + seed, 23, device="cuda").to(dtype) for _ in range(3))
        have, want = compiled(x, y, z), program(x, y, z)
        for a, b in zip(have, want, strict=True):
            assert torch.equal(a, b)
