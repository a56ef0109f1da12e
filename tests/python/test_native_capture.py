"""What can be captured natively: every kind of callable, of argument and of result, at other sizes than the captured ones,
in every mode. Each program must run from its trace, not through Dynamo, and agree with eager in everything."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import threading
from typing import Any, NamedTuple

import broach
import pytest
import torch
from compared import check, difference, native, r, ran_natively, stats
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree


# ---- callables ----


def double(x):
    return x * 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 6)
        self.b = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("shift", torch.randn(6))

    def forward(self, x):
        return self.drop(F.gelu(self.b(self.a(x)))) + self.shift

    def other(self, x, scale=2.0):
        return self.a(x) * scale


class Adds:
    def __init__(self, n):
        self.n = n

    def __call__(self, x):
        return x + self.n

    def method(self, x):
        return x - self.n

    @classmethod
    def of_class(cls, x):
        return x * 3

    @staticmethod
    def of_none(x):
        return x * 4


CALLABLES = {
    "function": double,
    "lambda": lambda x: x.relu() + 1,
    "module": Net().eval(),
    "method": Net().eval().other,
    "object": Adds(3),
    "method of an object": Adds(3).method,
    "class method": Adds.of_class,
    "static method": Adds.of_none,
    "partial": functools.partial(torch.add, other=5),
    "partial of a function": functools.partial(lambda a, b, c=1: a * b + c, 2.0, c=3),
    "wrapped by no_grad": torch.no_grad()(lambda x: x @ x.t()),
    "wrapped by functools": functools.wraps(double)(lambda x: double(x) + 1),
    "builtin": torch.sigmoid,
    "sequential": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8)),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_callables(name):
    ran_natively(check(CALLABLES[name], (r(3, 4),), (r(5, 4),)))


# ---- containers ----


class Pair(NamedTuple):
    left: torch.Tensor
    right: Any


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    n: int = 3
    more: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    n: int = 3


@dataclasses.dataclass(slots=True)
class Slotted:
    x: torch.Tensor
    n: int = 3


class Plain:
    def __init__(self, x):
        self.x = x
        self.twice = [x, {"again": x}]


class WithSlots:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


class Dict(dict):
    pass


class Bag:
    """Registered with pytree."""

    def __init__(self, items):
        self.items = items


_pytree.register_pytree_node(Bag, lambda b: (list(b.items), None), lambda items, _: Bag(list(items)))


def nested(d):
    return {"sum": d["a"] + d["b"][0], "list": [d["b"][1] * 2, (d["c"]["x"], 5, "text", None, True, 2.5)]}


GIVEN_AND_TAKEN = {
    "nested": (nested, lambda: ({"a": r(3), "b": [r(3), r(2)], "c": {"x": r(4)}},)),
    "named tuple": (lambda p: Pair(p.right + 1, (p.left, p.left.sum())), lambda: (Pair(r(3), r(4)),)),
    "ordered dict": (lambda d: collections.OrderedDict((k, v * 2) for k, v in reversed(d.items())), lambda: (collections.OrderedDict(b=r(2), a=r(3)),)),
    "dataclass": (lambda d: Record(d.x * d.n, d.n + 1, [d.x]), lambda: (Record(r(3)),)),
    "frozen dataclass": (lambda d: Frozen(d.x * d.n, d.n + 1), lambda: (Frozen(r(3)),)),
    "dataclass with slots": (lambda d: Slotted(d.x * d.n, d.n), lambda: (Slotted(r(3)),)),
    "replaced dataclass": (lambda d: dataclasses.replace(d, x=d.x + 1), lambda: (Record(r(3), 7),)),
    "object": (lambda o: Plain(o.x + o.twice[0]), lambda: (Plain(r(3)),)),
    "slots": (lambda o: WithSlots(o.x + o.y, 3), lambda: (WithSlots(r(3), r(3)),)),
    "subclass of dict": (lambda d: Dict(a=d["x"] * 2), lambda: (Dict(x=r(3)),)),
    "registered type": (lambda b: Bag([b.items[0] + 1, b.items[1]]), lambda: (Bag([r(3), r(2)]),)),
    "slice": (lambda x, s: x[s] * 2, lambda: (r(6), slice(1, 4))),
    "size": (lambda x: (x.shape, x.size(0), x.stride(), x.dim(), x.numel()), lambda: (r(3, 4),)),
    "dtype and device": (lambda x, t: (x.to(t), x.device, t), lambda: (r(3), torch.float64)),
    "numbers": (lambda x, n, f, b: (x * n + f if b else x, n + 1, f * 2, not b), lambda: (r(3), 3, 0.5, True)),
    "nothing": (lambda x: None, lambda: (r(3),)),
    "torch.Size": (lambda x, s: x.reshape(s), lambda: (r(6), torch.Size((2, 3)))),
    "top k": (lambda x: torch.topk(x, 2), lambda: (r(7),)),
    "list comprehension": (lambda xs: [x * i for i, x in enumerate(xs)], lambda: ([r(2), r(3), r(2)],)),
    "one tensor twice": (lambda a, b: (a + b, a), lambda: (lambda t: (t, t))(r(3))),
    "a list twice": (lambda a, b: [a, b, a[0] + b[1]], lambda: (lambda t: (t, t))([r(3), r(3)])),
    "set of strings": (lambda x, k: x * len(k), lambda: (r(3), frozenset({"a", "b"}))),
    "same results": (lambda x: (lambda y: (y, y, {"y": [y]}))(x + 1), lambda: (r(3),)),
    "views": (lambda x: (x[1:], x.t(), x.view(-1), x), lambda: (r(3, 4),)),
    "empty": (lambda xs, d: ([], (), {}, xs, d), lambda: ([], {})),
    "0-d": (lambda x: x * 2 + torch.tensor(3.0), lambda: (torch.tensor(1.5),)),
    "enum": (lambda x, m: x * 2 if m is _pytree.MappingKey else x, lambda: (r(3), _pytree.MappingKey)),
}


@pytest.mark.parametrize("name", GIVEN_AND_TAKEN)
def test_arguments_and_results(name):
    program, make = GIVEN_AND_TAKEN[name]
    ran_natively(check(program, make(), make()))


def test_outputs_of_transformers():
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    def program(x):
        return BaseModelOutputWithPooling(last_hidden_state=x * 2, pooler_output=x[:, 0], hidden_states=(x, x + 1))

    compiled = check(program, (r(2, 3),), (r(4, 3),))
    ran_natively(compiled)
    out = compiled(r(2, 3))
    assert out.pooler_output is out["pooler_output"] is out[1] and list(out) == ["last_hidden_state", "pooler_output", "hidden_states"]


def test_a_dynamic_cache():
    from transformers.cache_utils import DynamicCache

    def program(k, v, cache):
        keys, values = cache.update(k, v, 0)
        return (keys @ values.transpose(-1, -2)).sum(-1), cache.get_seq_length()

    compiled = native(program)
    first, second = DynamicCache(), DynamicCache()
    for step in range(6):
        k, v = r(1, 2, 1 + step % 2, 4), r(1, 2, 1 + step % 2, 4)
        want, got = program(k, v, first), compiled(k, v, second)
        assert not (why := difference(want, got)), why
        assert not (why := difference(first.layers[0].keys, second.layers[0].keys)), why
    ran_natively(compiled)


# ---- how arguments are given ----


def defaults(x, y=None, *rest, scale=2.0, shift=0, **more):
    out = x * scale + shift
    if y is not None:
        out = out + y
    for t in (*rest, *more.values()):
        out = out - t
    return out


def test_keywords_and_defaults():
    a, b, c = r(3), r(3), r(3)
    calls = [
        ((a,), {}),
        ((a, b), {}),
        ((a,), {"y": b}),
        ((a, b, c), {}),
        ((a, b, c, a), {"shift": 1}),
        ((a,), {"scale": 3.0}),
        ((a,), {"scale": 3.0, "shift": 2}),
        ((a,), {"shift": 2, "scale": 3.0}),
        ((), {"x": a}),
        ((a,), {"z": b, "w": c}),
    ]
    ran_natively(check(defaults, *calls))


def test_wrong_arguments_raise_what_eager_raises():
    compiled = native(double)
    for args, kwargs in (((), {}), ((1, 2), {}), ((r(2),), {"y": 1})):
        with pytest.raises(TypeError) as eager:
            double(*args, **kwargs)
        with pytest.raises(TypeError) as ours:
            compiled(*args, **kwargs)
        assert str(ours.value) == str(eager.value)
    check(double, (r(3),), compiled=compiled)


def test_an_error_of_the_program_is_its_own():
    def program(x, y):
        return x @ y

    compiled = native(program)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
            compiled(r(2, 3), r(2, 3))
        ran_natively(check(program, (r(2, 3), r(3, 2)), compiled=compiled))


# ---- tensors from elsewhere ----

WEIGHT = torch.randn(4)
TABLE = {"a": [torch.randn(4), torch.randn(4)]}


def test_tensors_in_globals():
    def program(x):
        return x * WEIGHT + TABLE["a"][1]

    ran_natively(check(program, (r(4),), (r(3, 4),)))


def test_tensors_in_closures():
    def outer(w, b):
        def program(x):
            return x * w + b[0]

        return program

    ran_natively(check(outer(r(4), [r(4)]), (r(4),), (r(3, 4),)))


def test_tensors_in_attributes():
    class Holder:
        shared = r(4)

        def __init__(self):
            self.w = r(4)
            self.inner = {"k": Adds(r(4))}

        def __call__(self, x):
            return self.inner["k"](x) * self.w + self.shared

    ran_natively(check(Holder(), (r(4),), (r(3, 4),)))


def test_attributes_of_tensors():
    w = r(4)

    def program(x):
        return x * getattr(w, "scale", 1) * getattr(x, "scale", 1)

    compiled = native(program)
    x, y = r(4), r(4)
    for _ in range(2):
        for owner, scale in ((w, 2), (w, 3), (x, 4), (x, 5), (y, 5)):
            owner.scale = scale
            for t in (x, y):
                assert not (why := difference(program(t), compiled(t))), why
        del w.scale, x.scale, y.scale
    ran_natively(compiled)


def test_an_argument_that_is_a_tensor_of_the_program():
    """What was the same tensor in one call need not be in the next."""
    w = r(4)

    def program(x):
        return x * 2 + w

    other = r(4)
    for first, second in ((w, other), (other, w)):
        compiled = native(program)
        for x in (first, second, first, second):
            assert not (why := difference(program(x), compiled(x))), why


def test_an_argument_that_shares_memory_with_a_tensor_of_the_program():
    w = r(2, 4)

    def program(x):
        x.add_(1)
        return x + w

    for views in ((lambda: r(4), lambda: w[0]), (lambda: w[0], lambda: r(4))):
        compiled = broach.compile(program)  # which it is not captured natively with
        for view in (*views, *views):
            x = view()
            kept_x, kept_w = x.clone(), w.clone()
            want = program(x)
            x.copy_(kept_x), w.copy_(kept_w)
            got = compiled(x)
            assert not (why := difference(want, got)), why


# ---- modules ----


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_modules_in_train_and_eval(mode):
    model, twin = Net(), Net()
    twin.load_state_dict(model.state_dict())
    getattr(model, mode)(), getattr(twin, mode)()
    compiled = native(model)
    for step in range(4):
        x = r(5, 4)
        torch.manual_seed(step)
        want = twin(x)
        torch.manual_seed(step)
        got = compiled(x)
        assert not (why := difference(want, got)), why
        assert not (why := difference(dict(twin.state_dict()), dict(model.state_dict()))), why
    ran_natively(compiled)


def test_hooks():
    model = Net().eval()
    seen = []
    model.a.register_forward_pre_hook(lambda m, args: (args[0] * 2,))
    model.a.register_forward_hook(lambda m, args, out: out + args[0].sum())
    model.register_forward_hook(lambda m, args, out: {"out": out})
    model.b.register_forward_hook(lambda m, args, kwargs, out: out * 3, with_kwargs=True)
    compiled = check(model, (r(3, 4),), (r(5, 4),))
    ran_natively(compiled)
    assert not seen


def test_a_hook_of_the_wrapper():
    model = Net().eval()
    compiled = native(model)
    compiled.register_forward_hook(lambda m, args, out: out + 1)
    x = r(3, 4)
    want = model(x) + 1
    for _ in range(3):
        assert not (why := difference(want, compiled(x))), why


def test_module_lists_and_dicts():
    class Tree(nn.Module):
        def __init__(self):
            super().__init__()
            self.list = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.dict = nn.ModuleDict({"relu": nn.ReLU(), "norm": nn.LayerNorm(4)})
            self.parameters_ = nn.ParameterList([nn.Parameter(r(4)) for _ in range(2)])

        def forward(self, x, which):
            for layer in self.list:
                x = x + layer(x)
            for p in self.parameters_:
                x = x * p
            return self.dict[which](x)

    ran_natively(check(Tree().eval(), (r(3, 4), "relu"), (r(3, 4), "norm"), (r(2, 4), "norm")))


# ---- tensor subclasses ----


class Tagged(torch.Tensor):
    """With nothing of its own but the type."""


def test_a_plain_subclass():
    def program(x):
        return x * 2 + 1

    compiled = broach.compile(program)
    for _ in range(3):
        x = r(3).as_subclass(Tagged)
        got = compiled(x)
        assert type(got) is Tagged and torch.equal(got, program(x))


def test_parameters_as_arguments():
    def program(p, x):
        return p * x, p

    p = nn.Parameter(r(3), requires_grad=False)
    compiled = native(program)
    for _ in range(3):
        got = compiled(p, r(3))
        assert got[1] is p and type(got[0]) is torch.Tensor
    ran_natively(compiled)


def test_a_two_tensor_subclass():
    from torch.testing._internal.two_tensor import TwoTensor

    def program(x):
        return (x * 2).sum() + 1

    compiled = broach.compile(program)
    for n in (3, 3, 4):
        x = TwoTensor(r(n), r(n))
        want, got = program(x), compiled(x)
        assert type(got) is TwoTensor
        assert torch.allclose(got.a, want.a) and torch.allclose(got.b, want.b)


# ---- modes ----

MODES = {
    "grad": lambda: torch.enable_grad(),
    "no grad": lambda: torch.no_grad(),
    "inference": lambda: torch.inference_mode(),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to half": lambda: torch.autocast("cpu", torch.float16),
    "autocast within inference": lambda: _both(torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)),
}


@contextlib.contextmanager
def _both(a, b):
    with a, b:
        yield


@pytest.mark.parametrize("name", MODES)
def test_modes(name):
    model = Net().eval().requires_grad_(False)
    with MODES[name]():
        ran_natively(check(model, (r(3, 4),), (r(5, 4),), rtol=2e-2, atol=2e-2))


def test_modes_that_alternate():
    model = Net().eval().requires_grad_(False)
    compiled = native(model)
    x = r(3, 4)
    for _ in range(3):
        for mode in MODES.values():
            with mode():
                want, got = model(x), compiled(x)
                assert want.is_inference() == got.is_inference()
                assert not (why := difference(want, got, 2e-2, 2e-2)), why
    ran_natively(compiled)


def test_modes_set_by_the_program():
    def program(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x.t()
        with torch.no_grad(), torch.inference_mode(False):
            return y, torch.is_grad_enabled()

    with torch.enable_grad():
        ran_natively(check(program, (r(3, 4),), (r(5, 4),)))


def test_gradients_are_eagers():
    model = Net().eval()
    compiled = broach.compile(model)
    with torch.enable_grad():
        for _ in range(3):
            x = r(3, 4).requires_grad_()
            compiled(x).square().sum().backward()
            got = [x.grad, *(p.grad for p in model.parameters())]
            x.grad = None
            model.zero_grad()
            model(x).square().sum().backward()
            want = [x.grad, *(p.grad for p in model.parameters())]
            model.zero_grad()
            assert not (why := difference(want, got)), why


# ---- inside other transforms ----


def test_inside_vmap_and_grad():
    def program(x):
        return (x * x).sum()

    compiled = native(program)
    x = r(5, 3)
    for _ in range(3):
        assert torch.allclose(torch.func.vmap(compiled)(x), torch.func.vmap(program)(x))
        assert torch.allclose(torch.func.grad(compiled)(x), 2 * x)
        assert torch.allclose(torch.func.jvp(compiled, (x,), (torch.ones_like(x),))[1], 2 * x.sum())
        assert torch.allclose(compiled(x), program(x))


def test_transforms_inside():
    def program(x, w):
        return torch.func.vmap(lambda row: row @ w)(x), torch.vmap(torch.sum)(x)

    compiled = broach.compile(program)
    for n in (3, 3, 5):
        x, w = r(n, 4), r(4)
        assert not (why := difference(program(x, w), compiled(x, w))), why


def test_nested_compiled_functions():
    inner = native(lambda x: x * 2 + 1)
    model = native(Net().eval())

    def program(x):
        return inner(model(x)).sum() + inner(x).sum()

    ran_natively(check(program, (r(3, 4),), (r(5, 4),)))
    check(lambda x: x * 2 + 1, (r(3),), compiled=inner)


def test_a_program_that_calls_its_compiled_self():
    def program(x, depth):
        return x if depth == 0 else compiled(x + 1, depth - 1) * 2

    compiled = native(program)
    for depth in (2, 3, 2, 0, 3):
        x = r(3)
        want = x
        for _ in range(depth):
            want = want + 1
        want = want * 2**depth
        assert torch.allclose(compiled(x, depth), want)


def test_under_a_dispatch_mode_or_function_mode():
    from torch.utils._python_dispatch import TorchDispatchMode

    counted = []

    class Counts(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            counted.append(func)
            return func(*args, **(kwargs or {}))

    compiled = native(double)
    x = r(3)
    compiled(x), compiled(x)
    with Counts():
        compiled(x)
    assert len(counted) == 1
    with torch.device("meta"):
        assert native(lambda: torch.zeros(3))().device.type == "meta"


def test_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    compiled = native(double)
    compiled(r(3))
    with FakeTensorMode():
        assert compiled(torch.empty(3)).shape == (3,)
    check(double, (r(3),), compiled=compiled)


# ---- threads ----


def test_threads():
    model = Net().eval()
    compiled = native(model)
    inputs = [r(n, 4) for n in (2, 3, 5, 7)]
    wanted = [model(x) for x in inputs]
    problems = []
    barrier = threading.Barrier(8)

    def work(k):
        barrier.wait()
        with torch.no_grad():
            for i in range(60):
                n = (i + k) % len(inputs)
                if why := difference(wanted[n], compiled(inputs[n])):
                    problems.append(why)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems, problems[0]
    s = stats(compiled)
    assert s["front"] == "native" and s["compiled_calls"] > 0 and not s["reasons"], s


def test_a_thread_of_its_own():
    compiled = native(double)
    results = []

    def work():
        with torch.no_grad():
            for _ in range(3):
                results.append(compiled(torch.ones(3)))

    t = threading.Thread(target=work)
    t.start()
    t.join()
    assert len(results) == 3 and all(torch.equal(x, torch.full((3,), 2.0)) for x in results)
    ran_natively(compiled)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad], ids=lambda m: m.__name__)
def test_constants_made_by_the_program(mode):
    def program(x):
        made = torch.tensor([1.0, 2.0])
        return x * made + torch.tensor(3) + torch.cat([torch.tensor([], dtype=x.dtype).reshape(0, 2), x]).sum()

    with mode():
        compiled = native(program)
        for n in (3, 3, 4, 5):
            torch.testing.assert_close(compiled(torch.ones(n, 2)), program(torch.ones(n, 2)))
    assert stats(compiled)["compiled_calls"] == 2


@pytest.mark.parametrize("make", [nn.LazyConv1d, nn.LazyLinear, nn.LazyBatchNorm1d])
def test_sizes_that_parameters_get_in_the_first_call(make):
    torch.manual_seed(0)
    model = nn.Sequential(make() if make is nn.LazyBatchNorm1d else make(4, 3) if make is nn.LazyConv1d else make(4), nn.ReLU())
    compiled = broach.compile(model)
    for _ in range(6):
        x = torch.randn(4, 3, 5)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert compiled._compiled_call.stats()["compiled_calls"] >= 2, compiled._compiled_call.stats()["attempts"]
