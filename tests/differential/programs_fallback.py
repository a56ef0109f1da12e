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
}
