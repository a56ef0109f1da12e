"""What a captured run does without calling a function that the interpreter tells about: bytecode that stores to, or reads,
attributes written in C; and numpy's random numbers."""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import itertools
import signal
import sys
import threading
import traceback
import types
import weakref
from typing import Any, Callable, Iterable, NamedTuple, TypeVar

import torch

from ._numbers import Float, Int, length_of

# Attributes of tensors whose change is invisible to the recording of operations.
STORED = frozenset({"data", "grad_dtype", "real", "imag", "names", "_backward_hooks", "_grad"})
# Attributes whose value is a tensor that can be replaced without its owner's changing, or that says how a tensor came about.
READ = frozenset({
    "grad_dtype", "grad_fn", "_version", "_base", "output_nr", "retains_grad", "_backward_hooks", "_post_accumulate_grad_hooks",
    "__cuda_array_interface__", "__array_interface__",
})  # fmt: skip
# What takes an attribute's name as a text.
BY_NAME = frozenset({"getattr", "setattr", "delattr", "hasattr", "attrgetter"})

# How bytecode compares; what it does with a value without telling numbers apart; what says nothing of the values.
COMPARED = frozenset({"IS_OP", "COMPARE_OP", "CONTAINS_OP"})
HARMLESS = frozenset({"LOAD_ATTR", "LOAD_METHOD", "FORMAT_VALUE", "FORMAT_SIMPLE", "CONVERT_VALUE", "POP_TOP"})
NO_STEPS = frozenset({"PRECALL", "PUSH_NULL", "CACHE", "EXTENDED_ARG", "NOP"})
NO_NUMBERS = frozenset({"list", "tuple", "dict", "str", "set", "frozenset", "bytes", "slice", "range", "torch", "nn"})


Answer = TypeVar("Answer")


def _once(find: Callable[[types.CodeType], Answer]) -> Callable[[types.CodeType], Answer]:
    """Remembers the answer for each code object, as long as that lives."""
    seen: weakref.WeakKeyDictionary[types.CodeType, Answer] = weakref.WeakKeyDictionary()

    @functools.wraps(find)
    def found(code: types.CodeType) -> Answer:
        answer = seen.get(code)
        if answer is None:
            answer = seen[code] = find(code)
        return answer

    return found


def _works_invisibly(code: types.CodeType, read: frozenset[str]) -> str:
    names = STORED | read
    if by := BY_NAME.intersection(code.co_names):
        if named := names.intersection(k for k in code.co_consts if isinstance(k, str)):
            return f"uses an attribute .{min(named)} by {min(by)} in {getattr(code, 'co_qualname', code.co_name)}"
    if not names.intersection(code.co_names):
        return ""
    line = code.co_firstlineno
    for step in dis.get_instructions(code):
        if step.starts_line:
            line = step.line_number if hasattr(step, "line_number") else step.starts_line
        if step.opname in ("STORE_ATTR", "DELETE_ATTR") and step.argval in STORED:
            return f"writes an attribute .{step.argval} at {code.co_filename}:{line}"
        if step.opname == "LOAD_ATTR" and step.argval in read and not _is_called(step):
            return f"reads an attribute .{step.argval} at {code.co_filename}:{line}"
    return ""


def _is_called(step: dis.Instruction) -> bool:
    """From Python 3.12 on a method is loaded by the same instruction, with a bit set."""
    return sys.version_info >= (3, 12) and bool(step.arg & 1)


@_once
def invisible(code: types.CodeType) -> str:
    """Why a run of this code cannot be replayed from its operations; empty if it can."""
    return _works_invisibly(code, READ)


@_once
def invisible_in_torch(code: types.CodeType) -> str:
    """The same for torch's own code, which reads the others where that changes nothing."""
    if code.co_filename.endswith("/torch/utils/weak.py"):  # whose .data is a dict
        return ""
    if code.co_name == "register_hook" and code.co_filename.endswith("/torch/_tensor.py"):  # which the watch judges by its tensor
        return ""
    return _works_invisibly(code, frozenset())


_OF_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR"})


@_once
def names_beside_attributes(code: types.CodeType) -> tuple[str, ...]:
    """Those of the code's names that stand for something else than attributes of objects, or for that too."""
    used = {step.argval for step in dis.get_instructions(code) if step.opname not in _OF_ATTRIBUTES and isinstance(step.argval, str)}
    return tuple(name for name in code.co_names if name in used)


# Of what torch keeps on the context of a custom Function, nothing changes by being read.
OF_CONTEXT = frozenset({"saved_tensors", "saved_variables", "saved_for_forward", "needs_input_grad", "materialize_grads"})
CHANGING = frozenset({
    "append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove", "clear", "update", "add", "discard", "setdefault",
    "next", "send",
})  # fmt: skip


@_once
def uses_context_up(code: types.CodeType) -> str:
    """Where the backward of a custom Function changes its context, or may change what that holds: each call has another, which a run
    beside the program's own would find used; empty if it cannot."""
    if code.co_name not in ("backward", "vjp") or not code.co_argcount:
        return ""
    context, steps = code.co_varnames[0], list(dis.get_instructions(code))

    def is_context(step: dis.Instruction) -> bool:
        loaded = step.argval[-1] if isinstance(step.argval, tuple) else step.argval
        return step.opname.startswith("LOAD_FAST") and loaded == context

    where = f"in {getattr(code, 'co_qualname', code.co_name)}"
    if any(step.opname in ("STORE_ATTR", "DELETE_ATTR") for step in steps):
        return f"writes an attribute {where}"
    read = {then.argval for step, then in zip(steps, steps[1:]) if is_context(step) and then.opname in ("LOAD_ATTR", "LOAD_METHOD")}
    changes = CHANGING.intersection(code.co_names) or any(step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") for step in steps)
    return f"may change what a context holds {where}" if read - OF_CONTEXT and changes else ""


@_once
def enters_block(code: types.CodeType) -> str:
    """Whether the code has a `with` statement, by which it may hold a lock; empty if not."""
    enters = any(step.opname in ("BEFORE_WITH", "SETUP_WITH", "LOAD_SPECIAL") for step in dis.get_instructions(code))
    return f"enters a block in {getattr(code, 'co_qualname', code.co_name)}" if enters else ""


@_once
def asks_for_type_of_number(code: types.CodeType) -> str:
    """Where the code may tell a number from what stands for it by asking `type`; empty if it cannot.

    What `type` gives may be compared with classes that are no numbers', have its attributes read (the same), be printed or be
    called (which stand-ins refuse with an error). Anything else that is done with it counts, a search in a dict for example.
    """
    symbols = SYMBOLS.keys() & set(code.co_names)
    if ("type" not in code.co_names and not symbols) or _asks_for_an_order(code):
        return ""
    steps = list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval == "type" and not _tells_nothing(steps, i):
            return f"asks for a type that may be a number's in {getattr(code, 'co_qualname', code.co_name)}"
        if step.argval in symbols and not _is_beside(steps, i, SYMBOLS[step.argval]):
            return f"uses torch.{step.argval} in {getattr(code, 'co_qualname', code.co_name)}"
    return ""


# torch's classes, and what a number of them is of as well.
SYMBOLS = {"SymInt": "int", "SymFloat": "float", "SymBool": "bool"}


def _is_beside(steps: list[dis.Instruction], at: int, kind: str) -> bool:
    """Whether they are members of one tuple of classes: `isinstance` says the same of a number and of what stands for it."""
    last = next((i for i in range(at, len(steps)) if steps[i].opname == "BUILD_TUPLE"), None)
    loads = ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_NAME", *NO_STEPS)
    if last is None or any(s.opname not in loads for s in steps[at:last]):
        return False
    first = last - next((n for n, s in enumerate(reversed(steps[:last])) if s.opname not in loads), last)
    return any(s.argval == kind for s in steps[first:last])


class _Load(NamedTuple):
    """What one instruction puts where a comparison finds it."""

    opname: str
    argval: Any
    is_jump_target: bool


def _loads(code: types.CodeType) -> list[_Load]:
    """The code's instructions; from Python 3.13 on one loads two variables."""
    out = []
    for step in dis.get_instructions(code):
        if step.opname in NO_STEPS:
            continue
        names = step.argval if isinstance(step.argval, tuple) and step.opname.startswith("LOAD_FAST") else (step.argval,)
        out += [_Load(step.opname, name, step.is_jump_target) for name in names]
    return out


@_once
def identities(code: types.CodeType) -> list[tuple[str, str]]:
    """The operands of each `is` that may be numbers: names that stay what they are as the code begins, or empty."""
    if {"is_", "is_not"}.intersection(code.co_names):  # of the module operator
        return [("", "")]
    steps, found = _loads(code), []
    stored = {s.argval for s in steps if s.opname.startswith(("STORE_", "DELETE_"))}
    parameters = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - stored
    for i, step in enumerate(steps):
        if step.opname != "IS_OP":
            continue
        right, left = steps[i - 1], steps[i - 2]
        if step.is_jump_target or right.is_jump_target:  # an operand comes by way of several
            found.append(("", ""))
        elif not _names_no_number(steps, i - 1) and not (_is_load(right) and _names_no_number(steps, i - 2)):
            found.append((_name_of(steps, i - 1, parameters), _name_of(steps, i - 2, parameters) if _is_load(right) else ""))
    return found


def _name_of(steps: list[_Load], at: int, parameters: set[str]) -> str:
    """A parameter, a global, or what a global has by a name."""
    step = steps[at]
    if step.opname == "LOAD_ATTR" and steps[at - 1].opname.startswith("LOAD_GLOBAL"):
        return f"{steps[at - 1].argval}.{step.argval}"
    is_fixed = step.opname.startswith("LOAD_GLOBAL") or (step.opname.startswith("LOAD_FAST") and step.argval in parameters)
    return step.argval if is_fixed else ""


def compares_numbers(code: types.CodeType, values: dict[str, Any], names: dict[str, Any]) -> str:
    """Where `is` may compare numbers, of which each that stands for one is another object; empty if it cannot. `values`: of variables as
    the code begins; `names`: the module's."""

    def is_other(name: str) -> bool:
        first, _, attribute = name.partition(".")
        value = values.get(first, names.get(first, getattr(builtins, first, 0)))
        if attribute:
            value = vars(value).get(attribute, 0) if type(value) is types.ModuleType else 0
        return name != "" and type(value) not in _NUMBERS

    if all(is_other(left) or is_other(right) for left, right in identities(code)):
        return ""
    return f"compares with `is` what may be a number in {getattr(code, 'co_qualname', code.co_name)}"


_NUMBERS = (int, float, Int, Float, torch.SymInt, torch.SymFloat)
_OF_TENSORS = frozenset({"dtype", "device", "layout", "shape"})


def _is_load(step: _Load) -> bool:
    return step.opname.startswith(("LOAD_FAST", "LOAD_GLOBAL", "LOAD_CONST", "LOAD_SMALL_INT", "LOAD_DEREF", "LOAD_NAME"))


def _names_no_number(steps: list[_Load], at: int) -> bool:
    """Whether what is loaded there is a constant that is no number, a class (by the custom that these are capitalised), its member or
    attribute, or one of torch's."""
    step = steps[at]
    if step.opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT")):
        return type(step.argval) not in (int, float)
    name = step.argval if isinstance(step.argval, str) else ""
    if step.opname == "LOAD_ATTR":
        owner = steps[at - 1].argval
        return owner == "torch" or name in _OF_TENSORS or _is_class(name) or (_is_load(steps[at - 1]) and _is_class(owner))
    return _is_load(step) and (_is_class(name) or name in ("self", "cls"))


def _is_class(name: object) -> bool:
    return isinstance(name, str) and (isinstance(getattr(builtins, name, None), type) or (name[:1].isupper() and not name.isupper()))


def _asks_for_an_order(code: types.CodeType) -> bool:
    """transformers' guess of a framework from a type's name, as it was read: it orders the tests that `is_tensor` makes, all of which
    fail for a number whatever their order. Every output of its models is asked."""
    is_it = code.co_name == "infer_framework_from_repr" and code.co_filename.endswith("transformers/utils/generic.py")
    return is_it and code.co_names == ("str", "type", "startswith")


def _tells_nothing(steps: list[dis.Instruction], asked: int) -> bool:
    """Of the `type` that is loaded there."""
    before = [step for step in steps[:asked] if step.opname not in NO_STEPS]
    after = [step for step in steps[asked + 1 :] if step.opname not in NO_STEPS]
    if after[0].opname.startswith("CALL"):  # the last argument of a call
        return any(step.argval in ("isinstance", "issubclass") for step in before[-8:])
    argument = _leading(after, "LOAD_", "BINARY_SUBSCR")
    if not after[argument].opname.startswith("CALL") or after[argument].arg != 1:
        return False
    call = steps.index(after[argument])
    if "PUSH_NULL" in (steps[asked - 1].opname, steps[call + 1].opname):  # it is called itself, as type(x)(...)
        return True
    if argument == 1 and after[0].argval in ("self", "cls"):
        return True
    result, then = after[argument + 1], after[argument + 1 :]
    if result.opname in HARMLESS:
        return True
    if result.opname in COMPARED:
        return _is_no_number(before[-1])
    others = _leading(then, "LOAD_", "BUILD_")
    return then[others].opname in COMPARED and all(_is_no_number(x) for x in then[:others] if x.opname.startswith("LOAD_"))


def _leading(steps: list[dis.Instruction], *kinds: str) -> int:
    """How many of the first steps are of these kinds."""
    return next((i for i, step in enumerate(steps) if not step.opname.startswith(kinds)), len(steps) - 1)


def _is_no_number(step: dis.Instruction) -> bool:
    """Whether the loaded value is a class that no number has: by the custom that classes, beside Python's own, are capitalised."""
    name = step.argval if isinstance(step.argval, str) else ""
    return step.opname == "LOAD_CONST" or (step.opname.startswith("LOAD_") and (name[:1].isupper() or name in NO_NUMBERS))


_IMPORT = dis.opmap["IMPORT_NAME"]
_NO_IMPORTS: tuple[str, ...] = ()


@_once
def _imports(code: types.CodeType) -> list[tuple[int, str, tuple[str, ...]]]:
    """Level, name and what is taken of it, for each import statement."""
    found = []
    steps = list(dis.get_instructions(code))
    for i, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            constants = [s.argval for s in steps[max(0, i - 4) : i] if s.opname.startswith("LOAD_CONST") or s.opname.startswith("LOAD_SMALL_INT")]
            level, names = constants[-2], constants[-1]
            found.append((level, step.argval, tuple(names or ())))
    return found


def imported(code: types.CodeType, module: dict) -> tuple[str, ...]:
    """The full names of the modules that import statements of the code look up in `sys.modules`, in a module with these globals."""
    if _IMPORT not in code.co_code[::2]:
        return _NO_IMPORTS
    names: dict[str, None] = {}
    for level, name, taken in _imports(code):
        if level:
            package = module.get("__package__") or module.get("__name__", "").rpartition(".")[0]
            base = package.rsplit(".", level - 1)[0]
            name = f"{base}.{name}" if name else base
        parts = name.split(".")
        names.update({".".join(parts[: k + 1]): None for k in range(len(parts))})
        names.update({f"{name}.{each}": None for each in taken})
    return tuple(sys.intern(name) for name in names)


class NumpyRandomState:
    """Where numpy's own generator stands."""

    def __init__(self) -> None:
        self.state = sys.modules["numpy.random"].get_state(legacy=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumpyRandomState) and self._key() == other._key()

    def _key(self) -> tuple:
        words = {k: v.tobytes() if hasattr(v, "tobytes") else v for k, v in self.state["state"].items()}
        return words, self.state["has_gauss"], self.state["gauss"]

    def put_back(self) -> None:
        sys.modules["numpy.random"].set_state(self.state)


def numpy_random_state() -> NumpyRandomState | None:
    """None if nobody has imported it."""
    return NumpyRandomState() if "numpy.random" in sys.modules else None


# By which code may come upon what an object or a namespace holds without naming it.
_ROUNDABOUT = frozenset({
    "__dict__", "vars", "asdict", "astuple", "deepcopy", "__reduce_ex__", "__getstate__", "get_referrers", "get_referents",
})  # fmt: skip
_ROUNDABOUT_OF_USERS = _ROUNDABOUT | {
    "getattr", "attrgetter", "itemgetter", "globals", "locals", "eval", "exec", "dir", "copy", "pickle", "__closure__", "cell_contents",
    "__getattribute__", "__globals__",
}  # fmt: skip
_MAKES_CLOSURE = frozenset({"LOAD_CLOSURE", "MAKE_CELL"})
_BY_KEY = frozenset({"BINARY_SUBSCR", "COPY", "STORE_SUBSCR", "DELETE_SUBSCR"})


def reads_list(code: types.CodeType, is_users: bool, names: tuple[str, ...]) -> bool:
    """Whether code may do anything else with a list than append to it. `names`: the variable or attribute that is the list; or one that is
    a dict, and the list's key."""
    if (_ROUNDABOUT_OF_USERS if is_users else _ROUNDABOUT).intersection(code.co_names):
        return True
    name = names[0]
    if name not in {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars, *_texts(code.co_consts)}:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in NO_STEPS]

    def is_appended(at: int) -> bool:
        return at < len(steps) and steps[at].opname in ("LOAD_METHOD", "LOAD_ATTR") and steps[at].argval in ("append", "extend")

    def is_told(at: int) -> bool:  # what the dict is asked for by a key
        key, use = steps[at + 1 : at + 3] if len(steps) > at + 2 else (None, None)
        if key is None or use is None or key.opname != "LOAD_CONST" or use.opname not in _BY_KEY:
            return False
        return key.argval != names[1] or (use.opname == "BINARY_SUBSCR" and is_appended(at + 3))

    for at, step in enumerate(steps):
        if name not in _texts([step.argval]) or step.opname in _MAKES_CLOSURE:
            continue
        fine = step.opname.startswith("LOAD_") and step.opname != "LOAD_CONST" and step.argval == name
        if not fine or not (is_appended(at + 1) if len(names) == 1 else is_told(at)):
            return True
    return False


def _texts(values: Iterable[object]) -> set[str]:
    """Those among the values, and in tuples of them."""
    parts = [part for v in values for part in (v if isinstance(v, (tuple, frozenset)) else (v,))]
    return {part for part in parts if isinstance(part, str)}


# Of Python's own, what gives nothing but what follows from its arguments.
_PLAIN_BUILTINS = frozenset("bool enumerate float int isinstance len list max min range reversed slice sum tuple zip".split())
_OPERATORS = frozenset({"torch._ops", "torch._library.custom_ops"})
_ASK_FOR_LAYOUT = frozenset("stride is_contiguous storage_offset dim_order data_ptr untyped_storage".split())


def reads_only_arguments(function: object) -> bool:
    """Whether a function of torch's that calls an operator's registered gradient leads to code which names only functions of torch, and its
    own likewise; code that keeps, reads or writes anything else, or asks how tensors lie in memory, does not."""
    seen: set[int] = set()

    def is_known(value: object) -> bool:
        if isinstance(value, types.FunctionType):
            return value is length_of or is_plain(value)
        if isinstance(value, (types.BuiltinFunctionType, type)) and value.__module__ == "builtins":
            return value.__name__ in _PLAIN_BUILTINS
        named = isinstance(value, (types.ModuleType, types.BuiltinFunctionType, type))
        home = (value.__name__ if isinstance(value, types.ModuleType) else value.__module__) if named else type(value).__module__
        return (home or "").split(".")[0] == "torch" if named else home in _OPERATORS or isinstance(value, torch.dtype)

    def is_plain(f: types.FunctionType) -> bool:
        if id(f) in seen:
            return True
        seen.add(id(f))
        kept = [cell.cell_contents for cell in f.__closure__ or ()]
        if (f.__module__ or "").split(".")[0] == "torch":  # it keeps the operator, and what was registered for it
            registered = [getattr(x, "_backward_fn", None) for x in kept]
            return all(is_plain(x) for x in [*kept, *registered] if isinstance(x, types.FunctionType))
        code, builtins = f.__code__, f.__builtins__
        nested = any(isinstance(k, types.CodeType) for k in code.co_consts)
        found = [f.__globals__.get(n, builtins.get(n)) for n in code.co_names if n in f.__globals__ or n in builtins]
        return not nested and not _ASK_FOR_LAYOUT.intersection(code.co_names) and all(map(is_known, [*found, *kept]))

    return isinstance(function, types.FunctionType) and is_plain(function)


@_once
def sees_handled(code: types.CodeType) -> str:
    """Whether it may go by the exception that its caller is handling."""
    bare = any(step.opname == "RAISE_VARARGS" and step.arg == 0 for step in dis.get_instructions(code))
    return "goes by the exception that is being handled" if bare or "__context__" in code.co_names else ""


def _is_call_of_handler(frame: types.FrameType, number: int) -> bool:
    """By its arguments, as the program may call it too: the number, and the frame that was interrupted."""
    code, values = frame.f_code, []
    for name in code.co_varnames[: code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)]:
        value = frame.f_locals.get(name)
        values += value if type(value) is tuple else [value]
    return any(a == number and type(b) in (types.FrameType, type(None)) for a, b in itertools.pairwise(values) if isinstance(a, int))


def signal_of(error: BaseException) -> int:
    """The number of the signal whose handler has raised it, or called what has; 0 if it is none of a handler's, which the main thread runs."""
    if threading.current_thread() is not threading.main_thread():
        return 0
    walked = list(traceback.walk_tb(error.__traceback__))
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if handler is None or isinstance(handler, signal.Handlers):
            continue
        while isinstance(handler, functools.partial):
            handler = handler.func
        handler = getattr(handler, "__func__", handler)
        code = getattr(handler, "__code__", getattr(getattr(type(handler), "__call__", None), "__code__", None))
        if any(frame.f_code is code and _is_call_of_handler(frame, number) for frame, _ in walked):
            return number
    # Python's own for Ctrl-C has no frame.
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_raised = trace is not None and dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"
    is_own = type(error) is KeyboardInterrupt and not error.args and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return signal.SIGINT if is_own and not is_raised else 0
