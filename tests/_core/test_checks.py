import math

import numpy as np
import pytest

from dpsub._core import checks


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (-1.0, {"above": 0}, "σ must be > 0, got -1.0"),
        (0, {"above": 0}, "σ must be > 0, got 0"),
        (1.5, {"above": 0, "at_most": 1}, "σ must be > 0 and <= 1, got 1.5"),
        (-0.1, {"at_least": 0}, "σ must be >= 0, got -0.1"),
        (1, {"below": 1}, "σ must be < 1, got 1"),
        (math.inf, {"above": 0}, "σ must be finite and > 0, got inf"),
        (math.nan, {"above": 0}, "σ must be finite and > 0, got nan"),
        (-math.inf, {}, "σ must be finite, got -inf"),
        (10**400, {"above": 0}, "σ must be finite and > 0, got 10"),
        (True, {"above": 0}, "σ must be a number > 0, got True"),
        ("1", {}, "σ must be a finite number, got '1'"),
    ],
)
def test_what_is_not_the_number_asked_for_is_named(value, bounds, message):
    with pytest.raises(ValueError, match=message):
        checks.real("σ", value, **bounds)


@pytest.mark.parametrize(
    ("value", "bounds", "message"),
    [
        (0, {}, "steps must be >= 1, got 0"),
        (-1, {"at_least": 0}, "steps must be >= 0, got -1"),
        (11, {"at_most": 10}, "steps must be >= 1 and <= 10, got 11"),
        (2.5, {}, "steps must be a whole number >= 1, got 2.5"),
        (math.inf, {}, "steps must be a whole number >= 1, got inf"),
        (True, {}, "steps must be a whole number >= 1, got True"),
    ],
)
def test_what_is_not_the_whole_number_asked_for_is_named(value, bounds, message):
    with pytest.raises(ValueError, match=message):
        checks.whole("steps", value, **bounds)


def test_numbers_at_their_bounds_pass_as_what_they_are():
    assert checks.real("σ", 1, at_most=1, at_least=1) == 1.0
    assert type(checks.real("σ", np.float32(2))) is float
    assert checks.whole("steps", 3.0, at_most=3) == 3
    assert type(checks.whole("steps", np.int8(3))) is int
    assert checks.probability("delta", 0.5) == 0.5
    np.testing.assert_array_equal(checks.rates("fpr", [0, 0.5, 1]), [0.0, 0.5, 1.0])


def test_each_phase_of_a_history_keeps_its_place():
    assert checks.history([(1, 0.1, 30.0), [2.0, 1, 5]]) == [(1.0, 0.1, 30), (2.0, 1.0, 5)]
