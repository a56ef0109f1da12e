"""What leaves on a GPU get from a backward, by whichever way it reaches them, and which streams wait for it."""

import pytest
import torch
from leaf_gradients import SCENARIOS, compare_scenario
from torch import nn

import broach


@pytest.mark.parametrize("name", SCENARIOS)
def test_leaves_get_what_eager_gives_them(name):
    compare_scenario(name, "cuda")


@pytest.mark.parametrize("forward_aside, backward_aside", [(True, False), (False, True), (True, True)])
def test_the_callers_stream_waits_for_the_gradients(forward_aside, backward_aside):
    """Of a forward on another stream the gradients come there; whoever calls backward may read them at once."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
    run = broach.compile(lambda x: model(x).square().mean())
    x = torch.randn(4096, 2048, device="cuda")
    want = []
    for call in range(6):
        aside, other = torch.cuda.Stream(), torch.cuda.Stream()
        model.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        with torch.cuda.stream(aside if forward_aside else torch.cuda.current_stream()):
            loss = run(x)
        with torch.cuda.stream(other if backward_aside else torch.cuda.current_stream()):
            if backward_aside:
                torch.cuda.current_stream().wait_stream(aside), torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            loss.backward()
            have = [p.grad.double().sum() for p in model.parameters()]
        torch.cuda.synchronize()
        want = want or [p.grad.double().sum() for p in model.parameters()]
        for a, b in zip(have, want, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
