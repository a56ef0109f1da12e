"""Changes one thing at a time in what a program can read: found by walking over the objects it reaches, never from a list of
what a compiler watches. Also remembers such state and brings it back."""

from __future__ import annotations

import collections
import random
import types
from typing import Any, Callable, Iterator

import torch
from torch import nn

Undo = Callable[[], None]
ACTIVATIONS = ("relu", "tanh", "sigmoid", "silu")
# Fields of modules that only torch's own bookkeeping reads.
SKIPPED = {"_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_non_persistent_buffers_set",
           "_backward_hooks", "_backward_pre_hooks", "_is_full_backward_hook", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
           "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_pre_hooks", "call_super_init"}  # fmt: skip
ATOMS = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, torch.Size, types.ModuleType)


class Globals:
    """Some globals of a module as an object of their own."""

    def __init__(self, module: dict, *names: str):
        self.module, self.names = module, names


def reachable(roots: list[Any], classes: tuple[type, ...] = ()) -> list[Any]:
    """Every mutable object that is reachable: instances, lists, dicts, sets, cells, functions, tensors."""
    found: list[Any] = list(classes)
    seen: set[int] = set()

    def walk(o: Any) -> None:
        if isinstance(o, ATOMS) or isinstance(o, (type, types.BuiltinFunctionType)) or id(o) in seen:
            return
        seen.add(id(o))
        if not isinstance(o, (tuple, frozenset, types.MethodType)):
            found.append(o)
        for v in _children(o):
            walk(v)

    for r in roots:
        walk(r)
    return found


def _children(o: Any) -> Iterator[Any]:
    if isinstance(o, Globals):
        yield from (o.module[n] for n in o.names if n in o.module)
    elif isinstance(o, types.FunctionType):
        if o.__module__.startswith("torch"):
            return
        yield from o.__closure__ or ()
        yield from o.__defaults__ or ()
        if o.__kwdefaults__:
            yield o.__kwdefaults__
    elif isinstance(o, types.MethodType):
        yield from (o.__self__, o.__func__)
    elif isinstance(o, types.CellType):
        try:
            yield o.cell_contents
        except ValueError:
            pass
    elif isinstance(o, dict):
        yield from o.values()
    elif isinstance(o, (list, tuple, collections.deque, set, frozenset)):
        yield from o
    elif not isinstance(o, torch.Tensor):
        yield from (v for k, v in list(vars(o).items()) if k not in SKIPPED) if hasattr(o, "__dict__") else ()
        yield from (getattr(o, s) for s in _slots(o) if hasattr(o, s))


def _slots(o: Any) -> list[str]:
    return [s for t in type(o).__mro__ for s in t.__dict__.get("__slots__", ()) if not s.startswith("__")]


# ---- state that is brought back ----


class Kept:
    """What objects held when this was made."""

    def __init__(self, objects: list[Any]):
        # Programs install hooks, which are no objects to be changed at random.
        hooks = [vars(o)[name] for o in objects if isinstance(o, nn.Module) for name in ("_forward_hooks", "_forward_pre_hooks")]
        self.objects = objects + hooks
        self.held = [self._read(o) for o in self.objects]
        self.random = torch.get_rng_state(), random.getstate()

    @staticmethod
    def _read(o: Any) -> Any:
        if isinstance(o, torch.Tensor):
            return o.detach().clone()
        if isinstance(o, Globals):
            return {n: o.module.get(n) for n in o.names}
        if isinstance(o, types.CellType):
            return next(iter(_children(o)), None)
        if isinstance(o, (list, dict, set, collections.deque)):
            return type(o)(o) if not isinstance(o, collections.defaultdict) else dict(o)
        fields = dict(vars(o)) if hasattr(o, "__dict__") and not isinstance(o, type) else {}
        return fields, {s: getattr(o, s) for s in _slots(o) if hasattr(o, s)}

    def restore(self) -> None:
        for o, held in zip(self.objects, self.held):
            if isinstance(o, torch.Tensor):
                if not torch.equal(o, held) and not (o != o).any():
                    with torch.inference_mode(o.is_inference()), torch.no_grad():
                        o.copy_(held)
            elif isinstance(o, type) or self._unchanged(self._read(o), held):
                continue
            elif isinstance(o, Globals):
                o.module.update(held)
            elif isinstance(o, types.CellType):
                o.cell_contents = held
            elif isinstance(o, (list, collections.deque)):
                o.clear(), o.extend(held)
            elif isinstance(o, (dict, set)):
                o.clear(), o.update(held)
            else:
                if held[0] or hasattr(o, "__dict__"):
                    vars(o).clear(), vars(o).update(held[0])
                for k, v in held[1].items():
                    setattr(o, k, v)
        torch.set_rng_state(self.random[0])
        random.setstate(self.random[1])

    @classmethod
    def _unchanged(cls, a: Any, b: Any) -> bool:
        if type(a) is not type(b):
            return False
        if isinstance(a, dict):
            return list(a) == list(b) and all(x is y for x, y in zip(a.values(), b.values()))
        if isinstance(a, (list, collections.deque)):
            return len(a) == len(b) and all(x is y for x, y in zip(a, b))
        if isinstance(a, tuple):
            return all(cls._unchanged(x, y) for x, y in zip(a, b))
        return a is b or (isinstance(a, set) and a == b)

    def as_value(self) -> list[Any]:
        """For comparing what two runs left behind."""
        out: list[Any] = []
        for o in self.objects:
            held = self._read(o)
            if isinstance(o, torch.Tensor):
                out.append(held)
            elif isinstance(o, (types.FunctionType, type)):
                continue
            else:
                out.append(_only_plain(held))
        return out


def _only_plain(held: Any) -> Any:
    if isinstance(held, torch.Tensor):
        return held.detach().clone()
    if isinstance(held, ATOMS) and not isinstance(held, types.ModuleType):
        return held
    if isinstance(held, dict):
        # Hooks are counted: each has a number that no other hook of the process has.
        return {str(k): len(v) if k in SKIPPED and isinstance(v, dict) else _only_plain(v) for k, v in held.items() if not isinstance(k, int) or not callable(v)}
    if isinstance(held, (list, tuple, collections.deque)):
        return [_only_plain(v) for v in held]
    return type(held).__name__


# ---- changes ----


def another(value: Any, rng: random.Random) -> Any:
    """Another value of the same kind; the same one if there is no other."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice((-2, -1, 1, 2))
    if isinstance(value, float):
        return rng.choice((value * 2 + 0.5, -value, 0.25, value + 1e-3, float(int(value)), -0.0 if value == 0 else 0.0))
    if isinstance(value, str):
        return rng.choice([a for a in ACTIVATIONS if a != value]) if value in ACTIVATIONS else value
    if isinstance(value, torch.Tensor):
        return _another_tensor(value, rng)
    if isinstance(value, tuple) and type(value) is tuple and value:
        at = rng.randrange(len(value))
        return (*value[:at], another(value[at], rng), *value[at + 1 :])
    if isinstance(value, types.FunctionType) and value.__module__ != "torch" and value.__code__.co_argcount == 1:
        return lambda x, f=value, k=rng.uniform(0.5, 2): f(x) * k
    return value


def _another_tensor(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    what = rng.choice(("elements", "elements", "type", "layout", "size"))
    new = torch.randn(t.shape).to(t.dtype) if t.is_floating_point() else t.clone()
    if t.is_floating_point() and bool((t >= 0).all()):
        new = new.abs() + 0.1  # variances stay positive
    if what == "type" and t.is_floating_point():
        new = new.double() if t.dtype == torch.float32 else new.float()
    if what == "layout" and t.dim() >= 2:
        new = new.transpose(0, 1).contiguous().transpose(0, 1)
    if what == "size" and t.dim() and t.shape[-1] > 1:
        new = new[..., :1].clone()
    return nn.Parameter(new, requires_grad=t.requires_grad) if isinstance(t, nn.Parameter) else new


def _set(get: Callable, set_: Callable, value: Any) -> Undo:
    old = get()
    set_(value)
    return lambda: set_(old)


def tables_in(objects: list[Any]) -> set[int]:
    """Which dicts hold the members of modules: nothing but such may come into them."""
    return {id(d) for m in objects if isinstance(m, nn.Module) for d in (m._modules, m._parameters, m._buffers)}


def change(o: Any, rng: random.Random, tables: set[int]) -> tuple[str, Undo] | None:
    """Changes something of one object; None if there was nothing to change."""
    if id(o) in tables:
        return _change_key(o, rng.choice(list(o)), rng, "member of a module") if o else None
    if isinstance(o, nn.Module) and rng.random() < 0.6:
        return _change_module(o, rng)
    if isinstance(o, torch.Tensor):
        return _change_tensor(o, rng)
    if isinstance(o, Globals):
        return _change_key(o.module, rng.choice(o.names), rng, "global")
    if isinstance(o, types.CellType):
        new = another(old := next(iter(_children(o)), None), rng)
        o.cell_contents = new
        return (f"closure cell, a {type(old).__name__}", lambda: setattr(o, "cell_contents", old)) if new is not old else None
    if isinstance(o, types.FunctionType):
        return _change_function(o, rng)
    if isinstance(o, (list, collections.deque)):
        return _change_list(o, rng)
    if isinstance(o, set):
        new = set(o) ^ {rng.choice(("a", "b", "c", "d", 7))}
        old = set(o)
        o.clear(), o.update(new)
        return "set", lambda: (o.clear(), o.update(old))
    if isinstance(o, dict):
        return _change_dict(o, rng)
    if isinstance(o, type):
        return _change_class(o, rng)
    return _change_object(o, rng)


def _change_key(d: dict, key: Any, rng: random.Random, what: str) -> tuple[str, Undo] | None:
    old = d[key]
    new = another(old, rng)
    if new is old:
        return None
    d[key] = new
    return f"{what} {key!r}, a {type(old).__name__}", lambda: d.__setitem__(key, old)


def _change_dict(d: dict, rng: random.Random) -> tuple[str, Undo] | None:
    old = dict(d)

    def undo() -> None:
        d.clear(), d.update(old)

    if not d or rng.random() < 0.15:
        d[f"new {rng.randrange(100)}"] = rng.random()
        return "dict item that comes", undo
    key = rng.choice(list(d))
    if rng.random() < 0.1:
        del d[key]
        return f"dict item {key!r} that goes", undo
    if rng.random() < 0.1:
        d[key] = d.pop(key)
        return f"dict item {key!r} moved to the end", undo
    return _change_key(d, key, rng, "dict item")


def _change_list(items: Any, rng: random.Random) -> tuple[str, Undo] | None:
    old = list(items)

    def undo() -> None:
        items.clear(), items.extend(old)

    what = rng.choice(("element", "element", "append", "pop", "reverse"))
    if what == "append" and items:
        items.append(rng.choice(old))
    elif what == "pop" and items:
        items.pop()
    elif what == "reverse" and len(items) > 1:
        items.reverse()
    elif items:
        at = rng.randrange(len(items))
        new = another(items[at], rng)
        if new is items[at]:
            return None
        items[at] = new
    else:
        return None
    return f"list: {what}", undo


def _change_function(f: types.FunctionType, rng: random.Random) -> tuple[str, Undo] | None:
    if f.__kwdefaults__ and rng.random() < 0.5:
        return _change_key(f.__kwdefaults__, rng.choice(list(f.__kwdefaults__)), rng, "keyword default")
    if f.__defaults__ and f.__name__ != "<lambda>":
        new = another(f.__defaults__, rng)
        return "default", _set(lambda: f.__defaults__, lambda v: setattr(f, "__defaults__", v), new)
    return None


def _change_class(c: type, rng: random.Random) -> tuple[str, Undo] | None:
    names = [n for n in vars(c) if not n.startswith("__")]
    if not names:
        return None
    name = rng.choice(names)
    old = vars(c)[name]
    if isinstance(old, types.FunctionType) and old.__code__.co_argcount == 2:
        factor = rng.uniform(0.5, 2)
        setattr(c, name, lambda self, x: old(self, x) * factor)
    elif isinstance(old, property):
        value = rng.random()
        setattr(c, name, property(lambda self: value))
    elif (new := another(old, rng)) is not old:
        setattr(c, name, new)
    else:
        return None
    return f"class attribute {c.__name__}.{name}", lambda: setattr(c, name, old)


def _change_object(o: Any, rng: random.Random) -> tuple[str, Undo] | None:
    names = [n for n in getattr(o, "__dict__", {}) if n not in SKIPPED] + [s for s in _slots(o) if hasattr(o, s)]
    if not names:
        return None
    name = rng.choice(names)
    old = getattr(o, name)
    new = another(old, rng)
    if new is old:
        return None
    setattr(o, name, new)
    return f"attribute {name} of a {type(o).__name__}, a {type(old).__name__}", lambda: setattr(o, name, old)


def _change_tensor(t: torch.Tensor, rng: random.Random) -> tuple[str, Undo] | None:
    if t.is_inference() or not t.is_floating_point():
        return None
    what = rng.choice(("elements", "data", "requires_grad", "attribute"))
    if what == "elements":
        old = t.detach().clone()
        with torch.no_grad():
            t.mul_(rng.uniform(0.5, 2)).add_(rng.uniform(0 if bool((t >= 0).all()) else -1, 1))  # variances stay positive
            return "elements of a tensor", lambda: t.data.copy_(old)
    if what == "data":
        old = t.data
        t.data = _another_tensor(t.detach(), rng)
        return "data of a tensor", lambda: setattr(t, "data", old)
    if what == "requires_grad" and t.is_leaf:
        t.requires_grad_(not t.requires_grad)
        return "requires_grad", lambda: t.requires_grad_(not t.requires_grad)
    had = getattr(t, "scale", None)
    t.scale = rng.random()
    return "attribute of a tensor", lambda: setattr(t, "scale", had) if had is not None else t.__dict__.pop("scale", None)


def _change_module(m: nn.Module, rng: random.Random) -> tuple[str, Undo] | None:
    what = rng.choice(("training", "hook", "pre hook", "submodule", "parameter", "buffer", "type", "remove a hook"))
    if what == "training":
        m.train(not m.training)
        return "training flag", lambda: m.train(not m.training)
    if what in ("hook", "pre hook"):
        k = rng.uniform(0.5, 2)
        if what == "hook":
            handle = m.register_forward_hook(lambda m, args, out: out * k if isinstance(out, torch.Tensor) else out)
        else:
            handle = m.register_forward_pre_hook(lambda m, args: tuple(a * k if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args))
        return what, handle.remove
    if what == "remove a hook" and m._forward_hooks:
        key = rng.choice(list(m._forward_hooks))
        old = m._forward_hooks.pop(key)
        return what, lambda: m._forward_hooks.__setitem__(key, old)
    if what == "type":
        old = {k: v.detach().clone() for k, v in m.state_dict().items()}
        m.double()

        def undo() -> None:
            m.float(), m.load_state_dict(old, strict=False)

        return "type of a module", undo
    table = {"submodule": m._modules, "parameter": m._parameters, "buffer": m._buffers}.get(what)
    names = [n for n, v in (table or {}).items() if v is not None]
    if not names:
        return None
    name = rng.choice(names)
    old = table[name]
    if what == "submodule":
        new = type(old)(*([len(old)] if isinstance(old, nn.ModuleList) else [])) if type(old) in (nn.ReLU, nn.Tanh, nn.GELU) else None
        new = rng.choice([nn.ReLU(), nn.Tanh(), nn.GELU(), nn.Identity()]) if new is not None else _reset(old, rng)
    else:
        new = _another_tensor(old.detach(), rng)
        new = nn.Parameter(new, requires_grad=old.requires_grad) if what == "parameter" else new
        if what == "parameter" and rng.random() < 0.1:
            new = None
    setattr(m, name, new)
    return f"{what} replaced", lambda: setattr(m, name, old)


def _reset(m: nn.Module, rng: random.Random) -> nn.Module:
    import copy

    new = copy.deepcopy(m)
    with torch.no_grad():
        for p in new.parameters():
            p.mul_(rng.uniform(0.5, 2))
    return new
