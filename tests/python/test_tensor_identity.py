"""Tensors that a program has without an operation (`.data`, parameters made inside, constants), what it asks a tensor without one
(offsets in a storage, whether it is an inference tensor), and what becomes of the ones that it writes and gives back."""

from __future__ import annotations

import copy

import broach
import pytest
import torch
import torch.autograd.forward_ad as fw
from torch import nn


def compiled_natively(program, **keywords):
    return broach.compile(program, options={"capture": "native"}, **keywords)


def agree(program, compiled, *makers):
    """Each of `makers` makes the arguments of one call; eager gets its own."""
    for make in makers:
        given, mine = make(), make()
        want, got = program(*given), compiled(*mine)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        torch.testing.assert_close(mine, given, rtol=0, atol=0)


def full(value, *sizes):
    return lambda: (torch.full(sizes or (3,), float(value)),)


# ---- aliases ----


def _writes_data(x):
    x.data.mul_(2)
    return x + 1


def _writes_and_reads_data(x):
    y = x.data
    x.add_(1)
    y.mul_(3)
    return x.data * 2, y[1:]


def _data_of_computed(x):
    y = x * 2
    y.data.add_(1)
    return y


def _parameter(x):
    p = nn.Parameter(x * 2, requires_grad=False)
    p.add_(1)
    return p * x


ALIASES = {
    "data": lambda x: x.data * 2,
    "data of a view": lambda x: x[1:].data * 2,
    "written data": _writes_data,
    "written and read": _writes_and_reads_data,
    "data of a result": _data_of_computed,
    "parameter of an argument": lambda x: nn.Parameter(x, requires_grad=False) * 2,
    "parameter": _parameter,
}


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_shows_what_its_memory_holds(name):
    program = ALIASES[name]
    agree(program, compiled_natively(program), full(1), full(2), full(3), full(4))


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_in_sizes_that_change(name):
    program = ALIASES[name]
    agree(program, compiled_natively(program), full(1, 3), full(2, 4), full(3, 5), full(4, 7))


def test_the_data_of_a_tensor_that_the_program_holds():
    w = torch.ones(3)
    program = lambda x: x * w.data + w.data[0]
    compiled = compiled_natively(program)
    for k in range(4):
        torch.testing.assert_close(compiled(torch.ones(3)), program(torch.ones(3)))
        w.data.add_(k)


def test_an_alias_that_the_program_keeps():
    kept = {}

    def program(x):
        kept["x"] = x.data
        return x * 2

    compiled = broach.compile(program)
    for n in (3, 4, 5, 6, 7):
        x = torch.full((n,), float(n))
        compiled(x)
        assert type(kept["x"]) is torch.Tensor and kept["x"].data_ptr() == x.data_ptr() and torch.equal(kept["x"], x)


@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 4, 5)], ids=["one size", "sizes that change"])
def test_an_alias_that_is_given_back_is_another_tensor_in_the_same_memory(sizes):
    compiled = compiled_natively(lambda x: (x.data, x * 2))
    for n in sizes:
        x = torch.ones(n)
        alias, _ = compiled(x)
        assert alias is not x and alias.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 4, 5)], ids=["one size", "sizes that change"])
def test_a_parameter_that_the_program_makes_is_one_in_every_call(sizes):
    compiled = compiled_natively(lambda x: nn.Parameter(x * 2, requires_grad=False))
    made = [compiled(torch.ones(n)) for n in sizes]
    assert all(type(p) is nn.Parameter and not p.requires_grad for p in made) and made[1] is not made[2]
    assert torch.equal(made[2].data, torch.full((sizes[2],), 2.0))


def test_a_tensor_in_a_place_that_nobody_watches_is_no_constant():
    hidden = iter_of = {"w": torch.ones(2)}
    get = iter_of.__class__.get.__get__(hidden)  # a method of a dict that no name of the program reaches otherwise
    program = lambda x: x * get("w")
    compiled = broach.compile(program)
    for k in range(4):
        hidden["w"] = torch.full((2,), float(k))
        assert torch.equal(compiled(torch.ones(2)), program(torch.ones(2)))


# ---- constants ----


def _written_constant(x):
    c = torch.tensor([1.0, 2.0, 3.0])
    c.mul_(x)
    return c


CONSTANTS = {
    "given back": lambda x: torch.tensor([1.0, 2.0]),
    "a view": lambda x: torch.tensor([[1.0, 2.0], [3.0, 4.0]])[0],
    "beside others": lambda x: (torch.tensor([1.0, 2.0]), x * 2),
    "written": _written_constant,
    "new_tensor": lambda x: x.new_tensor([3.0, 4.0]),
    "as_tensor": lambda x: torch.as_tensor([3.0, 4.0]),
    "a number": lambda x: torch.tensor(5.0),
}


@pytest.mark.parametrize("name", CONSTANTS)
def test_a_constant_is_made_in_every_call(name):
    program = CONSTANTS[name]
    compiled = compiled_natively(program)
    x = torch.full((3,), 2.0)
    for _ in range(4):
        got = compiled(x)
        torch.testing.assert_close(got, program(x))
        (got[0] if isinstance(got, tuple) else got).fill_(9)


def test_a_constant_may_be_read_on_the_host():
    compiled = compiled_natively(lambda x: x * torch.tensor(3.0).item() if torch.tensor([2])[0] > 1 else x)
    for k in range(3):
        assert torch.equal(compiled(torch.full((2,), float(k))), torch.full((2,), 3.0 * k))
    assert compiled.stats()["captures"] == 1


# ---- positions in a storage ----

BASE = torch.arange(40.0)
OFFSETS = {
    "as_strided": lambda x: torch.as_strided(x, (2, 2), (1, 2), 1) * 2,
    "as_strided without an offset": lambda x: torch.as_strided(x, (2, 2), (1, 2)) * 2,
    "storage_offset": lambda x: x + x.storage_offset(),
    "storage_offset of a view": lambda x: x * 2 if x[1:].storage_offset() == 1 else x,
    "is a view": lambda x: x * 2 if x._is_view() else x,
}


@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("starts", [(0, 0, 2, 2, 5, 0), (3, 3, 0, 1)], ids=["from the beginning", "from within"])
@pytest.mark.parametrize("changes", [False, True], ids=["one size", "sizes that change"])
def test_where_an_input_begins_in_its_storage(name, starts, changes):
    program = OFFSETS[name]
    compiled = broach.compile(program)
    for i, start in enumerate(starts):
        n = 9 + i if changes else 9
        x = BASE[start : start + n] if start else torch.arange(float(n))
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)


def test_steps_through_a_storage():
    program = OFFSETS["as_strided"]
    compiled = broach.compile(program)
    for x in (torch.arange(9.0), torch.arange(7.0), BASE[:30][::2], BASE[::2], BASE[1:20]):
        torch.testing.assert_close(compiled(x), program(x), rtol=0, atol=0)


# ---- kinds of tensors ----


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 3, 4)], ids=["one size", "sizes that change"])
def test_whether_it_is_an_inference_tensor(sizes):
    program = lambda x: x + 1 if torch.is_inference(x) else x * 5
    compiled = broach.compile(program)
    for n in sizes:
        with torch.inference_mode():
            special = torch.ones(n)
        for x in (torch.ones(n), special):
            assert torch.equal(compiled(x) * 1, program(x) * 1)


@pytest.mark.parametrize("sizes", [(2, 2, 2), (2, 3, 4)], ids=["one size", "sizes that change"])
def test_an_inference_tensor_is_written_only_in_its_mode(sizes):
    compiled = broach.compile(lambda x: x.add_(1))
    for n in sizes:
        compiled(torch.ones(n))
        with torch.inference_mode():
            x = torch.ones(n)
            compiled(x)
        with pytest.raises(RuntimeError, match="[Ii]nference"):
            compiled(x)
        assert torch.equal(x, torch.full((n,), 3.0))  # eager raises once it has added


def test_tangents_are_never_dropped():
    compiled = broach.compile(lambda x: x.sin() * 2)
    x, t = torch.full((2,), 0.5), torch.ones(2)
    with torch.enable_grad():
        for _ in range(3):
            compiled(x)
            with fw.dual_level():
                out = fw.unpack_dual(compiled(fw.make_dual(x, t)))
                torch.testing.assert_close(out.tangent, 2 * x.cos())
        _, tangent = torch.func.jvp(compiled, (x,), (t,))
    torch.testing.assert_close(tangent, 2 * x.cos())


def test_kinds_that_are_not_compiled_run_eagerly_for_that_call():
    compiled = broach.compile(lambda x: x * 2)
    plain = torch.ones(2, 2)
    for odd in (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), plain.to_sparse(), (plain * 1j).conj()):
        assert torch.equal(compiled(plain), plain * 2)
        got, want = compiled(odd), odd * 2
        assert got.layout == want.layout and got.is_nested == want.is_nested
        if not got.is_nested:
            assert torch.equal(got.to_dense() if got.is_sparse else got, want.to_dense() if want.is_sparse else want)
    before = compiled.stats()["captures"]
    assert torch.equal(compiled(plain), plain * 2)
    assert compiled.stats()["captures"] == before and compiled.stats()["front"] == "native"


# ---- stand-ins ----


def test_the_storage_of_what_stands_for_a_tensor():
    programs = [lambda a: a + a.untyped_storage().nbytes(), lambda a: copy.deepcopy(a) + 1, lambda a: a + (a.data_ptr() == 0)]
    for program in programs:
        compiled = broach.compile(program, dynamic=True)
        for n in (2, 3, 5, 2):
            assert torch.equal(compiled(torch.ones(n)), program(torch.ones(n)))


# ---- written tensors ----


def _writes_often(x, g):
    g.add_(x)
    g.mul_(2)
    g[0].zero_()
    g.data.add_(1)
    return x


@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (3, 4, 5, 6)], ids=["one size", "sizes that change"])
def test_versions_rise_as_eagers(sizes):
    compiled = compiled_natively(_writes_often)
    for n in sizes:
        mine, eagers = torch.zeros(n), torch.zeros(n)
        compiled(torch.ones(n), mine)
        _writes_often(torch.ones(n), eagers)
        assert mine._version == eagers._version and torch.equal(mine, eagers)


def test_the_version_of_a_tensor_that_the_program_holds():
    g = torch.zeros(2)

    def program(x):
        g.add_(x)
        g.mul_(2)
        return x

    compiled = compiled_natively(program)
    for k in range(1, 4):
        compiled(torch.ones(2))
        assert g._version == 2 * k


def test_an_argument_that_an_operation_resizes():
    program = lambda x, out: torch.add(x, 1, out=out)
    compiled = broach.compile(program)
    for n in (2, 2, 3, 2):
        out = torch.empty(0)
        assert torch.equal(compiled(torch.ones(n), out), torch.full((n,), 2.0)) and out.shape == (n,)


def test_a_computed_tensor_that_an_operation_resizes():
    program = lambda x: torch.add(x, 1, out=torch.empty(0)) * 2
    compiled = broach.compile(program)
    for n in (2, 2, 3, 2):
        assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 4.0))


# ---- random numbers ----


def _restores():
    state = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(state)
    return a.equal(torch.rand(3))


def _seeds():
    torch.manual_seed(7)
    return torch.rand(3)


def test_a_program_that_sets_the_generator_is_not_replayed():
    for program in (_restores, _seeds):
        compiled = broach.compile(program)
        wants, gots = [program() for _ in range(4)], [compiled() for _ in range(4)]
        assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(wants, gots))


def test_the_zero_of_a_negative_number():
    for s in (1.0, -1.0):
        conv = nn.Conv2d(1, 1, 1, bias=False).requires_grad_(False)
        conv.weight.fill_(s)
        compiled = broach.compile(nn.Sequential(conv, nn.ReLU()))
        for _ in range(2):
            assert not torch.signbit(compiled(torch.full((1, 1, 2, 2), -s))).any()


# ---- how operands of opaque operations lie ----


@torch.library.custom_op("broach_identity::in_memory", mutates_args=())
def in_memory(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((x.numel(),), (1,)).clone()


@torch.library.custom_op("broach_identity::strides_of", mutates_args=())
def strides_of(x: torch.Tensor) -> torch.Tensor:
    return torch.tensor(x.stride())


LAYOUTS = {
    "after a transpose": lambda y: in_memory(y.transpose(0, 2) + 1),
    "of a transpose": lambda y: strides_of(y.transpose(0, 2)),
    "of a slice": lambda y: strides_of(y[:, 1:]),
    "of an expanded one": lambda y: strides_of(y[:1].expand(5, 3, 4)),
    "of a sum": lambda y: strides_of(y.permute(1, 2, 0) * 2),
    "of a relu of a sum": lambda y: strides_of((y.permute(1, 2, 0) * 2).relu()),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_opaque_operation_gets_eagers_strides(name):
    program = LAYOUTS[name]
    agree(program, broach.compile(program), *[lambda: (torch.arange(24.0).view(2, 3, 4),)] * 3)


def test_an_opaque_operation_behind_a_convolution():
    conv = nn.Conv2d(3, 8, 1).requires_grad_(False)
    y = torch.rand(2, 3, 4, 4)
    compiled = broach.compile(lambda y: in_memory(conv(y)))
    for _ in range(3):
        torch.testing.assert_close(compiled(y), conv(y).as_strided((256,), (1,)))


def test_random_numbers_are_drawn_in_the_order_of_memory():
    y = torch.ones(1, 2, 2, 3).contiguous(memory_format=torch.channels_last)
    program = lambda y: torch.nn.functional.dropout(y, 0.5)
    compiled = compiled_natively(program)
    for _ in range(3):
        torch.manual_seed(3)
        want = program(y)
        torch.manual_seed(3)
        assert torch.equal(compiled(y), want)
