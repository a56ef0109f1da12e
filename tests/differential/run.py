"""Small programs that eager and Broach must answer alike, one fork each, so that no program sees what another left behind.

    python tests/differential/run.py [WORD,WORD] [--no-dynamo] [--differences]

prints same, DIFF or CRASH for each program, or WRONG if eager itself raises, with the values of eager, of Broach and of Dynamo
(`backend="eager"`). The programs are those of the modules `programs_<subject>.py` beside this file: `PROGRAMS`, a dict of sources.
A source finds `C` (compiles), `D` (compiles with dynamic=True), `torch`, `np` and `x = torch.ones(2)`, and sets `out`.

Compared are types, dtypes, shapes, requires_grad and values: floats within rounding, NaN equal to NaN. Strides, signs of zeros and exact
floats are compared where a program puts them into `out`.
"""
import argparse
import dataclasses
import enum
import importlib
import json
import linecache
import math
import os
import pathlib
import select
import signal
import sys
import time
import traceback
import warnings

import numpy as np
import torch

FOLDER = pathlib.Path(__file__).resolve().parent
TIME_LIMIT = 90.0  # seconds of one program; eager takes below one
SHOWN = 260  # characters of a value in a report


def subjects():
    """The names of the modules of programs, sorted."""
    return sorted(path.stem.removeprefix("programs_") for path in FOLDER.glob("programs_*.py"))


def programs():
    """(subject, name, source) of each program."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return [(subject, name, source) for subject in subjects()
            for name, source in importlib.import_module(f"programs_{subject}").PROGRAMS.items()]


def compiling(how):
    """C and D of a program run `how`: "eager", "broach" or "dynamo"."""
    if how == "eager":
        return lambda fn, **kw: fn, lambda fn, **kw: fn
    if how == "dynamo":
        return (lambda fn, **kw: torch.compile(fn, backend="eager", **kw),
                lambda fn, **kw: torch.compile(fn, backend="eager", dynamic=True, **kw))
    import broach
    return (lambda fn, **kw: broach.compile(fn, **kw), lambda fn, **kw: broach.compile(fn, dynamic=True, **kw))


def type_name(value):
    kind = type(value)
    return kind.__qualname__ if kind.__module__ in ("builtins", "torch", "__program__") else f"{kind.__module__}.{kind.__qualname__}"


def describe_tensor(value):
    if value.is_nested:
        return ["nested", type_name(value), str(value.dtype), [describe(part) for part in value.unbind()]]
    flags = ["requires_grad"] * value.requires_grad
    if value.is_meta:
        return ["tensor", type_name(value), str(value.dtype), list(value.shape), flags + ["meta"], []]
    if value.layout is not torch.strided:
        flags.append(str(value.layout))
    plain = value.detach()
    if value.is_quantized:
        flags.append("quantized")
        plain = plain.dequantize()
    plain = plain.as_subclass(torch.Tensor) if type(plain) is not torch.Tensor else plain
    plain = plain.to_dense() if plain.layout is not torch.strided else plain
    values = plain.resolve_conj().resolve_neg().reshape(-1).tolist()
    return ["tensor", type_name(value), str(value.dtype), list(value.shape), flags, [describe(v)[1:] for v in values]]


def describe(value):
    """A tree of lists and strings that tells the type and the value, the same in every process."""
    if isinstance(value, torch.Tensor):
        return describe_tensor(value)
    if isinstance(value, np.ndarray):
        return ["array", str(value.dtype), list(value.shape), [describe(v) for v in value.reshape(-1).tolist()]]
    if isinstance(value, np.generic):
        return ["scalar", str(value.dtype), describe(value.item())]
    if isinstance(value, enum.Enum):
        return ["enum", str(value)]
    if isinstance(value, float):
        return [type_name(value), float.__repr__(value)]
    if isinstance(value, complex):
        return [type_name(value), repr(value.real), repr(value.imag)]
    if isinstance(value, dict):
        return ["dict", type_name(value), [[describe(k), describe(v)] for k, v in value.items()]]
    if isinstance(value, (set, frozenset)):
        return ["set", type_name(value), sorted((describe(v) for v in value), key=repr)]
    if isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
        return ["sequence", type_name(value), [describe(v) for v in value]]
    if isinstance(value, type):
        return ["class", value.__qualname__]
    if isinstance(value, BaseException):
        return ["exception", type_name(value), str(value)]
    if dataclasses.is_dataclass(value):
        return ["dataclass", type_name(value), [[f.name, describe(getattr(value, f.name))] for f in dataclasses.fields(value)]]
    return [type_name(value), repr(value)]


def number(text):
    try:
        return float(text)
    except (TypeError, ValueError, OverflowError):
        return None


def alike(a, b, tolerance=2e-5):
    """Whether two descriptions tell the same value, floats within `tolerance`."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(alike(p, q, tolerance) for p, q in zip(a, b))
    if a == b:
        return True
    p, q = number(a), number(b)
    if p is None or q is None or not any(c in f"{a}{b}" for c in ".en"):
        return False
    return math.isclose(p, q, rel_tol=tolerance, abs_tol=1e-6) or (math.isnan(p) and math.isnan(q))


def brief(tree):
    """A description as a person reads it."""
    kind = tree[0]
    if kind == "tensor":
        name = tree[1] + "".join("," + flag for flag in tree[4])
        return f"{name}<{tree[2].removeprefix('torch.')}>{tree[3]}({' '.join('/'.join(v) for v in tree[5])})"
    if kind == "sequence":
        return f"{'' if tree[1] in ('tuple', 'list') else tree[1]}{'[' if tree[1] == 'list' else '('}{', '.join(map(brief, tree[2]))}{']' if tree[1] == 'list' else ')'}"
    if kind in ("dict", "set"):
        parts = (": ".join(map(brief, part)) if kind == "dict" else brief(part) for part in tree[2])
        return f"{'' if tree[1] == kind else tree[1]}{{{', '.join(parts)}}}"
    if kind in ("int", "float", "str", "bool", "NoneType"):
        return tree[1]
    return " ".join(part if isinstance(part, str) else json.dumps(part) for part in tree)


def child(source, how, write):
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    warnings.simplefilter("ignore")
    compiled, dynamic = compiling(how)
    scope = dict(C=compiled, D=dynamic, torch=torch, np=np, x=torch.ones(2), __name__="__program__", __builtins__=__builtins__)
    sys.modules["__program__"] = module = type(sys)("__program__")
    module.__dict__.update(scope)
    scope = module.__dict__
    linecache.cache["<program>"] = (len(source), None, source.splitlines(True), "<program>")
    try:
        exec(compile(source, "<program>", "exec"), scope)
        tree = describe(scope["out"])
    except BaseException as error:
        tree = ["raised", type(error).__name__, " ".join(str(error).split())[:160], traceback.format_exc()[-1500:]]
    data = json.dumps(tree).encode()
    while data:
        data = data[os.write(write, data):]


def value(source, how):
    """The description of what a program sets `out` to, run `how` in a fork; or ["raised", type, ...], ["crash", signal], ["timeout"]."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(read)
            child(source, how, write)
        finally:
            os._exit(0)
    os.close(write)
    text, end = b"", time.monotonic() + TIME_LIMIT
    while select.select([read], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(read, 1 << 16)
        if not part:
            break
        text += part
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(read)
    status = os.waitpid(pid, 0)[1]
    if text:
        return json.loads(text)
    return ["timeout"] if status & 127 == signal.SIGKILL else ["crash", signal.Signals(status & 127).name if status & 127 else f"exit {status >> 8}"]


def same(expected, got):
    """Whether a program's value is eager's; of exceptions the type counts."""
    if expected[0] == "raised" or got[0] == "raised":
        return expected[:2] == got[:2]
    return alike(expected, got)


def verdict(expected, got):
    if expected[0] in ("raised", "crash", "timeout"):
        return "WRONG"
    return "CRASH" if got[0] in ("crash", "timeout") else "same" if same(expected, got) else "DIFF"


def first_difference(a, b, place=""):
    """Where two descriptions differ first, as indices into sequences, and what stands there in each."""
    if a[0] == b[0] == "sequence" and a[1] == b[1] and len(a[2]) == len(b[2]):
        for index, (p, q) in enumerate(zip(a[2], b[2])):
            if not alike(p, q):
                return first_difference(p, q, f"{place}[{index}]")
    return place, a, b


def shown(tree):
    text = ": ".join(tree[:3]) if tree[0] == "raised" else brief(tree)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


IMPORTS = {"": ("torch._dynamo", "torch._inductor", "torch._decomp.decompositions_for_jvp", "torch.nested._internal.nested_tensor"),
           "transformers": tuple(f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "bert", "llama"))}


def prepare(chosen, with_broach=True):
    """Imports what the chosen programs would otherwise import anew in each fork."""
    torch.set_num_threads(1)
    for word, names in IMPORTS.items():
        if any(word in source for _, _, source in chosen):
            for name in names:
                importlib.import_module(name)
    if with_broach:
        importlib.import_module("broach")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("words", nargs="?", default="", help="only programs whose subject/name holds one of these, by commas")
    parser.epilog = "of values that differ, the first parts that do are shown"
    parser.add_argument("--no-dynamo", action="store_true", help="leave Dynamo out")
    parser.add_argument("--differences", action="store_true", help="print, and run under Dynamo, only what is not the same")
    parser.add_argument("--eager", action="store_true", help="run eager alone, twice, and print what raises, changes or takes above a second")
    arguments = parser.parse_args()
    chosen = [p for p in programs() if any(word in f"{p[0]}/{p[1]}" for word in arguments.words.split(","))]
    if arguments.eager:
        prepare(chosen, with_broach=False)
        return check_eager(chosen)
    prepare(chosen)
    counts = {}
    for subject, name, source in chosen:
        eager, got = value(source, "eager"), value(source, "broach")
        word = verdict(eager, got)
        counts[word] = counts.get(word, 0) + 1
        if arguments.differences and word == "same":
            continue
        dynamo = None if arguments.no_dynamo else value(source, "dynamo")
        place, expected, found = first_difference(eager, got) if word == "DIFF" else ("", eager, got)
        line = f"{word:5} {subject}/{name} | eager{place} {shown(expected)} | broach{place} {shown(found)}"
        if dynamo is not None:
            agrees = verdict(eager, dynamo)
            line += f" | dynamo {agrees}" + ("" if agrees == "same" else f" {shown(dynamo)}")
        print(line, flush=True)
    print(", ".join(f"{count} {word}" for word, count in sorted(counts.items())))


def check_eager(chosen):
    for subject, name, source in chosen:
        begin = time.monotonic()
        first = value(source, "eager")
        seconds = time.monotonic() - begin
        second = value(source, "eager")
        if first[0] in ("raised", "crash", "timeout") or first != second or seconds > 1:
            print(f"{subject}/{name} {seconds:.1f} s | {shown(first)} | {shown(second)}", flush=True)
            if first[0] == "raised":
                print("\n".join(first[3].splitlines()[-5:]))
        elif os.environ.get("SHOW"):
            print(f"{subject}/{name} | {shown(first)}")
    print(len(chosen), "programs")


if __name__ == "__main__":
    main()
