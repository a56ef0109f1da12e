"""Sequences: control flow, exceptions, contexts, generators, iteration, stdlib."""
from sequences import *  # noqa: F403
import contextlib, itertools, collections, functools, operator, logging, warnings, random, copy, math, heapq, bisect, time, re, weakref, string, datetime, decimal, fractions, inspect, statistics, struct, hashlib
class Boom(Exception): pass
@case
def data_branch(c, L):
    def g(x):
        if x.sum() > 0: return x * 2
        return x - 1
    f = c(g)
    for s in [1, -1, 1, 1, -1, 0, -1, 1]: L(f(torch.ones(3) * s))
@case
def item_used(c, L):
    def g(x): v = x.sum().item(); return x * v, v, int(x[0]), float(x[1]), bool(x[0] > 0), x.argmax().item()
    f = c(g)
    for i in range(8): L(f(A(3) + i % 3))
@case
def tolist_used(c, L):
    def g(x, i): l = i.tolist(); return x[l], sum(l), x.tolist()[0], [x[j] * j for j in l]
    f = c(g)
    for l in [[0], [1, 2], [2, 1], [0, 0, 0], [], [1], [1, 2]]: L(f(R(3), torch.tensor(l, dtype=torch.long)))
@case
def while_data(c, L):
    def g(x):
        n = 0
        while x.norm() > 1: x = x / 2; n += 1
        return x, n
    f = c(g)
    for s in [1, 4, 100, 4, 0.1, 1000, 4]: L(f(torch.ones(3) * s))
@case
def assert_data(c, L):
    def g(x): assert (x > 0).all(), "neg"; assert x.dim() == 1; return x.log()
    f = c(g)
    for x in [torch.ones(2), -torch.ones(2), torch.ones(3), torch.ones(2, 2), torch.ones(2), torch.zeros(2), torch.ones(2)]: L.t(f, x)
@case
def any_all_min_max(c, L):
    def g(x, y): return max(x.sum(), y.sum()), min([x.max(), y.max()]), any([x[0] > 0, y[0] > 0]), all(v > 0 for v in x), sorted([x[0], x[1]], reverse=True), sum(x), 3 in x, x[0] == y[0]
    f = c(g)
    for i in range(7): L(f(A(2) + (i % 3), A(2) + 1 - i % 2))
@case
def nonzero_unique_mask(c, L):
    def g(x): m = x > 0; return x[m], m.nonzero(), x.unique(), torch.where(m), x[m].shape[0], x.masked_select(m) * 2
    f = c(g)
    for v in [[1., -1], [1., 1], [-1., -1], [2., 2, -3, 4], [1., -1], [0., 5., 5.]]: L(f(torch.tensor(v)))
@case
def torch_cond(c, L):
    def g(x, p): return torch.cond(p, lambda a: a.sin() * 2, lambda a: a.cos() - 1, (x,))
    f = c(g)
    for p in [True, False, True, True, False, False]: L(f(R(3), torch.tensor(p)))
    f2 = c(lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (x,))); L(f2(torch.ones(2)), f2(-torch.ones(2)), f2(torch.ones(3)))
@case
def torch_where_vmap(c, L):
    f = c(lambda x, y: torch.vmap(lambda a, b: torch.where(a > b, a.sin(), b) .sum())(x, y))
    for n in [2, 3, 4, 2, 1, 5]: L(f(R(n, 3), R(n, 3)))
@case
def func_grad_jac(c, L):
    def g(x): return torch.func.grad(lambda v: (v ** 3).sum())(x), torch.func.jacrev(torch.sin)(x), torch.func.vjp(torch.cos, x)[0], torch.func.jvp(torch.tanh, (x,), (x,))[1], torch.func.hessian(lambda v: (v ** 3).sum())(x)
    f = c(g)
    for n in [2, 3, 2, 4, 4, 1]: L(f(R(n)))
@case
def try_except_own(c, L):
    def h(x, k):
        if k == 1: raise Boom("one")
        if k == 2: raise KeyError("two")
        if k == 3: return {}["zz"]
        if k == 4: return [][1]
        return x * k
    log = []
    def g(x, k):
        try: y = h(x, k)
        except Boom as e: log.append(str(e)); return x, e.args
        except (KeyError, IndexError) as e: y = x - 1
        else: y = x + 1
        finally: log.append("fin")
        return y * 2
    f = c(g)
    for k in [0, 1, 2, 3, 4, 5, 1, 0]: L(f(R(2), k), list(log))
@case
def exceptions_out(c, L):
    log = []
    def g(x, k):
        log.append("in"); x.add_(1)
        try:
            if k == 1: raise Boom("b", 3)
            if k == 2: raise ValueError from Boom()
            if k == 3: x.view(7)
            if k == 4: assert False, "msg"
            if k == 5: raise StopIteration
            return x
        finally: log.append("out"); x.mul_(2)
    f = c(g)
    for k in [0, 1, 2, 3, 4, 5, 0, 1]: x = torch.ones(2); L.t(f, x, k); L(x, list(log))
@case
def exception_objects(c, L):
    class E2(Boom):
        def __init__(s, t): super().__init__("x"); s.t = t
    def g(x):
        try: raise E2(x * 2)
        except Boom as e: y = e.t
        try:
            try: raise Boom("a")
            except Boom as e: raise KeyError("b") from e
        except KeyError as e: z = type(e.__cause__).__name__, type(e.__context__).__name__
        try:
            with contextlib.suppress(ZeroDivisionError): 1 / 0
            with contextlib.suppress(KeyError): raise Boom()
        except Boom: z += ("q",)
        return y, z
    f = c(g)
    for i in range(6): L(f(R(2)))
@case
def torch_error_caught(c, L):
    def g(x, y):
        try: return x @ y
        except RuntimeError: return x.sum() + y.sum()
    f = c(g)
    for s in [(2, 3), (3, 2), (3, 4), (4, 3), (3, 1), (3, 2)]: L(f(R(2, 3), R(*s)))
    def g2(x, i):
        try: return x[i]
        except IndexError: return x[0] * 100
    f = c(g2)
    for i in [0, 1, 5, 2, -1, -7, 1]: L(f(R(3), i))
@case
def attr_error_flow(c, L):
    def g(x, o):
        try: return x * o.k
        except AttributeError: return x - 1
    class O: pass
    o = O(); f = c(g); L(f(R(2), o)); o.k = 2; L(f(R(2), o)); o.k = 3; L(f(R(2), o)); del o.k; L(f(R(2), o)); O.k = 4; L(f(R(2), o)); del O.k; L(f(R(2), o)); L(f(R(2), None))
@case
def exc_group_else_loop(c, L):
    def g(x, n):
        for i in range(n):
            if i == 3: break
            if i == 1: continue
            x = x + i
        else: x = x * 100
        while n > 0:
            n -= 2
            if n == 1: break
        else: x = -x
        return x, n
    f = c(g)
    for n in [0, 1, 2, 3, 4, 5, 3]: L(f(R(2), n))
@case
def ctx_generator(c, L):
    log = []
    @contextlib.contextmanager
    def cm(k):
        log.append(("enter", k))
        try: yield k * 2
        except Boom: log.append("caught")
        finally: log.append("exit")
    def g(x, k):
        with cm(k) as v, cm(1) as w:
            x = x * v + w
            if k == 3: raise Boom()
        return x
    f = c(g)
    for k in [1, 2, 3, 3, 1, 4]: L(f(R(2), k), list(log))
@case
def ctx_state_global(c, L):
    state = {"scale": 1}
    @contextlib.contextmanager
    def scaled(v):
        old = state["scale"]; state["scale"] = v
        try: yield
        finally: state["scale"] = old
    def h(x): return x * state["scale"]
    def g(x, v):
        with scaled(v): y = h(x)
        return y + h(x)
    f = c(g); fh = c(h); x = R(2)
    for v in [1, 2, 2, 5]: L(f(x, v)); 
    with scaled(7): L(fh(x), f(x, 3))
    L(fh(x), f(x, 3), state); state["scale"] = 10; L(fh(x), f(x, 3))
@case
def ctx_class_swallow(c, L):
    class C:
        def __init__(s, sw): s.sw = sw; s.seen = []
        def __enter__(s): s.seen.append("e"); return s
        def __exit__(s, t, v, tb): s.seen.append(t.__name__ if t else None); return s.sw
    def g(x, cm, bad):
        y = x
        with cm:
            y = x + 1
            if bad: raise Boom
            y = y * 2
        return y
    f = c(g); a, b = C(True), C(False)
    for cm, bad in [(a, 0), (a, 1), (b, 0), (b, 1), (a, 1), (b, 1), (a, 0)]: L.t(f, R(2), cm, bad); L(a.seen, b.seen)
@case
def exitstack_nullcontext(c, L):
    log = []
    def g(x, n):
        with contextlib.ExitStack() as st:
            for i in range(n): st.callback(log.append, i)
            st.enter_context(torch.no_grad() if n % 2 else contextlib.nullcontext())
            y = x * n
        return y, y.requires_grad
    f = c(g)
    for n in [0, 1, 2, 3, 2, 1]: L(f(R(2, grad=True), n), list(log))
@case
def grad_modes_inside(c, L):
    def g(x):
        a = x * 2
        with torch.no_grad(): b = x * 3
        with torch.enable_grad(): d = x * 4
        with torch.inference_mode(): e = x * 5
        with torch.set_grad_enabled(False): h = x * 6
        return a, b, d, h, [t.requires_grad for t in (a, b, d, e, h)], e.is_inference(), torch.is_grad_enabled()
    f = c(g)
    for i in range(8):
        x = R(2, grad=i % 2 == 0)
        ctx = [contextlib.nullcontext, torch.no_grad, torch.enable_grad, contextlib.nullcontext][i // 2]
        with ctx(): L(f(x))
@case
def grad_modes_outside(c, L):
    m = nn.Linear(3, 3); f = c(lambda x: m(x) * 2); x = R(2, 3)
    L(f(x)); 
    with torch.no_grad(): L(f(x))
    with torch.inference_mode(): y = f(x); L(y.sum().item(), y.is_inference(), y.requires_grad)
    L(f(x)); 
    with torch.no_grad():
        L(f(x))
        with torch.enable_grad(): L(f(x))
    with torch.inference_mode(): xi = x + 1
    L.t(lambda: f(xi).sum().item()); L.t(lambda: f(x).sum().backward()); L(m.weight.grad)
@case
def set_grad_leaks(c, L):
    def g(x, v): torch.set_grad_enabled(v); return x * 2
    f = c(g)
    try:
        for v in [True, False, False, True, False, True]: y = f(R(2, grad=True), v); L(y, torch.is_grad_enabled())
    finally: torch.set_grad_enabled(True)
@case
def decorators_nograd(c, L):
    @torch.no_grad()
    def a(x): return x * 2
    @torch.inference_mode()
    def b(x): return x * 3
    @torch.enable_grad()
    def d(x): return x * 4
    @torch.autocast("cpu", dtype=torch.bfloat16)
    def e(x): return x @ x
    f = c(lambda x: (a(x), d(x), e(x), b(x).sum().item()))
    for i in range(6):
        with torch.set_grad_enabled(i % 2 == 0): L(f(R(2, 2, grad=True)))
    for h in (a, d, e):
        k = c(h)
        for i in range(3): L(k(R(2, 2, grad=True)))
@case
def autocast_in_out(c, L):
    m = nn.Linear(4, 4)
    def g(x):
        with torch.autocast("cpu", dtype=torch.bfloat16): y = m(x)
        with torch.autocast("cpu", enabled=False): z = F.linear(x.float(), m.weight)
        return y, z, torch.is_autocast_enabled("cpu")
    f = c(g); h = c(lambda x: m(x) + 1); x = R(2, 4)
    L(f(x)); L(h(x))
    with torch.autocast("cpu", dtype=torch.bfloat16): L(f(x)); L(h(x))
    with torch.autocast("cpu", dtype=torch.float16): L(h(x))
    L(h(x)); 
    with torch.autocast("cpu", enabled=False): L(h(x))
    L(f(x)); h(x).sum().backward(); L(m.weight.grad)
@case
def default_dtype_changes(c, L):
    f = c(lambda x: (torch.ones(2) * 1.5, torch.tensor(1.5) + x, x * 2.0, torch.arange(3) / 2, torch.get_default_dtype())); x = torch.arange(2)
    L(f(x))
    for d in [torch.float64, torch.float32, torch.bfloat16, torch.float64]:
        torch.set_default_dtype(d)
        try: L(f(x))
        finally: torch.set_default_dtype(torch.float32)
    L(f(x)); L(f(x))
    def g(x):
        torch.set_default_dtype(torch.float64)
        try: return torch.zeros(2) + x
        finally: torch.set_default_dtype(torch.float32)
    f = c(g)
    for i in range(3): L(f(x), torch.get_default_dtype())
@case
def default_device_ctx(c, L):
    f = c(lambda: torch.ones(2)); 
    for d in ["cpu", "meta", "cpu", "meta"]:
        with torch.device(d): r = f(); L(str(r.device), list(r.shape))
    r = f(); L(r); L(str(f().device)); L(str(f().device))
@case
def threads_flags(c, L):
    f = c(lambda x: (x * 2, torch.are_deterministic_algorithms_enabled(), torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled)); x = R(2)
    L(f(x)); torch.use_deterministic_algorithms(True); L(f(x)); torch.use_deterministic_algorithms(False); L(f(x)); torch.set_float32_matmul_precision("high"); L(f(x)); torch.set_float32_matmul_precision("highest"); L(f(x)); L(f(x))
@case
def generators_simple(c, L):
    def gen(x, n):
        for i in range(n): yield x * i
    def g(x, n): return sum(gen(x, n)), list(gen(x, 2)), [a + b for a, b in zip(gen(x, n), gen(x, n + 1))]
    f = c(g)
    for n in [1, 2, 3, 2, 0, 4]: L(f(R(2), n))
@case
def generator_returned(c, L):
    log = []
    def gen(x, n):
        try:
            for i in range(n): log.append(i); yield x + i
        finally: log.append("closed")
    f = c(gen)
    for n in [1, 2, 3, 2]:
        it = f(R(2), n); L(len(log)); L(next(it), list(log)); it.close(); L(list(log))
    L(list(f(R(2), 3)), log)
    f2 = c(lambda x: (i * x for i in range(3)))
    for i in range(3): L(list(f2(R(2))))
@case
def generator_arg_consumed(c, L):
    def g(x, it): return x + next(it), sum(1 for _ in itertools.islice(it, 2))
    f = c(g)
    for i in range(6): it = iter(range(i, 10)); L(f(R(2), it)); L(list(it))
    it = iter([1, 2, 3, 4]); f = c(lambda x, it: x * next(it)); 
    for i in range(4): L(f(R(2), it))
    L.t(f, R(2), it)
@case
def generator_send_throw(c, L):
    def co():
        t = 0
        while True:
            try: v = yield t
            except Boom: t = -1; continue
            if v is None: return t
            t = t + v
    def g(x, k):
        it = co(); next(it); a = it.send(x)
        for _ in range(k): a = it.send(x)
        b = it.throw(Boom)
        try: it.send(None)
        except StopIteration as e: r = e.value
        return a, b, r
    f = c(g)
    for k in [0, 1, 2, 1, 3, 0]: L(f(R(2), k))
@case
def yield_from_nested(c, L):
    def inner(x): yield x; yield x * 2; return 5
    def outer(x): r = yield from inner(x); yield x + r
    f = c(lambda x: (list(outer(x)), dict(enumerate(outer(x))), tuple(map(lambda t: t.sum(), outer(x)))))
    for n in [1, 2, 3, 2, 1, 4]: L(f(R(n)))
@case
def user_iterators(c, L):
    class It:
        def __init__(s, n): s.n = n; s.i = 0
        def __iter__(s): return s
        def __next__(s):
            if s.i >= s.n: raise StopIteration
            s.i += 1; return s.i
    def g(x, it):
        for i in it: x = x + i
        return x, next(it, "end")
    f = c(g)
    for n in [1, 2, 3, 2, 0]: it = It(n); L(f(R(2), it), it.i); it.n += 1; L(f(R(2), it), it.i)
    class Seq:
        def __getitem__(s, i):
            if i > 2: raise IndexError
            return i * 2
    f = c(lambda x, s: [x + v for v in s]); L(f(R(1), Seq())); L(f(R(1), Seq()))
@case
def itertools_many(c, L):
    def g(xs, n):
        a = [x * y for x, y in itertools.product(xs, repeat=2)]
        b = list(itertools.accumulate(xs)); d = list(itertools.chain(xs, xs)); e = [sum(p) for p in itertools.combinations(xs, 2)]
        h = list(itertools.islice(itertools.cycle(xs), n)); k = [(k, len(list(v))) for k, v in itertools.groupby(range(n), lambda i: i // 2)]
        z = list(itertools.zip_longest(xs, [1], fillvalue=0)); p = list(itertools.pairwise(xs)); r = list(itertools.repeat(n, 2)); s = list(itertools.takewhile(lambda i: i < n, itertools.count()))
        st = list(itertools.starmap(operator.mul, [(xs[0], n)])); return a, b, d, e, h, k, z, p, r, s, st
    f = c(g)
    for n in [2, 3, 2, 4, 1, 3]: L(f([R(2) for _ in range(n)], n))
@case
def itertools_count_state(c, L):
    cnt = itertools.count(); cyc = itertools.cycle([1, 2, 3])
    f = c(lambda x: x * next(cnt) + next(cyc))
    for i in range(7): L(f(R(2)))
    L(next(cnt), next(cyc))
@case
def collections_many(c, L):
    def g(x, n):
        d = collections.defaultdict(list); d["a"].append(x); d["b"]
        q = collections.deque(maxlen=2)
        for i in range(n): q.append(x * i)
        q.rotate(1); ct = collections.Counter("abca"); ct.update("a" * n)
        od = collections.OrderedDict(a=x, b=n); od.move_to_end("a"); cm = collections.ChainMap({"x": n}, {"y": 2}); ud = collections.UserDict(k=n)
        return d, list(q), ct.most_common(1), od, cm["x"] + cm["y"], ud["k"], dict(ct)
    f = c(g)
    for n in [1, 2, 3, 2, 0, 4]: L(f(R(2), n))
@case
def deque_state(c, L):
    q = collections.deque(maxlen=3); dd = collections.defaultdict(int); cc = collections.Counter()
    def g(x): q.append(x.sum()); dd[x.shape[0]] += 1; cc["n"] += 2; return sum(q) + dd[3]
    f = c(g)
    for n in [3, 2, 3, 3, 4, 3, 3]: L(f(R(n)), list(q), dd, cc)
@case
def set_ops(c, L):
    S = {1, 2}
    def g(x, s): S.add(x.shape[0]); s = s | {x.dim()}; s.discard(2); return x * len(S & s), sorted(s ^ S), s <= S, frozenset(s) , 3 in S
    f = c(g)
    for n in [3, 4, 3, 5, 2, 3]: L(f(R(n), {1, n, 7}), sorted(S))
    S.clear(); L(f(R(3), set()), sorted(S))
@case
def dict_methods(c, L):
    D = {}
    def g(x, d):
        D.setdefault(x.shape[0], []).append(len(D)); d |= {"z": 1}; d.update(a=x); e = {**d, "q": 2}; k, v = e.popitem(); y = d.pop("b", 7)
        return x * y, list(e.items()), dict.fromkeys("ab", 1), {k: v for k, v in zip("ab", [x, 1])}, next(iter(d)), list(reversed(d)), d.keys() & {"a", "z"}
    f = c(g)
    for n, d in [(2, {}), (3, {"b": 1}), (2, {"b": 2}), (2, {"c": 1, "b": 3}), (3, {}), (2, {})]: L(f(R(n), d), d, D)
@case
def prints(c, L):
    buf = io.StringIO()
    def g(x, n): print("n", n, x.shape[0], file=buf); y = x * n; print(f"sum {float(y.sum()):.3f}", file=buf); return y
    f = c(g)
    for n in [1, 2, 2, 3, 1, 1]: L(f(R(2), n), buf.getvalue())
@case
def prints_stdout(c, L):
    def g(x): print("hello"); return x + 1
    f = c(g)
    for n in range(6):
        b = io.StringIO()
        with contextlib.redirect_stdout(b): L(f(R(2)))
        L(b.getvalue())
@case
def logs_warnings(c, L):
    lg = logging.getLogger("mine"); recs = []; hd = logging.Handler(); hd.emit = lambda r: recs.append(r.getMessage()); lg.addHandler(hd); lg.setLevel(logging.INFO); lg.propagate = False
    def g(x, n): lg.info("n=%d %s", n, list(x.shape)); warnings.warn(f"w{n}"); lg.debug("no"); return x * n
    f = c(g)
    for n in [1, 2, 2, 3, 1, 2]:
        with warnings.catch_warnings(record=True) as w: warnings.simplefilter("always"); L(f(R(2), n))
        L(list(recs), [str(i.message) for i in w if "w" in str(i.message)[:1]])
    lg.setLevel(logging.DEBUG); L(f(R(2), 1), list(recs))
@case
def py_random(c, L):
    def g(x): return x * random.random(), random.randint(0, 10), random.choice([1, 2, 3]), random.sample(range(5), 2)
    f = c(g)
    for i in range(7):
        if i % 3 == 0: random.seed(i)
        L(f(R(2)))
    rng = random.Random(5); f = c(lambda x: x * rng.uniform(0, 1))
    for i in range(4): L(f(R(2)))
    L(rng.random(), random.random())
@case
def numpy_random(c, L):
    import numpy as np
    rng = np.random.default_rng(0); np.random.seed(3)
    f = c(lambda x: x * np.random.rand() + float(rng.normal()))
    for i in range(6): L(f(R(2)))
    L(np.random.rand(), float(rng.normal()))
@case
def torch_random(c, L):
    def g(x): return F.dropout(x, 0.5), torch.rand(2), torch.randn_like(x), torch.randint(0, 9, (3,)), torch.randperm(4), torch.bernoulli(x.sigmoid()), torch.normal(x, 1.0), torch.multinomial(x.softmax(0), 1)
    f = c(g)
    for i in range(8):
        if i % 3 == 0: torch.manual_seed(i)
        L(f(R(4)))
    L(torch.rand(2)); gen = torch.Generator().manual_seed(4); f = c(lambda x: x + torch.rand(2, generator=gen))
    for i in range(5): L(f(R(2)))
    L(torch.rand(1, generator=gen))
@case
def seed_inside(c, L):
    def g(x, s): torch.manual_seed(s); a = torch.rand(2); st = torch.get_rng_state(); b = torch.rand(2); torch.set_rng_state(st); return x + a, b, torch.rand(2)
    f = c(g)
    for s in [1, 2, 1, 3, 3, 1]: L(f(R(2), s)); L(torch.rand(1))
    def g(x):
        with torch.random.fork_rng(): torch.manual_seed(1); y = torch.rand(2)
        return y + x, torch.rand(2)
    f = c(g)
    for s in range(4): L(f(R(2)))
@case
def time_used(c, L):
    t = [0.0]; old = time.time, time.perf_counter
    time.time = lambda: t[0]
    f = c(lambda x: x * time.time())
    for i in range(6): t[0] = float(i * i); L(f(torch.ones(2)))
    time.time = old[0]
    g = c(lambda x: (x + 1, time.perf_counter())); r = [g(R(1))[1] for _ in range(5)]; L(all(a < b for a, b in zip(r, r[1:])))
    g = c(lambda x: (x + 1, time.monotonic_ns(), datetime.datetime.now())); r = [g(R(1))[1:] for _ in range(5)]; L(len(set(r)))
@case
def numpy_interop(c, L):
    import numpy as np
    def g(x, a): y = x.numpy() * 2; z = np.sin(a); return torch.from_numpy(z) + x, y, torch.as_tensor(a) * 2, torch.tensor(np.float32(2.5)) * x, x * np.int64(3), a.sum()
    f = c(g)
    for n in [2, 3, 2, 4, 4, 1]: L(f(R(n), np.arange(n, dtype=np.float32)))
@case
def numpy_alias(c, L):
    import numpy as np
    a = np.ones(3, dtype=np.float32); t = torch.from_numpy(a)
    f = c(lambda x: x * t); g = c(lambda x: x + torch.from_numpy(a)); h = c(lambda x: x.numpy())
    for i in range(6): a[0] = i; L(f(torch.ones(3)), g(torch.ones(3)))
    x = R(3); n = h(x); n[0] = 42; L(x); n = h(x); L(n, n is x)
    k = c(lambda b: b + a * 2)
    for i in range(5): L(k(np.full(3, i)))
@case
def numpy_scalars(c, L):
    import numpy as np
    f = c(lambda x, k: x * k)
    for k in [np.float32(2), np.float64(2), np.int32(3), np.float32(2.5), np.bool_(True), np.array(4.0), np.int64(3), 2.0]: L.t(f, R(2), k)
@case
def copy_module_std(c, L):
    def g(x, d): e = copy.deepcopy(d); h = copy.copy(d); e["l"].append(1); h["k"] = 9; return x + e["t"], e, h, copy.copy(x), copy.deepcopy(x)
    f = c(g)
    for i in range(6): d = {"t": R(2), "l": [i], "k": i}; L(f(R(2), d), d)
@case
def weakrefs(c, L):
    class O:
        def __init__(s, k): s.k = k
    o = O(2); r = weakref.ref(o); f = c(lambda x, r: x * (r().k if r() is not None else 100)); x = R(2)
    L(f(x, r)); o.k = 3; L(f(x, r)); del o; L(f(x, r)); L(f(x, r)); wd = weakref.WeakValueDictionary(); o = O(5); wd["a"] = o; g = c(lambda x: x + len(wd)); L(g(x)); del o; L(g(x)); L(g(x))
    t = R(2); w = weakref.ref(t); h = c(lambda x: x + w()); L(h(x)); t.add_(1); L(h(x)); del t; L.t(h, x)
@case
def del_and_gc(c, L):
    import gc
    n = []
    class O:
        def __del__(s): n.append(1)
    def g(x): o = O(); y = x + 1; del o; return y
    f = c(g)
    for i in range(6): L(f(R(2)), len(n))
    t = R(2); w = weakref.ref(t); f2 = c(lambda x: x * 2); f2(t); f2(t); f2(t); del t; gc.collect(); L(w() is None)
    ts = [R(2) for _ in range(4)]; ws = [weakref.ref(f2(t)) for t in ts]; gc.collect(); L([w() is None for w in ws])
@case
def math_module(c, L):
    def g(x, a): return x * math.sin(a), math.pi, math.gcd(int(a), 4), math.isclose(a, 2.0), math.inf, math.prod([a, 2]), math.log(a), math.ceil(a), math.hypot(a, 3), math.copysign(1, a), math.comb(int(a) + 2, 2)
    f = c(g)
    for a in [1.0, 2.0, 2.5, 3.75, 2.0, 8.0]: L(f(R(2), a))
    L.t(f, R(2), 0.0); L.t(f, R(2), -1.0)
@case
def strings_regex(c, L):
    def g(x, s): return x * len(re.findall("a+", s)), s.upper().split("-"), s[::-1], "-".join(sorted(s)), s.encode(), f"{s!r:>8}", s.replace("a", "b").count("b"), "%s" % s, ord(s[0]), string.ascii_letters[:2], int(s, 36) if s.isalnum() else None, re.sub(r"(\w)", r"<\1>", s)
    f = c(g)
    for s in ["a", "aa-a", "b", "baab", "a", "aXa"]: L(f(R(2), s))
@case
def sort_heap_bisect(c, L):
    H = []
    def g(x, v): heapq.heappush(H, v); l = sorted(H, key=lambda k: -k); bisect.insort(l, 0); return x * l[0], heapq.nsmallest(2, H), bisect.bisect([1, 3, 5], v), list(reversed(l)), statistics.mean(l)
    f = c(g)
    for v in [3, 1, 2, 5, 1, 4]: L(f(R(2), v), list(H))
@case
def operators_builtin(c, L):
    def g(x, n):
        r = [operator.add(x, n), operator.itemgetter(0)(x), operator.attrgetter("shape")(x), operator.methodcaller("sum")(x), abs(x), pow(x, 2), divmod(n, 2), round(x), hash(n), list(map(lambda a, b: a + b, [x], [n])), list(filter(None, [0, n])), dict(zip("ab", [x, n])), chr(97 + n), bin(n), isinstance(n, int), callable(x), getattr(x, "dtype"), hasattr(x, "nope"), vars, type(x), slice(0, n), x[slice(0, n)], complex(n, 1), bytes([n]), any([]), reversed([1, n]), memoryview, str(x.dtype), repr(n), format(n, "03d"), iter, x.__class__, x.__len__(), len(x), n.__add__(1), n.bit_length(), int.from_bytes(b"\x01", "big"), object() is object(), set([n]), tuple([n]), range(n), list(range(n, 0, -1))]
        return [v for v in r if not callable(v)]
    f = c(g)
    for n in [1, 2, 3, 2, 0, 4]: L(f(R(4), n))
@case
def inspect_stack(c, L):
    def g(x): return x + 1, inspect.currentframe().f_code.co_name, len(inspect.signature(g).parameters), inspect.isfunction(g), g.__name__, locals().keys() >= {"x"}, sys.getrecursionlimit()
    f = c(g)
    for i in range(6): L(f(R(2)))
@case
def hashing_struct(c, L):
    def g(x, n): return x * n, hashlib.md5(str(n).encode()).hexdigest(), struct.pack("<i", n), decimal.Decimal(n) / 3 > 1, float(fractions.Fraction(n, 3)), (n).to_bytes(2, "big"), json.dumps({"n": n}), json.loads("[1]")
    f = c(g)
    for n in [1, 2, 3, 2, 4, 4]: L(f(R(2), n))
@case
def exec_eval_import(c, L):
    def g(x, n): import math as mm; y = eval("x * n", {"x": x, "n": n}); ns = {}; exec("def q(a): return a + 1", ns); from torch.nn import functional as FF; return ns["q"](y) * mm.pi, FF.relu(x), __import__("math").e
    f = c(g)
    for n in [1, 2, 3, 2, 4, 4]: L(f(R(2), n))
@case
def local_class(c, L):
    state = {"n": 0}; lst = []
    def g(x):
        class H:
            k = x.shape[0]
            def touch(s): state["n"] += 1; lst.append(s.k); return x * s.k
        return H().touch(), H.__name__, type("Q", (), {"z": 3})().z
    f = c(g)
    for n in [1, 2, 3, 2, 2, 3]: L(f(R(n)), dict(state), list(lst))
@case
def threads_inside(c, L):
    import threading, concurrent.futures as cf
    def g(x):
        out = []
        t = threading.Thread(target=lambda: out.append(x * 2)); t.start(); t.join(); return out[0] + 1
    f = c(g)
    for i in range(5): L(f(R(2)))
    h = c(lambda x, k: x * k + 1)
    with cf.ThreadPoolExecutor(4) as p: L(list(p.map(lambda i: h(torch.ones(2 + i % 3), i % 4), range(24))))
    loc = threading.local(); loc.v = 2; q = c(lambda x: x * getattr(loc, "v", 5)); L(q(torch.ones(2)), q(torch.ones(2)))
    with cf.ThreadPoolExecutor(1) as p: L(p.submit(q, torch.ones(2)).result())
    loc.v = 3; L(q(torch.ones(2)))
@case
def lock_contextvar(c, L):
    import threading, contextvars
    lk = threading.Lock(); cv = contextvars.ContextVar("cv", default=1)
    def g(x):
        with lk: return x * cv.get()
    f = c(g); x = R(2); L(f(x)); L(f(x)); tok = cv.set(3); L(f(x)); cv.reset(tok); L(f(x)); ctx = contextvars.copy_context(); ctx.run(cv.set, 9); L(ctx.run(f, x)); L(f(x)); L(lk.locked())
@case
def async_code(c, L):
    import asyncio
    async def co(x, k): await asyncio.sleep(0); return x * k
    f = c(lambda x, k: asyncio.run(co(x, k)))
    for k in [1, 2, 3, 3, 1]: L(f(R(2), k))
    g = c(co)
    for k in [1, 2, 2]: L(asyncio.run(g(R(2), k)))
    async def main(): return await asyncio.gather(*[g(torch.ones(2), i) for i in range(3)])
    L(asyncio.run(main()))
