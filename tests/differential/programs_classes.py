"""The data model: attributes, descriptors, metaclasses, special methods."""

PROGRAMS = {
"property_reads_global": """
s = 2.0
class K:
    @property
    def v(self): return s
k = K(); f = C(lambda x: x * k.v); out = [f(x), f(x)]; s = 3.0; out += [f(x)]; K.v = property(lambda self: 5.0); out += [f(x)]
""",
"property_setter_effects": """
class K:
    log = []
    @property
    def v(self): return self._v
    @v.setter
    def v(self, n): self.log.append(n); self._v = n * 2
    @v.deleter
    def v(self): self.log.append('del'); del self._v
k = K()
def f(x, n): k.v = n; r = x * k.v; del k.v; return r
g = C(f); out = g(x, 1), g(x, 2), g(x, 3), K.log, hasattr(k, '_v')
""",
"getattr_fallback_becomes_real": """
class K:
    n = 0
    def __getattr__(self, name): self.n += 1; return 2.0
k = K(); f = C(lambda x: x * k.v); out = [f(x), f(x), f(x), k.n]; k.v = 3.0; out += [f(x), k.n]; del k.v; out += [f(x), k.n]
""",
"getattribute_counts": """
class K:
    def __init__(self): object.__setattr__(self, 'n', 0); self.v = 2.0
    def __getattribute__(self, name):
        if name == 'v': object.__setattr__(self, 'n', object.__getattribute__(self, 'n') + 1)
        return object.__getattribute__(self, name)
k = K(); f = C(lambda x: x * k.v + k.v); [f(x) for _ in range(4)]; out = k.n
""",
"setattr_hook": """
class K:
    def __setattr__(self, name, value): self.__dict__[name.upper()] = value
k = K()
def f(x, v): k.a = v; return x * k.A
g = C(f); out = g(x, 1), g(x, 2), g(x, 3.5), k.__dict__
""",
"delattr_hook": """
log = []
class K:
    def __delattr__(self, name): log.append(name)
k = K(); k.a = 1
def f(x): del k.a; return x * k.a
g = C(f); out = g(x), g(x), g(x), log
""",
"slots_changed_between": """
class K: __slots__ = ('v', 'w')
k = K(); k.v = 2.0; f = C(lambda x: x * k.v if not hasattr(k, 'w') else x - k.w); out = [f(x), f(x)]; k.v = 3.0; out += [f(x)]; k.w = 1.0; out += [f(x)]; del k.w; out += [f(x)]
""",
"class_attribute_shadowed_by_instance": """
class K: v = 2.0
k = K(); f = C(lambda x: x * k.v); out = [f(x)]; K.v = 3.0; out += [f(x)]; k.v = 4.0; out += [f(x)]; K.v = 5.0; out += [f(x)]; del k.v; out += [f(x)]
""",
"base_class_attribute_changed": """
class A: v = 2.0
class B(A): pass
class D_(B): pass
d = D_(); f = C(lambda x: x * d.v); out = [f(x)]; A.v = 3.0; out += [f(x)]; B.v = 4.0; out += [f(x)]; del B.v; out += [f(x)]
""",
"bases_reassigned": """
class A:
    def s(self): return 2.0
class B:
    def s(self): return 3.0
class K(A): pass
k = K(); f = C(lambda x: x * k.s()); out = [f(x), f(x)]; K.__bases__ = (B,); out += [f(x)]
""",
"class_of_instance_reassigned": """
class A: v = 2.0
class B: v = 3.0
k = A(); f = C(lambda x: x * k.v); out = [f(x), f(x)]; k.__class__ = B; out += [f(x), f(x)]; k.__class__ = A; out += [f(x)]
""",
"instance_dict_replaced": """
class K: pass
k = K(); k.v = 2.0; f = C(lambda x: x * k.v); out = [f(x), f(x)]; k.__dict__ = {'v': 3.0}; out += [f(x)]; k.__dict__['v'] = 4.0; out += [f(x)]; vars(k).update(v=5.0); out += [f(x)]
""",
"method_replaced_on_instance": """
class K:
    def go(self, x): return x * 2
k = K(); f = C(lambda x: k.go(x)); out = [f(x), f(x)]; k.go = lambda x: x * 3; out += [f(x)]; del k.go; out += [f(x)]; K.go = lambda self, x: x * 5; out += [f(x)]
""",
"descriptor_data_against_instance": """
class Dsc:
    def __get__(self, o, c): return 2.0 if o is None else o.__dict__.get('v', 2.0) * 10
class K: v = Dsc()
k = K(); f = C(lambda x: x * k.v + K.v); out = [f(x)]; k.__dict__['v'] = 3.0; out += [f(x)]; Dsc.__set__ = lambda *a: None; out += [f(x)]; del Dsc.__set__; out += [f(x)]
""",
"descriptor_set_name": """
class Dsc:
    def __set_name__(self, owner, name): self.n = '_' + name
    def __get__(self, o, c): return getattr(o, self.n)
    def __set__(self, o, v): setattr(o, self.n, v + 1)
class K: a = Dsc(); b = Dsc()
k = K()
def f(x, v): k.a = v; k.b = k.a * 2; return x * k.b
g = C(f); out = g(x, 1), g(x, 2), g(x, 3), k.__dict__
""",
"classmethod_and_staticmethod": """
class A:
    v = 2.0
    @classmethod
    def c(cls, x): return x * cls.v
    @staticmethod
    def s(x): return x + A.v
class B(A): v = 3.0
f = C(lambda x, k: (k.c(x), k.s(x))); out = [f(x, A), f(x, B), f(x, B())]; B.v = 4.0; A.v = 5.0; out += [f(x, B), f(x, A())]
""",
"super_chain_changed": """
class A:
    def go(self, x): return x + 1
class B(A):
    def go(self, x): return super().go(x) * 2
b = B(); f = C(lambda x: b.go(x)); out = [f(x), f(x)]; A.go = lambda self, x: x - 1; out += [f(x)]
""",
"diamond_method_order": """
class A:
    def go(self, l): l.append('A')
class B(A):
    def go(self, l): l.append('B'); super().go(l)
class E(A):
    def go(self, l): l.append('E'); super().go(l)
class F(B, E): pass
class G(E, B): pass
def f(x, o): l = []; o.go(l); return x * len(l), l
g = C(f); out = g(x, F()), g(x, G()), g(x, F()), g(x, B())
""",
"metaclass_attribute": """
class M(type):
    v = 2.0
    def __getattr__(cls, name): return 7.0
class K(metaclass=M): pass
f = C(lambda x: x * K.v + K.missing); out = [f(x)]; M.v = 3.0; out += [f(x)]; K.v = 4.0; out += [f(x)]; K.missing = 0.0; out += [f(x)]
""",
"metaclass_call_and_len": """
class M(type):
    made = 0
    def __call__(cls, *a): M.made += 1; return super().__call__(*a)
    def __len__(cls): return M.made
class K(metaclass=M):
    def __init__(self, v): self.v = v
f = C(lambda x, v: x * K(v).v + len(K)); out = f(x, 2), f(x, 3), f(x, 2), M.made
""",
"instancecheck_hook": """
class M(type):
    ok = True
    def __instancecheck__(cls, o): return M.ok
class K(metaclass=M): pass
f = C(lambda x, o: x + 1 if isinstance(o, K) else x - 1); out = [f(x, 3), f(x, 3)]; M.ok = False; out += [f(x, 3)]
""",
"init_subclass_registers": """
class A:
    seen = []
    def __init_subclass__(cls, scale=1, **k): super().__init_subclass__(**k); A.seen.append(scale)
def f(x, s):
    class B(A, scale=s): pass
    return x * len(A.seen)
g = C(f); out = g(x, 2), g(x, 3), g(x, 2), A.seen
""",
"new_returns_cached": """
class K:
    cache = {}
    def __new__(cls, v):
        if v not in cls.cache: cls.cache[v] = super().__new__(cls)
        return cls.cache[v]
    def __init__(self, v): self.n = getattr(self, 'n', 0) + 1
f = C(lambda x, v: (x * K(v).n, K(v))); a = f(x, 1)[1]; f(x, 1); r, b = f(x, 1); out = r, a is b, b.n, f(x, 2)[0]
""",
"object_made_inside_is_fresh": """
class K:
    def __init__(self, v): self.v = v; self.l = []
f = C(lambda x: K(x * 2)); a = f(x); a.l.append(1); b = f(x); b.l.append(2); c = f(x); out = a is b, b.l, c.l, type(c), c.v
""",
"bool_hook_changes": """
class K:
    def __init__(self): self.n = 0
    def __bool__(self): self.n += 1; return self.n % 2 == 1
k = K(); f = C(lambda x: x + 1 if k else x - 1); out = [f(x) for _ in range(5)], k.n
""",
"len_decides_truth": """
class K:
    l = []
    def __len__(self): return len(self.l)
k = K(); f = C(lambda x: x + 1 if k else x - 1); out = [f(x)]; K.l.append(1); out += [f(x)]; K.__bool__ = lambda s: False; out += [f(x)]; K.l.append(1); out += [f(x)]
""",
"equality_hook_nonbool": """
class K:
    def __init__(self, v): self.v = v
    def __eq__(self, o): return self.v * o
    def __ne__(self, o): return 'ne'
f = C(lambda x, k: (k == x, k != x, x is k)); out = f(x, K(2)), f(x, K(3.5)), f(x, K(torch.tensor(4)))
""",
"hash_hook_in_dict": """
class K:
    def __init__(self, v): self.v = v
    def __hash__(self): return hash(self.v)
    def __eq__(self, o): return self.v == o.v
d = {K(1): 2.0}; f = C(lambda x, k: x * d.get(k, -1)); out = [f(x, K(1)), f(x, K(2))]; d[K(2)] = 5.0; out += [f(x, K(2)), f(x, K(1))]
""",
"contains_hook": """
class K:
    def __init__(self, *v): self.v = v
    def __contains__(self, n): return n in self.v
f = C(lambda x, k: x + 1 if 2 in k else x - 1); out = f(x, K(1)), f(x, K(2)), f(x, K(1, 2)), f(x, K())
""",
"getitem_protocol_iteration": """
class K:
    def __init__(self, n): self.n = n; self.reads = 0
    def __getitem__(self, i):
        self.reads += 1
        if i >= self.n: raise IndexError
        return i * 2
f = C(lambda x, k: x + sum(k) + (4 in k)); ks = [K(2), K(3), K(0), K(3)]; out = [f(x, k) for k in ks], [k.reads for k in ks]
""",
"getitem_receives_slices": """
class K:
    def __getitem__(self, i): return i
f = C(lambda x, k, a: (k[a], k[a:], k[::a, ...], k[a, None])); out = f(x, K(), 1), f(x, K(), 2), f(x, K(), None)
""",
"class_getitem": """
class K:
    n = []
    def __class_getitem__(cls, i): cls.n.append(i); return i * 2
f = C(lambda x, i: x * K[i]); out = f(x, 1), f(x, 2), f(x, 3.5), K.n
""",
"missing_hook": """
class Dd(dict):
    def __missing__(self, k): self[k] = len(self); return self[k]
d = Dd(); f = C(lambda x, k: x * d[k]); out = f(x, 'a'), f(x, 'b'), f(x, 'c'), f(x, 'b'), dict(d)
""",
"reflected_operators": """
class A:
    def __mul__(self, o): return NotImplemented
class B:
    def __init__(self, v): self.v = v
    def __rmul__(self, o): return self.v
f = C(lambda x, a, b: (a * b, x + 1)); out = f(x, A(), B(1)), f(x, A(), B(2)), f(x, 5, B(3))
try: f(x, A(), A()); out += ('none',)
except TypeError: out += ('TypeError',)
""",
"reflected_operator_against_tensor": """
class B:
    def __init__(self, v): self.v = v
    def __rmul__(self, o): return 'rmul', self.v
    def __radd__(self, o): return o * self.v
f = C(lambda x, b: (x * b, x + b)); out = []
for v in (1, 2, 3.5):
    try: out.append(f(x, B(v)))
    except TypeError as e: out.append('TypeError')
""",
"inplace_operator_hook": """
class A:
    def __init__(self): self.l = []
    def __iadd__(self, o): self.l.append(o); return self
class B(A):
    def __iadd__(self, o): return o
def f(x, a): b = a; b += 5; return b is a, x
g = C(f); a = A(); out = g(x, a), g(x, B()), g(x, a), a.l
""",
"index_hook": """
class I:
    def __init__(self, v): self.v = v
    def __index__(self): return self.v
f = C(lambda x, i: (x[i], [10, 20, 30][i], list(range(i)))); y = torch.arange(3.0); out = f(y, I(0)), f(y, I(1)), f(y, I(-1)), f(y, I(2))
""",
"float_and_int_hooks": """
class N:
    def __init__(self, v): self.v = v
    def __float__(self): return float(self.v)
    def __int__(self): return 100 + int(self.v)
    def __round__(self, n=None): return ('round', n)
f = C(lambda x, n: (x * float(n), int(n), round(n), round(n, 2))); out = f(x, N(1)), f(x, N(2)), f(x, N(2.5))
""",
"call_hook_patched": """
class K:
    def __call__(self, x): return x * 2
k = K(); f = C(lambda x: k(x)); out = [f(x), f(x)]; k.__call__ = lambda x: x * 50; out += [f(x)]; K.__call__ = lambda self, x: x * 3; out += [f(x)]
""",
"callable_object_compiled": """
class K:
    s = 2.0; n = 0
    def __call__(self, x): self.n += 1; return x * self.s
k = K(); f = C(k); out = [f(x), f(x)]; k.s = 3.0; out += [f(x), k.n]; K.__call__ = lambda self, x: x - 1; out += [f(x)]
""",
"bound_method_compiled": """
class K:
    s = 2.0
    def go(self, x): self.last = x; return x * self.s
k = K(); f = C(k.go); out = [f(x), f(x)]; k.s = 3.0; y = torch.zeros(2); out += [f(y), k.last is y]; K.go = lambda self, x: x - 1; out += [f(x)]
""",
"iter_hook_stateful": """
class K:
    def __init__(self): self.n = 0
    def __iter__(self): self.n += 1; return iter(range(self.n))
k = K(); f = C(lambda x: [x * v for v in k]); out = [f(x) for _ in range(4)], k.n
""",
"context_manager_hooks": """
class K:
    def __init__(self): self.log = []
    def __enter__(self): self.log.append('in'); return len(self.log)
    def __exit__(self, t, v, tb): self.log.append(t.__name__ if t else None); return t is KeyError
k = K()
def f(x, d):
    with k as n: x = x * d['a'] + n
    return x
g = C(f); out = [g(x, {'a': 1}), g(x, {}), g(x, {'a': 2})]
try: g(x, None)
except TypeError: out.append('TypeError')
out.append(k.log)
""",
"repr_and_str_hooks": """
class K:
    n = 0
    def __repr__(self): K.n += 1; return f'K{K.n}'
    def __format__(self, s): return 'F' + s
k = K(); f = C(lambda x: (str(k), repr(k), f'{k:q}', f'{k!r}')); out = f(x), f(x), f(x), K.n
""",
"dir_and_vars": """
class K: pass
k = K(); k.b = 1; f = C(lambda x: (list(vars(k)), [n for n in dir(k) if not n.startswith('_')])); out = [f(x)]; k.a = 2; out += [f(x)]; K.c = 3; out += [f(x)]; del k.b; out += [f(x)]
""",
"hasattr_turns_true": """
class K: pass
k = K(); f = C(lambda x: x * k.v if hasattr(k, 'v') else x - 1); out = [f(x), f(x)]; k.v = 3.0; out += [f(x)]; del k.v; out += [f(x)]; K.v = 4.0; out += [f(x)]
""",
"getattr_by_computed_name": """
class K: a, b = 2.0, 3.0
k = K(); f = C(lambda x, n: x * getattr(k, n, 9.0)); out = [f(x, 'a'), f(x, 'b'), f(x, 'c')]; k.a = 5.0; out += [f(x, 'a'), f(x, 'b')]
""",
"abstract_class_instantiated": """
import abc
class A(abc.ABC):
    @abc.abstractmethod
    def go(self): ...
class B(A):
    def go(self): return 2.0
def f(x, c):
    try: return x * c().go()
    except TypeError: return 'abstract'
g = C(f); out = [g(x, B), g(x, A), g(x, B)]; B.__abstractmethods__ = frozenset({'go'}); out += [g(x, B)]
""",
"abc_registration_later": """
import abc
class A(abc.ABC): pass
class K: pass
f = C(lambda x, k: x + 1 if isinstance(k, A) else x - 1); k = K(); out = [f(x, k), f(x, k)]; A.register(K); out += [f(x, k)]
""",
"subclasshook": """
import collections.abc
class K: pass
f = C(lambda x, k: (isinstance(k, collections.abc.Sized), isinstance(k, collections.abc.Hashable), isinstance(k, collections.abc.Callable))); out = [f(x, K())]
K.__len__ = lambda s: 1; K.__hash__ = None; out += [f(x, K())]
""",
"private_name_mangling": """
class K:
    def __init__(self): self.__v = 2.0
    def go(self, x): return x * self.__v
k = K(); f = C(lambda x: k.go(x)); out = [f(x)]; k._K__v = 3.0; out += [f(x)]; k.__v = 9.0; out += [f(x)]
""",
"attribute_of_class_is_list_mutated_inside": """
class K: l = [1]
def f(x): K.l.append(len(K.l)); return x * sum(K.l)
g = C(f); out = [g(x) for _ in range(4)], K.l
""",
"attribute_deleted_inside": """
class K: pass
k = K(); k.v = 2.0
def f(x):
    if hasattr(k, 'v'): y = x * k.v; del k.v
    else: y = x; k.v = 4.0
    return y
g = C(f); out = [g(x) for _ in range(5)], hasattr(k, 'v')
""",
"int_subclass_with_operators": """
class N(int):
    def __add__(self, o): return N(int(self) + int(o) + 100)
f = C(lambda x, n: (n + 1, type(n + 1).__name__, x * n)); out = f(x, N(1)), f(x, N(2)), f(x, 3), f(x, N(3))
""",
"str_subclass_attribute": """
class S(str): pass
s = S('a'); s.k = 2.0; f = C(lambda x, s: (x * s.k, s.upper(), type(s + 'b').__name__)); t = S('a'); t.k = 3.0; out = f(x, s), f(x, t); s.k = 4.0; out += (f(x, s),)
""",
"list_subclass_override": """
class L(list):
    def __getitem__(self, i): return super().__getitem__(i) * 10
    def __iter__(self): return iter([7])
    def __len__(self): return 3
l = L([1.0, 2.0]); f = C(lambda x, l: (x * l[0], [v for v in l], len(l), sum(l))); out = [f(x, l)]; l[0] = 4.0; out += [f(x, l), f(x, [1.0]), f(x, l)]
""",
"dict_subclass_override": """
class Dd(dict):
    def __getitem__(self, k): return super().__getitem__(k) * 10
    def keys(self): return ['z']
d = Dd(a=2.0); f = C(lambda x, d: (x * d['a'], d.get('a'), list(d.keys()), list(d))); out = [f(x, d)]; d['a'] = 3.0; out += [f(x, d), f(x, {'a': 1.0})]
""",
"weak_identity_of_type_argument": """
class A: pass
class B(A): pass
f = C(lambda x, t: (x * 2 if t is A else x * 3, issubclass(t, A), t.__name__)); out = f(x, A), f(x, B), f(x, int), f(x, type('A', (), {}))
""",
"name_of_function_changed": """
def h(x): return x
f = C(lambda x: (h.__name__, h.__doc__, h.__qualname__)); out = [f(x)]; h.__name__ = 'q'; h.__doc__ = 'd'; out += [f(x)]; h.__qualname__ = 'r'; out += [f(x)]
""",
"doc_and_annotations_of_class": """
class K:
    'doc'
    a: int = 1
f = C(lambda x: (K.__doc__, K.__annotations__, K.__module__)); out = [f(x)]; K.__doc__ = 'new'; K.__annotations__['b'] = float; out += [f(x)]
""",
"finalizer_runs": """
log = []
class K:
    def __del__(self): log.append('del')
def f(x): k = K(); y = x * 2; del k; log.append('after'); return y
g = C(f); [g(x) for _ in range(3)]; out = log
""",
"length_hint_and_reversed": """
class K:
    def __len__(self): return 3
    def __getitem__(self, i): return i + K.o
    def __reversed__(self): return iter('rev')
K.o = 0; f = C(lambda x: (list(reversed(K())), K()[1])); out = [f(x)]; K.o = 5; out += [f(x)]; del K.__reversed__; out += [f(x)]
""",
"matmul_and_divmod_hooks": """
class K:
    def __init__(self, v): self.v = v
    def __matmul__(self, o): return x * self.v
    def __divmod__(self, o): return (self.v, o)
    def __pow__(self, o, m=None): return (o, m)
f = C(lambda x, k: (k @ 1, divmod(k, 2), pow(k, 3, 5), k ** 2)); out = f(x, K(1)), f(x, K(2)), f(x, K(2.5))
""",
}
