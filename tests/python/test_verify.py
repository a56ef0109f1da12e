"""The option `verify`: compiled calls are compared with eager, and a program that differs goes back to eager and says so."""

from __future__ import annotations

import ctypes
import warnings

import broach
import pytest
import torch
from compared import difference, stats
from torch import nn


def verified(program, n=2, **options):
    return broach.compile(program, options={"capture": "native", "verify": n, **options})


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return {"first": x + 1, "second": [x * self.factor]}


def overwrite(number: float, value: float) -> None:
    """Changes a float object in place, as foreign code may: nothing in Python can notice."""
    ctypes.c_double.from_address(id(number) + object.__basicsize__).value = value


def test_calls_are_compared_ever_more_rarely():
    compiled = verified(lambda x: x * 2, 3)
    counts = []
    for _ in range(64):
        compiled(torch.ones(3))
        counts.append(stats(compiled)["verified"])
    # Of 63 compiled calls: 1, 2, 3, and then 6, 12, 24, 48.
    assert [i for i in range(1, 64) if counts[i] > counts[i - 1]] == [1, 2, 3, 6, 12, 24, 48]


def test_a_wrong_trace_is_noticed():
    program = Scaled(float("2.5"))
    compiled = verified(program)
    x = torch.randn(3)
    compiled(x), compiled(x)
    overwrite(program.factor, 7.0)
    with pytest.warns(RuntimeWarning, match=r"output\['second'\]\[0\] differs.*nothing that Broach watches has changed"):
        got = compiled(x)
    assert not (why := difference(program(x), got)), why
    for _ in range(3):
        assert not (why := difference(program(x), compiled(x))), why
    told = broach.explain(compiled, x)
    assert told.front == "eager" and any("differs from eager: output['second'][0]" in why for why in told.capture_reasons)
    assert "differs from eager" in str(told)


def test_what_was_written_since_the_capture_is_named():
    program = Scaled(float("2.5"))
    program.w = torch.ones(3)
    compiled = verified(lambda x: x * program.factor + program.w)
    x = torch.randn(3)
    compiled(x), compiled(x)
    overwrite(program.factor, 7.0)
    program.w.add_(1)
    with pytest.warns(RuntimeWarning, match=r"written since the capture: .*\.w"):
        compiled(x)


def test_nothing_is_written_twice():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x, log, buffer):
            self.calls.add_(1)
            buffer.mul_(2)
            log.append(x + 1)
            x.sub_(1)
            return self.norm(x) + torch.rand(4) + nn.functional.dropout(x, 0.5)

    model, twin = Counts(), Counts()
    twin.load_state_dict(model.state_dict())
    compiled = verified(model, 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        buffers = [torch.ones(3), torch.ones(3)]
        for step in range(6):
            torch.manual_seed(step)
            want = twin(a := torch.ones(5, 4) * step, first := [], buffers[0])
            after = torch.get_rng_state()
            torch.manual_seed(step)
            got = compiled(b := torch.ones(5, 4) * step, second := [], buffers[1])
            assert torch.equal(after, torch.get_rng_state())
            assert not (why := difference([want, a, first, buffers[0], dict(twin.state_dict())], [got, b, second, buffers[1], dict(model.state_dict())])), why
    assert stats(compiled)["verified"] == 5


@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_branch_that_data_takes_for_the_first_time_has_its_effects_once(count):
    seen, weight = {"calls": 0, "log": [], "state": None}, nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.1, momentum=0.9)

    def program(x):
        if x.sum() > 4:
            seen["calls"] += 1
            seen["log"].append(float(x.sum()))
            seen["state"] = x.clone() if seen["state"] is None else seen["state"] + x
            with torch.enable_grad():
                (weight * x).sum().backward()
            optimizer.step()
        return x * 2

    compiled = verified(program, count)
    for i in range(6):
        torch.testing.assert_close(compiled(torch.arange(2.0) + i), (torch.arange(2.0) + i) * 2)
    assert seen["calls"] == 4 and seen["log"] == [5.0, 7.0, 9.0, 11.0]
    torch.testing.assert_close(seen["state"], torch.tensor([14.0, 18.0]))
    torch.testing.assert_close(weight.grad, torch.tensor([14.0, 18.0]))
    own = nn.Parameter(torch.ones(2))
    other = torch.optim.SGD([own], 0.1, momentum=0.9)
    for i in range(2, 6):
        with torch.enable_grad():
            (own * (torch.arange(2.0) + i)).sum().backward()
        other.step()
    torch.testing.assert_close(weight, own)


def test_arguments_that_share_memory_still_do():
    def program(x, y, z):
        z.add_(1)
        return x[1:] * 2, y.t() + 1, z[:1]

    compiled = verified(program, 100)
    for _ in range(4):
        base, z = torch.arange(12.0), torch.zeros(2)
        x, y = base[:4], base[2:].view(2, 5)
        a, b, c = compiled(x, y, z)
        assert torch.equal(a, base[1:4] * 2) and torch.equal(z, torch.ones(2))
        assert torch.equal(b, y.t() + 1) and c.data_ptr() == z.data_ptr()
    assert stats(compiled)["verified"] == 3


def test_other_sizes_and_errors():
    def program(x, i):
        return x[i] * 2

    compiled = verified(program, 100)
    for n in (3, 3, 4, 5, 6):
        assert torch.equal(compiled(torch.ones(n), torch.tensor([1])), torch.tensor([2.0]))
    for _ in range(2):
        with pytest.raises(IndexError):
            compiled(torch.ones(3), torch.tensor([9]))
    assert stats(compiled)["front"] == "native" and stats(compiled)["verified"] >= 3


def test_a_model_in_a_half_type_is_no_difference():
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 8)).bfloat16().eval()
    compiled = verified(model, 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(5):
            compiled(torch.randn(4, 16).bfloat16())
    assert stats(compiled)["verified"] == 4


def test_in_a_checkpoint_whose_hooks_see_what_is_saved_nothing_is_compared():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Dropout(0.5))
    compiled = verified(model, 5)
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("error", RuntimeWarning)
        for _ in range(4):
            x = torch.ones(4, 3, requires_grad=True)
            torch.utils.checkpoint.checkpoint(compiled, x.sin(), use_reentrant=False).sum().backward()
            assert x.grad is not None


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, 1e-2), lambda p: torch.optim.AdamW(p, 1e-2)], ids=["sgd", "adamw"])
def test_whole_steps(make):
    losses = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(8, 4)
        optimizer = make(model.parameters())

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        run = broach.compile(step, options={"verify": 3}) if compiles else step
        with torch.enable_grad():
            losses.append([run(torch.randn(4, 8)).item() for _ in range(8)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_arguments_with_a_history_are_written():
    def program(h, b):
        h.add_(b).mul_(2)
        return h.sum(), h

    compiled = broach.compile(program, options={"verify": 3})
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("error")
        for _ in range(5):
            x, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
            h = x * 1
            total, same = compiled(h, b)
            total.backward()
            assert same is h and torch.equal(x.grad, torch.full((3,), 2.0))


def test_modules_without_memory():
    base = nn.Linear(4, 2)
    parameters = {name: p.detach() for name, p in base.named_parameters()}
    base = base.to("meta")
    compiled = broach.compile(lambda x: torch.func.functional_call(base, parameters, (x,)), options={"verify": 3})
    for _ in range(5):
        x = torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), x @ parameters["weight"].T + parameters["bias"])


@pytest.mark.parametrize("runs", [1, 2])
def test_what_calls_before_need_for_gradients_stays_as_it_was(runs):
    """A batch norm's trial writes its statistics, and is taken back: no gradient of an earlier call has seen a write."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    compiled = verified(model, 4)
    with torch.enable_grad():
        for _ in range(8):
            x = torch.randn(6, 4)
            sum(compiled(x * (i + 1)) for i in range(runs)).pow(2).sum().backward()
    assert model[1].num_batches_tracked == 8 * runs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gradient_that_is_zero_but_for_rounding_is_no_difference(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1)).to(dtype)

    def step(x):
        model.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss.detach()

    compiled = verified(step, 8)
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            compiled(torch.randn(16, 4, dtype=dtype))
    assert stats(compiled)["verified"] == 8
