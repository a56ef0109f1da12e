"""Programs that train, or work with gradients, against eager: a case is given what compiles (or nothing that does) and logs what it observes.

Written from torch's documentation by somebody who had not seen the compiler. Each file is run by itself; names on its command line choose cases.
"""

import torch, sys, time, warnings, traceback, gc, os, random, numbers

torch.set_num_threads(2)
import broach

CASES = []


def case(f):
    CASES.append(f)
    return f


def snap(x):
    """freeze one observation"""
    if isinstance(x, torch.Tensor):
        t = x.detach()
        if type(t) is not torch.Tensor:
            t = t.as_subclass(torch.Tensor)
        dense = t.to_dense() if t.layout != torch.strided else t
        d = dict(
            T=1,
            val=dense.clone(),
            dtype=x.dtype,
            shape=tuple(x.shape),
            stride=tuple(x.stride()) if x.layout == torch.strided else str(x.layout),
            rg=x.requires_grad,
            leaf=x.is_leaf,
            gf=x.grad_fn is None,
            cls=type(x).__name__,
        )
        return d
    if isinstance(x, dict) and x.get("T") == 1 and "val" in x:
        return x
    if isinstance(x, dict):
        return {k: snap(v) for k, v in x.items()} | {"__cls": type(x).__name__}
    if isinstance(x, (list, tuple)):
        return [type(x).__name__] + [snap(v) for v in x]
    if isinstance(x, BaseException):
        return "EXC " + type(x).__name__
    return x


def mstate(m, opt=None):
    o = {}
    for n, p in m.named_parameters():
        n = n.replace("_orig_mod.", "")
        o["p." + n] = snap(p)
        o["g." + n] = snap(p.grad)
    for n, b in m.named_buffers():
        o["b." + n.replace("_orig_mod.", "")] = snap(b)
    if opt is not None:
        sd = opt.state_dict()
        o["opt"] = snap(sd["state"])
        o["pg"] = snap([{k: v for k, v in g.items()} for g in sd["param_groups"]])
    return o


# Of cases under autocast: bf16 rounds to 8 bits, and a fused chain leaves roundings out.
LOOSE = [False]


def loose(f):
    import functools

    @functools.wraps(f)
    def g(C, log):
        LOOSE[0] = True
        f(C, log)

    return g


def tol(dt):
    if LOOSE[0]:
        return (3e-2, 3e-2)
    return {torch.bfloat16: (3e-2, 3e-2), torch.float16: (5e-3, 5e-3), torch.float64: (1e-7, 1e-9), torch.complex128: (1e-7, 1e-9)}.get(
        dt, (2e-4, 2e-5)
    )


def diff(a, b, path=""):
    out = []
    if type(a) != type(b):
        return [f"{path}: type {type(a).__name__} {str(a)[:80]} vs {type(b).__name__} {str(b)[:80]}"]
    if isinstance(a, dict):
        if a.get("T") == 1 and b.get("T") == 1:
            for k in ("dtype", "shape", "stride", "rg", "leaf", "gf", "cls"):
                if a[k] != b[k]:
                    out.append(f"{path}.{k}: eager {a[k]} broach {b[k]}")
            if a["shape"] == b["shape"]:
                x, y = a["val"], b["val"]
                r, t = tol(x.dtype)
                if x.dtype == y.dtype and not torch.allclose(
                    x,
                    y,
                    rtol=r,
                    atol=t * float(max(1, x.detach().abs().float().nan_to_num(0, 0, 0).max() if x.numel() else 1))
                    if x.dtype.is_floating_point or x.dtype.is_complex
                    else 0,
                    equal_nan=True,
                ):
                    m = (
                        x.to(torch.complex128 if x.is_complex() else torch.float64)
                        - y.to(torch.complex128 if x.is_complex() else torch.float64)
                    ).abs()
                    out.append(
                        f"{path}.val: maxdiff {m.max().item():.3g} eager {x.flatten()[:4].tolist()} broach {y.flatten()[:4].tolist()}"
                    )
            return out
        if list(map(str, a)) != list(map(str, b)):
            out.append(f"{path}: keys {list(a)[:12]} vs {list(b)[:12]}")
        for k in a:
            if k in b:
                out += diff(a[k], b[k], f"{path}.{k}")
        return out
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return [f"{path}: len {len(a)} vs {len(b)}  {str(a)[:100]} / {str(b)[:100]}"]
        for i, (x, y) in enumerate(zip(a, b)):
            out += diff(x, y, f"{path}[{i}]")
        return out
    if isinstance(a, float):
        if not (a == b or (a != a and b != b) or abs(a - b) <= 2e-4 * max(1, abs(a))):
            out.append(f"{path}: {a} vs {b}")
        return out
    try:
        if not a == b:
            out.append(f"{path}: {str(a)[:120]} vs {str(b)[:120]}")
    except Exception as e:
        pass
    return out


def dbl(f):
    import functools

    @functools.wraps(f)
    def g(C, log):
        torch.set_default_dtype(torch.float64)
        try:
            f(C, log)
        finally:
            torch.set_default_dtype(torch.float32)

    return g


def ident(f, *a, **k):
    return f


def runone(f, C):
    torch.manual_seed(0)
    random.seed(0)
    import numpy as np

    np.random.seed(0)
    log = []
    try:
        f(C, lambda *xs: log.append(snap(xs[0] if len(xs) == 1 else xs)))
    except Exception as e:
        log.append(["EXC", type(e).__name__])
        return log, e
    log.append(["rng", snap(torch.get_rng_state())])
    return log, None


# What is known to differ, with the reason; run only when named on the command line.
KNOWN = {
    "drop_br": "it goes by the sign of a batch norm's sum, which is 0 but for the order of summation",
    "inpl_fn": "eager raises for a result that is written before backward; a compiled call saved a copy of it and gives the gradient",
    "inpl_bk": "likewise",
    "err_fn": "a program that raises while it is captured is run again by itself, so that what it did before the error is done twice",
    "transformer": "while it is captured torch.compiler.is_compiling() is true, where nn.TransformerEncoder leaves its fast path, as in torch.compile",
}


def main():
    pat = sys.argv[1:]
    bad = 0
    for f in CASES:
        if pat and not any(p in f.__name__ for p in pat):
            continue
        if not pat and f.__name__ in KNOWN:
            continue
        t = time.time()
        LOOSE[0] = False
        a, e1 = runone(f, ident)
        a2, _ = runone(f, ident)
        nd = diff(a, a2)
        te = time.time() - t
        with warnings.catch_warnings(record=True) as W:
            warnings.simplefilter("always")
            b, e2 = runone(f, broach.compile)
        d = diff(a, b)
        ws = {}
        for w in W:
            if "roach" in str(w.message) or "roach" in w.category.__name__:
                ws[str(w.message)] = ws.get(str(w.message), 0) + 1
        tag = "ok  " if not d else "FAIL"
        print(
            f"{tag} {f.__name__} eager2x {te:.2f}s broach {time.time() - t - te:.2f}s"
            + (" NONDET-EAGER" if nd else "")
            + (f" [both raise {type(e1).__name__}: {str(e1)[:150]}]" if e1 is not None else "")
        )
        for k, v in list(ws.items())[:4]:
            print("     warn x%d: %s" % (v, k[:230].replace("\n", " ")))
        if d:
            bad += 1
            for l in d[:8]:
                print("     ", l[:300])
            if len(d) > 8:
                print("      ...", len(d))
            if e2 is not None and (e1 is None or type(e1) != type(e2)):
                print("      E:", "".join(traceback.format_exception(e2))[-1200:])
    print("failed", bad)
    sys.stdout.flush()
