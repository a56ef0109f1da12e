"""Python state that a captured program read: a change of any of it must be seen on the next call, nothing else may lead to
another capture, and programs with effects must not run from a trace."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import random
import sys
import time
import types
import weakref
from typing import Any, Callable, NamedTuple

import broach
import pytest
import torch
from compared import check, difference, native, r, ran_natively, stats
from torch import nn
from torch.nn.utils import parametrize


# ---- changes between calls ----

SCALE = 2.0
SETTINGS = {"deep": {"scale": 2.0}, "list": [1.0, 2.0]}
GLOBAL_TENSOR = torch.ones(4)


class Inner:
    factor = 3.0

    def __init__(self):
        self.x = 1.5
        self.items = [1.0, [2.0, 3.0]]
        self.names = {"a", "b"}
        self.table = {"k": 2.0}
        self.queue = collections.deque([1.0, 2.0])
        self.pair = (1.0, [2.0])
        self.order = collections.OrderedDict(a=1.0, b=2.0)
        self.counts = collections.defaultdict(float, k=2.0)

    @property
    def doubled(self):
        return self.x * 2

    def scaled(self, x):
        return x * self.factor


class Slots:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 2.0


class Config:
    def __init__(self):
        self.act, self.layers, self.eps = "relu", 2, 1e-5


@dataclasses.dataclass
class Data:
    scale: float = 2.0


class Mode(enum.Enum):
    A = 1
    B = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = Config()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("shift", torch.ones(4))
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.mode = Mode.A
        self.optional = None
        self.method_of_other = Inner().scaled
        self.plain_tensor = torch.ones(4)

    def act(self, x):
        return torch.relu(x)

    def forward(self, x):
        for _ in range(self.config.layers):
            x = getattr(torch, self.config.act)(self.a(x)) + self.config.eps
        for block in self.blocks:
            x = block(x)
        if self.mode is Mode.B:
            x = x * 5
        if self.optional is not None:
            x = self.optional(x)
        return self.act(self.drop(self.b(x))) * self.scale + self.shift * self.plain_tensor


class Case(NamedTuple):
    name: str
    program: Callable
    change: Callable[[], None]


def _with_closure():
    scale, box, tensor = 2.0, [2.0], torch.ones(4)

    def program(x, default=3.0, *, keyword=4.0):
        return x * scale + box[0] + tensor + default + keyword

    def rebind(n, t):
        nonlocal scale, tensor
        scale, tensor = n, t

    return program, rebind, box


def _set(o, name, value):
    return lambda: setattr(o, name, value)


def _global(name, value):
    return lambda: globals().__setitem__(name, value)


def _cases() -> list[Case]:
    cases = []

    def add(name, program, change):
        cases.append(Case(name, program, change))

    for name, read, change in [
        ("attribute", lambda o: o.x, lambda o: setattr(o, "x", 9.0)),
        ("attribute through a property", lambda o: o.doubled, lambda o: setattr(o, "x", 9.0)),
        ("list element", lambda o: o.items[0], lambda o: o.items.__setitem__(0, 9.0)),
        ("list in a list", lambda o: o.items[1][1], lambda o: o.items[1].__setitem__(1, 9.0)),
        ("list that grows", lambda o: float(len(o.items)), lambda o: o.items.append(1)),
        ("list that shrinks", lambda o: float(len(o.items)), lambda o: o.items.pop()),
        ("list that is sorted", lambda o: o.queue[0] + o.items[0], lambda o: o.items.reverse() or o.items.__setitem__(0, 8.0)),
        ("set that grows", lambda o: float("c" in o.names), lambda o: o.names.add("c")),
        ("set with an element replaced", lambda o: float("a" in o.names), lambda o: o.names.remove("a") or o.names.add("z")),
        ("dict item", lambda o: o.table["k"], lambda o: o.table.__setitem__("k", 9.0)),
        ("dict item that comes", lambda o: o.table.get("z", 1.0), lambda o: o.table.__setitem__("z", 9.0)),
        ("dict item that goes", lambda o: o.table.get("k", 7.0), lambda o: o.table.pop("k")),
        ("deque", lambda o: o.queue[0], lambda o: o.queue.appendleft(9.0)),
        ("list in a tuple", lambda o: o.pair[1][0], lambda o: o.pair[1].__setitem__(0, 9.0)),
        ("order of an OrderedDict", lambda o: list(o.order.values())[0], lambda o: o.order.move_to_end("a")),
        ("defaultdict", lambda o: o.counts["k"], lambda o: o.counts.__setitem__("k", 9.0)),
        ("class attribute", lambda o: o.factor, lambda o: setattr(type(o), "factor", 9.0)),
        ("instance over class attribute", lambda o: o.factor, lambda o: setattr(o, "factor", 9.0)),
        ("method patched", lambda o: o.scaled(1.0), lambda o: setattr(type(o), "scaled", lambda self, x: x * 8)),
        ("method patched on the instance", lambda o: o.scaled(1.0), lambda o: setattr(o, "scaled", lambda x: x * 8)),
        ("property patched", lambda o: o.doubled, lambda o: setattr(type(o), "doubled", property(lambda self: 8.0))),
        ("class changed", lambda o: o.scaled(1.0), lambda o: setattr(o, "__class__", type("Other", (type(o),), {"factor": 8.0}))),
        ("number of another type", lambda o: o.x, lambda o: setattr(o, "x", torch.tensor(1.5, dtype=torch.float64))),
        ("zero of another sign", lambda o: torch.copysign(torch.ones(()), torch.tensor(o.x)), lambda o: setattr(o, "x", -0.0)),
        ("attribute removed", lambda o: getattr(o, "x", 7.0), lambda o: delattr(o, "x")),
        ("dict replaced", lambda o: o.table["k"], lambda o: setattr(o, "table", {"k": 9.0})),
        ("__dict__ replaced", lambda o: o.x, lambda o: setattr(o, "__dict__", {**vars(o), "x": 9.0})),
    ]:
        kind = type("Own", (Inner,), {"factor": 3.0, "scaled": Inner.scaled, "doubled": Inner.doubled})
        o = kind()
        if name == "zero of another sign":
            o.x = 0.0
        add(name, (lambda read, o: lambda x: x * read(o))(read, o), (lambda change, o: lambda: change(o))(change, o))

    s = Slots()
    add("slot", lambda x: x * s.a, _set(s, "a", 9.0))
    s2 = Slots()
    add("slot that is filled", lambda x: x * getattr(s2, "b", 1.0), _set(s2, "b", 9.0))
    d = Data()
    add("dataclass field", lambda x: x * d.scale, _set(d, "scale", 9.0))
    n = types.SimpleNamespace(a=2.0)
    add("namespace", lambda x: x * n.a, _set(n, "a", 9.0))

    add("global", lambda x: x * SCALE, _global("SCALE", 9.0))
    add("global in depth", lambda x: x * SETTINGS["deep"]["scale"], lambda: SETTINGS["deep"].__setitem__("scale", 9.0))
    add("global tensor", lambda x: x * GLOBAL_TENSOR, _global("GLOBAL_TENSOR", torch.full((4,), 9.0)))
    add("elements of a global tensor", lambda x: x + SCALE_TENSOR, lambda: SCALE_TENSOR.fill_(9.0))
    add("global function", lambda x: _helper(x), _global("_helper", lambda x: x * 9))
    add("global that shadows a builtin", lambda x: x * abs(-2.0), _global("abs", lambda x: 9.0))
    module = types.ModuleType("some_users_module")
    module.__dict__.update(scale=2.0)
    sys.modules["some_users_module"] = module
    add("attribute of a module", lambda x: x * module.scale, _set(module, "scale", 9.0))
    for what in ("code", "defaults", "keyword defaults", "attribute"):
        program = (lambda: (lambda x, a=2.0, *, b=3.0: x * a + b * getattr(_helper, "mark", 1.0)))()
        change = {
            "code": lambda p=program: setattr(p, "__code__", (lambda x, a=2.0, *, b=3.0: x * a - b).__code__),
            "defaults": _set(program, "__defaults__", (9.0,)),
            "keyword defaults": lambda p=program: p.__kwdefaults__.__setitem__("b", 9.0),
            "attribute": lambda: setattr(_helper, "mark", 9.0),
        }[what]
        add(f"function's {what}", program, change)
    program, rebind, box = _with_closure()
    add("closure cell", program, lambda: rebind(9.0, torch.ones(4)))
    program, rebind2, _ = _with_closure()
    add("tensor in a closure cell", program, lambda: rebind2(2.0, torch.full((4,), 9.0)))
    program, _, box = _with_closure()
    add("list in a closure", program, lambda: box.__setitem__(0, 9.0))
    ref_target = Inner()
    holder = types.SimpleNamespace(ref=weakref.ref(ref_target), keep=ref_target)
    add("through a weak reference", lambda x: x * holder.ref().x, _set(ref_target, "x", 9.0))

    def model(name, change, **kw):
        m = Model().eval()
        add(f"module: {name}", m, lambda: change(m))

    model("config field", lambda m: setattr(m.config, "act", "tanh"))
    model("config number", lambda m: setattr(m.config, "layers", 3))
    model("config object", lambda m: setattr(m, "config", type("C", (), {"act": "sigmoid", "layers": 1, "eps": 0.0})()))
    model("forward hook", lambda m: m.a.register_forward_hook(lambda m, a, out: out * 2))
    model("pre hook", lambda m: m.register_forward_pre_hook(lambda m, a: (a[0] * 2,)))
    model("hook of a deep module", lambda m: m.blocks[1].register_forward_hook(lambda m, a, out: out + 1))
    model("submodule replaced", lambda m: setattr(m, "a", nn.Linear(4, 4, bias=False)))
    model("submodule in a list replaced", lambda m: m.blocks.__setitem__(0, nn.Identity()))
    model("submodule appended", lambda m: m.blocks.append(nn.Linear(4, 4)))
    model("submodule given", lambda m: setattr(m, "optional", nn.Tanh()))
    model("parameter replaced", lambda m: setattr(m, "scale", nn.Parameter(r(4))))
    model("parameter of a deep module replaced", lambda m: setattr(m.blocks[1], "weight", nn.Parameter(r(4, 4))))
    model("parameter set to None", lambda m: setattr(m.a, "bias", None))
    model("parameter's elements", lambda m: m.scale.mul_(3))
    model("parameter's data", lambda m: setattr(m.a.weight, "data", r(4, 4)))
    model("parameter's shape", lambda m: setattr(m.scale, "data", r(1)))
    model("buffer replaced", lambda m: setattr(m, "shift", r(4)))
    model("buffer's elements", lambda m: m.shift.fill_(5))
    model("tensor attribute replaced", lambda m: setattr(m, "plain_tensor", r(4)))
    model("dtype", lambda m: m.double().float().a.weight.add_(1))
    model("state dict loaded", lambda m: m.load_state_dict(Model().state_dict()))
    model("training flag", lambda m: m.train())
    model("training flag of one", lambda m: m.drop.train())
    model("dropout's probability", lambda m: (setattr(m.drop, "p", 0.9), m.drop.train()))
    model("enum member", lambda m: setattr(m, "mode", Mode.B))
    model("method patched on the instance", lambda m: setattr(m, "act", lambda x: x * 7))
    model("forward patched", lambda m: setattr(m, "forward", lambda x: x * 7))
    model("bound method of an object", lambda m: setattr(m.method_of_other.__self__, "x", 2))
    model("normal dict entry", lambda m: m.__dict__.__setitem__("act", torch.tanh))
    return cases


def _helper(x):
    return x * 2


SCALE_TENSOR = torch.full((4,), 2.0)
CASES = _cases()


@pytest.fixture
def _globals_restored():
    kept = {k: globals().get(k) for k in ("SCALE", "GLOBAL_TENSOR", "_helper", "abs")}
    yield
    for k, v in kept.items():
        if v is None:
            globals().pop(k, None)
        else:
            globals()[k] = v
    _helper.__dict__.clear()


def _agrees(program, compiled, x) -> str:
    """The same random numbers for both."""
    torch.manual_seed(5)
    want = program(x)
    torch.manual_seed(5)
    return difference(want, compiled(x))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_a_change_is_seen(case, _globals_restored):
    compiled = native(case.program)
    x = r(3, 4)
    for _ in range(3):
        assert not (why := _agrees(case.program, compiled, x)), why
    ran_natively(compiled)
    before = stats(compiled)["captures"]
    assert before == 1
    case.change()
    for _ in range(3):
        assert not (why := _agrees(case.program, compiled, x)), why
    assert stats(compiled)["front"] == "native"


def test_ambient_settings():
    def program(x):
        return x.softmax(-1) + torch.ones(4), torch.tensor(2.5), torch.arange(3.0), torch.is_grad_enabled()

    compiled = native(program)
    x = r(3, 4)
    changes = {
        "default dtype": (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        "grad mode": (lambda: torch.set_grad_enabled(True), lambda: torch.set_grad_enabled(False)),
        "deterministic": (lambda: torch.use_deterministic_algorithms(True), lambda: torch.use_deterministic_algorithms(False)),
        "matmul precision": (lambda: torch.set_float32_matmul_precision("high"), lambda: torch.set_float32_matmul_precision("highest")),
        "default device": (lambda: torch.set_default_device("cpu"), lambda: torch.set_default_device(None)),
        "threads": (lambda: torch.set_num_threads(1), lambda: torch.set_num_threads(2)),
    }
    for _ in range(2):
        for name, (change, undo) in changes.items():
            for each in (change, undo):
                each()
                try:
                    assert not (why := difference(program(x), compiled(x))), f"{name}: {why}"
                finally:
                    undo()
    assert stats(compiled)["front"] == "native"


def test_settings_of_which_torch_makes_no_one_answer():
    """`torch.backends.cudnn.allow_tf32` raises where convolutions and recurrent layers differ."""

    def program(x):
        return (x * 2 + 1).relu()

    compiled, x = native(program), r(3, 4)
    rnn = torch.backends.cudnn.rnn
    before = rnn.fp32_precision
    for precision in ("ieee", before) * 2:
        try:
            rnn.fp32_precision = precision
            assert not (why := difference(program(x), compiled(x))), why
        finally:
            rnn.fp32_precision = before
    ran_natively(compiled)


def test_a_global_hook():
    model = Model().eval()
    compiled = native(model)
    x = r(3, 4)
    for _ in range(2):
        assert not (why := _agrees(model, compiled, x)), why
    handle = nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2)
    try:
        for _ in range(2):
            assert not (why := _agrees(model, compiled, x)), why
    finally:
        handle.remove()
    assert not (why := _agrees(model, compiled, x)), why


def test_environment_variables(monkeypatch):
    import os

    def program(x):
        return x * float(os.environ.get("BROACH_TEST_SCALE", "2"))

    compiled = native(program)
    x = r(3)
    for value in ("3", "4", None, "3"):
        monkeypatch.setenv("BROACH_TEST_SCALE", value) if value else monkeypatch.delenv("BROACH_TEST_SCALE")
        assert not (why := difference(program(x), compiled(x))), why
    ran_natively(compiled)


def test_what_is_not_read_may_change():
    o = Inner()

    def program(x):
        return x * 2 + WEIGHTS["a"]

    compiled = native(program)
    for n in range(5):
        o.x = n
        globals()["UNUSED"] = n
        compiled(r(4))
    assert stats(compiled)["captures"] == 1


WEIGHTS = {"a": torch.ones(4)}


def test_equal_values_need_no_capture():
    model = Model().eval()
    compiled = native(model)
    for n in range(6):
        model.config.act = "re" + "lu"[n * 0 :]
        model.config.eps = float("1e-5")
        model.config.layers = 2
        model.eval()
        compiled(r(3, 4))
    assert stats(compiled)["captures"] == 1
    ran_natively(compiled)


def test_going_back_finds_the_first_version_again():
    model = Model().eval()
    compiled = native(model)
    x = r(3, 4)
    for n in range(8):
        model.config.act = ("relu", "tanh")[n % 2]
        assert not (why := _agrees(model, compiled, x)), why
    assert stats(compiled)["captures"] == 2


def test_parameters_may_be_trained_between_calls():
    model = Model().eval()
    compiled = native(model)
    for _ in range(5):
        for p in model.parameters():
            p.sub_(0.1 * torch.randn_like(p))
        assert not (why := _agrees(model, compiled, r(3, 4))), why
    assert stats(compiled)["captures"] == 1


# ---- effects ----


def _prints(x):
    print("seen")
    return x * 2


def _reads_the_clock(x):
    return x * (time.time() > 0)


def _draws(x):
    return x * random.random()


def _draws_numpy(x):
    import numpy

    return x * float(numpy.random.rand())


def _writes_a_file(x):
    with open("/dev/null", "w") as f:
        f.write("x")
    return x * 2


def _catches(x):
    try:
        return torch.matmul(x, torch.ones(77, 3))
    except RuntimeError:
        return x * 2


def _sleeps(x):
    time.sleep(0)
    return x * 2


def _to_numpy(x):
    return x * float(x.numpy().sum())


def _to_list(x):
    return x * torch.cat([x] * 40).tolist()[0]  # a short list is one of elements


def _address(x):
    return x * (x.data_ptr() % 2)


def _shows(x):
    return x * len(str(x))


def _sets_a_seed(x):
    torch.manual_seed(3)
    return torch.rand_like(x) + x


def _sets_data(x):
    y = x * 2
    y.data = x + 1
    return y


def _evaluates(x):
    return eval("x * 2", {"x": x})


def _imports(x):
    import this_is_no_module_of_ours  # noqa: F401

    return x


_numbers = iter(range(1000))


def _consumes(x):
    return x * next(_numbers)


EFFECTS = {
    "print": (_prints, "print"),
    "clock": (_reads_the_clock, "time"),
    "random": (_draws, "random"),
    "numpy's random": (_draws_numpy, "rand"),
    "file": (_writes_a_file, "open"),
    "caught exception": (_catches, "caught"),
    "sleep": (_sleeps, "sleep"),
    "numpy": (_to_numpy, "numpy"),
    "list": (_to_list, "tolist|_local_scalar_dense|host"),
    "address": (_address, "data_ptr"),
    "text of a tensor": (_shows, "text"),
    "seed": (_sets_a_seed, ""),
    "data of a tensor": (_sets_data, "data"),
    "eval": (_evaluates, "eval"),
    "generator from outside": (_consumes, "iterator"),
}

NO_LINE = ("generator from outside", "numpy's random")


@pytest.mark.parametrize("name", EFFECTS)
def test_effects_raise_under_native(name):
    program, why = EFFECTS[name]
    compiled = native(program)
    with pytest.raises(broach.CaptureError, match=why) as told:
        for _ in range(4):
            compiled(torch.ones(3))
    assert "test_native_state.py:" in str(told.value) or name in NO_LINE


@pytest.mark.parametrize("name", ["print", "clock", "caught exception", "numpy", "file", "seed"])
@pytest.mark.parametrize("capture", ["auto", "either"])
def test_effects_happen_in_every_call(name, capture, capsys):
    program, _ = EFFECTS[name]
    compiled = broach.compile(program, options={"capture": capture})
    calls = 6
    for _ in range(calls):
        x = torch.ones(3)
        torch.manual_seed(1)
        want = program(x)
        capsys.readouterr()
        torch.manual_seed(1)
        got = compiled(x)
        assert not (why := difference(want, got)), why
        assert capsys.readouterr().out == ("seen\n" if name == "print" else "")
    told = broach.explain(compiled, torch.ones(3))
    is_eager = capture == "auto" or name in ("caught exception", "numpy")
    assert told.front == ("eager" if is_eager else "dynamo") and told.capture_reasons, told


def test_an_error_of_an_operator_is_caught():
    def program(x, i):
        try:
            return torch.ones(3)[i] + x
        except IndexError:
            return x * 2

    compiled = broach.compile(program)
    for i in (7, 1, 7, 0):
        x, index = torch.ones(3), torch.tensor([i])
        assert not (why := difference(program(x, index), compiled(x, index))), why


# ---- values that a program keeps from call to call ----


class Statistics(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.last, self.steps = torch.zeros(4), None, 2
        self.register_buffer("peak", torch.zeros(4))
        self.log, self.table = [], {}

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        self.peak = torch.maximum(self.peak, x.amax(0))
        self.last = x
        self.log.append(x.sum())
        self.table["out"] = x * 2
        return x - self.mean


def _same_state(a, b) -> str:
    fields = ("mean", "peak", "last", "log", "table", "steps")
    return difference({f: getattr(a, f) for f in fields}, {f: getattr(b, f) for f in fields}, where="state")


@pytest.mark.parametrize("verify", [0, 100])
def test_computed_attributes_are_written_back(verify):
    model, twin = Statistics(), Statistics()
    compiled = native(model, verify=verify)
    for n in (3, 3, 3, 3, 3, 5, 6, 7, 3):
        x = r(n, 4)
        assert not (why := difference(twin(x), compiled(x))), why
        assert not (why := _same_state(twin, model)), why
        assert model.last is x
        model.log.clear(), twin.log.clear()
    ran_natively(compiled)
    assert any("mean" in place for place in broach.explain(compiled, x).places)
    model.mean = twin.mean = torch.ones(4)
    assert not (why := difference(twin(x), compiled(x))), why
    assert not (why := _same_state(twin, model) if not model.log.clear() and not twin.log.clear() else ""), why


def test_a_list_that_grows():
    outs = []

    def program(x):
        outs.append(x * 2)
        return x + 1

    compiled = broach.compile(program)
    for n in range(6):
        x = r(3)
        compiled(x)
        assert len(outs) == n + 1 and torch.equal(outs[-1], x * 2)


def test_a_counter():
    o = Inner()
    o.steps = 0

    def program(x):
        o.steps += 1
        return x * o.steps

    compiled = native(program)
    for n in range(1, 15):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), float(n))) and o.steps == n and type(o.steps) is int
    assert stats(compiled)["front"] == "native" and stats(compiled)["captures"] < 10


def test_closure_and_global_variables_are_written_back():
    kept = torch.zeros(3)

    def program(x):
        nonlocal kept
        global LAST
        kept, LAST = kept + x, x * 2
        return kept * 1

    compiled = native(program)
    total = torch.zeros(3)
    for _ in range(7):
        x = r(3)
        total = total + x
        assert torch.allclose(compiled(x), total, atol=1e-5)
        assert torch.allclose(kept, total, atol=1e-5) and torch.equal(LAST, x * 2)
    ran_natively(compiled)


LAST = None


def test_a_cache_that_is_filled_once():
    class Rotary(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = None

        def forward(self, x):
            if self.table is None or self.table.shape[0] < x.shape[0]:
                self.table = torch.arange(float(x.shape[0]))[:, None].cos()
            return x * self.table[: x.shape[0]]

    model, twin = Rotary(), Rotary()
    compiled = native(model)
    for n in (3, 3, 3, 3, 5, 5, 5, 2, 2, 9, 9, 9, 3, 3, 3):
        x = r(n, 4)
        assert not (why := difference(twin(x), compiled(x))), why
        assert not (why := difference(twin.table, model.table)), why
    ran_natively(compiled)


def test_random_numbers_are_drawn_anew():
    compiled = broach.compile(_draws)
    random.seed(1)
    want = [random.random() for _ in range(6)]
    random.seed(1)
    got = [float(compiled(torch.ones(()))) for _ in range(6)]
    assert got == pytest.approx(want)


def test_torchs_random_numbers_are_drawn_anew():
    def program(x):
        return torch.rand_like(x) + torch.randn(3) + nn.functional.dropout(x, 0.5)

    compiled = native(program)
    for seed in range(4):
        torch.manual_seed(seed)
        want = [program(torch.ones(3)) for _ in range(3)]
        torch.manual_seed(seed)
        got = [compiled(torch.ones(3)) for _ in range(3)]
        assert not (why := difference(want, got)), why
    ran_natively(compiled)


def test_a_generator_of_its_own_is_no_effect():
    def program(xs):
        return sum(x * i for i, x in enumerate(t for t in xs if t.dim())), list(map(lambda x: x + 1, xs)), [*zip(xs, range(2))]

    ran_natively(check(program, ([r(3), r(3)],)))


def test_a_generator_as_argument():
    compiled = broach.compile(lambda xs: sum(xs))
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2) for _ in range(3)), torch.full((2,), 3.0))


def test_fullgraph_and_a_branch_on_data():
    def program(x):
        if x.sum() > 0:
            return x * 2
        return x - 1

    compiled = broach.compile(program, fullgraph=True)
    with pytest.raises((broach.CaptureError, torch._dynamo.exc.Unsupported), match="test_native_state.py"):
        compiled(torch.ones(3))
    free = broach.compile(program)
    for sign in (1, -1, 1, -1):
        x = sign * torch.ones(3)
        assert torch.equal(free(x), program(x))


def test_fullgraph_and_an_effect():
    compiled = broach.compile(_prints, fullgraph=True)
    with pytest.raises(Exception, match="print"):
        for _ in range(2):
            compiled(torch.ones(3))


def test_explain_names_the_line():
    told = broach.explain(broach.compile(_reads_the_clock), torch.ones(3))
    line = _reads_the_clock.__code__.co_firstlineno + 1
    assert any(f"test_native_state.py:{line}" in why for why in told.capture_reasons), told.capture_reasons


def test_explain_lists_the_state():
    told = broach.explain(native(Model().eval()), r(3, 4))
    assert told.front == "native" and told.captures == 1
    listed = "\n".join(told.state[0])
    for part in ("self.config", "self.a", "self.blocks", "self"):
        assert part in listed, listed


@torch.no_grad()
def test_what_torch_keeps_in_its_modules():
    class Twice(nn.Module):
        def forward(self, w):
            return 2 * w

    def model():
        m = nn.Linear(2, 2, bias=False).requires_grad_(False)
        m.weight.fill_(1)
        return parametrize.register_parametrization(m, "weight", Twice())

    def run(m, f, x=torch.ones(2)):
        f(x), f(x)
        with parametrize.cached():
            out = [f(x), f(x)]
            m.parametrizations.weight.original.mul_(5)
            out.append(f(x))
        return [*out, f(x)]

    theirs, ours = model(), model()
    for want, have in zip(run(theirs, theirs), run(ours, broach.compile(ours))):
        torch.testing.assert_close(have, want)


@pytest.mark.parametrize("make", [lambda: torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2)), lambda: torch.nn.BatchNorm1d(2)])
def test_a_copy_of_the_module_changes_nothing_of_it(make):
    module = make()
    call, x = broach.compile(module), torch.rand(3, 2)
    for i in range(6):
        torch.testing.assert_close(call(x), copy.deepcopy(module)(x))
    assert call._compiled_call.stats()["captures"] == 1


def test_an_attribute_of_a_weight_that_was_copied_is_noticed():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.weight * getattr(self.weight, "factor", 1)

    net = Net()
    call, x = broach.compile(net), torch.ones(2)
    for i in range(8):
        copy.deepcopy(net)
        if i == 4:
            net.weight.factor = 3
        if i == 6:
            del net.weight.factor
        torch.testing.assert_close(call(x), net(x))
