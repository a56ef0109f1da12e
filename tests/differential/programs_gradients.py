"""Autograd: modes, leaves, hooks, backward inside and outside, own functions, checkpoints, anomalies."""

PROGRAMS = {
"backward_through_compiled": """
w = torch.tensor([2.0, 3.0], requires_grad=True); f = C(lambda x: (x * w).sum()); out = []
for k in range(4): f(x * k).backward(); out.append(w.grad.clone())
""",
"gradient_of_argument": """
f = C(lambda x: (x ** 2).sum() + x[0]); out = []
for n in (2, 3, 2): a = torch.arange(float(n)).requires_grad_(); f(a).backward(); out.append(a.grad)
""",
"requires_grad_switched": """
w = torch.ones(2, requires_grad=True); f = C(lambda x: x * w); out = [f(x).requires_grad]; w.requires_grad_(False); out += [f(x).requires_grad]; w.requires_grad_(True); out += [f(x).requires_grad, f(x).grad_fn is None]
""",
"no_grad_outside": """
w = torch.ones(2, requires_grad=True); f = C(lambda x: (x * w, torch.is_grad_enabled())); out = [f(x)]
with torch.no_grad(): out += [f(x)]
with torch.inference_mode(): out += [f(x), f(x)[0].is_inference()]
out += [f(x)]; torch.set_grad_enabled(False); out += [f(x)]
""",
"grad_mode_set_inside": """
w = torch.ones(2, requires_grad=True)
def f(x, on): torch.set_grad_enabled(on); return x * w
g = C(f); out = []
for on in (True, False, True, False): r = g(x, on); out += [r.requires_grad, torch.is_grad_enabled()]
""",
"no_grad_block_inside": """
w = torch.ones(2, requires_grad=True)
def f(x):
    with torch.no_grad(): a = x * w
    b = x * w
    with torch.no_grad():
        with torch.enable_grad(): c = x * w
    return a, b, c
g = C(f); g(x); out = g(x), g(x * 2), torch.is_grad_enabled()
""",
"inference_mode_inside": """
w = torch.ones(2, requires_grad=True)
def f(x):
    with torch.inference_mode(): y = x * w
    return y, y.is_inference()
g = C(f); out = g(x), g(x), g(torch.ones(3)[:2])
""",
"detach_shares_memory": """
f = C(lambda x: x.detach()); a = torch.ones(2, requires_grad=True); f(a); r = f(a); r.add_(1); out = a.detach().clone(), r.requires_grad, r.data_ptr() == a.data_ptr()
""",
"detach_in_place_inside": """
def f(x): y = x * 2; y.detach_(); return y, y.is_leaf
g = C(f); a = torch.ones(2, requires_grad=True); out = g(a), g(a), g(x)
""",
"leaf_in_place_raises": """
def f(w):
    try: w.add_(1)
    except RuntimeError: return 'RuntimeError'
    return w
g = C(f); out = g(torch.ones(2)), g(torch.ones(2, requires_grad=True)), g(torch.ones(2))
with torch.no_grad(): out += (g(torch.ones(2, requires_grad=True)),)
""",
"backward_inside": """
w = torch.ones(2, requires_grad=True)
def f(x): (x * w * w).sum().backward(); return w.grad
g = C(f); out = []
for k in range(4): r = g(x * k); out += [r.clone(), r is w.grad]
""",
"autograd_grad_inside": """
def f(x): y = x.detach().requires_grad_(); s = (y ** 3).sum(); g, = torch.autograd.grad(s, y, create_graph=True); return g, torch.autograd.grad(g.sum(), y)[0]
g = C(f); out = g(x), g(x * 2), g(torch.arange(3.0))
""",
"double_backward_outside": """
f = C(lambda a: (a ** 3).sum()); out = []
for k in (1.0, 2.0): a = torch.tensor([k, 3.0], requires_grad=True); g, = torch.autograd.grad(f(a), a, create_graph=True); out += [g.detach(), torch.autograd.grad(g.sum(), a)[0]]
""",
"retain_graph_twice": """
f = C(lambda a: (a * a).sum()); a = torch.tensor([1.0, 2.0], requires_grad=True); f(a); s = f(a); s.backward(retain_graph=True); s.backward(); out = [a.grad.clone()]
try: s.backward(); out.append('none')
except RuntimeError: out.append('RuntimeError')
""",
"saved_tensor_modified_raises": """
f = C(lambda a, b: (a * b).sum()); out = []
for _ in range(3):
    a = torch.ones(2, requires_grad=True); b = torch.ones(2); s = f(a, b); b.add_(1)
    try: s.backward(); out.append(a.grad)
    except RuntimeError: out.append('RuntimeError')
""",
"retain_grad_inside": """
def f(a): y = a * 2; y.retain_grad(); return (y * y).sum(), y
g = C(f); out = []
for k in (1.0, 2.0, 3.0): a = torch.full((2,), k, requires_grad=True); s, y = g(a); s.backward(); out += [y.grad, y.retains_grad, a.grad]
""",
"tensor_hook_outside": """
log = []; w = torch.ones(2, requires_grad=True); f = C(lambda x: (x * w).sum()); f(x).backward(); h = w.register_hook(lambda g: log.append(g.sum().item()) or g * 10); f(x).backward(); f(x).backward(); h.remove(); f(x).backward(); out = log, w.grad
""",
"tensor_hook_inside": """
log = []
def f(a): y = a * 2; y.register_hook(lambda g: log.append(g.clone())); return (y * y).sum()
g = C(f); out = []
for k in (1.0, 2.0, 3.0): a = torch.full((2,), k, requires_grad=True); g(a).backward(); out.append(a.grad)
out.append(log)
""",
"post_accumulate_hook": """
n = []; w = torch.ones(2, requires_grad=True); w.register_post_accumulate_grad_hook(lambda p: n.append(p.grad.clone())); f = C(lambda x: (x * w).sum()); [f(x * k).backward() for k in range(3)]; out = n
""",
"hook_on_result": """
f = C(lambda a: a * 2); out = []
for k in (1.0, 2.0): a = torch.full((2,), k, requires_grad=True); y = f(a); y.register_hook(lambda g: g * 5); y.sum().backward(); out.append(a.grad)
""",
"grad_attribute_read_inside": """
w = torch.ones(2, requires_grad=True); f = C(lambda x: x if w.grad is None else x * w.grad); out = [f(x)]; w.grad = torch.full((2,), 2.0); out += [f(x)]; w.grad.fill_(3); out += [f(x)]; w.grad = None; out += [f(x)]
""",
"grad_zeroed_inside": """
w = torch.ones(2, requires_grad=True)
def f(x):
    if w.grad is not None: w.grad.zero_()
    return (x * w).sum()
g = C(f); out = []
for k in range(4): g(x * k).backward(); out.append(w.grad.clone())
""",
"custom_function": """
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, s): ctx.save_for_backward(a); ctx.s = s; return a * s
    @staticmethod
    def backward(ctx, g): return g * ctx.s * 100, None
f = C(lambda a, s: A.apply(a, s).sum()); out = []
for s in (1, 2, 3.5): a = torch.ones(2, requires_grad=True); f(a, s).backward(); out.append(a.grad)
""",
"custom_function_backward_replaced": """
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a): return a * 2
    @staticmethod
    def backward(ctx, g): return g * 3
f = C(lambda a: A.apply(a).sum()); out = []
for k in range(3):
    a = torch.ones(2, requires_grad=True); f(a).backward(); out.append(a.grad); A.backward = staticmethod(lambda ctx, g, k=k: g * (k + 50))
""",
"custom_function_marks": """
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a): i = (a > 0); ctx.mark_non_differentiable(i); a.mul_(2); ctx.mark_dirty(a); return a, i
    @staticmethod
    def backward(ctx, g, _): return g * 2
def f(a): b = a * 1; r, i = A.apply(b); return r, i, r is b
g = C(f); out = []
for k in (1.0, -1.0, 2.0): a = torch.full((2,), k, requires_grad=True); r, i, s = g(a); r.sum().backward(); out += [r.detach(), i, s, a.grad]
""",
"custom_function_side_effects": """
log = []
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a): log.append('f'); return a.clone()
    @staticmethod
    def backward(ctx, g): log.append('b'); return g
f = C(lambda a: A.apply(a).sum())
for k in range(3): f(torch.ones(2, requires_grad=True)).backward()
out = log
""",
"custom_function_needs_input_grad": """
class A(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b): ctx.n = ctx.needs_input_grad; return a * b + (100 if ctx.n[0] else 0)
    @staticmethod
    def backward(ctx, g): return g, g if ctx.n[1] else None
f = C(lambda a, b: A.apply(a, b)); o = lambda r: torch.ones(2, requires_grad=r); out = f(o(True), o(False)), f(o(False), o(True)), f(o(False), o(False)), f(o(True), o(True))
""",
"checkpoint_recomputes": """
from torch.utils.checkpoint import checkpoint
n = []
def block(a): n.append(1); return a.sin() * a
f = C(lambda a: checkpoint(block, a, use_reentrant=False).sum()); out = []
for k in (1.0, 2.0): a = torch.full((2,), k, requires_grad=True); f(a).backward(); out.append(a.grad)
out.append(len(n))
""",
"checkpoint_with_random_state": """
from torch.utils.checkpoint import checkpoint
f = C(lambda a: checkpoint(lambda v: torch.nn.functional.dropout(v, 0.5) * v, a, use_reentrant=False)); torch.manual_seed(0); out = []
for k in range(3): a = torch.full((6,), 2.0, requires_grad=True); y = f(a); y.sum().backward(); out += [bool((a.grad == y.detach()).all())]
""",
"saved_tensors_hooks_outside": """
n = []; f = C(lambda a: (a * a).sum()); out = []
for k in range(3):
    a = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: n.append(1) or t * 1, lambda t: t * 2): s = f(a)
    s.backward(); out.append(a.grad)
""",
"anomaly_detection": """
f = C(lambda a: torch.sqrt(a).sum()); out = []
for k in (1.0, 4.0, -1.0):
    a = torch.tensor([k], requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        try: f(a).backward(); out.append(a.grad)
        except RuntimeError: out.append('RuntimeError')
""",
"jacobian_and_hessian_of_compiled": """
f = C(lambda a: (a ** 3).sum()); f(x); out = torch.autograd.functional.jacobian(f, torch.tensor([1.0, 2.0])), torch.autograd.functional.hessian(f, torch.tensor([1.0, 2.0]))
""",
"grad_fn_chain_visible": """
f = C(lambda a: (a * 2, a.detach(), a)); a = torch.ones(2, requires_grad=True); f(a); r = f(a); out = [(v.requires_grad, v.is_leaf, v.grad_fn is not None) for v in r]
""",
"unused_argument_gradient_is_none": """
f = C(lambda a, b: (a * 2).sum() + b.detach().sum()); out = []
for _ in range(3):
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True); f(a, b).backward(); out += [a.grad, b.grad]
""",
"integer_and_bool_results_have_no_gradient": """
f = C(lambda a: (a > 0, a.argmax(), a.long(), a * 2, a.sort())); a = torch.ones(2, requires_grad=True); f(a); out = f(a), f(x), f(a * 2)
""",
"gradient_of_views_in_place": """
def f(a): y = a * 1; y[0].mul_(5); y[1:] = y[:1] * 2; return y.sum()
g = C(f); out = []
for n in (2, 3, 2): a = torch.ones(n, requires_grad=True); g(a).backward(); out.append(a.grad)
""",
"gradient_of_broadcast": """
f = C(lambda a, b: (a * b).sum()); out = []
for s, t in (((2,), (2,)), ((1,), (3,)), ((3, 1), (1, 2)), ((), (2,))): a, b = torch.ones(s, requires_grad=True), torch.full(t, 2.0, requires_grad=True); f(a, b).backward(); out += [a.grad, b.grad]
""",
"gradient_at_corners": """
F = torch.nn.functional; f = C(lambda a: (F.relu(a) + a.abs() + a.clamp(0, 1) + torch.maximum(a, a * 0) + a.sign()).sum()); out = []
for v in (0.0, 1.0, -1.0, float('nan')): a = torch.full((2,), v, requires_grad=True); f(a).backward(); out.append(a.grad)
""",
"gradient_of_max_with_ties": """
f = C(lambda a: a.max() + a.amax(0) + a.min(0).values + a.norm() + a.median()); out = []
for v in ([1.0, 1.0], [1.0, 2.0], [0.0, 0.0], [3.0, 3.0, 3.0]): a = torch.tensor(v, requires_grad=True); f(a).backward(); out.append(a.grad)
""",
"gradients_accumulate_across_dtypes": """
w = torch.ones(2, requires_grad=True); f = C(lambda x: (w.double() * x.double()).sum() + (w.half().float() * x).sum()); [f(x * k).backward() for k in range(3)]; out = w.grad, f(x)
""",
"non_scalar_backward_raises": """
def f(a):
    try: (a * 2).backward()
    except RuntimeError: return 'RuntimeError'
    return a.grad
g = C(f); out = [g(torch.ones(n, requires_grad=True)) for n in (1, 2, 1, 3)]
""",
"backward_with_given_gradient": """
f = C(lambda a: a * a); out = []
for k in (1.0, 2.0, 3.0): a = torch.full((2,), k, requires_grad=True); f(a).backward(torch.tensor([1.0, 10.0]), inputs=[a]); out.append(a.grad)
""",
"result_used_in_later_graph": """
f = C(lambda a: a.sin()); a = torch.ones(2, requires_grad=True); y = f(f(f(a))); y.sum().backward(); g1 = a.grad.clone(); a.grad = None; (f(a) * f(a)).sum().backward(); out = g1, a.grad
""",
"parameter_used_twice_shared": """
m = torch.nn.Linear(2, 2, bias=False); torch.nn.init.ones_(m.weight); n = torch.nn.Sequential(m, torch.nn.Tanh(), m); f = C(n); out = []
for _ in range(3): n.zero_grad(); f(x).sum().backward(); out.append(m.weight.grad.clone())
""",
"frozen_parameter_between_steps": """
m = torch.nn.Linear(2, 1); torch.nn.init.ones_(m.weight); torch.nn.init.zeros_(m.bias); f = C(m); out = []
for r in (True, False, True): m.weight.requires_grad_(r); m.zero_grad(set_to_none=True); f(x).sum().backward(); out += [m.weight.grad is None, m.bias.grad.clone()]
""",
"nograd_result_reused_in_training": """
f = C(lambda x: x * w); w = torch.ones(2, requires_grad=True)
with torch.no_grad(): a = f(x)
b = f(x); b.sum().backward(); out = a.requires_grad, b.requires_grad, w.grad, f(a).requires_grad
""",
"once_differentiable_and_inference_tensors": """
with torch.inference_mode(): z = torch.ones(2)
w = torch.ones(2, requires_grad=True)
def f(z):
    try: return z * w
    except RuntimeError: return 'RuntimeError'
g = C(f); out = g(x), g(z), g(x)
""",
"forward_ad_tangent_in_program": """
import torch.autograd.forward_ad as fw
def f(x, t):
    with fw.dual_level(): d = fw.make_dual(x, t); return fw.unpack_dual(d.sin() * d).tangent
g = C(f); out = g(x, x), g(x * 2, x), g(torch.ones(3), torch.ones(3))
""",
}
