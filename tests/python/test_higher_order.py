"""Operators that take functions, and functions that torch.compile compiles, inside programs: under the native front, Dynamo, and
with sizes that change."""

from __future__ import annotations

import asyncio
from typing import Any, Callable

import broach
import pytest
import torch
from compared import difference, stats
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.out_dtype import out_dtype
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.strict_mode import strict_mode
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint


class Sine(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


@torch.compiler.nested_compile_region
def layer(x):
    return (x * 2).relu()


inner = torch.compile(lambda t: t.sin() * 2, backend="eager", dynamic=True)
inner_broach = torch.compile(lambda t: t.cos() + t, backend="broach")
inner_native = broach.compile(lambda t: t.cos() - t)

rows = [torch.arange(n * 3.0).reshape(n, 3) for n in (4, 4, 5, 6)]
vectors = [sign * torch.ones(n) for n in (3, 3, 4, 5) for sign in (1, -1)]
heads = [torch.linspace(0, 1, 2 * n * 8).reshape(1, 2, n, 8) for n in (6, 6, 8)]

PROGRAMS: dict[str, tuple[Callable, list]] = {
    "cond": (lambda x: torch.cond(x.sum() > 0, lambda t: t + 1, lambda t: t.exp(), (x,)) * 2, vectors),
    "cond in cond": (lambda x: torch.cond(x.sum() > 0, lambda t: torch.cond(t.max() > 2, torch.sin, torch.cos, (t,)), lambda t: t - 1, (x,)), vectors + [3 * vectors[0]]),
    "cond of a size": (lambda x: torch.cond(x.shape[0] > 3, lambda t: t + 1, lambda t: t - 1, (x,)), vectors),
    "while_loop": (lambda x: while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, (t * 2).sin()), (torch.tensor(0), x))[1] + 1, vectors),
    "while_loop that data ends": (lambda x: while_loop(lambda t: t.abs().sum() < 100, lambda t: (t * 2,), (x,))[0] + 1, vectors + [30 * vectors[0]]),
    "loop in cond": (lambda x: torch.cond(x.sum() > 0, lambda t: while_loop(lambda u: u.sum() < 100, lambda u: (u * 2,), (t,))[0], lambda t: t - 1, (x,)), vectors),
    "vmap of a product": (lambda x: torch.func.vmap(lambda row: torch.tanh(row @ torch.ones(3, 2)).sum())(x), rows),
    "grad under vmap": (lambda x: torch.func.vmap(torch.func.grad(lambda row: (row @ torch.ones(3, 2)).square().sum()))(x), rows),
    "scan": (lambda x: scan(lambda carry, y: (carry + y, carry * y), torch.zeros(3), x), rows),
    "map": (lambda x: map_rows(lambda y, z: y.sin() + z, x, torch.ones(3)) * 2, rows),
    "associative_scan": (lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic") * 2, rows),
    "flex_attention": (lambda q: flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + (i - j)), heads),
    "hints_wrapper": (lambda x: hints_wrapper(lambda a: a.sin() + 1, (x,), {}, hints={"a": 1}), vectors),
    "custom function under vmap": (lambda x: torch.vmap(Sine.apply)(x) + 1, rows),
    "custom function under grad": (lambda x: torch.func.grad(lambda t: Sine.apply(t).sum())(x) + 1, rows),
    "out_dtype": (lambda x: out_dtype(torch.ops.aten.mm.default, torch.int32, x, x), [torch.ones(n, n, dtype=torch.int8) for n in (3, 3, 4)]),
    "strict_mode": (lambda x: strict_mode(lambda t: t.sin() + 1, (x,)), vectors),
    "nested_compile_region": (lambda x: layer(layer(x)) + 1, vectors),
    "checkpoint": (lambda x: checkpoint(lambda t: t.sin() + 1, x, use_reentrant=False) * 2, vectors),
    "torch.compile": (lambda x: inner(x) + 1, vectors),
    "torch.compile of broach": (lambda x: inner_broach(x) + 1, vectors),
    "broach.compile": (lambda x: inner_native(x) + 1, vectors),
}


def agrees(program: Callable, compiled: Any, calls: list) -> None:
    for given in calls:
        assert not (why := difference(program(given.clone()), compiled(given.clone()))), why


@pytest.mark.parametrize("name", PROGRAMS)
def test_dynamo_front(name):
    program, calls = PROGRAMS[name]
    agrees(program, torch.compile(program, backend="broach"), 2 * calls)


@pytest.mark.parametrize("name", PROGRAMS)
def test_native_front_with_symbols_from_the_first_call_on(name):
    program, calls = PROGRAMS[name]
    agrees(program, broach.compile(program, dynamic=True), 2 * calls)


@pytest.mark.parametrize("name", ["cond", "while_loop", "scan", "flex_attention", "custom function under vmap", "torch.compile"])
def test_the_other_fronts(name):
    program, calls = PROGRAMS[name]
    agrees(program, broach.compile(program), 2 * calls)
    torch._dynamo.reset()
    agrees(program, torch.compile(program, backend="broach", dynamic=True), 2 * calls)


NATIVE = ["hints_wrapper", "custom function under vmap", "custom function under grad", "out_dtype", "nested_compile_region", "broach.compile"]


@pytest.mark.parametrize("name", NATIVE)
def test_what_is_captured_natively(name):
    program, calls = PROGRAMS[name]
    agrees(program, broach.compile(program, options={"capture": "native"}), calls)


def test_what_torch_compile_compiles_goes_through_dynamo_once():
    runs = []

    def program(x):
        runs.append(1)
        return inner(x) + 1

    compiled = broach.compile(lambda x: inner(x) + 1)
    for n in (2, 2, 3, 4):
        assert torch.equal(compiled(torch.zeros(n)), torch.ones(n))
    told = stats(compiled)
    assert told["front"] == "fallback" and told["captures"] == 1
    assert any("torch.compile" in why and "test_higher_order.py" in why for why in told["reasons"]), told["reasons"]
    broach.compile(program)(torch.zeros(2))
    assert len(runs) == 1


def test_an_error_that_ends_a_capture_of_sizes_is_not_taken_for_the_programs():
    def program(x):
        try:
            return inner(x)
        except Exception:
            return x

    compiled = broach.compile(program, dynamic=True)
    for n in (3, 4, 5):
        assert torch.equal(compiled(torch.ones(n)), program(torch.ones(n)))


def test_a_condition_is_two_ways_and_a_loop_an_operation_with_compiled_parts():
    branch = broach.explain(torch.compile(PROGRAMS["cond"][0], backend="broach"), torch.ones(3))
    assert not branch.externs and any("read on the host" in g for g in branch.guards)
    loop = broach.explain(torch.compile(PROGRAMS["while_loop"][0], backend="broach"), torch.ones(3))
    assert [name for name, _ in loop.externs] == ["broach::region"] and loop.kernels


def test_the_state_of_random_numbers_is_read_in_every_call():
    def program(x):
        state, y = torch.ops.higher_order.run_and_save_rng_state(torch.ops.aten.bernoulli.default, x)
        return state, y, torch.ops.higher_order.run_with_rng_state(state, torch.ops.aten.bernoulli.default, x)

    compiled = broach.compile(program)
    for seed in range(4):
        torch.manual_seed(seed)
        state, y, again = compiled(torch.full((50,), 0.5))
        torch.manual_seed(seed)
        want = program(torch.full((50,), 0.5))
        assert torch.equal(state, want[0]) and torch.equal(y, want[1]) and torch.equal(again, y)


def test_an_operator_that_prints_prints_in_every_call(capfd):
    compiled = torch.compile(lambda x: (torch._higher_order_ops.print("so {}", 3), x + 1)[1], backend="broach")
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert capfd.readouterr().out.split() == ["so", "3"] * 3


kept = {"scale": 2.0}


@torch.compiler.allow_in_graph
def scaled(x):
    return x * kept["scale"]


@torch.compiler.allow_in_graph
def written(x):
    return x.mul_(3)


def test_a_function_that_dynamo_leaves_whole_is_called():
    compiled = torch.compile(lambda x: scaled(x) + 1, backend="broach")
    for scale in (2.0, 3.0, 4.0):
        kept["scale"] = scale
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), scale + 1))
    compiled = torch.compile(lambda x: written(x) + 1, backend="broach")
    for _ in range(3):
        x = torch.ones(2)
        assert torch.equal(compiled(x), torch.full((2,), 4.0)) and torch.equal(x, torch.full((2,), 3.0))


def test_a_loop_under_autocast():
    def program(x, w):
        return while_loop(lambda i, t: i < 2, lambda i, t: (i + 1, (t @ w).float()), (torch.tensor(0), x))[1]

    compiled = torch.compile(program, backend="broach")
    x, w = torch.randn(4, 4), torch.randn(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            assert torch.equal(compiled(x, w), program(x, w))


@pytest.mark.parametrize("front", [broach.compile, lambda f: torch.compile(f, backend="broach")], ids=["native", "dynamo"])
def test_branches_and_bodies_that_write(front):
    programs = [
        lambda x: torch.cond(x.sum() > 0, lambda t: t.add_(1) * 1, lambda t: t.mul_(2) * 1, (x,)),
        lambda x: while_loop(lambda i, t: i < 3, lambda i, t: (i + 1, t.add_(1) * 1), (torch.tensor(0), x))[1],
    ]
    for program in programs:
        compiled = front(program)
        for sign in (1, -1, 1, -1):
            x, y = sign * torch.ones(3), sign * torch.ones(3)
            assert torch.equal(program(x), compiled(y)) and torch.equal(x, y)


def test_parts_of_a_condition_that_need_gradients():
    layer = torch.nn.Linear(3, 3)
    program = lambda x: torch.cond(x.sum() > 0, lambda t: layer(t), lambda t: layer(t) * 2, (x,))  # noqa: E731
    compiled = broach.compile(program)
    with torch.enable_grad():
        for sign in (1, -1, 1):
            x = sign * torch.ones(2, 3)
            want, got = (torch.autograd.grad(f(x).sum(), layer.weight)[0] for f in (program, compiled))
            assert torch.equal(want, got)


def test_inside_torch_compile():
    for fullgraph in (False, True):
        compiled = torch.compile(lambda x: inner_native(x) + 1, backend="eager", fullgraph=fullgraph)
        for n in (2, 3):
            torch.testing.assert_close(compiled(torch.ones(n)), torch.ones(n).cos())


def test_gradients_through_a_condition():
    program = PROGRAMS["cond"][0]
    compiled = broach.compile(program)
    with torch.enable_grad():
        for sign in (1.0, -1.0):
            x, y = (torch.full((3,), sign, requires_grad=True) for _ in range(2))
            program(x).sum().backward()
            compiled(y).sum().backward()
            assert torch.equal(x.grad, y.grad)


# ---- fullgraph ----

CHECKED: dict[str, tuple[Callable, list]] = {
    "one_hot": (lambda x: torch.nn.functional.one_hot(x, 8), [torch.arange(n) for n in (4, 4, 5, 6)]),
    "one_hot of a computed size": (lambda x: torch.nn.functional.one_hot(x * 1), [torch.arange(n) for n in (4, 4, 5, 6)]),
    "quantile": (lambda x: torch.quantile(x * 1, 0.5), [torch.arange(float(n)) for n in (4, 4, 5)]),
    "quantiles": (lambda x: torch.quantile(x, torch.tensor([0.25, 0.5])), [torch.arange(float(n)) for n in (4, 4, 5)]),
    "istft": (lambda x: torch.istft(torch.stft(x, 16, window=torch.hann_window(16), return_complex=True), 16, window=torch.hann_window(16)), [torch.randn(64), torch.randn(64), torch.randn(80)]),
    "bincount": (lambda x: torch.bincount(x * 1), [torch.tensor([0, 2, 2, n]) for n in (3, 4, 3, 5)]),
    "cross_entropy": (lambda x: torch.nn.functional.cross_entropy(x, torch.tensor([1, 0])), [torch.randn(2, 3), torch.randn(2, 3)]),
    "repeat_interleave": (lambda x: torch.repeat_interleave(x * 1, x), [torch.tensor([1, 2, n]) for n in (3, 3, 4)]),
}


@pytest.mark.parametrize("name", CHECKED)
def test_fullgraph_takes_the_checks_of_operations(name):
    program, calls = CHECKED[name]
    agrees(program, broach.compile(program, fullgraph=True), 2 * calls)


REFUSED: dict[str, Callable] = {
    "if": lambda x: x if (x * 2).sum() > 0 else -x,
    "item": lambda x: x * (x * 2).sum().item(),
    "int": lambda x: x * int((x > 0).sum()),
    "allclose": lambda x: x if torch.allclose(x * 2, x) else -x,
    "equal": lambda x: x if torch.equal(x * 2, x + 1) else -x,
}


@pytest.mark.parametrize("name", REFUSED)
def test_fullgraph_refuses_what_the_program_decides_by_data(name):
    compiled = broach.compile(REFUSED[name], fullgraph=True)
    with pytest.raises((broach.CaptureError, torch._dynamo.exc.Unsupported)):
        for sign in (1, -1, 1):
            compiled(sign * torch.ones(3))


# ---- what runs later ----


async def awaited(x):
    await asyncio.sleep(0)
    return x * 2


def yielded(x):
    for i in range(3):
        got = yield x * i
        x = x if got is None else x + got


async def streamed(x):
    for i in range(3):
        yield x * i


async def _collect(stream):
    return [x async for x in stream]


class Stream(torch.nn.Module):
    def forward(self, x):
        yield x + 1


SUSPENDED: dict[str, tuple[Callable, Callable]] = {
    "coroutine": (awaited, asyncio.run),
    "generator": (yielded, list),
    "async generator": (streamed, lambda s: asyncio.run(_collect(s))),
    "coroutine of a lambda": (lambda x: awaited(x + 1), asyncio.run),
    "generator of a lambda": (lambda x: yielded(x + 1), list),
    "generator expression": (lambda x: (x * i for i in range(3)), list),
    "module": (Stream(), list),
}


@pytest.mark.parametrize("name", SUSPENDED)
def test_what_runs_later(name):
    program, drive = SUSPENDED[name]
    compiled = broach.compile(program)
    for k in range(4):
        x = torch.full((2,), float(k))
        assert not (why := difference(drive(program(x)), drive(compiled(x)))), why


def test_what_runs_later_says_so():
    for program in (yielded, lambda x: yielded(x)):
        told = broach.explain(program, torch.ones(2))
        assert told.front == "eager" and "generator" in told.capture_reasons[0]
    sender = broach.compile(yielded)(torch.ones(2))
    next(sender)
    assert torch.equal(sender.send(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(broach.CaptureError, match="generator"):
        broach.compile(yielded, fullgraph=True)
