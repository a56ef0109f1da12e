"""What a program is handed or reaches without naming it, what custom functions keep, and runs that are made again."""

PROGRAMS = {
# ---- modules by other ways than their names ----
"module_that_a_function_gives": """
import types
m = types.ModuleType('m'); m.v = 0
def get(): return m
def write(x): get().v += 1; return x * get().v
f = C(write); out = [f(x) for _ in range(4)] + [m.v]; m.v = 0; g = C(lambda x: x * get().v); out += [g(x), g(x)]; m.v = 3; out += [g(x)]
""",
"module_that_importlib_gives": """
import importlib, sys, types
m = sys.modules['handed'] = types.ModuleType('handed'); m.v = 1
f = C(lambda x: x * importlib.import_module('handed').v); out = [f(x), f(x)]; m.v = 2; out += [f(x), f(x)]
""",
"module_in_a_comprehension_and_an_argument": """
import types
m = types.ModuleType('m'); m.v = 1; m.l = [1]
def helper(x, q): q.v += 1; q.l.append(2); return x * q.v + len(q.l)
f = C(lambda x: x * sum(q.v for q in [m])); out = [f(x), f(x)]; m.v = 2; out += [f(x)]
g = C(lambda x: helper(x, m)); out += [g(x) for _ in range(4)] + [m.v, m.l]
""",
"attribute_of_a_module_by_a_computed_name": """
import types
m = types.ModuleType('m'); m.count = 0; name = 'count'
def write(x): setattr(m, name, getattr(m, name) + 1); return x * getattr(m, name)
f = C(write); out = [f(x) for _ in range(5)] + [m.count]
g = C(lambda x: x * getattr(m, name) + len(vars(m))); out += [g(x), g(x)]; m.count = 7; out += [g(x)]; m.more = 1; out += [g(x)]
""",
"new_attribute_of_a_module_by_a_computed_name": """
import types
m = types.ModuleType('m'); names = ['a']
def write(x): setattr(m, names[0], getattr(m, names[0], 0) + 1); return x * getattr(m, names[0])
f = C(write); out = [f(x) for _ in range(4)] + [m.a]; del m.a; out += [f(x), f(x), m.a]
""",
"attribute_of_a_library_class": """
torch.nn.Linear.k = 1; f = C(lambda x: x * torch.nn.Linear.k); out = [f(x), f(x)]; torch.nn.Linear.k = 2; out += [f(x)]
""",
"arguments_are_checked": """
import torch.distributions as D
def call():
    try: return f(x)
    except ValueError: return 'ValueError'
f = C(lambda x: D.Normal(x, -x).loc); D.Distribution.set_default_validate_args(False); out = [call(), call()]
D.Distribution.set_default_validate_args(True); out += [call()]; D.Distribution.set_default_validate_args(False); out += [call()]
""",
"containers_on_a_tensor_that_is_given": """
q = torch.ones(1); q.l = []; q.d = {'k': 1}
def write(x, q): q.l.append(1); return x * len(q.l)
f = C(write); out = [f(x, q) for _ in range(4)] + [q.l]
g = C(lambda x, q: x * q.d['k'] * len(q.l)); out += [g(x, q), g(x, q)]; q.d['k'] = 2; out += [g(x, q)]; q.l.clear(); out += [g(x, q)]
""",
# ---- runs that raise, and runs that are made again ----
"hook_that_raises_once": """
n = [0]
def h(m, i, o):
    n[0] += 1
    if n[0] == 3: raise ValueError('third')
m = torch.nn.Linear(2, 2); m.register_forward_hook(h); f = C(m); out = []
for _ in range(5):
    try: out.append(tuple(f(x).shape))
    except ValueError as e: out.append(str(e))
out += n
""",
"function_under_vmap_that_raises": """
log = []
def tick(r):
    log.append(1)
    if len(log) == 3: raise ValueError('third')
    return r * 2
f = C(lambda x: torch.vmap(tick)(x)); out = []
for _ in range(5):
    try: out.append(f(x))
    except ValueError as e: out.append(str(e))
out += [len(log)]
""",
"steps_of_optimizers": """
out = []
for make in (lambda p: torch.optim.Adamax([p], lr=.1, foreach=True), lambda p: torch.optim.Adam([p], lr=.1, capturable=True)):
    p = torch.nn.Parameter(torch.ones(2)); o = make(p)
    def step(x): o.zero_grad(); (p * x).sum().backward(); o.step(); return p.detach().clone()
    f = C(step)
    for _ in range(4):
        try: out.append(f(x))
        except AssertionError: out.append('AssertionError')
""",
"numpy_arrays_written_with_changing_sizes": """
a = np.zeros(3); b = np.arange(4.)
def f(x): a[0] += 1; return x * float(a[0])
def g(x): np.add(b, 1, out=b); return x * torch.from_numpy(b).float()
F, G = D(f), D(g); out = [F(torch.ones(2, requires_grad=True)).sum() for _ in range(3)] + [a.tolist()]
out += [G(torch.ones(4)) for _ in range(3)] + [b.tolist()]
""",
"classes_written_with_changing_sizes": """
import functools
class A:
    k = n = 0
    def __repr__(s): return f'R{A.k}'
    @functools.cached_property
    def p(s): A.n += 1; return A.n
a = A()
def f(x): b = A(); A.k += 1; return x * 2, repr(b)
F, G = D(f), D(lambda x: x * a.p); out = [F(torch.ones(4, requires_grad=True))[1] for _ in range(3)] + [A.k]
out += [G(torch.ones(2, requires_grad=True)).sum() for _ in range(3)] + [A.n]
""",
"hooks_registered_with_changing_sizes": """
m = torch.nn.Linear(4, 4); n = []
def f(x): m.register_forward_hook(lambda *a: n.append(1)); return m(x).shape[0]
F = D(f); out = [F(torch.ones(2, 4)) for _ in range(3)] + [len(n), len(m._forward_hooks)]
""",
"attribute_of_a_given_tensor_with_changing_sizes": """
def f(x, q): q.v += 1; return x * q.v
q = torch.ones(1); q.v = 1; F = D(f); out = [F(x, q) for _ in range(3)] + [q.v]
""",
"gradients_left_off_with_changing_sizes": """
def f(x): y = x * 2; torch.set_grad_enabled(False); return y
F = D(f); out = []
for _ in range(3):
    torch.set_grad_enabled(True); y = F(torch.ones(3, requires_grad=True)); out += [torch.is_grad_enabled(), y.requires_grad]
""",
# ---- values that decide sizes ----
"counts_that_add_up_to_a_size": """
torch.manual_seed(0); m = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10]); f = C(m); out = []
with torch.no_grad():
    for i in range(12): out.append(f(torch.randn(6, 8), torch.randint(0, 20, (6,))).loss)
""",
# ---- gradients ----
"view_of_a_chunk_whose_base_is_written": """
def f(x): y = x * 1; a, b = y.chunk(2); y.mul_(2); return a, y
F = C(f); out = []
for _ in range(3): a, y = F(torch.ones(4, requires_grad=True)); y.sum().backward(); out += [a.tolist(), y.requires_grad]
""",
"data_replaced_before_the_backward": """
f = C(lambda x, y: x * y)
def run(new):
    a, b = torch.full((8,), 2.).requires_grad_(), torch.ones(8, requires_grad=True); r = f(a, b).sum(); a.data = new(a)
    r.backward(); return b.grad
out = [run(lambda a: a.data), run(lambda a: a.data), run(lambda a: torch.ones(1).expand(8)), run(lambda a: a.data[::1] * 3)]
def turned():
    a, b = torch.arange(4.).view(2, 2).requires_grad_(), torch.ones(2, 2, requires_grad=True); r = f(a, b).sum()
    a.data = a.data.t().contiguous().t(); r.backward(); return b.grad
out += [turned(), turned(), turned()]
""",
"backward_within_a_program_with_a_checkpoint": """
from torch.utils.checkpoint import checkpoint
n = [0]
def body(a): n[0] += 1; return a * a
out = []
for fn in (lambda x: checkpoint(lambda a: a * a, x, use_reentrant=False).sum().backward(), lambda x: checkpoint(body, x, use_reentrant=False).sum().backward(),
           lambda x: checkpoint(lambda a: a * a, x, use_reentrant=True).sum().backward()):
    f = C(fn)
    for _ in range(4): p = torch.ones(1, requires_grad=True); f(p); out.append(p.grad)
out += n
""",
"gradients_that_are_one_gradient_add_up": """
out = []
for fn in (lambda p, q: p.view(-1) + q.view(-1), lambda p, q: p.t() + q.t(), lambda p, q: torch.stack([p, q]).sum(0)):
    f = C(fn)
    for _ in range(3):
        p, q = (torch.ones(2, 2, requires_grad=True) for _ in range(2))
        for _ in range(2): f(p, q).sum().backward()
        out += [p.grad, q.grad]
""",
"custom_functions_that_use_their_context_up": """
class Free(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.x = x; ctx.l = [x]; return x * x
    @staticmethod
    def backward(ctx, g): y = ctx.x; ctx.x = None; return 2 * y * g
class Pop(Free):
    @staticmethod
    def backward(ctx, g): return 2 * ctx.l.pop() * g
class Count(Free):
    @staticmethod
    def forward(ctx, x): ctx.n = 0; return x * 2
    @staticmethod
    def backward(ctx, g): ctx.n += 1; return g * ctx.n
out = []
for k in (Free, Pop, Count):
    f = C(lambda x: k.apply(x))
    for _ in range(3): p = torch.ones(1, requires_grad=True); f(p).sum().backward(); out.append(p.grad)
p = torch.ones(1, requires_grad=True); l = f(p).sum(); l.backward(retain_graph=True); l.backward(); out.append(p.grad)
""",
"custom_function_that_writes_an_array": """
hits = np.zeros(1)
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): hits[0] += 1; return g * 2
f = C(lambda x: A.apply(x)); out = []
for _ in range(4): p = torch.ones(1, requires_grad=True); f(p).sum().backward(); out += [hits[0].item(), p.grad]
""",
# ---- numbers ----
"deviations_of_equal_elements": """
out = []
for fn in (lambda x: x.std(-1), lambda x: x.var(-1), lambda x: (x.std(-1) == 0).float(), lambda x: torch.std_mean(x, -1)[1]):
    for n in (7, 64, 1000):
        f = C(fn)
        for v in (3.3, 100.8, 1235.26, 100001.7): out.append(f(torch.full((2, n), v)))
""",
"logarithms_of_powers_of_ten": """
t = torch.tensor([10. ** k for k in range(-30, 31)]); f = C(lambda t: torch.floor(torch.log10(t)) - torch.log10(t)); f(t); out = [f(t)]
""",
}
