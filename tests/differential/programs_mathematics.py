"""Operators by the page: linear algebra, fft, special functions, convolutions, pooling, norms, activations, and what they raise."""

PROGRAMS = {
"matrix_products_by_rank": """
f = C(lambda a, b: a @ b); o = torch.ones; out = [f(*v) for v in ((o(2), o(2)), (o(2, 3), o(3)), (o(3), o(3, 2)), (o(2, 3), o(3, 2)), (o(4, 2, 3), o(3, 2)), (o(4, 1, 2, 3), o(5, 3, 2)))]; out = [(r.shape, r.sum()) for r in out]
""",
"matrix_products_of_integers_and_halves": """
f = C(lambda a, b: (a @ b, torch.mm(a, b), torch.addmm(a, a, b, beta=2))); out = [f(torch.ones(2, 2, dtype=d), torch.full((2, 2), 3, dtype=d)) for d in (torch.int32, torch.float64, torch.bfloat16, torch.complex64, torch.uint8)]
""",
"matrix_product_of_empty": """
f = C(lambda a, b: (a @ b).relu() + 1); o = torch.ones; out = f(o(2, 3), o(3, 2)), f(o(2, 0), o(0, 3)), f(o(0, 2), o(2, 3)), f(o(2, 3), o(3, 0))
""",
"matrix_product_dtype_mismatch": """
def f(a, b):
    try: return a @ b
    except RuntimeError: return 'RuntimeError'
g = C(f); o = torch.ones; out = g(o(2, 2), o(2, 2)), g(o(2, 2), o(2, 2).double()), g(o(2, 2).int(), o(2, 2)), g(o(2), o(3)), g(o(()), o(2))
""",
"beta_and_alpha_arguments": """
f = C(lambda c, b, a: (torch.addmm(c, c, c, beta=b, alpha=a), torch.baddbmm(c[None], c[None], c[None], beta=b, alpha=a), torch.addmv(c[0], c, c[0], beta=b))); c = torch.full((2, 2), float('nan')); o = torch.ones(2, 2); out = f(o, 1, 1), f(c, 0, 0), f(o, 0.5, 2), f(o, 2, -1)
""",
"inverse_and_singular_raises": """
def f(a):
    try: return torch.linalg.inv(a), torch.linalg.det(a)
    except torch.linalg.LinAlgError: return 'LinAlgError'
g = C(f); e = torch.eye(2); out = g(e), g(e * 2), g(torch.ones(2, 2)), g(torch.ones(2, 3)[:, :2] + e), g(torch.eye(3))
""",
"solve_and_least_squares": """
f = C(lambda a, b: (torch.linalg.solve(a, b), torch.linalg.lstsq(a, b[:, None]).solution, torch.linalg.pinv(a), torch.linalg.matrix_rank(a))); a = torch.tensor([[2.0, 1.0], [1.0, 3.0]]); out = f(a, x), f(a * 2, x), f(a.t() + 1, x * 3)
""",
"decompositions": """
f = C(lambda a: (torch.linalg.cholesky(a), torch.linalg.eigvalsh(a), torch.linalg.svdvals(a), torch.linalg.qr(a).R.abs(), torch.linalg.lu_factor(a).pivots, torch.linalg.slogdet(a))); a = torch.tensor([[2.0, 1.0], [1.0, 3.0]]); out = f(a), f(a * 4), f(a + torch.eye(2))
""",
"cholesky_of_bad_matrix": """
def f(a):
    try: return torch.linalg.cholesky(a)
    except RuntimeError as e: return type(e).__name__
g = C(f); e = torch.eye(2); out = g(e), g(e * 4), g(-e), C(lambda a: torch.linalg.cholesky_ex(a).info)(-e)
""",
"norms_by_order": """
f = C(lambda x, p, d: torch.linalg.vector_norm(x, p, d)); y = torch.tensor([[3.0, -4.0], [0.0, 0.0]]); i = float('inf'); out = [f(y, p, d) for p, d in ((2, None), (1, 0), (i, 1), (-i, 1), (0, 0), (0.5, 1), (2, (0, 1)))]
""",
"matrix_norms_power_exponent": """
f = C(lambda a, n: (torch.linalg.matrix_power(a, n), torch.matrix_exp(a * 0), torch.linalg.matrix_norm(a), torch.trace(a), torch.linalg.cond(a))); a = torch.tensor([[2.0, 1.0], [1.0, 3.0]]); out = f(a, 2), f(a, 0), f(a, -1), f(a, 3)
""",
"fourier_transforms": """
f = C(lambda x, n: (torch.fft.fft(x, n), torch.fft.rfft(x), torch.fft.irfft(torch.fft.rfft(x), n), torch.fft.fftshift(x), torch.fft.fftfreq(len(x)))); out = f(torch.arange(4.0), None), f(torch.arange(5.0), 5), f(torch.arange(4.0), 3), f(torch.ones(1), 2)
""",
"fourier_of_two_dimensions": """
f = C(lambda x, nm: torch.fft.ifft2(torch.fft.fft2(x, norm=nm), norm=nm).real); y = torch.arange(6.0).view(2, 3); out = f(y, None), f(y, 'ortho'), f(y.t(), 'forward'), f(y[None], 'backward')
""",
"short_time_fourier": """
f = C(lambda x, n: torch.stft(x, n, return_complex=True, window=torch.ones(n))); out = f(torch.arange(16.0), 4), f(torch.arange(16.0), 8), f(torch.arange(20.0), 4)
""",
"special_functions": """
s = torch.special; f = C(lambda x: (s.erf(x), s.digamma(x), s.gammaln(x), s.i0(x), s.expit(x), s.xlogy(x, x), s.entr(x), s.logit(x), s.sinc(x), s.ndtri(x))); t = torch.tensor; out = f(t([0.5, 1.0])), f(t([0.0, -0.0])), f(t([-1.5, 3.0])), f(t([float('inf'), float('nan')]))
""",
"rounding_functions_corners": """
f = C(lambda x: [(v, torch.signbit(v)) for v in (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), x.sign(), x.sgn())]); t = torch.tensor; out = f(t([0.5, 1.5, 2.5, -0.5])), f(t([-0.2, 0.0, -0.0])), f(t([float('inf'), float('nan'), 1e30]))
""",
"copysign_nextafter_frexp": """
f = C(lambda a, b: (torch.copysign(a, b), torch.nextafter(a, b) > a, torch.frexp(a), torch.ldexp(a, b.int()), torch.hypot(a, b), torch.atan2(a, b), torch.heaviside(a, b))); t = torch.tensor; out = f(t([1.0, -1.0]), t([-0.0, 0.0])), f(t([0.0, 3.0]), t([1.0, -2.0])), f(t([-0.0]), t([-0.0]))
""",
"bitwise_and_shift_corners": """
f = C(lambda a, b: (a << b, a >> b, a & b, ~a, torch.bitwise_xor(a, b))); t = torch.tensor; out = f(t([1, -8]), t([3, 1])), f(t([1, 2], dtype=torch.uint8), t([7, 1], dtype=torch.uint8)), f(t([127, -128], dtype=torch.int8), t([1, 1], dtype=torch.int8)), f(t([5]), t([0]))
""",
"gcd_lcm_and_floor_divide": """
f = C(lambda a, b: (torch.gcd(a, b), torch.lcm(a, b), a // b, a % b, torch.fmod(a, b))); t = torch.tensor; out = f(t([12, -7]), t([8, 3])), f(t([0, 9]), t([5, -6])), f(t([2**40]), t([3]))
""",
"cumulative_functions": """
f = C(lambda x: (x.cumsum(0), x.cumprod(0), x.cummax(0), x.logcumsumexp(0) if x.is_floating_point() else 0, x.diff(), torch.trapezoid(x))); t = torch.tensor; out = f(t([1.0, 3.0, 2.0])), f(t([1.0, float('nan'), 2.0])), f(t([3, 1])), f(t([5.0]))
""",
"reductions_over_dimension_argument": """
f = C(lambda x, d, k: (x.sum(d, keepdim=k), x.amax(d, keepdim=k), x.std(d, keepdim=k), x.logsumexp(d, keepdim=k), x.softmax(d if isinstance(d, int) else d[0]))); y = torch.arange(6.0).view(2, 3); out = f(y, 0, False), f(y, 1, True), f(y, (0, 1), False), f(y, -1, False), f(y, (1,), True)
""",
"reduction_dimension_errors": """
def f(x, d):
    try: return x.sum(d)
    except IndexError: return 'IndexError'
    except RuntimeError: return 'RuntimeError'
g = C(f); y = torch.ones(2, 3); out = g(y, 0), g(y, 1), g(y, 2), g(y, -3), g(y, (0, 0)), g(torch.ones(2, 2, 2), 2), g(y, -1)
""",
"variance_corrections": """
f = C(lambda x, c: (x.var(correction=c), torch.var_mean(x, 0, correction=c), x.std(unbiased=bool(c)), torch.cov(x[None] if x.dim() == 1 else x, correction=c))); t = torch.tensor; out = f(t([1.0, 3.0]), 1), f(t([1.0, 3.0]), 0), f(t([1.0]), 1), f(t([1.0, 2.0, 6.0]), 2)
""",
"quantiles_and_medians": """
f = C(lambda x, q, i: (torch.quantile(x, q, interpolation=i), x.median(), x.nanmedian(), torch.nanquantile(x, q))); t = torch.tensor; out = f(t([3.0, 1.0, 2.0]), 0.5, 'linear'), f(t([3.0, 1.0, 2.0, 4.0]), 0.3, 'lower'), f(t([float('nan'), 1.0]), 1.0, 'nearest'), f(t([1.0, 2.0]), t([0.1, 0.9]), 'midpoint')
""",
"convolution_arguments": """
F = torch.nn.functional; w = torch.ones(2, 1, 3); f = C(lambda x, **k: F.conv1d(x, k.pop('w', w), **k)); y = torch.arange(8.0).view(1, 1, 8); out = f(y), f(y, stride=2), f(y, padding='same'), f(y, dilation=2, padding=1), f(torch.ones(1, 2, 8), groups=2), f(y[0]), f(y, bias=torch.ones(2))
""",
"convolution_errors": """
F = torch.nn.functional
def f(x, w):
    try: return F.conv2d(x, w).sum()
    except RuntimeError: return 'RuntimeError'
g = C(f); o = torch.ones; out = g(o(1, 1, 4, 4), o(1, 1, 3, 3)), g(o(1, 1, 2, 4), o(1, 1, 3, 3)), g(o(1, 2, 4, 4), o(1, 1, 3, 3)), g(o(1, 1, 5, 4), o(1, 1, 3, 3).double()), g(o(0, 1, 4, 4), o(1, 1, 3, 3)), g(o(1, 1, 3, 3), o(1, 1, 3, 3))
""",
"transposed_convolution": """
F = torch.nn.functional; f = C(lambda x, s, o: F.conv_transpose2d(x, torch.ones(1, 2, 2, 2), stride=s, output_padding=o)); y = torch.arange(4.0).view(1, 1, 2, 2); out = f(y, 1, 0), f(y, 2, 1), f(y, 2, 0), f(y[:, :, :1], 1, 0)
""",
"pooling_arguments": """
F = torch.nn.functional; f = C(lambda x, k, c: (F.max_pool2d(x, k, ceil_mode=c, return_indices=True), F.avg_pool2d(x, k, ceil_mode=c, count_include_pad=False), F.lp_pool2d(x, 2, k))); y = torch.arange(25.0).view(1, 1, 5, 5); out = f(y, 2, False), f(y, 2, True), f(y, 3, False), f(y[0], 2, False), f(y[..., :4], 2, True)
""",
"adaptive_pooling": """
F = torch.nn.functional; f = C(lambda x, n: (F.adaptive_avg_pool1d(x, n), F.adaptive_max_pool1d(x, n))); y = torch.arange(6.0).view(1, 1, 6); out = f(y, 2), f(y, 4), f(y[..., :5], 2), f(y, 1), f(y, 6)
""",
"max_pooling_of_nan_and_infinity": """
F = torch.nn.functional; n = float('nan'); f = C(lambda x: (F.max_pool1d(x, 2), F.avg_pool1d(x, 2), F.adaptive_max_pool1d(x, 1))); t = torch.tensor; out = f(t([[[1.0, n, 2.0, 3.0]]])), f(t([[[1.0, -float('inf'), 2.0, 3.0]]])), f(t([[[-float('inf')] * 4]]))
""",
"interpolation_modes": """
F = torch.nn.functional; f = C(lambda x, **k: F.interpolate(x, **k)); y = torch.arange(4.0).view(1, 1, 2, 2); out = f(y, size=3), f(y, scale_factor=2.0, mode='bilinear'), f(y, size=(3, 4), mode='bilinear', align_corners=True), f(y, scale_factor=1.5, mode='nearest-exact'), f(y, size=(5, 1), mode='bicubic'), f(y, size=1, mode='area')
""",
"grid_sample_and_affine": """
F = torch.nn.functional; f = C(lambda x, t, m: F.grid_sample(x, F.affine_grid(t, (1, 1, 2, 2), align_corners=False), mode=m, align_corners=False, padding_mode='border')); y = torch.arange(4.0).view(1, 1, 2, 2); e = torch.eye(2, 3)[None]; out = f(y, e, 'bilinear'), f(y, e * 2, 'nearest'), f(y, e * .5, 'bilinear')
""",
"fold_unfold_shuffle": """
F = torch.nn.functional; f = C(lambda x, k: (F.unfold(x, k), F.fold(F.unfold(x, k), x.shape[-2:], k), F.pixel_unshuffle(x, 2) if x.shape[-1] % 2 == 0 else None)); y = torch.arange(16.0).view(1, 1, 4, 4); out = f(y, 2), f(y, 3), f(y[..., :3], 2)
""",
"normalizations": """
F = torch.nn.functional; f = C(lambda x, e: (F.layer_norm(x, x.shape[-1:], eps=e), F.rms_norm(x, x.shape[-1:], eps=e), F.normalize(x, eps=e), F.group_norm(x[..., None], 1, eps=e), F.local_response_norm(x[None], 2))); y = torch.tensor([[1.0, 3.0], [0.0, 0.0]]); out = f(y, 1e-5), f(y, 0.5), f(y[:, :1], 1e-5), f(y * 1e4, 1e-5)
""",
"layer_norm_shape_error": """
F = torch.nn.functional
def f(x, s):
    try: return F.layer_norm(x, s)
    except RuntimeError: return 'RuntimeError'
g = C(f); o = torch.ones; out = g(o(2, 3), (3,)), g(o(4, 3), (3,)), g(o(2, 4), (3,)), g(o(2, 3), (2, 3)), g(o(0, 3), (3,))
""",
"activations_at_corners": """
F = torch.nn.functional; f = C(lambda x: [h(x) for h in (F.relu, F.gelu, F.silu, F.elu, F.hardtanh, F.hardswish, F.softplus, F.mish, F.logsigmoid, F.relu6, F.tanhshrink, F.selu, torch.sigmoid, torch.tanh)]); t = torch.tensor; i = float('inf'); out = f(t([-1.0, 0.0, 1.0])), f(t([float('nan'), -100.0, 100.0])), f(t([i, -i]))
""",
"activation_options": """
F = torch.nn.functional; f = C(lambda x, a, b: (F.leaky_relu(x, a), F.gelu(x, approximate=b), F.softplus(x, beta=a), F.threshold(x, a, 7.0), F.celu(x, a), F.glu(x), F.hardshrink(x, a))); y = torch.tensor([-2.0, -0.1, 0.5, 3.0]); out = f(y, 0.1, 'none'), f(y, 0.5, 'tanh'), f(y * 3, 1.5, 'none')
""",
"activation_in_place_writes_argument": """
F = torch.nn.functional
def f(x): y = F.relu(x, inplace=True); return y is x, y
g = C(f); out = []
for v in (-1.0, 2.0, -3.0): a = torch.tensor([v, 1.0]); out += [g(a), a]
""",
"gumbel_and_random_activations": """
F = torch.nn.functional; f = C(lambda x, h: (F.gumbel_softmax(x, hard=h), F.rrelu(-x, training=True), F.dropout1d(x[None], 0.5), F.alpha_dropout(x, 0.5, training=True))); torch.manual_seed(0); out = f(x, True), f(x, False), f(torch.ones(3), True), torch.rand(1)
""",
"one_hot_and_bincount_sizes": """
F = torch.nn.functional
def f(i, n):
    try: return F.one_hot(i, n), torch.bincount(i, minlength=max(n, 0))
    except RuntimeError: return 'RuntimeError'
g = C(f); t = torch.tensor; out = g(t([0, 2]), 3), g(t([0, 2]), -1), g(t([0, 5]), -1), g(t([0, 5]), 3), g(t([-1]), 3), g(t([1]), 4)
""",
"distances_and_similarities": """
F = torch.nn.functional; f = C(lambda a, b, p: (torch.cdist(a, b, p), F.pairwise_distance(a, b[:1], p), F.cosine_similarity(a, b[:1]), torch.dist(a, a * 2, p), F.pdist(a, p))); o = torch.arange(6.0).view(3, 2); out = f(o, o + 1, 2.0), f(o[:2], o, 1.0), f(o, o[:1], float('inf'))
""",
"tensordot_kron_outer_cross": """
f = C(lambda a, b, d: (torch.tensordot(a, b, d), torch.kron(a, b), torch.outer(a[0], b[0]), torch.linalg.cross(torch.arange(3.0), torch.ones(3)), torch.block_diag(a, b))); a = torch.arange(4.0).view(2, 2); out = f(a, a, 1), f(a, a, 2), f(a, a + 1, 0), f(a, a + 2, ([0], [1]))
""",
"stack_and_concatenate_mixed": """
f = C(lambda l, d: (torch.cat(l, d), torch.stack(l, d) if len({v.shape for v in l}) == 1 else None, torch.hstack(l), torch.column_stack(l))); o = torch.ones; out = f([o(2, 2), o(2, 2).int()], 0), f([o(2, 1), o(2, 3)], 1), f([o(2, 2)], -1), f((o(2, 2).double(), o(2, 2)), 1), f([o(2, 2), o(2, 0)], 1)
""",
"concatenate_errors": """
def f(l):
    try: return torch.cat(l)
    except (RuntimeError, ValueError) as e: return type(e).__name__
g = C(f); o = torch.ones; out = g([o(2), o(3)]), g([o(2), o(0)]), g([o(1, 2), o(1, 3)]), g([]), g([o(2), torch.tensor(1.0)]), g([o(2), o(3)])
""",
"clamp_bounds_of_all_kinds": """
def f(x, a, b):
    try: return x.clamp(a, b)
    except (RuntimeError, TypeError) as e: return type(e).__name__
g = C(f); y = torch.tensor([-1.0, 0.5, 2.0]); n = float('nan'); out = g(y, 0, 1), g(y, None, 1), g(y, 1, 0), g(y, torch.zeros(3), torch.ones(3)), g(y, n, 1), g(y.int(), 0.5, None), g(y, None, None)
""",
"lerp_addcmul_where_numbers": """
f = C(lambda a, b, w: (torch.lerp(a, b, w), torch.addcmul(a, a, b, value=0.5), torch.addcdiv(a, a, b, value=2), torch.add(a, b, alpha=w if not isinstance(w, torch.Tensor) else 2))); out = f(x, x * 3, 0.5), f(x, x * 3, torch.tensor([0.0, 1.0])), f(x.double(), x.double() * 2, 2.0), f(x, x * 3, -1)
""",
"sums_of_large_and_small": """
f = C(lambda x: (x.sum(), x.double().sum().float(), x.mean(), x.half().sum())); out = f(torch.full((1000,), 0.1)), f(torch.tensor([1e8, 1.0, -1e8])), f(torch.full((4096,), 1.0))
""",
"window_functions_and_factories": """
f = C(lambda x, n: (torch.hann_window(n), torch.logspace(0, 1, n), torch.eye(n, 2), torch.vander(torch.arange(n)), torch.empty(n).fill_(2), x.new_ones(n, dtype=torch.int8), torch.zeros_like(x, dtype=torch.float64))); out = f(x, 2), f(x, 4), f(x.int(), 1), f(x, 3)
""",
"like_factories_follow_argument": """
f = C(lambda x: (torch.ones_like(x), torch.full_like(x, 2), torch.empty_like(x).shape, x.new_tensor([1.7]), torch.zeros_like(x, memory_format=torch.contiguous_format).stride())); out = f(x), f(torch.ones(2, 3).t().int()), f(torch.ones(2, dtype=torch.bool)), f(torch.ones(0))
""",
"as_tensor_and_asarray_alias": """
f = C(lambda x: (torch.as_tensor(x), torch.asarray(x), torch.asarray(x, copy=True), torch.tensor(x))); f(x); r = f(x); x.fill_(5); out = r, r[0] is x
""",
"warnings_of_tensor_from_tensor": """
f = C(lambda v: torch.tensor([v, v * 2])); out = f(1), f(torch.tensor(2)), f(2.5), f(torch.tensor(3.5)), f(True)
""",
"histogram_and_multi_dimensional": """
f = C(lambda x, n: (torch.histogram(x, n), torch.aminmax(x), torch.bucketize(x, torch.linspace(0, 1, n)))); t = torch.tensor; out = f(t([0.1, 0.5, 0.9]), 2), f(t([0.2, 0.2]), 3), f(t([1.0, -1.0, 0.3]), 4)
""",
"broadcast_helpers": """
f = C(lambda a, b: (torch.broadcast_tensors(a, b), torch.broadcast_shapes(a.shape, b.shape), torch.atleast_2d(a), a.expand_as(a + b).stride(), (a + b).sum_to_size(a.shape))); o = torch.ones; out = f(o(2), o(3, 2)), f(o(1), o(4)), f(o(2, 1), o(2, 3)), f(o(()), o(2))
""",
"movedim_swap_flatten": """
f = C(lambda x, a, b: (x.movedim(a, b).shape, x.swapaxes(a, b).stride(), x.flatten(a).shape, x.unflatten(b, (1, -1)).shape, x.squeeze(a).shape)); y = torch.ones(1, 3, 4); out = f(y, 0, 1), f(y, 1, 2), f(y, -1, 0), f(torch.ones(2, 1, 5), 1, 0)
""",
"view_size_errors": """
def f(x, s):
    try: return x.view(s).shape
    except RuntimeError: return 'RuntimeError'
g = C(f); y = torch.ones(2, 3); out = g(y, (3, 2)), g(y, (-1,)), g(y, (4, 2)), g(y.t(), (6,)), g(y, (-1, -1)), g(torch.ones(4, 2), (4, 2))
""",
}
