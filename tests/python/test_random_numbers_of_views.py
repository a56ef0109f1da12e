"""Random numbers into parts of tensors: eager takes another way where those lie side by side, and draws in the order of memory."""

import pytest
import torch

import broach

VIEWS = {
    "last columns": (lambda: torch.zeros(4, 7, 6), lambda x: x[:, -2:]),
    "every other": (lambda: torch.zeros(6, 12), lambda x: x[:, ::2]),
    "rows": (lambda: torch.zeros(8, 6), lambda x: x[2:6]),
    "transposed": (lambda: torch.zeros(6, 8), lambda x: x.t()[1:5]),
    "channels": (lambda: torch.zeros(2, 5, 4, 4).to(memory_format=torch.channels_last), lambda x: x[:, 1:4]),
    "diagonal": (lambda: torch.zeros(3, 2, 2).transpose(0, 1), lambda x: x.diagonal(0, 0, 1)),
    "diagonal of channels last": (lambda: torch.zeros(1, 3, 5, 5).to(memory_format=torch.channels_last), lambda x: x[:, 1:].diagonal(0, 2, 3)),
    "window": (lambda: torch.zeros(60), lambda x: x.as_strided((4, 5), (9, 2), 3)),
    "few": (lambda: torch.zeros(3, 4), lambda x: x[:, :3]),
}
DRAWS = {
    "normal": lambda v: v.normal_(),
    "uniform": lambda v: v.uniform_(),
    "bernoulli": lambda v: v.bernoulli_(0.4),
    "exponential": lambda v: v.exponential_(),
    "random": lambda v: v.random_(100),
    "kaiming": lambda v: torch.nn.init.kaiming_normal_(v),
    "truncated": lambda v: torch.nn.init.trunc_normal_(v),
    "out": lambda v: torch.normal(torch.zeros(v.shape), 1.0, out=v),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("view", VIEWS)
def test_they_are_eagers(view, draw, dtype):
    make, part = VIEWS[view]
    if draw == "kaiming" and part(make()).dim() < 2:
        pytest.skip("it has no fan")

    def program(x):
        DRAWS[draw](part(x))
        return x + 1

    compiled = broach.compile(program)
    for seed in range(3):
        torch.manual_seed(seed)
        want = program(a := make().to(dtype))
        state = torch.get_rng_state()
        torch.manual_seed(seed)
        have = compiled(b := make().to(dtype))
        assert torch.equal(have, want) and torch.equal(a, b)
        assert torch.equal(torch.get_rng_state(), state)


def test_arguments_that_have_gaps():
    compiled = broach.compile(lambda x: x.normal_())
    for seed in range(3):
        torch.manual_seed(seed)
        want = torch.zeros(5, 12)[:, ::2].normal_()
        torch.manual_seed(seed)
        assert torch.equal(compiled(torch.zeros(5, 12)[:, ::2]), want)


def test_a_column_takes_no_more_memory_than_its_numbers():
    """The copy that is drawn into has gaps as the view has, but not as long."""
    compiled = broach.compile(lambda w: w[:, 0].normal_() + 1)
    w = torch.zeros(1 << 14, 1 << 10)
    for seed in range(3):
        torch.manual_seed(seed)
        want = torch.zeros(1 << 14, 2)[:, 0].normal_() + 1
        torch.manual_seed(seed)
        assert torch.equal(compiled(w), want)
