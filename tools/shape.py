"""Lengths of functions and classes in formatted C++, read off the indentation that clang-format gives."""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple

LONGEST_FUNCTION, LONGEST_CLASS = 60, 300
# What opens a block that is no function.
OTHER = re.compile(r"(if|for|while|switch|else|do|try|catch|return|case|default|namespace|extern|enum|union|\})\b|\}")
CLASS = re.compile(r"(?:template <.*> )?(class|struct) (?!.*\) \{)")
LAMBDA = re.compile(r"\[[^\]]*\]\s*(\(.*)?\{$|[=,(] ?\{$")


class Block(NamedTuple):
    kind: str
    line: int
    length: int


def blocks(text: str) -> Iterator[Block]:
    """Each function and class, with its first line (from 1) and its length in lines."""
    lines = text.splitlines()
    for i, line in enumerate(lines):
        code = line.split("  //")[0].rstrip()
        bare = code.lstrip()
        if not code.endswith("{") or bare.startswith(("#", "//")):
            continue
        first = _first_line(lines, i)
        opening, indent = lines[first].lstrip(), len(lines[first]) - len(lines[first].lstrip())
        if CLASS.match(opening):
            kind = "class"
        elif OTHER.match(opening) or LAMBDA.search(code) or "(" not in "".join(lines[first : i + 1]):
            continue
        else:
            kind = "function"
        end = next((k for k in range(i + 1, len(lines)) if lines[k].startswith(" " * indent + "}")), i)
        yield Block(kind, first + 1, end - first + 1)


def _first_line(lines: list[str], i: int) -> int:
    """Of a declaration whose body opens on line i: continuation lines are indented by four more, initialisers by four and a colon."""
    first = i
    while first > 0:
        indent = len(lines[first]) - len(lines[first].lstrip())
        above = lines[first - 1]
        above_indent = len(above) - len(above.lstrip())
        ends = above.rstrip().endswith((";", "{", "}", ":")) or not above.strip() or above.lstrip().startswith(("//", "#"))
        if ends or above_indent > indent and not lines[first].lstrip().startswith(":"):
            break
        first -= 1
    return first


def too_long(text: str) -> Iterator[tuple[int, str]]:
    for block in blocks(text):
        most = LONGEST_CLASS if block.kind == "class" else LONGEST_FUNCTION
        if block.length > most:
            yield block.line, f"a {block.kind} of {block.length} lines, more than {most}"
