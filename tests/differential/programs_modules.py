"""torch.nn: parameters and buffers, hooks of every kind, state dicts, surgery, parametrizations, containers, copies."""

PROGRAMS = {
"parameter_replaced": """
m = torch.nn.Linear(2, 1, bias=False); P = torch.nn.Parameter; m.weight = P(torch.ones(1, 2)); f = C(m); out = [f(x), f(x)]; m.weight = P(torch.full((1, 2), 3.0)); out += [f(x)]; m.weight = P(torch.ones(3, 2)); out += [f(x)]; m.weight = None
try: f(x); out += ['none']
except (TypeError, AttributeError, RuntimeError): out += ['error']
""",
"parameter_written_through_data": """
m = torch.nn.Linear(2, 1, bias=False); m.weight.data = torch.ones(1, 2); f = C(m); out = [f(x), f(x), f(x)]; m.weight.data.mul_(3); out += [f(x)]; m.weight.data = torch.full((1, 2), 7.0); out += [f(x)]; m.weight.data[0, 0] = 0; out += [f(x)]
""",
"parameter_written_under_inference": """
m = torch.nn.Linear(2, 1, bias=False).requires_grad_(False); m.weight.fill_(1); f = C(m); out = []
with torch.inference_mode():
    out += [f(x), f(x), f(x)]; m.weight.mul_(3); out += [f(x)]; m.weight[0, 1] = 9; out += [f(x)]
""",
"bias_removed_and_added": """
m = torch.nn.Linear(2, 1); torch.nn.init.ones_(m.weight); torch.nn.init.ones_(m.bias); f = C(m); out = [f(x), f(x)]; m.bias = None; out += [f(x)]; m.bias = torch.nn.Parameter(torch.full((1,), 5.0)); out += [f(x)]
""",
"buffer_updated_inside": """
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.register_buffer('n', torch.zeros(1)); self.k = 0
    def forward(self, x): self.n += 1; self.k += 1; return x * self.n * self.k
m = M(); f = C(m); out = [f(x) for _ in range(4)], m.n, m.k, m.state_dict()['n']
""",
"buffer_reassigned_inside": """
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.register_buffer('last', None)
    def forward(self, x): y = x if self.last is None else x + self.last; self.last = y.detach(); return y
m = M(); f = C(m); out = [f(x) for _ in range(4)], list(m.state_dict()), 'last' in dict(m.named_buffers())
""",
"buffer_persistence_and_deletion": """
m = torch.nn.Module(); m.register_buffer('b', torch.ones(2), persistent=False); f = C(lambda x: (x * m.b if hasattr(m, 'b') else x - 1, list(m.state_dict()))); out = [f(x)]; m.register_buffer('b', torch.full((2,), 3.0)); out += [f(x)]; del m.b; out += [f(x)]
""",
"batch_norm_running_statistics": """
m = torch.nn.BatchNorm1d(2); f = C(m); y = torch.tensor([[1.0, 2.0], [3.0, 6.0]]); out = [f(y).detach(), f(y * 2).detach()]; m.eval(); out += [f(y).detach()]; m.momentum = 0.5; m.train(); out += [f(y).detach(), m.running_mean, m.running_var, m.num_batches_tracked]; m.eval(); m.running_mean.zero_(); out += [f(y).detach()]; m.reset_running_stats(); out += [f(y).detach()]
""",
"batch_norm_of_one_row_raises": """
m = torch.nn.BatchNorm1d(2)
def f(y):
    try: return m(y)
    except ValueError: return 'ValueError'
g = C(f); out = [g(torch.ones(2, 2)).shape, g(torch.ones(3, 2)).shape, g(torch.ones(1, 2)), m.num_batches_tracked]; m.eval(); out += [g(torch.ones(1, 2)).detach().shape]
""",
"training_flag_of_submodule": """
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.d = torch.nn.Dropout(1.0)
    def forward(self, x): return self.d(x) + (1 if self.training else 10)
m = M(); f = C(m); out = [f(x)]; m.eval(); out += [f(x)]; m.d.train(); out += [f(x)]; m.train(); m.d.eval(); out += [f(x)]
""",
"forward_hook_added_later": """
n = []; m = torch.nn.ReLU(); f = C(m); out = [f(x), f(x)]; h = m.register_forward_hook(lambda m, i, o: n.append(1) or o * 10); out += [f(x), f(x)]; h.remove(); out += [f(x), len(n)]
""",
"forward_pre_hook_with_keywords": """
class M(torch.nn.Module):
    def forward(self, x, k=1): return x * k
m = M(); f = C(m); out = [f(x), f(x, k=2)]; h = m.register_forward_pre_hook(lambda m, a, k: (a, {'k': 5}), with_kwargs=True); out += [f(x), f(x, k=2)]; g = m.register_forward_pre_hook(lambda m, a: (a[0] + 1,), prepend=True); out += [f(x)]; h.remove(); out += [f(x)]
""",
"submodule_hook_and_order": """
n = []; a, b = torch.nn.Identity(), torch.nn.Tanh(); m = torch.nn.Sequential(a, b); f = C(m); f(x)
for k, v in enumerate((m, a, b)): v.register_forward_hook(lambda mod, i, o, k=k: n.append(k)); v.register_forward_pre_hook(lambda mod, i, k=k: n.append(-k))
f(x); f(x); out = n
""",
"hook_that_always_runs": """
n = []
class M(torch.nn.Module):
    def forward(self, x, bad):
        if bad: raise KeyError('bad')
        return x
m = M(); m.register_forward_hook(lambda *a: n.append('ran'), always_call=True); f = C(m); out = [f(x, False)]
for _ in range(2):
    try: f(x, True)
    except KeyError: out.append('KeyError')
out.append(n)
""",
"global_module_hook": """
import torch.nn.modules.module as tm
m = torch.nn.Identity(); f = C(m); out = [f(x), f(x)]; h = tm.register_module_forward_hook(lambda m, i, o: o * 7); out += [f(x)]; h.remove(); out += [f(x)]; h = tm.register_module_forward_pre_hook(lambda m, i: (i[0] + 1,)); out += [f(x)]; h.remove()
""",
"backward_hooks_of_module": """
n = []; m = torch.nn.Linear(2, 1, bias=False); torch.nn.init.ones_(m.weight); f = C(m); f(x); m.register_full_backward_hook(lambda m, gi, go: n.append(('b', go[0].clone()))); m.register_full_backward_pre_hook(lambda m, go: n.append('p'))
for k in (1.0, 2.0): a = torch.full((2,), k, requires_grad=True); f(a).sum().backward(); n.append(a.grad)
out = n
""",
"hook_dictionary_on_class_instance": """
n = []
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.l = torch.nn.Identity(); self.l.register_forward_hook(self.keep)
    def keep(self, m, i, o): self.kept = o; n.append(o.shape[0])
    def forward(self, x): return self.l(x * 2) + self.kept
m = M(); f = C(m); out = f(x), f(torch.ones(3)), f(x), m.kept, n
""",
"state_dict_loaded": """
m = torch.nn.Linear(2, 1); sd = {'weight': torch.ones(1, 2), 'bias': torch.zeros(1)}; f = C(m); m.load_state_dict(sd); out = [f(x), f(x)]; m.load_state_dict({k: v * 3 + 1 for k, v in sd.items()}); out += [f(x)]; m.load_state_dict({k: v * 5 for k, v in sd.items()}, assign=True); out += [f(x)]; sd2 = m.state_dict(); sd2['weight'].fill_(9); out += [f(x)]
""",
"state_dict_of_compiled_module": """
m = torch.nn.Sequential(torch.nn.Linear(2, 1)); f = C(m); f(x); out = [k.replace('_orig_mod.', '') for k in f.state_dict()], [n.replace('_orig_mod.', '') for n, _ in f.named_parameters()], len(list(f.children())) > 0, f.training
""",
"state_dict_hooks_and_strict": """
m = torch.nn.Linear(2, 1); m._register_state_dict_hook(lambda m, sd, p, meta: sd.update(extra=1)); f = C(lambda x: (x, sorted(m.state_dict()))[1]); out = [f(x)]; m.register_parameter('q', torch.nn.Parameter(x)); out += [f(x)]
try: m.load_state_dict({}); out += ['none']
except RuntimeError: out += ['RuntimeError']
""",
"module_moved_to_other_dtype": """
m = torch.nn.Linear(2, 1); torch.nn.init.ones_(m.weight); torch.nn.init.zeros_(m.bias); f = C(m); out = [f(x)]; m.double(); out += [f(x.double())]
try: f(x); out += ['none']
except RuntimeError: out += ['RuntimeError']
m.to(torch.bfloat16); out += [f(x.bfloat16())]; m.float(); out += [f(x)]
""",
"submodule_replaced": """
m = torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU()); f = C(m); out = [f(-x), f(-x)]; m[1] = torch.nn.Tanh(); out += [f(-x)]; m.append(torch.nn.Threshold(0.5, 3.0)); out += [f(-x)]; del m[0]; out += [f(-x), len(m)]; m.insert(0, torch.nn.Flatten(0)); out += [f(-x)]
""",
"module_list_grows": """
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.l = torch.nn.ModuleList([torch.nn.Identity()])
    def forward(self, x):
        for k, v in enumerate(self.l): x = v(x) + k + 1
        return x
m = M(); f = C(m); out = [f(x), f(x)]; m.l.append(torch.nn.ReLU()); out += [f(x)]; m.l[0], m.l[1] = torch.nn.Softsign(), m.l[0]; out += [f(x)]; m.l.pop(0); out += [f(x)]
""",
"module_dict_and_parameter_dict": """
d = torch.nn.ModuleDict({'a': torch.nn.Identity()}); p = torch.nn.ParameterDict({'w': torch.nn.Parameter(x * 2)}); f = C(lambda x, k: d[k](x) * p['w'] + len(d)); out = [f(x, 'a')]; d['b'] = torch.nn.Tanh(); out += [f(x, 'b'), f(x, 'a')]; p['w'] = torch.nn.Parameter(x * 5); out += [f(x, 'a')]; d.pop('b'); out += [f(x, 'a')]
""",
"parameter_list_iterated": """
l = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(2))]); f = C(lambda x: sum(p * x for p in l)); out = [f(x)]; l.append(torch.nn.Parameter(x * 5)); out += [f(x)]; l[0] = torch.nn.Parameter(x * 7); out += [f(x), len(l)]
""",
"module_added_inside": """
class M(torch.nn.Module):
    def forward(self, x):
        if not hasattr(self, 'l'): self.l = torch.nn.Linear(2, 2, bias=False); torch.nn.init.eye_(self.l.weight)
        return self.l(x) * len(list(self.children()))
m = M(); f = C(m); out = f(x), f(x * 2), f(x), len(list(m.parameters()))
""",
"lazy_module_materializes": """
torch.manual_seed(0); m = torch.nn.LazyLinear(2, bias=False); f = C(m); a = f(torch.ones(1, 3)); out = a.shape, type(m).__name__, m.in_features, f(torch.ones(2, 3)).shape, tuple(m.weight.shape)
""",
"module_attribute_plain_values": """
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.s = 2.0; self.cfg = {'k': [1]}
    def forward(self, x): return x * self.s + sum(self.cfg['k'])
m = M(); f = C(m); out = [f(x)]; m.s = 3; out += [f(x)]; m.cfg['k'].append(5); out += [f(x)]; m.cfg = {'k': (9,)}; out += [f(x)]; f.s = 7.0; out += [f(x), m.s]
""",
"attribute_set_on_wrapper": """
m = torch.nn.Linear(2, 1, bias=False); torch.nn.init.ones_(m.weight); f = C(m); out = [f(x)]; f.weight = torch.nn.Parameter(torch.full((1, 2), 4.0)); out += [f(x), m.weight is f.weight]; f.eval(); out += [m.training]; f.requires_grad_(False); out += [f(x).requires_grad]
""",
"forward_replaced_on_instance": """
m = torch.nn.ReLU(); f = C(m); out = [f(-x), f(-x)]; m.forward = lambda v: v * 5; out += [f(-x)]; del m.forward; out += [f(-x)]; torch.nn.ReLU.extra = 1; out += [f(-x)]
""",
"other_method_compiled": """
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.w = torch.nn.Parameter(torch.ones(2))
    def encode(self, x): return x * self.w
m = M(); m.encode = C(m.encode); out = [m.encode(x)]; m.w.data.mul_(3); out += [m.encode(x)]; m.w = torch.nn.Parameter(x * 7); out += [m.encode(x)]
""",
"module_method_compile_in_place": """
class M(torch.nn.Module):
    s = 2.0
    def forward(self, x): return x * self.s
m = M(); m.forward = C(m.forward); n = []; m.register_forward_hook(lambda *a: n.append(1)); out = [m(x), m(x)]; m.s = 3.0; out += [m(x), len(n)]
""",
"tied_parameters": """
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.a = torch.nn.Linear(2, 2, bias=False); self.b = torch.nn.Linear(2, 2, bias=False); self.b.weight = self.a.weight; torch.nn.init.eye_(self.a.weight)
    def forward(self, x): return self.b(self.a(x))
m = M(); f = C(m); out = [f(x), f(x)]; m.a.weight.data.mul_(3); out += [f(x)]; m.b.weight = torch.nn.Parameter(torch.eye(2)); out += [f(x)]; m.a.weight.data.mul_(2); out += [f(x)]
""",
"same_module_used_twice": """
m = torch.nn.Linear(2, 2, bias=False).requires_grad_(False); m.weight.fill_(1); f = C(torch.nn.Sequential(m, m)); out = [f(x), f(x), f(x)]; m.weight.fill_(2); out += [f(x)]
""",
"deepcopy_of_compiled_module": """
import copy
m = torch.nn.Linear(2, 1, bias=False).requires_grad_(False); m.weight.fill_(1); f = C(m); f(x); f(x); g = copy.deepcopy(f); m.weight.fill_(5); out = [f(x), g(x)]; g.load_state_dict({k: v * 0 for k, v in g.state_dict().items()}); out += [f(x), g(x)]
""",
"deepcopy_of_module_inside": """
import copy
m = torch.nn.Linear(2, 1, bias=False).requires_grad_(False); m.weight.fill_(1)
def f(x): c = copy.deepcopy(m); c.weight.mul_(2); return c(x), m(x)
g = C(f); out = [g(x), g(x)]; m.weight.fill_(3); out += [g(x), m.weight]
""",
"pickle_of_module_inside_and_out": """
import pickle
m = torch.nn.Linear(2, 1, bias=False).requires_grad_(False); m.weight.fill_(2); f = C(m); f(x); n = pickle.loads(pickle.dumps(m)); g = C(n); n.weight.fill_(5); out = f(x), g(x), C(lambda x: pickle.loads(pickle.dumps(m))(x))(x)
""",
"weight_norm_reparametrized": """
m = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 1, bias=False)); f = C(m)
with torch.no_grad(): m.parametrizations.weight.original0.fill_(2); m.parametrizations.weight.original1.fill_(1)
out = [f(x).detach(), f(x).detach()]
with torch.no_grad(): m.parametrizations.weight.original0.fill_(6)
out += [f(x).detach()]; m.weight = torch.full((1, 2), 4.0); out += [f(x).detach()]
""",
"parametrization_registered_and_removed": """
import torch.nn.utils.parametrize as P
class S(torch.nn.Module):
    k = 3.0
    def forward(self, w): return w * self.k
m = torch.nn.Linear(2, 1, bias=False).requires_grad_(False); m.weight.fill_(1); f = C(m); out = [f(x), f(x)]; s = S(); P.register_parametrization(m, 'weight', s); out += [f(x)]; s.k = 5.0; out += [f(x)]; P.remove_parametrizations(m, 'weight'); out += [f(x)]
""",
"spectral_norm_updates_state": """
torch.manual_seed(0); m = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 2, bias=False)); f = C(m); y = torch.ones(3); out = [f(y).detach() for _ in range(3)]; m.eval(); out += [f(y).detach(), f(y).detach(), m.parametrizations.weight[0]._u]
""",
"pruning_mask": """
import torch.nn.utils.prune as prune
m = torch.nn.Linear(2, 1, bias=False); torch.nn.init.ones_(m.weight); f = C(m); out = [f(x).detach(), f(x).detach()]; prune.custom_from_mask(m, 'weight', torch.tensor([[1.0, 0.0]])); out += [f(x).detach()]; m.weight_mask.fill_(1); out += [f(x).detach()]; prune.remove(m, 'weight'); out += [f(x).detach()]
""",
"clip_gradients_inside": """
w = torch.nn.Parameter(torch.ones(2))
def f(x): (x * w).sum().backward(); n = torch.nn.utils.clip_grad_norm_([w], 1.0); return n, w.grad.clone()
g = C(f); out = []
for k in (1.0, 2.0, 3.0): w.grad = None; out.append(g(x * k))
""",
"parameters_to_vector": """
m = torch.nn.Linear(2, 1); f = C(lambda v: (torch.nn.utils.vector_to_parameters(v, m.parameters()), torch.nn.utils.parameters_to_vector(m.parameters()) * 2)[1]); out = f(torch.arange(3.0)), f(torch.ones(3)), m.weight
""",
"initializers_inside": """
def f(x): w = torch.empty(2, 2); torch.nn.init.kaiming_uniform_(w); b = torch.nn.init.constant_(torch.empty(2), 3.0); return x @ w + b
g = C(f); torch.manual_seed(0); out = g(x), g(x), g(x * 2), torch.rand(1)
""",
"fusing_conv_and_batch_norm": """
torch.manual_seed(0); m = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.BatchNorm2d(1)).eval().requires_grad_(False); y = torch.arange(4.0).view(1, 1, 2, 2); f = C(m); out = [f(y), f(y), f(y)]; m[1].running_mean.fill_(5); out += [f(y)]; m[0].weight.fill_(2); out += [f(y)]; m[1].eps = 3.0; out += [f(y)]; m[1].weight = None; out += [f(y)]
""",
"linear_chain_weights_written": """
torch.manual_seed(0); m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)).requires_grad_(False); y = torch.ones(3, 4); f = C(m); out = [f(y), f(y), f(y)]; m[0].bias.fill_(2); out += [f(y)]; m[1].weight.copy_(torch.ones(2, 4)); out += [f(y)]; m[0].weight[0].zero_(); out += [f(y)]
""",
"modules_iteration_inside": """
m = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.ReLU()).requires_grad_(False); m[0].weight.fill_(1); f = C(lambda x: (x * sum(p.sum() for p in m.parameters()), [n for n, _ in m.named_modules()], [type(v).__name__ for v in m.children()])); out = [f(x)]; m.add_module('z', torch.nn.Linear(1, 1).requires_grad_(False)); m.z.weight.fill_(1); m.z.bias.fill_(1); out += [f(x)]; m[0].weight.mul_(2); out += [f(x)]
""",
"apply_and_named_lookup_inside": """
m = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False).requires_grad_(False)); m[0].weight.fill_(1)
def f(x): m.apply(lambda v: v.weight.add_(1) if hasattr(v, 'weight') else None); return m.get_submodule('0')(x), m.get_parameter('0.weight').sum()
g = C(f); out = g(x), g(x), g(x), m[0].weight
""",
"module_call_patched_on_class": """
class M(torch.nn.Module):
    def forward(self, x): return x + 1
m = M(); f = C(m); out = [f(x), f(x)]; M.forward = lambda s, x: x * 9; out += [f(x)]; M.__call__ = lambda s, x: x * 0; out += [C(lambda x: m(x))(x)]
""",
"module_getattr_override": """
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.p = torch.nn.Parameter(torch.ones(2)); self.n = 0
    def __getattr__(self, k): return 3.0 if k == 'dyn' else super().__getattr__(k)
    def forward(self, x): return x * self.p * self.dyn
m = M(); f = C(m); out = [f(x).detach()]; m.dyn = 5.0; out += [f(x).detach()]; M.dyn = 8.0; del m.dyn; out += [f(x).detach()]
""",
"parameter_types_of_results": """
m = torch.nn.Linear(2, 1); f = C(lambda x: (m.weight, m.weight * 1, m.weight.data, m.weight.detach(), torch.nn.Parameter(x), x.as_subclass(torch.nn.Parameter))); f(x); r = f(x); out = [type(v).__name__ for v in r], [v.requires_grad for v in r], r[0] is m.weight
""",
"buffer_class": """
class M(torch.nn.Module):
    def __init__(self): super().__init__(); self.b = torch.nn.Buffer(torch.ones(2))
    def forward(self, x): return x * self.b
m = M(); f = C(m); out = [f(x)]; m.b = torch.nn.Buffer(torch.full((2,), 3.0)); out += [f(x)]; m.b = torch.full((2,), 4.0); out += [f(x), type(m.b).__name__, list(m.state_dict())]
""",
"register_module_name_with_default": """
class M(torch.nn.Module):
    scale: float = 2.0
    def forward(self, x, *a, s=None, **k): return x * (s or self.scale) + sum(a) + sum(k.values())
f = C(M()); out = f(x), f(x, 1, 2), f(x, s=5.0), f(x, 1, q=7), f(x)
""",
"train_returns_and_mode_inside": """
m = torch.nn.Dropout(1.0)
def f(x): was = m.training; m.eval(); y = m(x); m.train(was); return y, was
g = C(f); out = [g(x), g(x)]; m.eval(); out += [g(x), m.training]
""",
"extra_state_and_version": """
class M(torch.nn.Module):
    s = 1.0
    def get_extra_state(self): return self.s
    def set_extra_state(self, v): self.s = v
    def forward(self, x): return x * self.s
m = M(); f = C(m); out = [f(x)]; m.load_state_dict({'_extra_state': 4.0}); out += [f(x)]; m.set_extra_state(6.0); out += [f(x)]
""",
"optimizer_updates_seen": """
m = torch.nn.Linear(2, 1, bias=False); torch.nn.init.ones_(m.weight); o = torch.optim.SGD(m.parameters(), 0.1); f = C(m); out = []
for _ in range(4): o.zero_grad(); l = f(x).sum(); l.backward(); o.step(); out.append(l.detach())
""",
"average_of_weights": """
m = torch.nn.Linear(2, 1, bias=False).requires_grad_(False); m.weight.fill_(1); a = torch.optim.swa_utils.AveragedModel(m); f = C(a); out = [f(x)]; m.weight.fill_(3); a.update_parameters(m); a.update_parameters(m); out += [f(x)]; m.weight.fill_(9); a.update_parameters(m); out += [f(x)]
""",
}
