"""Sequences: tensors: views, mutation, subclasses, torch_function, layouts, dtypes, custom ops, modes."""
from sequences import *  # noqa: F403
import contextlib, copy, functools
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
@case
def mutate_args(c, L):
    def g(x, y): x.add_(y); y[0] = x.sum(); x.t_() if x.dim() == 2 else None; return x
    f = c(g)
    for s in [(3,), (2, 3), (3, 2), (2, 3), (3,), (4,)]: x = R(*s); y = R(s[-1]); r = f(x, y); L(r is x, x, y, x._version)
@case
def versions(c, L):
    def g(x, b): b.add_(x); b.mul_(2); return x + b
    f = c(g)
    for i in range(6): x, b = R(3), R(3); v = b._version; f(x, b); L(b._version > v, x._version)
@case
def view_returned_aliases(c, L):
    f = c(lambda x: (x[0], x.t(), x.view(-1)[1:3], x.expand(2, *x.shape), x.unbind(0), x.split(1, 1), x.diagonal(), x.real))
    for n in [2, 3, 2, 4, 3, 2]:
        x = R(n, n); r = f(x); r[0].fill_(7); L(x, r); L(r[1]._base is x, r[0].storage_offset(), r[2]._is_view())
@case
def view_of_intermediate(c, L):
    def g(x): y = x * 2; return y, y[0], y.view(-1)
    f = c(g)
    for n in [2, 3, 2, 4, 3, 2]: y, a, b = f(R(n, n)); a.fill_(9); L(y, b, b.data_ptr() == y.data_ptr())
@case
def resize_set_data(c, L):
    def g(x): b = x + 1; a = b.view(-1); a.resize_(2); return b + 1, a.shape
    f = c(g)
    for n in [3, 4, 3, 5]: L(f(R(n)))
    def g2(x, y): x.data = y; return x * 2
    f = c(g2)
    for n in [3, 4, 3]: x, y = R(2), R(n); L(f(x, y), x, x.data_ptr() == y.data_ptr())
    def g3(x, y): x.set_(y); return x + 1
    f = c(g3)
    for n in [3, 4, 3]: x, y = R(2), R(n); L(f(x, y), x)
@case
def strides_layouts(c, L):
    f = c(lambda x: (x * 2, x.contiguous(), x.is_contiguous(), x.stride(), x.reshape(-1), torch.empty_like(x).stride(), x.clone(), x.sum(0)))
    for x in [R(3, 4), R(4, 3).t(), R(6, 8)[::2, ::2], R(3, 1).expand(3, 4), R(2, 3, 4, 4).to(memory_format=torch.channels_last), R(3, 4), R(4, 3).t(), R(2, 3, 4, 4), R(5, 4)[1:4]]: L(f(x))
@case
def dtypes_change(c, L):
    f = c(lambda x: (x + 1, x * 2.5, x / 2, x.sum(), x.mean(dtype=torch.float32), x.float() ** 2, x == 1))
    for d in [torch.float32, torch.int64, torch.float64, torch.int32, torch.bool, torch.bfloat16, torch.float16, torch.uint8, torch.complex64, torch.int8]: L.t(f, torch.tensor([0, 1, 2, 3]).to(d))
@case
def zero_dim_promote(c, L):
    f = c(lambda x, y: (x + y, x * y, torch.where(x > 0, x, y) if not x.is_complex() else x, x.add(y, alpha=2)))
    for a, b in [(R(3), R(())), (R(3), torch.tensor(2)), (R(3).half(), R(())), (torch.arange(3), torch.tensor(1.5)), (torch.arange(3), torch.tensor(1.5, dtype=torch.float64)), (R(3), R(3).double()), (torch.tensor([True, False]), torch.tensor(3)), (R(()), R(()))]: L.t(f, a, b)
@case
def rank_changes(c, L):
    f = c(lambda x: x.flatten().cumsum(0) + x.dim())
    for s in [(3,), (2, 2), (), (1, 2, 3), (3,), (0,), (0, 3), (2, 2)]: L(f(R(*s) if s else R(1)[0]))
@case
def dynamic_sizes_hard(c, L):
    def g(x, y): z = torch.cat([x, y]); n = z.shape[0]; return z.view(n // 2, 2) if n % 2 == 0 else z, torch.arange(n), torch.zeros(x.shape[0], y.shape[0]), x[: n // 3], x.repeat(2), F.pad(x, (1, n)), x.new_full((n,), n), torch.eye(n), x.unfold(0, 2, 1) if n > 3 and x.shape[0] > 1 else None, z.chunk(2), z.topk(min(2, n))
    f = c(g)
    for a, b in [(2, 2), (3, 3), (3, 4), (4, 3), (1, 1), (5, 2), (2, 1), (7, 7)]: L(f(R(a), R(b)))
@case
def dynamic_conv_attn(c, L):
    conv = nn.Conv1d(2, 3, 3, padding=1); att = nn.MultiheadAttention(4, 2, batch_first=True); ln = nn.LayerNorm(4)
    f = c(lambda x: F.max_pool1d(conv(x), 2)); g = c(lambda x, m=None: ln(att(x, x, x, attn_mask=m)[0])); sd = c(lambda q, k, causal=False: F.scaled_dot_product_attention(q, k, k, is_causal=causal))
    for n in [4, 5, 6, 8, 4, 7]: L(f(R(2, 2, n))); L(g(R(2, n, 4))); L(sd(R(1, 2, n, 4), R(1, 2, n, 4), n % 2 == 0))
    L(g(R(2, 3, 4), torch.ones(3, 3).tril() == 0)); att.eval(); L(g(R(2, 3, 4)))
@case
def int_indexing(c, L):
    def g(x, i, m): x[i] = 0; x[m] += 1; x[..., -1] *= 2; x[None, 0:1]; return x[i], x[m], x[[0, 1]], x[:, None].shape, x[i, -1], x.index_select(0, i), x.take(i), x[torch.tensor(1)], x[1:][::2] if True else 0
    f = c(g)
    for i in [[0], [1, 1], [2], [0, 2], [-1], [1]]: x = A(3, 2); L(f(x, torch.tensor(i), x.sum(1) > 0 if i != [-1] else torch.tensor([False] * 3)) if i != [-1] else 0, x)
@case
def scatter_index_put(c, L):
    def g(x, i, v): x.index_put_((i,), v, accumulate=True); y = x.clone(); y.scatter_(0, i, v); y.index_add_(0, i, v); return y, x.gather(0, i), torch.bincount(i, minlength=4), x.scatter_reduce(0, i, v, "amax"), torch.histc(x, 3), x.masked_fill_(x > 1, -1)
    f = c(g)
    for i in [[0, 1], [1, 2], [3, 3], [0], [2, 0], [1]]: x = torch.zeros(4); L(f(x, torch.tensor(i), R(len(i))), x)
@case
def out_args(c, L):
    def g(x, o): r = torch.add(x, 1, out=o); torch.mul(x, 2, out=o[:1]) if x.numel() == 1 else None; return r is o, r
    f = c(g)
    for n, m in [(3, 3), (4, 4), (3, 0), (4, 2), (3, 3), (1, 1)]:
        o = torch.empty(m); L.t(f, R(n), o); L(o.shape, o if n == m else None)
    f = c(lambda x, a, b: torch.max(x, 0, out=(a, b)))
    for i in range(3): a, b = torch.empty(2), torch.empty(2, dtype=torch.long); L(f(R(3, 2), a, b), a, b)
@case
def subclass_plain(c, L):
    class S(torch.Tensor):
        def twice(s): return s * 2
    f = c(lambda x: (x + 1, x.sum(), type(x + 1).__name__, isinstance(x, S), x.twice() if isinstance(x, S) else None))
    for x in [R(3), R(3).as_subclass(S), R(3), R(4).as_subclass(S), R(4), R(3).as_subclass(S)]: L(f(x))
    p = nn.Parameter(R(3)); L(f(p)); f2 = c(lambda x: torch.Tensor.as_subclass(x, S) * 2)
    for i in range(3): L(f2(R(2)))
@case
def subclass_attrs(c, L):
    class M(torch.Tensor):
        @staticmethod
        def __new__(cls, d, unit): t = torch.as_tensor(d).as_subclass(cls); t.unit = unit; return t
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            r = super().__torch_function__(func, types, args, kwargs or {}); u = [a.unit for a in args if isinstance(a, M)]
            if isinstance(r, M) and u and "unit" not in r.__dict__: r.unit = "*".join(u) if func is torch.Tensor.mul else u[0]
            return r
    f = c(lambda x, y: (x * y, (x * y).unit if isinstance(x, M) else 0, x.unit))
    for u, v in [("m", "s"), ("m", "m"), ("kg", "s"), ("m", "s")]: r = f(M(R(3), u), M(R(3), v)); L(r, r[0].unit)
    L.t(f, R(3), R(3)); L(f(M(R(3), "a"), R(3)))
@case
def torch_function_duck(c, L):
    class D:
        def __init__(s, t, n=None): s.t = t; s.n = [] if n is None else n
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            ns = [a for a in args if isinstance(a, D)]; ns[0].n.append(func.__name__); return D(func(*[a.t if isinstance(a, D) else a for a in args], **(kwargs or {})), ns[0].n)
    f = c(lambda d, x: (torch.add(torch.sin(d), x), torch.sum(d)))
    for i in range(6): d = D(R(3)); r = f(d, R(3)); L(r[0].t, r[1].t, d.n)
@case
def torch_function_modes(c, L):
    class Tm(TorchFunctionMode):
        def __init__(s): super().__init__(); s.log = []
        def __torch_function__(s, func, types, args=(), kwargs=None): s.log.append(getattr(func, "__name__", "?")); return func(*args, **(kwargs or {})) * 1 if getattr(func, "__name__", "") != "sin" else args[0] * 100
    f = c(lambda x: torch.sin(x) + 1); x = R(3); L(f(x))
    for i in range(3):
        m = Tm()
        with m: y = f(x)
        L(y, m.log); L(f(x))
    def g(x):
        with Tm() as m: y = torch.sin(x)
        return y, m.log
    h = c(g)
    for i in range(3): L(h(x))
@case
def dispatch_modes(c, L):
    class Dm(TorchDispatchMode):
        def __init__(s): super().__init__(); s.log = []
        def __torch_dispatch__(s, func, types, args=(), kwargs=None): s.log.append(func._schema.name); return func(*args, **(kwargs or {}))
    f = c(lambda x: torch.sin(x) + 1); x = R(3); L(f(x))
    for i in range(3):
        m = Dm()
        with m: y = f(x)
        L(y); L(len(m.log) > 0 if True else 0); L(f(x))
    from torch.utils.flop_counter import FlopCounterMode
    g = c(lambda a, b: a @ b); a, b = R(4, 4), R(4, 4); g(a, b); g(a, b)
    with FlopCounterMode(display=False) as fc: g(a, b)
    L(fc.get_total_flops())
@case
def dispatch_subclass(c, L):
    class W(torch.Tensor):
        @staticmethod
        def __new__(cls, t): r = torch.Tensor._make_wrapper_subclass(cls, t.shape, dtype=t.dtype, requires_grad=t.requires_grad); r.t = t; return r
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            un = lambda a: a.t if isinstance(a, W) else a
            r = func(*torch.utils._pytree.tree_map(un, args), **torch.utils._pytree.tree_map(un, kwargs or {})); return torch.utils._pytree.tree_map(lambda a: W(a) if isinstance(a, torch.Tensor) else a, r)
        def __tensor_flatten__(s): return ["t"], None
        @staticmethod
        def __tensor_unflatten__(i, m, o, st): return W(i["t"])
    f = c(lambda x, y: x.sin() + y * 2)
    for i in range(6): x = W(R(3)) if i % 2 else R(3); r = f(x, R(3)); L(type(r).__name__, r.t if isinstance(r, W) else r)
@case
def parameters_buffers_types(c, L):
    f = c(lambda x: (x, x * 2, isinstance(x, nn.Parameter), isinstance(x, nn.Buffer), x.requires_grad, type(x).__name__))
    for x in [R(3), nn.Parameter(R(3)), nn.Buffer(R(3)), nn.Parameter(R(3), requires_grad=False), R(3, grad=True), R(3)]: L(f(x))
    g = c(lambda x: nn.Parameter(x * 2)); 
    for i in range(4): L(g(R(3)))
@case
def sparse_quant_nested(c, L):
    f = c(lambda x, y: x @ y)
    for i in range(6): x = R(3, 3).relu(); L(f(x.to_sparse() if i % 2 else x, R(3, 2)))
    x = R(3, 3).relu(); L(f(x.to_sparse_csr(), R(3, 2))); g = c(lambda a, b: torch.nested.nested_tensor([a, b]).to_padded_tensor(0.0) * 2)
    for n in [2, 3, 2]: L(g(R(n), R(3)))
    q = c(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()); L(q(R(3))); L(q(R(3)))
@case
def complex_conj_neg(c, L):
    f = c(lambda x: (x.conj() * 2, x.abs(), x.real + x.imag, torch.view_as_real(x), x.conj().is_conj(), x.angle(), x * 1j, torch.fft.fft(x)))
    for n in [2, 3, 2, 4]: x = torch.complex(R(n), R(n)); L(f(x)); L(f(x.conj()))
    g = c(lambda x: x.imag.neg() + torch.view_as_real(x.conj().resolve_conj())[..., 1]); L(g(torch.complex(R(2), R(2)))); L(g(torch.complex(R(2), R(2))))
@case
def meta_device_vals(c, L):
    f = c(lambda x: (x.device, x.dtype, x.to("cpu", torch.float64) if x.device.type == "cpu" else x.shape, x.is_cuda, x.layout, x.device == torch.device("cpu"), x.type(), x.element_size(), x.is_floating_point(), x.nbytes, x.itemsize))
    L = L
    for x in [R(3), torch.arange(3), R(3).to("meta"), R(4), torch.arange(2), R(3).double()]: L([str(i) for i in f(x)])
@case
def tensor_attrs_set(c, L):
    def g(x): x.tag = getattr(x, "tag", 0) + 1; y = x * x.tag; y.info = "n"; return y
    f = c(g); x = R(3)
    for i in range(5): y = f(x); L(y, x.tag, y.info); 
    x.tag = 10; L(f(x), x.tag); z = R(3); L(f(z), z.tag)
@case
def custom_op(c, L):
    log = []
    @torch.library.custom_op("mydyn::scale", mutates_args=())
    def scale(x: torch.Tensor, k: float) -> torch.Tensor: log.append(k); return x * k
    scale.register_fake(lambda x, k: torch.empty_like(x)); scale.register_autograd(lambda ctx, g: (g * ctx.k, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1]))
    @torch.library.custom_op("mydyn::inpl", mutates_args={"x"})
    def inpl(x: torch.Tensor) -> None: x.sin_()
    def g(x, k): y = scale(x * 2, k); inpl(y.detach()) if not y.requires_grad else None; return y + 1
    f = c(g)
    for i, k in enumerate([1.0, 2.0, 2.0, 3.0, 1.0, 5.]): x = R(3, grad=i % 2 == 0); y = f(x, k); L(y, list(log)); (y.sum().backward(), L(x.grad)) if i % 2 == 0 else None
    x = R(3); h = c(lambda x: inpl(x[0:2])); r = h(x); L(x, r); h(x); L(x); h(x); L(x)
@case
def fullgraph_flag(c, L):
    f = c(lambda x, k: x * k + 1, fullgraph=True)
    for k in [1, 2, 2.5, 3]: L(f(R(3), k))
    d = c(lambda x: x * x.shape[0], dynamic=True); s = c(lambda x: x * x.shape[0], dynamic=False)
    for n in [2, 3, 4, 1, 0]: L(d(R(n)), s(R(n)))
@case
def model_output_like(c, L):
    from transformers.modeling_outputs import BaseModelOutput
    f = c(lambda x, rd: BaseModelOutput(last_hidden_state=x * 2, hidden_states=(x, x + 1) if rd else None) if rd is not None else (x,))
    for rd in [True, False, True, None, False, True]: r = f(R(2), rd); L(type(r).__name__, tuple(r), list(r.keys()) if rd is not None else 0)
    g = c(lambda o: o[0] + o.last_hidden_state + (1 if o.attentions is None else 2)); o = BaseModelOutput(last_hidden_state=R(2)); L(g(o)); o.last_hidden_state = R(2); L(g(o)); o["attentions"] = (R(2),); L(g(o)); o.attentions = None; L(g(o)) 
@case
def pytree_register(c, L):
    class Bx:
        def __init__(s, a, k): s.a = a; s.k = k
    torch.utils._pytree.register_pytree_node(Bx, lambda b: ([b.a], b.k), lambda c_, k: Bx(c_[0], k))
    f = c(lambda b: torch.utils._pytree.tree_map(lambda t: t * 2, {"x": [b, (b.a,)]}))
    for k in [1, 2, 2, 3]: r = f(Bx(R(2), k)); L(r["x"][0].a, r["x"][0].k, r["x"][1])
    f2 = c(lambda b: Bx(b.a + b.k, b.k + 1))
    for k in [1, 2, 3]: r = f2(Bx(R(2), k)); L(r.a, r.k)
@case
def distributions(c, L):
    D = torch.distributions
    def g(m, s): d = D.Normal(m, s); a = d.rsample(); return d.log_prob(a), d.entropy(), D.kl_divergence(d, D.Normal(m + 1, s)), D.Categorical(logits=m).sample(), D.Bernoulli(probs=m.sigmoid()).log_prob(torch.ones_like(m)), D.MultivariateNormal(m, torch.eye(m.shape[0])).log_prob(m)
    f = c(g); torch.manual_seed(1)
    for n in [2, 3, 2, 4, 2, 2]: L(f(R(n), torch.ones(n)))
    L.t(f, R(2), -torch.ones(2)); f = c(lambda p: D.Bernoulli(probs=p).mean); L.t(f, torch.tensor([0.2])); L.t(f, torch.tensor([0.3])); L.t(f, torch.tensor([2.0])); L.t(f, torch.tensor([0.4]))
@case
def linalg_fft_einsum(c, L):
    def g(x): s = x @ x.mT + torch.eye(x.shape[0]); return torch.linalg.cholesky(s), torch.linalg.solve(s, x), torch.linalg.norm(x), torch.einsum("ij,kj->ik", x, x), torch.fft.rfft(x).abs(), torch.linalg.eigvalsh(s), torch.linalg.det(s), torch.linalg.inv(s), x.std(), x.var(0), torch.trace(s), torch.cdist(x, x), torch.kron(x, x)
    f = c(g)
    for n in [2, 3, 2, 4, 3, 2]: L(f(R(n, 3)))
    h = c(lambda x: torch.linalg.cholesky(x)); L(h(torch.eye(2))); L.t(h, -torch.eye(2)); L(h(torch.eye(2) * 2)); L.t(h, -torch.eye(2))
@case
def check_and_assert_ops(c, L):
    def g(x, n): torch._check(n > 0, lambda: "bad"); torch._assert(x.dim() == 1, "dim"); torch._assert_async((x < 100).all()); return x * n
    f = c(g)
    for x, n in [(R(2), 1), (R(2), 0), (R(2), 2), (R(2, 2), 1), (R(3), -1), (torch.full((2,), 1000.), 1), (R(2), 3)]: L.t(f, x, n)
@case
def repr_str_tensor(c, L):
    f = c(lambda x: (x + 1, str(x), repr(x.shape), f"{x.sum():.2f}", format(x[0].item(), ".1f"), hash(x) == hash(x), bool(x[0]), len(x), list(x), int(x.sum()), [float(v) for v in x], x.numpy().tolist()))
    for n in [1, 2, 3, 2, 2, 5]: L(f(A(n)))
@case
def iteration_over_tensor(c, L):
    def g(x): a, b = x; return a + b, [r * i for i, r in enumerate(x)], sum(x), torch.stack([*x]), {i: r for i, r in zip("ab", x)}, max(x.tolist())[0]
    f = c(g)
    for n in [1, 2, 3, 2, 2, 5]: L(f(A(2, n)))
    L.t(f, A(3, 2)); L.t(f, A(2)) ; L.t(f, torch.tensor(1.))
@case
def chunk_loops_python_lists(c, L):
    def g(x, ws):
        out = []
        for i, (c_, w) in enumerate(zip(x.chunk(len(ws)), ws)): out.append(c_ * w if i % 2 else c_ + w)
        return torch.cat(out), len(out)
    f = c(g)
    for ws in [[1], [1, 2], [1, 2, 3], [1.5, 2], [R(()), 1], [2, 1], [3, 1]]: L(f(A(6), ws))
@case
def storage_sharing_state(c, L):
    base = torch.zeros(4); v = base[1:3]
    f = c(lambda x: (base.sum() + v * x, base.data_ptr() + 4 == v.data_ptr()))
    for i in range(6): base[i % 4] = i; L(f(R(2)))
    def g(x): v.add_(x); return base * 2
    h = c(g)
    for i in range(5): L(h(torch.ones(2)), base)
@case
def bits_inplace_chain(c, L):
    def g(x): x.relu_(); x += 1; x *= x; x[x > 3] = 0; x -= x.mean(); x.clamp_(-1, 1); x.unsqueeze_(0); x.squeeze_(0); x.copy_(x.flip(0)); x.zero_() if x.shape[0] == 4 else None; x.fill_(x.sum()) if x.shape[0] == 5 else None; return None
    f = c(g)
    for n in [2, 3, 4, 5, 3, 2]: x = R(n); r = f(x); L(r, x)
@case
def deep_recursion_many_ops(c, L):
    def g(x, n):
        for i in range(n): x = (x + i).sin() * 1.01
        return x
    f = c(g)
    for n in [1, 50, 51, 300, 50, 301, 2]: L(f(R(3), n))
@case
def many_recompiles(c, L):
    f = c(lambda x, k: x * len(k) + hash(k) % 2 * 0)
    for i in range(40): L(f(R(2), "k" * i))
    g = c(lambda x, o: x + o["v"])
    for i in range(40): L(g(R(2), {"v": i, f"k{i}": 1}))
    h = c(lambda x: x * 2 + x.dim())
    for i in range(1, 9): L(h(R(*([1] * i))))
@case
def lambda_new_each_time(c, L):
    for i in range(8): f = c(lambda x: x * i); L(f(R(2))); L(f(R(2)))
    fs = [c(lambda x, i=i: x + i) for i in range(5)]; L([f(torch.ones(2)) for f in fs], [f(torch.ones(2)) for f in fs])
@case
def new_function_arg_each_time(c, L):
    f = c(lambda x, h: h(x) + 1)
    for i in range(8): L(f(R(2), lambda y: y * i)); L(f(R(2), lambda y: y * i))
    for op in [torch.sin, torch.cos, torch.sin, F.relu, nn.Tanh(), nn.Tanh()]: L(f(R(2), op))
    ms = [nn.Linear(2, 2) for _ in range(3)]
    for m in ms + ms: L(f(R(1, 2), m))
@case
def result_types_scalars(c, L):
    f = c(lambda x, k: (k, k + 1, k * 0.5, x.shape[0] + k, x.shape, x.size(0) / 2, (k,), [k], {"k": k}, k == 2, -k, not k, str(k), x.numel() * 1.0, min(k, 3), range(x.shape[0]), x.stride(), slice(k, None), ..., NotImplemented, complex(k)))
    for n, k in [(2, 1), (3, 2), (4, 3), (4, True), (2, 2.5), (5, 0), (6, 4), (7, 5)]: r = f(R(n), k); L([type(v).__name__ for v in r], r[:5], r[5:16])
