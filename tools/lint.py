"""Checks the rules that keep Broach layered and short: which folder may include what, what a header may say, how long files,
classes and functions may be, and that C++ lies as .clang-format says.

    python tools/lint.py [checkout]

A broken rule is a problem and fails the run. Where clang-format is not installed, a remark says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterator, NamedTuple

# A folder of src/ may include folders of its own rank and of ranks before it. trace and ops share a rank: an op family takes
# calls of the trace, and making the trace functional takes op families. "" is src/ itself: compile.cpp and its header.
ORDER = [["support"], ["ir"], ["trace", "ops"], ["passes"], ["schedule"], ["target"], ["runtime"], [""]]
RANK = {folder: rank for rank, folders in enumerate(ORDER) for folder in folders}
# What each top folder may include of this repository. Public headers stand alone, since they are installed.
MAY_INCLUDE = {
    "include": {"include"},
    "src": {"include", "src"},
    "torch": {"include", "src", "torch"},
    "python": {"include", "src", "torch", "python"},
}
FRAMEWORK = re.compile(r"(torch|ATen|c10|caffe2|pybind11)/|Python\.h$")
PYTHON = re.compile(r"pybind11/|Python\.h$|torch/(extension\.h|csrc/utils/pybind\.h)")
# Headers of what a target is made of, and the folder that alone may include them.
VENDORS = {
    re.compile(r"llvm(-c)?/"): "src/target/cpu",
    re.compile(r"(oneapi/)?dnnl|onednn", re.IGNORECASE): "src/target/cpu",
    re.compile(r"(cuda|cublas|cudnn|nvrtc|cupti|driver_types)[^/]*(/|\.h)", re.IGNORECASE): "src/target/cuda",
}
LONGEST = 800
EVERYWHERE = (*MAY_INCLUDE, "tests", "bench", "examples", "tools")
FORMATTED = {".h", ".cpp"}
SOURCES = {".h", ".hpp", ".cpp", ".cc", ".c", ".cu", ".def", ".inc"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


sys.path.insert(0, str(Path(__file__).resolve().parent))
import shape  # noqa: E402  (beside this file, wherever it is run from)


class Finding(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def problems(root: Path) -> list[Finding]:
    found = [finding for path in _files(root, SOURCES) for finding in _problems_of(root, path)]
    for path in _files(root, SOURCES | {".py", ".pyi"}, EVERYWHERE):
        lines = len(path.read_text(errors="replace").splitlines())
        if lines > LONGEST:
            found.append(Finding(_name(root, path), lines, f"{lines} lines, more than {LONGEST}"))
    for path in _files(root, FORMATTED):
        found += [Finding(_name(root, path), line, text) for line, text in shape.too_long(path.read_text(errors="replace"))]
    return found


def format_problems(root: Path) -> list[Finding] | None:
    """Where C++ does not lie as .clang-format says; None where there is no clang-format."""
    program = clang_format(root)
    files = _files(root, FORMATTED, EVERYWHERE)
    if program is None or not files:
        return None
    command = [program, "--dry-run", "-Werror", "--ferror-limit=1", *map(str, files)]
    output = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False).stderr
    places = re.findall(r"^(.*?):(\d+):\d+: error: code should be clang-formatted", output, re.MULTILINE)
    return [Finding(_name(root, (root / path).resolve()), int(line), "not formatted; `make format` does it") for path, line in places]


def clang_format(root: Path) -> str | None:
    own = root / ".venv" / "bin" / "clang-format"
    return str(own) if own.exists() else shutil.which("clang-format")


def format_all(root: Path) -> None:
    program = clang_format(root)
    if program is None:
        sys.exit("clang-format is not installed; `make setup` brings it")
    subprocess.run([program, "-i", *map(str, _files(root, FORMATTED, EVERYWHERE))], cwd=root, check=True)


def _files(root: Path, suffixes: set[str], folders: tuple[str, ...] = tuple(MAY_INCLUDE)) -> list[Path]:
    return sorted(
        path
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.suffix in suffixes and path.is_file() and "build" not in path.relative_to(root).parts
    )


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()


def _problems_of(root: Path, path: Path) -> Iterator[Finding]:
    name = _name(root, path)
    lines = _without_comments(path.read_text(errors="replace")).splitlines()
    if path.suffix in {".h", ".hpp"}:
        if not any(re.match(r"\s*#\s*pragma\s+once\b", line) for line in lines):
            yield Finding(name, 1, "a header needs #pragma once")
        for number, line in enumerate(lines, 1):
            if re.match(r"\s*using\s+namespace\b", line):
                yield Finding(name, number, "`using namespace` in a header")
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if match:
            for text in _problems_of_include(root, path, match[2]):
                yield Finding(name, number, text)


def _without_comments(text: str) -> str:
    """Comments become blank; a string that holds a comment's opening is left alone."""

    def blank(match: re.Match) -> str:
        return match[0] if match[0][0] in "\"'" else re.sub(r"[^\n]", " ", match[0])

    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', blank, text, flags=re.DOTALL)


def _problems_of_include(root: Path, path: Path, included: str) -> Iterator[str]:
    name = _name(root, path)
    top = name.split("/")[0]
    inside = _resolve(root, path, included)
    if inside is None:
        if top == "src" and FRAMEWORK.match(included):
            yield f"the core includes <{included}>, a header of torch or Python"
        if top == "include" and PYTHON.match(included):
            yield f"a public header includes <{included}>, a header of Python"
        for vendor, home in VENDORS.items():
            if vendor.match(included) and not name.startswith(home + "/"):
                yield f"<{included}> belongs to {home}/ alone"
        return
    other = inside.split("/")[0]
    if top == "src" and other == "include" and _speaks_of_torch(root / inside):
        yield f"the core includes {inside}, which includes headers of torch"
    if other not in MAY_INCLUDE[top]:
        yield f"{top}/ includes {inside}"
    elif other == "src":
        yield from _problems_of_order(name, inside)


def _problems_of_order(name: str, inside: str) -> Iterator[str]:
    here, there = _folder(name), _folder(inside)
    if there not in RANK or (here is not None and here not in RANK):
        yield f"{inside if there not in RANK else name} lies in a folder of src/ that tools/lint.py does not know"
    elif here is not None and RANK[there] > RANK[here]:
        yield f"src/{here}/ comes before {inside}"
    home = _target(inside)
    if home is not None and here is not None and _target(name) != home:
        yield f"{inside} is private to src/target/{home}/"


def _speaks_of_torch(header: Path) -> bool:
    """Public headers that programs of libtorch include; the core keeps to the others."""
    return any((match := INCLUDE.match(line)) and FRAMEWORK.match(match[2]) for line in header.read_text().splitlines())


def _folder(name: str) -> str | None:
    """The folder of src/ that a file lies in, "" for src/ itself, None outside src/."""
    parts = name.split("/")
    return None if parts[0] != "src" else parts[1] if len(parts) > 2 else ""


def _target(name: str) -> str | None:
    parts = name.split("/")
    return parts[2] if parts[:2] == ["src", "target"] and len(parts) > 3 else None


def _resolve(root: Path, path: Path, included: str) -> str | None:
    """The file of this repository that an include names, tried as the compiler's search path does."""
    for base in (path.parent, root / "src", root / "include", root):
        candidate = (base / included).resolve()
        if candidate.is_file() and candidate.is_relative_to(root.resolve()):
            name = candidate.relative_to(root.resolve()).as_posix()
            return name if name.split("/")[0] in MAY_INCLUDE else None
    return None


def main() -> int:
    arguments = [a for a in sys.argv[1:] if a != "--format"]
    root = Path(arguments[0]).resolve() if arguments else Path(__file__).resolve().parent.parent
    if "--format" in sys.argv:
        format_all(root)
    found, unformatted = problems(root), format_problems(root)
    if unformatted is None:
        print("clang-format is not installed, so formatting was not checked; `make setup` brings it")
    found += unformatted or []
    for finding in found:
        print(finding)
    print(f"{len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
