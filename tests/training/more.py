from harness import *
import functools, contextlib, copy, torch.nn as nn, torch.nn.functional as F
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint


def G(n=3, d=4):
    return torch.randn(n, d, requires_grad=True)


def ckcase(name, mk, **kw):
    def g(C, log):
        m = mk()
        c = C(lambda x: checkpoint(m, x, **kw))
        for i in range(6):
            x = G()
            y = c(x)
            y.sum().backward()
            log(y, x.grad, mstate(m) if isinstance(m, nn.Module) else 0, torch.get_rng_state())

    g.__name__ = "ck_" + name
    CASES.append(g)


ckcase("bn", lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()), use_reentrant=False)
ckcase("bn_re", lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()), use_reentrant=True)
ckcase("norng", lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), use_reentrant=False, preserve_rng_state=False)
ckcase("drop", lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), use_reentrant=False)
ckcase("randn", lambda: lambda x: x * torch.randn_like(x), use_reentrant=False)


@case
def ck_counter(C, log):
    n = []

    def f(x):
        n.append(1)
        return x.sin() * x

    c = C(lambda x: checkpoint(f, x, use_reentrant=False))
    for i in range(6):
        x = G()
        y = c(x)
        log(len(n))
        y.sum().backward()
        log(len(n), x.grad)


@case
def ck_autocast(C, log):
    m = nn.Linear(4, 4)
    c = C(lambda x: checkpoint(m, x, use_reentrant=False))
    for i in range(5):
        x = G()
        with torch.autocast("cpu", torch.bfloat16):
            y = c(x)
        y.float().sum().backward()
        log(y, x.grad, mstate(m))


@case
def ck_nested(C, log):
    m = nn.Linear(4, 4)
    c = C(lambda x: checkpoint(lambda z: checkpoint(lambda q: m(q).tanh(), z, use_reentrant=False).exp(), x, use_reentrant=False))
    for i in range(5):
        x = G()
        y = c(x)
        (g,) = grad(y.sum(), x, create_graph=True)
        g.pow(2).sum().backward()
        log(y, g, x.grad, mstate(m))


@case
def ck_selective(C, log):
    from torch.utils.checkpoint import create_selective_checkpoint_contexts as cs, CheckpointPolicy as CP

    pol = lambda ctx, op, *a, **k: CP.MUST_SAVE if op == torch.ops.aten.mm.default else CP.PREFER_RECOMPUTE
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    c = C(lambda x: checkpoint(m, x, use_reentrant=False, context_fn=functools.partial(cs, pol)))
    for i in range(5):
        x = G()
        y = c(x)
        y.sum().backward()
        log(y, x.grad, mstate(m))


@case
def ck_param_changed(C, log):
    m = nn.Linear(4, 4)
    c = C(lambda x: checkpoint(lambda z: m(z).tanh(), x, use_reentrant=False))
    for i in range(6):
        x = G()
        y = c(x)
        with torch.no_grad():
            m.weight.mul_(2)
        try:
            y.sum().backward()
        except Exception as e:
            log(type(e).__name__)
        log(x.grad, mstate(m))


@case
def ck_compiled_inside_dropout(C, log):
    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    c = C(m)
    for i in range(6):
        x = G()
        y = checkpoint(c, x, use_reentrant=False) + checkpoint(c, x, use_reentrant=True)
        torch.rand(3)
        y.sum().backward()
        log(y, x.grad, mstate(m), torch.get_rng_state())


@case
def hook_create_graph(C, log):
    def f(x):
        y = x * x
        y.register_hook(lambda g: g * y.detach() * 2)
        return (y.exp()).sum()

    c = C(f)
    for i in range(6):
        x = G()
        (g,) = grad(c(x), x, create_graph=True)
        log(g)
        g.pow(2).sum().backward()
        log(x.grad)


@case
def hook_rec(C, log):
    rec = []

    def f(x):
        y = x * x
        y.register_hook(lambda g: rec.append(g.clone()))
        z = y.exp()
        z.register_hook(lambda g: g.clamp(max=0.5))
        return z.sum()

    c = C(f)
    for i in range(6):
        x = G()
        c(x).backward()
        log(rec, x.grad)


@case
def hook_order_retain(C, log):
    def f(x):
        y = x * x
        y.retain_grad()
        y.register_hook(lambda g: g * 2)
        z = y * 3
        z.register_hook(lambda g: g + 1)
        z.register_hook(lambda g: g * 5)
        z.retain_grad()
        return z.sum(), y, z

    c = C(f)
    for i in range(6):
        x = G()
        l, y, z = c(x)
        l.backward()
        log(x.grad, y.grad, z.grad)


@case
def hook_input_inside(C, log):
    def f(x, w):
        x.register_hook(lambda g: g * 3)
        w.register_hook(lambda g: g * 2)
        return (x * w).sum()

    c = C(f)
    w = torch.ones(4, requires_grad=True)
    for i in range(5):
        x = G()
        c(x, w).backward()
        log(x.grad, w.grad)


@case
def hook_param_growing(C, log):
    m = nn.Linear(4, 4)
    n = []

    def f(x):
        y = m(x)
        y.register_hook(lambda g: n.append(m.weight.grad is None))
        return y.sum()

    c = C(f)
    for i in range(5):
        c(G()).backward()
        log(n)
        m.zero_grad()


@case
def hook_removed(C, log):
    def f(x, k):
        y = x * 2
        h = y.register_hook(lambda g: g * 10)
        if k:
            h.remove()
        return y.sum(), h

    c = C(f)
    for i in range(6):
        x = G()
        l, h = c(x, i % 2)
        if i == 4:
            h.remove()
        l.backward()
        log(x.grad)


@case
def hook_clip_recurrent(C, log):
    cell = nn.RNNCell(4, 4)

    def f(x):
        h = torch.zeros(3, 4)
        for t in range(3):
            h = cell(x, h)
            if h.requires_grad:
                h.register_hook(lambda g: g.clamp(-0.1, 0.1))
        return h.sum()

    c = C(f)
    for i in range(6):
        x = G()
        c(x).backward()
        log(x.grad, mstate(cell))
    with torch.no_grad():
        log(c(G()))
    cell.requires_grad_(False)
    log(c(torch.ones(3, 4)))


@case
def hook_dropout_rng(C, log):
    def f(x):
        y = F.dropout(x, 0.5)
        y.register_hook(lambda g: g * torch.rand_like(g))
        return y.sum()

    c = C(f)
    for i in range(6):
        x = G()
        c(x).backward()
        log(x.grad, torch.get_rng_state())


@case
def fn_rng_bwd(C, log):
    class D(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g * torch.rand_like(g)

    c = C(lambda x: D.apply(F.dropout(x, 0.5)).sum())
    for i in range(6):
        x = G()
        l = c(x)
        torch.rand(i)
        l.backward()
        log(x.grad, torch.get_rng_state())


@case
def fn_ctx_attrs(C, log):
    class D(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, l, d):
            ctx.l = l
            ctx.s = x.shape
            ctx.save_for_backward(x, None, x.exp())
            ctx.m = x.mean().item()
            return x.clone(), x.sum(), None, 3

        @staticmethod
        def backward(ctx, g, h, _, __):
            a, b, e = ctx.saved_tensors
            log(ctx.needs_input_grad, b is None)
            return g * len(ctx.l) + h * e * ctx.m, None, None

    c = C(lambda x, l: D.apply(x, l, {}))
    for i in range(6):
        x = G()
        r = c(x, list(range(i + 1)))
        log(r)
        (r[0].sum() if i % 2 else r[1] + r[0].sum()).backward()
        log(x.grad)


@case
def fn_double(C, log):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return CubeB.apply(x, g)

    class CubeB(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, g):
            ctx.save_for_backward(x, g)
            return 3 * x * x * g * 2

        @staticmethod
        def backward(ctx, gg):
            x, g = ctx.saved_tensors
            return gg * 7 * x * g, gg * x

    c = C(lambda x: Cube.apply(x).sum())
    for i in range(5):
        x = G()
        (g,) = grad(c(x), x, create_graph=True)
        g.sum().backward()
        log(g, x.grad)


@case
def fn_vmap_jvp(C, log):
    class S(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return torch.sin(x)

        @staticmethod
        def setup_context(ctx, i, o):
            ctx.save_for_backward(*i)
            ctx.save_for_forward(*i)

        @staticmethod
        def backward(ctx, g):
            return g * 0 + 5

        @staticmethod
        def jvp(ctx, t):
            return t * 9

    c = C(lambda x: torch.func.grad(lambda z: S.apply(z).sum())(x))
    d = C(lambda x: torch.func.vmap(torch.func.grad(lambda z: S.apply(z).sum()))(x))
    e = C(lambda x: torch.func.jvp(S.apply, (x,), (torch.ones_like(x),)))
    for i in range(4):
        x = torch.randn(3, 4)
        log(c(x), d(x), e(x))


@case
def backward_pass_errors(C, log):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, g):
            if st["bad"]:
                raise ValueError("boom")
            return g

    st = {"bad": False}
    m = nn.Linear(4, 4)
    c = C(lambda x: m(E.apply(m(x))).sum())
    for i in range(6):
        st["bad"] = i in (2, 4)
        x = G()
        try:
            c(x).backward()
        except Exception as e:
            log(type(e).__name__, str(e))
        log(x.grad, mstate(m))


@case
def inplace_param_inside(C, log):
    w = nn.Parameter(torch.ones(4))

    def f(x):
        l = (x * w).sum()
        with torch.no_grad():
            w.add_(1)
        return l

    c = C(f)
    for i in range(5):
        x = G()
        l = c(x)
        log(l, w)
        try:
            l.backward()
        except Exception as e:
            log(type(e).__name__)
        log(x.grad, w.grad)


@case
def inplace_leaf_err(C, log):
    w = nn.Parameter(torch.ones(4))
    c = C(lambda x: w.add_(1).sum())
    for i in range(3):
        try:
            c(G())
            log("ok")
        except Exception as e:
            log(type(e).__name__, str(e)[:40])
            log(w)


@case
def detach_inplace(C, log):
    def f(x):
        y = x * 2
        d = y.detach()
        d.mul_(3)
        d.add_(1)
        return y, d

    c = C(f)
    for i in range(5):
        x = G()
        y, d = c(x)
        log(y, d, y.data_ptr() == d.data_ptr())
        d.zero_()
        log(y)
        y.sum().backward()
        log(x.grad)

    def f2(x):
        y = x.exp()
        y.detach().mul_(2)
        return y.sum()

    c = C(f2)
    for i in range(4):
        try:
            x = G()
            l = c(x)
            l.backward()
            log(l, x.grad)
        except Exception as e:
            log(type(e).__name__)


@case
def data_setter(C, log):
    def f(x):
        x.data = x.data * 2
        y = x * x
        return y.sum()

    c = C(f)
    for i in range(5):
        x = G()
        l = c(x)
        l.backward()
        log(l, x, x.grad)


@case
def requires_grad_inside(C, log):
    def f(x):
        x.requires_grad_()
        return (x * x).sum()

    c = C(f)
    for i in range(5):
        x = torch.randn(3, requires_grad=i == 2)
        l = c(x)
        l.backward()
        log(x.grad, x)

    def g(x):
        y = x.detach()
        y.requires_grad = True
        z = (y * y).sum()
        (q,) = grad(z, y)
        return q, y, z

    c = C(g)
    for i in range(5):
        x = G()
        log(c(x))


@case
def grad_attr_inside(C, log):
    w = nn.Parameter(torch.ones(4))

    def f(x):
        if w.grad is not None:
            s = w.grad.norm()
            w.grad = None
        else:
            s = torch.zeros(())
        w.grad = x.detach() * 2
        return s

    c = C(f)
    for i in range(6):
        log(c(torch.randn(4)), w.grad)


@case
def grads_as_input(C, log):
    m = nn.Linear(4, 4)
    c = C(lambda g: g.mul_(0.5))
    d = C(lambda ps: [p.grad.sum() if p.grad is not None else None for p in ps])
    for i in range(5):
        m(G()).sum().backward()
        log(d(list(m.parameters())))
        c(m.weight.grad)
        log(mstate(m))
        if i == 2:
            m.bias.grad = None
            log(d(list(m.parameters())))


@case
def ema_compiled(C, log):
    a = nn.Linear(4, 4)
    b = copy.deepcopy(a)

    @torch.no_grad()
    def up(d):
        for p, q in zip(a.parameters(), b.parameters()):
            q.mul_(d).add_(p, alpha=1 - d)

    c = C(up)
    for i in range(6):
        with torch.no_grad():
            a.weight.add_(1)
        c(1 - 1 / (i + 2))
        log(mstate(a), mstate(b))
    up2 = C(lambda: [q.lerp_(p, 0.1) for p, q in zip([p.data for p in a.parameters()], [q.data for q in b.parameters()])] and None)
    for i in range(3):
        up2()
        log(mstate(b))


@case
def manual_sgd_foreach(C, log):
    m = nn.Linear(4, 4)

    def st(x, lr):
        l = m(x).pow(2).mean()
        gs = grad(l, list(m.parameters()))
        with torch.no_grad():
            torch._foreach_add_(list(m.parameters()), gs, alpha=-lr)
        return l

    c = C(st)
    for i in range(6):
        log(c(torch.randn(3, 4), 0.1 / (i + 1)), mstate(m))


@case
def aliased_inputs(C, log):
    def f(t0, ta):
        t0.add_(100)
        return ta[0], ta.view(-1)

    c = C(f)
    for i in range(5):
        b = torch.randn(4, 6)
        r = c(b, b[1:]) if i % 2 else c(b, torch.randn(3, 6))
        log(r, b)
    w = G(4, 6)
    for i in range(4):
        b = w * 1
        r = c(b, b[1:])
        r[1].sum().backward()
        log(r, b, w.grad)


@case
def out_args(C, log):
    o = torch.zeros(3, 4)
    c = C(lambda x: torch.mul(x, 2, out=o))
    for i in range(5):
        x = torch.randn(3 + i % 2, 4)
        log(c(x) is o, o)


@case
def param_as_result(C, log):
    m = nn.Linear(4, 4)
    c = C(lambda x: (m.weight, m.weight.t(), m.weight.detach(), m(x)))
    for i in range(5):
        r = c(G())
        log(r, r[0] is m.weight)
        r[1].pow(2).sum().backward()
        log(mstate(m))
        with torch.no_grad():
            r[2].add_(1)


@case
def zero_size(C, log):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    c = C(m)
    for n in (0, 3, 0, 1, 2, 0):
        x = G(n)
        y = c(x)
        y.sum().backward()
        log(y, x.grad, mstate(m))


@case
def nan_inf(C, log):
    c = C(lambda x: torch.nan_to_num(x / x.abs().clamp(min=0)) * torch.where(x.isfinite(), x, 0.0).sum())
    for v in ([1.0, 2.0, 3.0], [0.0, 1.0, float("nan")], [float("inf"), -1.0, 0.0], [-0.0, 1e38, 1e-45]):
        x = torch.tensor(v, requires_grad=True)
        y = c(x)
        y.sum().backward()
        log(y, x.grad)


@case
def int_div_overflow(C, log):
    c = C(
        lambda a, b: (
            a // b,
            a % b,
            torch.div(a, b, rounding_mode="trunc"),
            a * b,
            a << 1,
            ~a,
            a.sum(),
            a.float().mean(),
            a.to(torch.int8),
            (a > b).sum(),
        )
    )
    for i in range(4):
        log(c(torch.randint(-1000, 1000, (5,)), torch.tensor([3, -3, 7, -7, 1])))
    for i in range(3):
        try:
            log(c(torch.ones(5, dtype=torch.long), torch.zeros(5, dtype=torch.long)))
        except Exception as e:
            log(type(e).__name__)


@case
def f16_promote(C, log):
    c = C(
        lambda x: (
            x * 2.5,
            x + torch.tensor(2.0, dtype=torch.float64),
            x.sum(),
            x.softmax(0),
            x @ x,
            x.mean(dtype=torch.float32),
            x.cumsum(0),
            x.half(),
            x.norm(),
            x * x.float(),
        )
    )
    for dt in (torch.bfloat16, torch.float16, torch.bfloat16, torch.float32, torch.float16):
        x = torch.randn(8, dtype=dt, requires_grad=True)
        r = c(x)
        sum(t.sum().float() for t in r).backward()
        log(x.grad.dtype, [t.dtype for t in r], [t.double() for t in r][5:6])


main()
