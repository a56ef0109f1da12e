from autograd_shared import *


@case
@dbl
def create_graph(C, log):
    m = net()
    c = C(m)
    for i in range(5):
        x = G()
        (g,) = grad(c(x).pow(2).sum(), x, create_graph=True)
        log(g)
        (g.norm() - 1).pow(2).backward()
        log(x.grad, mstate(m))


@case
@dbl
def wgan_gp(C, log):
    d = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    g = nn.Linear(2, 4)
    cd = C(d)
    cg = C(g)
    od = torch.optim.Adam(d.parameters(), 1e-2)
    og = torch.optim.Adam(g.parameters(), 1e-2)
    for i in range(5):
        r = torch.randn(6, 4)
        f = cg(torch.randn(6, 2)).detach()
        a = torch.rand(6, 1)
        x = (a * r + (1 - a) * f).requires_grad_()
        (gr,) = grad(cd(x).sum(), x, create_graph=True)
        L = cd(f).mean() - cd(r).mean() + 10 * ((gr.norm(dim=1) - 1) ** 2).mean()
        od.zero_grad()
        L.backward()
        od.step()
        L2 = -cd(cg(torch.randn(6, 2))).mean()
        og.zero_grad()
        L2.backward()
        og.step()
        log(L, L2, mstate(d, od), mstate(g, og))


@case
@dbl
def gp_inside(C, log):
    d = net()

    def gp(x):
        x = x.detach().requires_grad_()
        (g,) = torch.autograd.grad(d(x).sum(), x, create_graph=True)
        return ((g.norm(2, 1) - 1) ** 2).mean()

    c = C(gp)
    for i in range(5):
        l = c(torch.randn(5, 4))
        l.backward()
        log(l, mstate(d))


@case
@dbl
def third_order(C, log):
    c = C(lambda x: (x**4 * x.sin()).sum())
    for i in range(4):
        x = G()
        (g,) = grad(c(x), x, create_graph=True)
        (h,) = grad(g.sum(), x, create_graph=True)
        (t,) = grad(h.sum(), x)
        log(g, h, t)


@case
@dbl
def functional_api(C, log):
    f = lambda x: (x.exp() * x.flip(0)).cumsum(0)
    c = C(f)
    A = torch.autograd.functional
    for i in range(4):
        x = torch.randn(4)
        v = torch.randn(4)
        log(A.jacobian(c, x))
        log(A.jacobian(c, x, create_graph=True))
        log(A.hessian(lambda z: c(z).sum(), x))
        log(A.vjp(c, x, v))
        log(A.hvp(lambda z: c(z).sum(), x, v))
        log(A.jvp(c, x, v))
        log(A.vhp(lambda z: c(z).sum(), x, v))
        log(A.jacobian(c, x, vectorize=True))
        log(A.jacobian(c, x, vectorize=True, strategy="forward-mode"))
        log(c(x))


@case
@dbl
def func_api(C, log):
    f = lambda x: (x.exp() * x.flip(-1)).cumsum(-1)
    c = C(f)
    T = torch.func
    for i in range(4):
        x = torch.randn(4)
        v = torch.randn(4)
        X = torch.randn(3, 4)
        log(T.grad(lambda z: c(z).sum())(x))
        log(T.vmap(c)(X))
        log(T.jvp(c, (x,), (v,)))
        o, vj = T.vjp(c, x)
        log(o, vj(v))
        log(T.jacrev(c)(x))
        log(T.jacfwd(c)(x))
        log(T.hessian(lambda z: c(z).sum())(x))
        log(T.vmap(T.grad(lambda z: c(z).sum()))(X))
        log(c(x))
        log(T.linearize(c, x)[1](v))
        log(T.grad_and_value(lambda z: c(z).sum())(x))
        xx = x.clone().requires_grad_()
        c(xx).sum().backward()
        log(xx.grad)


@case
@dbl
def func_inside(C, log):
    m = net()
    pr = {k: v.detach().clone().requires_grad_() for k, v in m.named_parameters()}

    def per(p, x, y):
        return torch.func.vmap(torch.func.grad(lambda p, x, y: (torch.func.functional_call(m, p, (x,)) - y).pow(2).sum()), (None, 0, 0))(
            p, x, y
        )

    c = C(per)
    for i in range(4):
        r = c(pr, torch.randn(5, 4), torch.randn(5, 3))
        log(r)
        s = sum(v.pow(2).sum() for v in r.values())
        s.backward()
        log(pr, {k: v.grad for k, v in pr.items()})


@case
@dbl
def maml(C, log):
    m = net()
    c = C(m)
    o = torch.optim.SGD(m.parameters(), 0.1)
    for i in range(4):
        p = dict(m.named_parameters())
        for k in range(2):
            l = torch.func.functional_call(c, p, (torch.randn(5, 4),)).pow(2).mean()
            gs = grad(l, list(p.values()), create_graph=True)
            p = {n: v - 0.1 * g for (n, v), g in zip(p.items(), gs)}
        L = torch.func.functional_call(c, p, (torch.randn(5, 4),)).sum()
        o.zero_grad()
        L.backward()
        o.step()
        log(L, mstate(m))


@case
@dbl
def retain_twice(C, log):
    c = C(lambda x: (x * x).exp().sum())
    for i in range(5):
        x = G()
        l = c(x)
        l.backward(retain_graph=True)
        log(x.grad)
        l.backward()
        log(x.grad)
        try:
            l.backward()
            log("no error")
        except Exception as e:
            log(type(e).__name__, str(e)[:60])
        try:
            l2 = c(x)
            grad(l2, x)
            grad(l2, x)
            log("no error")
        except Exception as e:
            log(type(e).__name__)


@case
@dbl
def inplace_saved_error(C, log):
    for f in (lambda x: x.exp(), lambda x: x * x, lambda x: x.sigmoid() * 2, lambda x: torch.relu(x), lambda x: x @ x.t()):
        c = C(f)
        for i in range(4):
            w = G()
            x = w * 1
            y = c(x)
            try:
                if i % 2:
                    y.mul_(2)
                else:
                    x.mul_(2)
                y.sum().backward()
                log(w.grad)
            except Exception as e:
                log(type(e).__name__)


@case
@dbl
def several_losses(C, log):
    m = net()
    c = C(lambda x: (m(x).sum(), m(x * 2).pow(2).mean(), {"a": x.sum() * 2, "n": None, "k": 3}))
    for i in range(6):
        x = G()
        a, b, d = c(x)
        if i == 0:
            a.backward()
        if i == 1:
            b.backward()
        if i == 2:
            a.backward()
            b.backward()
        if i == 3:
            (a + b * d["a"]).backward()
        if i == 4:
            d["a"].backward()
        if i == 5:
            torch.autograd.backward([a, b], [torch.tensor(2.0), torch.tensor(3.0)])
        log(a, b, d, x.grad, mstate(m))
        m.zero_grad()


@case
@dbl
def combine_calls(C, log):
    m = net()
    c = C(m)
    prev = None
    for i in range(6):
        x = G()
        y = c(x)
        z = c(y @ torch.ones(3, 4))
        L = (y * z).sum()
        if prev is not None:
            L = L + (prev * y).sum()
        L.backward(retain_graph=True)
        log(x.grad, y, z, mstate(m))
        prev = y if i % 2 else y.detach()


@case
@dbl
def rnn_bptt(C, log):
    cell = nn.GRUCell(4, 5)
    c = C(cell)
    h = torch.zeros(3, 5)
    for i in range(5):
        L = 0
        for t in range(4):
            h = c(torch.randn(3, 4), h)
            L = L + h.pow(2).sum()
        L.backward()
        log(L, mstate(cell))
        h = h.detach()


@case
@dbl
def nested_compiled(C, log):
    a = C(nn.Linear(4, 4))
    b = C(lambda x: a(x).tanh())
    c = C(lambda x: b(b(x)).sum())
    for i in range(5):
        x = G()
        l = c(x)
        l.backward()
        log(l, x.grad, [p.grad for p in a.parameters()])
        y = b(x)
        y.sum().backward()
        log(y, x.grad)


@case
@dbl
def inplace_results(C, log):
    for f in (
        lambda x: x + 1,
        lambda x: x.view(-1),
        lambda x: (x * 2)[0],
        lambda x: (x * 2).unbind(0),
        lambda x: (x * 3).split(1),
        lambda x: x,
    ):
        c = C(f)
        for i in range(4):
            w = G()
            x = w * 1
            y = c(x)
            try:
                z = y[0] if isinstance(y, tuple) else y
                z.mul_(3)
                log(x, z, y)
                z.sum().backward()
                log(w.grad)
                (x.sum() + 0).backward()
                log(w.grad)
            except Exception as e:
                log(type(e).__name__)


@case
@dbl
def inplace_inputs_inside(C, log):
    def f(x, y):
        x.mul_(y)
        x[0].add_(1)
        return x.sum()

    c = C(f)
    for i in range(5):
        w = G()
        v = G()
        x = w * 1
        v2 = x.t()
        l = c(x, v)
        log(x, v2, x._version)
        (l + x.pow(2).sum() + v2.sum()).backward()
        log(w.grad, v.grad)
    for i in range(3):
        try:
            w = G()
            c(w, w.detach())
            log("ok")
        except Exception as e:
            log(type(e).__name__, w)
    for i in range(3):
        x = torch.randn(3, 4)
        v = G()
        l = c(x, v)
        log(x)
        l.backward()
        log(v.grad)


@case
@dbl
def view_inputs(C, log):
    def f(x):
        x.mul_(2)
        return x.sum()

    c = C(f)
    for i in range(5):
        w = torch.randn(4, 6, requires_grad=True)
        b = w * 1
        v = [b[:2], b[:, ::2], b.t(), b.view(-1)[3:], b[1]][i]
        l = c(v)
        log(b, v)
        (b.pow(2).sum() + l).backward()
        log(w.grad)


@case
@dbl
def tangents(C, log):
    c = C(lambda x: (x.sin(), x @ x.t()))
    for i in range(7):
        x = torch.randn(3, 3, requires_grad=True)
        y, z = c(x)
        if i == 0:
            y.t().sum().backward()
        if i == 1:
            y.backward(torch.ones(1).expand(3, 3))
        if i == 2:
            z.backward(torch.randn(3, 3).t())
        if i == 3:
            y.backward(torch.randn(6, 6)[::2, ::2])
        if i == 4:
            (y.t() @ z.t()).diagonal().sum().backward()
        if i == 5:
            y[0, 1].backward()
        if i == 6:
            torch.autograd.backward([y, z], [torch.randn(3, 1).expand(3, 3), torch.zeros(3, 3)])
        log(x.grad)


@case
@dbl
def tangent_errors(C, log):
    c = C(lambda x: x.sin())
    for i in range(5):
        x = G()
        y = c(x)
        for t in (None, torch.ones(2), torch.ones(3, 4, dtype=torch.float32), torch.ones(3, 4, dtype=torch.complex128), "a"):
            try:
                y.backward(t, retain_graph=True)
                log(x.grad)
            except Exception as e:
                log(type(e).__name__)
        try:
            grad(c(x.detach()), x, torch.ones(3, 4))
            log("none")
        except Exception as e:
            log(type(e).__name__)


@case
@dbl
def allow_unused(C, log):
    c = C(lambda a, b, d: (a * 2, b.detach() * a, d))
    for i in range(5):
        a, b, d = G(), G(), G()
        y, z, w = c(a, b, d)
        log(grad((y + z).sum(), [a, b, d], allow_unused=True, retain_graph=True))
        log(grad(z.sum(), [a, b], materialize_grads=True))
        log(w is d, w)
        try:
            grad(y.sum(), [b])
            log("ok")
        except Exception as e:
            log(type(e).__name__)


@case
@dbl
def tensor_hooks(C, log):
    m = net()
    c = C(m)
    for i in range(6):
        x = G()
        seen = []
        x.register_hook(lambda g: seen.append(g.clone()) or g * 2)
        if i == 2:
            h = m[0].weight.register_hook(lambda g: g * 3)
        if i == 4:
            h.remove()
        y = c(x)
        y.register_hook(lambda g: g + 1)
        y.retain_grad()
        y.sum().backward()
        log(x.grad, y.grad, seen, mstate(m))
        m.zero_grad()


@case
@dbl
def hooks_inside(C, log):
    rec = []

    def f(x, k):
        y = x * x
        y.register_hook(lambda g: g * k)
        y.retain_grad()
        z = y.exp()
        rec.append(y)
        return z.sum()

    c = C(f)
    for i in range(6):
        x = G()
        l = c(x, float(i))
        l.backward()
        log(x.grad, rec[-1].grad, rec[-1], len(rec))


@case
@dbl
def module_hooks(C, log):
    m = net()
    c = C(m)
    ev = []
    hs = []
    for i in range(9):
        if i == 1:
            hs.append(m[0].register_forward_hook(lambda M, a, o: ev.append("f") or o * 2))
        if i == 2:
            hs.append(m[1].register_forward_pre_hook(lambda M, a: (a[0] + 1,)))
        if i == 3:
            hs.append(m[2].register_full_backward_hook(lambda M, gi, go: ev.append((gi, go)) or tuple(g * 2 for g in gi)))
        if i == 4:
            hs.append(m[2].register_full_backward_pre_hook(lambda M, go: tuple(g * 3 for g in go)))
        if i == 5:
            hs.append(c.register_forward_hook(lambda M, a, o: ev.append("outer")))
        if i == 6:
            hs.append(m.register_full_backward_hook(lambda M, gi, go: ev.append("root")))
        if i == 7:
            [h.remove() for h in hs]
        if i == 8:
            hs.append(m[0].register_forward_hook(lambda M, a, kw, o: ev.append("kw"), with_kwargs=True))
        x = G()
        y = c(x)
        y.sum().backward()
        log(y, x.grad, mstate(m), ev)
        m.zero_grad()


main()
