"""Modules as objects, training and gradients."""

import copy
import io
import pickle
import warnings

import torch
import torch.nn as nn
from situation import main, mlp, raised, seeded, situation, steps
from torch.utils.checkpoint import checkpoint


# Modules as objects.
@situation
def deep_copy_of_compiled_module(compile):
    fast = compile(mlp())
    log = [fast(seeded((3, 6), i)) for i in range(3)]
    other = copy.deepcopy(fast)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(2)
    return log, [fast(seeded((3, 6))) for _ in range(3)], [other(seeded((3, 6))) for _ in range(3)]


@situation
def deep_copy_before_first_call(compile):
    fast = compile(mlp())
    other = copy.deepcopy(fast)
    return [fast(seeded((3, 6))) for _ in range(3)], [other(seeded((3, 6))) for _ in range(3)]


@situation
def pickled_module_and_state(compile):
    model = mlp()
    fast = compile(model)
    fast(seeded((3, 6)))
    again = pickle.loads(pickle.dumps(model))
    return again(seeded((3, 6))), [k.removeprefix("_orig_mod.") for k in fast.state_dict()]


@situation
def state_dict_loaded_between_calls(compile):
    model, source = mlp(), mlp()
    with torch.no_grad():
        [p.add_(1) for p in source.parameters()]
    fast = compile(model)
    log = [fast(seeded((3, 6))) for _ in range(3)]
    model.load_state_dict(source.state_dict())
    log += [fast(seeded((3, 6))) for _ in range(2)]
    model.load_state_dict({k: v * 2 for k, v in source.state_dict().items()}, assign=True)
    return log, [fast(seeded((3, 6))) for _ in range(3)]


@situation
def saved_and_loaded_file(compile):
    model = mlp()
    fast = compile(model)
    fast(seeded((3, 6)))
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file))
    return [fast(seeded((3, 6))) for _ in range(3)]


@situation
def parameter_replaced_and_data_changed(compile):
    model = mlp()
    fast = compile(model)
    log = [fast(seeded((3, 6))) for _ in range(3)]
    model[0].weight = nn.Parameter(model[0].weight.detach() * 3)
    log += [fast(seeded((3, 6))) for _ in range(2)]
    model[2].bias.data = model[2].bias.data + 5
    log += [fast(seeded((3, 6))) for _ in range(2)]
    model[2].weight.data.mul_(0.5)
    log += [fast(seeded((3, 6))) for _ in range(2)]
    model[2].bias = None
    return log, [fast(seeded((3, 6))) for _ in range(2)]


@situation
def submodule_replaced_and_moved_type(compile):
    model = mlp()
    fast = compile(model)
    log = [fast(seeded((3, 6))) for _ in range(3)]
    model[1] = nn.Tanh()
    log += [fast(seeded((3, 6))) for _ in range(2)]
    model.double()
    log += [fast(seeded((3, 6)).double()) for _ in range(3)]
    model.bfloat16()
    return log, [fast(seeded((3, 6)).bfloat16()) for _ in range(3)]


@situation
def train_and_eval_in_turns(compile):
    model = mlp(nn.BatchNorm1d(8), nn.Dropout(0.5))
    fast = compile(model)
    log = []
    for i in range(8):
        model.train(i % 2 == 0)
        torch.manual_seed(i)
        log.append(fast(seeded((4 + i % 3, 6), i)))
    return log, dict(model.state_dict())


@situation
def parameters_frozen_between_calls(compile):
    model = mlp()
    fast = compile(model)
    log = []
    for i in range(8):
        model[0].weight.requires_grad_(i % 3 != 2)
        model.zero_grad()
        fast(seeded((3, 6), i)).sum().backward()
        log.append([p.grad for p in model.parameters()])
    return log


@situation
def buffers_updated(compile):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            self.seen += x.shape[0]
            self.mean = self.mean * 0.9 + x.detach().mean(0) * 0.1
            return (x - self.mean) / self.seen

    model = Counter()
    fast = compile(model)
    return [fast(seeded((3 + i % 2, 6), i)) for i in range(8)], dict(model.state_dict())


@situation
def hooks_on_modules(compile):
    model, seen = mlp(), []
    handle = model[0].register_forward_hook(lambda m, args, out: seen.append(out.sum().item()) or out * 2)
    fast = compile(model)
    log = [fast(seeded((3, 6), i)) for i in range(4)]
    handle.remove()
    model[2].register_forward_pre_hook(lambda m, args: (args[0] + 1,))
    return log, [fast(seeded((3, 6), i)) for i in range(4)], len(seen)


@situation
def gradient_hooks(compile):
    model, seen = mlp(), []
    fast = compile(model)
    for p in model.parameters():
        p.register_hook(lambda g: g * 2)
    for i in range(4):
        x = seeded((3, 6), i, grad=True)
        x.register_hook(lambda g: seen.append(g.clone()))
        fast(x).sum().backward()
    return seen, [p.grad for p in model.parameters()]


@situation
def full_backward_hook(compile):
    model, seen = mlp(), []
    model[0].register_full_backward_hook(lambda m, gi, go: seen.append(go[0].clone()))
    fast = compile(model)
    for i in range(4):
        fast(seeded((3, 6), i, grad=True)).sum().backward()
    return seen


@situation
def method_and_attributes_of_compiled(compile):
    class Named(nn.Module):
        scale = 3

        def forward(self, x, *, times=1):
            return x * self.scale * times

        def twice(self, x):
            return self.forward(x) * 2

    model = Named()
    fast = compile(model)
    log = [fast(seeded(3)), fast(seeded(3), times=2), fast.twice(seeded(3)), fast.scale, fast.training]
    model.scale = 4
    return log, [fast(seeded(3)), fast(seeded(3), times=5), fast(seeded(3), times=2.5)]


@situation
def compiled_method_in_place(compile):
    model = mlp()
    model.forward = compile(model.forward)
    return [model(seeded((3, 6), i)) for i in range(4)]


@situation
def compiled_within_compiled(compile):
    inner = compile(lambda x: x * 2 + 1)
    outer = compile(lambda x: inner(x).sin() + inner(x.cos()))
    return [outer(seeded((3 + i % 2, 4), i)) for i in range(5)]


# Training.
@situation
def train_sgd(compile):
    model = mlp()
    return steps(model, compile(model))


@situation
def train_adamw_dropout(compile):
    model = mlp(nn.Dropout(0.3))
    torch.manual_seed(1)
    return steps(model, compile(model), 8, optimizer=torch.optim.AdamW(model.parameters(), lr=0.01))


@situation
def train_compiled_step(compile):
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    fast = compile(step)
    return [fast(seeded((3, 6), i)) for i in range(6)], [p.detach() for p in model.parameters()]


@situation
def train_autocast_scaler(compile):
    model = mlp()
    fast = compile(model)

    def forward(x):
        with torch.autocast("cpu", torch.bfloat16):
            return fast(x)

    return [x.round(decimals=1) for x in steps(model, forward)[0]]


@situation
def train_clip_and_accumulate(compile):
    model = mlp()
    fast = compile(model)
    norms = []
    for i in range(6):
        fast(seeded((3 + i % 2, 6), i)).square().mean().backward()
        if i % 2:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            with torch.no_grad():
                [p.sub_(p.grad) for p in model.parameters()]
            model.zero_grad()
    return norms, [p.detach() for p in model.parameters()]


@situation
def gradient_to_selected(compile):
    f = compile(lambda x, y: (x * y).sin() + y)
    log = []
    for i in range(6):
        x, y = seeded(4, i, grad=i % 3 != 1), seeded(4, i + 9, grad=i % 3 != 2)
        out = f(x, y)
        log.append(torch.autograd.grad(out.sum(), [t for t in (x, y) if t.requires_grad]))
    return log


@situation
def backward_twice_with_retained_graph(compile):
    f = compile(lambda x: (x * x).sin())
    log = []
    for i in range(4):
        x = seeded(4, i, grad=True)
        out = f(x).sum()
        out.backward(retain_graph=True)
        out.backward()
        log += [x.grad, raised(out.backward)]
    return log


@situation
def double_backward(compile):
    f = compile(lambda x, w: (x @ w).tanh().square().sum())
    log = []
    for i in range(5):
        x, w = seeded((3 + i % 2, 4), i, grad=True), seeded((4, 2), 5, grad=True)
        (g,) = torch.autograd.grad(f(x, w), x, create_graph=True)
        g.square().sum().backward()
        log += [g.detach(), x.grad, w.grad]
    return log


@situation
def gradient_penalty_inside(compile):
    def penalty(x, w):
        (g,) = torch.autograd.grad((x @ w).tanh().sum(), x, create_graph=True)
        return (g.norm(dim=1) - 1).square().mean()

    f = compile(penalty)
    log = []
    for i in range(4):
        x, w = seeded((3, 4), i, grad=True), seeded((4, 2), 5, grad=True)
        f(x, w).backward()
        log += [x.grad, w.grad]
    return log


@situation
def gradient_with_unused_output(compile):
    f = compile(lambda x: (x.sin(), x.cos(), x.detach(), (x > 0)))
    log = []
    for i in range(6):
        x = seeded(5, i, grad=True)
        f(x)[i % 2].sum().backward()
        log.append(x.grad)
    return log


@situation
def gradient_not_contiguous(compile):
    f = compile(lambda x: x * 2 + x.exp())
    log = []
    for i in range(5):
        x = seeded((4, 6), i, grad=True)
        out = f(x)
        out.backward([torch.ones(()).expand(4, 6), seeded((6, 4)).t(), seeded((4, 12))[:, ::2], torch.zeros(4, 6), seeded((4, 6)).flip(1)][i])
        log.append(x.grad)
    return log


@situation
def nested_no_grad(compile):
    def f(x):
        y = x * 2
        with torch.no_grad():
            z = y.sin()
        with torch.no_grad(), torch.enable_grad():
            w = x.cos()
        return y * z + w, z.requires_grad, w.requires_grad

    f = compile(f)
    log = []
    for i in range(4):
        x = seeded(5, i, grad=True)
        out = f(x)
        out[0].sum().backward()
        log += [out, x.grad]
    with torch.no_grad():
        log += [f(seeded(5, grad=True)) for _ in range(3)]
    return log


@situation
def decorators_of_modes(compile):
    f = compile(torch.no_grad()(lambda x: x * 2))
    g = compile(torch.inference_mode()(lambda x: x * 2))
    log = [(h(seeded(3, i, grad=True)).requires_grad, h(seeded(3)).is_inference()) for h in (f, g) for i in range(4)]
    return log, torch.is_grad_enabled()


@situation
def inference_mode_then_training(compile):
    model = mlp()
    fast = compile(model)
    with torch.inference_mode():
        log = [fast(seeded((3, 6), i)).clone() for i in range(3)]
        flags = [fast(seeded((3, 6))).is_inference() for _ in range(3)]
        own = seeded((3, 6))
    log += [fast(seeded((3, 6), i)).detach() for i in range(3)]
    fast(seeded((3, 6))).sum().backward()
    return log, flags, raised(lambda: fast(own).sum().backward()), [p.grad for p in model.parameters()]


@situation
def checkpoints(compile):
    model = mlp()
    log = []
    for reentrant in (False, True):
        f = compile(lambda x: checkpoint(model, x * 2, use_reentrant=reentrant).sin())
        for i in range(4):
            model.zero_grad()
            x = seeded((3 + i % 2, 6), i, grad=True)
            f(x).sum().backward()
            log += [x.grad] + [p.grad for p in model.parameters()]
    return log


@situation
def checkpoint_around_compiled_dropout(compile):
    model = mlp(nn.Dropout(0.5))
    fast = compile(model)
    log = []
    for i in range(5):
        torch.manual_seed(i)
        x = seeded((3, 6), i, grad=True)
        checkpoint(fast, x, use_reentrant=False).sum().backward()
        log.append(x.grad)
    return log


@situation
def custom_function(compile):
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, low):
            ctx.save_for_backward(x)
            ctx.low = low
            return x.clamp(low)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x > ctx.low) * 3, None

    f = compile(lambda x: Clip.apply(x * 2, 0.1).exp())
    log = []
    for i in range(5):
        x = seeded(4 + i % 2, i, grad=True)
        out = f(x)
        out.sum().backward()
        log += [out.detach(), x.grad]
    return log


@situation
def straight_through(compile):
    f = compile(lambda x: x + (x.round() - x).detach())
    log = []
    for i in range(4):
        x = seeded(5, i, grad=True)
        out = f(x)
        (out * out).sum().backward()
        log += [out.detach(), x.grad]
    return log


@situation
def mutated_argument_with_gradient(compile):
    def f(x, b):
        b.mul_(0.5).add_(x.detach().mean(0))
        return x * b

    f = compile(f)
    b, log = torch.zeros(4), []
    for i in range(6):
        x = seeded((3 + i % 2, 4), i, grad=True)
        f(x, b).sum().backward()
        log += [x.grad, b.clone()]
    return log


@situation
def mutated_input_view_with_gradient(compile):
    f = compile(lambda a: a.add_(1.0) and None)
    log = []
    for i in range(4):
        base = torch.ones(6, requires_grad=True)
        whole = base * 1
        part = whole[0::2]
        f(part) if i % 2 else f(whole)
        (whole * seeded(6, i)).sum().backward()
        log += [whole.detach(), base.grad]
    return log


@situation
def anomaly_and_nan(compile):
    f = compile(lambda x: (x - x).sqrt())
    log = []
    for i in range(4):
        x = seeded(3, i, grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torch.autograd.detect_anomaly(check_nan=True):
                log.append(raised(f(x).sum().backward))
    return log


if __name__ == "__main__":
    main()
