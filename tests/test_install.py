"""What `cmake --install` gives to a C++ program: a versioned library that names no folder of the machine it was built on."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).resolve().parent.parent / "build"
LIBRARY = BUILD / "python" / "broach_ext" / "libbroach.so"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("prefix")
    script = BUILD / "cmake_install.cmake"
    done = subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return prefix


@pytest.mark.skipif(not LIBRARY.exists() or shutil.which("readelf") is None or shutil.which("cmake") is None, reason="needs a build, cmake and binutils")
def test_installed_library(installed: Path):
    (library,) = [p for p in installed.rglob("libbroach.so*") if not p.is_symlink()]
    dynamic = subprocess.run(["readelf", "-d", str(library)], check=True, capture_output=True, text=True).stdout
    soname = next(line for line in dynamic.splitlines() if "SONAME" in line)
    assert "libbroach.so.0.1]" in soname
    paths = [line for line in dynamic.splitlines() if "RUNPATH" in line or "RPATH" in line]
    assert all("[$ORIGIN]" in line for line in paths), paths
    sections = subprocess.run(["readelf", "-S", "-W", str(library)], check=True, capture_output=True, text=True).stdout
    assert ".symtab" not in sections
    assert (library.parent / "libbroach.so").exists() and (library.parent / "libbroach.so.0.1").exists()
    assert list(installed.rglob("LICENSE"))
    assert list(installed.rglob("broach/values.h")) and list(installed.rglob("BroachConfig.cmake"))
