"""Each program of this folder answers under Broach what it answers in eager; a child that dies is a failure that names the signal."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import run  # noqa: E402
from known import KNOWN  # noqa: E402


PROGRAMS = run.programs()


@pytest.fixture(scope="module", autouse=True)
def prepared(request):
    chosen = {item.callspec.params.get("source") for item in request.session.items if hasattr(item, "callspec")}
    run.prepare([program for program in PROGRAMS if program[2] in chosen])


def _marks(name):
    return [pytest.mark.xfail(reason=KNOWN[name], strict=False)] if name in KNOWN else []


@pytest.mark.parametrize("source", [pytest.param(source, id=f"{subject}-{name}", marks=_marks(name)) for subject, name, source in PROGRAMS])
def test_answers_as_eager(source):
    eager, got = run.value(source, "eager"), run.value(source, "broach")
    if eager[0] == "raised" and "could not create a primitive descriptor" in run.shown(eager):
        pytest.skip("oneDNN computes no such layer on this processor: in bf16 they want AVX-512")
    assert eager[0] not in ("raised", "crash", "timeout"), f"eager itself: {run.shown(eager)}"
    assert run.verdict(eager, got) == "same", f"{source}\neager:  {run.shown(eager)}\nbroach: {run.shown(got)}"
