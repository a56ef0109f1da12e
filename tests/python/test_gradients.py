"""Gradients of compiled programs: equal to eager's, by compiled code, and with autograd's contract for whoever uses them."""

import copy
import gc
import threading

import pytest
import torch
import torch.nn.functional as F

import broach

pytestmark = pytest.mark.usefixtures("with_gradients")


def leaves_of(tensors):
    return [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad]


def compared(program, *inputs, calls=3, atol=1e-5, rtol=1e-4, compiled=None):
    """Runs eager and the compiled program on the same inputs, with random tangents, and compares results and gradients."""
    compiled = compiled or broach.compile(program)
    for call in range(calls):
        outs = {}
        for name, run in (("eager", program), ("compiled", compiled)):
            torch.manual_seed(call)
            own = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs]
            result = run(*own)
            results = [r for r in (result if isinstance(result, (tuple, list)) else [result]) if isinstance(r, torch.Tensor)]
            tangents = [torch.randn_like(r) for r in results if r.requires_grad]
            grads = torch.autograd.grad([r for r in results if r.requires_grad], leaves_of(own), tangents, allow_unused=True)
            outs[name] = results, grads
        for want, got in zip(outs["eager"][0], outs["compiled"][0], strict=True):
            torch.testing.assert_close(got, want, atol=atol, rtol=rtol)
            assert got.requires_grad == want.requires_grad
        for want, got in zip(outs["eager"][1], outs["compiled"][1], strict=True):
            assert (want is None) == (got is None)
            if want is not None:
                torch.testing.assert_close(got, want, atol=atol, rtol=rtol)
                assert got.stride() == want.stride()
    return compiled


def stats_of(compiled):
    return getattr(compiled, "_compiled_call", compiled).stats()


def is_compiled(compiled, least=1):
    """Enough calls ran as compiled code; gives the calls of the host's library, by schema."""
    s = stats_of(compiled)
    assert s["compiled_calls"] >= least, (s["reasons"], s["eager_reasons"], s["attempts"])
    return {schema for p in s["programs"] for schema in p["externs"]}


def trained(model, data, loss, steps=4, compiled=True, lr=0.05, optimizer=torch.optim.SGD):
    torch.manual_seed(0)
    run = broach.compile(model) if compiled else model
    step = optimizer(model.parameters(), lr=lr)
    losses = []
    for _ in range(steps):
        step.zero_grad()
        value = loss(run, *data)
        value.backward()
        step.step()
        losses.append(value.item())
    return losses, run


def same_training(make, data, loss, **options):
    torch.manual_seed(1)
    a = make()
    torch.manual_seed(1)
    b = make()
    want, _ = trained(a, data, loss, compiled=False, **options)
    got, run = trained(b, data, loss, **options)
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), atol=1e-5, rtol=1e-4)
    for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True):
        torch.testing.assert_close(q, p, atol=1e-5, rtol=1e-4)
    return run


# ---- functions ----


def test_pointwise():
    compiled = compared(lambda x, y: torch.tanh(x * y) + x.sin(), torch.randn(4, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True))
    assert not is_compiled(compiled, 2)


def test_broadcast_operands_get_summed_gradients():
    compared(lambda x, b: (x + b) * b, torch.randn(4, 5, requires_grad=True), torch.randn(5, requires_grad=True))


def test_only_some_inputs_need_gradients():
    compared(lambda x, y: x * y.exp(), torch.randn(3, requires_grad=True), torch.randn(3))


def test_several_results():
    compared(lambda x: (x.exp(), (x * 2).sum(), x.argmax()), torch.randn(3, 4, requires_grad=True))


def test_matrix_product_with_activation():
    compiled = compared(
        lambda x, w, b: F.gelu(F.linear(x, w, b)),
        torch.randn(6, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True), torch.randn(5, requires_grad=True),
    )  # fmt: skip
    assert not is_compiled(compiled, 2)


def test_softmax_layer_norm_and_cross_entropy():
    def program(x, w, target):
        h = F.layer_norm(x, (8,), w)
        return F.cross_entropy(h.softmax(-1), target)

    compared(program, torch.randn(6, 8, requires_grad=True), torch.randn(8, requires_grad=True), torch.randint(0, 8, (6,)))


def test_embedding():
    compared(lambda w, i: F.embedding(i, w).sum(1), torch.randn(10, 4, requires_grad=True), torch.randint(0, 10, (3, 5)))


def test_in_place_on_what_the_program_makes():
    def program(x):
        y = x * 2
        y[:, 0] = x[:, 1]
        y.relu_()
        return y

    compared(program, torch.randn(3, 4, requires_grad=True))


def test_detached_and_no_grad_parts():
    def program(x):
        with torch.no_grad():
            scale = x.abs().max()
        return x / scale + x.detach() * 3

    compared(program, torch.randn(5, requires_grad=True))


def test_doubles_and_halves():
    compared(lambda x: (x * x).sum(-1), torch.randn(3, 4, dtype=torch.float64, requires_grad=True), atol=1e-12, rtol=1e-12)
    compared(lambda x: torch.sigmoid(x) * x, torch.randn(3, 4, dtype=torch.bfloat16, requires_grad=True), atol=2e-2, rtol=2e-2)


def test_integer_and_bool_results():
    compared(lambda x: (x * 2, x > 0, x.argsort()), torch.randn(5, requires_grad=True))


# ---- what is asked for ----


def test_only_one_result_is_used():
    f = broach.compile(lambda a, b: (a * 2, b.exp()))
    for _ in range(3):
        a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        f(a, b)[0].sum().backward()
        assert b.grad is None
        torch.testing.assert_close(a.grad, torch.full((3,), 2.0))
    is_compiled(f)


def test_any_subset_of_gradients():
    f = broach.compile(lambda a, b: a * b)
    for _ in range(2):
        a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        (ga,) = torch.autograd.grad(f(a, b).sum(), [a])
        torch.testing.assert_close(ga, b.detach())
        (gb,) = torch.autograd.grad(f(a, b).sum(), [b])
        torch.testing.assert_close(gb, a.detach())
    is_compiled(f)


def test_expanded_and_transposed_tangents():
    f = broach.compile(lambda a: a * a)
    for _ in range(2):
        a = torch.randn(3, 4, requires_grad=True)
        f(a).sum().backward()  # an expanded one
        torch.testing.assert_close(a.grad, 2 * a.detach())
        t = torch.randn(4, 3).t()
        (g,) = torch.autograd.grad(f(a), a, t)
        torch.testing.assert_close(g, 2 * a.detach() * t)


def test_gradients_accumulate():
    f = broach.compile(lambda a: (a * a).sum())
    a = torch.randn(3, requires_grad=True)
    for _ in range(3):
        f(a).backward()
    torch.testing.assert_close(a.grad, 6 * a.detach())
    is_compiled(f)


def test_requires_grad_changes_between_calls():
    f = broach.compile(lambda a, b: a * b)
    a, b = torch.randn(3), torch.randn(3)
    for ra, rb in [(True, False), (False, True), (True, True), (False, False)] * 2:
        x, y = a.clone().requires_grad_(ra), b.clone().requires_grad_(rb)
        out = f(x, y)
        assert out.requires_grad == (ra or rb)
        if ra or rb:
            out.sum().backward()
        assert (x.grad is not None) == ra and (y.grad is not None) == rb
        for t, other in ((x, b), (y, a)):
            if t.grad is not None:
                torch.testing.assert_close(t.grad, other)


def test_a_frozen_parameter_is_thawed():
    model = torch.nn.Linear(3, 3)
    f = broach.compile(model)
    x = torch.randn(2, 3)
    for frozen in (False, True, False, True):
        model.weight.requires_grad_(not frozen)
        model.zero_grad()
        f(x).sum().backward()
        assert (model.weight.grad is None) == frozen
        torch.testing.assert_close(model.bias.grad, torch.full((3,), 2.0))


def test_no_grad_and_inference_mode_beside_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    f = broach.compile(model)
    x = torch.randn(2, 3)
    for _ in range(3):
        with torch.no_grad():
            assert not f(x).requires_grad
        with torch.inference_mode():
            assert f(x).is_inference()
        assert f(x).requires_grad
    is_compiled(f, 4)


# ---- autograd's contract ----


def test_second_backward_raises_eagers_error():
    f = broach.compile(lambda a: (a * a).sum())
    a = torch.randn(3, requires_grad=True)
    for _ in range(2):
        loss = f(a)
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


def test_retain_graph():
    f = broach.compile(lambda a: (a * a).sum())
    a = torch.randn(3, requires_grad=True)
    f(a)
    loss = f(a)
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(a.grad, 4 * a.detach())


def test_saved_tensor_written_in_place_is_an_error():
    f = broach.compile(lambda a, b: a * b)
    for _ in range(2):
        a, b = torch.randn(3, requires_grad=True), torch.randn(3)
        out = f(a, b)
        b.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_result_that_eager_does_not_save_may_be_written():
    f = broach.compile(lambda a, b: a + b)
    for _ in range(3):
        a, b = torch.randn(3, requires_grad=True), torch.randn(3)
        out = f(a, b)
        out.mul_(2)
        out.sum().backward()
        torch.testing.assert_close(a.grad, torch.full((3,), 2.0))


def test_a_transposed_result_may_be_written():
    f = broach.compile(lambda a: (a * 3).t())
    for _ in range(3):
        a = torch.randn(3, 4, requires_grad=True)
        out = f(a)
        out.mul_(2)
        out.sum().backward()
        torch.testing.assert_close(a.grad, torch.full((3, 4), 6.0))


def test_a_saved_result_written_in_place_is_an_error():
    f = broach.compile(lambda a: a.exp())
    for _ in range(3):
        a = torch.randn(3, requires_grad=True)
        out = f(a)
        out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_hooks_on_results_and_parameters_run():
    model = torch.nn.Linear(3, 3)
    f = broach.compile(model)
    f(torch.randn(2, 3))
    f(torch.randn(2, 3))
    seen = []
    handle = model.weight.register_hook(lambda g: seen.append("weight"))
    out = f(torch.randn(2, 3))
    out.register_hook(lambda g: seen.append("result"))
    out.sum().backward()
    assert seen == ["result", "weight"]
    handle.remove()


def test_a_hook_within_the_program_runs_once_a_call():
    seen = []

    def program(a):
        y = a * 2
        y.register_hook(lambda g: seen.append(1))
        return y.sum()

    f = broach.compile(program)
    a = torch.randn(3, requires_grad=True)
    for k in range(3):
        f(a).backward()
        assert len(seen) == k + 1


def test_inputs_with_a_history():
    block = torch.nn.Linear(4, 4)
    f = broach.compile(block)
    x = torch.randn(2, 4)
    for _ in range(3):
        h, e = x, x
        for _ in range(3):
            h, e = f(h), block(e)
        torch.testing.assert_close(h, e)
        got = torch.autograd.grad(h.sum(), list(block.parameters()))
        want = torch.autograd.grad(e.sum(), list(block.parameters()))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
    is_compiled(f, 4)


def test_views_of_inputs_among_results():
    compared(lambda x: (x.view(-1), x * 2), torch.randn(3, 4, requires_grad=True))
    compared(lambda x: (x, x * 2), torch.randn(3, 4, requires_grad=True))


def test_results_that_share_memory():
    def program(x):
        y = x * 2
        return y, y.view(-1)

    compared(program, torch.randn(3, 4, requires_grad=True))


def test_inputs_written_in_place():
    def program(x, w):
        x.mul_(w)
        return x.sum()

    f = broach.compile(program)
    w = torch.randn(3, requires_grad=True)
    for _ in range(3):
        x, y = torch.ones(3), torch.ones(3)
        (got,) = torch.autograd.grad(f(x, w), w)
        (want,) = torch.autograd.grad(program(y, w), w)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(x, y)


def second_order(run, a, w):
    (g,) = torch.autograd.grad(run(a, w).sum(), a, create_graph=True)
    return g, *torch.autograd.grad(g.square().sum(), [a, w])


def test_gradients_of_gradients():
    program = lambda a, w: torch.tanh(a * w) * a.detach()  # noqa: E731
    f = broach.compile(program)
    for _ in range(3):
        a, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        for want, got in zip(second_order(program, a, w), second_order(f, a, w), strict=True):
            torch.testing.assert_close(got, want)
    is_compiled(f)


def test_gradients_of_gradients_through_a_history():
    program = lambda a, w: (a * w).exp() * w  # noqa: E731
    f = broach.compile(program)

    def twice(run):
        return lambda a, w: run(run(a, w).sin(), w)

    for _ in range(3):
        a, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        for want, got in zip(second_order(twice(program), a, w), second_order(twice(f), a, w), strict=True):
            torch.testing.assert_close(got, want)


def test_gradgradcheck():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).double()
    f = broach.compile(model)
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    f(x)
    assert torch.autograd.gradcheck(f, (x,))
    assert torch.autograd.gradgradcheck(f, (x,))


def test_forward_mode_is_not_dropped():
    f = broach.compile(lambda a: a * a)
    a = torch.randn(3, requires_grad=True)
    f(a)
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(a, torch.ones(3))
        assert torch.autograd.forward_ad.unpack_dual(f(x)).tangent is not None


def test_saved_tensors_hooks():
    f = broach.compile(lambda a: a.exp().sum())
    a = torch.randn(3, requires_grad=True)
    f(a)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        loss = f(a)
    loss.backward()
    assert packed
    torch.testing.assert_close(a.grad, a.detach().exp())


def test_custom_function():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 20

    compared(lambda x: Twice.apply(x).sum(), torch.randn(3, requires_grad=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    def program(x):
        return torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant).sum()

    f = broach.compile(program)
    for _ in range(3):
        grads = []
        x = torch.randn(2, 4)
        for run in (program, f):
            own = x.clone().requires_grad_()
            model.zero_grad()
            run(own).backward()
            grads.append([own.grad, *(p.grad for p in model.parameters())])
        for want, got in zip(*grads, strict=True):
            torch.testing.assert_close(got, want)


def test_memory_is_freed_with_the_graph():
    f = broach.compile(lambda a: a.exp().sin().sum())
    a = torch.randn(1000, requires_grad=True)
    f(a)
    loss = f(a)
    node = loss.grad_fn
    assert node.name() == "BroachBackward"
    loss.backward()
    del loss, node
    gc.collect()


def test_two_threads_train():
    models = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)) for _ in range(2)]
    errors = []

    def train(model):
        try:
            f = broach.compile(model)
            for _ in range(20):
                x = torch.randn(4, 8)
                got = torch.autograd.grad(f(x).sum(), list(model.parameters()))
                want = torch.autograd.grad(model(x).sum(), list(model.parameters()))
                for g, w in zip(got, want, strict=True):
                    torch.testing.assert_close(g, w)
        except BaseException as e:  # told by the main thread
            errors.append(e)

    threads = [threading.Thread(target=train, args=(m,)) for m in models]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors


# ---- modules ----


def test_mlp_trains_alike():
    data = torch.randn(16, 8), torch.randn(16, 2)
    make = lambda: torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.LayerNorm(32), torch.nn.GELU(), torch.nn.Linear(32, 2))  # noqa: E731
    run = same_training(make, data, lambda f, x, y: F.mse_loss(f(x), y), optimizer=torch.optim.AdamW, lr=1e-3, steps=6)
    assert not is_compiled(run, 4)


def test_convolutions_with_batch_norm_train_alike():
    data = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    make = lambda: torch.nn.Sequential(  # noqa: E731
        torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(6, 6, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(6, 5),
    )  # fmt: skip
    is_compiled(same_training(make, data, lambda f, x, y: F.cross_entropy(f(x), y)), 2)


def test_dropout_draws_eagers_numbers():
    data = torch.randn(16, 8), torch.randn(16, 2)
    make = lambda: torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 2))  # noqa: E731
    is_compiled(same_training(make, data, lambda f, x, y: F.mse_loss(f(x), y)), 2)


def test_transformer_layer_trains_alike():
    data = torch.randn(2, 6, 16), torch.randn(2, 6, 16)
    make = lambda: torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)  # noqa: E731
    is_compiled(same_training(make, data, lambda f, x, y: F.mse_loss(f(x), y)), 2)


def test_recurrent_layer_trains_alike():
    data = torch.randn(5, 2, 8), torch.randn(5, 2, 12)
    same_training(lambda: torch.nn.GRU(8, 12), data, lambda f, x, y: F.mse_loss(f(x)[0], y))


def test_loss_within_the_program():
    model = torch.nn.Linear(4, 3)
    compared(lambda x, y: F.cross_entropy(model(x), y), torch.randn(5, 4, requires_grad=True), torch.randint(0, 3, (5,)))


def test_train_then_eval_then_train():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    f = broach.compile(model)
    x = torch.randn(3, 4)
    for training in (True, False, True, False):
        model.train(training)
        for _ in range(2):
            torch.manual_seed(0)
            got = f(x)
            torch.manual_seed(0)
            torch.testing.assert_close(got, model(x))


def test_autocast():
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    f = broach.compile(model)
    x = torch.randn(8, 16)
    for _ in range(3):
        grads = []
        for run in (model, f):
            with torch.autocast("cpu", torch.bfloat16):
                loss = run(x).float().square().mean()
            grads.append(torch.autograd.grad(loss, list(model.parameters())))
        for want, got in zip(*grads, strict=True):
            torch.testing.assert_close(got, want, atol=2e-2, rtol=5e-2)
    is_compiled(f)


def test_shared_parameters():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(7, 4)

        def forward(self, i):
            return self.embed(i) @ self.embed.weight.t()

    run = same_training(Tied, (torch.randint(0, 7, (3, 5)),), lambda f, i: f(i).square().mean())
    is_compiled(run, 2)


@pytest.mark.parametrize("own", [False, True])
def test_batches_of_changing_sizes(own):
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(), torch.nn.Linear(16, 2))
    f = broach.compile(model)
    for n in (4, 6, 4, 9, 6, 3, 11):
        x = torch.randn(n, 8, requires_grad=own)
        got = torch.autograd.grad(f(x).square().sum(), list(model.parameters()))
        want = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, atol=1e-4, rtol=1e-4)
    s = stats_of(f)
    assert s["compiled_calls"] >= 4 and len(s["programs"]) <= 2, (s["attempts"], s["recompilations"])


def test_symbols_with_dropout_and_batch_statistics():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    twin = copy.deepcopy(model)
    f = broach.compile(model)
    for n in (4, 6, 9, 5, 7):
        x = torch.randn(n, 4)
        grads = []
        for run, module in ((twin, twin), (f, model)):
            torch.manual_seed(n)
            grads.append(torch.autograd.grad(run(x).square().sum(), list(module.parameters())))
        for want, got in zip(*grads, strict=True):
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        for a, b in zip(model.buffers(), twin.buffers(), strict=True):
            torch.testing.assert_close(a, b)
    s = stats_of(f)
    assert s["compiled_calls"] >= 2 and len(s["programs"]) <= 2, (s["attempts"], s["recompilations"])


@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_changing_lengths(causal):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(20, 16), layer, torch.nn.Linear(16, 20))

    def program(tokens):
        x = model[0](tokens)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(x.shape[1]) if causal else None
        return F.cross_entropy(model[2](layer(x, mask, is_causal=causal)).flatten(0, 1), tokens.flatten())

    f = broach.compile(program)
    for size in ((2, 4), (2, 6), (3, 5), (4, 9), (2, 7), (5, 3)):
        tokens = torch.randint(20, size)
        got = torch.autograd.grad(f(tokens), list(model.parameters()))
        want = torch.autograd.grad(program(tokens), list(model.parameters()))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w, atol=1e-5, rtol=1e-4)
    s = stats_of(f)
    assert s["compiled_calls"] >= 3 and len(s["programs"]) <= 3, (s["attempts"], s["recompilations"])


def _clip(m, o, x):
    torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    return m(x).sum()


def _by_name(m, o, x):
    return m(x).sum() * (1 if getattr(m.weight, "grad") is None else 2)  # noqa: B009


def _sets_by_name(m, o, x):
    setattr(m.weight, "grad", torch.ones_like(m.weight))  # noqa: B010
    return m(x).sum()


def _given_memory(m, o, x):
    torch.nn.utils.vector_to_parameters(x.detach().flatten().repeat(3)[:8] * 0.5, m.parameters())
    return m(x).sum()


OF_GRADIENTS = {
    "zero_grad of a module": lambda m, o, x: (m.zero_grad(), m(x).sum())[1],
    "zero_grad that keeps them": lambda m, o, x: (m.zero_grad(set_to_none=False), m(x).sum())[1],
    "zero_grad of an optimizer": lambda m, o, x: (o.zero_grad(), m(x).sum())[1],
    "step": lambda m, o, x: (o.step(), m(x).sum())[1],
    "clipping": _clip,
    "whether there is one": lambda m, o, x: m(x).sum() * (1 if m.weight.grad is None else 2),
    "by name": _by_name,
    "set by name": _sets_by_name,
    "parameters in other memory": _given_memory,
    "autograd.grad": lambda m, o, x: m(x).sum() + torch.autograd.grad(m(x).sum(), m.weight)[0].sum(),
}


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_programs_that_work_on_gradients_themselves(name):
    seen = []
    for compile in (lambda f: f, broach.compile):
        torch.manual_seed(0)
        m = torch.nn.Linear(3, 2)
        o = torch.optim.SGD(m.parameters(), 0.1)
        run, saw = compile(lambda x, m=m, o=o: OF_GRADIENTS[name](m, o, x)), []
        for i in range(4):
            run(torch.ones(1, 3) + i).backward()
            saw += [m.weight.detach().clone(), None if m.weight.grad is None else m.weight.grad.clone()]
        seen.append(saw)
    for want, got in zip(*seen, strict=True):
        torch.testing.assert_close(got, want)


def test_a_smaller_memory_budget_saves_less_and_computes_the_same():
    saved = []
    for budget in (1.0, 0.6, 0.3, 0.0):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(4)))
        f = broach.compile(model, options={"memory_budget": budget})
        for i in range(3):
            x = torch.randn(3, 5, 16, generator=torch.Generator().manual_seed(i))
            got = torch.autograd.grad(f(x).square().sum(), list(model.parameters()))
            want = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
            for g, w in zip(got, want, strict=True):
                torch.testing.assert_close(g, w, atol=2e-5, rtol=1e-4)
        s = stats_of(f)
        assert s["compiled_calls"] >= 2, s["attempts"]
        saved.append(s["programs"][0]["saved_bytes"])
    assert saved[1] <= 0.6 * saved[0] and saved[2] <= 0.3 * saved[0], saved  # at 0.0 there are biases, which eager does not hold
    assert saved[0] > 0 and saved == sorted(saved, reverse=True)


@pytest.mark.parametrize("wrong", [1.5, -0.1, "half", True, float("nan")])
def test_a_memory_budget_that_is_none_is_refused_by_name(wrong):
    with pytest.raises((TypeError, ValueError), match="memory_budget"):
        broach.compile(torch.nn.Linear(2, 2), options={"memory_budget": wrong})
