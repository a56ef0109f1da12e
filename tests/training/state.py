from harness import *
import copy, dataclasses, collections, torch.nn as nn, torch.nn.functional as F, enum, functools, contextlib


def G(n=3, **k):
    return torch.randn(n, 4, requires_grad=True)


@case
def counters(C, log):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 4)
            s.n = 0
            s.h = []
            s.d = {}
            s.register_buffer("b", torch.zeros(()))

        def forward(s, x):
            s.n += 1
            s.b += 1
            y = s.l(x) * s.n
            s.h.append(y.detach().sum())
            s.d[s.n] = x.shape
            s.last = y
            return y * s.b

    m = M()
    c = C(m)
    for i in range(7):
        x = G()
        c(x).sum().backward()
        log(m.n, m.h, m.d, m.last, m.b, x.grad, mstate(m))


@case
def list_collect(C, log):
    L = []
    w = torch.randn(4, requires_grad=True)

    def f(x):
        y = x * w
        L.append(y)
        return y.sum() if len(L) % 3 else sum(t.sum() for t in L)

    c = C(f)
    for i in range(8):
        l = c(G())
        l.backward(retain_graph=True)
        log(l, w.grad, len(L))


@case
def dict_cache(C, log):
    cache = {}

    def f(x, k):
        if k not in cache:
            cache[k] = torch.randn(4) * k
        return (x * cache[k]).sum()

    c = C(f)
    for k in (1, 1, 2, 1, 3, 2, 1, 3):
        x = G()
        l = c(x, k)
        l.backward()
        log(l, x.grad, sorted(cache))


@case
def closure_num(C, log):
    k = 1.0
    t = torch.ones(4)

    def f(x):
        return (x * k * t).sum()

    c = C(f)
    for i in range(6):
        x = G()
        l = c(x)
        k = k * 2 if i % 2 else k + 1
        l.backward()
        log(l, x.grad)
        if i == 3:
            t = torch.full((4,), 3.0)
        if i == 4:
            t.mul_(2)


FLAG = False
TEMP = 1.0


@case
def globals_(C, log):
    global FLAG, TEMP
    FLAG = False
    TEMP = 1.0
    c = C(lambda x: (x.relu() if FLAG else x.tanh()).div(TEMP).softmax(-1).pow(2).sum())
    for i in range(8):
        x = G()
        l = c(x)
        l.backward()
        log(l, x.grad)
        FLAG = i % 3 == 1
        TEMP *= 0.9


@case
def data_branch(C, log):
    def f(x):
        l = x.pow(2).sum()
        if l.item() > 12:
            return l * 0.5 + 1
        if (x > 1).any():
            return l * 2
        return l * 10

    c = C(f)
    for i in range(10):
        x = G()
        l = c(x)
        l.backward()
        log(l, x.grad)


@case
def while_loop(C, log):
    def f(x):
        n = 0
        while x.norm() > 1:
            x = x * 0.7
            n += 1
        return x.sum(), n

    c = C(f)
    for i in range(8):
        x = G()
        l, n = c(x)
        l.backward()
        log(l, n, x.grad)


@case
def sched_types(C, log):
    def f(x, step, temp, t):
        return (x / temp).softmax(-1).pow(2).sum() * (step + 1) + t * x.mean() + (step > 3)

    c = C(f)
    for i in range(8):
        x = G()
        l = c(x, i, 1 / (i + 1), torch.tensor(float(i)))
        l.backward()
        log(l, x.grad)
    for i in range(4):
        x = G()
        l = c(x, float(i), i + 1, i)
        l.backward()
        log(l, x.grad)


@dataclasses.dataclass
class DC:
    a: torch.Tensor
    b: float = 0.0
    c: list = dataclasses.field(default_factory=list)


NT = collections.namedtuple("NT", "x y")


@case
def structs(C, log):
    def f(d, n, **kw):
        d.b += 1
        d.c.append(d.a.sum())
        return (
            DC(d.a * 2, d.b),
            NT(n.x + 1, n.y),
            {"z": kw["z"] * 2, "s": "s", 3: None},
            collections.OrderedDict(q=n.x * d.b),
            (x for x in [1]) is not None,
        )

    c = C(f)
    for i in range(6):
        d = DC(G(), i)
        n = NT(G(), i)
        r = c(d, n, z=G())
        log(r[0].a, r[0].b, type(r[0]).__name__, r[1], r[2], r[3], type(r[1]).__name__, d.b, d.c)
        (r[0].a.sum() + r[3]["q"].sum()).backward()
        log(d.a.grad, n.x.grad)


@case
def starargs(C, log):
    c = C(lambda *a, k=2, **kw: sum(t * k for t in a) + sum(kw.values()))
    for i in range(7):
        a = [G() for _ in range(1 + i % 3)]
        kw = {"u": G()} if i % 2 else {}
        y = c(*a, k=i, **kw)
        y.sum().backward()
        log(y, [t.grad for t in a])


@case
def generator_(C, log):
    def f(x):
        for k in range(3):
            yield x * k

    c = C(f)
    for i in range(4):
        x = G()
        r = list(c(x))
        sum(t.sum() for t in r).backward()
        log(r, x.grad)


@case
def gen_arg(C, log):
    c = C(lambda g: sum(t.sum() for t in g))
    for i in range(4):
        x = G()
        l = c(x * k for k in range(3 + i))
        l.backward()
        log(l, x.grad)


@case
def list_arg_mut(C, log):
    def f(L, d):
        L.append(L[0] * 2)
        d["n"] = d.get("n", 0) + 1
        d["t"] = L[-1].sum()
        L[0] = None
        return d["t"] * d["n"]

    c = C(f)
    d = {}
    for i in range(6):
        x = G()
        L = [x]
        l = c(L, d)
        l.backward()
        log(L, d, x.grad)


@case
def obj_replaced(C, log):
    class O:
        pass

    o = O()
    o.w = torch.randn(4)
    o.f = torch.sin
    o.k = 1

    def f(x):
        return (o.f(x) * o.w * o.k).sum()

    c = C(f)
    for i in range(8):
        if i == 1:
            o.w = torch.randn(4, requires_grad=True)
        if i == 2:
            o.f = torch.cos
        if i == 3:
            o.k = 2.5
        if i == 4:
            o.w = torch.randn(3, 4)
        if i == 5:
            o = O()
            o.w = torch.ones(4)
            o.f = torch.exp
            o.k = 1
        if i == 6:
            o.f = lambda x: x * 7
        if i == 7:
            o.w = o.w.double()
        x = G()
        l = c(x)
        l.backward()
        log(l, x.grad, o.w.grad if o.w.is_leaf else None)


@case
def raise_(C, log):
    def f(x, k):
        if k == 3:
            raise KeyError("three")
        assert x.shape[0] < 5, "big"
        if k == 2:
            raise StopIteration
        return x * k

    c = C(f)
    for k, n in ((0, 3), (3, 3), (1, 3), (1, 6), (2, 3), (0, 3)):
        try:
            log(c(G(n), k))
        except Exception as e:
            log(type(e).__name__, str(e))


@case
def side_before_raise(C, log):
    L = []
    b = torch.zeros(2)

    def f(x):
        L.append(1)
        b.add_(1)
        return x @ x

    c = C(f)
    for i in range(6):
        try:
            c(torch.ones(2, 2) if i % 2 == 0 else torch.ones(2, 3))
        except Exception as e:
            log(type(e).__name__)
        log(L, b)


@case
def rng_py(C, log):
    import random, numpy as np

    def f(x):
        return x * random.random() + np.random.rand() + torch.rand(()), random.randint(0, 9)

    c = C(f)
    for i in range(6):
        x = G()
        y, n = c(x)
        y.sum().backward()
        log(y, n, x.grad)
    log(random.random(), np.random.rand())


@case
def generator_rng(C, log):
    g = torch.Generator().manual_seed(3)
    c = C(lambda x: x * torch.rand(3, 4, generator=g) + torch.randn(3, 4, generator=g))
    for i in range(6):
        x = G()
        y = c(x)
        y.sum().backward()
        log(y, x.grad, g.get_state())
        if i == 2:
            g.manual_seed(1)
        if i == 4:
            g = torch.Generator().manual_seed(9)


@case
def seed_inside(C, log):
    def f(x, s):
        torch.manual_seed(s)
        return x * torch.rand(4)

    c = C(f)
    for s in (1, 1, 2, 3, 1):
        x = G()
        log(c(x, s), torch.rand(1))


@case
def fork_rng(C, log):
    def f(x):
        with torch.random.fork_rng(devices=[]):
            a = torch.rand(4)
        return x * a + torch.rand(4)

    c = C(f)
    for s in range(5):
        x = G()
        log(c(x), torch.rand(1))


@case
def rng_restore_between(C, log):
    m = nn.Dropout(0.5)
    c = C(lambda x: m(x) * m(x))
    st = torch.get_rng_state()
    for i in range(6):
        if i % 2:
            torch.set_rng_state(st)
        x = G()
        c(x).sum().backward()
        log(x.grad)


@case
def print_time(C, log):
    import io, time

    b = io.StringIO()

    def f(x):
        print("x", x.shape, float(x.sum()) > 0, file=b)
        return x * 2

    c = C(f)
    for i in range(5):
        c(G(2 + i))
        log(b.getvalue())


@case
def default_dtype(C, log):
    c = C(lambda x: x * torch.ones(4) + torch.tensor(1.5) + torch.arange(4) / 3)
    for i in range(6):
        torch.set_default_dtype(torch.float64 if i % 2 else torch.float32)
        try:
            x = torch.ones(4, dtype=torch.float32, requires_grad=True)
            y = c(x)
            y.sum().backward()
            log(y, x.grad)
        finally:
            torch.set_default_dtype(torch.float32)


@case
def context_global(C, log):
    import contextvars

    v = contextvars.ContextVar("v", default=1.0)
    st = []

    @contextlib.contextmanager
    def cm(k):
        st.append(k)
        yield k
        st.pop()

    def f(x):
        with cm(2) as k:
            return x * v.get() * k * len(st)

    c = C(f)
    for i in range(5):
        v.set(float(i))
        x = G()
        c(x).sum().backward()
        log(x.grad, st)


@case
def enum_partial_lru(C, log):
    E = enum.Enum("E", "A B")
    n = []

    @functools.lru_cache(None)
    def k(i):
        n.append(i)
        return torch.full((4,), float(i), requires_grad=True)

    c = C(functools.partial(lambda s, x, e, i: (x * k(i) * (s if e is E.A else -s)).sum(), 2))
    for i in range(7):
        x = G()
        l = c(x, [E.A, E.B][i % 2], i % 3)
        l.backward()
        log(l, x.grad, [k(j).grad for j in range(min(i + 1, 3))], n)


@case
def methods(C, log):
    class A:
        def __init__(s):
            s.w = torch.randn(4, requires_grad=True)
            s.n = 0

        def __call__(s, x):
            s.n += 1
            return x * s.w * s.n

        def meth(s, x):
            s.w = s.w.detach() * 2
            s.w.requires_grad_()
            return (x * s.w).sum()

        @property
        def p(s):
            return s.n * 2

    a = A()
    c = C(a)
    d = C(a.meth)
    for i in range(6):
        x = G()
        (c(x).sum() + d(x)).backward()
        log(x.grad, a.w, a.w.grad, a.n)


@case
def none_and_str(C, log):
    def f(x, mode=None, mask=None):
        if mode == "sum":
            return x.sum()
        if mask is not None:
            x = x.masked_fill(mask, 0)
        return x.mean() if mode is None else getattr(x, mode)()

    c = C(f)
    for kw in (
        {},
        {"mode": "sum"},
        {"mask": torch.ones(4) > 0},
        {"mode": "prod"},
        {},
        {"mode": "amax", "mask": torch.arange(4) > 2},
        {"mode": "sum"},
    ):
        x = G()
        l = c(x, **kw)
        l.backward()
        log(l, x.grad)


@case
def ret_identity(C, log):
    k = torch.ones(3)
    p = nn.Parameter(torch.ones(3))
    L = [1]
    c = C(lambda x: (x, k, p, L, x, (x,), x + 1))
    for i in range(5):
        x = G(3)[:, :3]
        r = c(x)
        log([r[0] is x, r[1] is k, r[2] is p, r[3] is L, r[4] is x, r[5][0] is x], r)


@case
def buffer_reassign(C, log):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("r", torch.zeros(4))
            s.w = nn.Parameter(torch.ones(4))
            s.cache = None

        def forward(s, x):
            s.r = s.r * 0.9 + x.detach().mean(0) * 0.1
            if s.cache is None or not s.training:
                s.cache = x.detach()
            y = x * s.w + s.r + s.cache.mean()
            s.w.data.mul_(0.99)
            return y

    m = M()
    c = C(m)
    for i in range(8):
        m.train(i not in (3, 4))
        x = G()
        y = c(x)
        y.sum().backward()
        log(y, x.grad, mstate(m), m.cache)
        if i == 5:
            m.cache = None


@case
def numpy_in(C, log):
    import numpy as np

    c = C(lambda x, a: (x * torch.from_numpy(a)).sum() + float(a.sum()))
    for i in range(5):
        a = np.random.rand(4).astype("f4")
        x = G()
        l = c(x, a)
        l.backward()
        log(l, x.grad)


@case
def numpy_out(C, log):
    c = C(lambda x: x.detach().numpy().sum() + x.sum())
    for i in range(5):
        x = G()
        l = c(x)
        l.backward()
        log(l, x.grad)


@case
def tolist_shape(C, log):
    def f(x, l):
        n = l.tolist()
        return torch.stack([x[i, :k].sum() for i, k in enumerate(n)])

    c = C(f)
    for i in range(6):
        x = G()
        y = c(x, torch.randint(1, 5, (3,)))
        y.sum().backward()
        log(y, x.grad)


@case
def recursion(C, log):
    class T(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(8, 4)

        def forward(s, t):
            return t if torch.is_tensor(t) else s.l(torch.cat([s(t[0]), s(t[1])], -1)).tanh()

    m = T()
    c = C(m)
    for i in range(6):
        a = [G(1) for _ in range(4)]
        t = [(a[0], a[1]), ((a[0], a[1]), a[2]), ((a[0], a[1]), (a[2], a[3]))][i % 3]
        c(t).sum().backward()
        log([k.grad for k in a], mstate(m))


@case
def subclass_arg(C, log):
    class S(torch.Tensor):
        pass

    c = C(lambda x: x * 2 + 1)
    for i in range(5):
        x = torch.randn(3).as_subclass(S) if i % 2 else torch.randn(3)
        y = c(x)
        log(type(y).__name__, y)


@case
def tf_mode(C, log):
    from torch.overrides import TorchFunctionMode

    class Mo(TorchFunctionMode):
        def __torch_function__(s, f, t, a=(), k=None):
            r = f(*a, **(k or {}))
            return r + 1 if f is torch.sin else r

    c = C(lambda x: torch.sin(x).sum())
    for i in range(6):
        x = G()
        with Mo() if i % 2 else contextlib.nullcontext():
            l = c(x)
        l.backward()
        log(l, x.grad)


@case
def dispatch_mode(C, log):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mo(TorchDispatchMode):
        def __init__(s):
            super().__init__()
            s.n = 0

        def __torch_dispatch__(s, f, t, a=(), k=None):
            s.n += 1
            return f(*a, **(k or {}))

    c = C(lambda x: torch.sin(x).sum())
    for i in range(6):
        x = G()
        mo = Mo()
        with mo:
            l = c(x)
        log(mo.n)
        l.backward()
        log(x.grad)


@case
def default_device_meta(C, log):
    c = C(lambda x: x + torch.ones(4))
    for i in range(4):
        with torch.device("meta") if i == 2 else contextlib.nullcontext():
            try:
                x = torch.ones(4)
                log(c(x).device.type)
            except Exception as e:
                log(type(e).__name__)


main()
