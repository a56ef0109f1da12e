"""Numbers of a program while they are captured as symbols.

They are torch's symbolic numbers, with whose nodes its operations know what to do, and say besides that they are Python's: a
program that asks whether it was given an ``int`` or a ``float`` takes the way that it takes with the numbers themselves.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import functools
import inspect
import math
import operator
import sys
import types
from typing import Any, Callable

import torch

from ._native import _C


def _wrap(node: Any) -> Any:
    if node.is_constant():
        return node.guard_int("", 0)
    return Int(node) if node.is_int() else Float(node) if node.is_float() else node.bool_()  # a bool cannot be stood for: `is True`


def _node(value: object, like: Any) -> Any:
    if type(value) in _STAND_INS:
        return value.node  # type: ignore[attr-defined]
    if type(value) in (int, bool):
        return like.wrap_int(int(value))  # type: ignore[call-overload]
    return like.wrap_float(value) if type(value) is float else None


def _plain(number: Any) -> Any:
    node = number.node
    return node.guard_int("", 0) if node.is_int() else node.guard_float("", 0) if node.is_float() else node.guard_bool("", 0)


def _binary(name: str, reflected: bool = False) -> Callable[[Any, object], Any]:
    of_numbers = getattr(operator, name)

    def method(self: Any, other: object) -> Any:
        node = _node(other, self.node)
        if node is not None:
            left, right = (node, self.node) if reflected else (self.node, node)
            return _wrap(getattr(left, name)(right))
        if isinstance(other, torch.Tensor):
            return NotImplemented
        # What another kind of number, as numpy's or an enumeration's, makes of a number is what it makes of this one.
        return of_numbers(other, self._plain()) if reflected else of_numbers(self._plain(), other)

    return method


# Functions that go on alike where there is no hash, without what they cached.
_ASK_IN_VAIN = {("einops.einops", "_apply_recipe")}


class _Number:
    node: Any

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return _wrap(self.node.neg())

    # numpy asks for these, and works with objects otherwise, of which each is rounded, and typed, by Python's rules.
    def __array_ufunc__(self, function: Any, method: str, *inputs: Any, **how: Any) -> Any:
        return getattr(function, method)(*(_plain(x) if type(x) in _STAND_INS else x for x in inputs), **how)

    def __array__(self, *how: Any, **more: Any) -> Any:
        import numpy

        return numpy.asarray(self._plain()).__array__(*how, **more)

    def __hash__(self) -> int:
        caller = sys._getframe(2)  # behind _method
        if (caller.f_globals.get("__name__"), caller.f_code.co_name) not in _ASK_IN_VAIN:
            _C.refuse_number("the program asks a number that is a symbol for its hash")  # whoever catches the error
        raise TypeError("a number that is a symbol has no hash")

    def __bool__(self) -> bool:
        return self.node.bool_()

    def __float__(self) -> float:
        return self.node.guard_float("", 0)

    def __repr__(self) -> str:
        return repr(self._plain())

    def __format__(self, spec: str) -> str:
        return format(self._plain(), spec)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self._plain(), digits)

    def __divmod__(self, other: object) -> Any:
        return self // other, self % other  # type: ignore[operator]

    _plain = _plain


for _method, _name in {"add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv", "mod": "mod", "pow": "pow"}.items():
    setattr(_Number, f"__{_method}__", _binary(_name))
    setattr(_Number, f"__r{_method}__", _binary(_name, reflected=True))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(_Number, f"__{_name}__", _binary(_name))


class Int(_Number, torch.SymInt):
    """An integer."""

    __class__ = property(lambda self: int)  # type: ignore[assignment]

    def __int__(self) -> int:
        return self.node.int_()

    __index__ = __int__

    def __floor__(self) -> Any:
        return self

    __trunc__ = __ceil__ = __floor__

    def __abs__(self) -> Any:
        return self if self >= 0 else -self  # type: ignore[operator]

    def __round__(self, digits: int | None = None) -> Any:
        return self if digits is None else round(self._plain(), digits)


def _whole(number: Any, up: bool) -> Any:
    """As `math.ceil` or `math.floor`: an expression of sizes where that is exact for all of them."""
    node = _C.whole_part(number.node, up)
    return (math.ceil if up else math.floor)(number._plain()) if node is None else _wrap(node)


class Float(_Number, torch.SymFloat):
    """A floating point number."""

    __class__ = property(lambda self: float)  # type: ignore[assignment]

    def __int__(self) -> int:
        return int(self._plain())

    def __floor__(self) -> Any:
        return _whole(self, up=False)

    def __ceil__(self) -> Any:
        return _whole(self, up=True)

    def __trunc__(self) -> Any:
        return _whole(self, up=self < 0)  # type: ignore[operator]

    def __abs__(self) -> Any:  # -0.0, too, has a sign
        return _wrap(_C.function_of_number("fabs", self.node))

    def is_integer(self) -> bool:
        return self._plain().is_integer()


_STAND_INS = (Int, Float, torch.SymInt, torch.SymFloat)

# What a message or a table of names says of them is what it says of numbers.
for _stand_in, _kind in ((Int, int), (Float, float)):
    _stand_in.__name__, _stand_in.__qualname__, _stand_in.__module__ = _kind.__name__, _kind.__qualname__, _kind.__module__


# ---- what code of gradients must not read ----


def _refuse(*_: Any) -> Any:
    raise TypeError("the code of a gradient reads a value that changes from call to call")


class _Unreadable:
    """Stands where the program keeps such a value. Who comes across it otherwise, looking through all objects, sees an object."""

    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        return _refuse() if _C.is_capturing() else object.__getattribute__(self, name)


def _refusing(name: str) -> Callable:
    usual = getattr(object, name, None)
    return lambda *values: usual(*values) if usual and not _C.is_capturing() else _refuse()


_OPERATORS = "add sub mul truediv floordiv mod pow divmod matmul and or xor lshift rshift".split()
_OTHERS = "neg pos abs invert bool int float complex index round trunc floor ceil len iter next getitem contains call eq ne lt le gt ge hash str repr format enter".split()
for _name in (*_OPERATORS, *(f"r{n}" for n in _OPERATORS), *_OTHERS):
    setattr(_Unreadable, f"__{_name}__", _refusing(f"__{_name}__"))
UNREADABLE = _Unreadable()


# ---- while a program is captured with symbols ----


def _is_ours(number: Any) -> bool:
    return _C.is_capturing_symbols() and _C.is_number(number.node)


def _says_it_is(kind: type, own: type) -> property:
    return property(lambda self: kind if _is_ours(self) else own)


def _method(ours: Callable, theirs: Callable | None) -> Callable:
    def method(self: Any, *more: Any) -> Any:
        if _is_ours(self):
            return ours(self, *more)
        return NotImplemented if theirs is None else theirs(self, *more)

    return method


def _attributes(own: type, stand_in: type, kind: type) -> dict[str, Any]:
    """What torch's class is given, whose numbers the library itself makes: that it is the number's class, and the stand-in's methods,
    since torch's own ask for that class."""
    methods = {**vars(_Number), **vars(stand_in)}
    mine = {n: f for n, f in methods.items() if inspect.isfunction(f)}
    names = {n: getattr(stand_in, n) for n in ("__name__", "__qualname__", "__module__")}
    return {"__class__": _says_it_is(kind, own), **names, **{n: _method(f, getattr(own, n, None)) for n, f in mine.items()}}


def _function_of_numbers(original: Callable) -> Callable:
    """A function of `math` that also takes a number which stands for another."""
    name = original.__name__

    @functools.wraps(original)
    def function(x: Any, *more: Any) -> Any:
        if more or type(x) not in _STAND_INS or not _is_ours(x):
            return original(x, *more)
        node = _C.function_of_number(name, x.node)
        if node is not None:
            return _wrap(node)
        original(_C.value_of_number(x.node))  # raises an error, as a rule
        return original(float(x))

    return function


def _question(answer: Callable[[Any], bool], original: Callable) -> Callable:
    @functools.wraps(original)
    def function(x: Any) -> bool:
        return answer(x) if type(x) in (Float, torch.SymFloat) and _is_ours(x) else original(x)

    return function


_LONGEST_LIST = 64
_tolist, _item = torch.Tensor.tolist, torch.Tensor.item


def _number_of(t: torch.Tensor) -> Any:
    number = _item(t)
    return Int(number.node) if type(number) is torch.SymInt and _is_ours(number) else number


_length = builtins.len


@functools.wraps(_length)
def length_of(x: Any, /) -> Any:
    """`len` while programs are captured: of a tensor it is a size."""
    if type(x) in (torch.Tensor, torch.nn.Parameter) and _C.is_capturing_symbols() and x.dim():
        return x.shape[0]
    return _length(x)


def _list_of(t: torch.Tensor) -> Any:
    if not _C.is_capturing_symbols():
        return _tolist(t)
    if t.numel() > _LONGEST_LIST:
        _C.refuse_number("a long list of values is read on the host")
        return _tolist(t)
    return t.item() if t.dim() == 0 else [_list_of(row) for row in t.unbind(0)]


_INDICES = {Int, torch.SymInt, int, slice, type(None), type(...), torch.Tensor, list}
_NUMBERS = (torch.int8, torch.int16, torch.int32, torch.int64)
_MASKS = (torch.bool, torch.uint8)
_get_item, _set_item = torch.Tensor.__getitem__, torch.Tensor.__setitem__


def _is_index(item: Any) -> bool:
    return type(item) in _INDICES and (type(item) is not list or all(type(n) is int or type(n) in _STAND_INS for n in item))


def _plain_item(item: Any) -> Any:
    """An element that is an index as the number that it is to torch, and a list of numbers as the tensor that it is."""
    if type(item) is torch.Tensor and item.dim() == 0 and item.dtype in _NUMBERS:
        return item.item()
    return torch.tensor(item) if type(item) is list and any(type(n) in _STAND_INS for n in item) else item


def _select(t: torch.Tensor, index: Any) -> tuple[torch.Tensor, Any]:
    """What the symbols in an index select, and what is left of the index. Where it holds what is none of a few kinds, all of it is left."""
    given = index if type(index) is tuple else (index,)
    if not all(map(_is_index, given)) or sum(i is ... for i in given) > 1:
        return t, index
    items = [_plain_item(i) for i in given]
    # Of the tensor's dimensions, an item takes so many: a mask as many as it has.
    taken = [0 if i is None or i is ... else i.dim() if isinstance(i, torch.Tensor) and i.dtype in _MASKS else 1 for i in items]
    if sum(taken) > t.dim() or not any(type(i) in _STAND_INS for i in items):
        return t, index if all(a is b for a, b in zip(items, given)) else tuple(items)
    whole, last = t.dim(), max(k for k, i in enumerate(items) if type(i) in _STAND_INS)
    dim, left = 0, []
    for k, (item, n) in enumerate(zip(items, taken)):  # in torch's order, by which a new dimension's stride goes
        if type(item) in _STAND_INS:
            t = t.select(dim, item)
            continue
        if item is None and k < last:
            t, item, n = t.unsqueeze(dim), slice(None), 1
        left.append(item)
        dim += whole - sum(taken) if item is ... else n
    return t, tuple(left)


def _get(t: torch.Tensor, index: object) -> torch.Tensor:
    window, left = _select(t, index)
    return window if window is not t and not left else _get_item(window, left)


def _set(t: torch.Tensor, index: object, value: object) -> None:
    window, left = _select(t, index)
    _set_item(window, ... if window is not t and not left else left, value)


def _numbers_in(data: Any, shape: list[int], depth: int = 0) -> list[Any] | None:
    """What nested lists and tuples hold, in order, and their shape. None where they hold something else than numbers, or are no tensor."""
    if type(data) not in (list, tuple, torch.Size):
        return [data] if depth == len(shape) and isinstance(data, (bool, int, float)) else None
    if depth == len(shape):
        shape.append(len(data))
    if shape[depth] != len(data) or not 0 < len(data) <= _LONGEST_LIST:
        return None
    found: list[Any] = []
    for item in data:
        part = _numbers_in(item, shape, depth + 1)
        if part is None:
            return None
        found += part
    return found


def _dtype_of(numbers: list[Any]) -> torch.dtype:
    if any(isinstance(n, float) for n in numbers):
        return torch.get_default_dtype()
    return torch.bool if all(isinstance(n, bool) for n in numbers) else torch.int64


def _function_of_data(original: Callable) -> Callable:
    """A function that makes a tensor of numbers, of which some may stand for others."""

    @functools.wraps(original)
    def function(*data: Any, **how: Any) -> torch.Tensor:
        shape: list[int] = []
        numbers = _numbers_in(data[0], shape) if _C.is_capturing_symbols() and len(data) == 1 and how.keys() <= {"dtype", "device"} else None
        if numbers is None or len(numbers) > _LONGEST_LIST or not any(type(n) in _STAND_INS for n in numbers):
            return original(*data, **how)
        dtype, device = how.get("dtype") or _dtype_of(numbers), how.get("device")
        if dtype.is_complex or dtype.is_floating_point < any(isinstance(n, float) for n in numbers) or dtype == torch.bool:
            return original(*data, **how)
        elements = [torch.full((), n, dtype=dtype, device=device) for n in numbers]
        for n in reversed(shape):  # no view, as eager's is none
            elements = [torch.stack(elements[k : k + n]) for k in range(0, len(elements), n)]
        return elements[0]

    return function


_QUESTIONS: dict[str, Callable[[Any], bool]] = {
    "isnan": lambda x: bool(x != x),
    "isinf": lambda x: bool(x == math.inf) or bool(x == -math.inf),
    "isfinite": lambda x: bool(x == x) and not (bool(x == math.inf) or bool(x == -math.inf)),
}
_STAND_INS_OF: list[tuple[Any, dict[str, Any]]] = [
    (torch.SymInt, _attributes(torch.SymInt, Int, int)),
    (torch.SymFloat, _attributes(torch.SymFloat, Float, float)),
    (math, {name: _function_of_numbers(getattr(math, name)) for name in _C.functions_of_numbers()}),
    (math, {name: _question(answer, getattr(math, name)) for name, answer in _QUESTIONS.items()}),
    (torch, {name: _function_of_data(getattr(torch, name)) for name in ("tensor", "as_tensor")}),
    (torch.Tensor, {"tolist": _list_of, "item": _number_of}),
    (builtins, {"len": length_of}),
]
for _owner, _stand_ins in _STAND_INS_OF:
    _C.add_stand_ins("numbers", _owner, _stand_ins)
_C.set_indexing((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer), _get, _set)


def settle(owner: object, key: object, now: object) -> None:
    """Numbers instead of what stands for them, in what a run on stand-ins has written: item `key` of a dict, or all that the owner has."""
    if type(owner) is not dict or now is None:
        _Settled().of(owner)
    elif (settled := _Settled().of(now)) is not now:
        owner[key] = settled


class _Settled:
    """Looks at so many objects, each once, and at nothing within those of torch's own."""

    MOST = 2000

    def __init__(self) -> None:
        self.seen: dict[int, object] = {}

    def of(self, o: Any) -> Any:
        if isinstance(o, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return _plain(o)
        if id(o) in self.seen or len(self.seen) >= self.MOST:
            return o
        self.seen[id(o)] = o
        if isinstance(o, tuple):
            return self.of_tuple(o)
        if isinstance(o, (list, collections.deque)):
            self.put([(i, v) for i, v in enumerate(o)], functools.partial(type(o).__setitem__, o))
        elif isinstance(o, dict):
            self.put(list(o.items()), functools.partial(dict.__setitem__, o))
        elif isinstance(o, types.CellType):
            self.put([("cell_contents", o.cell_contents)], functools.partial(setattr, o))
        elif isinstance(o, types.FunctionType):
            self.put([(name, getattr(o, name)) for name in ("__dict__", "__defaults__", "__kwdefaults__")], functools.partial(setattr, o))
        elif isinstance(o, contextvars.ContextVar):
            self.put([("", o.get(None))], lambda _, value: o.set(value))
        elif isinstance(o, type) or type(o).__module__.partition(".")[0] not in ("torch", "numpy", "builtins"):
            names = [n for c in type(o).__mro__ for n in c.__dict__.get("__slots__", ()) if hasattr(o, n)]
            items = [*getattr(o, "__dict__", {}).items(), *((n, getattr(o, n)) for n in names)]
            self.put(items, functools.partial(object.__setattr__ if not isinstance(o, type) else setattr, o))
        return o

    def of_tuple(self, o: Any) -> Any:
        items = [self.of(v) for v in o]
        if all(new is old for new, old in zip(items, o)):
            return o
        make = getattr(type(o), "_make", torch.Size if type(o) is torch.Size else tuple)
        return make(items)

    def put(self, items: list[tuple[Any, Any]], write: Callable[[Any, Any], object]) -> None:
        for key, value in items:
            if (settled := self.of(value)) is not value:
                write(key, settled)
