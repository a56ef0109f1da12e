"""What is kept for sizes that became symbols is bounded: memory stays where it is. Versions for sizes as numbers are not tried here."""

import os
import subprocess
import sys

PROGRAM = """
import gc, random, sys
import torch
import broach

shapes, calls = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
weight = torch.randn(16, 24)

def program(x):
    y = torch.relu(x * 2 + 1)
    return torch.nn.functional.gelu(y @ weight), y.softmax(-1), y.sum(0)

def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1])

torch.set_num_threads(1)
compiled = broach.compile(program)
rows, middle = list(range(2, shapes + 2)), 0
with torch.no_grad():
    for call in range(calls):
        if call % shapes == 0:
            random.Random(call).shuffle(rows)
        if call == calls // 5:
            middle = resident()
        x = torch.full((rows[call % shapes], 16), 0.5)
        got = compiled(x)
        if call % 97 == 0:
            for a, b in zip(got, program(x)):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
print(resident() / middle)
"""

LONG = os.environ.get("BROACH_TEST_ALL") == "1"


def test_memory_stays_flat():
    shapes, calls = (1000, 10_000) if LONG else (200, 2000)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(shapes), str(calls)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.02
