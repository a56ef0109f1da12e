"""functools, operator, copy, enum, dataclasses, typing, types, inspect, contextvars, weakref and their like."""

PROGRAMS = {
"lru_cache_statistics": """
import functools
@functools.lru_cache(maxsize=2)
def h(n): return n * 2.0
f = C(lambda x, n: x * h(n)); out = [f(x, n) for n in (1, 1, 2, 3, 1)], h.cache_info()
""",
"cache_of_method": """
import functools
class K:
    v = 2.0
    @functools.cache
    def go(self, n): return self.v * n
k = K(); f = C(lambda x, n: x * k.go(n)); out = [f(x, 1)]; K.v = 3.0; out += [f(x, 1), f(x, 2)]; K.go.cache_clear(); out += [f(x, 1)]
""",
"cached_property_is_stored": """
import functools
class K:
    n = 0
    @functools.cached_property
    def v(self): K.n += 1; return K.n * 2.0
k = K(); f = C(lambda x, k: x * k.v); out = [f(x, k), f(x, k), 'v' in vars(k)]; del k.v; out += [f(x, k), f(x, K()), f(x, k), K.n]
""",
"partial_arguments_mutated": """
import functools
l = [2.0]; p = functools.partial(lambda s, x, k=1: x * s[0] + k, l); f = C(lambda x: p(x)); out = [f(x)]; l[0] = 3.0; out += [f(x)]; p.keywords['k'] = 5; out += [f(x), p.args[0] is l]
""",
"partial_of_partial_argument": """
import functools
f = C(lambda x, p: (p(x), p.keywords)); P = functools.partial; a = P(torch.mul, other=2); out = f(x, a), f(x, P(a, other=3)), f(x, P(torch.add, other=2)), f(x, P(torch.add, x))
""",
"partialmethod": """
import functools
class K:
    s = 2.0
    def go(self, x, k): return x * self.s + k
    one = functools.partialmethod(go, k=1)
k = K(); f = C(lambda x: k.one(x)); out = [f(x)]; k.s = 3.0; out += [f(x)]; K.one = functools.partialmethod(K.go, k=9); out += [f(x)]
""",
"reduce_with_function_argument": """
import functools, operator
f = C(lambda x, op, l: functools.reduce(op, l, x)); out = f(x, operator.add, [1, 2]), f(x, operator.mul, [2, 3]), f(x, torch.maximum, [x * 2]), f(x, operator.sub, [])
""",
"singledispatch_registered_later": """
import functools
@functools.singledispatch
def h(v, x): return x
@h.register
def _(v: int, x): return x * v
f = C(lambda x, v: h(v, x)); out = [f(x, 2), f(x, 2.5), f(x, True)]; h.register(float, lambda v, x: x - v); out += [f(x, 2.5)]; h.register(bool, lambda v, x: 'bool'); out += [f(x, True), f(x, 3)]
""",
"singledispatchmethod": """
import functools
class K:
    @functools.singledispatchmethod
    def go(self, v): return 'any'
    @go.register(int)
    @classmethod
    def _(cls, v): return v * 2
    @go.register(torch.Tensor)
    def _(self, v): return v + 1
k = K(); f = C(lambda x, v: k.go(v)); out = f(x, 1), f(x, x), f(x, 'a'), f(x, 3), f(x, None)
""",
"total_ordering": """
import functools
@functools.total_ordering
class K:
    def __init__(self, v): self.v = v
    def __eq__(self, o): return self.v == o.v
    def __lt__(self, o): return self.v < o.v
f = C(lambda x, a, b: (a >= b, a > b, max(a, b).v, x + 1 if a <= b else x)); out = f(x, K(1), K(2)), f(x, K(2), K(1)), f(x, K(1), K(1.0))
""",
"wraps_and_wrapped": """
import functools
def deco(fn):
    @functools.wraps(fn)
    def w(x): w.n += 1; return fn(x) * w.n
    w.n = 0
    return w
@deco
def h(x): return x + 1
f = C(h); out = [f(x), f(x), f(x), h.n, h.__name__]; h.n = 10; out += [f(x)]; out += [C(h.__wrapped__)(x)]
""",
"cmp_to_key": """
import functools
n = []
f = C(lambda x, l, s: sorted(l, key=functools.cmp_to_key(lambda a, b: n.append(1) or (a - b) * s))); out = f(x, [3, 1, 2], 1), f(x, [3, 1, 2], -1), f(x, [1], 1), len(n)
""",
"operator_getters": """
import operator as o
f = C(lambda x, k, a, m: (o.itemgetter(*k)(x), o.attrgetter(a)(x), o.methodcaller(m)(x))); y = torch.arange(3.0); out = f(y, (0,), 'shape', 'sum'), f(y, (1, 2), 'T.ndim', 'max'), f(y, (0,), 'dtype', 'neg')
""",
"operator_in_place_functions": """
import operator as o
def f(x, l, v): a = o.iadd(l, [v]); y = o.imul(x, v); return a is l, y is x, o.concat(l, [0]), o.index(v), o.truth(l)
g = C(f); l = []; out = g(x, l, 2), g(x, l, 3), g(x, l, 2), l, x
""",
"operator_setitem_delitem": """
import operator as o
def f(x, d, k): o.setitem(d, k, x * len(d)); o.setitem(x, 0, 5.0); return o.contains(d, 'a'), o.countOf(list(d), k), o.length_hint(d)
g = C(f); d = {}; out = g(x, d, 'a'), g(x, d, 'b'), g(x, d, 'a'), d, x
""",
"copy_shallow_and_deep": """
import copy
def f(x, l): a, b = copy.copy(l), copy.deepcopy(l); a[0].append(1); b[0].append(2); return a, b, a[0] is l[0]
g = C(f); l = [[0], x]; r = g(x, l); r = g(x, l); out = r, l, r[0][1] is x, r[1][1] is x
""",
"deepcopy_memo_keeps_sharing": """
import copy
def f(x): t = x + 1; a, b = copy.deepcopy([t, t]); a += 1; return a, b, a is b, t
g = C(f); out = g(x), g(x * 2), g(torch.ones(3))
""",
"copy_hooks": """
import copy
n = []
class K:
    def __init__(self, v): self.v = v
    def __copy__(self): n.append('c'); return K(self.v + 1)
    def __deepcopy__(self, memo): n.append('d'); return K(self.v + 10)
f = C(lambda x, k: x * copy.copy(k).v + copy.deepcopy(k).v); out = f(x, K(1)), f(x, K(2)), f(x, K(1)), n
""",
"enum_members": """
import enum
class E(enum.Enum): A = 1; B = 2; ALIAS = 1
f = C(lambda x, e: (x * e.value, e.name, e is E.A, E(2), E['ALIAS'], list(E), e)); out = f(x, E.A), f(x, E.B), f(x, E.ALIAS)
""",
"enum_value_types": """
import enum
class I(enum.IntEnum): A = 1; B = 2
class S(enum.StrEnum): A = enum.auto()
f = C(lambda x, e: (x * len(e) if isinstance(e, str) else x * e, e == 1, f'{e}', type(e).__name__, e)); out = f(x, I.A), f(x, I.B), f(x, S.A), f(x, 1), f(x, 'a')
""",
"enum_flags": """
import enum
class F(enum.Flag): R = 1; W = 2; X = 4
f = C(lambda x, e: (e | F.R, F.W in e, e & ~F.W, bool(e & F.X), x * e.value, len(list(e)))); out = f(x, F.R), f(x, F.R | F.W), f(x, F(0)), f(x, F.X | F.W)
""",
"enum_methods_and_missing": """
import enum
class E(enum.Enum):
    A = 1
    @classmethod
    def _missing_(cls, v): return cls.A
    def go(self, x): return x * self.s
E.s = 2.0; f = C(lambda x, v: E(v).go(x)); out = [f(x, 1), f(x, 5)]; E.s = 3.0; out += [f(x, 1)]
""",
"dataclass_argument_and_replace": """
import dataclasses as d
@d.dataclass
class P: a: float; b: list = d.field(default_factory=list); c: int = 3
def f(x, p): p.b.append(p.a); q = d.replace(p, a=p.a + 1); return x * q.a, q, d.asdict(p), q.b is p.b
g = C(f); p = P(1.0); out = g(x, p), g(x, p), g(x, P(5.0, c=0)), p
""",
"dataclass_frozen_and_hash": """
import dataclasses as d
@d.dataclass(frozen=True, order=True)
class P: a: int; b: int = 0
t = {P(1): 2.0}
def f(x, p):
    try: p.a = 5
    except d.FrozenInstanceError: pass
    return x * t.get(p, -1.0), p < P(2), p == P(1)
g = C(f); out = [g(x, P(1)), g(x, P(2))]; t[P(2)] = 7.0; out += [g(x, P(2)), g(x, P(1, 1))]
""",
"dataclass_post_init_and_made_inside": """
import dataclasses as d
@d.dataclass
class P:
    a: torch.Tensor; n: int = d.field(init=False); s: d.InitVar[float] = 2.0
    def __post_init__(self, s): self.n = self.a.shape[0]; self.a = self.a * s
f = C(lambda x, s: P(x, s)); out = f(x, 2.0), f(torch.ones(3), 3.0), f(x, 2.0)
""",
"dataclass_slots_and_default_changed": """
import dataclasses as d
@d.dataclass(slots=True)
class P: a: float = 2.0
@d.dataclass
class Q: a: float = 2.0
f = C(lambda x: x * P().a + Q().a); out = [f(x)]; Q.a = 5.0; Q.__init__.__defaults__ = (7.0,); out += [f(x)]; p = P(4.0); h = C(lambda x: x * p.a); h(x); p.a = 6.0; out += [h(x)]
""",
"dataclass_compare_with_tensor_field": """
import dataclasses as d
@d.dataclass
class P: a: torch.Tensor; b: int = d.field(default=0, compare=False)
f = C(lambda x, p, q: (p == q, p is q)); t = torch.ones(1); out = f(x, P(t), P(t)), f(x, P(t), P(torch.zeros(1))), f(x, P(t, 1), P(t, 2))
""",
"typing_helpers": """
import typing as t
T = t.TypeVar('T')
class G(t.Generic[T]):
    def __init__(self, v): self.v = v
f = C(lambda x, a: (x * G[int](a).v, t.cast(float, a), t.get_args(t.Dict[str, a.__class__])[1], G[int].__origin__)); out = f(x, 1), f(x, 2.5), f(x, True)
""",
"typed_dict_and_protocol": """
import typing as t
class D_(t.TypedDict): a: float
@t.runtime_checkable
class P(t.Protocol):
    def go(self): ...
class K: pass
k = K(); f = C(lambda x, d: (x * d['a'], isinstance(k, P))); out = [f(x, D_(a=1.0)), f(x, D_(a=2.0))]; K.go = lambda s: 0; out += [f(x, D_(a=1.0))]
""",
"types_function_made": """
import types
def h(x): return x * s
s = 2.0
f = C(lambda x, n: types.FunctionType(h.__code__, {'s': n})(x)); out = f(x, 3.0), f(x, 4.0), f(x, 3.0)
""",
"types_method_bound_later": """
import types
class K: s = 2.0
k = K(); k.go = types.MethodType(lambda self, x: x * self.s, k); f = C(lambda x: k.go(x)); out = [f(x)]; k.s = 3.0; out += [f(x)]; o = K(); o.s = 9.0; k.go = types.MethodType(k.go.__func__, o); out += [f(x)]
""",
"types_new_class_and_prepare": """
import types
f = C(lambda x, n: types.new_class('Q', (), {}, lambda ns: ns.update(v=n))().v * x); out = f(x, 1), f(x, 2), f(x, 2.5)
""",
"dynamic_class_attribute": """
import types
class K:
    @types.DynamicClassAttribute
    def v(self): return self.w
k = K(); k.w = 2.0; f = C(lambda x: x * k.v); out = [f(x)]; k.w = 3.0; out += [f(x)]
""",
"inspect_signature": """
import inspect
def h(x, a=1, *, b=2): return x
f = C(lambda x: (str(inspect.signature(h)), list(inspect.signature(h).bind(x, 5).arguments)[1:])); out = [f(x)]; h.__defaults__ = (9,); out += [f(x)]; h = lambda x, q: x; out += [f(x)]
""",
"inspect_frames": """
import inspect, sys
def h(): return sys._getframe(1).f_code.co_name, sys._getframe(1).f_locals['v']
def f(x, v): return h(), x * v
g = C(f); out = g(x, 1), g(x, 2), g(x, 2.5)
""",
"inspect_predicates": """
import inspect
async def co(): pass
def ge(): yield
f = C(lambda x, v: (inspect.isfunction(v), inspect.isclass(v), inspect.iscoroutinefunction(v), inspect.isgeneratorfunction(v), inspect.isbuiltin(v), callable(v))); out = [f(x, v) for v in (co, ge, int, len, 3, lambda: 0)]
""",
"context_variable": """
import contextvars
v = contextvars.ContextVar('v', default=2.0); f = C(lambda x: x * v.get()); out = [f(x)]; t = v.set(3.0); out += [f(x)]; v.reset(t); out += [f(x)]; c = contextvars.copy_context(); c.run(v.set, 5.0); out += [f(x), c.run(f, x)]
""",
"context_variable_set_inside": """
import contextvars
v = contextvars.ContextVar('v', default=0)
def f(x): v.set(v.get() + 1); return x * v.get()
g = C(f); out = [g(x) for _ in range(4)], v.get()
""",
"weak_reference_dies": """
import weakref
class K: s = 2.0
k = K(); r = weakref.ref(k); f = C(lambda x: x * r().s if r() is not None else x - 1); out = [f(x), f(x)]; del k; out += [f(x)]
""",
"weak_reference_to_argument": """
import weakref
class K: pass
l = []
def f(x, k): l.append(weakref.ref(k)); return x * 2
g = C(f); k = K(); [g(x, k) for _ in range(4)]; out = [r() is k for r in l]; del k; out += [[r() for r in l]]
""",
"weak_proxy_and_finalize": """
import weakref
class K: s = 2.0
k = K(); p = weakref.proxy(k); log = []; weakref.finalize(k, log.append, 'gone')
def f(x):
    try: return x * p.s
    except ReferenceError: return 'gone'
g = C(f); out = [g(x), g(x)]; k.s = 3.0; out += [g(x)]; del k; out += [g(x), log]
""",
"tensor_not_kept_alive": """
import weakref
f = C(lambda x: x * 2); t = torch.ones(3); f(t); f(t); r = weakref.ref(t); del t; import gc; gc.collect(); out = r() is None
""",
"object_not_kept_alive": """
import weakref, gc
class K: s = 2.0
f = C(lambda x, k: x * k.s); k = K(); f(x, k); f(x, k); r = weakref.ref(k); del k; gc.collect(); out = r() is None, f(x, K())
""",
"gc_state_and_counts": """
import gc
f = C(lambda x: x * (2 if gc.isenabled() else 3)); out = [f(x), f(x)]; gc.disable(); out += [f(x)]; gc.enable(); out += [f(x)]
""",
"sys_getrefcount_stable": """
import sys
class K: pass
k = K(); f = C(lambda x, k: x + 1); f(x, k); f(x, k); a = sys.getrefcount(k); [f(x, k) for _ in range(20)]; out = sys.getrefcount(k) - a
""",
"abc_abstract_property": """
import abc
class A(abc.ABC):
    @property
    @abc.abstractmethod
    def v(self): ...
    def go(self, x): return x * self.v
class B(A): v = 2.0
b = B(); f = C(lambda x: b.go(x)); out = [f(x)]; B.v = 3.0; out += [f(x)]; b.v = 4.0; out += [f(x)]
""",
"importlib_reload_module": """
import importlib, sys, types, tempfile, os
d = tempfile.mkdtemp(); sys.path.insert(0, d); sys.dont_write_bytecode = True
open(d + '/mod_a.py', 'w').write('s = 2.0'); import mod_a
f = C(lambda x: x * mod_a.s); out = [f(x), f(x)]; open(d + '/mod_a.py', 'w').write('s = 30.0'); importlib.invalidate_caches(); importlib.reload(mod_a); out += [f(x)]; mod_a.s = 4.0; out += [f(x)]
""",
"module_getattr": """
import types
m = types.ModuleType('m'); n = []
m.__getattr__ = lambda name: n.append(name) or len(n); f = C(lambda x: x * m.dyn); out = [f(x) for _ in range(3)]; m.dyn = 9.0; out += [f(x), n]
""",
"module_attribute_replaced": """
import types
m = types.ModuleType('m'); m.h = lambda x: x * 2; f = C(lambda x: m.h(x)); out = [f(x), f(x)]; m.h = lambda x: x * 3; out += [f(x)]; del m.h
try: f(x)
except AttributeError: out += ['AttributeError']
""",
"atexit_and_registered_callbacks": """
callbacks = []
def f(x): callbacks.append(lambda v: x * v); return x + len(callbacks)
g = C(f); g(x); g(x * 2); g(x * 3); out = [c(10) for c in callbacks]
""",
"functions_in_a_table_changed": """
table = {'a': lambda x: x * 2}
def register(fn): table[fn.__name__] = fn; return fn
f = C(lambda x, k: table[k](x)); out = [f(x, 'a')]
@register
def a(x): return x * 3
@register
def b(x): return x - 1
out += [f(x, 'a'), f(x, 'b')]; table['b'] = table['a']; out += [f(x, 'b')]
""",
"observer_list_called_inside": """
log = []; subs = [lambda v: log.append(('one', v.sum().item()))]
def f(x): y = x * 2; [s(y) for s in subs]; return y
g = C(f); g(x); g(x); subs.append(lambda v: log.append(('two', v.shape[0]))); g(x); subs.pop(0); g(torch.ones(3)); out = log
""",
}
