"""What a program reads of classes, functions, modules and settings beside their plain attributes, changed between calls."""

PROGRAMS = {
"method_of_a_tuple_subclass": """
class P(tuple):
    k = 1
    def tot(s): return s[0] * s.k
p = P((torch.ones(2), 3)); f = C(lambda x, p: p.tot() + x); out = [f(x[:2], p), f(x[:2], p)]
P.tot = lambda s: s[0] - s.k; out += [f(x[:2], p)]; P.k = 5; out += [f(x[:2], p), f(x[:2], P((torch.ones(2),)))]
""",
"property_of_a_namedtuple_subclass": """
import collections
class P(collections.namedtuple('P', 'a b')):
    tot = property(lambda s: s.a + s.b)
p = P(torch.ones(2), 3.0); f = C(lambda p: p.tot * 2); out = [f(p), f(p)]
P.tot = property(lambda s: s.a - s.b); out += [f(p)]; P.tot = 7; out += [f(p), C(lambda l: l[0].tot * l[0].a)([p])]
""",
"names_of_classes": """
class A: 'doc'
a = A(); f = C(lambda x: (x + len(type(a).__name__), A.__name__, A.__qualname__)); out = [f(x)[:2], f(x)[:2]]
A.__name__ = 'Renamed'; out += [f(x)[:2]]; A.__qualname__ = 'Q.Renamed'; out += [f(x)[1:]]
""",
"names_of_functions": """
def h(): return 1
f = C(lambda x: (x + 1, h.__name__, h.__module__)); out = [f(x), f(x)]; h.__name__ = 'other'; out += [f(x)]; h.__module__ = 'elsewhere'; out += [f(x)]
""",
"annotations": """
import typing
class A: v: int
def h(a: int): pass
f = C(lambda x: (x + 1, list(A.__annotations__), list(h.__annotations__), len(typing.get_type_hints(A)))); out = [f(x), f(x)]
A.__annotations__['w'] = str; out += [f(x)]; h.__annotations__['b'] = str; out += [f(x), f(x)]
""",
"class_of_a_module": """
import types
class M(types.ModuleType):
    k = 1
    def meth(s): return 1
m = M('m'); f = C(lambda x: x * m.k + m.meth()); out = [f(x), f(x)]; M.k = 2; out += [f(x)]; M.meth = lambda s: 3; out += [f(x)]
""",
"class_of_a_held_tensor": """
class T(torch.Tensor):
    k = 1
    def meth(s): return 1
t = torch.ones(2).as_subclass(T); f = C(lambda x: x * t.k + t.meth()); out = [f(x), f(x)]; T.k = 2; out += [f(x)]; T.meth = lambda s: 3; out += [f(x)]
""",
"metaclass_of_a_class_in_a_class": """
class Meta(type):
    k = 1
    def meth(c): return 1
class K(metaclass=Meta): pass
class NS: q = K
f = C(lambda x: x * NS.q.k + NS.q.meth()); out = [f(x), f(x)]; Meta.k = 2; out += [f(x)]; Meta.meth = lambda c: 3; out += [f(x)]
""",
"names_that_library_modules_get": """
import math, string
f = C(lambda x: (x + 1, hasattr(math, 'zzz'), getattr(torch, 'zzz', 0), getattr(string, 'zzz', 0))); out = [f(x), f(x)]
math.zzz = 1; out += [f(x)]; torch.zzz = 2; out += [f(x)]; string.zzz = 3; out += [f(x)]; del math.zzz, torch.zzz, string.zzz; out += [f(x)]
""",
"type_of_autocast_while_it_is_off": """
def g(x):
    with torch.autocast('cpu'): return (x[:2, None] @ x[None, :2]), torch.get_autocast_dtype('cpu')
f = C(g); out = [f(x), f(x)]; torch.set_autocast_dtype('cpu', torch.float16)
try: out += [f(x)]
finally: torch.set_autocast_dtype('cpu', torch.bfloat16)
out += [f(x)]
""",
"keys_that_a_dict_subclass_makes_up": """
class D(dict):
    def __iter__(s): return iter([9])
d = D(a=2.0); f = C(lambda x, d: x * d['a']); out = [f(x, d), f(x, d)]; d['a'] = 3.0; out += [f(x, d)]; g = C(lambda x: x * d['a']); out += [g(x), g(x)]
""",
"class_of_an_argument_is_set": """
class A: q = 2
class B: q = 3
def g(x, o): o.__class__ = B; return x * o.q
f = C(g); out = []
for _ in range(3): o = A(); out += [f(x, o), type(o).__name__]
""",
"points_in_low_precision": """
f = C(lambda x: (torch.linspace(-3, 3, 8, dtype=torch.bfloat16), torch.linspace(0.1, 100, 33, dtype=torch.float16), x + 1)); out = [f(x), f(x), f(x)]
""",
}
