"""What of PyTorch's test database is known not to agree, each with its reason."""

import torch

_UNINITIALISED = "gives memory that nothing has written"
# By operation.
SKIPPED: dict[str, str] = {
    name: _UNINITIALISED
    for name in ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
}

# By operation and element type.
EXPECTED: dict[tuple[str, torch.dtype], str] = {}
