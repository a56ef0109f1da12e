"""Writes into a part of an input, as into a cache of keys and values: eager's answer, without a copy of the whole."""

import pytest
import torch

import broach

ROWS = 4096


def slice_write(cache, x, at):
    cache[:, 3:5] = x
    return cache.sum(-1)


def index_copy(cache, x, at):
    cache.index_copy_(1, at, x)
    return cache.sum(-1)


def index_put(cache, x, at):
    cache[:, at] = x
    return cache.amax(-1)


def old_elements_are_read_before(cache, x, at):
    before = cache.sum(-1)
    cache[:, 1:3] = x
    return before, cache.sum(-1)


def several_writes(cache, x, at):
    cache[:, 1:3] = x
    cache[:, 2:4] = x * 2
    cache.index_copy_(1, at, x + 1)
    return cache * 1.0


def read_between_writes(cache, x, at):
    cache[:, 1:3] = x
    between = cache[:, :4] * 3
    cache[:, 2:4] = between[:, 1:3]
    return between


def corner(cache, x, at):
    cache[1, 5:7, 2:4] = x[0, :, 2:4]
    return cache.sum(-1)


def source_is_an_old_window(cache, x, at):
    cache[:, 1:3] = cache[:, 2:4].clone()
    cache[:, 0:2] = cache[:, 1:3] + x
    return cache.sum(-1)


def shift(cache, x, at):
    cache[:, 1:] = cache[:, :-1].clone()
    return cache.sum(-1)


def indexed_by_itself(cache, x, at):
    cache.index_copy_(1, at, cache[:, 7:9])
    return cache.sum(-1)


def two_inputs_from_each_other(cache, x, at):
    old = x.clone()
    x.copy_(cache[:, 2:4])
    cache[:, 2:4] = old
    return cache.sum(-1)


def returned(cache, x, at):
    cache[:, 3:5] = x
    return cache


IN_PLACE = [slice_write, index_copy, index_put, old_elements_are_read_before, several_writes, read_between_writes, returned]
OTHERS = [corner, source_is_an_old_window, shift, indexed_by_itself, two_inputs_from_each_other]


def _arguments():
    torch.manual_seed(0)
    return torch.randn(2, ROWS, 32), torch.randn(2, 2, 32), torch.tensor([9, 4])


@pytest.mark.parametrize("program", IN_PLACE + OTHERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_equals_eager(program, dynamic):
    with torch.no_grad():
        expected_arguments, arguments = _arguments(), _arguments()
        compiled = broach.compile(program, dynamic=dynamic)
        for _ in range(3):
            expected, actual = program(*expected_arguments), compiled(*arguments)
            torch.testing.assert_close(actual, expected)
            torch.testing.assert_close(arguments, expected_arguments, rtol=0, atol=0)


@pytest.mark.parametrize("program", IN_PLACE, ids=lambda f: f.__name__)
def test_the_whole_is_not_copied(program):
    with torch.no_grad():
        arguments = _arguments()
        told = broach.explain(broach.compile(program), *arguments)
    # No intermediate is as large as the cache.
    assert told.arena_bytes < arguments[0].nbytes / 2
