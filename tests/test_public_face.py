"""Every public callable takes good arguments, and no others give a wrong number, a crash or a hang: a seeded fuzz.

`DPSUB_FUZZ_EXAMPLES=2000 pytest -m slow tests/test_public_face.py` tries more.
"""

import os

import numpy as np
import pytest
from fuzz import faces, registry
from fuzz.call import Call, TooLong
from fuzz.checkers import number
from hypothesis import HealthCheck, given, settings

TRIED = {}
for call in registry.CALLS:
    TRIED.setdefault(call.name.split()[0], set()).update(call.good)
EXAMPLES = int(os.environ.get("DPSUB_FUZZ_EXAMPLES", "200"))


def test_every_public_callable_is_tried_or_excused():
    public = {name for name in faces.public() if not name.startswith(faces.UNTRIED)}
    excused = set(faces.EXCUSED)
    untried = sorted(public - set(TRIED) - excused)
    assert not untried, (
        f"add a Call of {', '.join(untried)} to tests/fuzz/*_calls.py, or a reason to EXCUSED in faces.py"
    )
    assert not excused - public, "excused in tests/fuzz/faces.py, but not public"
    assert not excused & set(TRIED), "excused in tests/fuzz/faces.py, but tried"


def test_every_argument_is_tried():
    for name, arguments in TRIED.items():
        untried = sorted(faces.parameters(name) - arguments)
        assert not untried, f"add values of {', '.join(untried)} to the Call of {name} in tests/fuzz/*_calls.py"


def test_names_of_calls_are_their_own():
    assert len({call.name for call in registry.CALLS}) == len(registry.CALLS)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("public_face") / "inner"
    folder.mkdir()
    registry.prepare(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("call", registry.CALLS, ids=lambda call: call.name)
def test_a_call_is_refused_or_answered_with_right_numbers(call, place, monkeypatch):
    monkeypatch.chdir(place)
    answered = []

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(call.arguments())
    def tried(arguments):
        answered.append(call.judge(arguments))

    tried()
    print(f"{call.name}: {sum(answered)} of {len(answered)} answered")
    assert any(answered), "the arguments are never good"


def test_the_judge_tells_good_from_bad():
    def of(function):
        return Call("f", function, {"steps": [1]}, lambda result, /, **_: None)

    def fails(error):
        def function(steps):
            raise error

        return of(function)

    assert of(lambda steps: 1).judge({"steps": 1})
    for error in (ValueError("steps must be >= 1, got 0"), TypeError("steps is no number"), OverflowError("too large")):
        assert not fails(error).judge({"steps": 0})
    with pytest.raises(TooLong):
        fails(TooLong("more than 20 s")).judge({"steps": 0})
    with pytest.raises(AssertionError, match="nan"):
        Call("f", lambda steps: float("nan"), {"steps": [1]}, number()).judge({"steps": 0})
    with np.errstate(), pytest.raises(AssertionError, match="what belongs to the process"):
        of(lambda steps: np.seterr(over="raise")).judge({"steps": 0})
