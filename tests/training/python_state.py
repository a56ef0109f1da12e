from carried import *

# Programs that contain a checkpoint, a hook or a transform of functions, with everything else changing around them.
import functools, contextlib, copy, torch.nn as nn, torch.nn.functional as F
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint


CK = lambda m: lambda x: checkpoint(m, x, use_reentrant=False) * 1


def HK(m):
    def f(x):
        y = m(x)
        (y.register_hook(lambda g: g * 2) if y.requires_grad else None)
        return y * 1

    return f


def FN(m):
    def f(x):
        return torch.func.vmap(lambda z: m(z[None])[0])(x)

    return f


def GR(m):
    def f(x):
        p = dict(m.named_parameters())
        return torch.func.grad(lambda z: torch.func.functional_call(m, p, (z,)).pow(2).sum())(x)

    return f


def fam(name, body):
    for k, w in dict(ck=CK, hk=HK, fn=FN, gr=GR).items():

        def g(C, log, w=w):
            body(C, log, w)

        g.__name__ = name + "_" + k
        CASES.append(g)


fam("freeze", b_freeze)


def b_hooks(C, log, w):
    m = net()
    c = C(w(m))
    n = []
    h = []
    for i in range(12):
        if i == 4:
            h.append(m[0].register_forward_hook(lambda M, a, o: o * 2))
        if i == 6:
            h.append(m[2].register_forward_pre_hook(lambda M, a: (a[0] + 1,)))
        if i == 8:
            [q.remove() for q in h]
        if i == 9:
            m[0].weight.register_hook(lambda g: g * 3)
        if i == 10:
            m[0].weight.register_post_accumulate_grad_hook(lambda p: n.append(1))
        x = G()
        bw(c(x), x, m, log)
        log(len(n))


fam("mhooks", b_hooks)


def b_state(C, log, w):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 4)
            s.n = 0
            s.k = 1.0
            s.h = []

        def forward(s, x):
            s.n += 1
            s.h.append(s.n)
            return s.l(x) * s.n * s.k

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


fam("state", b_state)


def b_glob(C, log, w):
    k = [1.0]
    m = net()
    c = C(w(lambda x: m(x) * k[0] + z))
    z = 0
    for i in range(9):
        k[0] = float(i)
        z = i // 3
        x = G()
        bw(c(x), x, m, log)


def gl(w):
    return w


for kk, ww in dict(ck=CK, hk=HK, fn=FN).items():

    def g(C, log, w=ww):
        b_glob(C, log, w)

    g.__name__ = "glob_" + kk
    CASES.append(g)


fam("modes", b_modes)


fam("repl", b_repl)


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


fam("creategraph", b_cg)


def b_drop(C, log, w):
    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    c = C(w(m))
    for i in range(9):
        m.train(i not in (4, 5))
        x = G()
        y = c(x)
        torch.rand(2)
        bw(y, x, m, log)
        log(torch.get_rng_state())


for kk, ww in dict(hk=HK).items():

    def g(C, log, w=ww):
        b_drop(C, log, w)

    g.__name__ = "drop_" + kk
    CASES.append(g)


def b_inpl(C, log, w):
    f0 = lambda x: x.exp()
    c = C(w(f0))
    for i in range(9):
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


fam("inpl", b_inpl)


def b_mut(C, log, w):
    buf = torch.zeros(4)

    def f0(x):
        return x * 2

    wf = w(f0)

    def f(x):
        y = wf(x)
        buf.add_(y.detach().mean(0))
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


fam("mut", b_mut)


fam("ident", b_ident)


fam("err", b_err)


def b_leak(C, log, w):
    import weakref, gc

    m = net()
    c = C(w(m))
    for i in range(8):
        x = G()
        y = c(x)
        r = weakref.ref(x)
        r2 = weakref.ref(y)
        y.sum().backward()
        del x, y
        a = (r() is None, r2() is None)
        gc.collect()
        log(a[1] if w is not CK else 0, r() is None, r2() is None)


fam("leak", b_leak)


def b_rg(C, log, w):
    c = C(w(lambda x: x * x.sin()))
    for i in range(10):
        x = torch.randn(3 + (i > 6), 4, requires_grad=bool(i % 2))
        x2 = x.t() if i == 5 else x
        y = c(x2 if i != 8 else x2 * 1)
        log(y)


fam("rg", b_rg)


def b_unused(C, log, w):
    m = net()
    wf = w(m)

    def f(x, y):
        a = wf(x)
        return a, wf(y), a.detach(), a.sum()

    c = C(f)
    for i in range(9):
        x, y = G(), G()
        r = c(x, y)
        log(r)
        [r[0].sum(), r[1].sum(), r[3], r[0].sum() + r[1].sum(), r[0][0].sum() + r[3]][i % 5].backward()
        log(x.grad, y.grad, mstate(m))


fam("partial", b_unused)
main()
