"""What a capture is tried with, what came of it, and who runs a program that none stands for."""

import functools
import logging
import random

import pytest
import torch
from losses_of_data import SelectingGradient

import broach


def attempts(program, *calls, capture="auto", **options):
    """Of each attempt what it was made with and its outcome."""
    compiled = broach.compile(program, options={"capture": capture}, **options)
    for args in calls:
        compiled(*args)
    return compiled, [(tried, outcome) for tried, outcome, *_ in compiled.stats()["attempts"]]


def test_sizes_are_symbols_once_they_change():
    _, tried = attempts(lambda x: x * 2, [torch.ones(3)], [torch.ones(4)], [torch.ones(5)])
    assert tried == [("plain", "compiled"), ("symbols for sizes", "compiled")]


def test_a_fraction_read_on_the_host_asks_for_stand_ins():
    compiled, tried = attempts(lambda x: x * x.sum().item(), *[[torch.full((3,), float(n))] for n in range(4)])
    assert tried == [("plain", "wants stand-ins"), ("symbols for values", "compiled")]
    _, _, why, then = compiled.stats()["attempts"][0]
    assert "read on the host" in why and "known only as it runs" in then


@pytest.mark.parametrize("gradients", [False, True])
def test_sizes_stay_symbols_where_data_decides_others(gradients):
    weight = torch.ones(3, requires_grad=True)
    calls = [[torch.randn(n, 3), torch.arange(n) % 3 > 0] for n in (4, 5, 7, 9)]
    with torch.set_grad_enabled(gradients):
        compiled, tried = attempts(lambda x, mask: (x * weight)[mask].exp().sum(), *calls, dynamic=True)
    assert tried[-1] == ("symbols for sizes, values", "compiled") and len(tried) == 2, tried
    assert compiled.stats()["compiled_calls"] >= 2


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients_that_find_out_sizes(dynamic):
    where, calls = torch.tensor([0, 2, 2]), 5
    program = lambda x, value: x.index_fill(0, where, value)  # noqa: E731
    compiled = broach.compile(program, dynamic=dynamic)
    with torch.enable_grad():
        for call in range(calls):
            seen = []
            for f in (program, compiled):
                x, value = torch.ones(3 + call, 2, requires_grad=True), torch.tensor(float(call), requires_grad=True)
                y = f(x, value)
                y.exp().sum().backward()
                seen.append([y, x.grad, value.grad])
            torch.testing.assert_close(*seen)


def test_numbers_are_given_up_in_the_same_call():
    def asks(x, n):
        return x * {int: 2, float: 3}[type(n)] + n

    compiled, tried = attempts(asks, [torch.ones(3), 2], [torch.ones(4), 3], [torch.ones(5), 4])
    # With numbers that count for themselves, no call was like another whose sizes differ.
    assert tried == [("plain", "compiled"), ("symbols for sizes, numbers", "refuses symbols"), ("plain", "compiled"), ("plain", "compiled")]
    assert "KeyError" in compiled.stats()["attempts"][1][2]


def test_gradients_and_the_programs_errors_are_outcomes():
    weight = torch.ones(3, requires_grad=True)
    with torch.enable_grad():
        assert attempts(lambda x: x * weight, [torch.ones(3)], [torch.ones(3)])[1] == [("plain", "compiled")]
        checkpointed = lambda x: torch.utils.checkpoint.checkpoint(lambda y: y * weight, x, use_reentrant=False)  # noqa: E731
        assert attempts(checkpointed, [torch.ones(3)], [torch.ones(3)])[1] == [("plain", "learnt"), ("inputs apart", "compiled")]
        kept = lambda x: ((x * weight).retain_grad(), x * weight)[1]  # noqa: E731
        assert ("plain", "compiled") not in attempts(kept, [torch.ones(3)], [torch.ones(3)])[1]

    def fails(x):
        raise KeyError("asked for")

    compiled = broach.compile(fails)
    with pytest.raises(KeyError, match="asked for"):
        compiled(torch.ones(3))
    assert [(a[0], a[1]) for a in compiled.stats()["attempts"]] == [("plain", "error")]


def test_explain_prints_the_attempts_of_versions_that_were_dropped():
    count = [0]

    def program(x):
        count[0] += 1
        return x + count[0]

    compiled = broach.compile(program)
    for _ in range(4):
        compiled(torch.ones(3))
    told = broach.explain(compiled, torch.ones(3))
    assert [a[1] for a in told.attempts] == ["learnt", "learnt", "compiled", "compiled"], told.attempts
    assert str(told).count("tried with plain") == 3 and "learnt: writes" in str(told)


def test_what_a_reset_forgets():
    compiled, tried = attempts(lambda x: x + 1, [torch.ones(3)])
    compiled.reset()
    assert tried and not compiled.stats()["attempts"]


generator = random.Random(3)


@functools.lru_cache
def cached(n):
    return n + 1


def catches(x):
    try:
        torch.mm(x, x)
    except RuntimeError:
        pass
    return x + 1


def forgets(x):
    cached.cache_clear()
    return x + cached(1)


def logs(x):
    logging.getLogger(__name__).warning("told")
    return x + 1


# Dynamo answers otherwise than eager there.
EAGER = {
    "caught": catches,
    "generator": lambda x: x * generator.random(),
    "cache": forgets,
    "log": logs,
    "identity": lambda x: x + id(x) % 2,
    "hash": lambda x: x + hash(x) % 2,
    "numpy": lambda x: x + float(x.numpy().sum()),
    "returns a generator": lambda x: (x for _ in range(2)),
}


@pytest.mark.parametrize("name", EAGER)
def test_what_dynamo_must_not_run(name):
    compiled, _ = attempts(EAGER[name], *[[torch.ones(4)]] * 4, capture="either")
    assert compiled.stats()["front"] == "fallback" and compiled.policy.runs_eagerly, compiled.stats()["reasons"]


def test_words_in_a_reason_decide_nothing():
    """A path that reads like a reason for eager."""
    scope = {}
    exec(compile("def program(x):\n    return x + len(x.tolist())\n", "/tmp/an error is caught/program.py", "exec"), scope)
    compiled, _ = attempts(scope["program"], *[[torch.ones(100)]] * 4, capture="either")
    told = compiled.stats()
    assert any("is caught" in why for why in told["reasons"]) and not compiled.policy.runs_eagerly


def _with_selecting_gradient(model):
    return lambda x, chosen: (SelectingGradient.apply(model(x)) * chosen[:, None]).sum()


def test_gradients_that_are_refused_leave_calls_without_them_compiled():
    model = torch.nn.Linear(4, 4)
    program = _with_selecting_gradient(model)
    compiled = broach.compile(program)

    def evaluate(count):
        before = compiled.stats()["compiled_calls"]
        with torch.no_grad():
            for _ in range(count):
                x, chosen = torch.randn(8, 4), torch.randn(8)
                torch.testing.assert_close(compiled(x, chosen), program(x, chosen))
        return compiled.stats()["compiled_calls"] - before

    def train(count):
        for _ in range(count):
            x, chosen = torch.randn(8, 4), torch.randn(8)
            grads = [torch.autograd.grad(p(x, chosen), model.weight)[0] for p in (compiled, program)]
            torch.testing.assert_close(*grads)

    with torch.enable_grad():
        assert evaluate(4) > 0
        train(5)
        assert compiled.stats()["front"] == "fallback"
        assert evaluate(4) > 0
        train(2)
        assert evaluate(2) == 2  # of the version from before
    with torch.no_grad():
        told = broach.explain(compiled, torch.randn(8, 4), torch.randn(8))
    assert told.front == "native" and "depend on data" in told.eager_reasons[0]


def test_gradients_first():
    program = _with_selecting_gradient(torch.nn.Linear(4, 4))
    compiled = broach.compile(program)
    for learns in (True, False):
        with torch.set_grad_enabled(learns):
            for _ in range(5):
                x, chosen = torch.randn(8, 4), torch.randn(8)
                torch.testing.assert_close(compiled(x, chosen), program(x, chosen))
    assert compiled.stats()["compiled_calls"] > 0


def test_what_the_codes_effects_forbid_is_not_tried_again_without_gradients(capsys):
    def program(x):
        print("run")
        return x * 2

    compiled = broach.compile(program)
    for learns in (True, True, True, False, False):
        with torch.set_grad_enabled(learns):
            compiled(torch.ones(2, requires_grad=True))
    assert capsys.readouterr().out == 5 * "run\n"
    assert compiled.stats()["front"] == "fallback"


def test_sizes_that_are_refused_beside_values_leave_these_as_they_were():
    """A step whose optimizer reads a count, on a batch of another size."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean() * {8: 1.0}.get(x.size(0), 2.0)  # a symbol has no hash
        loss.backward()
        optimizer.step()
        return loss

    compiled = broach.compile(step, options={"capture": "native"})
    with torch.enable_grad():
        for n in (8, 8, 8, 8, 8, 3, 8, 3, 8, 5, 5, 8, 3):
            compiled(torch.randn(n, 2))
    told = compiled.stats()
    assert told["front"] == "native" and told["compiled_calls"] >= 7
    assert any("has given a program before" in then for *_, then in told["attempts"]), told["attempts"]
