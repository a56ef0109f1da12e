"""Floating point numbers that change from call to call are run-time values of one compiled program: among the arguments, in
containers, and in the state that the caller sets between calls; with eager's results, the host's arithmetic and its guards."""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import re

import broach
import compared
import pytest
import torch
from torch import nn

VALUES = [0.1, 0.2, 0.3, -0.4, 1e-3, 5.0]


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def _hyperbola(x, t):
    scale = (1 - t) ** 2 / (t + 1.5)
    return x * scale + t, scale


def _sgd(x, t):
    p, g = x.clone(), x.cos()
    g = g + t / 3 * p
    return p.add_(g, alpha=-t)


def _of_size(x, t):
    return x / (x.shape[0] / 2) * t


def _is_a_float(x, t):
    return x * t if isinstance(t, float) and not isinstance(t, int) else x - 1


def _fused_update(x, t):
    return torch.addcmul(x, x, x, value=t) + torch.addcdiv(x, x, x.abs() + 1, value=t) + torch.lerp(x, x.sin(), t)


def _kept(x, t):
    return {"y": x + t, "t": [t * 2, -t, t // 0.3, t % 0.7]}


PROGRAMS = {
    "product": lambda x, t: x - t * x.sin(),
    "alpha": lambda x, t: torch.sub(x, x.sin(), alpha=t),
    "host arithmetic": _hyperbola,
    "in place": _sgd,
    "with sizes": _of_size,
    "a float is a float": _is_a_float,
    "fused updates": _fused_update,
    "clamp": lambda x, t: x.clamp(-t * t, t * t),
    "comparison": lambda x, t: torch.where(x > t, x, t),
    "full": lambda x, t: torch.full((3,), t) + torch.full_like(x, t)[0, :3],
    "float64": lambda x, t: x.double() * t,
    "integers": lambda x, t: (x * 8).long() * t,
    "extern": lambda x, t: x.abs() ** t + nn.functional.leaky_relu(x, t),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_program_serves_all_values(name):
    program = PROGRAMS[name]
    compiled = compared.native(program)
    for n, t in zip((4, 8, 6, 7, 9, 12) if name == "with sizes" else (8,) * 6, VALUES):
        x = torch.randn(n, 16)
        assert not (why := compared.difference(program(x, t), compiled(x, t))), (why, t)
    told = compared.stats(compiled)
    assert told["captures"] == 2 and told["compiled_calls"] == 4, (told["captures"], told["reasons"], told["eager_reasons"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_meets_a_number_as_in_eager(dtype):
    compiled = compared.native(lambda x, t: x * t)
    for t in VALUES:
        x = torch.randn(8, 16).to(dtype)
        assert torch.equal(compiled(x, t), x * t)


def test_results_that_are_numbers():
    compiled = compared.native(_kept)
    for t in VALUES:
        got, want = compiled(torch.ones(3), t), _kept(torch.ones(3), t)
        assert got["t"] == want["t"] and all(type(v) is float for v in got["t"])
        torch.testing.assert_close(got["y"], want["y"])


def test_what_is_decided_by_a_number_is_a_guard():
    def program(x, t):
        return x * t if t > 0.15 else x + t

    compiled = compared.native(program)
    for t in VALUES + [0.15, math.nan, math.inf, 0.16]:
        torch.testing.assert_close(compiled(torch.ones(3), t), program(torch.ones(3), t), equal_nan=True)
    assert compared.stats(compiled)["captures"] == 3


def test_errors_of_the_host_are_raised():
    def program(x, t):
        return x * (1 / t)

    compiled = compared.native(program)
    for t in (1.0, 2.0, 4.0):
        assert compiled(torch.ones(1), t).item() == 1 / t
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            compiled(torch.ones(1), 0.0)
    assert compiled(torch.ones(1), 8.0).item() == 0.125


def _first_is(x, n):
    y = x.clone()
    y[0] = n
    return y


BOUNDED = {
    "masked_fill": lambda x, n: x.masked_fill(x > 3, n),
    "full": lambda x, n: torch.full_like(x, n) + x,
    "where": lambda x, n: torch.where(x > 3, x, n),
    "clamp": lambda x, n: x.clamp(max=n),
    "element": _first_is,
    "computed": lambda x, n: x.masked_fill(x > 3, 2 * n + 1),
}


@pytest.mark.parametrize("dtype, numbers", [(torch.int8, [2, 100, 300, 127, -3, -300, 300, 5]), (torch.uint8, [3, 7, 300, 255, -3, -300, 9]),
                                            (torch.float16, [1.0, 7e4, 3.0, math.inf, 2e5, -1e6, 65504.0]), (torch.float32, [1.5, 1e39, 3.5, -math.inf, 1e39, math.nan, 1.0]),
                                            (torch.int32, [2, 3, 2**31, 5, -(2**31), 2**40]), (torch.int16, [1.5, 2.5, 1e6, 3.5, math.nan])], ids=str)
@pytest.mark.parametrize("name", BOUNDED)
def test_a_number_that_the_elements_cannot_hold(name, dtype, numbers):
    program, x = BOUNDED[name], torch.tensor([1, 5, 7], dtype=dtype)
    compiled = broach.compile(program)
    for n in numbers:
        try:
            want = program(x, n)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=re.escape(str(error))):
                compiled(x, n)
            continue
        assert not (why := compared.difference(want, compiled(x, n))), (n, why)


def test_numbers_that_the_program_wants_plain_are_constants():
    def program(x, t):
        return nn.functional.dropout(x, t, training=False) + math.sqrt(t)

    compiled = compared.native(program)
    for t in (0.1, 0.2, 0.3, 0.1, 0.2):
        torch.testing.assert_close(compiled(torch.ones(3), t), program(torch.ones(3), t))
    assert compared.stats(compiled)["captures"] == 3


def test_signed_zeros_differ():
    def program(x, t):
        return torch.copysign(x, t)

    compiled = compared.native(program)
    for t in (0.0, -0.0, 0.0, -0.0):
        assert torch.equal(compiled(torch.ones(3), t), program(torch.ones(3), t))


class _Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.rate, self.steps, self.name = 0.1, 1, "a"

    def forward(self, x):
        return self.linear(x) * self.rate + self.steps


def test_numbers_of_the_state():
    module = _Scaled()
    compiled = compared.native(module)
    for i, t in enumerate(VALUES):
        module.rate, module.steps = t, i + 3
        x = torch.randn(2, 4)
        torch.testing.assert_close(compiled(x), module(x))
    told = compared.stats(compiled)
    assert sorted(told["places"]) == ["self.rate", "self.steps"] and told["captures"] == 3
    module.rate, module.name = 9.0, "b"  # not by numbers alone
    torch.testing.assert_close(compiled(x), module(x))
    module.rate = "no number"
    with pytest.raises(TypeError):
        compiled(x)
    module.rate = 7
    torch.testing.assert_close(compiled(x), module(x))


def test_an_optimizer_step_with_a_schedule():
    parameters = [torch.randn(5, 3), torch.randn(7)]
    moments = [torch.zeros_like(p) for p in parameters]

    def step(gradients, rate, count):
        for p, m, g in zip(parameters, moments, gradients):
            m.mul_(0.9).add_(g, alpha=1 - 0.9)
            p.addcdiv_(m / (1 - 0.9**count), g.abs() + 1e-3, value=-rate)

    compiled = compared.native(step)
    for i in range(8):
        gradients = [torch.randn_like(p) for p in parameters]
        before = [t.clone() for t in parameters + moments]
        step(gradients, 0.1 / (i + 1), i + 2)
        want = [t.clone() for t in parameters + moments]
        for t, b in zip(parameters + moments, before):
            t.copy_(b)
        compiled(gradients, 0.1 / (i + 1), i + 2)
        torch.testing.assert_close(parameters + moments, want)
    assert compared.stats(compiled)["captures"] == 2


def _logged(x):
    loss = (x * x).mean()
    return x / (loss.item() + 1), loss.item() * 2


def _scaled_by_an_input(x, s):
    return x * s.item() + 0.5 * s.item()


def _divides(x):
    return x / (1 / x.sum().item())


def _chooses(x):
    top = x.abs().max().item()
    return x / top if top > 1.5 else x - top


@pytest.mark.parametrize("program", [_logged, _scaled_by_an_input, _divides, _chooses])
def test_fractions_that_the_program_reads(program):
    compiled = compared.native(program)
    for i in range(12):
        given = [torch.randn(6)] + [torch.randn(1, 1)] * (program is _scaled_by_an_input)
        torch.testing.assert_close(program(*given), compiled(*given), rtol=1e-5, atol=1e-6)  # numbers among the results too
    told = compared.stats(compiled)
    assert told["captures"] <= 4 and told["compiled_calls"] >= 8, (told["captures"], told["reasons"], told["eager_reasons"])


def test_a_fraction_is_kept_as_a_plain_number():
    class Running(nn.Module):
        last = 0.0

        def forward(self, x):
            self.last = (self.last + x.sum().item()) / 2
            return x - self.last

    module, reference = Running(), Running()
    compiled = compared.native(module)
    for _ in range(10):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x), reference(x))
        assert type(module.last) is float and module.last == pytest.approx(reference.last, rel=1e-5, abs=1e-6)
    assert compared.stats(compiled)["compiled_calls"] >= 4


def test_a_fraction_wanted_plain_leaves_native_capture():
    def program(x):
        return x * round(x.sum().item(), 3)

    compiled = broach.compile(program)
    for _ in range(5):
        x = torch.randn(6)
        torch.testing.assert_close(compiled(x), program(x))
    assert compared.stats(compiled)["front"] == "fallback"


def test_division_by_an_element_that_is_zero():
    compiled = compared.native(_divides)
    for _ in range(4):
        compiled(torch.ones(6))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            compiled(torch.zeros(6))
    torch.testing.assert_close(compiled(torch.ones(6)), torch.ones(6) * 6)


BY_TYPE = {int: torch.sin, float: torch.cos}


def _by_dict(x, s):
    return {int: torch.sin, float: torch.cos}.get(type(s), torch.tan)(x) * s


def _by_global_dict(x, s):
    return BY_TYPE[type(s)](x) * s


def _by_kept_type(x, s):
    kind = type(s)
    return (x.sin() if kind == float else x.cos()) * s  # noqa: E721


def _by_set(x, s):
    return (x.sin() if {type(v) for v in (s, 1.0)} == {float} else x.cos()) * s


def _by_mapped_types(x, s):
    return (x.sin() if float in map(type, [s]) else x.cos()) * s


def _by_function(x, s):
    return _chosen(type(s))(x) * s


def _chosen(kind):
    return BY_TYPE.get(kind, torch.tan)


def _by_two_types(x, s):
    return (x.sin() if type(s) is type(2.5) else x.cos()) * s  # noqa: E721


def _by_name(x, s):
    return (x.sin() if type(s).__name__ == "float" else x.cos()) * s


@pytest.mark.parametrize("program", [_by_dict, _by_global_dict, _by_kept_type, _by_set, _by_mapped_types, _by_function, _by_two_types, _by_name])
@pytest.mark.parametrize("values", [(2.5, 3.5, 4.5), (2, 3, 4)], ids=["float", "int"])
def test_programs_that_choose_by_a_number_s_type(program, values):
    compiled = broach.compile(program)
    x = torch.randn(4)
    for s in values:
        torch.testing.assert_close(compiled(x, s), program(x, s))


def test_zeros_of_both_signs_where_numbers_have_to_stay():
    """A symbolic capture of it is given up; the next must not begin with the same symbols."""

    def program(x, s):
        return x / s if type(s) is float else x

    compiled = compared.native(program)
    x = torch.randn(4)
    for s in (0.0, -0.0, 0.0, -0.0):
        assert torch.equal(compiled(x, s), program(x, s))


def test_floor_division_as_python_does_it():
    def program(x, a, b):
        return x * (a // b), a // b, a % b, divmod(a, b)

    inf = math.inf
    for calls in ([(3.0, 2.0), (4.5, 3.0), (-7.0, inf), (7.0, -inf), (-0.0, 2.0), (-7.5, 2.0), (1.0, 0.1)], [(3.0, 2.5), (-0.0, 2.0), (0.0, -2.0)],
                  [(3, 2.0), (-7, inf), (5, -3.5)]):  # fmt: skip
        compiled = broach.compile(program)
        for a, b in calls:
            want, got = program(torch.ones(2), a, b), compiled(torch.ones(2), a, b)
            assert str(want) == str(got), (a, b, want, got)


WHOLE = {
    "half, up": lambda x, n: x[: math.ceil(x.shape[0] / 2)].sum(0),
    "half, down": lambda x, n: x[math.floor(x.shape[0] * 0.5) :] * math.floor(x.shape[0] * 0.5),
    "chunks": lambda x, n: x.repeat(math.ceil((x.shape[0] + 1) / 3), 1).mean(0) + math.trunc(-x.shape[0] / 4),
    "pieces": lambda x, n: torch.full((3,), math.ceil(x.shape[0] * 0.75) / 2) - math.trunc(x.shape[0] / 1.5),
    "a number": lambda x, n: x * math.ceil(n / 7) + math.floor(-n / 2),
    "of integers": lambda x, n: x[: math.ceil(math.floor(x.shape[0] // 2))] * math.trunc(n) + round(x.shape[0] + n),
    "in turn": lambda x, n: x.narrow(0, 0, math.ceil(math.ceil(x.shape[0] / 2) / 2)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_parts_of_what_is_computed_of_sizes(name):
    program = WHOLE[name]
    compiled = broach.compile(program)
    for n in (8, 9, 10, 13, 14, 15, 21, 22, 40, 2, 3):
        x = torch.randn(n, 4)
        torch.testing.assert_close(compiled(x, n), program(x, n))
    stats = compiled.stats()
    assert stats["captures"] <= 3 and stats["compiled_calls"] >= 8, broach.explain(compiled, x, n).attempts


def test_whole_parts_of_other_numbers_are_theirs():
    """Where roundings matter, of numbers that no sizes are behind, and of large integers, whose quotients are rounded."""
    for program, numbers in (
        (lambda x, t: x + math.ceil(t * 0.7), (10, 20, 30, 40, 10)),
        (lambda x, t: x * math.floor(t), (0.5, 1.5, -1.5, 2.0, 0.5)),
        (lambda x, t: x.double() + math.floor(t / 2), (2, 3, 2**53 + 1, 2**60 + 1, 7, -(2**62) - 1)),
    ):
        compiled, x = broach.compile(program), torch.randn(5)
        for t in numbers:
            assert torch.equal(compiled(x, t), program(x, t))
    for t in (math.inf, math.nan):
        compiled = broach.compile(lambda x, t: x + math.ceil(t))
        compiled(torch.ones(2), 1.0), compiled(torch.ones(2), 2.5)
        with pytest.raises((OverflowError, ValueError), match="cannot convert float"):
            compiled(torch.ones(2), t)


def test_integers_at_the_end_of_64_bits_are_plain():
    compiled = broach.compile(lambda x, n: (x + 1, n - 2**62 - 2**62, [n + 2**62]))
    for n in (4, 3, 9, 1):
        _, low, (high,) = compiled(torch.ones(1), n)
        assert type(low) is int and low == n - 2**63 and type(high) is int and high == n + 2**62


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("made", [lambda x, a, t: torch.full_like(x, a, dtype=t), lambda x, a, t: torch.full((1,), a, dtype=t)], ids=["like", "full"])
def test_a_fraction_that_no_integer_can_be(made, dtype):
    compiled = broach.compile(lambda x, a: made(x, a, dtype))
    for a in (3.0, 4.0, 5.5, 2.25):
        assert compiled(torch.ones(1), a).tolist() == [int(a)]
    for a in (math.nan, math.inf, 1e30):
        with pytest.raises(RuntimeError, match="without overflow"):
            compiled(torch.ones(1), a)


def test_who_looks_through_all_objects_meets_no_stand_ins():
    f = broach.compile(lambda x, n: x * n)
    for n in (3, 5, 7):
        f(torch.randn(n), float(n))
    for o in gc.get_objects():
        with contextlib.suppress(ReferenceError):  # of weak proxies
            isinstance(o, torch.Tensor)
    from broach import _numbers

    assert not isinstance(_numbers.UNREADABLE, (int, torch.Tensor))
    assert "object" in repr(_numbers.UNREADABLE) and _numbers.UNREADABLE == _numbers.UNREADABLE and hash(_numbers.UNREADABLE)
    with pytest.raises(TypeError, match="changes from call to call"):
        _numbers.UNREADABLE + 1


@pytest.mark.parametrize("learns", [False, True])
def test_a_number_that_was_the_same_at_first(learns):
    """A statistic that is 0 in the first calls, and another number in each one later."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.large, self.count, self.calls = nn.Linear(4, 4), -1.0, -1, 0

        def forward(self, x):
            h = self.layer(x)
            self.large = (h.detach().abs() > 100).float().mean().item()
            self.count = (h.detach().abs() > 100).sum().item()
            self.calls += 1
            return h

    model = Counting()
    twin = copy.deepcopy(model)
    compiled = broach.compile(model)
    with torch.set_grad_enabled(learns):
        for step in range(14):
            if step == 8:
                for m in (model, twin):
                    m.layer.weight.data.mul_(300)
            x = torch.randn(8, 4)
            torch.testing.assert_close(compiled(x), twin(x))
            assert model.large == twin.large and model.count == twin.count and model.calls == twin.calls
    told = compiled._compiled_call.stats()
    assert told["compiled_calls"] > 5 and told["captures"] <= 8, told["attempts"]
