"""Programs of `torch.distributed` in two processes of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys


def run_pair(worker: str, *arguments: str, **environment: str) -> None:
    """Runs the program with its rank, a free port and the arguments, beside itself as the other rank; both must end well."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    command, settings = [sys.executable, "-c", worker], {**os.environ, **environment}
    processes = [
        subprocess.Popen([*command, str(rank), port, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=settings)
        for rank in range(2)
    ]
    said = [p.communicate(timeout=300)[0] for p in processes]
    assert [p.returncode for p in processes] == [0, 0], "\n".join(said)
