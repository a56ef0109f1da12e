"""Settings of torch that a program sets for its caller."""

from __future__ import annotations

import contextlib

import broach
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def _toggle_type():
    torch.set_default_dtype(torch.float64 if torch.get_default_dtype() == torch.float32 else torch.float32)


def _toggle_deterministic():
    torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled(), warn_only=True)


def _toggle_precision():
    torch.set_float32_matmul_precision("medium" if torch.get_float32_matmul_precision() == "highest" else "highest")


def _toggle_attention():
    torch.backends.cuda.enable_flash_sdp(not torch.backends.cuda.flash_sdp_enabled())


def _toggle_overrideable():
    torch._C._set_sdp_use_overrideable(not torch._C._get_overrideable_sdp_enabled())


def _toggle_order():
    torch._C._set_sdp_priority_order(torch._C._get_sdp_priority_order()[::-1])


def _toggle_onednn():
    torch.backends.mkldnn.set_flags(not torch.backends.mkldnn.enabled)


def _toggle_cache():
    torch.set_autocast_cache_enabled(not torch.is_autocast_cache_enabled())


def _toggle_autocast_type():
    torch.set_autocast_dtype("cpu", torch.float16 if torch.get_autocast_dtype("cpu") == torch.bfloat16 else torch.bfloat16)


def _toggle_fill():
    torch.utils.deterministic.fill_uninitialized_memory = not torch.utils.deterministic.fill_uninitialized_memory


SETTINGS = {
    "type": (_toggle_type, torch.get_default_dtype),
    "deterministic": (_toggle_deterministic, torch.are_deterministic_algorithms_enabled),
    "precision": (_toggle_precision, torch.get_float32_matmul_precision),
    "attention": (_toggle_attention, torch.backends.cuda.flash_sdp_enabled),
    "overrideable": (_toggle_overrideable, torch._C._get_overrideable_sdp_enabled),
    "order": (_toggle_order, torch._C._get_sdp_priority_order),
    "onednn": (_toggle_onednn, lambda: torch.backends.mkldnn.enabled),
    "autocast_cache": (_toggle_cache, torch.is_autocast_cache_enabled),
    "autocast_type": (_toggle_autocast_type, lambda: torch.get_autocast_dtype("cpu")),
    "fill": (_toggle_fill, lambda: torch.utils.deterministic.fill_uninitialized_memory),
}


def _ends_well(x):
    return x * 2


def _raises(x):
    return x.view(1, 2, 1, 1)


def _makes_text(x):
    return str(x.shape), x * 2


def _reads(x):
    return x.sum().item()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("end", [_ends_well, _raises, _makes_text, _reads])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_is_toggled_once_a_call(setting, end, dynamic):
    toggle, get = SETTINGS[setting]

    def program(x):
        if x.shape[0] >= 5:
            toggle()
            return end(x)
        return x * 2

    compiled = broach.compile(program, dynamic=dynamic)
    before = get()
    try:
        for n in (3, 3, 4, 4, 5, 5, 6, 7, 3, 5):
            now = get()
            with contextlib.suppress(RuntimeError):
                compiled(torch.ones(n, dtype=torch.float32))
            assert (get() != now) == (n >= 5), n
    finally:
        if get() != before:
            toggle()


def test_whether_autocast_keeps_weights_is_told():
    f = broach.compile(lambda x: (x * 2, torch.is_autocast_cache_enabled()))
    for on in (True, True, False, False, True):
        torch.set_autocast_cache_enabled(on)
        try:
            assert f(torch.ones(2))[1] is on
        finally:
            torch.set_autocast_cache_enabled(True)


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize("kinds", [SDPBackend.MATH, [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]])
def test_a_program_chooses_the_kind_of_attention(kinds, order):
    def program(q):
        with sdpa_kernel(kinds, set_priority=order):
            return F.scaled_dot_product_attention(q, q, q).sin()

    compiled = broach.compile(program)
    before = torch._C._get_sdp_priority_order()
    for _ in range(4):
        q = torch.randn(1, 2, 8, 16)
        torch.testing.assert_close(compiled(q), program(q))
        assert torch._C._get_sdp_priority_order() == before and torch._C._get_overrideable_sdp_enabled()
    assert compiled.stats()["compiled_calls"] >= 2, compiled.stats()["reasons"]
