"""Whole situations: each is run with a `compile` that does nothing and with Broach's, and what it returns must agree.

    situation("name")(lambda compile: ...)
"""

import sys
import traceback
import warnings

import harness
import torch
import torch.nn as nn

SITUATIONS = {}


def situation(function):
    SITUATIONS[function.__name__.replace("_", " ")] = function
    return function


def seeded(shape, seed=0, dtype=torch.float32, grad=False):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_(grad)


def mlp(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *more, nn.Linear(8, 4))


def raised(function, *args, **kwargs):
    try:
        return ("returned", function(*args, **kwargs))
    except Exception as error:
        return ("raised", type(error).__name__)


def steps(model, forward, count=5, size=lambda i: 3 + i % 3, optimizer=None, dtype=torch.float32):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    log = []
    for i in range(count):
        optimizer.zero_grad()
        loss = forward(seeded((size(i), 6), i, dtype)).float().square().mean()
        loss.backward()
        optimizer.step()
        log.append(loss.detach())
    return log, {name: p.detach().clone() for name, p in model.named_parameters()}


def outcome(function, compile):
    torch.manual_seed(0)
    torch._dynamo.reset()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(compile)
    except Exception as error:
        return (f"situation raised {type(error).__name__}: {error}", traceback.format_exc()[-700:])


def main():
    words = [a for a in sys.argv[1:] if not a.startswith("--")]
    skip = frozenset(line.rstrip("\n") for a in sys.argv[1:] if a.startswith("--skip=") for line in open(a[7:]))
    fronts = [a[8:] for a in sys.argv[1:] if a.startswith("--front=")] or ["broach", "torch"]
    sys.exit(run(words, fronts, skip, harness.part_of(sys.argv)) > 0)


def run(words=(), fronts=("broach", "torch"), skip=frozenset(), part=1):
    from broach._native import _C

    count = 0
    case = harness.Case("", None, ())
    for name, function in list(SITUATIONS.items())[:: max(part // 5, 1)]:
        if words and not any(word in name for word in words):
            continue
        want = outcome(function, lambda f: f)
        for front in fronts:
            key = f"{name} | {front}"
            if key in skip:
                continue
            print("START", key, flush=True)
            got = outcome(function, lambda f: harness.compiled_by(front, f))
            found = harness.differing("result", want, got, case)
            found += [f"bug: {text}" for text in _C.take_bugs()]
            count += bool(found)
            for text in found[:4]:
                print("DIFF", key, "|", text.replace("\n", " / "), flush=True)
    print("DONE", len(SITUATIONS), "situations,", count, "differ", flush=True)
    return count
