"""What libbroach.so shows to the process: another LLVM (Triton's) may live beside it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parent.parent / "build"
LIBRARY = BUILD / "python" / "broach_ext" / "libbroach.so"


@pytest.mark.skipif(not LIBRARY.exists() or shutil.which("nm") is None, reason="needs a build and binutils")
def test_only_broachs_own_names_are_exported():
    listing = subprocess.run(["nm", "-D", "-C", "--defined-only", str(LIBRARY)], check=True, capture_output=True, text=True).stdout
    names = [line.split(" ", 2)[2] for line in listing.splitlines()]
    prefixes = ("broach::", "typeinfo for broach::", "typeinfo name for broach::", "vtable for broach::", "VTT for broach::", "non-virtual thunk to broach::")
    assert names, "nothing is exported"
    assert any(name.startswith("broach::Compiled::Compiled(") for name in names)
    assert [name for name in names if not name.startswith(prefixes)] == []
