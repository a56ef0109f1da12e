"""What `broach.compile` says about arguments that make no sense: one clear message that names the argument, the value and what is
valid, before anything runs."""

from __future__ import annotations

import broach
import pytest
import torch
from broach._native import _C

FLAGS = ["strict", "deterministic", "freeze", "fuse", "lower"]
COUNTS = ["verify", "branches", "compile_threads"]


def double(x):
    return x * 2


def refused(kind, *words, **arguments):
    """The message, which contains the words."""
    with pytest.raises(kind) as error:
        broach.compile(arguments.pop("model", double), **arguments)
    text = str(error.value)
    assert "\n" not in text and len(text) < 600, text
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in: {text}"


@pytest.mark.parametrize("model", [3, "model", [double], {}, 1.5, torch.ones(2), object()], ids=lambda m: type(m).__name__)
def test_models_that_nobody_can_call(model):
    refused(TypeError, "model", "callable", repr(model)[:20], model=model)


@pytest.mark.parametrize("name", ["fullgraph", "disable"])
@pytest.mark.parametrize("value", [None, 0, 1, "yes", "", [], 0.5], ids=repr)
def test_flags_of_compile(name, value):
    refused(TypeError, name, "True or False", repr(value), **{name: value})


@pytest.mark.parametrize("value", [0, 1, "auto", "", [0], {0: 1}], ids=repr)
def test_dynamic(value):
    refused(TypeError, "dynamic", "True, False or None", repr(value), dynamic=value)


@pytest.mark.parametrize("kind, value", [(ValueError, "fast"), (ValueError, ""), (ValueError, "Default"), (TypeError, 3), (TypeError, True), (TypeError, ["default"])], ids=repr)
def test_modes(kind, value):
    refused(kind, "mode", repr(value), "default", "max-autotune", "reduce-overhead", mode=value)


@pytest.mark.parametrize("value", ["strict", ["strict"], [("strict", True)], 1, True, {"strict"}], ids=repr)
def test_options_are_a_dict(value):
    refused(TypeError, "options must be a dict", repr(value), options=value)


@pytest.mark.parametrize("name, hint", [("strikt", "did you mean 'strict'"), ("threads", ""), ("", ""), ("Strict", "did you mean 'strict'"), (1, ""), (None, "")], ids=repr)
def test_unknown_names(name, hint):
    refused(ValueError, repr(name), hint, *broach.list_options(), options={name: True})


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [None, 0, 1, "True", "", [], torch.tensor(True)], ids=repr)
def test_flags(name, value):
    refused(TypeError, repr(name), "True or False", repr(value), options={name: value})


@pytest.mark.parametrize("value", [0, 1, "auto", print], ids=repr)
def test_progress(value):
    refused(TypeError, "'progress'", "True, False or None", repr(value), options={"progress": value})


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize(
    "kind, value", [(ValueError, -1), (ValueError, 10**30), (TypeError, True), (TypeError, None), (TypeError, "4"), (TypeError, 1.5), (TypeError, float("nan")), (TypeError, [])], ids=repr
)
def test_counts(name, kind, value):
    refused(kind, repr(name), "whole number from 0", repr(value), options={name: value})


@pytest.mark.parametrize("kind, value", [(ValueError, "magically"), (ValueError, ""), (ValueError, "Native"), (TypeError, None), (TypeError, True), (TypeError, ["native"])], ids=repr)
def test_captures(kind, value):
    refused(kind, "'capture'", "'auto', 'native', 'dynamo', 'either'", repr(value), options={"capture": value})


@pytest.mark.parametrize(
    "kind, value",
    [(TypeError, "simplify"), (TypeError, ""), (TypeError, None), (TypeError, 3), (TypeError, True), (TypeError, {"simplify": True}), (TypeError, [1]), (TypeError, ["simplify", None]),
     (ValueError, ["simplfy"]), (ValueError, [""]), (ValueError, ["simplify", "all"])],
    ids=repr,
)  # fmt: skip
def test_passes(kind, value):
    refused(kind, "'disable_passes'", "list of names", repr(value), *_C.pass_names(), options={"disable_passes": value})


@pytest.mark.parametrize("kind, value", [(ValueError, "tpu"), (ValueError, ""), (TypeError, None), (TypeError, ["cpu"])], ids=repr)
def test_targets(kind, value):
    refused(kind, "'target'", "'cpu', 'cuda', 'reference'", repr(value), options={"target": value})


def test_the_decorator_is_checked_where_it_is_written():
    refused(TypeError, "fullgraph", model=None, fullgraph="yes")
    refused(ValueError, "strikt", model=None, options={"strikt": True})


@pytest.mark.parametrize("options", [{"strikt": True}, {"strict": 1}, {"branches": -1}, {"disable_passes": ["x"]}], ids=repr)
def test_a_backend_of_torch_is_checked_too(options):
    compiled = torch.compile(double, backend="broach", options=options)
    with pytest.raises(Exception, match="options: '(strikt|strict|branches|disable_passes)'"):
        compiled(torch.ones(3))


def test_what_is_explained_can_be_called():
    with pytest.raises(TypeError, match="fn must be a module or another callable, not 3"):
        broach.explain(3)


@pytest.mark.parametrize(
    "options", [None, {}, {"disable_passes": []}, {"disable_passes": ("simplify", "simplify")}, {"branches": 0}, {"compile_threads": 1}, {"progress": None}, {"triton.cudagraphs": True}], ids=repr
)
def test_what_makes_sense_is_taken(options):
    compiled = broach.compile(double, options=options, mode="max-autotune", dynamic=None)
    for _ in range(2):
        assert compiled(torch.ones(3)).tolist() == [2.0, 2.0, 2.0]
