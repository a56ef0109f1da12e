"""Random numbers, custom operators, autocast, and what changes between calls."""

import gc
import threading
import weakref

import torch
import torch.nn.functional as F
from situation import main, mlp, raised, seeded, situation


# Random numbers.
@situation
def random_numbers_by_seed(compile):
    f = compile(lambda x: (torch.rand(3), torch.randn_like(x), torch.randint(0, 9, (4,)), F.dropout(x, 0.5), torch.bernoulli(x.sigmoid()), torch.randperm(5)))
    log = []
    for i in range(6):
        torch.manual_seed(i)
        log.append(f(seeded((2, 3 + i % 2))))
    return log, torch.rand(2)


@situation
def random_generator_argument(compile):
    g = torch.Generator().manual_seed(3)
    f = compile(lambda x: x + torch.randn(x.shape, generator=g))
    return [f(torch.zeros(3 + i % 2)) for i in range(6)], torch.rand(2)


@situation
def random_distributions(compile):
    f = compile(lambda x: (torch.multinomial(x, 2), torch.poisson(x), torch.normal(x, 0.1), x.clone().exponential_(), x.clone().geometric_(0.3), x.clone().cauchy_(), x.clone().log_normal_(), torch.rand(()) < 0.5))
    torch.manual_seed(3)
    return [f(torch.ones(2, 4 + i % 2)) for i in range(6)]


@situation
def random_state_saved_inside(compile):
    def f(x):
        with torch.random.fork_rng():
            torch.manual_seed(5)
            y = torch.rand(3)
        return x + torch.rand(3), y

    f = compile(f)
    torch.manual_seed(1)
    return [f(torch.zeros(3)) for _ in range(5)]


@situation
def seed_set_inside(compile):
    def f(x):
        torch.manual_seed(7)
        return x + torch.rand(3)

    f = compile(f)
    return [f(torch.zeros(3)) for _ in range(4)], torch.rand(2)


@situation
def gumbel_and_rrelu(compile):
    f = compile(lambda x: (F.gumbel_softmax(x), F.gumbel_softmax(x, hard=True), F.rrelu(x, training=True)))
    log = []
    for i in range(5):
        torch.manual_seed(i)
        x = seeded((3, 4), i, grad=True)
        out = f(x)
        sum(o.sum() * (j + 1) for j, o in enumerate(out)).backward()
        log += [out, x.grad]
    return log


# Custom operators.
@torch.library.custom_op("catalogue::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return torch.from_numpy(x.detach().numpy() * by)


scaled.register_fake(lambda x, by: torch.empty_like(x))
scaled.register_autograd(lambda ctx, g: (g * ctx.by, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]))


@torch.library.custom_op("catalogue::increment", mutates_args=("x",))
def increment(x: torch.Tensor, by: int) -> None:
    x.add_(by)


@torch.library.custom_op("catalogue::positives", mutates_args=())
def positives(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@torch.library.custom_op("catalogue::several", mutates_args=("out",))
def several(xs: list[torch.Tensor], out: torch.Tensor, flag: bool = True) -> list[torch.Tensor]:
    out.copy_(sum(xs))
    return [x.t().contiguous() for x in xs] if flag else []


@torch.library.custom_op("catalogue::transposed", mutates_args=())
def transposed(x: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous().t()


@situation
def custom_operator_with_gradient(compile):
    f = compile(lambda x: scaled(x * 2, 1.5).sin() + 1)
    log = []
    for i in range(5):
        x = seeded((3 + i % 2, 4), i, grad=True)
        out = f(x)
        out.sum().backward()
        log += [out.detach(), x.grad]
    return log


@situation
def custom_operator_that_writes(compile):
    def f(x, y):
        increment(x, 2)
        z = x * y
        increment(z, 1)
        return z, x + 1

    f = compile(f)
    log, x = [], torch.zeros(3)
    for i in range(5):
        log += [f(x, seeded(3, i)), x.clone()]
    return log


@situation
def custom_operator_writes_view(compile):
    def f(x):
        increment(x[1], 3)
        increment(x.t()[0], 1)
        return x * 2

    f = compile(f)
    return [(f(x), x) for x in (seeded((3 + i % 2, 4), i) for i in range(5))]


@situation
def custom_operator_data_sizes(compile):
    f = compile(lambda x: positives(x).sum() + positives(x * 2).mean())
    return [f(seeded(9, i)) for i in range(6)]


@situation
def custom_operator_lists(compile):
    def f(x, y):
        out = torch.empty_like(x)
        a, b = several([x, y], out)
        return a @ b.t() + 1, out * 2, several([x], out, False)

    f = compile(f)
    return [f(seeded((3 + i % 2, 3 + i % 2), i), seeded((3 + i % 2, 3 + i % 2), 9)) for i in range(5)]


@situation
def custom_operator_layout(compile):
    f = compile(lambda x: (transposed(x), transposed(x) + 1, transposed(x).view(-1) if x.shape[0] == 1 else x))
    return [f(seeded((1 + i % 3, 4), i)) for i in range(6)], [f(seeded((3, 4))).__getitem__(0).stride() for _ in range(3)]


@situation
def library_defined_operator(compile):
    lib = torch.library.Library("catalogue_more", "FRAGMENT")
    if not hasattr(torch.ops.catalogue_more, "twice"):
        lib.define("twice(Tensor x, Tensor(a!) y) -> Tensor")
        lib.impl("twice", lambda x, y: y.add_(x) * 2, "CPU")
    f = compile(lambda x, y: torch.ops.catalogue_more.twice(x * 2, y) + y)
    log, y = [], torch.zeros(3)
    for i in range(5):
        log += [f(seeded(3, i), y), y.clone()]
    return log


# Autocast.
@situation
def autocast_inside_and_around(compile):
    model = mlp()

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
            with torch.autocast("cpu", enabled=False):
                z = x @ x.t()
        return y, z, (y.float() * 2)

    f = compile(f)
    log = [f(seeded((3 + i % 2, 6), i)) for i in range(5)]
    return [[t.dtype for t in out] for out in log], [[t.float().round(decimals=1) for t in out] for out in log]


@situation
def autocast_changes_between_calls(compile):
    model = mlp()
    fast = compile(model)
    log = []
    for i in range(9):
        with torch.autocast("cpu", torch.bfloat16 if i % 3 == 1 else torch.float16, enabled=i % 3 != 0):
            log.append(fast(seeded((3, 6))).dtype)
    return log


@situation
def default_type_changes(compile):
    f = compile(lambda x: torch.ones(3) * 0.5 + x.mean())
    log = [f(torch.arange(3.0)) for _ in range(3)]
    torch.set_default_dtype(torch.float64)
    try:
        log += [f(torch.arange(3.0, dtype=torch.float32)) for _ in range(3)]
    finally:
        torch.set_default_dtype(torch.float32)
    return log


# Sizes, numbers and Python.
@situation
def many_sizes(compile):
    f = compile(lambda x, y: (x @ y).softmax(-1).sum(0))
    return [f(seeded((n, m)), seeded((m, k))) for n, m, k in [(3, 4, 5), (4, 4, 5), (5, 6, 5), (1, 6, 7), (8, 1, 1), (0, 4, 5), (3, 0, 5), (64, 33, 17), (2, 2, 2), (1, 1, 1)]]


@situation
def equal_sizes_then_not(compile):
    f = compile(lambda x, y: x + y)
    return [f(seeded((n, 4)), seeded((m, 4), 1)) for n, m in [(3, 3), (5, 5), (7, 7), (1, 7), (7, 1), (1, 1), (9, 9)]], [raised(f, seeded((3, 4)), seeded((2, 4))) for _ in range(2)]


@situation
def branches_on_sizes(compile):
    f = compile(lambda x: x * 2 if x.shape[0] > 4 else (x.t() + 1 if x.shape[0] % 2 else x.sum(0)))
    return [f(seeded((n, 3))) for n in (3, 5, 7, 4, 2, 9, 3, 6, 1)]


@situation
def branches_on_data(compile):
    f = compile(lambda x: x * 2 if x.sum() > 0 else x - x.max().item())
    return [f(seeded((3, 3), i)) for i in range(10)]


@situation
def loops_on_data(compile):
    def f(x):
        while x.norm() > 1:
            x = x * 0.5
        return x

    f = compile(f)
    return [f(seeded(5, i) * (i + 1)) for i in range(8)]


@situation
def numbers_that_change(compile):
    f = compile(lambda x, a, b: x * a + b if b > 1 else x - a)
    return [f(seeded(3), a, b) for a, b in [(1, 2), (2, 2), (3, 2.5), (0.5, 1), (True, 2), (10**12, 0), (float("inf"), 3), (-1, 7), (float("nan"), 3), (0.0, 2), (-0.0, 2)]]


@situation
def ranks_and_types_change(compile):
    f = compile(lambda x: (x * 2).sum(-1) + 1)
    return [f(seeded(s, dtype=d)) for s, d in [((3,), torch.float32), ((3, 4), torch.float32), ((2, 3, 4), torch.float64), ((5,), torch.int64), ((3,), torch.float16), ((3, 4), torch.bool), ((1,), torch.float32)]]


@situation
def many_graphs(compile):
    fs = [compile(lambda x, i=i: (x + i).sin() * i) for i in range(30)]
    return [f(seeded(4 + j)) for j in range(3) for f in fs]


@situation
def more_versions_than_are_kept(compile):
    f = compile(lambda x, mode: getattr(torch, mode)(x) + len(mode))
    names = "sin cos tan exp sinh cosh tanh abs neg sign floor ceil round trunc erf sigmoid relu square".split()
    return [f(seeded(4), name) for _ in range(3) for name in names]


@situation
def containers_as_arguments(compile):
    f = compile(lambda d, *rest, key=None: {"out": d["x"] * 2 + sum(rest), "same": d, "key": key})
    log = []
    for i in range(5):
        d = {"x": seeded(3 + i % 2, i), "n": i}
        out = f(d, 1.0, seeded(3 + i % 2), key=("a", i))
        log += [out["out"], out["same"] is d, out["key"]]
    return log


@situation
def dictionary_and_list_written(compile):
    def f(d, xs):
        d["new"] = d["x"] + 1
        xs.append(d["new"] * 2)
        xs[0] = None
        return len(xs)

    f = compile(f)
    log = []
    for i in range(5):
        d, xs = {"x": seeded(3, i)}, [1]
        log += [f(d, xs), d, xs]
    return log


@situation
def global_state_read(compile):
    box = {"scale": 1.0}
    f = compile(lambda x: x * box["scale"])
    log = []
    for i in range(8):
        box["scale"] = float(i // 2)
        log.append(f(seeded(3)))
    return log


@situation
def tensor_in_closure_changes(compile):
    t = torch.ones(3)
    f = compile(lambda x: x + t)
    log = []
    for i in range(8):
        if i % 2:
            t.mul_(2)
        log.append(f(seeded(3)))
    return log


@situation
def exceptions_inside(compile):
    def f(x):
        try:
            return x.view(7)
        except RuntimeError:
            return x * 2

    f = compile(f)
    return [f(seeded(n)) for n in (3, 7, 3, 7, 5, 7)]


@situation
def errors_then_good_calls(compile):
    f = compile(lambda x, i: x[i] * 2 + x.reshape(3, -1).sum())
    good, bad = torch.tensor([0, 1]), torch.tensor([0, 9])
    log = []
    for i, n in [(good, 6), (good, 6), (bad, 6), (good, 6), (good, 7), (good, 9), (bad, 9), (good, 9)]:
        log.append(raised(f, seeded(n), i))
    return log


@situation
def argument_unchanged_after_error(compile):
    def f(x, i):
        x.add_(1)
        y = x[i]
        x.mul_(2)
        return y

    f = compile(f)
    log = []
    for i in (0, 1, 2, 9, 1, 9, 0):
        x = seeded(4)
        log += [raised(f, x, torch.tensor([i])), x]
    return log


@situation
def generator_and_iterators(compile):
    def pieces(x):
        for row in x:
            yield row.sum()

    f = compile(lambda x: torch.stack([a + b for a, b in zip(pieces(x), map(torch.amax, x.unbind(0)))]))
    return [f(seeded((n, 3))) for n in (3, 3, 5, 4, 3)]


@situation
def results_kept_between_calls(compile):
    f = compile(lambda x: (x + 1, x * 2, x[0]))
    kept = [f(seeded((3, 4), i)) for i in range(6)]
    for out in kept[:3]:
        out[0].zero_()
    return kept


@situation
def memory_is_freed(compile):
    f = compile(lambda x: x * 2 + 1)
    refs = []
    for i in range(5):
        x = seeded((100,), i)
        out = f(x)
        refs += [weakref.ref(x), weakref.ref(out)]
    del x, out
    gc.collect()
    return [r() is None for r in refs]


@situation
def model_is_freed(compile):
    model = mlp()
    fast = compile(model)
    [fast(seeded((3, 6))) for _ in range(4)]
    ref = weakref.ref(model)
    del model, fast
    gc.collect()
    return True if ref() is None else "kept"


@situation
def threads(compile):
    f = compile(lambda x: (x @ x.t()).relu().sum(1))
    out = [None] * 8

    def work(i):
        out[i] = [f(seeded((3 + i % 3 + j, 4), i)) for j in range(4)]

    ts = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    return out


@situation
def transforms_of_functions(compile):
    f = lambda x: (x.sin() * x).sum()
    log = []
    for g in (torch.func.grad(f), torch.func.vmap(torch.func.grad(f)), torch.func.jacrev(lambda x: x.sin() * 2), torch.func.hessian(f), torch.func.jacfwd(lambda x: x**3)):
        fast = compile(g)
        log += [fast(seeded((4, 3), i) if "vmap" in repr(g) else seeded(3, i)) for i in range(4)]
    return log


@situation
def transforms_over_compiled(compile):
    f = compile(lambda x: (x.sin() * x).sum())
    log = [f(seeded(3)) for _ in range(3)]
    log += [raised(lambda: torch.func.grad(f)(seeded(3, i))) for i in range(3)]
    log += [raised(lambda: torch.func.vmap(f)(seeded((4, 3), i))) for i in range(3)]
    log += [raised(lambda: torch.func.jvp(f, (seeded(3),), (seeded(3, 1),))) for i in range(2)]
    return log


@situation
def functional_call_with_parameters(compile):
    model = mlp()
    f = compile(lambda p, x: torch.func.functional_call(model, p, (x,)).sum())
    log = []
    for i in range(4):
        p = {k: (v.detach() * (i + 1)).requires_grad_() for k, v in model.named_parameters()}
        log += [torch.autograd.grad(f(p, seeded((3, 6), i)), list(p.values()))]
    return log


@situation
def vmap_with_randomness_and_dims(compile):
    f = compile(lambda x, y: torch.vmap(lambda a, b: (a * b).cumsum(0), in_dims=(0, 1), out_dims=1)(x, y))
    return [f(seeded((3 + i % 2, 4), i), seeded((4, 3 + i % 2), 1)) for i in range(5)]


@situation
def control_flow_operators(compile):
    from torch._higher_order_ops.while_loop import while_loop

    f = compile(lambda x: torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,)))
    g = compile(lambda x: while_loop(lambda i, v: i < 4, lambda i, v: (i + 1, v * 1.5), (torch.tensor(0), x)))
    return [f(seeded(4, i)) for i in range(6)], [g(seeded(4, i)) for i in range(4)]


@situation
def sparse_and_nested(compile):
    f = compile(lambda x, y: torch.sparse.mm(x, y) + 1)
    g = compile(lambda x: (x * 2).to_sparse().coalesce().values())
    s = seeded((4, 4)).relu().to_sparse()
    return [f(s, seeded((4, 3), i)) for i in range(4)], [g(seeded((3, 3), i).relu()) for i in range(4)]


@situation
def tensor_subclass_and_mode(compile):
    class Tagged(torch.Tensor):
        pass

    f = compile(lambda x: x * 2 + 1)
    log = [type(f(seeded(3).as_subclass(Tagged))).__name__ for _ in range(3)]
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Count():
        out = [f(seeded(3, i)) for i in range(3)]
    return log, out


@situation
def numpy_inside(compile):
    import numpy as np

    f = compile(lambda x: torch.from_numpy(np.cumsum(x.numpy())) * 2)
    return [f(seeded(4, i)) for i in range(5)]


@situation
def items_and_lists(compile):
    f = compile(lambda x: (x.tolist(), x.sum().item(), int(x[0]), float(x.mean()), bool(x[0] > 0), len(x), x.shape, x.dtype, x.numel()))
    return [f(seeded(4 + i % 2, i)) for i in range(6)]


@situation
def nan_to_int_error(compile):
    f = compile(lambda x: x * int(x.sum()))
    return [raised(f, x) for x in (torch.ones(3), torch.ones(3), torch.tensor([float("nan")] * 3), torch.ones(3))]


@situation
def prints_and_asserts(compile):
    def f(x):
        assert x.shape[0] > 2, "small"
        torch._assert((x > -100).all(), "low")
        return x * 2

    f = compile(f)
    return [raised(f, x) for x in (seeded(3), seeded(4), seeded(2), seeded(5), seeded(3) - 1000, seeded(3))]


@situation
def wrong_calls(compile):
    f = compile(lambda x, y=1: x + y)
    return [raised(f), raised(f, seeded(3), z=1), raised(f, "a"), raised(f, None), raised(f, seeded(3), seeded(4)), f(seeded(3)), raised(f, [1], [2])]


@situation
def settings_of_torch(compile):
    f = compile(lambda x: x @ x.t())
    log = [f(seeded((3, 4)))]
    for value in (1, 2, 1):
        torch.set_num_threads(value)
        log.append(f(seeded((3, 4), value)))
    torch.use_deterministic_algorithms(True)
    log += [f(seeded((3, 4), i)) for i in range(2)]
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(1)
    return log


@situation
def optional_and_defaults(compile):
    f = compile(lambda x, mask=None, scale=1.0, flag=False: (x if mask is None else x.masked_fill(mask, 0)) * scale + flag)
    m = seeded(4) > 0
    return [f(seeded(4)), f(seeded(4), m), f(seeded(4), m, 2.0), f(seeded(4), scale=3), f(seeded(4), flag=True), f(seeded(4), None, 2), f(seeded(4), m), f(seeded(4))]


@situation
def optimizers_compiled(compile):
    log = []
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax, torch.optim.ASGD, torch.optim.Rprop):
        p = [seeded((3, 4), 1, grad=True), seeded(5, 2, grad=True)]
        optimizer = make(p, lr=0.01)
        step = compile(lambda: optimizer.step())
        for i in range(4):
            for j, t in enumerate(p):
                t.grad = seeded(t.shape, i + j)
            step()
        log.append([t.detach().clone() for t in p])
    return log


@situation
def schedule_changes_rate(compile):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    step = compile(optimizer.step)
    fast = compile(model)
    log = []
    for i in range(6):
        optimizer.zero_grad()
        fast(seeded((3, 6), i)).square().mean().backward()
        step()
        schedule.step()
        log.append(optimizer.param_groups[0]["lr"])
    return log, [p.detach() for p in model.parameters()]


@situation
def averaged_model(compile):
    model = mlp()
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    fast = compile(model)
    for i in range(4):
        with torch.no_grad():
            [p.add_(0.1 * i) for p in model.parameters()]
        average.update_parameters(model)
        fast(seeded((3, 6)))
    slow = compile(average)
    return [slow(seeded((3, 6))) for _ in range(3)], fast(seeded((3, 6)))


if __name__ == "__main__":
    main()
