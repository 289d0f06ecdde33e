"""What claims make of observations."""

import numpy as np
import pytest

from studies.tight_auditing import observations as seen


@pytest.mark.slow
def test_few_lines_show_a_little_less_than_the_curve_and_many_the_same():
    full = {"sample_rate": 1.0, "steps": 4, "adjacency": "substitute"}
    few, many = (4 - seen.shown_by_lines(count, 1e-5, full, np.linspace(3.5, 4.5, 5))[1] for count in (10, 100))
    assert few.min() > -1e-6
    assert 0.02 < few.max() < 0.6
    assert np.abs(many).max() < 0.01


def test_a_curve_is_too_low_where_an_attack_is_above_it():
    attack = 1 - seen.FPR
    claims = {"itself": attack, "half": attack / 2, "higher": np.minimum(attack + 0.1, 1)}
    found = seen.too_low(attack, claims, {"small": (0, 0.1)})
    assert found["itself"] == {"small": 0, "above": 0}
    assert found["half"] == {"small": pytest.approx(0.5), "above": 0}
    assert found["higher"]["above"] == pytest.approx(0.1)
