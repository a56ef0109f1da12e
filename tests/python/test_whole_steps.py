"""Whole training steps in one compiled function: forward, a backward within, what is done to gradients, and the optimizer's step."""

from __future__ import annotations

import broach
import pytest
import torch
import torch.nn.functional as F
from compared import stats
from whole_steps import MODELS, OPTIMIZERS, STEPS, Pair, backward_alone, close, loss_of, usual, zero_grad_last

pytestmark = pytest.mark.usefixtures("with_gradients")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("step", STEPS)
def test_steps_as_eager(step, optimizer):
    pair = Pair(STEPS[step], optimizer=OPTIMIZERS[optimizer], options={"capture": "native"})
    for i in range(8):
        pair.run(i)
    seen = stats(pair.compiled)
    assert seen["front"] == "native" and seen["eager_calls"] == 0 and seen["captures"] <= 6, seen["reasons"]


@pytest.mark.parametrize("model", MODELS)
def test_models(model):
    pair = Pair(usual, MODELS[model])
    for i in range(8):
        pair.run(i)


def test_checkpoints_whose_optimizer_reads_its_count():
    from torch.utils.checkpoint import checkpoint

    def step(m, o, x, y):
        o.zero_grad()
        loss = F.mse_loss(checkpoint(m, x, use_reentrant=False), y)
        loss.backward()
        o.step()
        return loss

    pair = Pair(step, optimizer=OPTIMIZERS["adamw"], options={"capture": "native"})
    for i in range(8):
        pair.run(i)
    assert stats(pair.compiled)["captures"] <= 5 and stats(pair.compiled)["compiled_calls"] > 2


def test_anomalies_are_found_in_a_step_that_is_compiled():
    def step(m, o, x, y):
        o.zero_grad()
        loss = loss_of(m, x, y).sqrt()
        loss.backward()
        o.step()
        return loss

    pair = Pair(step)
    for i in range(5):
        pair.run(i)
    assert stats(pair.compiled)["compiled_calls"] > 0
    before = [p.detach().clone() for p in pair.models[1].parameters()]
    with torch.autograd.set_detect_anomaly(True), pytest.warns(UserWarning), pytest.raises(RuntimeError, match="SqrtBackward0"):
        pair.compiled(torch.full((8, 16), torch.nan), torch.zeros(8, 4))
    assert all(torch.equal(p, kept) for p, kept in zip(pair.models[1].parameters(), before))


def test_batches_of_other_sizes():
    pair = Pair(usual)
    for i, rows in enumerate([8, 8, 8, 5, 5, 8, 11, 3, 8, 64, 1]):
        pair.run(i, rows)


@pytest.mark.parametrize("rows", [[8, 5] * 5, [8, 5, 11, 3, 9, 4, 64, 7, 6, 1]])
@pytest.mark.parametrize("optimizer", [*OPTIMIZERS.values(), lambda p: torch.optim.NAdam(p, 1e-2), lambda p: torch.optim.Adagrad(p, 1e-2)])
def test_one_program_for_batches_of_all_sizes(optimizer, rows):
    """Though they give a loss with its history, and an optimizer's count decides; also if the first batches differ already."""
    pair = Pair(usual, optimizer=optimizer, options={"capture": "native"})
    for i, n in enumerate(rows):
        loss = pair.run(i, n)
        assert loss.requires_grad
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    seen = stats(pair.compiled)
    assert seen["captures"] <= 5 and seen["compiled_calls"] >= 5, (seen["attempts"], seen["reasons"])
    assert sum("sizes" in tried and outcome == "compiled" for tried, outcome, _, _ in seen["attempts"]) == 1


def test_a_history_that_is_not_used_up():
    """Though weights that it needs have been written since, gradients can still be asked for that do not need them."""
    extra = torch.randn(3, requires_grad=True)

    def step(m, o, x, y):
        o.zero_grad()
        loss = loss_of(m, x, y) + extra.exp().sum()
        loss.backward(retain_graph=True)
        o.step()
        return loss

    pair = Pair(step, dynamic=True)
    for i, n in enumerate([8, 5, 3, 8, 9, 2]):
        torch.manual_seed(i)
        x, y = torch.randn(n, 16), torch.randn(n, 4)
        found = []
        for program in (pair.programs[0], pair.compiled):
            loss = program(x, y)
            found.append(torch.autograd.grad(loss, extra, retain_graph=True))
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


LAYER, APART = torch.nn.Linear(4, 2), torch.randn(3, requires_grad=True)


def _step_of_globals(x):
    LAYER.zero_grad()
    loss = LAYER(x).square().mean() + APART.exp().sum()
    loss.backward(retain_graph=True)
    with torch.no_grad():
        for p in LAYER.parameters():
            p.sub_(p.grad, alpha=0.1)
    return loss


def test_a_gradient_that_nobody_clears():
    """It adds up; a recording in symbols that comes to nothing leaves it as it was."""
    before = {name: t.clone() for name, t in LAYER.state_dict().items()}

    def run(f):
        torch.manual_seed(0)
        LAYER.load_state_dict(before)
        LAYER.zero_grad()
        APART.grad = None
        losses = [f(torch.randn(n, 4)).detach() for n in (8, 5, 3, 8, 9, 2)]
        return [*losses, APART.grad.clone(), *(p.detach().clone() for p in LAYER.parameters())]

    torch.testing.assert_close(run(broach.compile(_step_of_globals, dynamic=True)), run(_step_of_globals), rtol=1e-4, atol=1e-5)


def test_a_loss_whose_history_is_used_up():
    pair = Pair(usual)
    for i in range(6):
        loss = pair.run(i)
        assert loss.requires_grad and loss.grad_fn is not None
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
        assert not loss.detach().requires_grad


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_used_up_history_leads_to_weights(dynamic):
    """Who asks for the gradients of some is told, too, instead of given those of what else there is."""
    pair = Pair(usual, dynamic=dynamic)
    for i in range(5):
        loss, model = pair.run(i), pair.models[1]
        other, weight = model(torch.randn(3, 16)).sum(), next(model.parameters())
        for ask in (
            lambda: torch.autograd.grad(loss + other, weight),
            lambda: torch.autograd.grad(loss, weight, allow_unused=True),
            lambda: (loss + other).backward(inputs=[weight]),
        ):
            with pytest.raises(RuntimeError, match="through the graph a second time"):
                ask()


def test_a_graph_that_is_retained_goes_on():
    def step(m, o, x, y):
        o.zero_grad()
        loss = loss_of(m, x, y)
        loss.backward(retain_graph=True)
        return loss

    pair = Pair(step)
    for i in range(5):
        torch.manual_seed(i)
        x, y = torch.randn(8, 16), torch.randn(8, 4)
        want, got = pair.programs[0](x, y), pair.compiled(x, y)
        want.backward(), got.backward()
        pair.compare(want, got)


@pytest.mark.parametrize("hook", ["leaf", "accumulated", "module", "result"])
def test_hooks_run_in_each_step(hook):
    calls = []

    def step(m, o, x, y):
        out = m(x)
        if hook == "result":
            out.register_hook(lambda g: calls.append("result") or g * 2)
        o.zero_grad()
        loss = F.mse_loss(out, y)
        loss.backward()
        o.step()
        return loss.detach()

    pair = Pair(step)
    for m in pair.models:
        if hook == "leaf":
            m[0].weight.register_hook(lambda g: calls.append("leaf") or g * 2)
        if hook == "accumulated":
            m[0].weight.register_post_accumulate_grad_hook(lambda p: calls.append("accumulated"))
        if hook == "module":
            m[0].register_full_backward_hook(lambda *_: calls.append("module") and None)
    for i in range(6):
        pair.run(i)
        assert len(calls) == 2 * (i + 1)


def test_a_hook_that_comes_later():
    pair, calls = Pair(usual), []
    for i in range(10):
        if i == 5:
            for m in pair.models:
                m[0].weight.register_hook(lambda g: calls.append(1) or g * 3)
        pair.run(i)
    assert len(calls) == 10


def test_what_changes_between_steps():
    pair = Pair(usual)
    for i in range(16):
        for m, o in zip(pair.models, pair.optimizers):
            if i == 4:
                m[0].bias.requires_grad_(False)
            if i == 7:
                m[0].bias.requires_grad_()
            if i == 9:
                m[3].weight.data = m[3].weight.data * 2
            if i == 11:
                o.param_groups[0]["lr"] = 0.01
            if i == 13:
                m.eval()
            if i == 14:
                with torch.no_grad():
                    m[0].weight.zero_()
        pair.run(i)


class _Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        _Doubled.calls += 1
        return g * 2


def test_functions_of_the_program():
    def step(m, o, x, y):
        o.zero_grad()
        loss = F.mse_loss(_Doubled.apply(m(x)), y)
        loss.backward()
        o.step()
        return loss.detach()

    _Doubled.calls = 0
    pair = Pair(step)
    for i in range(5):
        pair.run(i)
    assert _Doubled.calls == 10


def test_gradients_that_something_else_holds():
    pair, kept = Pair(backward_alone), []
    for i in range(6):
        pair.run(i)
        kept.append([p.grad for m in pair.models for p in m.parameters()])
    for grads in kept:  # accumulated in place: one tensor
        assert all(g is last for g, last in zip(grads, kept[-1]))
    pair, kept = Pair(usual), []
    for i in range(6):
        pair.run(i)
        kept.append([[p.grad for p in m.parameters()] for m in pair.models])
    for a, b in kept:
        for g, h in zip(a, b):
            close(g, h, "an older gradient")


def test_views_of_gradients():
    """As a sharded optimizer has them: all in one flat tensor."""
    pair = Pair(zero_grad_last)
    flat = []
    for m in pair.models:
        flat.append(torch.zeros(sum(p.numel() for p in m.parameters())))
        at = 0
        for p in m.parameters():
            p.grad = flat[-1][at : at + p.numel()].view_as(p)
            at += p.numel()
    for i in range(6):
        pair.run(i)
        close(flat[0], flat[1], "flat")


def test_inputs_that_need_gradients():
    def step(m, o, x, y):
        x = x.clone().requires_grad_()
        loss = loss_of(m, x, y)
        loss.backward()
        o.step()
        o.zero_grad()
        return x.grad

    pair = Pair(step)
    for i in range(5):
        pair.run(i)


def test_scaled_autocast():
    def step(m, o, x, y):
        o.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(m(x).float(), y)
        loss.backward()
        o.step()
        return loss.detach()

    pair = Pair(step)
    for i in range(6):
        torch.manual_seed(i)
        x, y = torch.randn(8, 16), torch.randn(8, 4)
        torch.testing.assert_close(pair.programs[0](x, y), pair.compiled(x, y), rtol=2e-2, atol=2e-2)  # bf16 rounds 2**-8


def test_two_models_take_turns():
    def step(m, o, x, y):
        fake = m(x)
        o.zero_grad()
        F.mse_loss(fake.detach(), y)
        (fake.mean() - m(y.repeat(1, 4)).mean()).backward()
        o.step()
        return fake.detach()

    pair = Pair(step)
    for i in range(6):
        pair.run(i)


class _Masked(torch.nn.Module):
    """Attention with the mask that a causal one has by itself, made anew in each call."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 12), torch.nn.Linear(16, 4)

    def forward(self, x):
        q, k, v = self.first(x.view(-1, 1, 4, 4)).chunk(3, -1)
        mask = torch.ones(4, 4, dtype=torch.bool, device=x.device).tril()
        return self.last(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).flatten(1))


def test_a_mask_that_says_what_a_causal_attention_does(monkeypatch, capfd):
    """Also where the run that is compiled is one on what stands for values, as a number of the program's makes it."""
    monkeypatch.setenv("BROACH_DUMP", "trace")
    pair = Pair(STEPS["number"], _Masked, options={"capture": "native"})
    for i in range(8):
        pair.run(i)
    assert stats(pair.compiled)["compiled_calls"] > 2
    attention = [line for line in capfd.readouterr().err.splitlines() if "_scaled_dot_product" in line and "backward" not in line]
    assert attention and all(", 0.0, true, none" in line for line in attention), attention


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, 1e-2), lambda p: torch.optim.AdamW(p, 1e-2)], ids=["sgd", "adamw"])
def test_results_keep_the_history_that_the_step_has_used_up(make):
    """In calls that are captured with symbols for sizes as well."""
    model = torch.nn.Linear(8, 4)
    optimizer = make(model.parameters())

    def step(x):
        logits = model(x)
        loss = logits.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, logits

    compiled = broach.compile(step, dynamic=True)
    with torch.enable_grad():
        for n in (4, 4, 4, 5, 6, 4):
            loss, logits = compiled(torch.randn(n, 8))
            assert loss.requires_grad and logits.requires_grad
            with pytest.raises(RuntimeError, match="second time"):
                logits.sum().backward()
