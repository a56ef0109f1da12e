"""Signals whose handlers raise, as Ctrl-C does, while a program is captured: what they raise reaches the caller, and nothing stays replaced."""

from __future__ import annotations

import builtins
import random
import signal
import subprocess
import sys
import textwrap
import time

import broach
import pytest
import torch


class Alarm(Exception):
    pass


def _ring(number, frame):
    raise Alarm


@pytest.fixture
def alarms():
    before = signal.signal(signal.SIGALRM, _ring)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


LAYER = torch.nn.Linear(8, 8)


def _program(x, k):
    for _ in range(k % 4):
        x = x * 1.01 + LAYER(x)
    if x.sum() > 0:
        x = x + 1
    return x


@pytest.mark.parametrize("gradients", [False, True])
def test_nothing_is_lost(alarms, gradients):
    replaced = [(builtins, "len"), (torch, "tensor"), (torch, "as_tensor"), (torch.Tensor, "item"), (torch.Tensor, "tolist"), (torch.Tensor, "grad")]
    before = [getattr(owner, name) for owner, name in replaced]
    draw = random.Random(0)
    with torch.set_grad_enabled(gradients):
        for _ in range(100):
            compiled = broach.compile(_program)
            with pytest.raises(Alarm):
                signal.setitimer(signal.ITIMER_REAL, 2e-4 + draw.random() * 2e-2)
                for n in range(20):
                    compiled(torch.randn(n % 3 + 1, 8), n)
                time.sleep(1)
            x = torch.randn(2, 8)
            torch.testing.assert_close(compiled(x, 3), _program(x, 3))
    assert [getattr(owner, name) for owner, name in replaced] == before


def test_a_handler_that_returns_runs_once():
    seen = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
    draw = random.Random(0)
    try:
        for i in range(40):
            compiled = broach.compile(_program)
            signal.setitimer(signal.ITIMER_REAL, 2e-4 + draw.random() * 2e-2)
            for n in range(20):
                compiled(torch.randn(n % 3 + 1, 8), n)
            while signal.getitimer(signal.ITIMER_REAL)[0] > 0:
                time.sleep(1e-3)
            assert len(seen) == i + 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Counted:
    calls, raises = 0, False


@pytest.mark.parametrize("error", [KeyboardInterrupt("of its own"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_of_the_programs_own(error):
    owner = Counted()

    def program(x):
        owner.calls += 1
        if owner.raises:
            raise error
        return x * x.shape[0]

    compiled = broach.compile(program, dynamic=True)
    for n in (2, 3):
        compiled(torch.ones(n))
    owner.raises = True
    for n in (4, 5):
        with pytest.raises(type(error)) as caught:
            compiled(torch.ones(n))
        assert caught.value is error and owner.calls == n - 1


def test_a_handler_that_the_program_calls(alarms):
    def program(x):
        if x.shape[0] > 3:
            _ring(0, 1)
        return x * x.shape[0]

    compiled = broach.compile(program, dynamic=True)
    for n in (2, 3):
        compiled(torch.ones(n))
    with pytest.raises(Alarm) as caught:
        compiled(torch.ones(4))
    assert any(entry.name == "program" for entry in caught.traceback)


def test_first_call_while_the_interpreter_ends():
    code = """
        import broach, torch
        compiled = broach.compile(lambda x: torch.relu(x) * 2)
        class Last:
            def __del__(self):
                print(compiled(torch.ones(3)).sum().item())
        last = Last()
        last.itself = last
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "6.0"), done.stderr
