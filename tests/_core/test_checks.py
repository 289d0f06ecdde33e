import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch

from dpsub._core import checks


@pytest.mark.parametrize(
    ("check", "value", "bounds", "message"),
    [
        (checks.real, -1.0, {"above": 0}, "x must be > 0, got -1.0"),
        (checks.real, 1.5, {"above": 0, "at_most": 1}, "x must be > 0 and <= 1, got 1.5"),
        (checks.real, -0.1, {"at_least": 0}, "x must be >= 0, got -0.1"),
        (checks.real, 1, {"below": 1}, "x must be < 1, got 1"),
        (checks.real, math.nan, {"above": 0}, "x must be a finite number > 0, got nan"),
        (checks.real, -math.inf, {}, "x must be a finite number, got -inf"),
        (checks.real, True, {}, "x must be a finite number, got True"),
        (checks.real, "1", {}, "x must be a finite number, got '1'"),
        (checks.real, np.array(1.0), {}, r"x must be a finite number, got array\(1.\)"),
        (checks.whole, 0, {}, "x must be >= 1, got 0"),
        (checks.whole, 11, {"at_most": 10}, "x must be >= 1 and <= 10, got 11"),
        (checks.whole, 2.5, {}, "x must be a whole number >= 1, got 2.5"),
        (checks.whole, math.inf, {}, "x must be a whole number >= 1, got inf"),
        (checks.whole, Fraction(1, 2), {}, "x must be a whole number >= 1, got Fraction"),
        (checks.whole, np.array([5]), {}, r"x must be a whole number >= 1, got array\(\[5\]\)$"),
        (checks.flag, 1, {}, "x must be True or False, got 1"),
        (checks.text, " ", {}, "x must be a text that is not empty, got ' '"),
    ],
)
def test_what_is_not_what_was_asked_for_is_named(check, value, bounds, message):
    with pytest.raises(ValueError, match=message):
        check("x", value, **bounds)


def test_numbers_at_their_bounds_pass_as_what_they_are():
    assert checks.real("σ", 1, at_most=1, at_least=1) == 1.0
    assert type(checks.real("σ", np.float32(2))) is float
    assert checks.whole("steps", 3.0, at_most=3) == 3
    assert type(checks.whole("steps", np.int8(3))) is int
    assert checks.flag("repair", np.True_) is True


def test_each_phase_of_a_history_keeps_its_place():
    assert checks.history([(1, 0.1, 30.0), [2.0, 1, 5]]) == [(1.0, 0.1, 30), (2.0, 1.0, 5)]
    with pytest.raises(ValueError, match=r"history\[1\]: steps must be >= 1, got 0"):
        checks.history([(1, 0.1, 30), (1, 0.1, 0)])


LARGE = np.array([2**63 + 1], dtype=np.uint64)


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (None, {}, "x must be finite numbers, got None"),
        ([None, 1.0], {}, r"x must be finite numbers, got \[None, 1.0\]"),
        ("a", {}, "x must be finite numbers, got 'a'"),
        (np.array([1j]), {}, r"x must be finite numbers, got array\(\[0.\+1.j\]\)"),
        (10**400, {}, "x must be finite numbers, got 10{79}$"),
        (np.ma.masked_less([1, 2], 2), {}, "x must not be masked: .*leave them out"),
        ([1, np.nan, 2], {}, r"x must be finite numbers, got nan \(1 of 3 values\)"),
        (np.inf, {}, "x must be finite numbers, got inf$"),
        ([np.inf, np.nan], {"finite": False}, "x must be numbers without NaN, got nan"),
        ([1.0, 1e300], {"kind": np.float32}, "x must be finite numbers in float32, got 1e.300"),
        ([1, 2.5], {"kind": np.int64}, "x must be whole numbers, got 2.5"),
        ([np.nan], {"kind": np.int64}, "x must be whole numbers, got nan"),
        ([1e19], {"kind": np.int64}, r"x must be whole numbers, got 1e\+19"),
        (LARGE, {"kind": np.int64}, "x must be whole numbers, got 9223372036854775809"),
        ([3, -1], {"kind": np.int64, "at_least": 0}, "x must be whole numbers >= 0, got -1"),
        (1.5, {"at_least": 0, "at_most": 1}, "x must be finite numbers >= 0 and <= 1, got 1.5"),
        ([[1, 2]], {"shape": ("runs",)}, r"x must have shape \(runs,\), got \(1, 2\)"),
        ([[1, 2]], {"shape": ("runs", 3)}, r"x must have shape \(runs, 3\), got \(1, 2\)"),
        ([1, 2], {"shape": ("n", "d", ...)}, r"x must have shape \(n, d, ...\), got \(2,\)"),
        (1, {"shape": ("runs",)}, r"x must have shape \(runs,\), got \(\)"),
    ],
)
def test_what_is_not_the_array_asked_for_is_named(value, options, message):
    with pytest.raises(ValueError, match=message):
        checks.array("x", value, **options)


def test_arrays_pass_as_they_are():
    given = np.ones((2, 3, 4))
    assert checks.array("x", given) is given
    assert checks.array("x", given, shape=("n", 3, ...)) is given
    assert checks.array("x", given[0, 0], shape=("n", ...)).shape == (4,)
    assert checks.array("x", [], shape=("n",)).shape == (0,)
    assert checks.array("x", 3, shape=()) == 3.0
    assert checks.array("x", [np.inf], finite=False) == np.inf
    assert checks.array("x", [1.0, 2.0], kind=np.int64).tolist() == [1, 2]
    assert checks.array("x", torch.ones(2), kind=np.float32).dtype == np.float32
    assert checks.array("x", np.ma.array([1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize("value", [1, "abc", {"a": 1}, None])
def test_what_has_no_entries_is_no_sequence(value):
    with pytest.raises(ValueError, match="hidden must be widths, got"):
        checks.several("hidden must be widths", value)


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        *((given, checks.ADJACENCIES, "substitute") for given in ("replace", "Replace-One", "substitution", "bounded")),
        *((given, checks.ADJACENCIES, "add_remove") for given in ("add-remove", "remove", "ADD", "unbounded")),
        *((given, checks.ADJACENCIES, "zero_out") for given in ("zero-out", "zeroing")),
        ("sigma", ["noise_multiplier", "delta"], "noise_multiplier"), ("clip_norm", ["max_grad_norm"], "max_grad_norm"),
        ("sampel_rate", ["sample_rate", "steps"], "sample_rate"), ("shuffled", ["poisson", "epochs"], "epochs"),
    ],
)  # fmt: skip
def test_what_people_type_is_translated_to_what_is_known(given, known, meant):
    with pytest.raises(ValueError, match=f"x must be one of .*, got '{given}': did you mean '{meant}'"):
        checks.choice("x", given, known)


def test_what_is_not_near_is_not_guessed():
    for given in ("neighbours", "", None, 1):
        with pytest.raises(ValueError, match=r"adjacency must be one of .*, got [^:]*$"):
            checks.choice("adjacency", given, checks.ADJACENCIES)


@checks.checked("delta", steps=partial(checks.whole, at_most=9), sizes=lambda name, value: tuple(value))
def asked(
    delta: float, *, steps: int | None = None, sizes: tuple[int, ...] = (), other: str = ""
) -> tuple[object, ...]:
    """What it is given."""
    return delta, steps, sizes, other


def test_a_function_is_given_what_its_checks_return():
    assert asked(np.float32(0.5), steps=np.int64(3), sizes=[1, 2], other=None) == (0.5, 3, (1, 2), None)
    assert asked(delta=0.5) == (0.5, None, (), "")
    assert asked(0.5, steps=None)[1] is None, "a default is not checked"
    assert (asked.__name__, asked.__doc__) == ("asked", "What it is given.")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"delta": 0}, ValueError, "delta must be > 0 and < 1, got 0"),
        ({"delta": 0.5, "steps": 0}, ValueError, "steps must be >= 1 and <= 9, got 0"),
        ({"delta": 0.5, "steps": 10}, ValueError, "steps must be >= 1 and <= 9, got 10"),
        ({}, TypeError, "missing a required argument: 'delta'"),
        ({"stepps": 1}, TypeError, "asked() got an unexpected keyword argument 'stepps': did you mean 'steps'?"),
        ({"colour": 1}, TypeError, "asked() got an unexpected keyword argument 'colour': it takes delta, steps, sizes"),
    ],
)
def test_declared_checks_name_the_argument(arguments, error, message):
    with pytest.raises(error) as caught:
        asked(**arguments)
    assert str(caught.value).startswith(message)
