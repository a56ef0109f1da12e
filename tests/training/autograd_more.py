from autograd_shared import *


@case
@dbl
def global_module_hooks(C, log):
    m = net()
    c = C(m)
    ev = []
    from torch.nn.modules.module import register_module_forward_hook as R, register_module_full_backward_hook as B

    for i in range(6):
        if i == 2:
            h = R(lambda M, a, o: ev.append(type(M).__name__) if isinstance(M, (nn.Linear, nn.Tanh)) else None)
            h2 = B(lambda M, gi, go: ev.append("b") if isinstance(M, (nn.Linear, nn.Tanh)) else None)
        if i == 4:
            h.remove()
            h2.remove()
        x = G()
        y = c(x)
        y.sum().backward()
        log(y, x.grad, ev)


@case
@dbl
def post_acc(C, log):
    m = net()
    c = C(m)
    ops = {p: torch.optim.SGD([p], lr=0.1) for p in m.parameters()}
    n = []
    for i in range(6):
        if i == 1:

            def hk(p):
                ops[p].step()
                n.append(tuple(p.shape))
                p.grad = None

            for p in m.parameters():
                p.register_post_accumulate_grad_hook(hk)
        y = c(G())
        y.pow(2).sum().backward()
        log(y, mstate(m), sorted(n))


@case
@dbl
def accgrad_hooks(C, log):
    m = net()
    c = C(m)
    n = []
    keep = []
    for i in range(5):
        if i == 2:
            for p in m.parameters():
                a = p.view_as(p).grad_fn.next_functions[0][0]
                keep.append(a)
                a.register_hook(lambda *_: n.append(1))
                a.register_prehook(lambda g: tuple(k * 2 for k in g))
        c(G()).sum().backward()
        log(mstate(m), len(n))
        m.zero_grad()


@case
@dbl
def saved_hooks(C, log):
    m = net()
    c = C(m)
    for i in range(6):
        x = G()
        n = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: n.append(1) or t.detach().clone(), lambda t: t * (2 if i % 2 else 1)):
            y = c(x)
        y.sum().backward()
        log(x.grad, mstate(m))
        m.zero_grad()


@case
@dbl
def save_on_cpu(C, log):
    m = net()
    c = C(m)
    for i in range(5):
        x = G()
        with torch.autograd.graph.save_on_cpu():
            y = c(x)
        y.sum().backward()
        log(x.grad, mstate(m))


@case
@dbl
def custom_fn(C, log):
    def f(a, b, k):
        y = Sq.apply(a, k)
        z = Rev.apply(b)
        v = RevV.apply(b)
        p, q, i = Two.apply(y, v)
        return p, q, i, z

    c = C(f)
    for i in range(6):
        a, b = G(), G()
        p, q, j, z = c(a, b, float(i + 1))
        log(p, q, j, z)
        [p, q, p + q, p * z, q * z, z][i].sum().backward()
        log(a.grad, b.grad)
    d = C(lambda x: Dirty.apply(x * 1))
    e = C(lambda x: Once.apply(x))
    s = C(lambda x: Two.apply(x, x)[0])
    for i in range(4):
        x = G()
        d(x).sum().backward()
        log(x.grad)
        x = G()
        s(x).sum().backward()
        log(x.grad)
        w = G()
        x = w * 1
        y = C(Dirty.apply)(x)
        log(x, y is x)
        x.sum().backward()
        log(w.grad)
        x = G()
        (g,) = grad(e(x).sum(), x, create_graph=True)
        log(g)
        try:
            g.sum().backward()
            log(x.grad)
        except Exception as ex:
            log(type(ex).__name__)


@case
@dbl
def custom_state(C, log):
    st = {"n": 0, "k": 1.0}

    class Cnt(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            st["n"] += 1
            return x * st["k"]

        @staticmethod
        def backward(ctx, g):
            st["n"] += 100
            return g * st["k"]

    c = C(lambda x: Cnt.apply(x).sum())
    for i in range(6):
        x = G()
        l = c(x)
        st["k"] += 1
        l.backward()
        log(l, x.grad, st)


@case
@dbl
def ckpt(C, log):
    for re in (True, False):
        m = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))
        c = C(lambda x: checkpoint(m, x, use_reentrant=re))
        c2 = C(m)
        for i in range(4):
            x = G()
            y = c(x * 1)
            y.sum().backward()
            log(y, x.grad, mstate(m))
            x = G()
            y = checkpoint(c2, x, use_reentrant=re)
            y.sum().backward()
            log(y, x.grad, mstate(m), torch.get_rng_state())
            m.zero_grad()


@case
@dbl
def ckpt_seq(C, log):
    from torch.utils.checkpoint import checkpoint_sequential as cs

    m = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2)) for _ in range(4)])
    c = C(lambda x: cs(m, 2, x, use_reentrant=False))
    for i in range(4):
        x = G()
        y = c(x)
        y.sum().backward()
        log(y, x.grad, mstate(m))


@case
@dbl
def anomaly(C, log):
    c = C(lambda x: torch.sqrt(x).sum())
    for i in range(6):
        x = torch.tensor([1.0, 0.0, -1.0] if i % 2 else [1.0, 2.0, 3.0], requires_grad=True)
        with torch.autograd.set_detect_anomaly(True):
            try:
                c(x).backward()
                log(x.grad)
            except Exception as e:
                log(type(e).__name__)


@case
@dbl
def inference_mix(C, log):
    m = net()
    c = C(m)
    for i in range(6):
        with torch.inference_mode():
            y = c(torch.randn(3, 4))
            t = torch.randn(3, 4)
            log(y.is_inference())
        try:
            z = c(t)
            z.sum().backward()
            log(mstate(m))
        except Exception as e:
            log(type(e).__name__)
        with torch.no_grad():
            log(c(torch.randn(3, 4)))
        with torch.set_grad_enabled(i % 2 == 0):
            log(c(torch.randn(3, 4)))
        log(torch.is_grad_enabled())


@case
@dbl
def grad_modes_inside(C, log):
    def f(x):
        with torch.no_grad():
            a = x * 2
        b = x * 2
        with torch.enable_grad():
            d = x * 2
        return a, b, d, x.detach(), torch.is_grad_enabled()

    c = C(f)
    for i in range(6):
        x = G()
        with torch.set_grad_enabled(i % 2 == 0):
            r = c(x)
        log(r)
        log(r[3].data_ptr() == x.data_ptr())
        r[2].sum().backward()
        log(x.grad)

    @torch.no_grad()
    def g(x):
        return x * 3

    c = C(g)
    e = C(torch.no_grad()(net())) if False else None
    for i in range(4):
        log(c(G()))


@case
@dbl
def leafs(C, log):
    def f(x):
        p = torch.ones(3, requires_grad=True)
        q = x.detach().requires_grad_()
        (q * q * p[0]).sum().backward()
        return q.grad, q, p, p.grad, x.data, nn.Parameter(x.detach())

    c = C(f)
    for i in range(5):
        x = G()
        r = c(x)
        log(r)
        r[2].sum().backward()
        log(r[2].grad, x.grad)


@case
@dbl
def x_grad_inside(C, log):
    w = torch.randn(4, requires_grad=True)

    def f(x):
        l = (x * w).pow(2).sum()
        l.backward()
        with torch.no_grad():
            w.sub_(w.grad, alpha=0.1)
            w.grad.zero_()
        return l.item()

    c = C(f)
    for i in range(6):
        log(c(torch.randn(3, 4)), w, w.grad)


@case
@dbl
def forward_ad(C, log):
    import torch.autograd.forward_ad as fw

    c = C(lambda x: x.sin() * x)
    for i in range(5):
        x = torch.randn(3)
        with fw.dual_level():
            d = fw.make_dual(x, torch.ones(3))
            y = c(d)
            p = fw.unpack_dual(y)
            log(p.primal, p.tangent)
        log(c(x))


@case
@dbl
def saved_activations_mutated(C, log):
    # change of a parameter between forward and backward must raise as in eager
    m = net()
    c = C(m)
    for i in range(5):
        x = G()
        y = c(x)
        with torch.no_grad():
            m[2].weight.mul_(1.1)
        try:
            y.sum().backward()
            log(x.grad, mstate(m))
        except Exception as e:
            log(type(e).__name__)


@case
@dbl
def backward_inputs_arg(C, log):
    m = net()
    c = C(m)
    for i in range(5):
        x = G()
        c(x).sum().backward(inputs=[m[0].weight] if i % 2 else [x])
        log(x.grad, mstate(m))


@case
@dbl
def is_grads_batched(C, log):
    c = C(lambda x: x.sin() * x.sum())
    for i in range(4):
        x = torch.randn(3, requires_grad=True)
        y = c(x)
        log(grad(y, x, torch.eye(3), is_grads_batched=True))


@case
@dbl
def gradcheck_(C, log):
    c = C(lambda a, b: torch.tanh(a @ b).sum(0))
    log(torch.autograd.gradcheck(c, (torch.randn(2, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True))))
    log(torch.autograd.gradgradcheck(c, (torch.randn(2, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True))))


@case
@dbl
def mixed_rg_inputs(C, log):
    c = C(lambda a, b: (a * b, a + 1, b.exp()))
    for i in range(8):
        a = torch.randn(3, requires_grad=bool(i & 1))
        b = torch.randn(3, requires_grad=bool(i & 2))
        r = c(a, b)
        log(r)
        for t in r:
            if t.requires_grad:
                t.sum().backward()
        log(a.grad, b.grad)


@case
@dbl
def nonleaf_same_twice(C, log):
    c = C(lambda a, b: (a * b).sum() + a.sum())
    for i in range(5):
        a = G()
        b = a if i % 2 else G()
        c(a, b).backward()
        log(a.grad, b.grad)
        a = G()
        b = a.detach()
        c(a, b).backward()
        log(a.grad)


@case
@dbl
def multi_grad_hook(C, log):
    m = net()
    c = C(m)
    n = []
    for i in range(4):
        h = torch.autograd.graph.register_multi_grad_hook(
            list(m.parameters()), lambda gs: n.append([None if g is None else g.sum().item() for g in gs])
        )
        c(G()).sum().backward()
        log(n)
        h.remove()


@case
@dbl
def node_hooks(C, log):
    c = C(lambda x: x.exp() * 2)
    for i in range(4):
        x = G()
        y = c(x)
        y.grad_fn.register_hook(lambda gi, go: tuple(None if g is None else g * 0 for g in gi))
        y.sum().backward()
        log(y.grad_fn is None)


@case
@dbl
def out_is_view_of_input(C, log):
    c = C(lambda x: (x.t(), x[0], x.expand(2, 3, 4), x.reshape(-1)))
    for i in range(5):
        w = G()
        x = w * 1
        r = c(x)
        log(r, [t._base is x for t in r], [t._is_view() for t in r])
        x.mul_(2)
        log(r)
        (r[0].sum() + r[1].pow(2).sum()).backward()
        log(w.grad)


main()
