"""Programs that are not captured natively, as each prints or keeps what cannot be watched, and in which something changes between calls."""

PROGRAMS = {
"hooks_come_and_go_in_a_module_that_prints": """
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.l = torch.nn.Linear(2, 2)
    def forward(self, v): print(); return self.l(v) * 2
torch.manual_seed(0); m = M().requires_grad_(False); f = C(m); out = [f(x) for _ in range(4)]
h = m.l.register_forward_hook(lambda mod, i, o: o * 10); out += [f(x)]
p = m.l.register_forward_pre_hook(lambda mod, i: (i[0] + 1,)); out += [f(x)]; h.remove(); out += [f(x)]; p.remove(); out += [f(x)]
""",
"one_parameter_twice_or_two": """
def g(a, b): print(); a.mul_(2); return a + b, a is b
f = C(g)
with torch.no_grad():
    a, b = torch.nn.Parameter(x.clone()), torch.nn.Parameter(x.clone()); out = [f(a, b) for _ in range(4)] + [f(a, a), f(b, a), f(b, b), a, b]
""",
"errors_are_eagers_own": """
def g(a, b): print(); assert a.sum() > 0, 'negative'; return a @ b
f = C(g); o = torch.ones; out = [f(o(2, 3), o(3, 2)) for _ in range(4)]
for a, b in ((o(2, 3), o(2, 3)), (-o(2, 3), o(3, 2)), (o(2, 3), None), (o(2, 3), 'a'), (o(2, 3), o(3, 2)), (o(4, 3), o(3, 2))):
    try: out.append(f(a, b))
    except Exception as e: out.append(type(e))
""",
"library_that_dynamo_fails_on": """
import decimal, fractions, hashlib, json
def g(v, n): return v * n, hashlib.md5(str(n).encode()).hexdigest(), decimal.Decimal(n) / 3 > 1, float(fractions.Fraction(n, 3)), json.dumps({'n': n})
f = C(g); out = [f(x, n) for n in (1, 2, 3, 2, 4, 4)]
""",
"a_key_that_was_missing": """
def g(a, d):
    print()
    try: return a * d['scale']
    except KeyError as e: return a - len(str(e))
f = C(g); out = [f(x, d) for d in [{'b': 1}] * 5 + [{'scale': 3}, {'scale': 2, 'b': 1}, {}]]
""",
"an_attribute_beside_getattr": """
class G:
    def __getattr__(s, n): return 2
o = G()
def g(a): print(); return a * o.q
f = C(g); out = [f(x) for _ in range(5)]; o.q = 50; out += [f(x), f(x)]
""",
"an_operation_whose_error_is_caught": """
def g(a, i):
    print()
    try: return a[i]
    except IndexError: return a * 0
f = C(g); a = torch.arange(4.); out = [f(a, torch.tensor(i)) for i in ([0, 1], [0, 3], [0, 7], [1, 2], [1, -9], [1, 9])]
""",
"what_is_written_before_an_error": """
class S: n = 0
def g(a, i, s):
    print(); s.n += 1
    return a[i]
f = C(g); s = S(); out = []
for i in (0, 1, 2, 9, 9, 9, 1):
    try: out.append(f(torch.ones(4), torch.tensor([i]), s))
    except IndexError: out.append('error')
out.append(s.n)
""",
"minus_zero": """
def g(a, n): print(); return a / n
f = C(g); out = [f(x, n) for n in (0., 0., 0., 0., -0., 0.)]
""",
"tensors_in_a_tuple": """
def g(a, b): print(); return a + b, a in (b,), [b].count(a)
f = C(g); a = torch.ones(1); out = [f(a, torch.ones(1)) for _ in range(5)]
""",
"a_cache_of_functools": """
import functools
seen = []
@functools.lru_cache(None)
def h(n): seen.append(n); return n
def g(a): print(); return a + h(3)
f = C(g); out = [f(x) for _ in range(8)] + [seen]
""",
"an_error_that_tells_a_number": """
class Bad(Exception): pass
def item(a): return a.sum().item()
def g(a): n = item(a); e = Bad(n); return a * 2, repr(e), n.__class__ is float
f = C(g); out = [f(torch.arange(m).float()) for m in (3, 3, 4, 5, 2)]
""",
}
