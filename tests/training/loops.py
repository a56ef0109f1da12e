from harness import *
import copy, pickle, io, torch.nn as nn, torch.nn.functional as F
from torch.nn.utils import parametrizations as P, parametrize


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))


def batch(i=0, n=5):
    return torch.randn(n, 8), torch.randint(0, 3, (n,))


def loop(C, log, m, o, n=6, pre=None, post=None, c=None):
    c = c or C(m)
    for i in range(n):
        if pre:
            pre(i, m, o)
        x, y = batch(i)
        o.zero_grad()
        l = F.cross_entropy(c(x), y)
        l.backward()
        if post:
            post(i, m, o)
        o.step()
        log(l.item(), mstate(m, o))
    return c


@case
def adamw_sched_clip(C, log):
    m = net()
    o = torch.optim.AdamW(m.parameters(), lr=0.01)
    s = torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=6)

    def post(i, m, o):
        log(nn.utils.clip_grad_norm_(m.parameters(), 0.5))

    c = C(m)
    for i in range(6):
        x, y = batch()
        o.zero_grad()
        l = F.cross_entropy(c(x), y)
        l.backward()
        post(i, m, o)
        o.step()
        s.step()
        log(l, mstate(m, o))


@case
def lbfgs(C, log):
    m = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    c = C(m)
    o = torch.optim.LBFGS(m.parameters(), lr=0.1, max_iter=5, line_search_fn="strong_wolfe")
    x, y = batch(0, 20)
    for i in range(3):

        def clo():
            o.zero_grad()
            l = F.cross_entropy(c(x), y)
            l.backward()
            return l

        l = o.step(clo)
        log(l.detach(), {n: p.detach().clone() for n, p in m.named_parameters()})


@case
def accum_and_val(C, log):
    m = net()
    c = C(m)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    for i in range(5):
        c.train()
        for k in range(3):
            x, y = batch(0, 5 + k)
            (F.cross_entropy(c(x), y) / 3).backward()
            log(mstate(m, o))
        o.step()
        o.zero_grad(set_to_none=(i % 2 == 0))
        c.eval()
        with torch.no_grad():
            v = c(torch.randn(7, 8))
            log(v)
        with torch.inference_mode():
            v = c(torch.randn(7, 8))
            log(v.clone().sum().item(), v.is_inference())
        x = torch.randn(5, 8, requires_grad=True)
        c(x).sum().backward()
        log(x.grad, mstate(m, o))
        m.zero_grad()


@case
def freeze_toggle(C, log):
    m = net()
    o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)

    def pre(i, m, o):
        for j, l in enumerate([m[0], m[2], m[4]]):
            l.requires_grad_((i + j) % 3 != 0)

    loop(C, log, m, o, 9, pre)


@case
def freeze_all_then_input(C, log):
    m = net()
    c = C(m)
    for i in range(6):
        m.requires_grad_(i % 2 == 1)
        x = torch.randn(5, 8, requires_grad=i % 3 == 0)
        y = c(x)
        log(y)
        if y.requires_grad:
            y.sum().backward()
        log(x.grad, mstate(m))
        m.zero_grad()


@case
def replace_param(C, log):
    m = net()
    c = C(m)
    for i in range(6):
        if i % 2:
            m[0].weight = nn.Parameter(torch.randn(16, 8) * i)
        if i == 3:
            m[4].bias = None
        if i == 4:
            m[4].bias = nn.Parameter(torch.ones(3))
        if i == 5:
            m[0].weight.data = torch.zeros(16, 8)
        x, y = batch()
        F.cross_entropy(c(x), y).backward()
        log(mstate(m))


@case
def replace_layer(C, log):
    m = net()
    c = C(m)
    for i in range(6):
        if i == 2:
            m[1] = nn.GELU()
        if i == 3:
            m[4] = nn.Linear(16, 3, bias=False)
        if i == 4:
            m[3].p = 0.7
        if i == 5:
            m[2].eps = 1.0
            m[2].momentum = 0.5
        x, y = batch()
        l = F.cross_entropy(c(x), y)
        l.backward()
        log(l, mstate(m))


@case
def load_sd(C, log):
    m = net()
    c = C(m)
    o = torch.optim.Adam(m.parameters())
    sd = None
    for i in range(7):
        if i == 2:
            sd = copy.deepcopy(c.state_dict())
            osd = copy.deepcopy(o.state_dict())
            pass
        if i == 5:
            log(str(c.load_state_dict(sd)))
            o.load_state_dict(osd)
        if i == 6:
            c.load_state_dict(sd, assign=True)
        x, y = batch()
        o.zero_grad()
        l = F.cross_entropy(c(x), y)
        l.backward()
        o.step()
        log(l, mstate(m))


@case
def deepcopy_pickle(C, log):
    m = net()
    c = C(m)
    x, y = batch()
    for i in range(3):
        F.cross_entropy(c(x), y).backward()
    c2 = copy.deepcopy(c)
    with torch.no_grad():
        for p in c2.parameters():
            p.mul_(2)
    for i in range(4):
        l1 = F.cross_entropy(c(x), y)
        l2 = F.cross_entropy(c2(x), y)
        (l1 + l2).backward()
        log(l1, l2, mstate(c), mstate(c2))
    c3 = pickle.loads(pickle.dumps(c))
    for i in range(3):
        l3 = F.cross_entropy(c3(x), y)
        l3.backward()
        log(l3, mstate(c3), mstate(c))
    b = io.BytesIO()
    torch.save(c, b)
    b.seek(0)
    c4 = torch.load(b, weights_only=False)
    log(c4(x))
    log(type(c).__name__ if False else "", len(m))


@case
def attrs(C, log):
    m = net()
    m.foo = 3
    c = C(m)
    x, y = batch()
    for i in range(4):
        c.foo = i
        log(m.foo == c.foo, c.training, isinstance(c, nn.Module))
        c.train(i % 2 == 0)
        log(m.training, m[3].training)
        log(c(x))
    c.to(torch.float64)
    log(c(x.double()))
    c.float()
    log(c(x))
    c.zero_grad()
    c.half()
    c.float()
    log(c(x))
    c.requires_grad_(False)
    log(c(x))
    log(sum(p.numel() for p in c.parameters()))
    c.apply(lambda k: k.reset_parameters() if isinstance(k, nn.Linear) else None)
    log(c(x))


@case
def ema(C, log):
    m = net()
    e = copy.deepcopy(m).requires_grad_(False)
    c = C(m)
    ce = C(e)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    for i in range(6):
        x, y = batch()
        o.zero_grad()
        t = ce(x)
        l = F.cross_entropy(c(x), y) + F.mse_loss(c(x), t)
        l.backward()
        o.step()
        with torch.no_grad():
            for a, b in zip(e.parameters(), m.parameters()):
                a.lerp_(b, 0.1)
        log(l, mstate(m), mstate(e), t)


@case
def avg_model(C, log):
    m = net()
    c = C(m)
    s = torch.optim.swa_utils.AveragedModel(m)
    cs = C(s)
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    for i in range(5):
        x, y = batch()
        o.zero_grad()
        l = F.cross_entropy(c(x), y)
        l.backward()
        o.step()
        s.update_parameters(m)
        log(l, cs(x), mstate(s))


class Tied(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Embedding(11, 8)
        s.l = nn.Linear(8, 8)
        s.h = nn.Linear(8, 11, bias=False)
        s.h.weight = s.e.weight

    def forward(s, i):
        return s.h(torch.tanh(s.l(s.e(i))))


@case
def tied(C, log):
    m = Tied()
    c = C(m)
    o = torch.optim.AdamW(m.parameters(), lr=0.01)
    for i in range(7):
        if i == 4:
            m.h.weight = nn.Parameter(m.h.weight.detach().clone())
        if i == 6:
            m.e.weight = m.h.weight
        x = torch.randint(0, 11, (3, 4))
        l = F.cross_entropy(c(x).flatten(0, 1), x.flatten())
        m.zero_grad()
        l.backward()
        o.step()
        log(l, mstate(m))


class LoRA(nn.Module):
    def __init__(s, b, r=2):
        super().__init__()
        s.b = b
        s.A = nn.Parameter(torch.randn(r, b.in_features))
        s.B = nn.Parameter(torch.zeros(b.out_features, r))
        s.s = 1.0

    def forward(s, x):
        return s.b(x) + s.s * (x @ s.A.t() @ s.B.t())


@case
def lora(C, log):
    m = net()
    c = C(m)
    for i in range(8):
        if i == 2:
            m.requires_grad_(False)
            m[0] = LoRA(m[0])
        if i == 4:
            m[0].s = 3.0
        if i == 5:
            with torch.no_grad():
                m[0].B.add_(1)
        if i == 6:
            with torch.no_grad():
                m[0].b.weight += m[0].B @ m[0].A
            m[0] = m[0].b
        if i == 7:
            m.requires_grad_(True)
        x, y = batch()
        l = F.cross_entropy(c(x), y)
        if l.requires_grad:
            l.backward()
        log(l, mstate(m))
        m.zero_grad()


def wn(C, log, f, g=None):
    m = net()
    f(m[0])
    o = torch.optim.SGD(m.parameters(), lr=0.1)
    c = loop(C, log, m, o, 5)
    m.eval()
    log(c(batch()[0]), c(batch()[0]))
    m.train()
    if g:
        g(m[0])
        loop(C, log, m, torch.optim.SGD(m.parameters(), lr=0.1), 4, c=c)


@case
def weight_norm_new(C, log):
    wn(C, log, P.weight_norm, lambda l: parametrize.remove_parametrizations(l, "weight"))


@case
def weight_norm_old(C, log):
    wn(C, log, nn.utils.weight_norm, nn.utils.remove_weight_norm)


@case
@dbl
def spectral_new(C, log):
    wn(C, log, P.spectral_norm, lambda l: parametrize.remove_parametrizations(l, "weight"))


@case
def spectral_old(C, log):
    wn(C, log, nn.utils.spectral_norm, nn.utils.remove_spectral_norm)


@case
def orthogonal(C, log):
    wn(C, log, P.orthogonal)


@case
def parametrize_late(C, log):
    class S(nn.Module):
        def forward(s, w):
            return w.triu()

    m = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    c = C(m)
    for i in range(6):
        if i == 2:
            parametrize.register_parametrization(m[0], "weight", S())
        if i == 4:
            parametrize.remove_parametrizations(m[0], "weight")
        l = c(torch.ones(3, 4)).pow(2).mean()
        l.backward()
        log(l, mstate(m))
    with parametrize.cached():
        log(c(torch.ones(3, 4)))


@case
def param_groups(C, log):
    m = net()
    o = torch.optim.SGD([{"params": m[0].parameters(), "lr": 0.5}, {"params": m[4].parameters(), "weight_decay": 0.1}], lr=0.1)

    def pre(i, m, o):
        if i == 3:
            o.add_param_group({"params": m[2].parameters()})
        o.param_groups[0]["lr"] *= 0.5

    loop(C, log, m, o, 6, pre)


@case
def prune(C, log):
    import torch.nn.utils.prune as pr

    m = net()
    c = C(m)
    for i in range(7):
        if i == 2:
            pr.l1_unstructured(m[0], "weight", amount=0.5)
        if i == 4:
            pr.l1_unstructured(m[0], "weight", amount=0.5)
        if i == 5:
            pr.remove(m[0], "weight")
        x, y = batch()
        l = F.cross_entropy(c(x), y)
        l.backward()
        log(l, mstate(m))


@case
@dbl
def opt_in_compiled(C, log):
    m = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    o = torch.optim.Adam(m.parameters(), lr=0.01)

    def step(x, y):
        o.zero_grad()
        l = F.cross_entropy(m(x), y)
        l.backward()
        o.step()
        return l.detach()

    c = C(step)
    for i in range(6):
        log(c(*batch()), mstate(m, o))


@case
def backward_in_compiled_scaled(C, log):
    m = net()

    def step(x, y, k):
        l = F.cross_entropy(m(x), y) * k
        l.backward()
        n = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        return l, n

    c = C(step)
    for i in range(6):
        l, n = c(*batch(), 1 + i * 0.5)
        log(l, n, mstate(m))
        if i == 3:
            m.zero_grad()


@case
def data_swap(C, log):
    m = net()
    c = C(m)
    x, y = batch()
    for i in range(6):
        if i == 1:
            m[0].weight.data = torch.randn(8, 16).t()
        if i == 2:
            m[0].weight.data.zero_()
        # if i==3: torch.utils.swap_tensors(m[0].weight,nn.Parameter(torch.randn(16,8)))
        if i == 4:
            m[0].weight.data = m[0].weight.data.clone().requires_grad_()
        if i == 5:
            m[2].running_mean = torch.ones(16)
        l = F.cross_entropy(c(x), y)
        l.backward()
        log(l, mstate(m))


@case
def functional_swap(C, log):
    m = net()
    c = C(m)
    x, y = batch()
    ps = [{n: (torch.randn_like(p)).requires_grad_() for n, p in m.named_parameters()} for _ in range(3)]
    for i in range(6):
        p = ps[i % 3]
        l = F.cross_entropy(torch.func.functional_call(c, p, (x,)), y)
        l.backward()
        log(l, mstate(m), p)


@case
def set_grad_views(C, log):
    m = nn.Linear(4, 3)
    c = C(m)
    flat = torch.zeros(15)
    m.weight.grad = flat[:12].view(3, 4)
    m.bias.grad = flat[12:]
    for i in range(5):
        c(torch.randn(2, 4)).sum().backward()
        log(flat, m.weight.grad.data_ptr() == flat.data_ptr(), m.weight.grad)


@case
def flat_params(C, log):
    m = nn.Linear(4, 3)
    flat = torch.randn(15, requires_grad=True)

    def f(x):
        return F.linear(x, flat[:12].view(3, 4), flat[12:])

    c = C(f)
    o = torch.optim.SGD([flat], lr=0.1)
    for i in range(5):
        l = c(torch.randn(2, 4)).pow(2).sum()
        o.zero_grad()
        l.backward()
        o.step()
        log(l, flat, flat.grad)


@case
def channels_last_conv(C, log):
    m = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 4, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    c = C(m)
    for i in range(6):
        if i == 3:
            m.to(memory_format=torch.channels_last)
        x = torch.randn(2, 3, 8, 8)
        if i % 2:
            x = x.to(memory_format=torch.channels_last)
        x.requires_grad_()
        y = c(x)
        y.square().sum().backward()
        s = mstate(m)
        log(y, x.grad, {k: v for k, v in s.items() if k != "g.0.bias"})
        m.zero_grad()


main()
