"""Operations of eager's that multiply and add in one instruction, which rounds once: results are equal to the last bit."""

import broach
import torch

OPERATIONS = {
    "add": lambda x, y, z: torch.add(x, y, alpha=0.3137),
    "rsub": lambda x, y, z: torch.rsub(x, y, alpha=0.3137),
    "addcmul": lambda x, y, z: torch.addcmul(x, y, z, value=0.3),
    "addcmul by one": lambda x, y, z: torch.addcmul(x, y, z),
    "addcdiv": lambda x, y, z: torch.addcdiv(x, y, z, value=0.3),
    "lerp": lambda x, y, z: torch.lerp(x, y, 0.3),
    "lerp by weights": lambda x, y, z: torch.lerp(x, y, z),
    "gradient of tanh": lambda x, y, z: torch.ops.aten.tanh_backward(x, y),
    "cross": lambda x, y, z: torch.linalg.cross(x[:, :3], y[:, :3]),
    "cross of columns": lambda x, y, z: torch.linalg.cross(x[:3], y[3:6], dim=0),
    "separate": lambda x, y, z: x * y + z,
}


def compare_operation(program, dtype, device):
    """Of a tensor, by its rows, or of several."""
    compiled = broach.compile(program)
    for seed in range(5):
        torch.manual_seed(seed)
        x, y, z = (torch.randn(37 + seed, 23, dtype=torch.float64).to(device, dtype) for _ in range(3))
        for have, want in zip(compiled(x, y, z), program(x, y, z), strict=True):
            assert torch.equal(have, want)
