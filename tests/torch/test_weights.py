"""Copies of weights: any write to a weight is seen, whoever writes it and whatever pointer was taken when; a weight's own memory
stays where it is; and what is written now and then is packed again."""

from __future__ import annotations

import ctypes
import io
import os
import threading
import time

import broach
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from broach._native import _C
from direct import compile_direct
from torch import nn

X = {"product": (4, 64), "folded": (4, 64), "convolution": (2, 8, 5, 5)}


def _program(kind):
    """A function of X and a weight, which is a constant of it."""
    scale = torch.rand(8) + 0.5
    return {
        "product": lambda x, w: x @ w,
        "folded": lambda x, w: x + w.exp().sum(0) * 1e3,
        "convolution": lambda x, w: F.conv2d(x, w.view(64, 8, 2, 4)[:8]) * scale[:, None, None] + 1,
    }[kind]


def _compiled(kind, **options):
    fn = _program(kind)
    return fn, compile_direct(fn, constant=[False, True], **options), torch.randn(X[kind])


def _is_packed(compiled):
    return any(p["kept"] for p in compiled.stats()["programs"])


def _until_packed(compiled, call):
    end = time.monotonic() + 20
    while not _is_packed(compiled) and time.monotonic() < end:
        call()
    return _is_packed(compiled)


def _agrees(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


# ---- views of numpy and others ----


def _at_address(address, count):
    return np.frombuffer((ctypes.c_float * count).from_address(address), dtype=np.float32)


# Found even where they were taken before the first call: they hold the storage.
EARLY = {
    "numpy": lambda w: w.numpy(),
    "asarray": lambda w: np.asarray(w),
    "row": lambda w: w[:, 3:].numpy(),
    "detached": lambda w: w.detach().numpy(),
    "data": lambda w: w.data.numpy(),
    "numpy of a storage": lambda w: torch.empty(0).set_(w.untyped_storage()).numpy(),
    "torch's view": lambda w: w.view(-1)[5:],
}
# Found where they are taken while the weight is watched.
VIEWS = EARLY | {
    "dlpack": lambda w: np.from_dlpack(w),
    "dlpack detached": lambda w: np.from_dlpack(w.detach()),
    "torch's dlpack": lambda w: torch.from_dlpack(w),
}
# Leave no trace but the access itself.
POINTERS = {"pointer": lambda w: _at_address(w.data_ptr(), w.numel()), "storage's pointer": lambda w: _at_address(w.untyped_storage().data_ptr(), w.numel())}


def _write(view, value):
    view.reshape(-1)[3:9] = value


@pytest.mark.parametrize("when, view", [("before", v) for v in EARLY] + [("after", v) for v in VIEWS])
@pytest.mark.parametrize("kind", X)
@torch.no_grad()
def test_a_view_that_is_kept(kind, when, view):
    fn, compiled, x = _compiled(kind)
    w = torch.randn(64, 64)
    kept = VIEWS[view](w) if when == "before" else None
    for _ in range(3):
        compiled(x, w)
    if kept is None:
        kept = VIEWS[view](w)
    for value in (2.0, 3.0, 4.0):
        for _ in range(3):
            _agrees(compiled(x, w), fn(x, w))
        _write(kept, value)
        _agrees(compiled(x, w), fn(x, w))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", X)
@torch.no_grad()
def test_a_view_from_before_anything_is_packed(kind, view):
    """Candidates are measured first: the weight may be watched long after the first call."""
    fn, compiled, x = _compiled(kind)
    w = torch.randn(64, 64)
    for _ in range(2):  # the first one is eager's
        compiled(x, w)
    kept = VIEWS[view](w)
    for value in (2.0, 3.0):
        for _ in range(60):
            _agrees(compiled(x, w), fn(x, w))
        _write(kept, value)
        _agrees(compiled(x, w), fn(x, w))


@pytest.mark.parametrize("view", VIEWS | POINTERS)
@pytest.mark.parametrize("kind", X)
@torch.no_grad()
def test_a_view_for_one_write(kind, view):
    fn, compiled, x = _compiled(kind)
    w = torch.randn(64, 64)
    for value in (2.0, 3.0, 4.0, 5.0):
        for _ in range(2):
            _agrees(compiled(x, w), fn(x, w))
        _write((VIEWS | POINTERS)[view](w), value)
        _agrees(compiled(x, w), fn(x, w))


@pytest.mark.parametrize("kind", X)
@torch.no_grad()
def test_memory_that_is_not_torchs(kind, tmp_path):
    ones = np.ones((64, 64), np.float32)
    mapped = torch.from_file(str(tmp_path / "weights"), shared=True, size=64 * 64).view(64, 64)
    buffer = bytearray(64 * 64 * 4)
    blob = torch.frombuffer(buffer, dtype=torch.float32).view(64, 64)
    again = torch.from_file(str(tmp_path / "weights"), shared=True, size=64 * 64)
    for w, other in ((torch.from_numpy(ones), ones), (mapped, again), (blob, np.frombuffer(buffer, np.float32))):
        fn, compiled, x = _compiled(kind)
        for value in (2.0, 3.0):
            for _ in range(3):
                _agrees(compiled(x, w), fn(x, w))
            _write(other, value)
            _agrees(compiled(x, w), fn(x, w))


@pytest.mark.parametrize("shared", ["before", "after"])
@torch.no_grad()
def test_another_process_writes(shared):
    model = nn.Linear(64, 64).requires_grad_(False)
    compiled, x = broach.compile(model), torch.randn(4, 64)
    for step in range(2):
        if (step == 0) == (shared == "before"):
            model.share_memory()
        for _ in range(3):
            _agrees(compiled(x), model(x))
    child = os.fork()
    if not child:
        ctypes.memset(model.weight.data_ptr(), 0, 64)
        os._exit(0)
    os.waitpid(child, 0)
    assert not model.weight[0, :16].any()
    _agrees(compiled(x), model(x))


# ---- nothing moves ----


@pytest.mark.parametrize("kind", X)
@torch.no_grad()
def test_a_weight_stays_where_it_is(kind):
    fn, compiled, x = _compiled(kind)
    w = torch.randn(64, 64)
    address, row, array = w.data_ptr(), w[2], w.detach().numpy()
    early = _at_address(address, w.numel())
    for _ in range(3):
        compiled(x, w)
    w.fill_(5)
    assert w.data_ptr() == address and row[1] == 5 and array[7, 7] == 5 and early[9] == 5
    _agrees(compiled(x, w), fn(x, w))
    w.data[3, 3] = 7
    torch._foreach_mul_([w], 2)
    assert w.data_ptr() == address and array[3, 3] == early[3 * 64 + 3] == 14
    _agrees(compiled(x, w), fn(x, w))


@torch.no_grad()
def test_reads_take_no_mark_away():
    """A program that is called in turns with eager costs no digest."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 64), nn.LayerNorm(64)).eval()
    compiled, x = broach.compile(model, dynamic=False), torch.randn(2, 3, 8, 8)
    for _ in range(3):
        compiled(x)
    before = _marked(model)
    assert any(before)
    model(x), model.state_dict(), [(p.sum(), p.clone(), p.tolist()) for p in model.parameters()]
    assert _marked(model) == before


def _marked(model):
    return [_C.is_watched(t) for t in model.state_dict().values()]


# ---- writes by torch ----


def _train_step(m):
    with torch.enable_grad():
        m(torch.randn(8, 64)).square().mean().backward()
    torch.optim.SGD(m.parameters(), 0.1).step()
    m.zero_grad()


WRITES = {
    "copy_": lambda m: m.weight.copy_(torch.randn(64, 64)),
    "data": lambda m: m.weight.data.mul_(3),
    "view": lambda m: m.weight.view(-1)[7:9].fill_(3.0),
    "detach": lambda m: m.weight.detach().add_(1),
    "set data": lambda m: setattr(m.weight, "data", torch.randn(64, 64)),
    "new parameter": lambda m: setattr(m, "weight", nn.Parameter(torch.randn(64, 64))),
    "load": lambda m: m.load_state_dict(nn.Linear(64, 64).state_dict()),
    "load assigned": lambda m: m.load_state_dict(nn.Linear(64, 64).state_dict(), assign=True),
    "foreach": lambda m: torch._foreach_add_(list(m.parameters()), 1.0),
    "optimizer": _train_step,
    "initialise": lambda m: m.reset_parameters(),
    "set_": lambda m: m.weight.set_(torch.randn(64, 64)),
    "out": lambda m: torch.mul(m.weight, 2, out=m.weight),
    "resized": lambda m: (m.weight.untyped_storage().resize_(0), m.weight.untyped_storage().resize_(64 * 64 * 4), m.weight.normal_()),
    "shared": lambda m: m.share_memory(),
    "to": lambda m: m.double().float(),
}


@pytest.mark.parametrize("write", WRITES)
@torch.no_grad()
def test_a_write(write):
    model = nn.Linear(64, 64)
    compiled, x = broach.compile(model), torch.randn(4, 64)
    for _ in range(3):
        for _ in range(3):
            _agrees(compiled(x), model(x))
        WRITES[write](model)
        _agrees(compiled(x), model(x))


@torch.no_grad()
def test_two_programs_of_one_weight():
    """The first to look after a write sets the mark again; the other must see that it was gone."""
    w, x = torch.randn(64, 64), torch.randn(4, 64)
    fns = [lambda x, w: x @ w, lambda x, w: (x * 2) @ w, lambda x, w: x + w.exp().sum(0)]
    programs = [compile_direct(fn, constant=[False, True], deterministic=True) for fn in fns]
    for step in range(4):
        for _ in range(3):
            for fn, program in zip(fns, programs):
                _agrees(program(x, w), fn(x, w))
        w[3:5] += 1
        order = list(zip(fns, programs))
        for fn, program in order[step % 3 :] + order[: step % 3]:
            _agrees(program(x, w), fn(x, w))


@torch.no_grad()
def test_a_lazy_clone():
    """Torch's own way to share memory until it is written is no mark of ours."""
    fn, compiled, x = _compiled("product")
    w, clones = torch.randn(64, 64), []
    for value in (2.0, 3.0, 4.0):
        for _ in range(3):
            _agrees(compiled(x, w), fn(x, w))
        w[2:9] = value
        clones.append(torch._lazy_clone(w))
        _agrees(compiled(x, w), fn(x, w))


@torch.no_grad()
def test_a_verified_call_moves_nothing():
    bn = nn.BatchNorm1d(8)
    array = bn.running_mean.numpy()
    compiled, x = broach.compile(bn, options={"verify": 3}), torch.randn(4, 8) + 1
    for _ in range(4):
        compiled(x)
    assert array.any() and (array == bn.running_mean.numpy()).all()


@torch.no_grad()
def test_memory_that_is_used_again():
    """A weight that lies where another lay."""
    fn, compiled, x = _compiled("product")
    for _ in range(20):
        w = torch.randn(64, 64)
        for _ in range(3):
            _agrees(compiled(x, w), fn(x, w))
        w.data = torch.empty(0)
        w.data = torch.randn(64, 64)
        _agrees(compiled(x, w), fn(x, w))
        del w


@torch.no_grad()
def test_weights_in_one_memory():
    """A write to one is none to the other."""
    memory = torch.randn(2 * 64 * 64)
    a, b = memory[: 64 * 64].view(64, 64), memory[64 * 64 :].view(64, 64)
    fn = lambda x, a, b: (x @ a, x @ b)
    compiled, x = compile_direct(fn, constant=[False, True, True], deterministic=True), torch.randn(4, 64)
    for written in (a, b, a, memory):
        for _ in range(2):
            _agrees(compiled(x, a, b), fn(x, a, b))
        written.view(-1)[5:77] = 3.0
        _agrees(compiled(x, a, b), fn(x, a, b))


# ---- packing settles ----

@torch.no_grad()
def _packs_here():
    _, compiled, x = _compiled("product")
    w = torch.randn(64, 64)
    return _until_packed(compiled, lambda: compiled(x, w))


needs_packing = pytest.mark.skipif(not _packs_here(), reason="nothing is packed on this machine")


@needs_packing
@torch.no_grad()
def test_pointers_end_no_packing():
    fn, compiled, x = _compiled("product", deterministic=True)
    w = torch.randn(64, 64)
    compiled(x, w), compiled(x, w)
    packed = [kept[:2] for kept in compiled.stats()["programs"][0]["kept"]]
    for _ in range(30):
        w.data_ptr()
        _agrees(compiled(x, w), fn(x, w))
        assert [kept[:2] for kept in compiled.stats()["programs"][0]["kept"]] == packed
    for value in range(30):
        w[1, 2] = value
        _agrees(compiled(x, w), fn(x, w))
        assert _is_packed(compiled)


@needs_packing
@torch.no_grad()
def test_training_and_evaluation():
    model = nn.Linear(64, 64, bias=False)
    compiled, x = _compiled("product")[1], torch.randn(4, 64)
    for _ in range(3):
        for _ in range(40):
            _train_step(model)
            _agrees(compiled(x, model.weight), x @ model.weight)
        assert _until_packed(compiled, lambda: compiled(x, model.weight))
        _agrees(compiled(x, model.weight), x @ model.weight)


@needs_packing
@torch.no_grad()
def test_packed_again_once_numpy_lets_go():
    fn, compiled, x = _compiled("product")
    w = torch.randn(64, 64)
    array = w.numpy()
    for _ in range(3):
        compiled(x, w)
    assert not _is_packed(compiled)
    del array
    assert _until_packed(compiled, lambda: compiled(x, w))
    w[1] = 2
    _agrees(compiled(x, w), fn(x, w))


@needs_packing
@torch.no_grad()
def test_a_file_that_was_loaded_is_packed():
    file = io.BytesIO()
    torch.save(torch.randn(64, 64), file)
    file.seek(0)
    w = torch.load(file)
    _, compiled, x = _compiled("product")
    assert _until_packed(compiled, lambda: compiled(x, w))


@needs_packing
@torch.no_grad()
def test_what_python_knows_is_no_foreign_holder():
    """A storage's Python object, a dict of the model's state: packing comes back after a write."""
    model = nn.Linear(64, 64, bias=False)
    _, compiled, x = _compiled("product")
    compiled(x, model.weight), compiled(x, model.weight)
    torch.save(model.state_dict(), io.BytesIO())
    storage = model.weight.untyped_storage()
    model.weight.fill_(2)
    _agrees(compiled(x, model.weight), x @ model.weight)
    assert _until_packed(compiled, lambda: compiled(x, model.weight))
    assert storage.nbytes() == model.weight.nbytes


@pytest.mark.skipif(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13), reason="the mark of older torch is not safe where threads take pointers at once")
@torch.no_grad()
def test_threads():
    """Some call, some take pointers; between rounds somebody writes."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    compiled, x = broach.compile(model), torch.randn(4, 64)
    compiled(x)
    rounds, failures = 20, []
    gate = threading.Barrier(4)

    def work(own):
        with torch.no_grad():
            for i in range(rounds):
                gate.wait(60)
                if own == 0:
                    model[0].weight.mul_(1.1)
                gate.wait(60)
                for _ in range(5):
                    if own > 1:
                        [p.data_ptr() for p in model.parameters()]
                    if not torch.allclose(compiled(x), model(x), rtol=1e-4, atol=1e-4):
                        failures.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join(120) for t in threads]
    assert not failures
