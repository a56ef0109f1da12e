"""The layering rules hold in this checkout, and the checker sees each way of breaking them."""

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lint = _load(ROOT / "tools" / "lint.py")


def test_this_checkout_keeps_the_rules():
    assert [str(problem) for problem in lint.problems(ROOT)] == []


def test_this_checkout_is_formatted():
    found = lint.format_problems(ROOT)
    if found is None:
        pytest.skip("clang-format is not installed")
    assert [str(problem) for problem in found] == []


def test_what_is_not_formatted_is_found(tmp_path):
    if lint.clang_format(ROOT) is None:
        pytest.skip("clang-format is not installed")
    (tmp_path / "src").mkdir()
    shutil.copy(ROOT / ".clang-format", tmp_path)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "clang-format").symlink_to(lint.clang_format(ROOT))
    (tmp_path / "src" / "a.cpp").write_text("int f( ) { return 1; }\n")
    (tmp_path / "src" / "b.cpp").write_text("int f() { return 1; }\n")
    assert [(problem.path, problem.line) for problem in lint.format_problems(tmp_path)] == [("src/a.cpp", 1)]


def test_the_scripts_are_clean():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", "tools/setup.sh", ".ci/run"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


HEADERS = (
    "include/broach/options.h",
    "src/support/error.h",
    "src/ir/graph.h",
    "src/ops/ops.h",
    "src/trace/trace.h",
    "src/passes/pipeline.h",
    "src/target/target.h",
    "src/target/cpu/lower.h",
    "src/runtime/executable.h",
    "src/compile.h",
    "torch/capture.h",
    "python/module.h",
)


def _tree(root, path, text):
    for header in HEADERS:
        (root / header).parent.mkdir(parents=True, exist_ok=True)
        (root / header).write_text("#pragma once\n")
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    return [finding.text for finding in lint.problems(root)]


@pytest.mark.parametrize(
    "path, include, expected",
    [
        ("src/ir/a.cpp", "<torch/torch.h>", "torch or Python"),
        ("src/ir/a.cpp", "<ATen/ATen.h>", "torch or Python"),
        ("include/broach/a.h", "<Python.h>", "a header of Python"),
        ("src/runtime/a.cpp", "<Python.h>", "torch or Python"),
        ("src/runtime/a.cpp", "<pybind11/pybind11.h>", "torch or Python"),
        ("src/support/a.cpp", '"ir/graph.h"', "src/support/ comes before src/ir/graph.h"),
        ("src/support/a.cpp", '"src/ir/graph.h"', "src/support/ comes before src/ir/graph.h"),
        ("src/support/a.cpp", '"../ir/graph.h"', "src/support/ comes before src/ir/graph.h"),
        ("src/ops/a.cpp", '"passes/pipeline.h"', "src/ops/ comes before src/passes/pipeline.h"),
        ("src/passes/a.cpp", '"target/target.h"', "src/passes/ comes before src/target/target.h"),
        ("src/runtime/a.cpp", '"compile.h"', "src/runtime/ comes before src/compile.h"),
        ("src/compile.cpp", '"torch/capture.h"', "src/ includes torch/capture.h"),
        ("src/compile.cpp", '"python/module.h"', "src/ includes python/module.h"),
        ("torch/a.cpp", '"python/module.h"', "torch/ includes python/module.h"),
        ("include/broach/a.h", '"support/error.h"', "include/ includes src/support/error.h"),
        ("src/compile.cpp", '"target/cpu/lower.h"', "private to src/target/cpu/"),
        ("src/target/cuda/a.cpp", '"target/cpu/lower.h"', "private to src/target/cpu/"),
        ("src/runtime/a.cpp", "<llvm/IR/Module.h>", "belongs to src/target/cpu/ alone"),
        ("torch/a.cpp", "<oneapi/dnnl/dnnl.hpp>", "belongs to src/target/cpu/ alone"),
        ("src/target/cpu/a.cpp", "<cuda_runtime.h>", "belongs to src/target/cuda/ alone"),
        ("src/misc/a.cpp", '"ir/graph.h"', "does not know"),
    ],
)
def test_a_forbidden_include_is_found(tmp_path, path, include, expected):
    text = f"#pragma once\n#include {include}\n"
    found = _tree(tmp_path, path, text)
    assert len(found) == 1 and expected in found[0], found


@pytest.mark.parametrize(
    "path, include",
    [
        ("src/trace/a.cpp", '"ir/graph.h"'),
        ("src/trace/a.cpp", '"ops/ops.h"'),
        ("src/ops/a.cpp", '"trace/trace.h"'),
        ("src/ir/a.cpp", '"broach/options.h"'),
        ("src/target/cpu/a.cpp", '"lower.h"'),
        ("src/target/cpu/a.cpp", '"target/target.h"'),
        ("src/target/cpu/a.cpp", "<llvm/IR/Module.h>"),
        ("src/target/cpu/a.cpp", "<oneapi/dnnl/dnnl.hpp>"),
        ("src/target/cuda/a.cpp", "<cuda.h>"),
        ("src/compile.cpp", '"runtime/executable.h"'),
        ("torch/a.cpp", "<ATen/cuda/CUDAContext.h>"),
        ("torch/a.cpp", "<torch/torch.h>"),
        ("torch/a.cpp", '"compile.h"'),
        ("python/a.cpp", '"torch/capture.h"'),
        ("src/ir/a.cpp", "<vector>"),
    ],
)
def test_an_allowed_include_is_not_found(tmp_path, path, include):
    assert _tree(tmp_path, path, f"#include {include}\n") == []


def test_headers_have_pragma_once_and_open_no_namespace(tmp_path):
    assert _tree(tmp_path, "src/ir/a.h", "int x;\n") == ["a header needs #pragma once"]
    assert _tree(tmp_path, "src/ir/a.h", "#pragma once\nusing namespace std;\n") == ["`using namespace` in a header"]
    assert _tree(tmp_path, "src/ir/a.h", "#pragma once\n// using namespace std;\n/*\n#include <Python.h>\n*/\n") == []


def test_long_files_classes_and_functions_are_found(tmp_path):
    assert _tree(tmp_path, "src/ir/a.cpp", "\n" * lint.LONGEST) == []
    assert _tree(tmp_path, "src/ir/a.cpp", "\n" * (lint.LONGEST + 1)) == ["801 lines, more than 800"]
    function = "int f(int a,\n      int b) {\n" + "  ++a;\n" * 57 + "}\n"
    assert _tree(tmp_path, "src/ir/a.cpp", function) == []
    assert _tree(tmp_path, "src/ir/a.cpp", function.replace("}", "  return a;\n}")) == ["a function of 61 lines, more than 60"]
    method = "class A {\n  A(int a)\n      : a_(a), b_(a) {\n" + "    ++a;\n" * 58 + "  }\n};\n"
    assert _tree(tmp_path, "src/ir/a.cpp", method) == ["a function of 61 lines, more than 60"]
    assert _tree(tmp_path, "src/ir/a.cpp", "struct A {\n" + "  int a;\n" * 299 + "};\n") == ["a class of 301 lines, more than 300"]
    assert _tree(tmp_path, "src/ir/a.cpp", "namespace a {\n" + "int a;\n" * 299 + "}\n") == []


def test_the_core_includes_no_public_header_of_torch(tmp_path):
    public = tmp_path / "include" / "broach" / "broach.h"
    public.parent.mkdir(parents=True)
    public.write_text("#pragma once\n#include <ATen/core/Tensor.h>\n")
    source = tmp_path / "src" / "ir" / "a.cpp"
    source.parent.mkdir(parents=True)
    source.write_text('#include "broach/broach.h"\n')
    found = [finding.text for finding in lint.problems(tmp_path)]
    assert found == ["the core includes include/broach/broach.h, which includes headers of torch"]
