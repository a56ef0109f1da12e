"""Cross-entropy behind a computed score: what eager gives, and no tensor of all logarithms of probabilities."""

import broach
import pytest
import torch
import torch.nn.functional as F

WAYS = {
    "rows": lambda s, t: F.cross_entropy(s, t),
    "sum": lambda s, t: F.cross_entropy(s, t, reduction="sum", ignore_index=3),
    "each": lambda s, t: F.cross_entropy(s, t, reduction="none"),
    "weighted": lambda s, t: F.cross_entropy(s, t, weight=torch.linspace(0.1, 2, s.shape[1])),
    "two steps": lambda s, t: F.nll_loss(F.log_softmax(s, 1), t),
    "of tokens": lambda s, t: F.cross_entropy(s.view(4, -1, s.shape[1]).float().view(-1, s.shape[1]), t),
    "scaled": lambda s, t: F.nll_loss(F.log_softmax(s / 2, 1) * torch.ones(1, 1), t),
    "by class": lambda s, t: F.nll_loss(s.tanh() * torch.linspace(0, 1, s.shape[1]) + torch.linspace(1, 2, len(s))[:, None], t),
    "images": lambda s, t: F.cross_entropy(s.view(4, -1, s.shape[1]).transpose(1, 2), t.view(4, -1)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_cross_entropy(way, dtype):
    torch.manual_seed(0)
    x, w = torch.randn(64, 32, dtype=dtype), torch.randn(1500, 32, dtype=dtype)
    target = torch.randint(1500, (64,))
    target[5], target[9] = 3 if way == "sum" else -100, 3

    def program(x, w, target):
        return WAYS[way]((x @ w.t()).float(), target)

    compiled, want = broach.compile(program), program(x, w, target)
    for _ in range(3):
        torch.testing.assert_close(compiled(x, w, target), want, rtol=2e-3 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    if way in ("rows", "of tokens", "scaled"):
        scores = 64 * 1500 * dtype.itemsize
        assert broach.explain(compiled, x, w, target).arena_bytes < 1.5 * scores


def test_one_row():
    compiled = broach.compile(lambda x, t: F.cross_entropy(x * 2, t))
    for _ in range(3):
        x, t = torch.randn(7), torch.tensor(4)
        torch.testing.assert_close(compiled(x, t), F.cross_entropy(x * 2, t))


def test_a_target_that_is_no_class():
    compiled, x = broach.compile(lambda x, t: F.cross_entropy(x * 2, t)), torch.randn(5, 7)
    for t in ([0, 1, 2, 3, 4], [0, 1, 6, 3, 4], [0, 1, 2, 3, 3]):
        compiled(x, torch.tensor(t))
    for bad in (7, -1):
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([0, 1, bad, 3, 4]))
