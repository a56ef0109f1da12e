"""torch.func, torch.vmap, functional_call, own operators, fx, jit, compiler switches, profiler, RNG and global settings."""

PROGRAMS = {
"vmap_inside": """
f = C(lambda x: torch.vmap(lambda r: r * r.sum())(x)); out = f(torch.ones(2, 2)), f(torch.ones(3, 2)), f(torch.arange(4.0).view(2, 2))
""",
"vmap_of_compiled": """
f = C(lambda r: r * r.sum() + 1); f(x); out = torch.vmap(f)(torch.arange(4.0).view(2, 2)), torch.vmap(f, in_dims=1)(torch.arange(6.0).view(2, 3)), f(x)
""",
"vmap_dims_and_randomness": """
f = C(lambda x, r: torch.vmap(lambda v: v + torch.rand(1), randomness=r, out_dims=1)(x)); torch.manual_seed(0); out = [f(torch.zeros(2, 1), 'same'), f(torch.zeros(2, 1), 'different'), f(torch.zeros(3, 1), 'same')]
try: f(torch.zeros(2, 1), 'error')
except RuntimeError: out.append('RuntimeError')
""",
"grad_inside": """
f = C(lambda x, n: torch.func.grad(lambda v: (v ** n).sum())(x)); out = f(x, 2), f(x, 3), f(x * 2, 2), f(torch.ones(3), 4)
""",
"grad_of_compiled": """
f = C(lambda v: (v ** 3).sum()); f(x); out = torch.func.grad(f)(torch.tensor([1.0, 2.0])), torch.func.grad(torch.func.grad(lambda s: f(s[None])))(torch.tensor(2.0)), torch.func.grad_and_value(f)(x)
""",
"jvp_vjp_of_compiled": """
f = C(lambda v: v.sin() * v); f(x); t = torch.tensor([1.0, 2.0]); p, pull = torch.func.vjp(f, t); out = torch.func.jvp(f, (t,), (x,)), p, pull(x)
""",
"jvp_vjp_inside": """
def f(x, v): p, pull = torch.func.vjp(torch.sin, x); return torch.func.jvp(lambda u: u * u, (x,), (v,)), pull(v)[0]
g = C(f); out = g(x, x), g(x * 2, x), g(torch.ones(3), torch.ones(3))
""",
"jacobians_and_hessian_inside": """
f = C(lambda x: (torch.func.jacrev(lambda v: v ** 2)(x), torch.func.jacfwd(torch.sin)(x), torch.func.hessian(lambda v: (v ** 3).sum())(x))); out = f(x), f(torch.arange(3.0)), f(x * 2)
""",
"functional_call_with_changed_weights": """
from torch.func import functional_call
m = torch.nn.Linear(2, 1); p = {'weight': torch.ones(1, 2), 'bias': torch.zeros(1)}; f = C(lambda x: functional_call(m, p, (x,))); out = [f(x)]; p['bias'] = torch.ones(1); out += [f(x)]; p['weight'].mul_(3); out += [f(x)]
""",
"functional_call_of_compiled_module": """
from torch.func import functional_call
m = torch.nn.Linear(2, 1); f = C(m); f(x); k = list(dict(f.named_parameters())); out = [functional_call(f, {k[0]: torch.full((1, 2), v), k[1]: torch.zeros(1)}, (x,)) for v in (1.0, 2.0, 3.0)]
""",
"stack_module_state_ensemble": """
from torch.func import stack_module_state, functional_call
torch.manual_seed(0); ms = [torch.nn.Linear(2, 1) for _ in range(3)]; p, b = stack_module_state(ms); f = C(lambda x: torch.vmap(lambda p, b, x: functional_call(ms[0], (p, b), (x,)), (0, 0, None))(p, b, x)); out = [f(x).detach()]
with torch.no_grad(): p['bias'].zero_()
out += [f(x).detach()]
""",
"functionalize_inside": """
f = C(lambda x: torch.func.functionalize(lambda v: v.clone().add_(1))(x)); out = f(x), f(x * 2), f(torch.ones(3))
""",
"linearize_inside": """
f = C(lambda x: torch.func.linearize(lambda v: v ** 2, x)[1](x)); out = f(x), f(x * 3), f(torch.ones(3))
""",
"custom_op_with_side_effect": """
n = []
@torch.library.custom_op('qa::tap', mutates_args=())
def tap(x: torch.Tensor) -> torch.Tensor: n.append(x.shape[0]); return x.clone()
tap.register_fake(lambda x: torch.empty_like(x)); f = C(lambda x: tap(x) * 2); out = f(x), f(x), f(torch.ones(3)), n
""",
"custom_op_mutates_argument": """
@torch.library.custom_op('qb::inc', mutates_args={'x'})
def inc(x: torch.Tensor, k: int) -> None: x.add_(k)
def f(x, k): inc(x, k); return x * 2
g = C(f); y = torch.zeros(2); out = g(y, 1), g(y, 2), g(y, 1), y
""",
"custom_op_gradient": """
@torch.library.custom_op('qc::sq', mutates_args=())
def sq(x: torch.Tensor) -> torch.Tensor: return x * x
sq.register_fake(lambda x: torch.empty_like(x)); sq.register_autograd(lambda ctx, g: g * 100 * ctx.saved_tensors[0], setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0])); f = C(lambda a: sq(a).sum()); out = []
for k in (1.0, 2.0): a = torch.full((2,), k, requires_grad=True); f(a).backward(); out.append(a.grad)
""",
"library_implementation_replaced": """
l = torch.library.Library('qd', 'DEF'); l.define('op(Tensor x) -> Tensor'); l.impl('op', lambda x: x * 2, 'CompositeExplicitAutograd'); f = C(lambda x: torch.ops.qd.op(x)); out = [f(x), f(x)]
m = torch.library.Library('qd', 'IMPL'); m.impl('op', lambda x: x * 3, 'CPU'); out += [f(x)]; m._destroy(); out += [f(x)]
""",
"composite_library_op_reads_global": """
s = 2.0; l = torch.library.Library('qe', 'DEF'); l.define('op(Tensor x) -> Tensor'); l.impl('op', lambda x: x * s, 'CompositeImplicitAutograd'); f = C(lambda x: torch.ops.qe.op(x) + 1); out = [f(x), f(x)]; s = 3.0; out += [f(x)]
""",
"fx_traced_module": """
import torch.fx
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.s = torch.nn.Parameter(torch.ones(2))
    def forward(self, x): return (x * self.s).relu()
g = torch.fx.symbolic_trace(M()); f = C(g); out = [f(x).detach()]
for n in g.graph.nodes:
    if n.target == 'relu': n.target = 'neg'
g.recompile(); out += [f(x).detach()]
""",
"fx_trace_of_compiled_function": """
import torch.fx
f = C(lambda x: x * 2 + 1); f(x)
class M(torch.nn.Module):
    def forward(self, x): return torch.relu(x) - 1
g = torch.fx.symbolic_trace(M()); h = C(lambda x: g(x) * 2); out = f(x), h(x), h(x * 3)
""",
"make_fx_inside": """
from torch.fx.experimental.proxy_tensor import make_fx
f = C(lambda x: make_fx(lambda v: v * 2 + 1)(x)(x * 3)); out = f(x), f(x * 2), f(torch.ones(3))
""",
"scripted_function_with_branch": """
import torch
j = torch.jit.CompilationUnit('def h(x, n: int):\\n  if n > 1:\\n    x = x * n\\n  return x + 1\\n').h; f = C(lambda x, n: j(x, n) * 2); out = f(x, 1), f(x, 2), f(x, 3), f(x, 1)
""",
"traced_module_attribute_changed": """
m = torch.jit.trace(torch.nn.Linear(2, 1), torch.ones(2)); f = C(m)
with torch.no_grad(): m.weight.fill_(1); m.bias.fill_(0)
out = [f(x).detach(), f(x).detach()]
with torch.no_grad(): m.weight.fill_(5)
out += [f(x).detach()]
""",
"compiler_is_compiling_reads": """
f = C(lambda x: x * (1 if isinstance(torch.compiler.is_compiling(), bool) else 0)); out = f(x), f(x), torch.compiler.is_compiling()
""",
"compiler_disabled_function": """
n = []
@torch.compiler.disable
def h(x): n.append(1); return x + len(n)
f = C(lambda x: h(x) * 2); out = [f(x) for _ in range(4)], len(n)
""",
"compiled_inside_compiled": """
s = 2.0; inner = C(lambda x: x * s); f = C(lambda x: inner(x) + inner(x * 2)); out = [f(x), f(x)]; s = 3.0; out += [f(x), inner(x)]
""",
"compiled_function_passed_as_argument": """
a, b = C(lambda x: x * 2), C(lambda x: x - 1); f = C(lambda x, h: h(x) + 1); out = f(x, a), f(x, b), f(x, torch.neg), f(x, a)
""",
"compiled_twice": """
s = 2.0
def h(x): return x * s
f, g = C(h), C(C(h)); out = [f(x), g(x)]; s = 3.0; out += [g(x), f(x), h(x)]
""",
"same_code_two_closures": """
def make(s): return lambda x: x * s
f, g = C(make(2.0)), C(make(3.0)); out = f(x), g(x), f(x), g(x); h = [C(make(float(k))) for k in range(4)]; out += tuple(v(x) for v in h)
""",
"decorator_form": """
@C
def f(x, n=2): 'doc'; return x * n
out = f(x), f(x, 3), f(x, n=4), f.__name__ if hasattr(f, '__name__') else None
""",
"compiled_method_of_two_instances": """
class K:
    def __init__(self, s): self.s = s
    @C
    def go(self, x): return x * self.s
a, b = K(2.0), K(3.0); out = [a.go(x), b.go(x), a.go(x)]; a.s = 5.0; out += [a.go(x), b.go(x), K.go(b, x)]
""",
"manual_seed_repeats": """
f = C(lambda x: x + torch.rand(2)); out = []
for s in (0, 0, 1, 0): torch.manual_seed(s); out += [f(x), f(x)]
out.append(torch.rand(1))
""",
"generator_argument_and_global": """
g = torch.Generator().manual_seed(3); f = C(lambda x, g: (torch.rand(2, generator=g), torch.randn(2), x)); torch.manual_seed(0); out = f(x, g), f(x, g), f(x, torch.Generator().manual_seed(3)), torch.rand(1, generator=g), torch.rand(1)
""",
"every_random_function": """
def f(x, p): return torch.rand_like(x), torch.randint(0, 10, (2,)), torch.randperm(4), torch.bernoulli(p), torch.normal(x, p), torch.multinomial(p, 1), x.clone().uniform_(), x.clone().exponential_(), x.clone().random_(5)
g = C(f); torch.manual_seed(0); out = g(x, x * .5), g(x, x * .3), g(torch.ones(3), torch.ones(3) * .5), torch.rand(1)
""",
"seed_set_inside": """
def f(x, s): torch.manual_seed(s); return torch.rand(2) * x, torch.initial_seed()
g = C(f); out = g(x, 1), g(x, 2), g(x, 1), torch.rand(1)
""",
"fork_rng_inside": """
def f(x):
    with torch.random.fork_rng(): a = torch.rand(2)
    return a, torch.rand(2)
g = C(f); torch.manual_seed(5); out = g(x), g(x), g(x), torch.rand(1)
""",
"dropout_train_eval_and_rate": """
m = torch.nn.Dropout(0.5); f = C(m); torch.manual_seed(0); y = torch.ones(8); out = [f(y), f(y)]; m.eval(); out += [f(y)]; m.train(); m.p = 0.9; out += [f(y)]; m.p = 0.0; out += [f(y)]; m.p = 1.0; out += [f(y), torch.rand(1)]
""",
"rng_inside_branch_consumed_once": """
def f(x, on):
    y = torch.rand(2) if on else x
    return y + torch.rand(2)
g = C(f); torch.manual_seed(1); out = g(x, True), g(x, False), g(x, True), g(x, False), torch.rand(1)
""",
"default_dtype_changed": """
f = C(lambda x: (torch.ones(2), torch.tensor(1.5), torch.arange(0, 1, .5), torch.tensor([1, 2]) / 2, torch.get_default_dtype())); out = [f(x)]; torch.set_default_dtype(torch.float64); out += [f(x)]; torch.set_default_dtype(torch.bfloat16); out += [f(x)]; torch.set_default_dtype(torch.float32); out += [f(x)]
""",
"default_dtype_set_inside": """
def f(x): torch.set_default_dtype(torch.float64); y = torch.zeros(1); torch.set_default_dtype(torch.float32); return y, torch.zeros(1)
g = C(f); out = g(x), g(x), torch.zeros(1)
""",
"default_device_changed": """
f = C(lambda x: (torch.ones(2).device.type, torch.get_default_device().type, x)); out = [f(x)[:2]]; torch.set_default_device('meta'); out += [f(x)[:2]]; torch.set_default_device(None); out += [f(x)[:2]]
with torch.device('meta'): out += [f(x)[:2]]
""",
"autocast_outside": """
w = torch.ones(2, 2); f = C(lambda x: ((x[None] @ w).dtype, torch.is_autocast_enabled('cpu'), x.sum().dtype)); out = [f(x)]
for d in (torch.bfloat16, torch.float16):
    with torch.autocast('cpu', dtype=d): out += [f(x)]
with torch.autocast('cpu', enabled=False): out += [f(x)]
out += [f(x)]
""",
"autocast_inside": """
w = torch.ones(2, 2)
def f(x, on):
    with torch.autocast('cpu', torch.bfloat16, enabled=on): a = x[None] @ w; b = a.softmax(-1)
    return a, b, (x[None] @ w).dtype
g = C(f); out = g(x, True), g(x, False), g(x, True)
""",
"autocast_weight_cache": """
w = torch.ones(2, 2, requires_grad=True); f = C(lambda x: x[None] @ w); out = []
with torch.autocast('cpu', torch.bfloat16):
    out += [f(x).detach()]
    with torch.no_grad(): w.mul_(3)
    out += [f(x).detach().dtype]
out += [f(x).detach()]
""",
"deterministic_algorithms_flag": """
f = C(lambda x: (x * (2 if torch.are_deterministic_algorithms_enabled() else 3), torch.empty(2).isnan().all().item() if torch.are_deterministic_algorithms_enabled() else None)); out = [f(x)]; torch.use_deterministic_algorithms(True); out += [f(x)]; torch.use_deterministic_algorithms(False); out += [f(x)]
""",
"flush_denormal_flag": """
t = torch.tensor([1e-39]); f = C(lambda t: (t * 2 > 0)); out = [f(t)]; torch.set_flush_denormal(True); out += [f(t)]; torch.set_flush_denormal(False); out += [f(t)]
""",
"matmul_precision_flag": """
f = C(lambda x: (x * 2, torch.get_float32_matmul_precision())); out = [f(x)]; torch.set_float32_matmul_precision('medium'); out += [f(x)]; torch.set_float32_matmul_precision('highest'); out += [f(x)]
""",
"backend_flags": """
f = C(lambda x: (x, torch.backends.mkldnn.enabled, torch.backends.cudnn.benchmark)[1:]); out = [f(x)]; torch.backends.cudnn.benchmark = True; out += [f(x)]
with torch.backends.mkldnn.flags(enabled=False): out += [f(x)]
out += [f(x)]
""",
"attention_backend_context": """
from torch.nn.attention import sdpa_kernel, SDPBackend
q = torch.arange(8.0).view(1, 1, 4, 2); f = C(lambda q: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)); out = [f(q)]
with sdpa_kernel(SDPBackend.MATH): out += [f(q), torch.backends.cuda.math_sdp_enabled()]
out += [f(q)]
""",
"profiler_labels": """
from torch.profiler import profile, record_function
def f(x, n):
    with record_function(f'blk {n}') as r:
        y = x * 2
    with torch.autograd.profiler.record_function('more', 'args'):
        return y.sin() + n
g = C(f)
out = [g(x, 1), g(x + 1, 1), g(x, 2)]
with profile() as p: out += [g(x, 3), g(x, 1)]
out += [sorted(e.key for e in p.key_averages() if e.key[:3] in ('blk', 'mor')), g(x, 3)]
""",
"profiler_context": """
from torch.profiler import profile, record_function
def f(x):
    with record_function('blk'): return x * 2
g = C(f); g(x)
with profile() as p: r = g(x)
out = r, any('blk' == e.key for e in p.key_averages()), g(x)
""",
"grad_context_decorators": """
w = torch.ones(2, requires_grad=True)
@torch.inference_mode()
def h(x): return x * w
f = C(h); g = C(torch.no_grad()(lambda x: x * w)); out = [f(x), f(x).is_inference(), g(x), g(x).requires_grad, f(torch.ones(3)[:2]).is_inference()]
""",
"torch_function_replaced": """
keep = torch.sin; f = C(lambda x: torch.sin(x)); out = [f(x), f(x)]; torch.sin = torch.cos; out += [f(x)]; torch.sin = keep; out += [f(x)]
""",
"tensor_method_replaced": """
keep = torch.Tensor.sin; f = C(lambda x: x.sin()); out = [f(x), f(x)]; torch.Tensor.sin = lambda s: s * 100; out += [f(x)]; torch.Tensor.sin = keep; out += [f(x)]
""",
"tensor_operator_replaced": """
keep = torch.Tensor.__mul__; f = C(lambda x: x * 2); out = [f(x), f(x)]; torch.Tensor.__mul__ = lambda s, o: s + 100; out += [f(x)]; torch.Tensor.__mul__ = keep; out += [f(x)]
""",
"pytree_of_own_class": """
import torch.utils._pytree as pt
class P:
    def __init__(self, a, b): self.a, self.b = a, b
pt.register_pytree_node(P, lambda p: ([p.a], p.b), lambda v, b: P(v[0], b), serialized_type_name='qP'); f = C(lambda x, p: pt.tree_map(lambda t: t * 2, p)); r = [f(x, P(x, 1)), f(x, P(x, 2)), f(x, P(x * 3, 1))]; out = [(v.a, v.b) for v in r]
""",
"pytree_map_of_arguments": """
import torch.utils._pytree as pt
f = C(lambda t: pt.tree_map(lambda v: v * 2, t)); out = f({'a': x, 'b': [1, (x,)]}), f({'a': 2.5, 'b': [x]}), f([x])
""",
"cond_and_export_predicates": """
f = C(lambda x: (torch.jit.is_scripting(), torch.jit.is_tracing(), torch.onnx.is_in_onnx_export(), torch.compiler.is_exporting(), torch._C._get_tracing_state() is None, x)[:5]); out = f(x), f(x)
""",
"overrides_handled_tensor_types": """
f = C(lambda x, t: (torch.is_tensor(t), torch.is_storage(t), torch.is_floating_point(x), torch.overrides.is_tensor_like(t), isinstance(t, torch.nn.Parameter))); out = f(x, x), f(x, torch.nn.Parameter(x)), f(x.int(), 3), f(x, x.untyped_storage())
""",
}
