from harness import *
import torch.nn as nn, torch.nn.functional as F, types, contextlib, sys


@case
def ret_loss_logits(C, log):
    m = nn.Linear(4, 4)

    def f(x):
        y = m(x)
        l = y.pow(2).mean()
        l.backward()
        return l, y

    c = C(f)
    for i in range(6):
        m.zero_grad()
        l, y = c(torch.randn(3, 4))
        log(l, y, mstate(m))


@case
def ret_logits_only(C, log):
    m = nn.Linear(4, 4)

    def f(x):
        y = m(x)
        l = y.pow(2).mean()
        l.backward()
        return y

    c = C(f)
    for i in range(6):
        m.zero_grad()
        y = c(torch.randn(3, 4))
        log(y, mstate(m))


@case
def ret_loss_logits_opt(C, log):
    m = nn.Linear(4, 4)
    o = torch.optim.SGD(m.parameters(), 0.1)

    def f(x):
        o.zero_grad()
        y = m(x)
        l = y.pow(2).mean()
        l.backward()
        o.step()
        return l, y

    c = C(f)
    for i in range(6):
        l, y = c(torch.randn(3, 4))
        log(l, y, mstate(m))


@case
def ret_two_losses(C, log):
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)

    def f(x):
        y = a(x)
        y.detach().pow(2).mean()
        l1 = b(y.detach()).pow(2).mean()
        l1.backward()
        return b(y).mean()

    c = C(f)
    for i in range(6):
        a.zero_grad()
        b.zero_grad()
        l = c(torch.randn(3, 4))
        log(mstate(a), mstate(b))
        l.backward()
        log(mstate(a), mstate(b))


@case
def ret_with_head(C, log):
    a = nn.Linear(4, 4)
    t = nn.Parameter(torch.ones(4))

    def f(x):
        h = a(x)
        hd = h.detach().requires_grad_()
        l = (hd * t).pow(2).sum()
        l.backward()
        return h, hd.grad

    c = C(f)
    for i in range(6):
        a.zero_grad()
        t.grad = None
        h, g = c(torch.randn(3, 4))
        log(h, g, t.grad)
        h.backward(g)
        log(mstate(a), t.grad)


def IT(m):
    def f(x):
        y = m(x)
        return y * 2 if y.sum().item() > -1e9 else y * 3

    return f


def brk(name, body):
    def g(C, log):
        body(C, log)

    g.__name__ = "brk_" + name
    CASES.append(g)


def gh(C, log):
    from torch.nn.modules.module import register_module_forward_hook as R

    m = nn.Sequential(nn.Linear(4, 4))
    c = C(IT(m))
    n = []
    for i in range(8):
        if i == 4:
            h = R(lambda M, a, o: n.append(1) if isinstance(M, nn.Linear) else None)
        if i == 6:
            h.remove()
        x = torch.randn(3, 4, requires_grad=True)
        y = c(x)
        y.sum().backward()
        log(len(n))


brk("globalhook", gh)


def mp(C, log):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.w = nn.Parameter(torch.ones(4))

        def act(s, x):
            return x.sin()

        def forward(s, x):
            return s.act(x) * s.w

    m = M()
    c = C(IT(m))
    for i in range(10):
        if i == 4:
            M.act = lambda s, x: x.cos()
        if i == 6:
            m.act = types.MethodType(lambda s, x: x * 5, m)
        if i == 8:
            M.forward = lambda s, x: x * s.w * 100
        x = torch.ones(4, requires_grad=True)
        y = c(x)
        y.sum().backward()
        log(y, x.grad)


brk("monkeypatch", mp)
G_T = torch.ones(4)
G_F = torch.sin


def gt(C, log):
    global G_T, G_F
    G_T = torch.ones(4)
    G_F = torch.sin
    c = C(IT(lambda x: G_F(x) * G_T))
    for i in range(9):
        if i == 3:
            G_T = torch.full((4,), 2.0)
        if i == 4:
            G_F = torch.cos
        if i == 5:
            G_T = torch.ones(4, requires_grad=True)
        if i == 6:
            G_T = torch.ones(1).double()
        if i == 7:
            G_T = 3
        x = torch.ones(4, requires_grad=True)
        y = c(x)
        y.sum().backward()
        log(y, x.grad)


brk("globals", gt)


def dd(C, log):
    c = C(IT(lambda x: x * torch.ones(4) + torch.tensor(1.5)))
    for i in range(8):
        torch.set_default_dtype(torch.float64 if i in (4, 5) else torch.float32)
        try:
            x = torch.ones(4, dtype=torch.float32, requires_grad=True)
            y = c(x)
            log(y)
        finally:
            torch.set_default_dtype(torch.float32)


brk("defdtype", dd)


def md(C, log):
    from torch.overrides import TorchFunctionMode

    class Mo(TorchFunctionMode):
        def __torch_function__(s, f, t, a=(), k=None):
            r = f(*a, **(k or {}))
            return r + 1 if f is torch.sin else r

    c = C(IT(lambda x: torch.sin(x)))
    for i in range(8):
        x = torch.ones(3, requires_grad=True)
        with Mo() if i in (4, 5) else contextlib.nullcontext():
            l = c(x)
        log(l)


brk("tfmode", md)


def sv(C, log):
    m = nn.Linear(4, 4)
    c = C(IT(m))
    for i in range(8):
        x = torch.ones(3, 4, requires_grad=True)
        n = []
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t: (n.append(1), t.clone())[1], lambda t: t * 2)
            if i in (4, 5)
            else contextlib.nullcontext()
        ):
            y = c(x)
        y.pow(2).sum().backward()
        log(x.grad, mstate(m))
        m.zero_grad()


brk("savedhooks", sv)


def ip(C, log):
    c = C(IT(lambda x: x.exp()))
    for i in range(8):
        x = torch.ones(3, requires_grad=True)
        y = c(x * 1)
        z = y.exp()
        with torch.no_grad():
            x.mul_(2)
        z.sum().backward()
        log(x.grad)
    w = torch.ones(3, requires_grad=True)
    c = C(IT(lambda x: x * w))
    for i in range(8):
        x = torch.ones(3, requires_grad=True)
        y = c(x)
        with torch.no_grad():
            w.mul_(2)
        try:
            y.sum().backward()
            log(x.grad)
        except Exception as e:
            log(type(e).__name__)


brk("versions", ip)


def lk(C, log):
    m = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    c = C(IT(m))
    for i in range(9):
        m.train(i % 3 != 2)
        if i == 5:
            m[1].p = 0.9
        if i == 6:
            m.eval()
            m[1].train()
        x = torch.ones(3, 4, requires_grad=True)
        y = c(x)
        y.sum().backward()
        log(y, x.grad, mstate(m))
    m2 = nn.BatchNorm1d(4)
    c = C(IT(m2))
    for i in range(8):
        m2.momentum = 0.1 * i
        m2.eps = 1e-5 if i < 5 else 0.5
        x = torch.randn(3, 4, requires_grad=True)
        y = c(x)
        y.sum().backward()
        log(y, mstate(m2))


brk("modattrs", lk)


def xa(C, log):
    def f(x):
        return x * x.foo if hasattr(x, "foo") else x

    c = C(IT(f))
    for i in range(8):
        x = torch.ones(3, requires_grad=True)
        if i > 3:
            x.foo = i
        log(c(x))


brk("tensorattr", xa)


def hk2(C, log):
    m = nn.Linear(4, 4)
    c = C(IT(lambda x: m(x)))
    for i in range(8):
        if i == 4:
            h = m.weight.register_hook(lambda g: g * 0)
        if i == 6:
            h.remove()
        x = torch.ones(3, 4, requires_grad=True)
        x.register_hook(lambda g: g * 2)
        y = c(x)
        y.sum().backward()
        log(x.grad, mstate(m))
        m.zero_grad()


brk("tensorhooks", hk2)
main()
