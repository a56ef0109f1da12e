"""What changes around a program, whatever makes that one hard to capture: each is given the compiler, the log and what carries a module."""

from harness import *

import contextlib, copy, functools, gc, weakref

import torch.nn as nn, torch.nn.functional as F
from torch.autograd import grad
from torch.utils.checkpoint import checkpoint


def G(n=3, d=4):
    return torch.randn(n, d, requires_grad=True)


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


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
