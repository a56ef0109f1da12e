from harness import *
import torch.nn as nn, torch.nn.functional as F


def opcase(name, f, mk, n=5, dt=torch.float64):
    def g(C, log):
        torch.set_default_dtype(dt)
        try:
            c = C(f)
            for i in range(n):
                a = mk(i)
                ok = True
                try:
                    r = c(*a)
                except Exception as e:
                    log(type(e).__name__)
                    continue
                log(r)
                rs = r if isinstance(r, (tuple, list)) else [r]
                L = [t for t in rs if isinstance(t, torch.Tensor) and t.requires_grad]
                try:
                    if L:
                        sum(
                            (t * torch.arange(1, t.numel() + 1).view(t.shape).to(t.dtype)).sum().abs()
                            if t.is_complex()
                            else (t * torch.arange(1, t.numel() + 1).view(t.shape)).sum()
                            for t in L
                        ).backward()
                    log([t.grad if isinstance(t, torch.Tensor) else None for t in a])
                except Exception as e:
                    log("bw " + type(e).__name__)
        finally:
            torch.set_default_dtype(torch.float32)

    g.__name__ = name
    CASES.append(g)


R = lambda *s: torch.randn(*s, requires_grad=True)
I = lambda h, *s: torch.randint(0, h, s)
T = lambda l: torch.tensor(l, requires_grad=True)
ties = lambda i: (T([[1.0, 1.0, 0.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0, 0.0]]),)
for nm, f in dict(
    max_all=lambda x: x.max(),
    max_dim=lambda x: x.max(1),
    amax=lambda x: x.amax(1),
    median=lambda x: x.median(),
    median_d=lambda x: x.median(1),
    nanmedian=lambda x: x.nanmedian(),
    mode=lambda x: x.mode(1),
    sort=lambda x: x.sort(1, stable=True),
    topk=lambda x: x.topk(2, 1),
    kth=lambda x: x.kthvalue(2, 1),
    cummax=lambda x: x.cummax(1),
    cumprod=lambda x: x.cumprod(1),
    prod=lambda x: x.prod(1),
    logcumsumexp=lambda x: x.logcumsumexp(1),
    lse=lambda x: x.logsumexp(1),
    norm=lambda x: x.norm(dim=1),
    norm1=lambda x: x.norm(1, dim=1),
    norminf=lambda x: x.norm(float("inf"), dim=1),
    clamp=lambda x: x.clamp(0, 1),
    clamp_t=lambda x: x.clamp(torch.zeros(5), torch.ones(5)),
    abs=lambda x: x.abs(),
    relu=F.relu,
    hard=F.hardtanh,
    relu6=F.relu6,
    lrelu=F.leaky_relu,
    sqrt=lambda x: x.sqrt(),
    logmask=lambda x: torch.where(x > 0, x.log(), torch.zeros(())),
    std=lambda x: x.std(1),
    var0=lambda x: x.var(1, correction=0),
    softmax=lambda x: x.masked_fill(x == 0, -float("inf")).softmax(1),
    unique=lambda x: x.unique().sum(),
    quant=lambda x: x.quantile(0.5, dim=1),
    aminmax=lambda x: tuple(x.aminmax(dim=1)),
    renorm=lambda x: x.renorm(2, 0, 1.0),
    pow0=lambda x: x**0.5 + x**2,
    xlogy=lambda x: torch.xlogy(x, x),
    atan2=lambda x: torch.atan2(x, x),
    cosine=lambda x: F.cosine_similarity(x, x * 0 + 1, dim=1),
    normalize=lambda x: F.normalize(x, dim=1),
    sgn=lambda x: x.sign() * x,
    round=lambda x: x.round() + x.frac(),
    fmod=lambda x: torch.fmod(x, 0.7) + torch.remainder(x, 0.7),
    nan2=lambda x: (x / x).nan_to_num(3.0),
    msort=lambda x: x.msort(),
    cdist=lambda x: torch.cdist(x, x),
    pdist=lambda x: F.pdist(x),
    prelu=lambda x: F.prelu(x, torch.full((1,), 0.2, requires_grad=True)),
    celu=F.celu,
    logsig=F.logsigmoid,
    softplus=F.softplus,
    huber=lambda x: F.huber_loss(x, x * 0, delta=1.0),
    sl1=lambda x: F.smooth_l1_loss(x, x * 0),
    l1=lambda x: F.l1_loss(x, x.detach()),
).items():
    opcase("tie_" + nm, f, ties, 4)
opcase(
    "minmax_bin",
    lambda a, b: (torch.minimum(a, b), torch.maximum(a, b), torch.fmax(a, b), torch.hypot(a, b), a.where(a > b, b)),
    lambda i: (T([1.0, 2.0, 0.0, float("nan")]), T([1.0, 1.0, 0.0, 1.0])),
)
opcase("gather", lambda x, i: x.gather(1, i), lambda i: (R(3, 4), I(4, 3, 6)))
opcase("scatter_add", lambda x, i, s: x.scatter_add(1, i, s), lambda i: (R(3, 4), I(4, 3, 6), R(3, 6)))
for r in ("sum", "prod", "mean", "amax", "amin"):
    opcase(
        "scatter_reduce_" + r,
        lambda x, i, s, r=r: x.scatter_reduce(1, i, s, r, include_self=True),
        lambda i: (R(3, 4), I(4, 3, 4), R(3, 4)),
    )
opcase("index_put", lambda x, i, v: x.clone().index_put_((i,), v, accumulate=True), lambda i: (R(4, 3), I(4, 6), R(6, 3)))
opcase("index_put_mask", lambda x, v: x.clone().masked_scatter(x > 0, v), lambda i: (R(4, 3), R(4, 3)))
opcase("setitem_mask", lambda x: (lambda y: (y.__setitem__(y > 0, 0.0), y)[1])(x * 1), lambda i: (R(4, 3),))
opcase("bool_index", lambda x: x[x > 0] * 2, lambda i: (R(4, 3),))
opcase("nonzero", lambda x: x[x.nonzero()[:, 0]].sum(0), lambda i: (R(4, 3),))
opcase(
    "index_add",
    lambda x, i, v: (
        x.index_add(0, i, v),
        x.index_copy(0, i.unique(), v[: i.unique().numel()]),
        x.index_fill(0, i, 2.0),
        x.index_select(0, i),
        x.take(i),
        x[i, i % 3],
    ),
    lambda i: (R(4, 3), I(4, 6), R(6, 3)),
)
opcase("diag_scatter", lambda x, s: x.diagonal_scatter(s), lambda i: (R(4, 4), R(4)))
opcase("sel_scatter", lambda x, s: (x.select_scatter(s, 0, 1), x.slice_scatter(s[None], 0, 1, 2)), lambda i: (R(4, 4), R(4)))
opcase("einsum", lambda a, b: torch.einsum("bij,bjk->ik", a, b) + torch.einsum("bii->i", a).sum(), lambda i: (R(2, 3, 3), R(2, 3, 3)))
opcase(
    "fft",
    lambda x: (torch.fft.rfft(x).abs(), torch.fft.irfft(torch.fft.rfft(x) * 2, n=x.shape[-1]), torch.fft.fft2(x)),
    lambda i: (R(3, 6 + i % 2),),
)
opcase(
    "stft", lambda x: torch.stft(x, 8, hop_length=4, window=torch.hann_window(8), return_complex=True).abs().pow(2), lambda i: (R(2, 32),)
)
opcase(
    "complex",
    lambda a, b: (a * b.conj(), a.angle(), torch.view_as_real(a), a.imag, a.abs(), torch.polar(a.abs(), a.angle())),
    lambda i: (torch.randn(3, dtype=torch.complex128, requires_grad=True), torch.randn(3, dtype=torch.complex128, requires_grad=True)),
)
spd = lambda x: x @ x.mT + torch.eye(x.shape[-1])
opcase("chol", lambda x: torch.linalg.cholesky(spd(x)), lambda i: (R(2, 3, 3),))
opcase("chol_err", lambda x: torch.linalg.cholesky(x), lambda i: (R(3, 3),))
opcase("svd", lambda x: torch.linalg.svdvals(x), lambda i: (R(3, 4),))
opcase("eigh", lambda x: torch.linalg.eigvalsh(spd(x)), lambda i: (R(3, 3),))
opcase("solve", lambda a, b: torch.linalg.solve(spd(a), b), lambda i: (R(2, 3, 3), R(2, 3, 1)))
opcase(
    "det",
    lambda a: (torch.linalg.det(a), torch.slogdet(a)[1], torch.linalg.inv(spd(a)), torch.linalg.pinv(a), torch.matrix_exp(a)),
    lambda i: (R(3, 3),),
)
opcase("qr", lambda a: torch.linalg.qr(a), lambda i: (R(4, 3),))
opcase("lstsq", lambda a, b: torch.linalg.lstsq(a, b).solution, lambda i: (R(5, 3), R(5, 2)))
opcase(
    "grid",
    lambda x, g: (F.grid_sample(x, g, align_corners=False), F.grid_sample(x, g, mode="nearest", padding_mode="border", align_corners=True)),
    lambda i: (R(1, 2, 4, 4), R(1, 3, 3, 2)),
)
opcase(
    "interp",
    lambda x: (
        F.interpolate(x, scale_factor=2, mode="bilinear"),
        F.interpolate(x, size=(3, 5), mode="bicubic", align_corners=True),
        F.interpolate(x, scale_factor=0.5),
        F.interpolate(x, size=(6, 6), mode="area"),
    ),
    lambda i: (R(1, 2, 4 + i % 2, 4),),
)
opcase(
    "pools",
    lambda x: (
        F.max_pool2d(x, 2, return_indices=True)[0],
        F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
        F.adaptive_max_pool2d(x, 2),
        F.lp_pool2d(x, 2, 2),
        F.fold(F.unfold(x, 2), x.shape[-2:], 2),
        F.pixel_shuffle(x, 2),
        F.pad(x, (1, 1, 1, 1), mode="reflect"),
        F.pad(x, (-1, 2)),
    ),
    lambda i: (R(1, 4, 4, 4),),
)
opcase("fracpool", lambda x: F.fractional_max_pool2d(x, 2, output_size=2), lambda i: (R(1, 2, 6, 6),))
opcase(
    "ctc",
    lambda x, t, a, b: F.ctc_loss(x.log_softmax(2), t, a, b, zero_infinity=True),
    lambda i: (R(10, 2, 5), torch.randint(1, 5, (2, 4)), torch.tensor([10, 8 + i % 2]), torch.tensor([4, 3])),
)
opcase(
    "losses",
    lambda x, y, t: (
        F.nll_loss(x.log_softmax(1), t, ignore_index=0),
        F.cross_entropy(x, t, label_smoothing=0.1, weight=torch.arange(1.0, 5.0)),
        F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean"),
        F.bce_with_logits(x, y.sigmoid()) if hasattr(F, "bce_with_logits") else F.binary_cross_entropy_with_logits(x, y.sigmoid()),
        F.multi_margin_loss(x, t),
        F.hinge_embedding_loss(x, y.sign().detach()),
        F.gaussian_nll_loss(x, y, x.exp()),
        F.poisson_nll_loss(x, y),
        F.triplet_margin_loss(x, y, x + y),
        F.cosine_embedding_loss(x, y, torch.ones(3)),
        F.multilabel_soft_margin_loss(x, y.sigmoid().round()),
        F.margin_ranking_loss(x, y, torch.ones(3, 4)),
    ),
    lambda i: (R(3, 4), R(3, 4), I(4, 3)),
)
opcase("ce_all_ignored", lambda x, t: F.cross_entropy(x, t), lambda i: (R(3, 4), torch.full((3,), -100) if i % 2 else I(4, 3)))
opcase("ce_bad_target", lambda x, t: F.cross_entropy(x, t), lambda i: (R(3, 4), I(4, 3) + (4 if i == 3 else 0)))
opcase("emb_oob", lambda w, t: F.embedding(t, w), lambda i: (R(4, 3), I(4, 3) + (4 if i == 3 else 0)))
opcase("gather_oob", lambda x, i: x.gather(0, i), lambda i: (R(4), I(4, 3) + (4 if i == 3 else 0)))
opcase("idx_oob", lambda x, i: x[i], lambda i: (R(4), I(4, 3) - (6 if i == 3 else 0)))
opcase("onehot", lambda t: F.one_hot(t, 4), lambda i: (I(4, 3) + (4 if i == 3 else 0),))
opcase(
    "dropouts",
    lambda x: (
        F.dropout(x, 0.5),
        F.dropout2d(x, 0.3),
        F.alpha_dropout(x, 0.2),
        F.feature_alpha_dropout(x, 0.2, True),
        F.rrelu(x, training=True),
        F.gumbel_softmax(x, dim=-1, hard=True),
        torch.bernoulli(x.sigmoid()),
        torch.randn_like(x) * x,
        torch.rand(3),
        torch.randperm(4),
        torch.normal(x, 1.0),
        torch.multinomial(x.flatten().softmax(0), 3),
        torch.poisson(x.exp().detach()),
        x.new_empty(3).exponential_(),
    ),
    lambda i: (R(2, 3, 4, 4),),
)


def dist(m, s):
    D = torch.distributions
    r = []
    n = D.Normal(m, s.exp())
    r += [n.rsample(), n.log_prob(m.detach()), n.entropy(), D.kl_divergence(n, D.Normal(0.0, 1.0))]
    r += [
        D.Gamma(s.exp(), s.exp()).rsample(),
        D.Beta(s.exp(), s.exp()).rsample(),
        D.Dirichlet(s.exp()).rsample(),
        D.Laplace(m, s.exp()).rsample(),
        D.StudentT(s.exp() + 2).rsample(),
        D.Categorical(logits=m).sample(),
        D.Bernoulli(logits=m).log_prob(torch.ones(3)),
        D.MultivariateNormal(m, torch.diag(s.exp())).rsample(),
        D.TransformedDistribution(n, [D.TanhTransform()]).rsample(),
        D.RelaxedOneHotCategorical(torch.tensor(0.5), logits=m).rsample(),
        D.Gumbel(m, s.exp()).rsample(),
    ]
    return r


opcase("distrib", dist, lambda i: (R(3), R(3)))
opcase(
    "distrib_bad",
    lambda m, s: torch.distributions.Normal(m, s).rsample(),
    lambda i: (R(3), torch.randn(3).abs().neg().requires_grad_() if i == 3 else torch.ones(3, requires_grad=True)),
)
opcase(
    "sdpa",
    lambda q, k, v: (
        F.scaled_dot_product_attention(q, k, v, is_causal=True),
        F.scaled_dot_product_attention(q, k, v, attn_mask=torch.tril(torch.ones(4, 4, dtype=torch.bool)).logical_and(torch.arange(4) > 0)),
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.3),
    ),
    lambda i: (R(1, 2, 4, 8), R(1, 2, 4, 8), R(1, 2, 4, 8)),
)
opcase(
    "norms",
    lambda x: (
        F.layer_norm(x, (4,)),
        F.group_norm(x, 2),
        F.instance_norm(x),
        F.rms_norm(x, (4,)),
        F.local_response_norm(x, 2),
        F.batch_norm(x, None, None, training=True),
    ),
    lambda i: (R(3, 4, 4),),
)
opcase(
    "convs",
    lambda x, w, b: (
        F.conv2d(x, w, b, padding="same", dilation=2),
        F.conv2d(x, w, b, stride=2, padding=1),
        F.conv_transpose2d(x, w.transpose(0, 1), b, stride=2, output_padding=1),
        F.conv2d(x, w[:, :1], b, groups=3) if False else x.sum(),
    ),
    lambda i: (R(2, 3, 6, 6), R(3, 3, 3, 3), R(3)),
    dt=torch.float32,
)
opcase(
    "misc_views",
    lambda x: (
        x.unfold(0, 2, 1),
        x.as_strided((2, 2), (1, 2)),
        x.roll(1, 0),
        x.flip(0),
        x.tril(),
        x.diagonal(),
        x.repeat(2, 1),
        x.repeat_interleave(2, 0),
        x.tile(2),
        torch.stack([x, x]),
        x.rot90(),
        x.movedim(0, 1),
        torch.block_diag(x, x),
        torch.tensor_split(x, 3)[1],
        x.chunk(2)[0],
        torch.cartesian_prod(x[0], x[1]),
        x.swapaxes(0, 1).contiguous(),
        x.view_as(x),
        x.real,
        torch.kron(x, x),
        torch.trapz(x),
        x.diff(),
        x.cov(),
        torch.corrcoef(x),
        torch.bucketize(x, torch.arange(3.0)),
        torch.histc(x.detach()),
        x.nansum(),
        x.trace(),
        torch.vander(x[0]),
        torch.cross(x[:, :3], x[:, 1:], dim=1),
    ),
    lambda i: (R(4, 4),),
)


def inpl(x):
    y = x * 1
    y[0] = 2
    y[:, 1] *= 3
    y.t()[2].add_(y[0])
    y[1:].relu_()
    y.masked_fill_(y > 2, 0)
    z = y.view(-1)
    z[3] = z[4] * 2
    y += x
    y.clamp_(max=1.0)
    y.transpose_(0, 1)
    y.unsqueeze_(0)
    torch.add(y, 1, out=torch.empty(0)) if not y.requires_grad else None
    y.fill_diagonal_(1) if y.dim() == 2 else None
    return y, z


opcase("inplace", inpl, lambda i: (R(4, 4),))
opcase(
    "selfsame_grad",
    lambda x: (lambda y: (y[:, 0].add_(x[:, 2].abs()), y[:, 0].add_(x[:, 2].abs()), y)[2])(torch.zeros_like(x)),
    lambda i: (R(2, 3),),
)
opcase("pyfloat", lambda x, k: x * k + float(k), lambda i: (R(3), [1, 2.0, True, torch.tensor(3.0), 4, 1][i]), 6)
opcase("scalar_types", lambda x, k: (x * k, x.to(torch.float32) * k), lambda i: (R(3), [1, 1.5, 2, 2.5, 1, float("nan")][i]), 6)
opcase(
    "dyn_batch", lambda x: (x.mean(0), x / x.shape[0], x.new_zeros(x.shape[0]).sum() + len(x)), lambda i: (R([3, 5, 1, 0, 7, 3][i], 4),), 6
)
opcase("rank_change", lambda x: (x * 2).sum(-1), lambda i: (R(*[(3,), (3, 2), (3, 2, 2), (3,), (1,), (0,)][i]),), 6)
opcase(
    "dtype_change",
    lambda x: (x * 2 / 3, x.sum(), x.mean() if x.is_floating_point() else 0),
    lambda i: (torch.ones(3, dtype=[torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool, torch.float32][i]),),
    6,
)
opcase(
    "stride_change",
    lambda x: (x * 2, x.reshape(-1), torch.empty_like(x).zero_(), x.contiguous()),
    lambda i: ([R(4, 4), R(4, 4).t(), R(8, 8)[::2, ::2], R(4, 1).expand(4, 4), R(4, 4), R(16).as_strided((4, 4), (1, 4))][i],),
    6,
)
opcase("bad_ops", lambda x, y: x @ y, lambda i: (R(3, 4), [R(4, 2), R(4, 2), R(3, 2), R(4, 2), R(4, 2).float(), R(4)][i]), 6)
opcase(
    "noncontig_cplx",
    lambda x: x.conj().t().resolve_conj() + x.mH,
    lambda i: (torch.randn(3, 3, dtype=torch.complex128, requires_grad=True),),
)
opcase("sparse", lambda x: torch.sparse.mm(x.to_sparse(), x).sum(), lambda i: (R(3, 3),))
opcase("nested_seq", lambda x, y: torch.nn.utils.rnn.pad_sequence([x, y], batch_first=True), lambda i: (R(3 + i, 2), R(2, 2)))
main()
