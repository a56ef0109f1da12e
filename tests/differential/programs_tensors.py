"""Views and aliases, in-place operations, out=, strides and memory formats, types and their promotion, storages."""

PROGRAMS = {
"view_returned_shares_memory": """
f = C(lambda x: x.view(2, 2)); a = torch.zeros(4); f(a); f(a); r = f(a); r[0, 0] = 5; out = a, r._base is a, r.data_ptr() == a.data_ptr()
""",
"slice_returned_shares_memory": """
f = C(lambda x: (x[1:], x[::2], x.T if x.dim() == 2 else x)); a = torch.zeros(2, 3); f(a); f(a); p, q, r = f(a); p += 1; q[0, 0] = 7; r[2, 0] = 9; out = a
""",
"view_of_intermediate": """
def f(x): y = x * 2; return y, y[1:], y.view(-1)
g = C(f); g(x); a, b, c = g(x); a += 1; b *= 10; out = a, b, c, b._base is a
""",
"reshape_copies_or_not": """
f = C(lambda x: x.reshape(-1)); out = []
for a in (torch.zeros(2, 2), torch.zeros(2, 2).t(), torch.zeros(2, 2), torch.zeros(3, 2).t()): r = f(a); r += 1; out.append(a)
""",
"contiguous_returns_same_object": """
f = C(lambda x: x.contiguous()); a = torch.ones(2, 2); f(a); r = f(a); b = torch.ones(2, 3).t(); q = f(b); out = r is a, f(a) is a, q is b, q.stride()
""",
"to_same_dtype_is_same_object": """
f = C(lambda x, d: x.to(d)); f(x, torch.float32); out = f(x, torch.float32) is x, f(x, torch.float64), f(x, torch.float32) is x, f(x.double(), torch.float32), x.float() is x
""",
"type_conversions_are_no_ops_or_not": """
f = C(lambda x: (x.float(), x.double(), x.cpu(), x.detach(), x.data, x.real)); f(x); r = f(x); out = [v is x for v in r], [v.data_ptr() == x.data_ptr() for v in r]
""",
"expand_writes_once": """
def f(x): e = x.expand(3, 2); y = e + 1; x.add_(1); return e * y, e.stride()
g = C(f); out = g(torch.ones(2)), g(torch.ones(1, 2)), g(torch.ones(3, 1)), g(torch.ones(2))
""",
"inplace_on_overlapping_raises": """
def f(x):
    try: x.add_(1)
    except RuntimeError: return 'RuntimeError'
    return x
g = C(f); out = g(torch.ones(3)), g(torch.ones(4)), g(torch.ones(1).expand(3)), g(torch.ones(2))
""",
"inplace_on_view_changes_base": """
def f(x): x[0].add_(1); x.view(-1)[1:].mul_(3); x.t()[1].zero_(); return x
g = C(f); out = []
for n in (2, 3, 2): a = torch.ones(n, n); r = g(a); out += [a, r is a]
""",
"inplace_then_old_view": """
def f(x): v = x[1:]; x.mul_(2); w = v + 1; v.sub_(5); return v, w, x
g = C(f); out = g(torch.ones(3)), g(torch.ones(4)), g(torch.ones(3).double())
""",
"inplace_on_two_aliasing_arguments": """
def f(a, b): a.add_(1); b.mul_(2); return a + b
g = C(f); out = [g(torch.ones(3), torch.ones(3)), g(torch.ones(3), torch.ones(3))]; z = torch.ones(5); out += [g(z[:3], z[1:4]), z]; z = torch.ones(3); out += [g(z, z), z]
""",
"argument_overlaps_global": """
z = torch.ones(4)
def f(a): a.add_(1); return z * 2, a
g = C(f); out = [g(torch.ones(2)), g(torch.ones(2)), g(z[:2]), g(z[1:3]), z]
""",
"transposed_argument_of_same_storage": """
def f(a, b): a.mul_(2); return a + b
g = C(f); out = [g(torch.ones(2, 2), torch.ones(2, 2))]; z = torch.arange(4.0).view(2, 2); out += [g(z, z.t()), z]; z = torch.arange(4.0).view(2, 2); out += [g(z, torch.ones(2, 2)), g(z[:1], z[1:]), z]
""",
"inplace_result_is_argument": """
f = C(lambda x: x.add_(1)); f(x); r = f(x); out = r is x, f(x) is x, x, x._version
""",
"inplace_on_global_and_attribute": """
class K: pass
k = K(); k.t = torch.zeros(2); w = torch.zeros(2)
def f(x): k.t += x; w.add_(k.t); k.u = k.t * 2; return w
g = C(f); t = k.t; g(x); g(x); r = g(x); out = k.t is t, r is w, k.t, w, k.u
""",
"inplace_dtype_error": """
def f(a, b):
    try: a.add_(b)
    except RuntimeError: return 'RuntimeError'
    return a
g = C(f); i = torch.ones(2, dtype=torch.int64); out = g(x, x), g(x.clone(), i), g(i, x), g(i, i), g(i.bool(), i)
""",
"inplace_broadcast_error": """
def f(a, b):
    try: return a.mul_(b)
    except RuntimeError: return 'RuntimeError'
g = C(f); out = g(torch.ones(2, 3), torch.ones(3)), g(torch.ones(3), torch.ones(2, 3)), g(torch.ones(1), torch.ones(3)), g(torch.ones(2, 3), torch.ones(3))
""",
"fill_zero_copy_family": """
def f(x, v): a = x.clone(); a.fill_(v); b = torch.empty_like(x).copy_(a); b[1:].zero_(); c = a.new_full((2,), v); return a, b, c, x.clamp_(max=v)
g = C(f); out = g(torch.ones(3), 2), g(torch.ones(3), 0.5), g(torch.ones(3).int(), 2), g(torch.ones(3), True)
""",
"copy_between_dtypes_and_overlap": """
def f(a): a[1:].copy_(a[:-1].clone()); b = torch.empty(a.shape, dtype=torch.int32); b.copy_(a * 1.7); return a, b
g = C(f); out = g(torch.arange(4.0)), g(torch.arange(5.0)), g(torch.arange(4.0).double())
""",
"out_argument_written": """
o = torch.zeros(2); f = C(lambda x: torch.add(x, 1, out=o)); out = [f(x) is o, o.clone(), f(x * 2) is o, o.clone()]; o.fill_(9); f(x * 3); out += [o]
""",
"out_argument_is_view_or_input": """
def f(x, o): torch.mul(x, 2, out=o); return x
g = C(f); z = torch.zeros(2, 2); out = [g(x, z[0]), g(x, z[:, 1]), z]; y = torch.ones(2); out += [g(y, y), g(y, y), y]
""",
"out_argument_dtype": """
def f(x, o):
    try: return torch.add(x, 1.5, out=o)
    except RuntimeError: return 'RuntimeError'
g = C(f); out = [g(x, torch.zeros(2, dtype=d)) for d in (torch.float32, torch.float64, torch.int64, torch.complex64)]
""",
"out_of_several_results": """
def f(x, v, i): r = torch.max(x, 1, out=(v, i)); return r.values is v, r[1] is i
g = C(f); v, i = torch.zeros(2), torch.zeros(2, dtype=torch.int64); out = [g(torch.tensor([[1., 3.], [4., 2.]]), v, i), v.clone(), i.clone(), g(torch.tensor([[5., 3.], [4., 9.]]), v, i), v, i]
""",
"strides_of_results": """
f = C(lambda x: ((x + 1).stride(), (x * x.contiguous()).stride(), torch.empty_like(x).stride(), x.clone().stride(), x.sum(0, keepdim=True).stride())); a = torch.ones(2, 3, 4); out = f(a), f(a.transpose(0, 2)), f(a.permute(1, 2, 0)), f(a[:, ::2]), f(a[:, :1].expand(2, 3, 4))
""",
"channels_last_propagates": """
F = torch.nn.functional
f = C(lambda x: ((x + 1).stride(), F.relu(x).is_contiguous(memory_format=torch.channels_last), F.max_pool2d(x, 2).stride(), torch.cat([x, x], 1).stride(), F.interpolate(x, scale_factor=2).stride())); a = torch.ones(2, 3, 4, 4); c = a.to(memory_format=torch.channels_last); out = f(a), f(c), f(a), f(c[:, :2])
""",
"strides_of_size_one_dimensions": """
f = C(lambda x: ((x + 0).stride(), x.contiguous().stride(), x.is_contiguous(), x.reshape(-1, 1).stride())); out = f(torch.ones(1, 3)), f(torch.ones(3, 1).t()), f(torch.ones(1, 1).as_strided((1, 1), (7, 9))), f(torch.ones(3)[None])
""",
"channels_last_module_and_input_changes": """
torch.manual_seed(0); m = torch.nn.Conv2d(2, 2, 1).requires_grad_(False); f = C(m); a = torch.ones(1, 2, 3, 3); out = [f(a).stride(), f(a.to(memory_format=torch.channels_last)).stride()]; m.to(memory_format=torch.channels_last); out += [f(a).stride(), f(a.double().float()).stride()]
""",
"as_strided_and_storage_offset": """
f = C(lambda x: (x.as_strided((2,), (1,)), x.storage_offset(), x.as_strided((2,), (2,), 1))); a = torch.arange(10.0); out = f(a), f(a[2:]), f(a[::3]), f(a[5:])
""",
"set_and_data_assignment": """
t = torch.ones(2); f = C(lambda x: x * t); out = [f(x), f(x)]; t.data = torch.tensor([5.0, 6.0, 7.0])[:2]; out += [f(x)]; t.set_(torch.full((2,), 3.0)); out += [f(x)]; t.data = torch.ones(2, dtype=torch.float64); out += [f(x)]
""",
"data_assigned_inside": """
t = torch.zeros(2)
def f(x): t.data = x * 2; return t + 1
g = C(f); i = t; out = [g(x), g(x * 2), g(torch.ones(3)), t, i is t]
""",
"resize_and_storage_size": """
def f(x, n): y = x.clone(); y.resize_(n); return y[:2], y.shape, y.untyped_storage().nbytes()
g = C(f); out = g(x, 1), g(x, 2), g(torch.ones(6), (2, 3)), g(x, 1)
""",
"squeeze_transpose_in_place": """
def f(x): x.unsqueeze_(0); x.transpose_(0, 1); return x
g = C(f); out = []
for n in (2, 3, 2): a = torch.arange(float(n)); r = g(a); out += [r, a.shape, r is a]
""",
"storage_shared_after_reinterpretation": """
def f(x): i = x.view(torch.int32); i += 1; return i, x
g = C(f); out = g(torch.ones(2)), g(torch.zeros(2)), g(torch.ones(3))
""",
"view_as_other_width": """
f = C(lambda x: (x.view(torch.uint8).shape, x.view(torch.int16), x.view(torch.float64).shape)); out = f(torch.ones(2)), f(torch.ones(4)), f(torch.ones(3, 2))
""",
"split_chunk_unbind_alias": """
def f(x): a, b = x.chunk(2); c = x.unbind(0); a.add_(1); c[1].mul_(5); return b, c, torch.tensor_split(x, 3)
g = C(f); out = g(torch.ones(4)), g(torch.ones(5)), g(torch.ones(2, 2)), g(torch.ones(3))
""",
"diagonal_and_unfold_written": """
def f(x): x.diagonal().fill_(7); x.unfold(0, 2, 2)[0].add_(1); x.narrow(1, 0, 1).zero_(); return x
g = C(f); out = g(torch.ones(2, 2)), g(torch.ones(4, 3)), g(torch.ones(3, 3))
""",
"real_and_imaginary_views": """
def f(z): z.real.add_(1); z.imag.mul_(2); torch.view_as_real(z)[0, 1] = 9; return z, z.conj(), z.conj().is_conj()
g = C(f); out = g(torch.tensor([1 + 1j, 2j])), g(torch.tensor([1 + 1j, 2j, 3])), g(torch.tensor([0j, 1]))
""",
"conjugate_view_arithmetic": """
f = C(lambda z: (z.conj() * z, z.conj().imag, z.conj().is_conj(), z.conj().resolve_conj(), z.mH if z.dim() == 2 else z.adjoint() if z.dim() > 1 else z.conj().sum())); z = torch.tensor([1 + 2j, 3j]); out = f(z), f(z.conj()), f(z[None]), f(z)
""",
"negative_bit_argument": """
f = C(lambda y: (y * 2, y.is_neg(), y + y)); z = torch.tensor([1 + 2j, 3j]); out = f(x), f(z.conj().imag), f(z.imag), f(torch._neg_view(x))
""",
"promotion_of_tensors": """
f = C(lambda a, b: (a + b).dtype); d = [torch.uint8, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.complex64]; out = [f(torch.ones(1, dtype=p), torch.ones(1, dtype=q)) for p in d for q in d[:5]]
""",
"promotion_of_zero_dim_tensors": """
f = C(lambda a, b: (a * b).dtype); o = torch.ones; out = [f(*v) for v in ((o(2), o((), dtype=torch.float64)), (o(2).half(), o((), dtype=torch.float64)), (o(2).int(), o(())), (o(()), o((), dtype=torch.float64)), (o(2).int(), o((), dtype=torch.int64)), (o(2).int(), o(1, dtype=torch.int64)))]
""",
"promotion_of_numbers_in_functions": """
f = C(lambda x, v: (torch.where(x > 0, x, v), torch.add(x, v), torch.clamp(x, v), torch.pow(x, v))); out = f(x, 2.5), f(torch.ones(2, dtype=torch.int64), 2), f(x.half(), 2.5), f(torch.ones(2, dtype=torch.int64), 2.5)
""",
"result_types_of_reductions": """
f = C(lambda x: [r.dtype for r in (x.sum(), x.prod(), x.cumsum(0), x.max(), x.any(), x.count_nonzero())]); out = [f(torch.ones(2, dtype=d)) for d in (torch.bool, torch.uint8, torch.int32, torch.float16, torch.float64)]
""",
"mean_of_integers_raises": """
def f(x):
    try: return x.mean()
    except RuntimeError: return 'RuntimeError'
g = C(f); out = g(x), g(torch.ones(2).double()), g(torch.ones(2, dtype=torch.int64)), g(torch.ones(2, dtype=torch.bool))
""",
"division_rounding_modes": """
f = C(lambda a, b: (a / b, torch.div(a, b, rounding_mode='floor'), torch.div(a, b, rounding_mode='trunc'), torch.remainder(a, b), torch.fmod(a, b))); t = torch.tensor; out = f(t([7, -7]), t([2, 2])), f(t([7, -7]), t([-2, 3])), f(t([7.5, -7.5]), t([2.0, -2.0])), f(t([1.0, 0.0]), t([0.0, 0.0]))
""",
"integer_overflow_wraps": """
f = C(lambda i: (i + 1, i * 2, -i, i.abs(), i.sum(), i << 1)); out = [f(torch.tensor([torch.iinfo(d).max, torch.iinfo(d).min], dtype=d)) for d in (torch.int8, torch.int32, torch.int64, torch.uint8)]
""",
"float_to_integer_conversions": """
f = C(lambda x: (x.int(), x.to(torch.int64), x.bool(), x.trunc())); out = f(torch.tensor([1.9, -1.9])), f(torch.tensor([0.5, -0.0])), f(torch.tensor([300.5, 1e6]))
""",
"narrow_floats_round": """
f = C(lambda x: (x.half(), x.bfloat16(), x.to(torch.float8_e4m3fn).float(), x.half() + x.half())); out = f(torch.tensor([1.001, 65520.0])), f(torch.tensor([1e-8, 3.3])), f(torch.tensor([448.0, 0.3]))
""",
"signed_zeros_survive": """
f = C(lambda x: [torch.signbit(v) for v in (x * 0, -x * 0, x - x, x.neg(), x.abs(), torch.round(x), x.clamp(min=0), x + 0.0, torch.sqrt(x * 0), x / float('inf'))]); out = f(torch.tensor([-1.0, 1.0, -0.0, 0.0])), f(torch.tensor([-0.2, 0.2])), f(torch.tensor([-0.0]))
""",
"nan_comparisons_and_extrema": """
n = float('nan'); f = C(lambda x: (x == x, x.max(), x.min(), torch.maximum(x, x.flip(0)), torch.fmax(x, x.flip(0)), x.argmax(), x.sort(), x.clamp(0, 1), x.isnan().any().item(), x.nansum())); out = f(torch.tensor([1.0, n, 3.0])), f(torch.tensor([1.0, 2.0])), f(torch.tensor([n, n]))
""",
"infinities": """
i = float('inf'); f = C(lambda x: (x - x, x * 0, x.softmax(0), x.logsumexp(0), torch.atan(x), x.exp(), torch.nan_to_num(x), x.isposinf())); out = f(torch.tensor([1.0, i])), f(torch.tensor([-i, -i])), f(torch.tensor([1.0, -i, 2.0]))
""",
"denormal_numbers": """
f = C(lambda x: (x * 0.5, x + x, x / 2 * 2, x > 0)); t = torch.tensor([1e-38, 1e-40, 2e-45]); out = [[v.view(torch.int32) if v.dtype.is_floating_point else v for v in f(u)] for u in (t, t * 0 + 1, t)]
""",
"division_by_zero_of_tensors": """
f = C(lambda a, b: (a / b, 1 / b, b ** -1.0, torch.log(b))); t = torch.tensor; out = f(x, t([1.0, 0.0])), f(t([0.0, -1.0]), t([0.0, -0.0])), f(t([1, 0]), t([0, 0]))
""",
"integer_modulo_by_zero_raises": """
def f(a, b):
    try: return a % b
    except RuntimeError: return 'RuntimeError'
g = C(f); t = torch.tensor; out = g(t([5, 6]), t([3, 4])), g(t([5, 6]), t([2, 4])), g(t([5, 6]), t([0, 4])), g(t([5.0, 6.0]), t([0.0, 4.0]))
""",
"negative_integer_power_raises": """
def f(a, n):
    try: return a ** n
    except RuntimeError: return 'RuntimeError'
g = C(f); i = torch.tensor([1, 2]); out = g(i, 2), g(i, 3), g(i, -1), g(i, 0.5), g(x, -1)
""",
"zero_size_tensors": """
def f(x):
    r = [x.sum(), x.prod(), x + 1, torch.cat([x, x]), x.any(), x.all(), x.mean()]
    try: r.append(x.max())
    except RuntimeError: r.append('RuntimeError')
    return r
g = C(f); out = g(x), g(torch.ones(0)), g(torch.ones(3)), g(torch.ones(0, 2)), g(torch.ones(2, 0))
""",
"zero_dim_tensors": """
f = C(lambda x: (x + 1, x.sum(0) if x.dim() else x.sum(), x.view(-1), x.T if x.dim() == 2 else x, x.unsqueeze(0), len(x.shape), x.max(), x.argmax(), x.softmax(-1))); out = f(torch.tensor(2.0)), f(x), f(torch.tensor(3.0).double()), f(torch.ones(1, 1))
""",
"length_and_iteration_of_zero_dim": """
def f(x):
    r = []
    for h in (len, list, lambda v: v[0], lambda v: next(iter(v))):
        try: r.append(h(x))
        except (TypeError, IndexError, StopIteration) as e: r.append(type(e).__name__)
    return r
g = C(f); out = g(x), g(torch.tensor(1.0)), g(torch.ones(0)), g(torch.ones(3))
""",
"size_one_becomes_broadcast": """
f = C(lambda a, b: (a + b, a * b.sum(0), (a - b).stride())); o = torch.ones; out = f(o(3, 2), o(3, 2)), f(o(4, 2), o(4, 2)), f(o(1, 2), o(3, 2)), f(o(3, 1), o(3, 2)), f(o(1, 1), o(1, 1))
""",
"size_comparisons_select": """
f = C(lambda a, b: a @ b if a.shape[1] == b.shape[0] else a.sum() if a.shape[0] > b.shape[0] else b.sum()); o = torch.ones; out = f(o(2, 3), o(3, 2)), f(o(4, 5), o(5, 2)), f(o(5, 3), o(2, 2)), f(o(2, 3), o(7, 2)), f(o(3, 3), o(3, 3))
""",
"dtype_of_argument_changes": """
f = C(lambda x: (x / 2, x.dtype.is_floating_point, x * 1.5)); out = [f(torch.ones(2, dtype=d)) for d in (torch.float32, torch.float64, torch.int32, torch.bool, torch.complex64, torch.bfloat16)]
""",
"rank_of_argument_changes": """
f = C(lambda x: (x.sum(-1), x.dim(), x.flatten().shape, x.mean((0,)))); out = [f(torch.ones(s)) for s in ((2,), (2, 3), (2, 3, 4), (1,), (2, 3))]
""",
"requires_grad_of_argument_changes": """
f = C(lambda x: (x * 2, x.requires_grad, x.is_leaf)); out = [f(torch.ones(2, requires_grad=r)) for r in (False, True, False)] + [f(torch.ones(2, requires_grad=True) * 1)]
""",
"attributes_of_tensor_object": """
t = torch.ones(2); t.tag = 2.0; f = C(lambda x, t: x * t.tag); out = [f(x, t), f(x, t)]; t.tag = 3.0; out += [f(x, t)]; u = torch.ones(2); u.tag = 4.0; out += [f(x, u)]; del t.tag
try: f(x, t)
except AttributeError: out += ['AttributeError']
""",
"tensor_attribute_set_inside": """
def f(x): x.seen = getattr(x, 'seen', 0) + 1; return x * x.seen
g = C(f); y = torch.ones(2); out = g(x), g(x), g(y), x.seen, y.seen
""",
"tensor_version_and_pointer_reads": """
def f(x): a = x._version; x.add_(1); return x._version - a, x.data_ptr() == x[0:].data_ptr(), x.element_size(), x.nbytes
g = C(f); out = g(x), g(x), g(torch.ones(3).double()), x._version
""",
"tensor_identity_and_hash": """
f = C(lambda a, b: (a is b, a.is_set_to(b), hash(a) == hash(b), id(a) == id(b), {a: 1}.get(b), a.data_ptr() == b.data_ptr())); y = torch.ones(2); out = f(x, x), f(x, y), f(x, x.view(2)), f(y, y)
""",
"tensor_equality_in_containers": """
f = C(lambda x, l: (any(x is v for v in l), bool((x == l[0]).all()), len(set(l)))); y = torch.ones(2); out = f(x, [x, y]), f(x, [y, y]), f(y, [x, x, y])
""",
"tensor_truth_errors": """
def f(x):
    try: return 'yes' if x else 'no'
    except RuntimeError: return 'RuntimeError'
g = C(f); out = [g(t) for t in (torch.ones(1), torch.zeros(()), torch.ones(2), torch.tensor([[True]]))]
""",
"random_sizes_and_dtypes_in_turn": """
f = C(lambda x: (x.cumsum(-1) * 2).sum().to(x.dtype)); out = [f(torch.ones(s, dtype=d)) for s, d in (((2,), torch.float32), ((3, 3), torch.float64), ((2,), torch.int32), ((0,), torch.float32), ((3, 3), torch.float32), ((1, 1, 4), torch.int64))]
""",
"meta_tensors": """
f = C(lambda x: (x @ x.T, x.sum(0), x.is_meta, x.device.type)); out = f(torch.ones(2, 3)), f(torch.ones(2, 3, device='meta')), f(torch.ones(4, 3, device='meta')), f(torch.ones(2, 3))
""",
"sparse_tensors": """
f = C(lambda s, x: (s @ x, s.is_sparse, (s * 2).to_dense() if s.is_sparse else s * 2)); d = torch.tensor([[0., 2.], [3., 0.]]); y = torch.ones(2, 1); out = f(d, y), f(d.to_sparse(), y), f(d.to_sparse_csr(), y), f(d, y)
""",
"sparse_result_and_coalesce": """
f = C(lambda i, v: torch.sparse_coo_tensor(i, v, (3,)).coalesce()); out = [(r.indices(), r.values(), r.is_coalesced()) for r in (f(torch.tensor([[0, 2]]), x), f(torch.tensor([[1, 1]]), x), f(torch.tensor([[1, 0]]), x * 2))]
""",
"nested_tensors": """
f = C(lambda n: (n * 2).to_padded_tensor(0.0) if n.is_nested else n * 2); N = torch.nested.nested_tensor; out = f(x), f(N([torch.ones(2), torch.ones(3)])), f(N([torch.ones(1), torch.ones(4)])), f(x)
""",
"nested_jagged": """
N = torch.nested.nested_tensor; f = C(lambda n: (n.sin() + 1).values() if n.is_nested else n); out = f(N([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)), f(N([torch.zeros(1), torch.zeros(4), torch.zeros(2)], layout=torch.jagged)), f(x)
""",
"quantized_tensors": """
f = C(lambda q: (q.dequantize() * 2, q.is_quantized, q.int_repr() if q.is_quantized else None)); Q = torch.quantize_per_tensor; out = f(x), f(Q(x, 0.1, 10, torch.quint8)), f(Q(x * 2, 0.5, 0, torch.qint8)), f(x)
""",
"complex_tensors": """
f = C(lambda z: (z.abs(), z.angle(), z * 1j, z.real, torch.polar(z.abs(), z.angle()), z == z.conj(), z.sum().item())); t = torch.tensor; out = f(t([1 + 1j, -1])), f(t([0j, -1j])), f(t([complex('nan'), 2]))
""",
"from_and_to_real_view": """
f = C(lambda r: torch.view_as_complex(r) * 2); a = torch.ones(2, 2); out = f(a), f(torch.ones(3, 2)), f(a)
v = C(lambda r: torch.view_as_complex(r)); v(a); v(a).mul_(3); out += (a,)
""",
"boolean_tensor_operators": """
f = C(lambda a, b: (a & b, a | b, a ^ b, ~a, a == b, a + b, a * b, a.sum(), a & True)); t = torch.tensor; out = f(t([True, False]), t([True, True])), f(t([1, 2]), t([3, 1])), f(t([True]), t([3]))
""",
}
