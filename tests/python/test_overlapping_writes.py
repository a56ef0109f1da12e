"""Writes to memory that is read in more than one place: expanded inputs, and operations whose source is what they write."""

from __future__ import annotations

import broach
import pytest
import torch


def _reads(write):
    def program(a, b):
        write(a)
        return a * 2, a.sum(0), b + 1

    return program


WRITES = {
    "fill_": lambda a: a.fill_(2.0),
    "zero_": lambda a: a.zero_(),
    "tril_": lambda a: a.tril_(),
    "diagonal": lambda a: a.diagonal().add_(0.5),
    "column": lambda a: a[:, 0].add_(1),
    "row": lambda a: a[0].fill_(3.0),
    "corner": lambda a: a[:2, :1].mul_(5),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_to_an_expanded_input_is_seen_in_all_its_elements(name, dynamic):
    program = _reads(WRITES[name])
    compiled = broach.compile(program, dynamic=dynamic)
    for n in (4, 4, 4, 7, 5):
        ours, theirs = (torch.arange(1.0, n + 1).reshape(n, 1) for _ in range(2))
        have, want = (f(x.expand(n, 4), torch.ones(n, 2)) for f, x in ((compiled, ours), (program, theirs)))
        assert all(torch.equal(a, b) for a, b in zip(have, want, strict=True)) and torch.equal(ours, theirs)


def test_a_write_to_overlapping_windows():
    def program(a):
        a[0].add_(1)
        return a * 2

    compiled = broach.compile(program)
    for _ in range(3):
        ours, theirs = torch.arange(6.0), torch.arange(6.0)
        have, want = compiled(ours.as_strided((4, 3), (1, 1))), program(theirs.as_strided((4, 3), (1, 1)))
        assert torch.equal(have, want) and torch.equal(ours, theirs)


def test_a_write_to_an_input_that_lies_apart_is_compiled():
    def program(a):
        a[:, 0].add_(1)
        return a * 2

    compiled = broach.compile(program)
    for _ in range(3):
        ours, theirs = torch.arange(24.0).reshape(4, 6), torch.arange(24.0).reshape(4, 6)
        for part in (lambda x: x[:, ::2], lambda x: x.t(), lambda x: x[:1]):
            assert torch.equal(compiled(part(ours)), program(part(theirs))) and torch.equal(ours, theirs)
    assert compiled.stats()["compiled_calls"] > 3 and not compiled.stats()["eager_reasons"]


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a.flatten(), lambda a: a[:]])
def test_masked_scatter_of_itself(view):
    def program(a, m):
        a.masked_scatter_(m, view(a))
        return a * 1

    compiled = broach.compile(program)
    for n in (4, 4, 4, 5):
        ours, theirs, mask = torch.arange(1.0, n + 1), torch.arange(1.0, n + 1), torch.arange(n) > 0
        assert torch.equal(compiled(ours, mask), program(theirs, mask)) and torch.equal(ours, theirs)


# Of windows with gaps eager does not look whether an operand lies in what is written: it goes through them in its order.
WITHIN = {
    "one element": lambda a: a[:, 1].add_(a[0, 1]),
    "the last element": lambda a: a[:, 1].mul_(a[-1, 1]),
    "a row of the columns": lambda a: a[:, :2].add_(a[1, :2]),
    "rows further on": lambda a: a[1:, :3].copy_(a[:-1, :3]),
    "rows before": lambda a: a[:-1, 1:].sub_(a[1:, 1:]),
    "columns further on": lambda a: a[:, 1:].copy_(a[:, :-1]),
    "out": lambda a: torch.add(a[0, 2], a[:, 0], out=a[:, 2]),
    "a setitem": lambda a: a.__setitem__((slice(None), 2), a[1, 2]),
    "three operands": lambda a: a[:, 1].addcmul_(a[:, 0], a[2, 1]),
}
BESIDE = {
    "even and odd": lambda a: a[:, ::2].add_(a[:, 1::2]),
    "halves": lambda a: a[:, :2].mul_(a[:, 2:]),
    "columns": lambda a: a[:, 0].copy_(a[:, 3]),
    "an element before": lambda a: a[1:, 1].div_(a[0, 1]),
    "an element of another column": lambda a: a[:, 1].add_(a[2, 0]),
    "itself": lambda a: a[:, 1].add_(a[:, 1]),
    "blocks": lambda a: a[:2, :2].add_(a[2:4, 2:]),
}


def _written(write, shape):
    def program(a):
        write(a)
        return a * 2

    compiled = broach.compile(program)
    for seed in range(4):
        ours = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 1
        theirs = ours.clone()
        want = program(theirs)
        assert torch.equal(compiled(ours), want) and torch.equal(ours, theirs)
    return compiled.stats()


@pytest.mark.parametrize("shape", [(5, 4), (40, 4)])
@pytest.mark.parametrize("name", WITHIN)
def test_an_operand_within_what_is_written(name, shape):
    assert "lies in what it writes" in _written(WITHIN[name], shape)["reasons"][0]


@pytest.mark.parametrize("shape", [(5, 4), (40, 4)])
@pytest.mark.parametrize("name", BESIDE)
def test_an_operand_beside_what_is_written_is_compiled(name, shape):
    stats = _written(BESIDE[name], shape)
    assert stats["compiled_calls"] >= 3 and not stats["reasons"] and not stats["eager_reasons"]
