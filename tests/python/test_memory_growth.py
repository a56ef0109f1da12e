"""What is kept for sizes is bounded, whether they became symbols or stay numbers: memory stays where it is."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import gc, random, sys
import torch
import broach

shapes, calls, dynamic = int(sys.argv[1]), int(sys.argv[2]), {"None": None, "False": False}[sys.argv[3]]
torch.manual_seed(0)
weight = torch.randn(16, 24)

def program(x):
    y = torch.relu(x * 2 + 1)
    return torch.nn.functional.gelu(y @ weight), y.softmax(-1), y.sum(0)

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1])

torch.set_num_threads(1)
compiled = broach.compile(program, dynamic=dynamic)
rows, middle = list(range(2, shapes + 2)), 0
settled = calls // 5 if dynamic is None else calls // 2  # numbers are captured when they come again, up to the limit of versions
with torch.no_grad():
    for call in range(calls):
        if call % shapes == 0:
            random.Random(call).shuffle(rows)
        if call == settled:
            middle = resident()
        x = torch.full((rows[call % shapes], 16), 0.5)
        got = compiled(x)
        if call % 97 == 0:
            for a, b in zip(got, program(x)):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
print(resident() / middle)
"""

LONG = os.environ.get("BROACH_TEST_ALL") == "1"


@pytest.mark.parametrize("dynamic", [None, False])
def test_memory_stays_flat(dynamic):
    shapes, calls = (1000, 10_000) if LONG else (200, 2000)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(shapes), str(calls), str(dynamic)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.02
