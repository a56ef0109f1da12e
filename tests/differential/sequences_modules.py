"""Sequences: modules and their state."""
from sequences import *  # noqa: F403
import copy, types, weakref, collections
class Block(nn.Module):
    def __init__(s, n=4, p=0.0):
        super().__init__()
        s.l = nn.Linear(n, n); s.scale = 2.0; s.flag = True; s.names = ["a", "b"]
        s.register_buffer("b", torch.ones(n)); s.p = p
    def forward(s, x):
        y = s.l(x) * s.scale
        if s.flag: y = y + s.b
        return y if s.training else y.relu()
@case
def attr_scalar_flag(c, L):
    m = Block(); f = c(m); x = R(2, 4)
    for i in range(8):
        L(f(x))
        if i == 1: m.scale = 3.0
        if i == 2: m.scale = 5
        if i == 3: m.flag = False
        if i == 4: m.eval()
        if i == 5: m.flag = None
        if i == 6: m.train(); m.flag = "yes"
@case
def attr_via_compiled(c, L):
    m = Block(); f = c(m); x = R(2, 4)
    L(f(x)); f.scale = 7.0; L(f(x), f.scale, m.scale); f.eval(); L(f(x), m.training, f.training); f.train(); L(f(x), m.training); f.b = torch.zeros(4); L(f(x)); L(m.b)
@case
def buffer_replaced_and_later(c, L):
    m = Block(); f = c(m); x = R(2, 4)
    L(f(x)); m.b = R(4); L(f(x)); m.b.add_(1); L(f(x)); m.register_buffer("b", None) if False else None
    m._buffers["b"] = R(4); L(f(x)); m.b = R(1); L(f(x)); m.b = R(4).double(); L.t(f, x); m.b = R(4); L(f(x))
@case
def buffer_registered_later(c, L):
    class M(nn.Module):
        def forward(s, x):
            if hasattr(s, "mask"): x = x * s.mask
            if not hasattr(s, "cache"): s.register_buffer("cache", x.sum(0).detach(), persistent=False)
            return x + s.cache
    m = M(); f = c(m); x = R(2, 4)
    L(f(x)); L(f(x * 2)); m.register_buffer("mask", torch.tensor([1., 0, 1, 0])); L(f(x)); L(f(x)); del m.cache; L(f(x * 3), list(m._buffers)); del m.mask; L(f(x)); L(list(m.state_dict()))
@case
def param_replaced(c, L):
    m = nn.Linear(4, 4); f = c(m); x = R(2, 4)
    L(f(x)); m.weight = nn.Parameter(R(4, 4)); L(f(x)); m.weight.data = R(4, 4); L(f(x)); m.weight.data.mul_(2); L(f(x)); m.bias = None; L(f(x)); m.weight = nn.Parameter(R(3, 4)); L(f(x)); m.bias = nn.Parameter(R(3)); L(f(x))
    f(x).sum().backward(); L(m.weight.grad, m.bias.grad)
@case
def param_data_swap_dtype(c, L):
    m = nn.Linear(4, 4); f = c(m); x = R(2, 4)
    L(f(x)); m.double(); L.t(f, x); L(f(x.double())); m.float(); L(f(x)); m.to(torch.bfloat16); L(f(x.bfloat16())); m.float(); L(f(x)); m.weight.requires_grad_(False); L(f(x)); m.requires_grad_(False); L(f(x)); m.requires_grad_(True); L(f(x))
@case
def module_list_changes(c, L):
    class M(nn.Module):
        def __init__(s):
            super().__init__(); s.ls = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        def forward(s, x):
            for i, l in enumerate(s.ls): x = l(x) + i
            return x
    m = M(); f = c(m); x = R(2, 4)
    L(f(x)); m.ls.append(nn.Linear(4, 4)); L(f(x)); m.ls[0] = nn.Tanh(); L(f(x)); del m.ls[1]; L(f(x)); m.ls.insert(0, nn.ReLU()); L(f(x)); m.ls.extend([nn.Sigmoid()]); L(f(x)); m.ls = nn.ModuleList(); L(f(x))
@case
def module_dict_changes(c, L):
    class M(nn.Module):
        def __init__(s):
            super().__init__(); s.d = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Tanh()})
        def forward(s, x, k=None):
            if k: return s.d[k](x)
            return sum(v(x) for v in s.d.values()), list(s.d.keys()), len(s.d), "b" in s.d
    m = M(); f = c(m); x = R(2, 4)
    L(f(x)); m.d["c"] = nn.ReLU(); L(f(x)); L(f(x, "c")); m.d.pop("b"); L(f(x)); L.t(f, x, "b"); m.d.update({"a": nn.Sigmoid()}); L(f(x)); L(f(x, "a")); m.d.clear(); L.t(f, x)
@case
def parameter_list_dict(c, L):
    class M(nn.Module):
        def __init__(s):
            super().__init__(); s.ps = nn.ParameterList([nn.Parameter(R(4)) for _ in range(2)]); s.pd = nn.ParameterDict({"a": nn.Parameter(R(4))})
        def forward(s, x):
            for p in s.ps: x = x + p
            for k, p in s.pd.items(): x = x * p + len(k)
            return x
    m = M(); f = c(m); x = R(2, 4)
    L(f(x)); m.ps.append(nn.Parameter(R(4))); L(f(x)); m.ps[0] = nn.Parameter(R(4)); L(f(x)); m.pd["long"] = nn.Parameter(R(4)); L(f(x)); del m.pd["a"]; L(f(x)); f(x).sum().backward(); L([p.grad for p in m.ps], dict(m.pd))
@case
def train_eval_bn(c, L):
    m = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()); f = c(m); x = R(2, 2, 5, 5)
    for mode in [1, 1, 0, 1, 0, 0, 1]:
        m.train(bool(mode)); L(f(x)); L(m[1].running_mean, m[1].running_var, m[1].num_batches_tracked)
    m[1].momentum = None; L(f(x)); L(m[1].running_mean, m[1].num_batches_tracked); m[1].momentum = 0.5; L(f(x)); m[1].track_running_stats = False; L(f(x)); m[1].reset_running_stats(); L(f(x), m[1].running_mean)
@case
def bn_only_part_eval(c, L):
    m = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5), nn.BatchNorm1d(4)); f = c(m); x = R(8, 4)
    m[1].eval()
    for i in range(8):
        if i == 2: m[0].eval()
        if i == 4: m[2].eval(); m[0].train()
        if i == 6: m[0].eps = 0.1
        L(f(x), m[0].running_mean, m[2].running_mean)
@case
def state_dict_load(c, L):
    m = Block(); m2 = Block(); f = c(m); x = R(2, 4)
    L(f(x)); m.load_state_dict(m2.state_dict()); L(f(x)); m.load_state_dict({k: v * 2 for k, v in m2.state_dict().items()}, assign=True); L(f(x)); L(m.l.weight); sd = copy.deepcopy(m.state_dict()); m.l.weight.data.zero_(); L(f(x)); m.load_state_dict(sd); L(f(x)); L(list(m.state_dict())); L.t(m.load_state_dict, {"l.weight": R(2, 2)})
@case
def forward_hooks_add_remove(c, L):
    m = Block(); f = c(m); x = R(2, 4); log = []
    L(f(x)); h = m.register_forward_hook(lambda mod, i, o: (log.append("post"), o * 2)[1]); L(f(x), list(log)); L(f(x), list(log)); h2 = m.l.register_forward_pre_hook(lambda mod, i: (log.append("pre"), (i[0] + 1,))[1]); L(f(x), list(log)); h.remove(); L(f(x), list(log)); h2.remove(); L(f(x), list(log)); h3 = m.l.register_forward_hook(lambda mod, i, o: None); L(f(x)); h3.remove(); L(f(x))
@case
def pure_hooks_order(c, L):
    m = nn.Sequential(nn.Linear(4, 4), nn.ReLU()); f = c(m); x = R(2, 4)
    L(f(x)); h = m[0].register_forward_hook(lambda mod, i, o: o * 2); L(f(x)); h2 = m[0].register_forward_hook(lambda mod, i, o: o + 1); L(f(x)); h3 = m[0].register_forward_hook(lambda mod, i, o: o * 3, prepend=True); L(f(x)); h.remove(); L(f(x)); h4 = m.register_forward_pre_hook(lambda mod, a, k: ((a[0] - 1,), k), with_kwargs=True); L(f(x)); h5 = m.register_forward_hook(lambda mod, a, k, o: o - len(k), with_kwargs=True); L(f(x)); h2.remove(); h3.remove(); h4.remove(); h5.remove(); L(f(x))
@case
def hook_always_call(c, L):
    class M(nn.Module):
        def forward(s, x):
            if x.shape[0] == 3: raise ValueError("three")
            return x * 2
    m = M(); log = []; m.register_forward_hook(lambda *a: log.append(len(a)), always_call=True); f = c(m)
    for n in [2, 3, 2, 3, 4, 3, 3]: L.t(f, R(n)); L(list(log))
@case
def global_module_hooks(c, L):
    m = nn.Linear(4, 4); f = c(m); x = R(2, 4); log = []
    L(f(x)); h = nn.modules.module.register_module_forward_hook(lambda mod, i, o: (log.append(type(mod).__name__), o + 1)[1]); L(f(x), list(log)); L(f(x), list(log)); h2 = nn.modules.module.register_module_forward_pre_hook(lambda mod, i: log.append("p")); L(f(x), list(log)); h.remove(); L(f(x), list(log)); h2.remove(); L(f(x), list(log))
@case
def backward_hooks_module(c, L):
    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)); f = c(m); log = []
    def go():
        x = R(2, 4, grad=True); m.zero_grad(); f(x).sum().backward(); L(x.grad, m[0].weight.grad, list(log))
    go(); h = m[1].register_full_backward_hook(lambda mod, gi, go: (log.append((len(gi), len(go))), (gi[0] * 2,))[1]); go(); go(); h2 = m[0].register_full_backward_pre_hook(lambda mod, g: log.append("pre")); go(); h.remove(); go(); h2.remove(); go()
@case
def state_dict_hooks(c, L):
    m = nn.Linear(3, 3); f = c(m); x = R(2, 3); n = []
    L(f(x)); m._register_state_dict_hook(lambda mod, sd, p, md: n.append(1)); L(len(m.state_dict()), n); m.register_load_state_dict_post_hook(lambda mod, k: (mod.weight.data.mul_(2), None)[1]); L(f(x)); m.load_state_dict(m.state_dict()); L(f(x)); m.load_state_dict(m.state_dict()); L(f(x), n); L(f(x))
@case
def forward_monkeypatched(c, L):
    m = nn.Linear(4, 4); f = c(m); x = R(2, 4)
    L(f(x)); m.forward = types.MethodType(lambda s, x: F.linear(x, s.weight) * 3, m); L(f(x)); m.forward = lambda x: x + 1; L(f(x)); del m.forward; L(f(x)); old = nn.Linear.forward; nn.Linear.forward = lambda s, x: x - 1; L(f(x)); nn.Linear.forward = old; L(f(x))
@case
def sub_forward_monkeypatched(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.a = nn.Linear(4, 4); s.b = nn.ReLU()
        def forward(s, x): return s.b(s.a(x))
    m = M(); f = c(m); x = R(2, 4)
    L(f(x)); m.a.forward = lambda x: x * 2; L(f(x)); m.b.forward = torch.tanh; L(f(x)); del m.a.forward; L(f(x)); M.forward = lambda s, x: s.a(x); L(f(x)); object.__setattr__(m, "a", nn.Identity()); L(f(x)); del m.__dict__["a"]; L(f(x)); m.__class__ = type("N", (M,), {"forward": lambda s, x: s.b(x) - 1}); L(f(x))
@case
def call_impl_and_method_compile(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.w = nn.Parameter(R(4)); s.k = 1
        def forward(s, x): return x * s.w + s.k
        def other(s, x): return s.forward(x) - s.k * 3
    m = M(); x = R(2, 4); m.forward = c(m.forward); L(m(x)); m.k = 2; L(m(x)); g = c(m.other); L(g(x)); m.k = 3; L(g(x)); L(m(x)); h = m.register_forward_hook(lambda s, i, o: o * 10); L(m(x)); h.remove(); L(m(x))
@case
def compiled_two_instances(c, L):
    class M(nn.Module):
        def __init__(s, k): super().__init__(); s.k = k; s.w = nn.Parameter(R(3))
        def forward(s, x): return x * s.w + s.k
    M.forward = c(M.forward); a, b = M(1), M(2); x = R(2, 3)
    for i in range(4): L(a(x), b(x)); a.k += i; 
    del a; d = M(9); L(d(x)); L(b(x))
@case
def decorator_on_method(c, L):
    class M(nn.Module):
        def __init__(s, k): super().__init__(); s.k = k
        @c
        def forward(s, x, *, y=1): return x * s.k + y
    ms = [M(i) for i in range(3)]; x = R(3)
    for m in ms: L(m(x)); L(m(x, y=2)); m.k += 10; L(m(x))
    class P:
        v = 2
        @staticmethod
        @c
        def s(x): return x * P.v
        @classmethod
        @c
        def k(cls, x): return x + cls.v
        @property
        @c
        def p(s): return torch.ones(2) * s.v
    p = P(); L(P.s(x), P.k(x), p.p); P.v = 5; L(P.s(x), P.k(x), p.p); p.v = 6; L(P.s(x), P.k(x), p.p)
@case
def getattr_module(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.inner = nn.Linear(3, 3); s.extra = {"gain": 2.0}
        def __getattr__(s, n):
            try: return super().__getattr__(n)
            except AttributeError:
                if n in s.__dict__["extra"]: return s.__dict__["extra"][n]
                return getattr(super().__getattr__("inner"), n)
        def forward(s, x): return s.inner(x) * s.gain + s.bias
    m = M(); f = c(m); x = R(2, 3)
    L(f(x)); m.extra["gain"] = 4.0; L(f(x)); m.extra["bias"] = 1.0; L(f(x)); del m.extra["bias"]; L(f(x)); m.inner.bias = None; L.t(f, x); m.extra = {"gain": 1.0, "bias": 0}; L(f(x)); m.gain = 9.; L(f(x)); del m.gain; L(f(x))
@case
def lazy_module(c, L):
    m = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2)); torch.manual_seed(3); f = c(m); x = R(4, 3)
    for i in range(4): L(f(x))
    L(type(m[0])); L(m[0].weight); L.t(f, R(4, 7)); y = f(x); y.sum().backward(); L(m[0].weight.grad)
@case
def lazy_conv_bn(c, L):
    torch.manual_seed(3); m = nn.Sequential(nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2)); f = c(m); x = R(2, 2, 5, 5)
    for i in range(4): L(f(x))
    m.eval(); L(f(x)); L(f(x), m[1].running_mean)
@case
def weight_norm_param(c, L):
    m = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)); f = c(m); x = R(2, 4)
    L(f(x)); m.parametrizations.weight.original0.data.mul_(2); L(f(x)); m.weight = R(4, 4); L(f(x)); f(x).sum().backward(); L(m.parametrizations.weight.original0.grad, m.parametrizations.weight.original1.grad); torch.nn.utils.parametrize.remove_parametrizations(m, "weight"); L(f(x)); L(type(m)); m.weight.data.zero_(); L(f(x))
@case
def weight_norm_old(c, L):
    import warnings; warnings.simplefilter("ignore")
    m = torch.nn.utils.weight_norm(nn.Linear(4, 4)); f = c(m); x = R(2, 4)
    L(f(x)); m.weight_g.data.mul_(2); L(f(x)); m.weight_v.data.add_(1); L(f(x)); f(x).sum().backward(); L(m.weight_g.grad, m.weight_v.grad); torch.nn.utils.remove_weight_norm(m); L(f(x)); m.weight.data.zero_(); L(f(x)); L(f(x))
@case
def spectral_norm_param(c, L):
    torch.manual_seed(1); m = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)); f = c(m); x = R(2, 4)
    for i in range(4): L(f(x)); L(m.parametrizations.weight[0]._u)
    m.eval(); L(f(x)); L(m.parametrizations.weight[0]._u); L(f(x)); m.train(); L(f(x)); L(m.parametrizations.weight[0]._u); f(x).sum().backward(); L(m.parametrizations.weight.original.grad)
@case
def spectral_norm_old(c, L):
    torch.manual_seed(1); m = torch.nn.utils.spectral_norm(nn.Linear(4, 4)); f = c(m); x = R(2, 4)
    for i in range(4): L(f(x)); L(m.weight_u)
    m.eval(); L(f(x)); L(m.weight_u); L(f(x)); m.train(); L(f(x)); L(m.weight_u)
@case
def orthogonal_param(c, L):
    torch.manual_seed(1); m = torch.nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)); f = c(m); x = R(2, 4)
    L(f(x)); m.parametrizations.weight.original.data.mul_(1.5); L(f(x)); L(f(x)); f(x).sum().backward(); L(m.parametrizations.weight.original.grad); L(f(x)); L(f(x))
@case
def custom_parametrize(c, L):
    class S(nn.Module):
        def forward(s, w): return w.triu() + w.triu(1).T
        def right_inverse(s, w): return w.triu()
    m = nn.Linear(3, 3); f = c(m); x = R(2, 3)
    L(f(x)); torch.nn.utils.parametrize.register_parametrization(m, "weight", S()); L(f(x)); m.weight = R(3, 3); L(f(x));
    with torch.nn.utils.parametrize.cached(): L(f(x)); L(f(x))
    torch.nn.utils.parametrize.register_parametrization(m, "bias", nn.Tanh()) ; L(f(x)); torch.nn.utils.parametrize.remove_parametrizations(m, "bias"); L(f(x)); torch.nn.utils.parametrize.remove_parametrizations(m, "weight", leave_parametrized=False); L(f(x))
@case
def pruning(c, L):
    import torch.nn.utils.prune as prune
    m = nn.Linear(4, 4); f = c(m); x = R(2, 4)
    L(f(x)); prune.l1_unstructured(m, "weight", amount=0.5); L(f(x)); m.weight_orig.data.mul_(2); L(f(x)); prune.random_unstructured(m, "bias", amount=2); L(f(x)); prune.remove(m, "weight"); L(f(x)); m.weight.data.add_(1); L(f(x)); m.bias_mask.fill_(1.); L(f(x))
@case
def counter_attr(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.n = 0; s.hist = []; s.register_buffer("t", torch.zeros((), dtype=torch.long))
        def forward(s, x):
            s.n += 1; s.hist.append(s.n); s.t += 1
            return x * s.n + s.t
    m = M(); f = c(m); x = R(3)
    for i in range(7):
        L(f(x), m.n, list(m.hist), m.t)
        if i == 3: m.n = 100
        if i == 4: m.hist = []
@case
def cache_dict_attr(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.cache = {}
        def forward(s, x):
            k = x.shape[0]
            if k not in s.cache: s.cache[k] = torch.arange(k) * 2.0
            return x + s.cache[k]
    m = M(); f = c(m)
    for n in [3, 4, 3, 5, 4, 3]: L(f(R(n)), sorted(m.cache), m.cache)
    m.cache[3] = torch.zeros(3); L(f(R(3))); m.cache.clear(); L(f(R(3)), m.cache)
@case
def tensor_attr_ema(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.l = nn.Linear(3, 3); s.ema = torch.zeros(3); s.decay = 0.9
        def forward(s, x):
            y = s.l(x)
            if s.training: s.ema = s.ema * s.decay + (1 - s.decay) * y.mean(0).detach()
            return y - s.ema
    m = M(); f = c(m); x = R(2, 3)
    for i in range(8):
        L(f(x), m.ema)
        if i == 3: m.eval()
        if i == 5: m.train(); m.decay = 0.5
@case
def tensor_attr_inplace(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.register_buffer("q", torch.zeros(4, 3)); s.register_buffer("ptr", torch.zeros(1, dtype=torch.long)); s.i = 0
        def forward(s, x):
            p = int(s.ptr); s.q[p] = x; s.ptr[0] = (p + 1) % 4; s.i = p
            return s.q.sum(0)
    m = M(); f = c(m)
    for i in range(7): L(f(R(3)), m.q, m.ptr, m.i)
@case
def submodule_call_in_loop_random_order(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.a = nn.Linear(3, 3); s.b = nn.Linear(3, 3); s.order = ["a", "b"]
        def forward(s, x):
            for n in s.order: x = getattr(s, n)(x)
            return x
    m = M(); f = c(m); x = R(2, 3)
    for o in [["a", "b"], ["b", "a"], ["a"], ["a", "a"], [], ("b",), ["a", "b"]]: m.order = o; L(f(x))
    m.order = ["zz"]; L.t(f, x)
@case
def named_parameters_iter(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.a = nn.Linear(3, 3); s.b = nn.Linear(3, 3, bias=False)
        def forward(s, x):
            r = sum((p ** 2).sum() for n, p in s.named_parameters() if "weight" in n)
            return s.b(s.a(x)) + r * 0.01, [n for n, _ in s.named_modules()], sum(p.numel() for p in s.parameters() if p.requires_grad)
    m = M(); f = c(m); x = R(2, 3)
    L(f(x)); m.a.weight.data.zero_(); L(f(x)); m.cc = nn.Linear(3, 3); L(f(x)); m.b.weight.requires_grad_(False); L(f(x)); m.register_parameter("weight_x", nn.Parameter(R(2))); L(f(x)); m.a = nn.Identity(); L(f(x))
@case
def deepcopy_module(c, L):
    m = Block(); f = c(m); x = R(2, 4); L(f(x)); m2 = copy.deepcopy(m); m2.scale = 4.; f2 = c(m2); L(f2(x)); L(f(x)); m2.l.weight.data.zero_(); L(f2(x), f(x)); 
    m3 = copy.deepcopy(f); L(m3(x)); L(m3(x)); L(f(x))
@case
def pickle_module(c, L):
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU()); f = c(m); x = R(2, 3)
    for i in range(6):
        L(f(x)); m = pickle.loads(pickle.dumps(m)); m[0].weight.data.add_(i); f = c(m)
@case
def share_weights(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s.e = nn.Embedding(5, 3); s.o = nn.Linear(3, 5, bias=False); s.o.weight = s.e.weight
        def forward(s, i): return s.o(s.e(i))
    m = M(); f = c(m); i = torch.tensor([0, 3, 4])
    L(f(i)); f(i).sum().backward(); L(m.e.weight.grad); m.o.weight = nn.Parameter(m.e.weight.detach().clone()); L(f(i)); m.e.weight.data.mul_(2); L(f(i)); m.o.weight = m.e.weight; L(f(i)); m.zero_grad(); f(i).sum().backward(); L(m.e.weight.grad, len(list(m.parameters())))
@case
def functional_call_module(c, L):
    m = nn.Linear(3, 3); x = R(2, 3)
    def g(p, x): return torch.func.functional_call(m, p, (x,))
    f = c(g); P = dict(m.named_parameters())
    L(f(P, x)); P2 = {k: v.detach() * 2 for k, v in P.items()}; L(f(P2, x)); L(f({"weight": P2["weight"]}, x)); L(f({}, x)); L(f(P, x)); L.t(f, {"weight": P2["weight"], "bias": R(3, grad=True)}, x); L.t(f, {"nope": x}, x)
@case
def module_to_inside(c, L):
    m = nn.Linear(3, 3)
    def g(x): return m.to(x.dtype)(x)
    f = c(g)
    for d in [torch.float32, torch.float64, torch.float32, torch.bfloat16, torch.float64, torch.float32]: L(f(R(2, 3).to(d)), m.weight.dtype)
@case
def train_inside(c, L):
    m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    def g(x):
        was = m.training; m.eval(); y = m(x); m.train(was); return y
    f = c(g); x = R(4, 3)
    for i in range(6): m.train(i % 2 == 0); L(f(x), m.training, m[1].running_mean)
@case
def extra_state_apply(c, L):
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    def init(mod):
        if isinstance(mod, nn.Linear): nn.init.constant_(mod.weight, 0.3); nn.init.zeros_(mod.bias)
    def g(x): m.apply(init); return m(x)
    f = c(g); x = R(2, 3)
    for i in range(6): m[0].weight.data.fill_(i); L(f(x), m[0].weight)
@case
def module_slots_property(c, L):
    class M(nn.Module):
        def __init__(s): super().__init__(); s._g = 1.0; s.calls = 0
        @property
        def gain(s): s.calls += 1; return s._g
        @gain.setter
        def gain(s, v): s._g = v * 2
        def forward(s, x): return x * s.gain
    m = M(); f = c(m); x = R(3)
    for i in range(6): L(f(x), m.calls); m.gain = i
@case
def class_level_list(c, L):
    class M(nn.Module):
        items = []
        def forward(s, x): M.items.append(x.sum()); return x * len(M.items)
    m = M(); f = c(m)
    for i in range(6): L(f(R(3)), len(M.items), M.items)
    M.items = []; L(f(R(3)), len(M.items))
@case
def module_called_with_kwargs(c, L):
    class M(nn.Module):
        def forward(s, x, *args, scale=1.0, **kw): return x * scale + sum(args) + sum(kw.values()), list(kw)
    f = c(M()); x = R(3)
    L(f(x)); L(f(x, 1)); L(f(x, 1, 2.5)); L(f(x, scale=3)); L(f(x, scale=x)); L(f(x, b=1, a=2)); L(f(x, a=2, b=1)); L(f(x=x)); L.t(f); L.t(f, scale=2)
