"""Programs that cannot be compiled as a whole: the modules that they call are compiled, and nothing else about them changes."""

from __future__ import annotations

import copy
import functools
import gc
import io
import pickle
import random
import threading
import weakref

import broach
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("with_gradients")


WIDTH = 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        return x + self.inner(self.norm(x)).tanh()


class Skipping(nn.Module):
    """Leaves blocks out by Python's random numbers, which no compiled program draws."""

    def __init__(self, block=Block):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        for block in self.blocks:
            if random.random() > 0.3:
                x = block(x)
        return self.head(x)


def parts_of(compiled):
    """Which modules are compiled by themselves, and how many of their calls were."""
    native = getattr(compiled, "_compiled_call", compiled)
    told = {}
    for part in native.policy.collected:
        told[type(part.program.__self__).__name__] = told.get(type(part.program.__self__).__name__, 0) + part.stats()["compiled_calls"]
    return {name: calls for name, calls in told.items() if calls}


def trained(model, call, steps=16):
    """Losses, gradients, parameters and buffers of some steps."""
    torch.manual_seed(3)
    random.seed(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    seen = []
    for step in range(steps):
        x = torch.randn(2 + step % 2, 5, WIDTH)
        loss = call(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        seen += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        optimizer.step()
    return seen + [t.clone() for t in model.state_dict().values()]


def same(compiled, plain, make=Skipping, **how):
    """Trains two equal models, one through `compiled(model)`, the other through `plain(model)`; gives what was compiled."""
    torch.manual_seed(0)
    model = make()
    twin = copy.deepcopy(model)
    fast = compiled(model)
    torch.testing.assert_close(trained(model, fast, **how), trained(twin, plain(twin), **how), rtol=1e-5, atol=1e-6)
    return fast


def test_modules_of_a_module():
    fast = same(broach.compile, lambda m: m)
    assert parts_of(fast)["Block"] >= 10 and set(parts_of(fast)) == {"Block"}
    told = broach.explain(fast, torch.randn(2, 5, WIDTH))
    assert told.front == "eager" and told.parts >= 2 and told.kernels > 0 and "random" in told.eager_reasons[0]
    assert "in parts" in str(told)


def closure(model):
    def call(x):
        random.random()
        return model(x)

    return call


class Trainer:
    def __init__(self, model):
        self.model, self.nested = model, {"all": [model]}

    def step(self, x):
        random.random()
        return self.model(x)

    def nested_step(self, x):
        random.random()
        return self.nested["all"][0](x)


def given(x, model):
    random.random()
    return model(x)


def through_functions(model):
    def inner(x):
        return model(x)

    def call(x):
        random.random()
        return [inner(x) for _ in range(1)][0]

    return call


class Method(Skipping):
    def step(self, x):
        random.random()
        return self(x)


WAYS = {
    "closure": (Skipping, closure),
    "method": (Skipping, lambda m: Trainer(m).step),
    "nested": (Skipping, lambda m: Trainer(m).nested_step),
    "partial": (Skipping, lambda m: functools.partial(given, model=m)),
    "function": (Skipping, through_functions),
    "own method": (Method, lambda m: m.step),
}


@pytest.mark.parametrize("name", WAYS)
def test_modules_that_a_function_reaches(name):
    make, function = WAYS[name]
    fast = same(lambda m: broach.compile(function(m)), function, make)
    assert parts_of(fast).get("Block", 0) >= 10, fast.stats()["reasons"]


def test_modules_that_a_function_is_given():
    compiled = broach.compile(given)
    same(lambda m: lambda x: compiled(x, m), lambda m: lambda x: given(x, m))
    assert parts_of(compiled)["Block"] >= 10


class Telling(Block):
    def forward(self, x):
        print("block")
        return super().forward(x)


def test_what_a_part_does_besides_is_left_to_the_modules_within(capsys):
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
            self.told = Telling()

        def forward(self, x):
            return self.inner(self.told(x))

    fast = same(broach.compile, lambda m: m, lambda: Skipping(Pair))
    first = capsys.readouterr().out.count("block")
    trained(copy.deepcopy(fast._orig_mod), copy.deepcopy(fast._orig_mod))
    second = capsys.readouterr().out.count("block")
    assert first == 2 * second > 0
    assert set(parts_of(fast)) == {"Sequential"} and parts_of(fast)["Sequential"] > 20


def test_modules_stay_what_they_are():
    model = Skipping()
    keys, names = list(model.state_dict()), [name for name, _ in model.named_modules()]
    fast = broach.compile(model)
    for _ in range(6):
        fast(torch.randn(2, 5, WIDTH)).sum().backward()
    assert parts_of(fast)
    calls = parts_of(fast)["Block"]
    block, x = model.blocks[0], torch.randn(2, 5, WIDTH)
    torch.testing.assert_close(block(x), x + block.inner(block.norm(x)).tanh())
    assert parts_of(fast)["Block"] == calls, "a module called from elsewhere runs its own code"
    assert list(model.state_dict()) == keys and [name for name, _ in model.named_modules()] == names
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    other = Block()
    other.__dict__.update(block.__dict__)
    for other in (other, copy.copy(block), copy.deepcopy(block), pickle.loads(pickle.dumps(block)), torch.load(saved, weights_only=False).blocks[0]):
        torch.testing.assert_close(other(x), block(x))
    assert vars(block).keys() == vars(Block()).keys()
    traced = torch.jit.trace(block, x)
    torch.testing.assert_close(traced(x), block(x))
    torch.testing.assert_close(torch.jit.script(nn.Sequential(nn.Linear(WIDTH, 2), nn.ReLU()))(x).shape, (2, 5, 2))


def test_another_program_of_the_same_modules():
    model = Skipping()
    fast = broach.compile(model)
    for _ in range(5):
        fast(torch.randn(2, 5, WIDTH)).sum().backward()
    pair = nn.Sequential(model.blocks[0], model.blocks[1])
    whole = broach.compile(pair)
    for size in (2, 3, 4, 5):
        x = torch.randn(size, 5, WIDTH)
        torch.testing.assert_close(whole(x), pair(x))
    assert whole._compiled_call.stats()["front"] == "native" and whole._compiled_call.stats()["compiled_calls"] >= 2
    other = broach.compile(closure(model))
    for _ in range(12):
        x = torch.randn(2, 5, WIDTH)
        random.seed(1)
        want = closure(model)(x)
        random.seed(1)
        torch.testing.assert_close(other(x), want)
    assert parts_of(other)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_around_modules(reentrant):
    """Their second run comes with the backward, where the modules run as they are."""

    class Checkpointed(Skipping):
        def forward(self, x):
            x = self.blocks[0](x)
            if random.random() > 0.3:
                x = checkpoint(self.blocks[1], x, use_reentrant=reentrant)
            return self.head(checkpoint(lambda y: self.blocks[2](F.dropout(y, 0.3)), x, use_reentrant=reentrant))

    fast = same(broach.compile, lambda m: m, Checkpointed)
    assert parts_of(fast)["Block"] > 4


def test_options():
    model = Skipping()
    for options in ({"parts": False}, {"rng": "counter"}):
        fast = broach.compile(model, options=options)
        for _ in range(5):
            fast(torch.randn(2, 5, WIDTH)).sum().backward()
        assert not parts_of(fast) and broach.explain(fast, torch.randn(2, 5, WIDTH)).parts == 0
    with pytest.raises(TypeError, match="parts"):
        broach.compile(model, options={"parts": 1})
    with pytest.raises(broach.CaptureError, match="random"):
        native = broach.compile(model, options={"capture": "native"})
        for _ in range(5):
            native(torch.randn(2, 5, WIDTH))


def test_an_error_of_the_program():
    class Failing(Skipping):
        def forward(self, x):
            if x.size(0) == 7:
                self.blocks[0](x)
                raise KeyError("seven")
            return super().forward(x)

    model = Failing()
    fast = broach.compile(model)
    for _ in range(5):
        fast(torch.randn(2, 5, WIDTH)).sum().backward()
    with pytest.raises(KeyError, match="seven"):
        fast(torch.randn(7, 5, WIDTH))
    calls = parts_of(fast)["Block"]
    model.blocks[0](torch.randn(2, 5, WIDTH))
    assert parts_of(fast)["Block"] == calls


def test_hooks_of_the_modules_within():
    norms, twins = [], []

    def hooked(model, into):
        for block in model.blocks:
            block.register_forward_hook(lambda m, args, out: into.append(out.norm().item()))
            block.inner.register_full_backward_hook(lambda m, ins, outs: (ins[0] * 2,))
        return model

    torch.manual_seed(0)
    model = Skipping()
    twin = hooked(copy.deepcopy(model), twins)
    hooked(model, norms)
    fast = broach.compile(model)
    torch.testing.assert_close(trained(model, fast), trained(twin, twin), rtol=1e-5, atol=1e-6)
    assert norms == pytest.approx(twins, rel=1e-5) and len(norms) > 10


def test_a_module_that_changes_between_calls():
    model = Skipping()
    twin = copy.deepcopy(model)
    fast = broach.compile(model)

    def change(m, step):
        block = m.blocks[step % 3]
        if step % 4 == 0:
            block.norm.weight.data.mul_(1.5)
        elif step % 4 == 1:
            block.inner[1] = nn.ReLU()
        elif step % 4 == 2:
            block.requires_grad_(step % 8 == 2)
        else:
            block.forward = lambda x, block=block: block.inner(x) * 2

    for step in range(16):
        x = torch.randn(2, 5, WIDTH, requires_grad=True)
        found = []
        for m, call in ((model, fast), (twin, twin)):
            random.seed(step)
            m.train(step % 5 != 0)
            m.zero_grad()
            y = call(x)
            x.grad = None
            y.sum().backward()
            found.append([y, x.grad, *(p.grad for p in m.parameters())])
            change(m, step)
        torch.testing.assert_close(*found)


def test_functional_calls():
    model = Skipping()
    compiled = broach.compile(closure(model))

    def inner(program, rate):
        params = {name: p * 1.0 for name, p in model.named_parameters()}
        x = torch.ones(2, 5, WIDTH)
        for _ in range(3):
            random.seed(0)
            loss = torch.func.functional_call(_Calling(program, model), {f"model.{n}": p for n, p in params.items()}, x).square().mean()
            grads = torch.autograd.grad(loss, list(params.values()), create_graph=True, allow_unused=True)
            params = {n: p if g is None else p - rate * g for (n, p), g in zip(params.items(), grads)}
        return torch.autograd.grad(sum(p.sum() for p in params.values()), list(model.parameters()))

    for step in range(5):
        torch.testing.assert_close(inner(compiled, 0.1 + step), inner(closure(model), 0.1 + step))


class _Calling(nn.Module):
    def __init__(self, program, model):
        super().__init__()
        self.program, self.model = program, model

    def forward(self, x):
        return self.program(x)


def test_vmap_and_gradients_of_gradients():
    model = Skipping()
    program = closure(model)
    compiled = broach.compile(program)

    def penalty(f, x):
        random.seed(0)
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        return torch.autograd.grad((g.norm() - 1).square(), [x, model.blocks[1].inner[0].weight])

    for _ in range(5):
        x = torch.randn(2, 5, WIDTH, requires_grad=True)
        torch.testing.assert_close(penalty(compiled, x), penalty(program, x))
        random.seed(0)
        want = torch.vmap(program)(x)
        random.seed(0)
        torch.testing.assert_close(torch.vmap(compiled)(x), want)


def test_threads():
    model = Skipping()
    fast = broach.compile(model)
    blocks = nn.Sequential(*model.blocks)

    def always(x):
        if random.random() >= 0:
            x = blocks(x)
        return x

    compiled = broach.compile(always)
    wrong = []

    def work(seed):
        g = torch.Generator().manual_seed(seed)
        for _ in range(30):
            x = torch.randn(2, 5, WIDTH, generator=g)
            with torch.no_grad():
                if not torch.allclose(compiled(x), blocks(x), atol=1e-5):
                    wrong.append(seed)
                fast(x)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong and parts_of(compiled)


def test_reset():
    model = Skipping()
    fast = broach.compile(model)
    for _ in range(5):
        fast(torch.randn(2, 5, WIDTH)).sum().backward()
    broach.reset()
    for _ in range(6):
        x = torch.randn(2, 5, WIDTH)
        random.seed(0)
        want = model(x)
        random.seed(0)
        torch.testing.assert_close(fast(x), want)


def test_nothing_is_kept_alive():
    def run():
        model = Skipping()
        fast = broach.compile(model)
        for _ in range(5):
            fast(torch.randn(2, 5, WIDTH)).sum().backward()
        assert parts_of(fast)
        return [weakref.ref(m) for m in model.modules()]

    seen = run()
    gc.collect()
    assert not any(s() for s in seen)


def test_many_given_modules_are_not_kept():
    compiled = broach.compile(given)
    seen = []
    for _ in range(40):
        model = Block()
        compiled(torch.randn(2, WIDTH), model)
        seen.append(weakref.ref(model))
    del model
    gc.collect()
    assert sum(s() is not None for s in seen) <= 20


def test_modules_that_torch_compiles_are_left_to_it():
    inner = Block()
    by_torch = torch.compile(inner, backend="eager")

    def inside(x):
        random.random()
        return by_torch(x) + x

    class Around(nn.Module):
        def __init__(self):
            super().__init__()
            self.by_torch, self.own = by_torch, Block()

        def forward(self, x):
            random.random()
            return self.by_torch(x) + self.own(x)

    around = Around()
    for program in (inside, lambda x: by_torch(x) + x, around, by_torch):
        compiled = broach.compile(program)
        for call in range(8):
            x = torch.randn(3 + call % 2, WIDTH, requires_grad=True)
            plain = inner(x) if program is by_torch else inner(x) + (around.own(x) if program is around else x)
            torch.testing.assert_close(compiled(x), plain)
