"""What users' training programs, and reports of other compilers' users, have shown."""

PROGRAMS = {
# ---- between forward and backward ----
"step_count_beside_a_custom_function": """
class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.round()
    @staticmethod
    def backward(ctx, g): return g
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.w = torch.nn.Parameter(torch.ones(2)); self.step = 0
    def forward(self, x): return Through.apply(self.w * x) * (.5 if self.step > 9 or not self.training else 1.)
m = M(); f = C(m); out = []
for change in ('eval', 'step', 'eval', 'step'):
    m.train(); m.step = 0; y = f(x).sum()
    if change == 'eval': m.eval()
    else: m.step = 10
    y.backward(); out.append(m.w.grad.tolist())
""",
"what_a_backward_reads_of_its_context_changes": """
class Settings: scale = 1.; power = 1.
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s): ctx.s = s; ctx.sizes = (x.shape, [s]); return x * 2
    @staticmethod
    def backward(ctx, g): return g * ctx.s.scale + ctx.sizes[1][0].scale, None
s, out = Settings(), []
for compiles in (C, D):
    f = compiles(lambda x: Scaled.apply(x, s))
    for i in range(8):
        a = torch.ones(2 + i % 2, requires_grad=True); s.scale = max(float(i), 4.); f(a).sum().backward(); out.append(a.grad.tolist())
""",
"what_a_hook_reads_of_its_module_changes": """
def hook(m, gi, go): return (gi[0] * m.scale,)
m = torch.nn.Linear(2, 2, bias=False); m.weight.data.fill_(1.); m.scale = 1.; m.register_full_backward_hook(hook); out = []
f = C(lambda x: m(x * 1.) * 2)
for i in range(8):
    a = torch.ones(1, 2, requires_grad=True); m.scale = max(float(i // 2), 2.); f(a).sum().backward(); out.append(a.grad.tolist())
""",
"what_both_the_call_and_its_gradients_read_changes_between_them": """
class Settings: scale = 1.
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s): ctx.s = s; return x * s.scale
    @staticmethod
    def backward(ctx, g): return g * ctx.s.scale, None
s, out = Settings(), []
for compiles in (C, D):
    s.scale = 1.; f = compiles(lambda x: Scaled.apply(x, s))
    for i in range(6):
        a = torch.ones(2 + i % 2, requires_grad=True); s.scale = 1.; y = f(a); s.scale = float(i); y.sum().backward()
        out += [y.tolist(), a.grad.tolist(), s.scale]
    for i in range(3): a = torch.ones(2, requires_grad=True); s.scale = 7.; f(a).sum().backward(); out.append(a.grad.tolist())
""",
"what_is_called_by_a_hook_is_replaced_before_it_runs": """
import types
out = []
for compiles in (C, D):
    s = types.SimpleNamespace(h=lambda g: g * 2, l=[2.]); plain = lambda g, n=2: g * n
    def f(x): h = x * 2; h.register_hook(lambda g: s.h(g)); return h.sin()
    def d(x): h = x * 2; h.register_hook(plain); return h.sin()
    def k(x): h = x * 2; h.register_hook(lambda g: g * len(s.l)); return h * s.l[0]
    for program in (f, d, k):
        c = compiles(program)
        for v in (3, 4, 5):
            a = torch.tensor([1., 2.], requires_grad=True); y = c(a)
            s.h = lambda g, v=v: g * v; plain.__defaults__ = (v,); s.l = [float(v)] * v
            y.sum().backward(); out += [a.grad.tolist(), len(s.l), plain.__defaults__]
""",
"attention_layer_under_a_reentrant_checkpoint": """
from torch.utils.checkpoint import checkpoint
torch.manual_seed(1); m = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval(); out = []
for compiles in (C, D):
    f = compiles(lambda x: checkpoint(lambda q: m(q, q, q)[0], x, use_reentrant=True))
    for i in range(3): y = f(torch.arange(80.).sin().reshape(2, 5, 8).requires_grad_()); out += [y.stride(), y.view(10, 8)]
""",
"counter_beside_a_module_with_a_hook": """
m = torch.nn.Linear(2, 2); m.weight.data.fill_(1.); m.register_full_backward_hook(lambda *a: None); s = {'n': 0, 'scale': 1.}; out = []
def f(x): s['n'] += 1; return m(x) * s['n'] * s['scale']
for compiles in (C, D):
    s['n'] = 0; g = compiles(f)
    for i in range(6):
        s['scale'] = 1.; a = torch.ones(1, 2, requires_grad=True); y = g(a).sum(); s['scale'] = 2.; y.backward(); out.append(a.grad.tolist())
""",
# ---- layers ----
"attention_under_a_checkpoint": """
from torch.utils.checkpoint import checkpoint
import torch.nn.functional as F
def block(q, mask): return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
def f(q, reentrant):
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    return checkpoint(block, q, mask, use_reentrant=reentrant)
out = []
for reentrant in (False, True):
    g = C(lambda q: f(q, reentrant))
    for i in range(3):
        q = torch.linspace(0, 1, 48).reshape(1, 2, 6, 4).requires_grad_(); g(q * (i + 1)).square().sum().backward(); out.append(q.grad)
""",
"recurrent_layer_in_low_precision": """
torch.manual_seed(0); m = torch.nn.LSTM(8, 8, batch_first=True); out = []
def f(x):
    with torch.autocast('cpu', torch.bfloat16): return m(x)[0]
for compiles in (C, D):
    g = compiles(f)
    for i in range(4):
        a = torch.linspace(0, 1 + i, 96).reshape(2, 6, 8).requires_grad_(); y = g(a); y.float().square().sum().backward(); out += [y, a.grad]
""",
"recurrent_layer_under_a_checkpoint": """
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0); m = torch.nn.LSTM(8, 8, batch_first=True); out = []
for reentrant in (False, True):
    f = C(lambda x: checkpoint(lambda z: m(z)[0], x, use_reentrant=reentrant))
    for i in range(4):
        a = torch.linspace(0, 1 + i, 96).reshape(2, 6, 8).requires_grad_(); f(a).square().sum().backward(); out += [a.grad]
""",
"pooling_under_vmap": """
m = torch.nn.MaxPool1d(2); f = C(lambda x: torch.func.vmap(m)(torch.stack([x, x * 2]))); out = []
for i in range(3):
    a = torch.arange(16.).reshape(2, 8).requires_grad_(); y = f(a); y.sum().backward(); out += [y, a.grad]
""",
# ---- writes ----
"copies_of_what_was_written_in_part": """
def f(x, y): x[0] = 5.; y.copy_(x)
def g(x, y): x[:1].add_(1); y[:] = x; return x * 2
def h(x, y): x[:, 0].zero_(); torch._foreach_copy_([y], [x])
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.register_buffer('b', torch.zeros(4)); self.register_buffer('last', torch.zeros(4))
    def forward(self, x): self.b[:2] += x[:2]; self.last.copy_(self.b); return x * 2
out = []
for program in (f, g, h):
    c = C(program)
    for i in range(3): a, b = torch.ones(2, 2) * i, torch.full((2, 2), -1.); c(a, b); out += [a, b]
m = M(); c = C(m)
for i in range(3): c(torch.ones(4)); out += [m.b.tolist(), m.last.tolist()]
""",
"writes_of_which_one_waits_for_an_index_that_reads_the_other": """
def f(x, y):
    x.narrow(0, 0, 1).add_(x.narrow(0, 1, 1)); v = x.copysign(x); y.index_add_(0, torch.tensor([0, 0]), x[:2])
    return v
out = []
for compiles in (C, D):
    g = compiles(f)
    for n in (5, 5, 4, 4): a, b = torch.arange(float(n * n)).reshape(n, n), torch.ones(n, n); out += [g(a, b), a, b]
""",
"results_written_into_tensors_of_other_types": """
a, b, out = torch.tensor([1e5, 1000.5] * 8), torch.tensor([99999., 1000.] * 8), []
for kind in (torch.float16, torch.bfloat16, torch.float64):
    for op in (torch.sub, torch.floor_divide, torch.fmod, torch.mul):
        def f(x, y): o = torch.empty(x.shape, dtype=kind); op(x, y, out=o); return o
        g = C(f); out += [g(a, b).tolist() for _ in range(3)]
def h(x, y): x.fmod_(y); return x
def k(x, y): x.sub_(y); return x
low, wide = torch.linspace(-90, 90, 37).bfloat16(), torch.linspace(-3, 2.7, 37)
for f in (h, k): g = C(f); out += [g(low.clone(), wide).tolist() for _ in range(3)] + [g(wide.clone(), wide.double() * 1.1).tolist() for _ in range(3)]
""",
"padding_of_complex_numbers_and_powers_of_two": """
import torch.nn.functional as F
out = []
for v in (2.5, 0., float('inf')): g = C(lambda x: F.pad(x, (1, 0), value=v)); out += [g(torch.ones(1, dtype=torch.complex64)) for _ in range(3)]
g = C(torch.ldexp); out += [g(torch.tensor([.1, -.01, 1e-38, 3.]), torch.tensor([130, 130, 250, -2])) for _ in range(3)]
out += [g(torch.tensor([1e38, 1e-3]), torch.tensor([-160, 5])) for _ in range(3)]
""",
"masks_that_attention_refuses": """
import torch.nn.functional as F
q, out = torch.ones(1, 1, 2, 4), []
for kind in (torch.float64, torch.float16, torch.float32):
    g = C(lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=torch.zeros(2, 2, dtype=kind)))
    for _ in range(3):
        try: out.append(g(q))
        except RuntimeError as e: out.append(str(e))
""",
# ---- numbers that are symbols ----
"comparisons_are_bools": """
def f(x): ok = x.shape[0] > 1; return x * 10 if ok is True else x, f'{ok}', isinstance(ok, bool), {True: 1}[ok]
def g(x, n): ok = n > 1; return x * 10 if ok is True else x, str(ok)
def h(x): ok = x.sum().item() > 1; return x * 10 if ok is True else x, str(ok)
out = []
for compiles in (C, D):
    a, b, c = compiles(f), compiles(g), compiles(h)
    for n in (3, 3, 5, 4): out += [a(torch.ones(n)), b(x, n), c(torch.ones(n))]
""",
"arguments_that_no_longer_need_gradients": """
def f(x): x.requires_grad_(False); return x * 2
def g(x): x.requires_grad = not x.requires_grad; return x * 2
out = []
for program in (f, g):
    for compiles in (C, D):
        h = compiles(program)
        for i in range(4): a = torch.ones(3, requires_grad=True); y = h(a); out += [a.requires_grad, y.requires_grad]
""",
"blocks_that_an_abandoned_run_leaves": """
import os
def kinds(w):
    def f(t):
        try: (t * 2).untyped_storage().nbytes()
        finally: os.write(w, b'F')
        return t * 2
    def g(t):
        try: (t * 2).untyped_storage().nbytes()
        except BaseException as e: os.write(w, type(e).__name__.encode()); raise
        return t * 2
    return f, g
out = []
for k in range(2):
    for compiles in (C, D):
        r, w = os.pipe(); os.write(w, b'_'); h = compiles(kinds(w)[k])
        for i in range(3): h(x)
        out.append(os.read(r, 999))
""",
"functionalize_leaves_no_level": """
def f(x): return torch.func.functionalize(lambda z: z.clone().add_(1))(x)
out = []
for compiles in (C, D): g = compiles(f); out += [g(torch.ones(n)) for n in (2, 3, 3)] + [torch.ones(2).requires_grad_()]
""",
# ---- state ----
"class_within_a_class": """
class M(torch.nn.Module):
    class Config: scale = 2
    def forward(self, x): return x * self.Config.scale
class A:
    class Stats: calls = 0
def f(x): A.Stats.calls += 1; return x * A.Stats.calls
c = C(M()); out = []
for v in (2, 2, 5, 7): M.Config.scale = v; out.append(c(x))
for compiles in (C, D): A.Stats.calls = 0; c = compiles(f); out += [c(x) for _ in range(4)] + [A.Stats.calls]
""",
"attributes_of_functions_of_a_class": """
class A:
    def m(self): pass
    @staticmethod
    def s(): pass
    @property
    def p(self): return 1
def count(f): f.n = getattr(f, 'n', 0) + 1; return f.n
out = []
for get in (lambda: A.m, lambda: A.s, lambda: A.p.fget):
    f = C(lambda x: x * count(get())); out += [f(x) for _ in range(4)] + [get().n]
class M(torch.nn.Module):
    def forward(self, x): return x * self.scale.k
    def scale(self): pass
f = C(M())
for v in (2, 2, 5, 7): M.scale.k = v; out.append(f(x))
""",
"attributes_of_cached_functions_and_of_classes_that_are_keys": """
import functools
@functools.lru_cache
def h(): pass
class A: n = 2
table = {A: 1}; f, g, out = C(lambda x: x * h.n), C(lambda x: x * list(table)[0].n), []
for v in (2, 2, 5, 7): h.n = A.n = v; out += [f(x), g(x)]
""",
"factory_of_a_defaultdict": """
import collections
d = collections.defaultdict(lambda: 2.); out = []
for compiles in (C, D):
    d.default_factory = lambda: 2.; f = compiles(lambda x: x * d['k'])
    for i in range(3): d.clear(); out.append(f(x))
    d.default_factory = lambda: 11.
    for i in range(3): d.clear(); out.append(f(x))
""",
"logger_by_its_name": """
import logging
def f(x):
    log = logging.getLogger('reported')
    return x * 2 if log.isEnabledFor(logging.DEBUG) else x * 3
log = logging.getLogger('reported'); c = C(f); out = []
for level in (logging.WARNING, logging.DEBUG, logging.ERROR): log.setLevel(level); out += [c(x), c(x)]
log.setLevel(logging.NOTSET)
for level in (logging.ERROR, logging.DEBUG): logging.getLogger().setLevel(level); out += [c(x), c(x)]
logging.disable(logging.CRITICAL); out += [c(x), c(x)]; logging.disable(logging.NOTSET)
""",
"run_again_after_writes_to_functions_and_classes": """
import functools, json
class Meta(type):
    def inc(c): c.n = c.__dict__.get('n', 0) + 1; return c.n
class A(metaclass=Meta): k = 1
class B(A): k = 2
def helper(x): helper.calls = getattr(helper, 'calls', 0) + 1; return x * 2
def first(x): return helper(x) + helper.calls
plain = lambda k=0: k
def default(x): plain.__defaults__ = (plain.__defaults__[0] + 1,); plain.__doc__ = 'seen'; return x * plain()
o = A()
def swap(x): o.__class__ = B if type(o) is A else A; return x * o.k
def metaclass(x): return x * A.inc()
def library(x): json.JSONEncoder.zq = getattr(json.JSONEncoder, 'zq', 0) + 1; return x * json.JSONEncoder.zq
log, table = [], {}
@functools.lru_cache(None)
def cached(k): log.append(k); table[k] = k * 10; return k
def through_cache(x): return x * cached(3) + table[3]
out = []
for f in (first, default, swap, metaclass, library, through_cache):
    g = D(f); out += [g(torch.ones(n, requires_grad=True)) for n in (3, 3, 4)]
out += [helper.calls, plain.__defaults__, type(o).__name__, A.n, json.JSONEncoder.zq, log, table]
""",
}
