"""Sequences: autograd, training, optimizers."""
from sequences import *  # noqa: F403
import copy, contextlib
from torch.utils.checkpoint import checkpoint
def mlp(seed=0, act=nn.Tanh):
    torch.manual_seed(seed); return nn.Sequential(nn.Linear(4, 8), act(), nn.Linear(8, 3))
def params(m): return [p.detach().clone() for p in m.parameters()]
OPTS = {
 "sgd": lambda p: torch.optim.SGD(p, lr=0.1), "sgdm": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01), "adam": lambda p: torch.optim.Adam(p, lr=0.01), "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
 "rms": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5), "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1), "adadelta": lambda p: torch.optim.Adadelta(p), "adamax": lambda p: torch.optim.Adamax(p), "nadam": lambda p: torch.optim.NAdam(p, lr=0.01), "radam": lambda p: torch.optim.RAdam(p, lr=0.01), "asgd": lambda p: torch.optim.ASGD(p), "rprop": lambda p: torch.optim.Rprop(p), "adafused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True), "adamforeach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True), "adamcap": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)), "sgdmax": lambda p: torch.optim.SGD(p, lr=0.1, maximize=True), "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01)}
def step_case(name, mk):
    def f(c, L):
        m = mlp(); opt = mk(m.parameters())
        def step(x, y):
            loss = F.cross_entropy(m(x), y); opt.zero_grad(); loss.backward(); opt.step(); return loss
        s = c(step)
        for i in range(7):
            L(s(R(5, 4), torch.tensor([0, 1, 2, 1, 0])))
            if i == 3: opt.param_groups[0]["lr"] = opt.param_groups[0]["lr"] * 0.1
        L(params(m), [p.grad for p in m.parameters()], len(opt.state))
        L([{k: v for k, v in s.items()} for s in opt.state.values()])
    f.__name__ = f.__qualname__ = "wholestep_" + name; f.__module__ = __name__; return f
for n, mk in OPTS.items(): case(step_case(n, mk))
def optstep_case(name, mk):
    def f(c, L):
        m = mlp(); opt = mk(m.parameters()); s = c(opt.step)
        for i in range(7):
            opt.zero_grad(set_to_none=i != 4); F.cross_entropy(m(R(5, 4)), torch.tensor([0, 1, 2, 1, 0])).backward()
            if i == 2: m[0].weight.grad = None
            if i == 3: opt.param_groups[0]["lr"] = opt.param_groups[0]["lr"] * 0.5
            s(); L(params(m))
        L([{k: v for k, v in s.items()} for s in opt.state.values()])
    f.__name__ = f.__qualname__ = "compiled_step_" + name; f.__module__ = __name__; return f
for n in ("sgdm", "adam"): case(optstep_case(n, OPTS[n]))
@case
def lbfgs(c, L):
    m = mlp(); opt = torch.optim.LBFGS(m.parameters(), max_iter=3); fm = c(m); x = R(5, 4); n = [0]
    def closure(): opt.zero_grad(); n[0] += 1; l = fm(x).pow(2).mean(); l.backward(); return l
    for i in range(4): L(opt.step(closure), n[0])
    L(params(m))
SCHED = {"step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2), "cos": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5), "onecycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.5, total_steps=20), "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda e: 0.9 ** e), "seq": lambda o: torch.optim.lr_scheduler.SequentialLR(o, [torch.optim.lr_scheduler.ConstantLR(o, 0.1, 2), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], milestones=[2]), "plateau": None, "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, 2)}
def sched_case(name, mk, inside):
    def f(c, L):
        m = mlp(); opt = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9); sch = mk(opt) if mk else torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1)
        def step(x):
            loss = m(x).pow(2).mean(); loss.backward(); opt.step(); opt.zero_grad()
            if inside: sch.step() if mk else sch.step(loss.item())
            return loss.detach()
        s = c(step)
        for i in range(8):
            l = s(R(5, 4)); L(l)
            if not inside: sch.step() if mk else sch.step(float(l))
            L(opt.param_groups[0]["lr"])
        L(params(m))
    f.__name__ = f.__qualname__ = f"sched_{name}_{inside}"; f.__module__ = __name__; return f
for n, mk in SCHED.items():
    for ins in (0, 1): case(sched_case(n, mk, ins))
@case
def step_with_state_changes(c, L):
    m = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)); opt = torch.optim.SGD([{"params": m[0].parameters(), "lr": 0.1}, {"params": m[3].parameters(), "lr": 0.01}], lr=1., momentum=0.9)
    def step(x): l = m(x).pow(2).mean(); l.backward(); opt.step(); opt.zero_grad(); return l
    s = c(step); torch.manual_seed(0)
    for i in range(9):
        L(s(R(5 + i % 2, 4)), params(m), m[1].running_mean)
        if i == 2: m[0].weight.requires_grad_(False)
        if i == 4: m[0].weight.requires_grad_(True); m.eval()
        if i == 5: m.train(); opt.add_param_group({"params": m[1].parameters(), "lr": 0.5})
        if i == 6: opt.param_groups[0]["momentum"] = 0.0
        if i == 7: opt.state.clear()
@case
def grad_accum_clip(c, L):
    m = mlp(); opt = torch.optim.AdamW(m.parameters(), lr=0.01); k = [0]
    def step(x):
        l = m(x).pow(2).mean() / 2; l.backward(); k[0] += 1; n = None
        if k[0] % 2 == 0: n = nn.utils.clip_grad_norm_(m.parameters(), 0.05); opt.step(); opt.zero_grad()
        return l.detach(), n
    s = c(step)
    for i in range(8): L(s(R(3, 4)), k, [p.grad for p in m.parameters()])
    L(params(m))
@case
def clip_value_ema_swa(c, L):
    m = mlp(); opt = torch.optim.SGD(m.parameters(), lr=0.1); ema = torch.optim.swa_utils.AveragedModel(m, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)); tgt = copy.deepcopy(m)
    def step(x):
        l = F.mse_loss(m(x), tgt(x).detach() + 1); opt.zero_grad(); l.backward(); nn.utils.clip_grad_value_(m.parameters(), 0.01); opt.step(); ema.update_parameters(m)
        with torch.no_grad():
            for a, b in zip(tgt.parameters(), m.parameters()): a.lerp_(b, 0.1)
        return l.item()
    s = c(step)
    for i in range(7): L(s(R(3, 4)), params(ema), params(tgt), ema.n_averaged)
    fe = c(ema); L(fe(torch.ones(1, 4))); s(R(3, 4)); L(fe(torch.ones(1, 4)))
@case
def gradscaler(c, L):
    m = mlp(); opt = torch.optim.SGD(m.parameters(), lr=0.1); sc = torch.amp.GradScaler("cpu", init_scale=1024., growth_interval=2)
    def step(x):
        with torch.autocast("cpu", dtype=torch.float16): l = m(x).float().pow(2).mean()
        sc.scale(l).backward(); sc.unscale_(opt); nn.utils.clip_grad_norm_(m.parameters(), 1.0); sc.step(opt); sc.update(); opt.zero_grad(); return l.detach()
    s = c(step)
    for i in range(8): x = R(3, 4); x = x * float("inf") if i == 4 else x; L(s(x)); L(sc.get_scale())
    L(params(m))
@case
def gradscaler_outer(c, L):
    m = mlp(); f = c(m); opt = torch.optim.Adam(m.parameters(), lr=0.01); sc = torch.amp.GradScaler("cpu", init_scale=256., growth_interval=3)
    for i in range(7):
        with torch.autocast("cpu", dtype=torch.bfloat16): l = F.cross_entropy(f(R(3, 4)), torch.tensor([0, 1, 2]))
        sc.scale(l).backward(); sc.step(opt); sc.update(); opt.zero_grad(); L(l.detach(), sc.get_scale())
@case
def autograd_function(c, L):
    log = []
    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k): ctx.save_for_backward(x); ctx.k = k; log.append("f"); return x * k, x.sum()
        @staticmethod
        def backward(ctx, g, h): x, = ctx.saved_tensors; log.append("b"); return g * ctx.k * 10 + h, None
    f = c(lambda x, k: Fn.apply(x, k)[0] * 2)
    for k in [1, 2, 3, 3, 2.5, 1]: x = R(3, grad=k != 3); y = f(x, k); L(y, list(log)); (y.sum().backward(), L(x.grad, list(log))) if k != 3 else None
    x = R(3); L(f(x, 2), list(log))
    with torch.no_grad(): L(f(R(3, grad=True), 4), list(log))
@case
def autograd_function_new(c, L):
    class Fn(torch.autograd.Function):
        generate_vmap_rule = True
        @staticmethod
        def forward(x, y): return x * y
        @staticmethod
        def setup_context(ctx, i, o): ctx.save_for_backward(*i); ctx.set_materialize_grads(False)
        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors; return (g * y if ctx.needs_input_grad[0] else None), (g * x * 2 if ctx.needs_input_grad[1] else None)
    f = c(lambda x, y: Fn.apply(x, y).sum())
    for a, b in [(1, 1), (1, 0), (0, 1), (1, 1), (0, 0), (1, 1)]:
        x, y = R(3, grad=bool(a)), R(3, grad=bool(b)); r = f(x, y); L(r)
        if a or b: r.backward(); L(x.grad, y.grad)
    L(c(lambda x, y: torch.vmap(Fn.apply)(x, y))(R(2, 3), R(2, 3)))
@case
def autograd_function_ste_dirty(c, L):
    class STE(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return x.round()
        @staticmethod
        def backward(ctx, g): return g
    class Inp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): ctx.mark_dirty(x); x.mul_(2); return x
        @staticmethod
        def backward(ctx, g): return g * 2
    class NonDiff(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): i = x.argmax(); ctx.mark_non_differentiable(i); return x * 3, i
        @staticmethod
        def backward(ctx, g, gi): return g * 3
    def g(x): a, i = NonDiff.apply(x); return STE.apply(x) + Inp.apply(x + 1) + a, i
    f = c(g)
    for n in [2, 3, 2, 4, 3, 2]: x = R(n, grad=True); y, i = f(x); y.sum().backward(); L(y, i, x.grad)
@case
def tensor_hooks(c, L):
    log = []
    def g(x): y = x * 2; y.register_hook(lambda gr: (log.append("h"), gr * 3)[1]); return y.sin()
    f = c(g)
    for i in range(6): x = R(3, grad=True); f(x).sum().backward(); L(x.grad, list(log))
    x = R(3, grad=True); h = x.register_hook(lambda gr: gr * 10); f2 = c(lambda x: x * 2); f2(x).sum().backward(); L(x.grad); h.remove(); x.grad = None; f2(x).sum().backward(); L(x.grad); x.register_post_accumulate_grad_hook(lambda p: log.append("acc")); f2(x).sum().backward(); L(x.grad, list(log))
@case
def retain_grad_inside(c, L):
    def g(x): y = x * 2; y.retain_grad(); return y.sum() * 3, y
    f = c(g)
    for i in range(6): x = R(3, grad=True); l, y = f(x); l.backward(); L(x.grad, y.grad)
@case
def grad_calls_inside(c, L):
    def g(x): y = (x ** 3).sum(); gr, = torch.autograd.grad(y, x, create_graph=True); return gr.pow(2).sum()
    f = c(g)
    for i in range(6): x = R(3, grad=True); l = f(x); l.backward(); L(l, x.grad)
    def gp(x, m): x = x.detach().requires_grad_(); gr, = torch.autograd.grad(m(x).sum(), x, create_graph=True); return ((gr.norm(2, dim=1) - 1) ** 2).mean()
    m = mlp(); f = c(gp)
    for i in range(4): m.zero_grad(); l = f(R(2, 4), m); l.backward(); L(l, [p.grad for p in m.parameters()])
@case
def double_backward(c, L):
    f = c(lambda x, w: (torch.tanh(x @ w)).pow(2).sum())
    for i in range(6):
        x, w = R(2, 3, grad=True), R(3, 3, grad=True); l = f(x, w); gx, gw = torch.autograd.grad(l, (x, w), create_graph=True); L(gx, gw); (gx.pow(2).sum() + gw.sum()).backward(); L(x.grad, w.grad)
@case
def requires_grad_varies(c, L):
    f = c(lambda x, y: ((x * y).sin(), y.detach() + x))
    for a, b in [(1, 0), (0, 1), (1, 1), (0, 0), (1, 0), (1, 1)]:
        x, y = R(3, grad=bool(a)), R(3, grad=bool(b)); r = f(x, y); L(r)
        if r[0].requires_grad: r[0].sum().backward(); L(x.grad, y.grad)
@case
def detach_requires_grad_ops(c, L):
    def g(x): y = x * 2; y.detach_(); z = y + 1; w = z.clone().requires_grad_(); return z, y.requires_grad, w, x.data * 2, w.is_leaf, (x * 3).grad_fn is None
    f = c(g)
    for i in range(6): L(f(R(3, grad=i % 2 == 0)))
@case
def grad_attr_read_write(c, L):
    def g(x, lr):
        if x.grad is None: return x * 2
        x.grad.mul_(lr); return x * x.grad.sum()
    f = c(g); x = R(3, grad=True); L(f(x, 1.)); x.sum().backward(); L(f(x, .5), x.grad); L(f(x, 2.), x.grad); x.grad = None; L(f(x, 1.)); x.grad = R(3); L(f(x, 1.), x.grad); x.grad = torch.ones(3); L(f(x, 3.), x.grad)
    def sgd(ps, lr):
        with torch.no_grad():
            for p in ps:
                if p.grad is not None: p -= lr * p.grad; p.grad = None
    f = c(sgd); ps = [R(2, grad=True) for _ in range(3)]
    for i in range(6):
        for j, p in enumerate(ps):
            if (i + j) % 3: (p * 2).sum().backward()
        f(ps, 0.1 * (i + 1)); L([p.detach() for p in ps], [p.grad for p in ps])
@case
def backward_inside(c, L):
    def g(x, w): l = (x * w).sin().sum(); l.backward(); return l.detach(), w.grad
    f = c(g); w = R(3, grad=True)
    for i in range(7):
        r = f(R(3), w); L(r, w.grad, r[1] is w.grad)
        if i == 2: w.grad = None
        if i == 4: w.grad.zero_()
@case
def backward_errors(c, L):
    f = c(lambda x: x * 2)
    L.t(lambda: f(R(3)).sum().backward()); x = R(3, grad=True); y = f(x).sum(); y.backward(); L.t(lambda: y.backward()); y = f(x).sum(); y.backward(retain_graph=True); L.t(lambda: y.backward()); L(x.grad); L.t(lambda: f(x).backward()); y = f(x); y.backward(torch.ones(3)); L(x.grad); z = f(x); w = z.exp(); L.t(lambda: (w.add_(1), w.sum().backward())); L(x.grad)
    def g(x): y = x.exp(); y2 = y * 1; y.add_(1); return y2
    h = c(g); L.t(lambda: h(R(3, grad=True)).sum().backward()); L.t(lambda: c(lambda x: x.add_(1))(R(3, grad=True)))
@case
def inplace_on_nonleaf(c, L):
    def g(x): y = x * 2; y[0] = 5; y.add_(1); y[1:].mul_(3); return y
    f = c(g); h = c(lambda y: y.mul_(2))
    for i in range(6): x = R(4, grad=True); f(x).sum().backward(); L(x.grad); y = x * 1; z = h(y); L(z is y, y); x.grad = None; z.sum().backward(); L(x.grad)
@case
def inplace_input_then_backward(c, L):
    def g(x, b): b.copy_(x.detach()); return (x * b).sum()
    f = c(g)
    for i in range(6): x, b = R(3, grad=True), torch.zeros(3); l = f(x, b); l.backward(); L(l, x.grad, b)
@case
def unused_and_partial_grads(c, L):
    f = c(lambda a, b, d: (a * b, b + 1, d.sum()))
    for i in range(6):
        a, b, d = R(2, grad=True), R(2, grad=True), R(2, grad=i % 2 == 0); r = f(a, b, d); r[i % 2].sum().backward(); L(a.grad, b.grad, d.grad)
@case
def ckpt(c, L):
    m = mlp(); 
    for ur in (False, True):
        f = c(lambda x: checkpoint(m, x, use_reentrant=ur).pow(2).mean())
        for i in range(4): x = R(2, 4, grad=True); m.zero_grad(); l = f(x); l.backward(); L(l, x.grad, m[0].weight.grad)
@case
def ckpt_of_compiled_dropout(c, L):
    m = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2)); f = c(m)
    for i in range(6): torch.manual_seed(i); x = R(2, 4, grad=True); l = checkpoint(f, x, use_reentrant=False).sum(); l.backward(); L(l, x.grad); m.train(i % 3 != 1)
@case
def saved_tensor_hooks(c, L):
    log = []; f = c(lambda x: (x * x).sin().sum())
    def pack(t): log.append("p"); return t.clone()
    def unpack(t): log.append("u"); return t
    for i in range(6):
        x = R(3, grad=True)
        with (torch.autograd.graph.saved_tensors_hooks(pack, unpack) if i % 2 else contextlib.nullcontext()): l = f(x)
        l.backward(); L(x.grad)
    x = R(3, grad=True)
    with torch.autograd.graph.save_on_cpu(): l = f(x)
    l.backward(); L(x.grad)
@case
def anomaly_profiler_modes(c, L):
    f = c(lambda x: (x * 2).exp().sum()); x = R(3, grad=True)
    for i in range(2):
        f(x).backward(); L(x.grad)
        with torch.autograd.detect_anomaly(check_nan=True): f(x).backward(); L(x.grad); g = c(lambda x: (x * 0 / 0).sum()); L.t(lambda: g(x).backward())
        with torch.profiler.profile(): L(f(x))
        with torch.profiler.record_function("a"): L(f(x))
    def g(x):
        with torch.profiler.record_function("in"): return x * 2
    h = c(g); L(h(x)); L(h(x))
@case
def gan_steps(c, L):
    G, D = mlp(1), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)); og, od = torch.optim.Adam(G.parameters(), lr=0.01), torch.optim.Adam(D.parameters(), lr=0.01)
    def dstep(z, r): od.zero_grad(); l = F.binary_cross_entropy_with_logits(D(r), torch.ones(len(r), 1)) + F.binary_cross_entropy_with_logits(D(G(z).detach()), torch.zeros(len(z), 1)); l.backward(); od.step(); return l.item()
    def gstep(z):
        for p in D.parameters(): p.requires_grad_(False)
        og.zero_grad(); l = F.binary_cross_entropy_with_logits(D(G(z)), torch.ones(len(z), 1)); l.backward(); og.step()
        for p in D.parameters(): p.requires_grad_(True)
        return l.item()
    a, b = c(dstep), c(gstep)
    for i in range(6): L(a(R(3, 4), R(3, 3)), b(R(3, 4)))
    L(params(G), params(D))
@case
def gan_modules(c, L):
    G, D = mlp(1), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)); og, od = torch.optim.Adam(G.parameters(), lr=0.01), torch.optim.Adam(D.parameters(), lr=0.01); fg, fd = c(G), c(D)
    for i in range(6):
        z, r = R(3, 4), R(3, 3); od.zero_grad(); fk = fg(z); l = F.softplus(-fd(r)).mean() + F.softplus(fd(fk.detach())).mean(); l.backward(); od.step(); og.zero_grad(); l2 = F.softplus(-fd(fk)).mean(); l2.backward(); og.step(); L(l.detach(), l2.detach(), [p.grad for p in D.parameters()])
    L(params(G), params(D))
@case
def rnn_tbptt(c, L):
    for cls in (nn.LSTM, nn.GRU, nn.RNN):
        torch.manual_seed(0); m = cls(3, 4, batch_first=True); f = c(m); h = None
        for i in range(6):
            x = R(2, 5 if i < 3 else 4, 3); y, h = f(x, h); m.zero_grad(); y.pow(2).sum().backward(); L(y, h, m.weight_ih_l0.grad); h = tuple(t.detach() for t in h) if isinstance(h, tuple) else h.detach()
            if i == 4: m.eval()
    cell = nn.LSTMCell(3, 4)
    def run(xs):
        h = None
        for x in xs.unbind(1): h = cell(x, h)
        return h[0]
    f = c(run)
    for T in [2, 3, 4, 3, 1]: L(f(R(2, T, 3)))
@case
def embedding_sparse(c, L):
    m = nn.Embedding(6, 3, padding_idx=0, sparse=True); f = c(m); opt = torch.optim.SparseAdam(m.parameters(), lr=0.1)
    for i in range(6): opt.zero_grad(); y = f(torch.tensor([0, 1 + i % 3, 5])).pow(2).sum(); y.backward(); L(m.weight.grad); opt.step(); L(m.weight)
    b = nn.EmbeddingBag(6, 3, mode="mean"); g = c(b); L(g(torch.tensor([1, 2, 3]), torch.tensor([0, 2]))); L(g(torch.tensor([[1, 2], [3, 4]]))); L.t(f, torch.tensor([7])); m.max_norm = 0.1; L(f(torch.tensor([1, 2]))); L(m.weight)
@case
def loss_functions(c, L):
    x = R(4, 5, grad=True); t = torch.tensor([0, 1, 2, 4])
    fs = [lambda x: F.cross_entropy(x, t, label_smoothing=0.1), lambda x: F.nll_loss(F.log_softmax(x, 1), t, ignore_index=4), lambda x: F.multi_margin_loss(x, t), lambda x: F.kl_div(x.log_softmax(1), torch.ones(4, 5) / 5, reduction="batchmean"), lambda x: F.huber_loss(x, x.detach() * 2), lambda x: F.smooth_l1_loss(x, torch.ones(4, 5)), lambda x: F.cosine_embedding_loss(x, x.flip(0), torch.ones(4)), lambda x: F.triplet_margin_loss(x, x.flip(0), x.roll(1, 0)), lambda x: F.gaussian_nll_loss(x, torch.zeros(4, 5), torch.ones(4, 5)), lambda x: F.poisson_nll_loss(x, torch.ones(4, 5)), lambda x: F.ctc_loss(x.log_softmax(1).unsqueeze(1), torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])), lambda x: F.hinge_embedding_loss(x, torch.ones(4, 5)), lambda x: F.margin_ranking_loss(x[0], x[1], torch.ones(5)), lambda x: F.soft_margin_loss(x, torch.ones(4, 5)), lambda x: F.multilabel_soft_margin_loss(x, torch.ones(4, 5))]
    for g in fs:
        f = c(g)
        for i in range(3): x = R(4, 5, grad=True); l = f(x); l.backward(); L(l, x.grad)
@case
def multi_backward_accumulate(c, L):
    m = mlp(); f = c(m)
    for i in range(6):
        a, b = f(R(2, 4)), f(R(3, 4)); (a.sum() + b.pow(2).sum()).backward(); L([p.grad for p in m.parameters()])
        if i % 2: m.zero_grad(set_to_none=i == 3)
    y = f(R(2, 4)); y2 = f(R(2, 4)); y2.sum().backward(); y.sum().backward(); L([p.grad for p in m.parameters()])
    xs = [f(R(2, 4)) for _ in range(4)]; sum(x.sum() for x in reversed(xs)).backward(); L(m[0].weight.grad)
@case
def weight_changed_before_backward(c, L):
    m = mlp(); f = c(m)
    for i in range(6):
        y = f(R(2, 4)).sum()
        if i % 2: 
            with torch.no_grad(): m[2].weight.add_(1)
        L.t(lambda: y.backward()); L([p.grad for p in m.parameters()])
    for i in range(3):
        x = R(2, 4, grad=True); y = f(x).sum(); m[2].weight.data.add_(1); y.backward(); L(x.grad)
@case
def frozen_backbone(c, L):
    bb, hd = mlp(1), nn.Linear(3, 2); opt = torch.optim.SGD(hd.parameters(), lr=0.1)
    def step(x, ft):
        with torch.set_grad_enabled(ft): h = bb(x)
        l = hd(h).pow(2).mean(); opt.zero_grad(); l.backward(); opt.step(); return l, h.requires_grad
    s = c(step)
    for ft in [False, False, True, True, False, True]: L(s(R(2, 4), ft), bb[0].weight.grad)
    f = c(lambda x: hd(bb(x)))
    for ft in [False, True, False, True, True, False]: bb.requires_grad_(ft); hd.requires_grad_(not ft); f(R(2, 4)).sum().backward(); L(bb[0].weight.grad, hd.weight.grad)
@case
def meta_learning_functional(c, L):
    m = mlp(); P = {k: v.detach().clone().requires_grad_() for k, v in m.named_parameters()}
    def maml(P, xs, xq):
        l = torch.func.functional_call(m, P, (xs,)).pow(2).mean(); g = torch.autograd.grad(l, list(P.values()), create_graph=True)
        Q = {k: v - 0.1 * gg for (k, v), gg in zip(P.items(), g)}; return torch.func.functional_call(m, Q, (xq,)).pow(2).mean()
    f = c(maml)
    for i in range(6): l = f(P, R(2, 4), R(2, 4)); gs = torch.autograd.grad(l, list(P.values())); L(l, list(gs))
@case
def per_sample_grads(c, L):
    m = mlp(); P = {k: v.detach() for k, v in m.named_parameters()}
    def loss(P, x, y): return F.cross_entropy(torch.func.functional_call(m, P, (x[None],)), y[None])
    f = c(torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0)))
    for n in [2, 3, 2, 4, 1, 3]: L(f(P, R(n, 4), torch.arange(n) % 3))
    ms = [mlp(i) for i in range(3)]; pr, bu = torch.func.stack_module_state(ms); g = c(lambda p, b, x: torch.vmap(lambda p, b: torch.func.functional_call(ms[0], (p, b), (x,)))(p, b))
    for n in [2, 3, 2]: L(g(pr, bu, R(n, 4)))
@case
def no_sync_threads_backward(c, L):
    import threading
    m = mlp(); f = c(m); errs = []
    f(R(2, 4)).sum().backward(); m.zero_grad()
    outs = [None] * 8
    def w(i):
        try: x = torch.full((2, 4), float(i), requires_grad=True); f(x).sum().backward(); outs[i] = x.grad
        except Exception as e: errs.append(repr(e))
    for r in range(3):
        ts = [threading.Thread(target=w, args=(i,)) for i in range(8)]; [t.start() for t in ts]; [t.join() for t in ts]; L(outs, errs)
    L(1, 2, 3)
