from harness import *

# more of the same second path: programs with functorch transforms, hooks, saved_tensors_hooks, autograd.grad inside, optimizers inside, .item branches + backward
import functools, contextlib, copy, weakref, gc, torch.nn as nn, torch.nn.functional as F
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint


def G(n=3, d=4):
    return torch.randn(n, d, requires_grad=True)


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


# carriers that push programs to other capture paths
def BR(m):  # branch on value
    def f(x):
        y = m(x)
        return y * 2 if y.sum().item() > 0 else y * 3

    return f


def BK(m):  # backward inside
    def f(x):
        y = m(x)
        if y.requires_grad:
            y.sum().backward(retain_graph=True)
        return y * 1

    return f


def PR(m):  # print between
    def f(x):
        y = m(x)
        print(".", end="", file=io_)
        return y * y.detach().mean()

    return f


import io

io_ = io.StringIO()


def ST(m):  # saved tensor hooks inside
    def f(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t * 2):
            y = m(x)
        return y * 1

    return f


def NZ(m):  # data dependent size
    def f(x):
        y = m(x)
        return y[y[:, 0] > 0] * 2

    return f


def RF(m):
    def f(x):
        with torch.profiler.record_function("a"):
            y = m(x)
        return y * 2

    return f


def CF(m):
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            ctx.save_for_backward(y)
            return y.sin()

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y * (2 if y.sum().item() > 0 else 3)

    return lambda x: Fn.apply(m(x)) * 1


ALL = dict(br=BR, bk=BK, pr=PR, st=ST, nz=NZ, rf=RF, cf=CF)


def fam(body, only=None):
    for k, w in ALL.items():
        if only and k not in only:
            continue

        def g(C, log, w=w):
            body(C, log, w)

        g.__name__ = body.__name__[2:] + "_" + k
        CASES.append(g)


def bw(y, x, m, log):
    if y.requires_grad:
        y.pow(2).sum().backward()
    log(y, x.grad, mstate(m))


def b_freeze(C, log, w):
    m = net()
    c = C(w(m))
    for i in range(10):
        m[0].requires_grad_(i not in (4, 6, 7))
        m[2].requires_grad_(i not in (5, 7))
        x = torch.randn(3, 4, requires_grad=i != 8)
        bw(c(x), x, m, log)


def b_hooks(C, log, w):
    m = net()
    c = C(w(m))
    n = []
    h = []
    for i in range(14):
        if i == 4:
            h.append(m[0].register_forward_hook(lambda M, a, o: o * 2))
        if i == 6:
            h.append(m[2].register_forward_pre_hook(lambda M, a: (a[0] + 1,)))
        if i == 7:
            h.append(m[2].register_full_backward_hook(lambda M, gi, go: (gi[0] * 2,)))
        if i == 9:
            [q.remove() for q in h]
        if i == 10:
            m[0].weight.register_hook(lambda g: g * 3)
        if i == 11:
            m[0].weight.register_post_accumulate_grad_hook(lambda p: n.append(1))
        x = G()
        if i == 12:
            x.register_hook(lambda g: g * 5)
        bw(c(x), x, m, log)
        log(len(n))
        m.zero_grad()


def b_modes(C, log, w):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    c = C(w(m))
    for i in range(12):
        x = G()
        with contextlib.ExitStack() as s:
            if i in (4, 7):
                s.enter_context(torch.no_grad())
            if i in (5, 9):
                s.enter_context(torch.autocast("cpu", torch.bfloat16))
            if i == 6:
                s.enter_context(torch.inference_mode())
            if i == 10:
                x = x.detach().double().requires_grad_()
                m.double()
            if i == 11:
                m.float()
            y = c(x)
            log(y.is_inference(), y.dtype)
        LOOSE[0] = True
        if y.requires_grad:
            y.float().pow(2).sum().backward()
        log(y.clone() if not y.is_inference() else y.tolist(), x.grad, mstate(m))
        m.zero_grad()


def b_repl(C, log, w):
    m = net()
    c = C(w(m))
    for i in range(12):
        if i == 4:
            m[0].weight = nn.Parameter(torch.randn(4, 4))
        if i == 5:
            m[1] = nn.GELU()
        if i == 6:
            m[2] = nn.Linear(4, 4, bias=False)
        if i == 7:
            m[0].weight.data = torch.ones(4, 4)
        if i == 8:
            m[0].bias = None
        if i == 9:
            m[2].weight = m[0].weight
        if i == 10:
            m.append(nn.Linear(4, 4))
        if i == 11:
            m[0].forward = lambda x: x * 2
        x = G(3 + i % 2)
        bw(c(x), x, m, log)


def b_cg(C, log, w):
    m = net()
    c = C(w(m))
    for i in range(7):
        x = G()
        y = c(x)
        (g,) = grad(y.pow(2).sum(), x, create_graph=True)
        log(g)
        (g.pow(2).sum() + y.sum()).backward()
        log(x.grad, mstate(m))
        m.zero_grad()


def b_drop(C, log, w):
    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    c = C(w(m))
    for i in range(9):
        m.train(i not in (4, 5))
        x = G()
        y = c(x)
        torch.rand(2)
        bw(y, x, m, log)
        log(torch.get_rng_state())


def b_state(C, log, w):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 4)
            s.n = 0
            s.k = 1.0
            s.h = []
            s.register_buffer("b", torch.zeros(4))

        def forward(s, x):
            s.n += 1
            s.h.append(s.n)
            s.b += x.detach().mean(0)
            s.b = s.b * 0.9
            return s.l(x) * s.n * s.k + s.b

    m = M()
    c = C(w(m))
    for i in range(9):
        if i >= 5:
            m.k *= 2
        x = G()
        y = c(x)
        log(m.n, m.h)
        bw(y, x, m, log)
        log(m.n, m.h)


def b_inpl(C, log, w):
    c = C(w(lambda x: x[None].exp()[0]))
    for i in range(12):
        u = G()
        x = u * 1
        y = c(x)
        try:
            if i % 3 == 0:
                y.mul_(2)
            if i % 3 == 1:
                x.mul_(2)
            y.sum().backward()
            log(u.grad)
        except Exception as e:
            log(type(e).__name__)
        if i % 3 == 2:
            try:
                y.sum().backward()
                log("no")
            except Exception as e:
                log(type(e).__name__)


def b_err(C, log, w):
    n = []

    def f0(x):
        n.append(1)
        if st:
            raise LookupError("z")
        return x * 2

    st = []
    c = C(w(f0))
    for i in range(9):
        st[:] = [1] if i in (4, 6) else []
        try:
            x = G()
            y = c(x)
            log(y)
        except Exception as e:
            log(type(e).__name__, str(e))
        log(len(n))


def b_ident(C, log, w):
    m = net()
    wf = w(m)
    k = torch.ones(2)
    p = m[0].weight

    def f(x):
        return wf(x), x, k, p, x[0], None, "s", p.t()

    c = C(f)
    for i in range(7):
        x = G()
        r = c(x)
        log(r, r[1] is x, r[2] is k, r[3] is p, r[4]._base is x)
        (r[0].sum() + r[4].sum() + r[7].sum()).backward()
        log(x.grad, mstate(m))


def b_mut(C, log, w):
    buf = torch.zeros(4)
    wf = w(lambda x: x * 2)

    def f(x):
        y = wf(x)
        buf.add_(y.detach().sum(0))
        x.mul_(2)
        return y, x, x.t()

    c = C(f)
    for i in range(7):
        u = G()
        x = u * 1
        y, a, b = c(x)
        log(y, a, b, a is x, buf)
        (y.sum() + b.pow(2).sum()).backward()
        log(u.grad)


def b_leak(C, log, w):
    m = net()
    c = C(w(m))
    for i in range(8):
        x = G()
        y = c(x)
        r = weakref.ref(x)
        r2 = weakref.ref(y)
        y.sum().backward()
        del x, y
        gc.collect()
        log(r() is None, r2() is None)


def b_tie(C, log, w):
    m = net()
    m[2].weight = m[0].weight
    c = C(w(m))
    o = torch.optim.AdamW(m.parameters(), 0.01)
    for i in range(8):
        x = G()
        o.zero_grad()
        y = c(x)
        y.sum().backward()
        o.step()
        log(y, mstate(m, o))


for b in (b_freeze, b_hooks, b_modes, b_repl, b_cg, b_drop, b_state, b_inpl, b_err, b_ident, b_mut, b_leak, b_tie):
    fam(b)
main()
