"""What test_refused_kernels.py runs in processes of its own, with a compiler that refuses some kernels: says what ran, and how."""

from __future__ import annotations

import sys

import broach
import torch


def _fused(x):
    return x.erfinv() + x.sin(), (x * 2).exp()


def _hyperbolic(x):
    return (x.cosh() * x).sum()


def forward() -> None:
    compiled, x = broach.compile(_fused), torch.rand(300, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            for ours, eager in zip(compiled(x), _fused(x), strict=True):
                torch.testing.assert_close(ours, eager)
        print("kernels", broach.explain(compiled, x).kernels)
    programs = compiled.stats()["programs"]
    print("compiled calls", compiled.stats()["compiled_calls"], "externs", sorted({name for p in programs for name in p["externs"]}))


def backward() -> None:
    compiled, x = broach.compile(_hyperbolic), torch.rand(300, device="cuda")
    for _ in range(4):
        ours, eager = x.clone().requires_grad_(), x.clone().requires_grad_()
        compiled(ours).backward()
        _hyperbolic(eager).backward()
        torch.testing.assert_close(ours.grad, eager.grad)
    print("compiled calls", compiled.stats()["compiled_calls"])


{"forward": forward, "backward": backward}[sys.argv[1]]()
