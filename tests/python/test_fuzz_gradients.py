"""Lying gradients: the programs of the fuzzer, and some whose tensors come about without an operation, are differentiated after each change
of their state, arguments and settings. Results, every gradient and what is left in the state must be what the program gives.
`make test-all` runs some thousand changes."""

from __future__ import annotations

import collections
import contextlib
import copy
import random
import time
from typing import Any, Callable

import broach
import pytest
import test_fuzz
import torch
from compared import aliasing, stats, tensors_in
from mutations import Kept
from test_fuzz import ALL, SEED, Call, Fuzzer, Stale, Subject
from torch import nn

CHANGES = int(test_fuzz.os.environ.get("BROACH_TEST_CHANGES", "5000" if ALL else "300"))
SECONDS = float("inf") if ALL else 25.0


# ---- programs with tensors that no operation makes ----


def _square(c: Call) -> tuple:
    x = c.tensor(c.batch, 4)
    return (x, c.second(x, c.batch, 4)), {}


class Held:
    def __init__(self):
        self.w, self.v = nn.Parameter(torch.randn(4)), torch.randn(4)
        self.scale, self.kept = 1.5, []

    def data(self, x, y):
        return x * self.w.data + self.w * y.data, x.data * self.w

    def parameters(self, x, y):
        p = nn.Parameter(self.v)
        return (x * p.detach()).tanh() * self.w, y * nn.Parameter(x.detach(), requires_grad=False)

    def gradient(self, x, y):
        g = self.w.grad
        return x * (self.w if g is None else self.w + g) * self.scale, y * 2

    def detached(self, x, y):
        z = x.detach() * self.w
        with torch.no_grad():
            k = (y * self.w).sum()
        return z * k + x, self.w.detach()

    def switched(self, x, y):
        u = self.v.clone().requires_grad_() if self.scale > 1 else self.v
        with torch.set_grad_enabled(self.scale > 1):
            z = x * self.w
        return z + y * u.detach(), x.requires_grad, z.requires_grad

    def views(self, x, y):
        z = torch.sin(x) * self.w
        return z, z[..., 1:], z.detach(), y.view_as(y)


def _held() -> list[Subject]:
    found = []
    for name in ("data", "parameters", "gradient", "detached", "switched", "views"):
        held = Held()
        found.append(Subject(f"tensors: {name}", getattr(held, name), _square, [held], may_be_refused=True))
    return found


def _subjects() -> list[Subject]:
    torch.manual_seed(SEED)
    t = test_fuzz
    modules = [s for s in t._modules() if s.name != "method of a module"]
    for s in modules:
        s.roots[0].train()
    others = [t._globals(), t._closures(), t._control(), *t._objects(), t._partial(), t._in_place(), t._views(), t._data_branch()]
    return [*_held(), *modules, *others]


@contextlib.contextmanager
def _saved_otherwise():
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t * 1.5 if t.is_floating_point() else t):
        yield


SETTINGS: dict[str, Callable] = {
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "hooks on saved tensors": _saved_otherwise,
    "default dtype": test_fuzz.SETTINGS["default dtype"],
    "deterministic": test_fuzz.SETTINGS["deterministic"],
}


def relative(gradients: list[Any]) -> list[Any]:
    """Each to the largest element of all, and that one: where terms cancel, as in front of a batch norm, roundings go by the terms."""
    largest = max((float(g.detach().abs().nan_to_num(0, 0, 0).max()) for g in gradients if g is not None and g.numel()), default=0.0)
    return [[g if g is None else g / max(1.0, largest) for g in gradients], torch.tensor(largest)]


class GradientFuzzer(Fuzzer):
    def outcome(self, program: Callable, objects: list[Any]) -> tuple[Any, Any, Any, Any]:
        """Result or error, aliasing, arguments afterwards, state and gradients afterwards."""
        choice = random.Random(f"{SEED} {self.subject.name} {self.done}")
        own = self.subject.own
        memo = {id(own): own} if own is not None else {}
        torch.manual_seed(self.done)
        args, kwargs = copy.deepcopy(self.subject.make(self.call), memo)
        if choice.random() < 0.6:
            for t in tensors_in((args, kwargs)):
                if t is not own and t.is_floating_point() and t.is_leaf and choice.random() < 0.8 and not t.is_inference():
                    t.requires_grad_()
        kept = Kept(objects)
        leaves = [t for t in {id(t): t for t in (*tensors_in((args, kwargs)), *(o for o in objects if isinstance(o, torch.Tensor)))}.values()]
        before = [t.grad for t in leaves if t.is_leaf]
        gradients: Any = []
        try:
            result = program(*args, **kwargs)
            alias = aliasing(result, (args, kwargs, own))
            gradients = relative(self.gradients(result, leaves, choice))
        except broach.CaptureError:
            kept.restore()
            raise
        except Exception as e:
            result, alias = type(e), None
            self.log.append(f"raised {str(e)[:300]}")
        finally:
            for t, g in zip([t for t in leaves if t.is_leaf], before):
                # A change may have given the leaf another type or shape, and torch takes no gradient of the old one any more.
                t.grad = g if g is None or (g.dtype == t.dtype and g.shape == t.shape) else None
        after = kept.as_value()
        kept.restore()
        return result, alias, (args, kwargs), [after, gradients]

    @staticmethod
    def gradients(result: Any, leaves: list[torch.Tensor], choice: random.Random) -> list[Any]:
        roots = [t for t in tensors_in(result) if t.requires_grad and t.is_floating_point()]
        wanted = [t for t in leaves if t.requires_grad and t.is_leaf]
        if not roots or not wanted or not torch.is_grad_enabled():
            return []
        if len(roots) > 1 and choice.random() < 0.3:
            roots = [choice.choice(roots)]
        loss = sum((t.double().square().sum() * (k + 1) for k, t in enumerate(roots)), torch.zeros((), dtype=torch.float64))
        if choice.random() < 0.5:
            return list(torch.autograd.grad(loss, wanted, allow_unused=True))
        for t in wanted:
            t.grad = None
        loss.backward(retain_graph=choice.random() < 0.3)
        return [t.grad for t in wanted]

    def change_state(self) -> str:
        parameters = [o for o in test_fuzz.reachable(self.subject.roots) if isinstance(o, torch.Tensor) and o.is_leaf and o.is_floating_point()]
        kind = self.rng.random()
        if parameters and kind < 0.15:
            t = self.rng.choice(parameters)
            old = t.grad
            t.grad = torch.rand_like(t.detach()) if old is None else None
            self.undo.append(lambda: setattr(t, "grad", old) if old is None or old.shape == t.shape and old.dtype == t.dtype else None)
            return "a gradient that is there"
        hooked = [t for t in parameters if t.requires_grad]
        if hooked and kind < 0.3:
            # A hook may be called with None where eager does not call it: a compiled call is one node.
            handle = self.rng.choice(hooked).register_hook(lambda g, k=self.rng.uniform(0.5, 2): g if g is None else g * k)
            self.undo.append(handle.remove)
            return "a hook of a leaf"
        modules = [m for m in self.subject.roots if isinstance(m, nn.Module)]
        if modules and kind < 0.4:
            m = self.rng.choice(list(modules[0].modules()))
            k = self.rng.uniform(0.5, 2)
            handle = m.register_full_backward_hook(lambda m, into, out: tuple(None if g is None else g * k for g in into))
            self.undo.append(handle.remove)
            return f"a backward hook of a {type(m).__name__}"
        return super().change_state()


@pytest.fixture
def _settings(monkeypatch):
    monkeypatch.setattr(test_fuzz, "SETTINGS", SETTINGS)


def test_lying_gradients(_settings):
    done, stale, start = 0, [], time.monotonic()
    with torch.enable_grad():
        fuzzers = [GradientFuzzer(s, random.Random(f"{SEED} {s.name}")) for s in _subjects()]
        while done < CHANGES and time.monotonic() - start < SECONDS:
            for f in fuzzers:
                try:
                    f.step()
                except Stale as e:
                    stale.append(str(e))
                    f.renew()
                done += 1
    told: dict[str, int] = collections.Counter()
    for f in fuzzers:
        told[f"{f.subject.name} refused"] += f.refused
        told["raised"] += f.raised
        told["compiled in the end"] += stats(f.compiled)["compiled_calls"] > 0
    print(f"\nlying gradients: {done} changes, {dict(told)}")
    assert not stale, f"{len(stale)} of {done}: " + "\n".join(stale[:20])
