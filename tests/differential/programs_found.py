"""What others found by programs of their own: state that is told by identity or lies in keys, runs that are undone, views that are made
under no_grad, errors in the middle of a call."""

PROGRAMS = {
"attribute_toggled_by_identity": """
class O: pass
o = O(); o.left, o.right = object(), object(); o.now = o.left
def f(x):
    if o.now is o.left:
        o.now = o.right
        return x * 2
    o.now = o.left
    return x * 3
c = C(f)
out = [c(x) for _ in range(8)]
""",
"closure_toggled_by_identity": """
def make():
    a, b = [1], [1]
    now = a
    def f(x):
        nonlocal now
        first = now is a
        now = b if first else a
        return x * (2 if first else 3)
    return f
c = C(make())
out = [c(x) for _ in range(8)]
""",
"argument_that_is_one_of_the_state": """
class O: pass
o = O(); o.a, o.b, o.n = [1], [1], 0
def f(x, which):
    o.n += 1
    return x * (2 if which is o.a else 3) + o.n
c = C(f)
out = [c(x, (o.a, o.b)[i % 2]) for i in range(8)]
""",
"objects_swapped": """
class V:
    def __init__(self, v): self.v = v
class O: pass
o = O(); o.a, o.b = V(2.0), V(3.0)
def f(x):
    o.a, o.b = o.b, o.a
    return x * o.a.v - o.b.v
c = C(f)
out = [c(x) for _ in range(8)]
""",
"objects_swapped_between_arguments": """
class V:
    def __init__(self, v): self.v = v
class O: pass
p, q = O(), O(); p.x, q.x = V(2.0), V(3.0)
def f(x, p, q):
    p.x, q.x = q.x, p.x
    return x * p.x.v - q.x.v
c = C(f)
out = [(c(x, p, q), p.x.v) for _ in range(8)]
""",
"list_of_objects_permuted": """
class V: pass
a, b, c3 = V(), V(), V(); L = [a, b, c3]; n = [0]
def f(x):
    L.reverse()
    if L[0] is not a: n[0] += 1
    return x * n[0]
c = C(f)
out = [c(x) for _ in range(10)]
""",
"attributes_of_keys": """
class K: pass
k = K(); k.v = 2.0
d, t, s = {k: 1}, {(k, 1): 1}, frozenset([k])
c = C(lambda x: x * list(d)[0].v + next(iter(t))[0].v + list(s)[0].v)
out = []
for v in (2.0, 5.0, 7.0):
    k.v = v; out.append(c(x))
""",
"keys_that_compare_by_attributes": """
class K:
    def __init__(self, v): self.v = v
    def __hash__(self): return 1
    def __eq__(self, other): return self.v == other.v
k = K(2); d = {k: 3.0}
c = C(lambda x: x * (10.0 if K(2) in d else 1.0))
out = []
for v in (2, 5, 2): k.v = v; out.append(c(x))
""",
"ordered_dict_with_equal_keys": """
from collections import OrderedDict
class K:
    def __init__(self, v): self.v = v
    def __hash__(self): return 7
    def __eq__(self, other): return self.v == other.v
a, b = K(2.0), K(4.0); d = OrderedDict([(a, 1), (b, 2)])
c = C(lambda x: x * d.get(K(2.0), 9))
out = []
for v, w in ((2.0, 4.0), (5.0, 4.0), (5.0, 2.0), (2.0, 2.0)):
    a.v, b.v = v, w; out.append(c(x))
""",
"array_of_objects": """
class K: pass
k = K(); k.v = 2.0; a = np.array([k, None], dtype=object)
c = C(lambda x: x * a[0].v)
out = []
for v in (2.0, 5.0): k.v = v; out.append(c(x))
""",
"order_of_module_hooks": """
m = torch.nn.Linear(2, 2)
first = m.register_forward_hook(lambda m, i, o: o * 0)
m.register_forward_hook(lambda m, i, o: o + 5)
c = C(m); out = []
with torch.no_grad():
    for k in range(3): out.append(c(x)); m._forward_hooks.move_to_end(first.id); out.append(c(x)); m._forward_hooks.move_to_end(first.id, last=False)
""",
"names_that_a_module_makes_up": """
import sys, types
m = types.ModuleType("made_up"); sys.modules["made_up"] = m; out = []
def f(x):
    from made_up import k
    return x * k * m.k
c = C(f)
for v in (2.0, 3.0):
    m.__getattr__ = lambda name, v=v: {"k": v}[name] if name == "k" else object.__getattribute__(m, name)
    out.append(c(x))
""",
"names_that_a_module_gets_later": """
import types
m = types.ModuleType("settings"); c = C(lambda x: x * getattr(m, "scale", 1.0)); out = [c(x)]
m.scale = 4.0; out.append(c(x)); del m.scale; out.append(c(x))
""",
"error_that_is_being_handled": """
import sys
c = C(lambda x: x * (2 if sys.exc_info()[0] is None else 3)); out = [c(x)]
try: 1 / 0
except ZeroDivisionError: out.append(c(x))
out.append(c(x))
""",
"anomaly_mode": """
c = C(lambda x: x * (3 if torch.is_anomaly_enabled() else 2)); out = [c(x)]
with torch.autograd.set_detect_anomaly(True): out.append(c(x))
""",
"what_is_asked_of_tensors_that_are_not_read": """
s, w = torch.ones(3), torch.nn.Parameter(torch.ones(1))
c, d = C(lambda x: x * s.shape[0]), C(lambda x: x * w * (2 if w.requires_grad else 3)); out = []
with torch.no_grad():
    for n in (3, 5, 7): s.data = torch.ones(n); w.requires_grad_(n == 5); out += [c(x), d(x)]
""",
"requires_grad_is_toggled": """
s, v, out = torch.nn.Parameter(torch.ones(3)), torch.ones(2, requires_grad=True), []
def f(x):
    s.requires_grad_(not s.requires_grad)
    return x * v
for compile in (C, D):
    c = compile(f)
    for _ in range(4): c(x); out.append(s.requires_grad)
""",
"runs_that_are_undone": """
from collections import OrderedDict
def attribute(t): t.n = getattr(t, "n", 0) + 1
cases = [(lambda: OrderedDict(a=1), lambda s: s.__setitem__("b", 2), lambda s: list(s.items())),
         (lambda: iter(range(9)), next, lambda s: s.__reduce__()[-1]),
         (lambda: torch.ones(3), attribute, lambda s: s.n),
         (lambda: bytearray(b"a"), lambda s: s.extend(b"x"), bytes),
         (lambda: np.random.seed(0), lambda s: np.random.rand(), lambda s: np.random.get_state()[2]),
         (lambda: torch.nn.Linear(1, 1), lambda s: s.register_state_dict_post_hook(lambda *a: None), lambda s: len(s._state_dict_hooks))]
out = []
for new, effect, shown in cases:
    s, v = new(), torch.ones(3, requires_grad=True)
    def f(x): effect(s); return x * v
    c = D(f)
    for _ in range(3): c(torch.ones(2, 3)); out.append(shown(s))
""",
"data_is_set_in_a_run_that_is_undone": """
p, w = torch.nn.Parameter(torch.ones(2), requires_grad=False), torch.ones(2, requires_grad=True)
def f(x):
    p.data = p.data * 2
    return x * w * p
c = D(f)
out = [(c(torch.ones(3, 2)).detach(), p.clone()) for _ in range(4)]
""",
"an_attribute_beside_one_that_is_kept": """
class O: pass
o = O(); o.n, o.q = 0, 1.0
def f(x):
    if type(o.n) is int: pass
    else: setattr(o, "z", o.q)
    o.n += 1
    return x + 1
c = C(f)
out = [(c(x), sorted(o.__dict__)) for _ in range(6)]
""",
"hooks_registered_as_they_are_needed": """
seen = []
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.a = torch.nn.Linear(2, 2); self.done = False
    def forward(self, x):
        if not self.done: self.done = True; self.a.register_forward_hook(lambda m, a, o: seen.append(o.shape))
        return self.a(x)
torch.manual_seed(0); m = M(); c = D(m)
out = [(call(torch.ones(3, 2)).detach(), len(seen)) for call in (c, c, m)]
""",
"classes_without_builtins": """
torch.manual_seed(0)
c = C(torch.nn.AdaptiveLogSoftmaxWithLoss(8, 30, [5, 12]))
out = [c(torch.ones(3, 8), torch.tensor([1, 7, 20])).loss.detach() for _ in range(3)]
""",
"operator_without_gradients": """
@torch.library.custom_op("found::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor: return x * x
c = C(lambda x: square(x).sum()); out = []
for _ in range(3):
    r = c(torch.ones(2, requires_grad=True)); out.append(r.detach())
    try: r.backward()
    except RuntimeError as e: out.append("no autograd formula" in str(e))
""",
"views_made_without_gradients": """
def f(x):
    with torch.no_grad(): return x.view(-1), x[0], x.t()
c = C(f); out = []
for _ in range(3): out += [(t.detach(), t.requires_grad, t.grad_fn is None) for t in c(torch.ones(2, 2, requires_grad=True))]
""",
"gradients_within_a_call_without": """
def f(x, w):
    with torch.enable_grad(): r = (w * 3).sum()
    return x * 2, r
c, w = D(f), torch.ones(3, requires_grad=True)
with torch.no_grad(): out = [c(torch.ones(3), w)[1].requires_grad for _ in range(4)]
""",
"a_result_that_is_an_argument_beside_its_view": """
c = C(lambda x, y: (x.view(-1) * y, x)); out = []
for _ in range(3):
    a = torch.ones(2, 2, requires_grad=True); r = c(a, a.view(-1)); out.append((r[1] is a, r[1].is_leaf))
""",
"transposed_in_place": """
def f(x): x.t_(); return x * 1
def g(x): x.t_(); return x.view(-1)
out = []
for program in (f, g):
    c = C(program)
    for _ in range(3):
        a = torch.arange(4.0).reshape(2, 2).requires_grad_() * 1
        try: out.append(c(a).detach())
        except RuntimeError as e: out.append(str(e)[:40])
        out.append((a.detach(), a.stride()))
""",
"a_view_of_a_leaf_is_written": """
def f(x, y): y.sub_(1); x[0] = 5; return x.detach()
c = C(f); out = []
for _ in range(3):
    a = torch.ones(2, 2, requires_grad=True)
    try: c(a, a.view(2, 2))
    except RuntimeError as e: out.append((str(e)[:40], a.detach().clone()))
""",
"an_error_under_no_grad": """
def f(x, y):
    with torch.no_grad(): x.data.add_(1)
    return y
c = C(f); out = []
for make in [lambda: torch.ones(4, 2)[:2], lambda: torch.ones(2, 1).expand(2, 2)] * 2:
    b = torch.ones(4, 2)
    try: c(make(), b)
    except RuntimeError: out.append("raised")
    out.append(torch.is_grad_enabled())
torch.set_grad_enabled(True)
""",
"an_activation_that_outlives_the_call": """
w, kept = torch.ones(3, requires_grad=True), {}
def f(x):
    y = x * w
    kept["y"] = y
    return y.sum()
c = C(f); out = []
import gc, weakref
seen = []
for _ in range(20): c(torch.ones(3)); seen.append(weakref.ref(kept["y"]))
gc.collect()
out = sum(r() is not None for r in seen) < 4
""",
"views_of_a_leaf_whose_elements_lie_in_one_place": """
out = []
for program in (lambda x: (x.t(), x * 2), lambda x: (x[1:],), lambda x: (x.unsqueeze(0),)):
    c = C(program)
    for _ in range(3):
        a = torch.ones(1, 3).expand(4, 3).detach().requires_grad_()
        sum((t * torch.arange(1.0, t.numel() + 1).reshape(t.shape)).sum() for t in c(a)).backward(); out.append(a.grad)
""",
"views_count_writes_with_what_they_show": """
out = []
for compile in (C, D):
    c = compile(lambda a: (a.view(-1), a + 1))
    for _ in range(3):
        a, w = torch.ones(4), torch.ones(4, requires_grad=True)
        y = (w * c(a)[0]).sum(); a.add_(1)
        try: y.backward(); out.append("no error")
        except RuntimeError as e: out.append("modified by an inplace operation" in str(e))
""",
"a_view_without_gradients_beside_another_of_its_tensor": """
def f(x, y):
    with torch.no_grad(): z = x.reshape(-1)
    return z
c = C(f); c(torch.ones(2, 2), torch.ones(1, 2)); a = torch.ones(2, 2, requires_grad=True); z = c(a, a.view(2, 2))
out = z.detach(), z.requires_grad, z.is_leaf
""",
"rolled_and_flipped_repetitions": """
programs = [lambda t, k: t.repeat(k, 1).roll(1, 0), lambda t, k: t.repeat(k, 1).flip(0), lambda t, k: t[None].expand(k, -1, -1).flatten(0, 1).roll(1, 0),
            lambda t, k: torch.cat([t.repeat(k, 1)[-1:], t.repeat(k, 1)[:-1]]), lambda t, k: t.repeat_interleave(k, 0).roll(1, 0),
            lambda t, k: torch.stack([t, t * 2]).reshape(-1, t.shape[1]).roll(k, 0), lambda t, k: torch.fft.fftshift(t.repeat(k, 1))]
out = []
for program in programs:
    for compile in (C, D):
        c = compile(program)
        for k in (4, 3, 2, 5):
            for r, n in ((5, 3), (4, 3), (7, 2)): out.append(c(torch.arange(float(r * n)).reshape(r, n), k))
""",
"size_of_a_product_of_vectors": """
def f(v, w):
    y = v @ w
    return y + y.shape[0]
out = []
for compile in (C, D):
    c = compile(f)
    for k in (4, 3, 5): out.append(c(torch.ones(3), torch.ones(3, k)))
""",
"windows_without_an_offset": """
def f(t, k):
    t = (t * 2)[k - 1:]
    return t.as_strided((t.shape[0],), (1,))
out = []
for compile in (C, D):
    c = compile(f)
    for r, n, k in ((6, 3, 2), (8, 4, 2), (5, 6, 3), (12, 4, 1), (4, 6, 2)): out.append(c(torch.arange(r * float(n)).reshape(r, n), k))
""",
"errors_under_no_grad_with_sizes_that_change": """
def f(x):
    with torch.no_grad(): return x.tril()
out = []
for compile in (C, D):
    c = compile(f)
    for sizes in ((3, 4), (5, 4), (6,), (4, 4), (7,), (7,)):
        try: out.append(c(torch.ones(sizes, requires_grad=True)))
        except RuntimeError: out.append("raised")
        out.append(torch.is_grad_enabled()); torch.set_grad_enabled(True)
""",
"indices_beyond_a_repeated_dimension": """
index = torch.tensor([0, 3, 2])
out = []
for program in (lambda t, k: t.repeat(k, 1).index_select(0, index), lambda t, k: t.expand(k, 1)[index], lambda t, k: t.repeat(k, 1)[index] * 2 + 1):
    for compile in (C, D):
        c = compile(program)
        for k in (4, 3, 2, 5, 3):
            try: out.append(c(torch.ones(1, 1), k))
            except (IndexError, RuntimeError): out.append("raised")
""",
"sizes_of_others_without_gradients": """
import torch.nn.functional as F
programs = [lambda x, y: x.expand_as(y) * 2, lambda x, y: torch.broadcast_tensors(x, y)[0] + 1, lambda x, y: torch.meshgrid(x[0], y[0], indexing="ij")[1] * 2,
            lambda x, y: F.normalize(x.expand_as(y) + y, dim=0)]
out = []
for program in programs:
    for compile in (C, D):
        c = compile(program)
        for n in (4, 3, 5):
            with torch.inference_mode(): out.append(c(torch.ones(1, 3), torch.ones(n, 3)).clone())
""",
"flipped_operands_of_libraries": """
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
linear, lstm = nn.Linear(8, 4), nn.LSTM(8, 4)
programs = [lambda x: linear(x.flip(1)), lambda x: x.flip(0) @ x.flip(1).transpose(1, 2), lambda x: torch.fft.rfft(x.flip(1), dim=-1).abs(),
            lambda x: torch.cdist(x.flip(1), x.flip(1) + 1), lambda x: lstm(x.flip(0))[0], lambda x: F.scaled_dot_product_attention(x.flip(1), x, x.flip(2)),
            lambda x: x.flip(1).sort(1)[0], lambda x: F.conv1d(x.flip(2), x[:, :, :3].flip(0)), lambda x: x.flip(1).cumsum(1)]
out = []
for program in programs:
    for compile in (C, D):
        c = compile(program)
        for b, n in ((2, 5), (3, 7), (1, 4)):
            x = torch.randn(b, n, 8, requires_grad=True); y = c(x); y.sum().backward(); out.append((y.detach(), x.grad))
""",
"rows_of_one_that_are_dense_all_the_same": """
from torch import nn
torch.manual_seed(0)
lstm = nn.LSTM(8, 4)
f = lambda x: lstm(x.transpose(1, 2).contiguous().transpose(1, 2))[0]
out = []
for compile in (C, D):
    c = compile(f)
    for x in (torch.randn(2, 1, 8), torch.randn(2, 1, 16)[..., ::2], torch.randn(2, 1, 8), torch.randn(2, 1, 24)[..., ::3]): out.append(c(x).detach())
""",
"sizes_that_the_first_call_stores": """
import json
log, d = [], {}
class O: pass
o = O()
def f(x): log.append(x.size(0)); return x * 2
def g(x): d["n"] = x.size(0); return x * 2
def h(x): o.n = x.size(0), [x.size(1)]; return x * 2
out = []
for program in (f, g, h):
    c = D(program)
    for n in (2, 3, 5):
        c(torch.ones(n, 4)); out.append(json.dumps([log, d, vars(o)]))
""",
"a_backward_that_keeps_beside_one_that_does_not": """
from torch import nn
m = nn.Linear(4, 4)
torch.manual_seed(0); m.load_state_dict({k: torch.randn_like(v) for k, v in m.state_dict().items()})
def f(x, y): return (m.weight * x).tanh().sum(), y.sigmoid().mean()
out = []
for compile in (C, D):
    c = compile(f)
    for _ in range(3):
        x, y = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)
        a, b = c(x, y); a.backward(retain_graph=True); b.backward(); a.backward(); out.append((x.grad, y.grad))
        try: a.backward(); out.append("again")
        except RuntimeError: out.append("raised")
""",
"a_rounding_that_the_program_asks_for": """
programs = [lambda x: x - x.bfloat16().float(), lambda x: x.to(torch.bfloat16).reshape(-1).double(), lambda x: (x * 3).bfloat16().float() * 7 - x * 21,
            lambda x: x - x.half().float()]
torch.manual_seed(0)
out = []
for program in programs:
    for compile in (C, D):
        c = compile(program)
        for n in (64, 7):
            x = torch.randn(n, requires_grad=True); y = c(x); y.sum().backward(); out.append((y.detach(), x.grad))
""",
"a_step_that_says_how_many": """
out = []
for compile in (C, D):
    c = compile(lambda x, v: torch.arange(0, 3, v).sum() * x)
    for v in (0.2, 0.5, 1.0, 0.1, 0.5): out.append(c(torch.ones(3), v))
""",
"first_calls_that_have_effects_of_all_kinds": """
import contextvars, enum, functools
var, var2 = contextvars.ContextVar("v", default=1), contextvars.ContextVar("w")
class K: pass
class A: pass
class B: pass
def g(a, b=1): return a + b
ob, array, table, calls = A(), np.zeros(2), {}, []
@functools.lru_cache(None)
def cached(n): calls.append(n); return n
def contextual(x): var.set(var.get() + x.shape[0]); return x * var.get()
def contextual2(x): var2.set(x.shape[0]); return x * var2.get()
def numbered(x): array[0] += x.shape[0]; return x * array[0]
def of_class(x): K.n = getattr(K, "n", 0) + 1; return x * K.n
def deleted(x):
    if hasattr(K, "m"): del K.m
    K.m = x.shape[0]; return x * K.m
def of_function(x): g.n = getattr(g, "n", 0) + x.shape[0]; return x * g.n
def of_defaults(x): g.__defaults__ = (x.shape[0],); return x * g(1)
def of_object(x): ob.__class__ = B if type(ob) is A else A; return x * (2 if type(ob) is A else 3)
def keyed(x): n = x.shape[0]; table[n] = table.get(n, 0) + 1; table["z"] = table.get("z", 0) + 1; return x * 2
def remembered(x): cached(x.shape[0]); return x * len(calls)
def precise(x):
    torch.set_float32_matmul_precision("high" if torch.get_float32_matmul_precision() == "highest" else "highest")
    return x * (2 if torch.get_float32_matmul_precision() == "high" else 3)
out = []
for program in (contextual, contextual2, numbered, of_class, deleted, of_function, of_defaults, of_object, keyed, remembered, precise):
    c = D(program)
    for n in (3, 5, 2, 5, 1): out.append((c(torch.ones(n, 2)), list(table.items()), list(calls), float(array[0]), torch.get_float32_matmul_precision()))
torch.set_float32_matmul_precision("highest")
""",
"whole_steps_with_sizes_that_change": """
from torch import nn
w = nn.Parameter(torch.ones(4)); optimizer = torch.optim.SGD([w], 0.1)
def f(x): (x * w).sum().backward(); optimizer.step(); optimizer.zero_grad(); return x * w.detach()
c, out = D(f), []
for n in (3, 5, 2, 5, 1): out.append((c(torch.ones(n, 4)), w.detach().clone()))
""",
"batches_from_outside": """
it = iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(40.).reshape(10, 4)), batch_size=1))
def f(x): return x + next(it)[0]
c, out = D(f), []
for n in (3, 5, 2, 5, 1): out.append((c(torch.ones(n, 4)), it._num_yielded))
""",
"sizes_beside_other_kinds_of_numbers": """
import enum, fractions
class I(enum.IntEnum): A = 3; B = 5
class Odd(int):
    def __radd__(self, other): return "odd"
kinds = []
def f(x):
    n = x.shape[0]
    kinds.append([I.A in x.shape, n == I.A, I.B == n, type(n + np.int64(3)).__name__, type(np.float32(2) * n).__name__, n + Odd(1), n * "ab",
                  fractions.Fraction(1, 2) * n, n + 1j, n < np.int64(4), n + True])
    return x * (I.A if n == I.A else I.B)
c, out = D(f), []
for n in (3, 5, 2, 5, 3): out.append((c(torch.ones(n, 4)), list(kinds)))
""",
"attributes_of_partial_objects": """
import functools
out = []
for compile in (C, D):
    p = functools.partial(int)
    def f(x): p.n = getattr(p, "n", 0) + 1; return x * p.n
    c = compile(f)
    for n in (3, 5, 2): out.append((c(torch.ones(n)), p.n))
    p.n = 7; out.append((c(torch.ones(2)), p.n))
""",
"lists_within_themselves": """
a = []
def f(x): a.append(a); a.append(x.shape[0]); return x * len(a)
c, out = D(f), []
for n in (3, 5, 2, 5): out.append((c(torch.ones(n)), [t is a for t in a[::2]], a[1::2]))
""",
"results_that_no_version_makes": """
import collections
class Slotted: __slots__ = ("a",)
def generate(x):
    for i in range(3): yield x * i
calls, out = [], []
programs = (lambda x: generate(x), lambda x: [x + 1, generate(x)], lambda x: iter([x, x]), lambda x: map(torch.sin, [x, x]),
            lambda x: (x * 2, zip([x], [x])), lambda x: collections.deque([x]), lambda x: Slotted(), lambda x: {"a": enumerate([x])})
for program in programs:
    for compile in (C, D):
        def f(x): calls.append(1); return program(x)
        c = compile(f)
        for n in (2, 3, 4, 5):
            r = c(torch.ones(n))
            out.append((type(r).__name__, len(calls), [list(t) for t in r if hasattr(t, "__next__")] if type(r) in (list, tuple) else
                        list(r) if hasattr(r, "__next__") else None))
""",
"items_of_arguments_in_another_order": """
from collections import OrderedDict
def to_end(d, x): d.move_to_end("a"); return x + 1
def to_front(d, x): d.move_to_end("c", last=False); return x + 1
def again(d, x): d["a"] = d.pop("a"); return x + 1
def more(d, x): d["p"] = x; d["q"] = 2; return x + 1
def moved_more(d, x): d["p"] = x; d["q"] = 2; d["p"] = d.pop("p"); return x + 1
def taken(d, x): del d["b"]; return x + len(d)
out = []
for kind in (dict, OrderedDict):
    for program in (to_end, to_front, again, more, moved_more, taken):
        if kind is dict and program in (to_end, to_front): continue
        for compile in (C, D):
            c = compile(program)
            for n in (2, 2, 3, 4):
                d = kind(a=1, b=2, c=3)
                out.append((c(d, torch.ones(n)), list(d.items())))
""",
"errors_of_what_nobody_reads": """
def selected(x, i): x.index_select(0, i); return x + 1
def indexed(x, i): x[i]; return x + 1
def gathered(x, i): return torch.zeros_like(torch.gather(x, 0, i)) + x[:1]
def embedded(x, i): torch.nn.functional.embedding(i, x[:, None]); return x * 2
def put(x, i): x.index_put((i,), torch.ones(1)); return x + 1
def scattered(x, i): y = x.clone(); y.scatter_(0, i, 5.); y.zero_(); return y
def filled(x, i): torch.index_fill(x, 0, i, 1.); return x + 1
def copied(x, i): torch.index_copy(x, 0, i, torch.ones(1)); return x + 1
def taken(x, i): torch.take(x, i); return x + 1
def reduced(x, i): x.scatter_reduce(0, i, torch.ones(1), "sum"); return x + 1
out = []
for program in (selected, indexed, gathered, embedded, put, scattered, filled, copied, taken, reduced):
    for compile in (C, D):
        c = compile(program)
        for i in (0, 1, 2, 9, 1, -9, 0):
            y = torch.arange(3.)
            try: out.append((program.__name__, i, c(y, torch.tensor([i])), y))
            except (IndexError, RuntimeError): out.append((program.__name__, i, "error", y))
""",
"gradients_of_arguments_within": """
w = torch.ones(2, requires_grad=True)
def simple(x): x.sum().backward(); return x * 2
def both(x): (x * w).sum().backward(); return x * 2
def held(x): (w * 2).sum().backward(); return x * 2
def reads(x):
    (x * w).sum().backward()
    if x.sum().item() > 0: x = x * 1
    return x * 2
def given(x): return x * (x.grad if x.grad is not None else 3)
def cleared(x): x.grad = None; (x * x).sum().backward(); return x.grad * 1
out = []
for program in (simple, both, held, reads, given, cleared):
    for compile in (C, D):
        c = compile(program)
        for n in (3, 3, 4, 2, 3):
            for has in (False, True):
                w.grad = None; v = torch.arange(2. * n).reshape(n, 2).requires_grad_()
                if has: v.grad = torch.ones(n, 2)
                out.append((program.__name__, c(v).detach(), v.grad, w.grad))
""",
"sizes_as_keys_in_try": """
import contextlib
table = {3: 1., 4: 2.}
def looked_up(x):
    try: return x * table[x.shape[0]]
    except Exception as e: return type(e).__name__
def got(x):
    try: return x * table.get(x.shape[0], 7.)
    except TypeError: return x * 0
def among(x):
    try: return x * (2 if x.shape[0] in {2, 3} else 3)
    except TypeError: return x * 0
def suppressed(x):
    with contextlib.suppress(Exception): return x * table[x.shape[0]]
    return x * 5
def unique(x):
    try: x.unique(dim=2)
    except Exception as e: return type(e).__name__
out = []
for program in (looked_up, got, among, suppressed, unique):
    for compile in (C, D):
        c = compile(program)
        for n in (3, 3, 4, 5, 2, 3): out.append((program.__name__, n, c(torch.ones(n, 2))))
""",
"data_of_arguments_assigned": """
def doubled(x): x.data = x.data * 2; return x + 1
def written(x): x.mul_(2); x.data = x.data * 1; return x * 2
def sinned(x): x[0].mul_(2); x.data = x + 1; return x
def through_set(x):
    with torch.no_grad(): x.set_(x * 2)
    return x + 1
out = []
for program in (doubled, written, sinned, through_set):
    for compile in (C, D):
        c = compile(program)
        for n in (2, 2, 3, 4, 2, 5):
            v = torch.ones(n, 2); alias = v.detach()
            out.append((program.__name__, n, c(v), v, alias))
""",
"errors_of_sizes_that_change": """
import torch.nn.functional as F
programs = (lambda x: x.split([1, 2]), lambda x: F.layer_norm(x.t(), (3,)), lambda x: F.rms_norm(x.t(), (3,)), lambda x: F.glu(torch.cat([x, x[:1]])),
            lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=torch.ones(3, 3) > 0),
            lambda x: torch.zeros(5, 4).scatter(0, torch.zeros(3, 4, dtype=torch.long), x), lambda x: torch.slice_scatter(torch.zeros(4, 4), x, 0, 0, 3),
            lambda x: F.cross_entropy(x.t(), torch.zeros(4, dtype=torch.long), weight=torch.ones(3)), lambda x: x.expand(3, 4), lambda x: x.view(3, -1),
            lambda x: x.unflatten(0, (3, 1)), lambda x: torch.cat([x, torch.ones(3, 1)], 1), lambda x: x.gather(1, torch.zeros(3, 2, dtype=torch.long)))
out = []
for i, program in enumerate(programs):
    for compile in (C, D):
        c = compile(program)
        for n in (3, 3, 4, 5, 2, 6, 1, 3):
            try: out.append((i, n, c(torch.arange(4. * n).reshape(n, 4))))
            except (RuntimeError, IndexError, ValueError): out.append((i, n, "error"))
""",
"attributes_that_results_have": """
import collections, random
from types import SimpleNamespace
def noted(x): d = collections.OrderedDict(a=x); d.note = 7; return d
def marked(x): x.bar = 3; return x + 1
out = []
for compile in (C, D):
    c = compile(noted)
    for n in (3, 3, 4): out.append(getattr(c(torch.ones(n)), "note", None))
    c = compile(marked)
    for n in (3, 3, 4): v = torch.ones(n); out.append((c(v), getattr(v, "bar", None)))
    s = SimpleNamespace(numbers=iter(range(100)), rd=random.Random(0))
    c = compile(lambda x: x * s.rd.random())
    for n in (3, 3, 4, 5): out.append(c(torch.ones(n)))
""",
"views_with_code_beside_other_results": """
from torch import nn
class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a): return a.view_as(a)
    @staticmethod
    def backward(ctx, g): return -g
flat = nn.Flatten(); flat.register_full_backward_hook(lambda m, gi, go: tuple(3 * t for t in gi))
def reversed_(x): y = Reversed.apply(x); return y, y.sum()
def flattened(x): y = flat(x); return y, (2 * y).sum()
def hooked(x): y = x.view(-1); y.register_hook(lambda g: 5 * g); return y, (2 * y).sum()
def of_a_result(x): h = x.exp(); y = Reversed.apply(h); return h, y, y.sum()
out = []
for program in (reversed_, flattened, hooked, of_a_result):
    for compile in (C, D):
        c = compile(program)
        for n in (2, 2, 3, 2):
            v = torch.ones(n, 2, requires_grad=True); results = c(v)
            sum(t.sum() for t in results).backward(); out.append((program.__name__, n, v.grad))
""",
"branches_on_what_a_tensor_is": """
from torch import nn
G = torch.ones(2)
def parameter(x): return x * 2 if isinstance(x, nn.Parameter) else x * 4
def plain(x): return x * 2 if type(x) is torch.Tensor else x * 4
def leaf(x): return x * 2 if x.is_leaf else x * 3
def hooks(x): return x * 2 if x._backward_hooks else x * 3
def itself(x): return x * 2 if x is G else x * 3
hooked = torch.ones(2, requires_grad=True); hooked.register_hook(lambda g: g)
make = (lambda n: torch.ones(n, requires_grad=True), lambda n: nn.Parameter(torch.ones(n)), lambda n: torch.ones(n, requires_grad=True) * 1, torch.ones,
        lambda n: hooked, lambda n: G)
out = []
for program in (parameter, plain, leaf, hooks, itself):
    for compile in (C, D):
        for order in ((0, 1, 0, 1), (0, 2, 2, 0), (3, 5, 3, 5), (0, 0, 4, 0)):
            c = compile(program)
            for i, kind in enumerate(order): out.append((program.__name__, order, i, c(make[kind](i + 2)).detach()[0]))
            for i, kind in enumerate(order): out.append((program.__name__, order, i, c(make[kind](2)).detach()[0]))
""",
"lists_written_in_place_are_noticed": """
def doubled(x): torch._foreach_mul_([x], 2.)
def added(x): torch._foreach_add_([x, torch.zeros(3)], 1.)
out = []
for program in (doubled, added):
    for compile in (C, D):
        c = compile(program)
        for n in (2, 3, 4, 5, 5):
            w = torch.ones(n, requires_grad=True); v = torch.ones(n); y = (w * v).sum(); c(v)
            try: y.backward(); out.append((n, v._version, w.grad))
            except RuntimeError: out.append((n, v._version, "error"))
""",
"writes_outside_of_what_is_given": """
def f(v): w = v.as_strided((4,), (1,), 2); w.add_(1); return w
def gapped(v): v.add_(1); return torch.as_strided_copy(v, (3,), (2,)), torch.as_strided_scatter(v, torch.zeros(2, dtype=v.dtype), (2,), (4,))
out = []
for compile in (C, D):
    c = compile(f)
    for n in (4, 4, 5): memory = torch.zeros(9); out.append((c(memory[:n]), memory))
    c = compile(gapped)
    for n in (10, 10, 12): out.append(c(torch.arange(n)[::2]))
""",
"circular_padding_of_sizes_that_change": """
import torch.nn.functional as F
out = []
for compile in (C, D):
    c = compile(lambda v: F.pad(v, (1, 1, 1, 1), mode='circular'))
    for i in range(4):
        v = torch.arange((1. + i) * (2 + i) * (3 + i) * (3 + 2 * i)).reshape(1 + i, 2 + i, 3 + i, 3 + 2 * i).requires_grad_()
        y = c(v); y.square().sum().backward(); out.append((y, v.grad))
""",
"results_that_the_loss_leaves_out": """
def two(w, a, b): return w * a, (w * b).exp()
def scores(w, a, b): s = (w * a).masked_fill(a > 1, float('-inf')); return s, torch.softmax(s, -1), w.log()
out = []
for program in (two, scores):
    for compile in (C, D):
        c = compile(program)
        for n in (2, 2, 3, 2):
            for used in range(len(program(torch.ones(2), torch.ones(2), torch.ones(2)))):
                w = torch.zeros(n, requires_grad=True); a, b = torch.full((n,), float('inf')), torch.ones(n)
                if program is scores: a = torch.arange(1., n + 1)
                c(w, a, b)[used].sum().backward(); out.append((program.__name__, n, used, w.grad))
""",
"weights_written_between_the_backwards_of_two_heads": """
from torch import nn
torch.manual_seed(0)
make = lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))
out = []
for compile in (C, D):
    a, b = make(), make(); step = torch.optim.SGD(b.parameters(), 0.1)
    c = compile(lambda v: (a(v), b(v)))
    for n in (1, 1, 2, 1):
        p, q = c(torch.ones(n, 2)); q.sum().backward(); step.step(); p.sum().backward(); out.append([t.grad for t in (*a.parameters(), *b.parameters())])
    c = compile(a)
    for n in (1, 1, 2, 1):
        y = c(torch.ones(n, 2))
        with torch.no_grad(): a[0].weight.mul_(1.1)
        y.sum().backward(inputs=[a[2].weight]); out.append(a[2].weight.grad.clone())
""",
"hooks_of_leaves_and_gradients_of_gradients": """
out = []
for compile in (C, D):
    w = torch.tensor(2., requires_grad=True); c = compile(lambda w: w * w * w)
    for i in range(4):
        if i == 1: w.register_hook(lambda g: g * .5)
        if i == 2: w.register_post_accumulate_grad_hook(lambda p: out.append(p.grad.clone()))
        g, = torch.autograd.grad(c(w), w, create_graph=True); g.backward(); out.append((g, w.grad)); w.grad = None
        c(w).backward(create_graph=True); out.append(w.grad.detach().clone()); w.grad = None
""",
}
