from carried import *

# Programs with functorch transforms, hooks, saved_tensors_hooks, autograd.grad inside, optimizers inside, .item branches + backward
import functools, contextlib, copy, weakref, gc, torch.nn as nn, torch.nn.functional as F
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint


# What carries a module.
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
            return g * y * (2 if y[0].sum().item() > 0 else 3)  # behind a batch norm all of them add up to rounding

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
