"""What a program finds in ways that name nothing: modules by `__import__`, hooks of state dicts; and element types that the graph does not have."""

from __future__ import annotations

import sys
import types

import broach
import pytest
import torch


def test_import_by_a_function():
    module = types.ModuleType("found_by_name")
    module.SCALE = 2.0
    sys.modules["found_by_name"] = module
    program = lambda x: x * __import__("found_by_name").SCALE  # noqa: E731
    compiled, x = broach.compile(program), torch.ones(2)
    for scale in (2.0, 2.0, 5.0, 3.0):
        module.SCALE = scale
        assert torch.equal(compiled(x), program(x))
    del sys.modules["found_by_name"]


@pytest.mark.parametrize("kind", ["post", "pre"])
def test_hooks_of_state_dicts(kind):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    log = []

    def post(module, state, prefix, metadata):
        log.append(prefix)
        state["more"] = torch.ones(1)

    def pre(module, prefix, keep):
        log.append(prefix)
        module.weight.data.add_(1)

    def program(x):
        return x + len(model.state_dict()) + model[1].weight.sum()

    def check():
        weight = model[1].weight.data.clone()
        log.clear()
        want, wrote, after = program(x), list(log), model[1].weight.data.clone()
        model[1].weight.data.copy_(weight)
        log.clear()
        assert torch.equal(compiled(x), want) and log == wrote and torch.equal(model[1].weight, after)

    compiled, x = broach.compile(program), torch.zeros(2)
    for _ in range(2):
        check()
    handle = model[1].register_state_dict_post_hook(post) if kind == "post" else model[1].register_state_dict_pre_hook(pre)
    check()
    handle.remove()
    check()


@pytest.mark.parametrize("dtype", ["uint32", "uint64", "float8_e4m3fnuz", "float8_e5m2fnuz"])
@pytest.mark.parametrize("program", [
    lambda x, t: x.to(t).float() * 2,
    lambda x, t: x.t().to(t).to(torch.float64),
    lambda x, t: x.to(t)[0].to(torch.int32) + 1,
    lambda x, t: x.to(t)[:, 1:].float() * 2,
    lambda x, t: torch.stack([x.to(t), x.to(t)]).view(-1)[2:].float(),
    lambda x, t: x.to(t),
])  # fmt: skip
def test_element_types_that_only_torch_knows(dtype, program, capfd):
    kind = getattr(torch, dtype)
    compiled = broach.compile(lambda x: program(x, kind))
    for n in (3, 3, 4, 5, 6, 3):
        x = torch.rand(n, n + 1) * 9
        have, want = compiled(x), program(x, kind)
        assert have.dtype == want.dtype and torch.equal(have.double(), want.double())
    assert "please report" not in "".join(capfd.readouterr())


def test_ldexp_takes_the_low_bits_of_its_exponent():
    compiled, x = broach.compile(torch.ldexp), torch.tensor([1.0, -2.0, 0.1])
    for k in (1, 2, -3, 100, 2**31 - 1, -(2**31), 2**33, 2**53 + 1):
        e = torch.full((3,), k)
        assert torch.equal(compiled(x, e), torch.ldexp(x, e)), k
