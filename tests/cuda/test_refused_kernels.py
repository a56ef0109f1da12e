"""A kernel that NVRTC does not take names itself in a warning, and what it computes is computed another way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    library = tmp_path_factory.mktemp("nvrtc") / "refusing.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, HERE / "refusing_nvrtc.c", "-ldl"], check=True)
    return library


@pytest.fixture
def run(compiler):
    def of(program: str, refused: str):
        given = os.environ.get("BROACH_NVRTC_LIBRARY", "libnvrtc.so.13")
        changed = {"BROACH_NVRTC_LIBRARY": str(compiler), "BROACH_TEST_NVRTC": given, "BROACH_TEST_REFUSED": refused, "BROACH_VERIFY": "0"}
        command = [sys.executable, HERE / "refused_kernels.py", program]
        done = subprocess.run(command, env={**os.environ, **changed}, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, done.stderr

    return of


def test_nothing_is_refused(run):
    said, warned = run("forward", "no_such_word")
    assert "a bug in Broach" not in warned and "externs []" in said, warned


def test_a_kernel_of_several_operations(run):
    """Alone, each of them builds."""
    said, warned = run("forward", "op_erfinv( op_sin(")
    assert "a bug in Broach: a kernel: " in warned and "refused" in warned and "= erfinv(" in warned, warned
    assert "externs []" in said and "compiled calls 0" not in said, said


def test_a_kernel_of_one_operation(run):
    said, warned = run("forward", "op_erfinv(")
    assert warned.count("a bug in Broach: a kernel: ") == 2 and "are extern calls" in warned, warned
    assert "aten::erfinv" in said and "compiled calls 0" not in said, said


def test_a_kernel_of_gradients(run):
    said, warned = run("backward", "op_sinh(")
    assert "a bug in Broach: the compilation of gradients: " in warned and "= sinh(" in warned, warned
    assert "compiled calls 0" not in said, said
