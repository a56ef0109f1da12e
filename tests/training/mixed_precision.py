from harness import *
import torch.nn as nn, torch.nn.functional as F, contextlib


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 3))


def G(n=3, d=8):
    return torch.randn(n, d, requires_grad=True)


ac = lambda d=torch.bfloat16, **k: torch.autocast("cpu", d, **k)


@case
@loose
def amp_out(C, log):
    for dt in (torch.bfloat16, torch.float16):
        m = net()
        c = C(m)
        for i in range(6):
            x = G()
            with ac(dt, enabled=i != 3):
                y = c(x)
                l = y.float().pow(2).mean()
            l.backward()
            log(y, l, x.grad, mstate(m))
            m.zero_grad()
            if i == 2:
                c.eval()
            with torch.no_grad(), ac(dt):
                log(c(x))


@case
@loose
def amp_in(C, log):
    m = net()

    def f(x, e):
        with ac(enabled=e):
            y = m(x)
        with ac(enabled=False):
            z = m(x)
        return y, z, torch.is_autocast_enabled("cpu")

    c = C(f)
    for i in range(6):
        x = G()
        with ac() if i % 2 else contextlib.nullcontext():
            y, z, e = c(x, i != 2)
            log(y, z, e)
        (y.float().sum() + z.sum()).backward()
        log(x.grad, mstate(m))


@case
@loose
def amp_in_bwd_inside(C, log):
    m = net()

    def f(x):
        with ac():
            y = m(x)
            l = y.float().sum()
        l.backward()
        return l

    c = C(f)
    for i in range(5):
        x = G()
        log(c(x), x.grad, mstate(m))


@case
@loose
def amp_bwd_under(C, log):
    m = net()
    c = C(m)
    for i in range(5):
        x = G()
        with ac():
            c(x).sum().backward()
        log(x.grad, mstate(m))


@case
@loose
def amp_inner_disabled(C, log):
    w = nn.Linear(8, 8)

    def f(x):
        with ac(enabled=False):
            return x.float() @ w.weight.float().T

    c = C(f)
    for i in range(4):
        x = torch.randn(3, 8, dtype=torch.bfloat16, requires_grad=True)
        with ac():
            y = c(x)
        y.sum().backward()
        log(y, x.grad, w.weight.grad)


@case
@loose
def amp_cache_weights(C, log):
    m = nn.Linear(8, 8)
    c = C(m)
    for i in range(4):
        with ac():
            x = G()
            y = c(c(x))
            with torch.no_grad():
                c(x)
            z = c(x)
        (y.sum() + z.sum()).backward()
        log(x.grad, mstate(m))
        with torch.no_grad():
            m.weight.add_(0.1)


@case
@loose
def scaler(C, log):
    m = net()
    c = C(m)
    o = torch.optim.SGD(m.parameters(), 0.1)
    s = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    for i in range(7):
        x = torch.randn(4, 8) * (float("inf") if i == 3 else 1)
        with ac(torch.float16):
            l = F.cross_entropy(c(x).float(), torch.tensor([0, 1, 2, 0]))
        o.zero_grad()
        s.scale(l).backward()
        s.unscale_(o)
        n = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        s.step(o)
        s.update()
        log(l, n, s.get_scale(), mstate(m))


@case
@loose
def mixed_dtype(C, log):
    m = nn.ModuleList([nn.Linear(8, 8).bfloat16(), nn.Linear(8, 8), nn.Linear(8, 4).double()])
    c = C(lambda x: m[2](m[1](m[0](x.bfloat16()).float()).double()))
    for i in range(5):
        x = G()
        y = c(x)
        y.sum().backward()
        log(y, x.grad, mstate(m))


@case
@loose
def module_dtype_switch(C, log):
    m = net()
    c = C(m)
    for i in range(6):
        dt = [torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.float16, torch.float64][i]
        m.to(dt)
        x = torch.randn(3, 8, dtype=dt, requires_grad=True)
        y = c(x)
        y.sum().backward()
        log(y, x.grad, mstate(m))
        m.zero_grad()


@case
def complex_train(C, log):
    m = nn.Linear(4, 3).to(torch.complex64)
    c = C(m)
    o = torch.optim.Adam(m.parameters(), 0.01)
    for i in range(5):
        l = c(torch.randn(2, 4, dtype=torch.complex64)).abs().pow(2).sum()
        o.zero_grad()
        l.backward()
        o.step()
        log(l, mstate(m, o))


def rnn(name, mk, bf=True, bid=1, state=False):
    def g(C, log):
        m = mk()
        c = C(m)
        h = None
        for i in range(6):
            x = torch.randn(3, 4 + i % 3, 5, requires_grad=True)
            if i == 4:
                m.eval()
            y, h2 = c(x, h) if state else c(x)
            (y.sum() + (h2[0] if isinstance(h2, tuple) else h2).pow(2).sum()).backward()
            log(y, h2, x.grad, mstate(m))
            if state:
                h = tuple(t.detach() for t in h2) if isinstance(h2, tuple) else h2.detach()
            if i == 4:
                m.train()

    g.__name__ = name
    CASES.append(g)


rnn("lstm", lambda: nn.LSTM(5, 6, 2, batch_first=True, dropout=0.3), state=True)
rnn("gru_bi", lambda: nn.GRU(5, 6, 2, batch_first=True, bidirectional=True))
rnn("rnn_relu", lambda: nn.RNN(5, 6, nonlinearity="relu", batch_first=True))
rnn("lstm_proj", lambda: nn.LSTM(5, 6, batch_first=True, proj_size=3))


@case
def packed(C, log):
    m = nn.LSTM(5, 6, batch_first=True)
    P = nn.utils.rnn

    def f(x, l):
        o, (h, _) = m(P.pack_padded_sequence(x, l, batch_first=True, enforce_sorted=False))
        return P.pad_packed_sequence(o, batch_first=True)[0], h

    c = C(f)
    c2 = C(m)
    for i in range(6):
        x = torch.randn(3, 6, 5, requires_grad=True)
        l = torch.randint(1, 7, (3,))
        y, h = c(x, l)
        (y.sum() + h.sum()).backward()
        log(y, h, x.grad, mstate(m))
        o, _ = c2(P.pack_padded_sequence(x, l, batch_first=True, enforce_sorted=False))
        o.data.sum().backward()
        log(o.data, o.batch_sizes, x.grad)


@case
def rnn_weight_change(C, log):
    m = nn.LSTM(5, 6, batch_first=True)
    c = C(m)
    for i in range(6):
        if i == 2:
            m.weight_hh_l0 = nn.Parameter(torch.randn(24, 6))
        if i == 3:
            m.flatten_parameters()
        if i == 4:
            m.bias_ih_l0.requires_grad_(False)
        c(torch.randn(2, 3, 5))[0].sum().backward()
        log(mstate(m))


@case
def emb_sparse(C, log):
    m = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    c = C(m)
    o = torch.optim.SGD(m.parameters(), 0.1)
    for i in range(5):
        c(torch.randint(0, 9, (3, 5))).sum().backward()
        log(m[0].weight.grad.is_sparse, mstate(m))
        if i % 2:
            o.step()
            o.zero_grad()


@case
def emb_pad_maxnorm(C, log):
    m = nn.Embedding(9, 4, padding_idx=2, max_norm=1.0)
    c = C(m)
    k = nn.Embedding(9, 4, scale_grad_by_freq=True)
    d = C(k)
    for i in range(5):
        x = torch.randint(0, 9, (3, 5))
        try:
            c(x).pow(2).sum().backward()
            d(x).sum().backward()
        except Exception as e:
            log(type(e).__name__)
        log(mstate(m), mstate(k))


@case
def embbag(C, log):
    for mode in ("sum", "mean", "max"):
        m = nn.EmbeddingBag(9, 4, mode=mode, padding_idx=1)
        c = C(m)
        for i in range(4):
            x = torch.randint(0, 9, (6 + i,))
            c(x, torch.tensor([0, 2, 2, 5])).pow(2).sum().backward()
            log(mstate(m))
    m = nn.EmbeddingBag(9, 4, mode="sum", sparse=True)
    c = C(m)
    for i in range(4):
        w = torch.randn(2, 3, requires_grad=True)
        try:
            c(torch.randint(0, 9, (2, 3)), per_sample_weights=w.detach()).sum().backward()
        except Exception as e:
            log(type(e).__name__)
        log(mstate(m))


@case
def mha(C, log):
    m = nn.MultiheadAttention(8, 2, dropout=0.2, batch_first=True)
    c = C(m)
    for i in range(6):
        m.train(i != 3)
        x = torch.randn(2, 4 + i % 2, 8, requires_grad=True)
        y, w = c(x, x, x, need_weights=i % 2 == 0, key_padding_mask=(torch.arange(4 + i % 2) > 2)[None].expand(2, -1) if i > 2 else None)
        y.sum().backward()
        log(y, w, x.grad, mstate(m))


@case
def transformer(C, log):
    m = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, norm_first=False), 2)
    c = C(m)
    for i in range(7):
        m.train(i not in (3, 5))
        x = torch.randn(2, 5, 8, requires_grad=True)
        with torch.set_grad_enabled(i != 5):
            y = c(
                x,
                src_key_padding_mask=torch.tensor([[0, 0, 0, 0, 1.0], [0, 0, 0, 1, 1]]) > 0 if i > 1 else None,
                mask=nn.Transformer.generate_square_subsequent_mask(5) >= 0 if False else None,
            )
        if i != 5:
            y.sum().backward()
        log(y, x.grad, mstate(m))


@case
def nn_transformer(C, log):
    m = nn.Transformer(8, 2, 1, 1, 16, dropout=0.1, batch_first=True)
    c = C(m)
    for i in range(4):
        y = c(torch.randn(2, 5, 8), torch.randn(2, 4, 8), tgt_mask=nn.Transformer.generate_square_subsequent_mask(4))
        y.pow(2).sum().backward()
        log(y, mstate(m))


@case
@dbl
def bn_modes(C, log):
    m = nn.Sequential(
        nn.Conv1d(3, 4, 3),
        nn.BatchNorm1d(4, momentum=None),
        nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
        nn.SyncBatchNorm(4) if False else nn.Identity(),
        nn.BatchNorm1d(4, track_running_stats=False),
    )
    c = C(m)
    for i in range(8):
        m.train(i not in (2, 5))
        if i == 6:
            m[1].eval()
        if i == 7:
            m[1].reset_running_stats()
        x = torch.randn(3 + i % 2, 3, 7, requires_grad=True)
        y = c(x)
        y.pow(3).sum().backward()
        log(y, x.grad, mstate(m))
    try:
        C(nn.BatchNorm1d(4))(torch.ones(1, 4))
    except Exception as e:
        log(type(e).__name__)


@case
def lazy(C, log):
    m = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 2))
    c = C(m)
    for i in range(4):
        x = G()
        y = c(x)
        y.sum().backward()
        log(y, x.grad, mstate(m))


@case
def resnetish(C, log):
    class B(nn.Module):
        def __init__(s, i, o):
            super().__init__()
            s.c = nn.Conv2d(i, o, 3, 2, 1, bias=False)
            s.b = nn.BatchNorm2d(o)
            s.d = nn.Conv2d(i, o, 1, 2, bias=False)
            s.r = nn.ReLU(inplace=True)

        def forward(s, x):
            y = s.r(s.b(s.c(x)))
            return s.r(y + s.d(x))

    m = nn.Sequential(B(3, 4), B(4, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2, inplace=True), nn.Linear(8, 3))
    c = C(m)
    o = torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
    for i in range(6):
        l = F.cross_entropy(c(torch.randn(2 + i % 2, 3, 16, 16)), torch.arange(2 + i % 2))
        o.zero_grad()
        l.backward()
        o.step()
        log(l, mstate(m, o))


@case
def vae(C, log):
    e = nn.Linear(8, 6)
    d = nn.Linear(3, 8)

    def f(x):
        mu, lv = e(x).chunk(2, -1)
        z = mu + torch.randn_like(mu) * (lv / 2).exp()
        r = d(z)
        return F.mse_loss(r, x), -0.5 * (1 + lv - mu**2 - lv.exp()).sum(1).mean()

    c = C(f)
    for i in range(6):
        x = G()
        a, b = c(x)
        (a + 0.1 * i * b).backward()
        log(a, b, x.grad, mstate(e), mstate(d))


@case
def quant_ste(C, log):
    w = torch.randn(8, requires_grad=True)
    cb = nn.Embedding(5, 8)

    def f(x):
        dd = torch.cdist(x, cb.weight)
        k = dd.argmin(1)
        q = cb(k)
        l = F.mse_loss(q, x.detach()) + 0.25 * F.mse_loss(x, q.detach())
        q = x + (q - x).detach()
        return q * w.sign().detach() + (w - w.detach()), l, k

    c = C(f)
    for i in range(6):
        x = G()
        q, l, k = c(x)
        (q.sum() + l).backward()
        log(q, l, k, x.grad, w.grad, mstate(cb))


@case
def moe(C, log):
    ex = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
    g = nn.Linear(8, 3)

    def f(x):
        p = g(x).softmax(-1)
        w, k = p.topk(2)
        out = torch.zeros_like(x)
        for e in range(3):
            t, s = torch.where(k == e)
            if t.numel():
                out.index_add_(0, t, ex[e](x[t]) * w[t, s, None])
        return out

    c = C(f)
    for i in range(7):
        x = G(2 + i % 3)
        y = c(x)
        y.pow(2).sum().backward()
        log(y, x.grad, mstate(ex), mstate(g))


@case
def stoch_depth(C, log):
    import random

    L = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def f(x):
        for l in L:
            if random.random() < 0.5:
                x = x + l(x)
            if torch.rand(1) < 0.5:
                x = x * 2
        return x

    c = C(f)
    for i in range(8):
        x = G()
        y = c(x)
        y.sum().backward()
        log(y, x.grad, mstate(L))


@case
def unet(C, log):
    class U(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = nn.Conv2d(1, 4, 3, padding=1)
            s.b = nn.Conv2d(4, 8, 3, padding=1)
            s.u = nn.ConvTranspose2d(8, 4, 2, 2)
            s.o = nn.Conv2d(8, 1, 1)
            s.n = nn.GroupNorm(2, 4)

        def forward(s, x):
            p = F.silu(s.n(s.a(x)))
            q = F.silu(s.b(F.max_pool2d(p, 2)))
            return s.o(torch.cat([p, F.interpolate(s.u(q), size=p.shape[-2:])], 1))

    m = U()
    c = C(m)
    for i in range(6):
        x = torch.randn(1, 1, 8 + 2 * (i % 2), 8, requires_grad=True)
        y = c(x)
        F.mse_loss(y, x.detach()).backward()
        log(y, x.grad, mstate(m))


main()
