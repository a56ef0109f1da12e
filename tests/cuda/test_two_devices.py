"""Two GPUs in one process: the same program on each, programs with tensors of both, and a thread for each."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from two_processes import run_pair

import broach

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch.cuda.device_count() is below two")
DEVICES = ("cuda:0", "cuda:1")


def _model(device):
    torch.manual_seed(1)
    layers = nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    return nn.Sequential(*layers).to(device)


def _close(have, want):
    assert have.device == want.device
    torch.testing.assert_close(have, want, rtol=2e-3, atol=1e-4)


def test_each_device_by_turns():
    def program(x, w):
        return torch.softmax(F.gelu(x @ w) + 1, -1), x.sum(0)

    compiled = broach.compile(program)
    for current in (0, 1):
        for i in range(8):
            device = DEVICES[i % 2]
            args = torch.randn(30, 64, device=device), torch.randn(64, 96, device=device)
            with torch.cuda.device(current):  # which need not be the one of the tensors
                for have, want in zip(compiled(*args), program(*args)):
                    _close(have, want)
                assert torch.cuda.current_device() == current
    assert compiled.stats()["compiled_calls"] >= 12, broach.explain(compiled, *args).eager_reasons


def test_convolutions_on_each():
    """Whose engines are made for a device as the program is compiled, whichever is the current one."""
    program = lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1))  # noqa: E731
    for current in (0, 1):
        compiled = broach.compile(program)
        with torch.cuda.device(current), torch.no_grad():
            for device in DEVICES[::-1]:
                x, w, b = (torch.randn(s, device=device, dtype=torch.bfloat16) for s in ((2, 32, 9, 9), (32, 32, 3, 3), (32,)))
                x, w = (t.to(memory_format=torch.channels_last) for t in (x, w / 16))
                for _ in range(4):
                    torch.testing.assert_close(compiled(x, w, b), program(x, w, b), rtol=2e-2, atol=2e-2)
                assert dict(broach.explain(compiled, x, w, b).picks).keys() == {"cudnn"}


def test_training_on_each():
    pairs = []
    for device in DEVICES:
        theirs = _model(device)
        ours = copy.deepcopy(theirs)
        pairs.append((device, theirs, ours, broach.compile(lambda x, ours=ours: ours(x))))
    for _ in range(6):
        for device, theirs, ours, compiled in pairs:
            x, y = torch.randn(32, 64, device=device), torch.randint(10, (32,), device=device)
            losses = F.cross_entropy(theirs(x), y), F.cross_entropy(compiled(x), y)
            _close(losses[1], losses[0])
            for model, loss in zip((theirs, ours), losses):
                model.zero_grad()
                loss.backward()
            for p, q in zip(theirs.parameters(), ours.parameters()):
                _close(q.grad, p.grad)
                with torch.no_grad():
                    p -= 0.1 * p.grad
                    q.copy_(p)
    for _, _, _, compiled in pairs:
        assert compiled.stats()["compiled_calls"] >= 3


@torch.no_grad()
def test_tensors_of_both():
    def halves(x, first, second):
        h = torch.relu(x @ first).to(second.device)
        return (h * 2) @ second, x + 1

    def there_and_back(x, y):
        return (x.sin().to(y.device) * y + 1).to(x.device) - x, y.cos().cpu() + 1

    w0, w1 = torch.randn(64, 128, device="cuda:0") / 8, torch.randn(128, 32, device="cuda:1") / 8
    for program, rest in ((halves, (w0, w1)), (there_and_back, (torch.randn(40, 64, device="cuda:1"),))):
        compiled = broach.compile(program)
        for i in range(6):
            x = torch.randn(40, 64, device="cuda:0")
            for have, want in zip(compiled(x, *rest), program(x, *rest)):
                _close(have, want)


def test_a_thread_for_each():
    def work(device, failures):
        try:
            torch.cuda.set_device(device)
            model = _model(device)
            compiled, alone = broach.compile(model), torch.cuda.Stream(device)
            with torch.cuda.stream(alone):
                for n in (16, 16, 16, 24, 24, 40, 16):
                    x = torch.randn(n, 64, device=device)
                    _close(compiled(x), model(x))
                    compiled(x).square().mean().backward()
        except BaseException as e:
            failures.append(e)

    failures = []
    threads = [threading.Thread(target=work, args=(device, failures)) for device in DEVICES * 2]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


def test_numbers_drawn_on_each():
    def program(x):
        return F.dropout(x, 0.5), torch.rand_like(x)

    compiled = broach.compile(program)
    for device in DEVICES * 3:
        x = torch.ones(1000, device=device)
        results = []
        for f in (program, compiled):
            torch.cuda.manual_seed_all(3)
            results.append(f(x))
        for have, want in zip(*results):
            assert torch.equal(have, want)


WORKER = """
import os, sys, torch, torch.distributed as dist
from torch import nn
import broach

rank = int(sys.argv[1])
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=2, device_id=device)
torch.manual_seed(0)
make = lambda: nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh()))).to(device)
eager, net = make(), make()
net.load_state_dict(eager.state_dict())
within = broach.compile(net)
parallel = [nn.parallel.DistributedDataParallel(m, device_ids=[rank], bucket_cap_mb=0.02) for m in (eager, within)]
optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in parallel]
for step in range(12):
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank)).to(device)
    for m, o in zip(parallel, optimizers):
        o.zero_grad()
        m(x).square().mean().backward()
        o.step()
    for p, q in zip(eager.parameters(), net.parameters()):
        torch.testing.assert_close(q, p, rtol=1e-3, atol=1e-5)
assert within._compiled_call.stats()["compiled_calls"] >= 4
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def test_two_processes_reduce_gradients():
    """`DistributedDataParallel` around a compiled module, a process for each device: the sums are NCCL's, on streams of its own."""
    run_pair(WORKER)
