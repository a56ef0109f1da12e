"""What a compiled callable is to its user: a function or module like the one it was made of, which leaks nothing and keeps
nothing alive."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import os
import pickle
import resource
import sys
import weakref

import broach
import pytest
import torch
from compared import check, difference, native, ran_natively, stats
from torch import nn

ALL = os.environ.get("BROACH_TEST_ALL") == "1"


def plain(x: torch.Tensor, scale: float = 2.0, *, shift: int = 0) -> torch.Tensor:
    """Scales."""
    return x * scale + shift


plain.mark = "kept"  # type: ignore[attr-defined]


@functools.partial(broach.compile, options={"capture": "native"})
def decorated(x):
    return x * 2


@broach.compile
def decorated_plainly(x):
    return x * 3


@broach.compile(fullgraph=True, dynamic=False)
def decorated_with_arguments(x):
    return x * 4


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 6), nn.LayerNorm(6)
        self.register_buffer("shift", torch.randn(6))

    def forward(self, x):
        return self.b(torch.relu(self.a(x))) + self.shift

    def describe(self):
        return "a net"


class WithMethods:
    def __init__(self, n):
        self.n = n

    @broach.compile
    def method(self, x):
        return x * self.n

    @classmethod
    @broach.compile
    def of_class(cls, x):
        return x * 5

    @staticmethod
    @broach.compile
    def of_none(x):
        return x * 6


def test_it_looks_like_the_function():
    compiled = native(plain)
    assert compiled.__wrapped__ is plain
    assert compiled.__name__ == "plain" and compiled.__qualname__ == plain.__qualname__ and compiled.__module__ == __name__
    assert compiled.__doc__ == "Scales." and compiled.mark == "kept"
    assert inspect.signature(compiled) == inspect.signature(plain)
    assert compiled.__annotations__ == plain.__annotations__
    assert callable(compiled) and "plain" in repr(compiled)
    assert hash(compiled) == hash(compiled) and compiled == compiled and compiled != native(plain)
    compiled.other = 3
    assert compiled.other == 3
    assert inspect.unwrap(compiled) is plain


def test_decorators():
    x = torch.randn(3)
    for f, n in ((decorated, 2), (decorated_plainly, 3), (decorated_with_arguments, 4)):
        for _ in range(3):
            assert torch.equal(f(x), x * n)
        ran_natively(f)


def test_methods():
    a, b = WithMethods(2), WithMethods(3)
    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(a.method(x), x * 2) and torch.equal(b.method(x), x * 3)
        assert torch.equal(WithMethods.method(a, x), x * 2)
        assert torch.equal(a.of_class(x), x * 5) and torch.equal(WithMethods.of_class(x), x * 5)
        assert torch.equal(a.of_none(x), x * 6) and torch.equal(WithMethods.of_none(x), x * 6)
    a.n = 7
    assert torch.equal(a.method(x), x * 7)
    assert a.method.__self__ is a


def test_a_module_stays_a_module():
    model = Net().eval()
    compiled = native(model)
    assert isinstance(compiled, nn.Module) and compiled._orig_mod is model
    assert compiled.a is model.a and compiled.describe() == "a net"
    assert [n for n, _ in compiled.named_parameters()] == ["_orig_mod." + n for n, _ in model.named_parameters()]
    assert set(compiled.state_dict()) == {"_orig_mod." + k for k in model.state_dict()}
    compiled.train()
    assert model.training and compiled.training
    compiled.eval()
    compiled.extra = 5
    assert model.extra == 5
    assert sum(p.numel() for p in compiled.parameters()) == sum(p.numel() for p in model.parameters())
    check(model, (torch.randn(3, 4),), compiled=compiled)
    outer = nn.Sequential(compiled, nn.ReLU())
    assert torch.allclose(outer(x := torch.randn(3, 4)), torch.relu(model(x)), atol=1e-5)
    assert torch.allclose(native(outer)(x), torch.relu(model(x)), atol=1e-5)


def test_pickling():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    x = torch.randn(3, 4)
    model = Net().eval()
    compiled = native(model)
    compiled(x)
    again = pickle.loads(pickle.dumps(compiled))
    assert isinstance(again, type(compiled)) and again is not compiled
    assert torch.allclose(again(x), model(x), atol=1e-5)
    ran_natively(check(again._orig_mod, (x,), compiled=again))
    buffer = io.BytesIO()
    torch.save(compiled.state_dict(), buffer)
    buffer.seek(0)
    again.load_state_dict(torch.load(buffer))
    partial = native(functools.partial(plain, scale=3.0))
    assert torch.equal(pickle.loads(pickle.dumps(partial))(x), x * 3)


def test_deepcopy():
    model = Net().eval()
    compiled = native(model)
    x = torch.randn(3, 4)
    want = compiled(x)
    other = copy.deepcopy(compiled)
    assert other._orig_mod is not model
    other._orig_mod.shift.add_(1)
    assert torch.allclose(other(x), want + 1, atol=1e-5) and torch.allclose(compiled(x), want, atol=1e-5)
    function = copy.deepcopy(decorated)
    assert torch.equal(function(x), x * 2)
    assert copy.copy(decorated) is decorated or torch.equal(copy.copy(decorated)(x), x * 2)


def test_weak_references():
    compiled = native(lambda x: x * 2)
    seen = []
    r = weakref.ref(compiled, seen.append)
    compiled(torch.randn(3))
    assert r() is compiled
    del compiled
    gc.collect()
    assert r() is None and seen


def test_use_as_key_and_in_containers():
    compiled = native(plain)
    assert {compiled: 1}[compiled] == 1 and compiled in [compiled]


def test_explain_before_and_after():
    x = torch.randn(5)
    for fn in (plain, native(plain), native(Net().eval())):
        given = x if not isinstance(fn, nn.Module) else torch.randn(2, 4)
        told = broach.explain(fn, given)
        assert told.front == "native" and told.kernels > 0 and not told.eager_reasons
        assert "native" in str(told)


def test_reset():
    compiled = native(plain)
    x = torch.randn(3)
    compiled(x), compiled(x)
    assert stats(compiled)["programs"]
    broach.reset()
    assert not stats(compiled)["programs"]
    check(plain, (x,), compiled=compiled)


def test_bad_options():
    with pytest.raises(ValueError, match="capture"):
        broach.compile(plain, options={"capture": "magically"})
    with pytest.raises(ValueError, match="verify"):
        broach.compile(plain, options={"verifi": 3})
    with pytest.raises(TypeError, match="whole number"):
        broach.compile(plain, options={"verify": True})


def test_capture_through_dynamo_gives_the_same():
    x = torch.randn(3, 4)
    model = Net().eval()
    through = broach.compile(model, options={"capture": "dynamo"})
    for _ in range(2):
        assert not (why := difference(native(model)(x), through(x))), why
    assert broach.explain(through, x).front == "dynamo"


# ---- nothing is kept ----


def _kilobytes() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() // 1024


def _calls():
    model = Net().eval()

    class Cache:
        def __init__(self):
            self.items = []

    def containers(d, xs, cache):
        d["out"] = d["x"] * 2
        xs.append(d["x"] + 1)
        cache.items.append(d["x"])
        cache.last = d["x"] + 2
        return {"a": [d["x"], xs], "b": (d["out"], None, 3)}

    x, y = torch.randn(3, 4), torch.randn(5, 4)
    return {
        "function": (native(plain), lambda f: f(x, 3.0, shift=1)),
        "module": (native(model), lambda f: f(x)),
        "sizes that alternate": (native(plain), lambda f: (f(x), f(y))),
        "containers": (native(containers), lambda f: f({"x": x}, [x], Cache())),
        "method": (WithMethods.__dict__["method"], lambda f, o=WithMethods(2): o.method(x)),
        "error": (native(lambda x, i: x[i]), _wrong_index),
        "gradients": (native(model), _with_gradients),
        "fallback": (broach.compile(_caught), lambda f: f(x)),
    }


def _caught(x):
    try:
        return torch.matmul(x, torch.ones(77, 77))
    except RuntimeError:
        return x


def _wrong_index(f):
    try:
        f(torch.ones(3), torch.tensor([7]))
    except IndexError:
        pass


def _with_gradients(f):
    with torch.enable_grad():
        f(torch.ones(2, 4))


FEWER = {"error": 2000, "gradients": 300}  # slow calls of eager's


@pytest.mark.parametrize("name", ["function", "module", "sizes that alternate", "containers", "method", "error", "gradients", "fallback"])
def test_reference_counts_and_memory_stay_flat(name):
    compiled, call = _calls()[name]
    for _ in range(300):
        call(compiled)
    gc.collect()
    watched = [None, True, 3, torch.float32, compiled, type(compiled), torch.Tensor, getattr(compiled, "_orig_mod", plain)]
    n = 10000 if ALL or name not in FEWER else FEWER[name]

    def counted():
        gc.collect()
        return [sys.getrefcount(o) for o in watched], len(gc.get_objects()), _kilobytes()

    def grown():
        before = counted()
        for _ in range(n):
            call(compiled)
        after = counted()
        return [b - a for a, b in zip(before[0], after[0])], after[1] - before[1], after[2] - before[2]

    # What a call leaks shows in both rounds; what other tests left, of None most of all, comes and goes.
    rounds = grown(), grown()
    for o, *differences in zip(watched, *(references for references, _, _ in rounds)):
        assert min(map(abs, differences)) < max(200, n // 10), f"{differences} references to {o!r} in {n} calls"
    assert min(objects for _, objects, _ in rounds) < 200, f"{rounds} objects in {n} calls"
    assert min(memory for _, _, memory in rounds) < 6000, f"{rounds} KiB in {n} calls"


def test_captures_leak_nothing():
    x = torch.randn(3, 4)

    def once():
        compiled = native(Net().eval())
        compiled(x), compiled(x)

    for _ in range(5):
        once()
    gc.collect()
    before, memory = len(gc.get_objects()), _kilobytes()
    for _ in range(30):
        once()
    gc.collect()
    assert abs(len(gc.get_objects()) - before) < 100
    assert _kilobytes() - memory < 20000


def test_a_model_dies_with_its_wrapper():
    gc.collect()
    gc.disable()
    try:
        model = Net().eval()
        compiled = native(model)
        compiled(torch.randn(3, 4)), compiled(torch.randn(5, 4)), compiled(torch.randn(6, 4))
        ran_natively(compiled)
        seen = [weakref.ref(o) for o in (model, model.a.weight, compiled)]
        del model, compiled
        gc.collect()
        assert [r() for r in seen] == [None] * 3
    finally:
        gc.enable()


def test_a_cycle_through_the_wrapper_is_collected():
    class Owner:
        def __init__(self):
            self.model = Net().eval()
            self.run = native(self.step)

        def step(self, x):
            return self.model(x) * 2

    owner = Owner()
    x = torch.randn(3, 4)
    owner.run(x), owner.run(x)
    ran_natively(owner.run)
    seen = [weakref.ref(owner), weakref.ref(owner.model.a.weight)]
    del owner
    gc.collect()
    assert [r() for r in seen] == [None, None]


def test_a_program_that_knows_its_compiled_self_is_collected():
    holder = {}

    def program(x):
        return x * 2 if "again" not in holder else holder["again"]

    holder["compiled"] = compiled = native(program)
    compiled(torch.randn(3)), compiled(torch.randn(3))
    seen = weakref.ref(compiled)
    del compiled, holder, program
    gc.collect()
    assert seen() is None


def test_arguments_and_results_are_not_kept():
    compiled = native(lambda x, d: {"a": x + 1, "b": d["y"]})
    x, d = torch.randn(1000), {"y": torch.randn(1000)}
    out = compiled(x, d)
    out = compiled(x, d)
    seen = [weakref.ref(t) for t in (x, d["y"], out["a"])]
    del x, d, out
    gc.collect()
    assert [r() for r in seen] == [None] * 3


@torch.no_grad()
def test_versions_beyond_the_limit():
    """What is compiled stays in use, and other calls run eagerly."""

    def program(x):
        return torch.relu(x * 2 + 1)

    compiled = broach.compile(program, dynamic=False)
    for rows in range(2, 38):
        x = torch.randn(rows)
        for _ in range(2):  # the second one uses what the first has compiled
            assert not (why := difference(program(x), compiled(x))), why
    before = stats(compiled)
    assert before["front"] == "native" and before["eager_calls"] == 8
    x = torch.randn(2)
    assert not (why := difference(program(x), compiled(x))), why
    assert stats(compiled)["compiled_calls"] == before["compiled_calls"] + 1


@torch.no_grad()
def test_inputs_are_not_forgotten_at_once():
    """Among many that come once, what comes again is captured in the end."""
    compiled = broach.compile(lambda x: x * 2 + 1, dynamic=False)
    inputs = torch.zeros(4300)
    for rows in range(10, 4010):
        compiled(inputs[:rows])
    for rows in (4299, 4299, *range(4010, 4210), 4299, 4299):
        before = stats(compiled)
        compiled(inputs[:rows])
    assert stats(compiled)["compiled_calls"] == before["compiled_calls"] + 1
