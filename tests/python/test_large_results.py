"""Results of 32 MB and more have memory of another allocator (huge pages): they behave as any tensor, and it is given back."""

import copy
import pathlib
import resource

import broach
import pytest
import torch

LARGE = 4096, 4096  # 64 MB
HUGE_PAGES = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")


def resident_mib() -> float:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


@pytest.fixture
def compiled():
    call = broach.compile(lambda x: x * 2 + 1)
    with torch.no_grad():
        for _ in range(2):
            call(torch.ones(LARGE))
    return call


@torch.no_grad()
def test_they_are_tensors_like_others(compiled):
    x = torch.randn(LARGE)
    y = compiled(x)
    torch.testing.assert_close(y, x * 2 + 1)
    z = copy.deepcopy(y)
    assert torch.equal(y, z) and z.data_ptr() != y.data_ptr()
    assert y.untyped_storage().resizable() and y.untyped_storage().nbytes() == 64 << 20
    y.resize_(4096, 4097).fill_(3)
    assert y.untyped_storage().nbytes() == 4096 * 4097 * 4 and (y == 3).all()
    y.resize_(2, 2)
    y.untyped_storage().resize_(0)
    shared = z.share_memory_()
    assert shared.is_shared() and torch.equal(shared, x * 2 + 1)


@torch.no_grad()
def test_their_memory_is_given_back(compiled):
    x = torch.randn(LARGE)
    compiled(x)
    before = resident_mib()
    kept = [compiled(x) for _ in range(4)]
    assert resident_mib() - before > 200
    del kept
    assert resident_mib() - before < 20


@torch.no_grad()
def test_they_are_touched_in_few_pages(compiled):
    if not HUGE_PAGES.exists() or "[never]" in HUGE_PAGES.read_text():
        pytest.skip("the system has no huge pages")
    x = torch.randn(LARGE)
    compiled(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    y = compiled(x)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    # Small pages would take 16,384. The system may lack some huge ones at the moment.
    assert y.numel() and faults < 8192


@torch.no_grad()
def test_torchs_profiler_sees_them(compiled):
    x = torch.randn(LARGE)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        y = compiled(x)
        del y
    assert any(abs(e.cpu_memory_usage) >= 64 << 20 for e in profile.events())
