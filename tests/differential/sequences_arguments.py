"""Sequences: functions, closures, globals, defaults, arguments."""
from sequences import *  # noqa: F403
import functools, itertools, operator, types, enum, dataclasses, collections, typing
G = 1.0; GL = [1, 2]; GD = {"a": 1}; GT = torch.ones(3)
@case
def global_number(c, L):
    global G
    f = c(lambda x: x * G); x = R(3)
    for v in [1.0, 2.0, 2, True, None, 3.5, 0.0, -0.0, float("nan"), 1 << 40]: G = v; L.t(f, x)
    G = 1.0
@case
def global_written(c, L):
    global G
    def g(x):
        global G
        G = G + 1
        return x * G
    f = c(g); x = R(3); G = 1.0
    for i in range(7):
        L(f(x), G)
        if i == 3: G = 10
@case
def global_created_deleted(c, L):
    def g(x):
        global NEWG
        try: NEWG = NEWG + 1
        except NameError: NEWG = 0
        return x + NEWG
    f = c(g); x = R(3)
    for i in range(6):
        L(f(x), NEWG)
        if i == 2: del globals()["NEWG"]
@case
def global_list_dict(c, L):
    f = c(lambda x: x * sum(GL) + len(GD) + GD["a"]); x = R(3)
    GL[:] = [1, 2]; GD.clear(); GD["a"] = 1
    L(f(x)); GL.append(3); L(f(x)); GL[0] = 10; L(f(x)); GD["b"] = 1; L(f(x)); GD["a"] = 7; L(f(x)); GL.clear(); L(f(x)); del GD["a"]; L.t(f, x)
@case
def global_tensor(c, L):
    global GT
    f = c(lambda x: x + GT); x = R(3)
    GT = torch.ones(3); L(f(x)); GT.add_(1); L(f(x)); GT = R(3); L(f(x)); GT = R(1); L(f(x)); GT = 3; L(f(x)); GT = R(3, grad=True); L(f(x)); f(x).sum().backward(); L(GT.grad); GT = R(3, dtype=torch.float64); L(f(x))
@case
def builtin_shadow(c, L):
    f = c(lambda x: x * len([1, 2]) + max(1, 2)); x = R(3); g = globals()
    L(f(x)); g["len"] = lambda v: 10; L(f(x)); del g["len"]; L(f(x)); import builtins; old = builtins.max; builtins.max = lambda *a: 50
    try: L(f(x))
    finally: builtins.max = old
    L(f(x)); L(f(x))
@case
def torch_patched(c, L):
    f = c(lambda x: torch.sin(x) + F.relu(x)); x = R(3); old = torch.sin, F.relu
    L(f(x)); torch.sin = torch.cos; L(f(x)); torch.sin = old[0]; L(f(x)); F.relu = lambda x: x * 0; L(f(x)); F.relu = old[1]; L(f(x)); torch.Tensor.foo = lambda s: s * 5; g = c(lambda x: x.foo()); L(g(x)); torch.Tensor.foo = lambda s: s * 6; L(g(x)); del torch.Tensor.foo
@case
def closure_nonlocal(c, L):
    n = 0; hist = []
    def g(x):
        nonlocal n
        n += 1; hist.append(n)
        return x * n
    f = c(g); x = R(3)
    for i in range(7):
        L(f(x), n, list(hist))
        if i == 3: n = 20
@case
def closure_two_functions(c, L):
    def mk(k):
        def get(x): return x * k
        def set(v):
            nonlocal k; k = v
        return get, set
    get, st = mk(2); f = c(get); x = R(3)
    for v in [3, 3.5, True, 4, torch.tensor(2.0), 7]: L(f(x)); st(v)
    L(f(x)); get2, _ = mk(9); f2 = c(get2); L(f2(x)); L(f(x))
@case
def closure_cell_empty(c, L):
    def outer():
        def g(x): return x * k
        f = c(g)
        L.t(f, R(3)); k = 2; L(f(R(3))); k = 3; L(f(R(3))); del k; L.t(f, R(3)); k = 1; L(f(R(3)))
        L(f(R(3)))
    outer()
@case
def closures_made_inside(c, L):
    def g(x, n):
        fs = [lambda y, i=i: y * i for i in range(n)]; late = [lambda y: y + i for i in range(n)]
        return [h(x) for h in fs], [h(x) for h in late]
    f = c(g)
    for n in [1, 2, 3, 2, 0, 4]: L(f(R(2), n))
@case
def returns_function(c, L):
    def g(x, k):
        y = x * k
        def h(z): return z + y
        return h
    f = c(g); x = R(3)
    for k in [1, 2, 2, 3.0, 1, 5]: h = f(x, k); L(h(x)); L(h.__name__)
@case
def defaults_changed(c, L):
    def g(x, k=2, *, s=3): return x * k + s
    f = c(g); x = R(3)
    L(f(x)); g.__defaults__ = (5,); L(f(x)); g.__kwdefaults__["s"] = 7; L(f(x)); g.__kwdefaults__ = {"s": 1.5}; L(f(x)); g.__defaults__ = None; L.t(f, x); L(f(x, 2)); g.__defaults__ = (torch.ones(3),); L(f(x))
@case
def code_changed(c, L):
    def g(x): return x * 2
    def h(x): return x + 100
    def user(x): return g(x)
    f = c(user); x = R(3)
    L(f(x)); g.__code__ = h.__code__; L(f(x)); g.__code__ = (lambda x: x - 1).__code__; L(f(x)); L(f(x)); g.__code__ = h.__code__; L(f(x)); f2 = c(g); L(f2(x)); g.__code__ = (lambda x: x / 2).__code__; L(f2(x))
@case
def mutable_default(c, L):
    def g(x, acc=[]): acc.append(x.sum().detach()); return x * len(acc), acc
    f = c(g); x = R(3)
    for i in range(6): L(f(x)); 
    g.__defaults__[0].clear(); L(f(x)); L(f(x, [1]))
@case
def scalar_args(c, L):
    f = c(lambda x, k: x * k if k else x - 1); x = R(3)
    for k in [1, 2, 2.5, True, False, None, 0, 0.0, "" , 3, -1, 1e300, float("inf"), float("nan")]: L.t(f, x, k)
@case
def str_args(c, L):
    def g(x, mode):
        if mode == "sin": return x.sin()
        if mode.startswith("c"): return x.cos() * len(mode)
        return getattr(x, mode)()
    f = c(g); x = R(3)
    for k in ["sin", "cos", "cosine", "tanh", "exp", "sin", "nothing", "abs"]: L.t(f, x, k)
@case
def int_arith(c, L):
    def g(x, n): return x[:n] * (n // 2) + n % 3, n ** 2, n / 2, -n, n << 1, divmod(n, 2), float(n), str(n), n > 3, bool(n)
    f = c(g); x = R(10)
    for n in [1, 2, 3, 4, 5, 9, 0, -1, True]: L(f(x, n))
@case
def float_arith(c, L):
    import math
    def g(x, a): return x * a + math.sqrt(abs(a)), math.floor(a), round(a, 1), int(a), a > 1, f"{a:.2f}", math.exp(-a), a.is_integer()
    f = c(g); x = R(3)
    for a in [1.0, 1.5, 2.5, 3.25, -0.5, 0.0, 1.0, 8.0]: L(f(x, a))
@case
def sizes_arith(c, L):
    def g(x):
        b, n = x.shape
        y = x.view(b * n) if b > 1 else x.flatten() * 2
        return y.reshape(n, b).sum(1) / b + n, f"{b}x{n}", x.numel(), list(x.shape), tuple(x.size()), x.shape, x.dim(), b == n, torch.Size([b, n])
    f = c(g)
    for s in [(2, 3), (3, 3), (4, 3), (1, 3), (5, 1), (2, 7), (0, 3), (6, 6)]: L(f(R(*s)))
@case
def size_branches(c, L):
    def g(x):
        n = x.size(0)
        if n % 2 == 0: return x.view(2, -1).sum(0)
        if n > 10: return x[:10] * 2
        for i in range(n // 3): x = x + i
        return x
    f = c(g)
    for n in [2, 3, 4, 5, 6, 7, 9, 11, 13, 12, 1, 0]: L(f(R(n)))
@case
def size_pyint_leak(c, L):
    out = []
    def g(x): out.append(x.shape[0]); return x + 1, x.shape[0] * 2
    f = c(g)
    for n in [2, 3, 4, 5, 5, 2, 8]: r = f(R(n)); L(r, type(r[1]), [type(o) for o in out], list(out))
@case
def list_args(c, L):
    def g(xs, k): xs.append(xs[0] * k); xs[0] = xs[0] + 1; return sum(xs)
    f = c(g)
    for n in [1, 2, 2, 3, 1, 4]: xs = [R(3) for _ in range(n)]; first = xs[0]; L(f(xs, n), xs, first is xs[0], len(xs))
@case
def dict_args(c, L):
    def g(d):
        d["out"] = d["a"] + d.get("b", 0); d.pop("tmp", None)
        for k in sorted(d): d[k] = d[k] * 2
        return d
    f = c(g)
    for ks in ["a", "ab", "ba", ["a", "tmp"], "a", ["b", "tmp", "a"], "b"]:
        d = {k: R(2) for k in ks}; r = L.t(f, d); L(d, r is d)
@case
def dict_key_kinds(c, L):
    def g(x, d): return x * sum(v for k, v in d.items() if isinstance(k, int)) + len(d)
    f = c(g); x = R(2)
    for d in [{1: 2}, {1: 2, "a": 3}, {True: 4}, {1.0: 5}, {(1, 2): 6}, {None: 1}, {torch.float32: 3, 2: 1}, {}]: L(f(x, d))
@case
def tensor_dict_keys(c, L):
    a, b = R(2), R(2)
    def g(d, x): return sum(d[k] * k for k in d) + x, a in d, len(d)
    f = c(g)
    for d in [{a: 1}, {a: 2}, {b: 2}, {a: 1, b: 2}, {b: 2, a: 1}, {a: 3.5}]: L(f(d, R(2)))
@case
def nested_args(c, L):
    P = collections.namedtuple("P", "x y")
    def g(t): 
        (a, b), d, p = t
        return P(a + b, d["k"][0] * p.x), {"r": [p.y, a]}, type(p).__name__
    f = c(g)
    for i in range(6): L(f(((R(2), i), {"k": [R(2), i]}, P(R(2) if i % 2 else i, i * 1.5))))
@case
def same_tensor_twice(c, L):
    def g(x, y): x.add_(1); return x * y, x is y
    f = c(g)
    for i in range(6): x, y = R(3), R(3); L(f(x, y if i % 2 == 0 else x), x, y)
@case
def overlapping_views(c, L):
    def g(x, y): x.mul_(2); return x + y
    f = c(g); L(f(torch.ones(4), torch.ones(4)))
    for a, b in [((0, 4), (2, 6)), ((0, 4), (4, 8)), ((0, 4), (0, 4)), ((2, 6), (0, 4)), ((0, 4), (3, 7))]:
        base = A(8); L(f(base[a[0]:a[1]], base[b[0]:b[1]]), base)
@case
def returns_input_identity(c, L):
    def g(x, y): return x, y, x.view(-1), [x, x], {"y": y}
    f = c(g)
    for i in range(6):
        x, y = R(2, 2), R(3); r = f(x, y); L(r, r[0] is x, r[1] is y, r[3][0] is r[3][1], r[3][0] is x, r[4]["y"] is y, r[2].data_ptr() == x.data_ptr()); r[2].add_(1); L(x)
@case
def returns_same_twice(c, L):
    def g(x): y = x + 1; z = y.view(-1); return y, y, z, (y,)
    f = c(g)
    for i in range(6): r = f(R(2, 2)); L(r[0] is r[1], r[3][0] is r[0], r[2].data_ptr() == r[0].data_ptr()); r[0].add_(1); L(r)
@case
def identity_state(c, L):
    class O: pass
    def g(x, a, b): return x * (2 if a is b else 3) + (a == b)
    f = c(g); o, p = O(), O(); x = R(2); l = [1]
    for a, b in [(o, p), (o, o), (p, p), (p, o), (l, l), (l, [1]), (1, 1), ("a", "a"), (None, None), (x, x), ]: L.t(f, x, a, b)
@case
def id_hash_used(c, L):
    seen = {}
    def g(x): seen[id(x)] = seen.get(id(x), 0) + 1; return x * len(seen)
    f = c(g); a, b, d = R(2), R(2), R(2)
    for t in [a, b, a, d, d, a]: L(f(t), sorted(seen.values()))
@case
def partial_objs(c, L):
    def g(x, k, s=1): return x * k + s
    p = functools.partial(g, s=5); f = c(p); x = R(2)
    L(f(x, 1)); L(f(x, 2)); p.keywords["s"] = 9; L(f(x, 2)); h = c(lambda x, q: q(x)); L(h(x, functools.partial(g, k=2))); L(h(x, functools.partial(g, k=3))); L(h(x, functools.partial(g, k=3, s=x))); L(h(x, functools.partial(torch.mul, other=2)))
@case
def lru_cached(c, L):
    n = 0
    @functools.lru_cache(maxsize=2)
    def table(k):
        nonlocal n; n += 1; return torch.arange(k) * float(n)
    f = c(lambda x: x + table(x.shape[0]))
    for k in [3, 4, 3, 5, 4, 3, 3]: L(f(R(k)), n, tuple(table.cache_info()))
    table.cache_clear(); L(f(R(3)), n)
@case
def cached_property_used(c, L):
    class O:
        def __init__(s, k): s.k = k; s.n = 0
        @functools.cached_property
        def v(s): s.n += 1; return torch.ones(2) * s.k
    f = c(lambda x, o: x + o.v); o, p = O(1), O(2); x = R(2)
    for q in [o, o, p, o, p]: L(f(x, q), q.n)
    o.k = 5; L(f(x, o)); del o.v; L(f(x, o), o.n)
@case
def singledispatch_reduce(c, L):
    @functools.singledispatch
    def d(v, x): return x
    @d.register(int)
    def _(v, x): return x * v
    @d.register(str)
    def _(v, x): return x + len(v)
    f = c(lambda x, v: functools.reduce(operator.add, [d(v, x), x, x])); x = R(2)
    L(f(x, 1)); L(f(x, 2)); L(f(x, "abc")); L(f(x, 1.5)); d.register(float)(lambda v, x: x / v); L(f(x, 1.5)); L(f(x, 2)); L(f(x, None))
@case
def wraps_decorators(c, L):
    calls = []
    def deco(k):
        def w(fn):
            @functools.wraps(fn)
            def inner(*a, **kw): calls.append(k); return fn(*a, **kw) * k
            return inner
        return w
    @deco(2)
    @deco(3)
    def g(x, s=1): return x + s
    f = c(g); x = R(2); L(g.__name__)
    for s in [1, 2, 3, 3, 1.5, 1]: L(f(x, s=s), list(calls))
@case
def recursion(c, L):
    def fact(n): return 1 if n <= 1 else n * fact(n - 1)
    def g(x, n): return x if n == 0 else g(x * 2 + n, n - 1)
    f = c(lambda x, n: g(x, n) + fact(n))
    for n in [0, 1, 2, 5, 3, 6, 3]: L(f(R(2), n))
    def tree(t): return [tree(i) for i in t] if isinstance(t, list) else t * 2
    f2 = c(tree); L(f2([R(2), [R(2), [R(2)]]])); L(f2([R(2)])); L(f2([])); L.t(c(lambda x: g(x, -1)), R(2))
@case
def early_return(c, L):
    def g(x, a, b):
        if a: return x
        y = x + 1
        if b > 2: return y, b
        for i in range(b):
            if i == 1: return y * i
        return None
    f = c(g)
    for a, b in [(0, 0), (1, 0), (0, 1), (0, 2), (0, 3), (None, 4), ([], 0), ([1], 0)]: L(f(R(2), a, b))
@case
def walrus_match(c, L):
    def g(x, v):
        if (n := x.shape[0]) > 2: x = x * n
        match v:
            case 0: return x
            case int(k) if k > 5: return x * k
            case [a, b]: return x + a - b
            case {"k": k, **rest}: return x / k + len(rest)
            case str() as s: return x + len(s)
            case _: return x - 1
    f = c(g)
    for n, v in [(2, 0), (3, 7), (2, [1, 2]), (4, {"k": 2, "j": 1}), (2, "abc"), (2, None), (3, 7), (3, 8), (2, (4, 5)), (2, 3)]: L(f(R(n), v))
@case
def fstrings(c, L):
    def g(x, name): return x + 1, f"{name}:{x.shape}:{x.dtype}:{x.shape[0]:03d}:{x.dim()!r}:{'%d' % x.size(0)}:{len(x)}"
    f = c(g)
    for n, s in [(2, "a"), (3, "b"), (4, "a"), (4, "b"), (2, "c"), (9, "d")]: L(f(R(n), s))
@case
def enums(c, L):
    class E(enum.Enum): A = 1; B = 2
    class I(enum.IntEnum): X = 3; Y = 4
    class Fl(enum.Flag): P = 1; Q = 2
    def g(x, e):
        if e is E.A: return x
        if e == E.B: return x * 2, e.name
        if isinstance(e, I): return x * e, e.value
        if isinstance(e, Fl): return x + (5 if Fl.P in e else 6)
        return x[:e]
    f = c(g)
    for e in [E.A, E.B, I.X, I.Y, Fl.P, Fl.Q, Fl.P | Fl.Q, 1, 2, E.A]: L(f(R(3), e))
@case
def dataclass_args(c, L):
    @dataclasses.dataclass
    class D:
        a: torch.Tensor; k: int = 1; h: list = dataclasses.field(default_factory=list)
        def scaled(s): return s.a * s.k
    @dataclasses.dataclass(frozen=True)
    class Fz: k: float
    def g(d, z=None):
        d.h.append(d.k); d.k += 1
        return dataclasses.replace(d, a=d.scaled() + (z.k if z else 0)), dataclasses.asdict(D(d.a, 3))["k"]
    f = c(g); d = D(R(2))
    for z in [None, Fz(1.0), Fz(2.0), Fz(2.0), None, Fz(3)]: L(f(d, z), d)
    d.k = 50; L(f(d))
@case
def namedtuple_args(c, L):
    class N(typing.NamedTuple):
        a: torch.Tensor; k: int = 2
        def m(s): return s.a * s.k
    f = c(lambda n: (n.m(), n._replace(k=n.k + 1), N(n.a + 1), n[1:], n._asdict(), N._fields))
    for k in [1, 2, 3, 3, 2.5, 1]: L(f(N(R(2), k)))
@case
def slots_props_descr(c, L):
    class Dsc:
        def __set_name__(s, o, n): s.n = "_" + n
        def __get__(s, o, t=None): return s if o is None else getattr(o, s.n) * 2
        def __set__(s, o, v): setattr(o, s.n, v + 1)
    class O:
        __slots__ = ("_v", "w")
        v = Dsc()
        def __init__(s, v): s.v = v; s.w = 0
        @property
        def both(s): s.w += 1; return s.v + s.w
    def g(x, o): o.v = o.v / 2; return x * o.both
    f = c(g); o = O(1)
    for i in range(7):
        L(f(R(2), o), o._v, o.w)
        if i == 3: o.v = 100
        if i == 5: O.v.n = "w"
@case
def dunder_objects(c, L):
    class V:
        def __init__(s, t, k=1): s.t = t; s.k = k; s.n = 0
        def __add__(s, o): s.n += 1; return V(s.t + (o.t if isinstance(o, V) else o), s.k)
        __radd__ = __add__
        def __getitem__(s, i): return s.t[i] * s.k
        def __len__(s): return s.k
        def __bool__(s): return s.k > 1
        def __call__(s, x): return x * s.k
        def __contains__(s, i): return i == s.k
        def __eq__(s, o): return s.k == getattr(o, "k", o)
        def __hash__(s): return hash(s.k)
        def __iter__(s): return iter([s.t] * s.k)
        def __iadd__(s, o): s.t = s.t + o; return s
        def __neg__(s): return V(-s.t, s.k)
        def __enter__(s): s.n += 10; return s
        def __exit__(s, *a): s.n += 100
    def g(v, x):
        w = v + x; w = 1 + w; w += 2
        with v: y = w[0] + len(w) + v(x)
        if v: y = y * 2
        return (-w).t + y, 3 in v, v == 2, sum(i.sum() for i in v), {v: 1}[v]
    f = c(g); v = V(R(2))
    for k in [1, 2, 3, 2, 1, 5]: v.k = k; L(f(v, R(2)), v.n, v.t)
@case
def metaclass_classattr(c, L):
    class Meta(type):
        @property
        def reg(cls): return cls._r
        def __call__(cls, *a): cls._r += 1; return super().__call__(*a)
        def __getattr__(cls, n): return 7 if n == "magic" else (_ for _ in ()).throw(AttributeError(n))
    class K(metaclass=Meta):
        _r = 0; f = 2.0
        def __init__(s, v): s.v = v
    def g(x): k = K(x.shape[0]); return x * K.f + K.reg + k.v + K.magic
    f = c(g)
    for i in range(7):
        L(f(R(2)), K._r)
        if i == 2: K.f = 3.
        if i == 4: K.magic = 1
@case
def getattribute_objs(c, L):
    class O:
        def __init__(s): s.d = {"a": 1}; s.log = []
        def __getattribute__(s, n):
            if n == "dyn": return object.__getattribute__(s, "d")["a"]
            return object.__getattribute__(s, n)
        def __getattr__(s, n):
            if n.startswith("g_"): s.log.append(n); return len(s.log)
            raise AttributeError(n)
        def __setattr__(s, n, v): object.__setattr__(s, n, v if n != "twice" else 2 * v)
    def g(x, o): o.twice = o.dyn; return x * o.dyn + o.g_z + o.twice + getattr(o, "nope", 5)
    f = c(g); o = O()
    for i in range(6): L(f(R(2), o), list(o.log)); o.d["a"] = i
    o.nope = 3; L(f(R(2), o)); L.t(c(lambda o: o.zip), o)
@case
def super_mro(c, L):
    class A1:
        k = 1
        def m(s, x): return x * s.k
    class B1(A1):
        def m(s, x): return super().m(x) + 1
    class C1(A1):
        def m(s, x): return super().m(x) - 5
    class D1(B1, C1): pass
    f = c(lambda o, x: o.m(x)); x = R(2); o = D1()
    L(f(o, x)); A1.k = 3; L(f(o, x)); B1.m = lambda s, x: x; L(f(o, x)); del B1.m; L(f(o, x)); o.k = 8; L(f(o, x)); D1.__bases__ = (C1, B1); L(f(o, x)); o.__class__ = C1; L(f(o, x)); o.m = lambda x: x * 100; L(f(o, x))
@case
def isinstance_duck(c, L):
    def g(x, v):
        if isinstance(v, (list, tuple)): return x + len(v)
        if isinstance(v, torch.Tensor): return x * v
        if isinstance(v, bool): return x
        if isinstance(v, int): return x * v
        if callable(v): return v(x)
        if hasattr(v, "k"): return x + v.k
        return type(v).__name__, x
    f = c(g)
    for v in [[1], (1, 2), R(2), True, 3, torch.sin, lambda x: x * 9, types.SimpleNamespace(k=2), None, 2.5, {1}, 4, nn.ReLU(), nn.Parameter(R(2))]: L(f(R(2), v))
@case
def varargs_spread(c, L):
    def h(*a, k=1, **kw): return sum(a) * k + sum(kw.values())
    def g(*xs, **kw): first, *rest = xs; return h(first, *rest, **{**kw, "z": 1}), len(rest)
    f = c(g)
    L(f(R(2))); L(f(R(2), R(2))); L(f(R(2), 1, 2)); L(f(R(2), k=2)); L(f(R(2), k=3, b=R(2))); L(f(R(2), b=4, k=1)); L.t(f)
@case
def wrong_calls(c, L):
    f = c(lambda x, y: x + y)
    L.t(f, R(2)); L.t(f, R(2), R(3)); L.t(f, R(2), R(2)); L.t(f, R(2), "a"); L.t(f, R(2), y=2); L.t(f, R(2), 1, 2); L.t(f, x=1); L(f(R(2), y=R(1))); L.t(f, None, R(2)); L.t(f, R(3), R(4)); L(f(1, 2)); L(f("a", "b")); L(f([1], [2]))
@case
def no_tensors(c, L):
    n = [0]
    def g(a, b): n[0] += 1; return a + b, [a] * 2
    f = c(g)
    for a, b in [(1, 2), (1, 2), (2, 3), ("a", "b"), (1.5, 2), ([1], [2]), ((), ())]: L(f(a, b), n[0])
@case
def constant_result(c, L):
    f = c(lambda: torch.ones(3) * 2); g = c(lambda k: (torch.arange(k), 5, "s", None, torch.float32))
    for i in range(4): r = f(); L(r); r.zero_()
    for k in [1, 2, 3, 3]: L(g(k))
@case
def returns_global_mutable(c, L):
    S = {"l": [1, 2]}; t = R(2)
    f = c(lambda x: (x + 1, S, S["l"], t))
    for i in range(6): r = f(R(2)); L(r, r[1] is S, r[2] is S["l"], r[3] is t); S["l"].append(i); t.add_(1)
@case
def fresh_results(c, L):
    f = c(lambda x: (x * 2, [x.sum()], {"a": 1, "l": [1, 2]}))
    prev = []
    for i in range(6): r = f(R(2)); L(r); r[2]["a"] = 9; r[2]["l"].append(3); r[1].append(0); r[0].zero_(); prev.append(r)
    L(prev, prev[0][2] is prev[1][2])
