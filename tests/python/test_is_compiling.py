"""What programs are told that ask whether they are compiled: no, as in eager, until they cannot be recorded otherwise."""

from __future__ import annotations

import threading

import broach
import pytest
import torch
from compared import check, native, r, ran_natively

def checks_elements(x):
    if not torch.compiler.is_compiling() and round(x.amin().item(), 3) < 0:
        raise ValueError("negative")
    return x * 2, torch.compiler.is_compiling()


def test_is_compiling_is_as_in_eager():
    def program(x):
        return x * 2 if torch.compiler.is_compiling() else x * 3

    compiled = native(program)
    for _ in range(3):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 3.0), rtol=0, atol=0)
    assert not torch.compiler.is_compiling()


def test_is_compiling_where_a_program_that_asks_cannot_be_recorded_otherwise():
    """As under torch.compile: libraries leave out checks of elements then."""
    compiled = broach.compile(checks_elements)
    assert [compiled(torch.rand(3))[1] for _ in range(4)] == [False, False, True, True] and not torch.compiler.is_compiling()
    ran_natively(compiled)
    torch.testing.assert_close(compiled(torch.ones(3))[0], torch.full((3,), 2.0), rtol=0, atol=0)
    ran_natively(compiled)


READS = {
    "a factor": lambda x: x * x.sum().item(),
    "a branch": lambda x: x * 2 if x.sum().item() > 1 else x * 3,
    "a size": lambda x: x[x > 0.5].sum() + len((x > 0.5).nonzero()),
    "a check": lambda x: x.amax() + 1 if bool((x < 0).any()) else x.amax(),
    "a limit": lambda x: x.clamp(max=x.mean().item()),
}


@pytest.mark.parametrize("name", READS)
def test_is_compiling_stays_false_where_what_is_read_can_be_recorded(name):
    compiled = broach.compile(lambda x: x * 7 if torch.compiler.is_compiling() else READS[name](x))
    for i in range(6):
        torch.manual_seed(i)
        x = torch.rand(4 + i % 2)
        torch.testing.assert_close(compiled(x), READS[name](x))
    ran_natively(compiled)


def test_is_compiling_is_never_true_in_programs_that_run_eagerly():
    compiled = broach.compile(lambda x: (checks_elements(x), print(end=""))[0])
    assert not any(compiled(torch.rand(3))[1] for _ in range(5))
    with pytest.raises(ValueError, match="negative"):
        compiled(-torch.rand(3))


def test_an_error_that_only_is_compiling_causes_is_raised_in_no_call_that_can_be_repeated():
    class Box:
        locked = True

        def set(self, value):
            if self.locked:
                raise RuntimeError("locked")
            self.value = value

    def program(x):
        box = Box()
        box.locked = torch.compiler.is_compiling()
        if not torch.compiler.is_compiling():
            round(x.amin().item(), 3)  # which keeps it from being recorded otherwise
        box.set(1)
        return x + box.value

    compiled = broach.compile(program)
    for _ in range(5):
        torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_is_compiling_ends_with_the_last_of_several_captures():
    first_runs, second_runs, first_done = threading.Event(), threading.Event(), threading.Event()

    def first(x):
        first_runs.set()
        second_runs.wait(20)
        return x * 2

    def second(x):
        second_runs.set()
        first_done.wait(20)
        return x * 2

    def run_first():
        broach.compile(first)(torch.ones(3))
        first_done.set()

    def run_second():
        first_runs.wait(20)
        broach.compile(second)(torch.ones(3))

    threads = [threading.Thread(target=run) for run in (run_first, run_second)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not torch.compiler.is_compiling()


def test_an_error_that_only_is_compiling_causes():
    """It is raised once, as a change shows the run; the next capture does not say that it compiles."""
    told = []

    def program(x):
        if torch.compiler.is_compiling():
            told.append(True)
            raise AttributeError("compiling")
        round(x.amin().item(), 3)  # which keeps it from being recorded otherwise
        return x + 1

    compiled = broach.compile(program)
    errors = 0
    for _ in range(6):
        try:
            torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
        except AttributeError:
            errors += 1
    assert errors == len(told) == 1


def test_is_compiling_is_true_for_transformers_alone():
    """Which reads masks and positions on the host otherwise."""
    from transformers.utils.import_utils import is_torchdynamo_compiling, is_tracing

    def program(x):
        return x * 2, torch.compiler.is_compiling(), is_torchdynamo_compiling(), is_tracing(), torch.compiler.is_compiling()

    compiled = native(program)
    for _ in range(3):
        assert compiled(r(3))[1:] == (False, True, True, False)
    assert not torch.compiler.is_compiling()


def test_an_error_that_only_telling_transformers_causes():
    from transformers.utils.import_utils import is_torchdynamo_compiling

    compiled = broach.compile(lambda x: x * (None if is_torchdynamo_compiling() else 2))
    for _ in range(4):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_is_compiling_lets_padded_masks_through():
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=96)).eval()
    calls = []
    for batch, length in ((2, 8), (3, 8), (3, 5)):
        mask = (torch.arange(length) < (length - torch.arange(batch))[:, None]).long()
        calls.append(((torch.randint(96, (batch, length)),), {"attention_mask": mask}))
    ran_natively(check(model, *calls))


@torch.no_grad()
def test_an_encoder_with_padding_computes_what_it_does_in_eager():
    """Its elements at padded places are zero where it does not know that it is compiled, also where others ask as well."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()

    def program(x, padding):
        y = checks_elements(x.abs())[0]
        return encoder(y, src_key_padding_mask=padding)

    for f in (encoder, program):
        compiled = broach.compile(f)
        for seed in range(4):
            torch.manual_seed(seed)
            x, padding = torch.randn(2, 5, 8), torch.arange(5).expand(2, 5) >= torch.tensor([[3], [4]])
            args = (x, None, padding) if f is encoder else (x, padding)
            torch.testing.assert_close(compiled(*args), f(*args))
