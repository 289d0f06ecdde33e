"""What claims make of observations."""

import numpy as np
import pytest
from scipy.stats import norm, poisson

from dpsub.accounting import gdp_epsilon
from studies.tight_auditing import formulas
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


def test_the_best_threshold_of_epsilon_delta_shows_nothing_of_few_observations_and_all_of_many():
    rng = np.random.default_rng(0)
    best = formulas.best_threshold(1.0, 1e-5)
    assert seen.share_at(best, 5_000, 20, 1e-5, rng)[0] < 0.01
    share, error = seen.share_at(best, 10_000_000, 2_000, 1e-5, rng)
    # 5.4 false positives and 532 true ones are expected: a sum over both counts
    fp, tp = np.arange(30), np.arange(400, 670)
    rates = norm.sf(best - np.array([0, 1]))
    weights = poisson.pmf(fp, 1e7 * rates[0])[:, None] * poisson.pmf(tp, 1e7 * rates[1])
    upper = formulas.upper(fp, 10**7, 0.025)[:, None], formulas.upper(10**7 - tp, 10**7, 0.025)
    expected = (weights * formulas.epsilon_dp(*upper, 1e-5)).sum() / gdp_epsilon(1.0, 1e-5)
    assert share == pytest.approx(expected, abs=4 * error)
    assert seen.share_at(best, 10**12, 20, 1e-5, rng)[0] == pytest.approx(1, abs=0.01)
    least, most = seen.near_by_exact_rates(1e-5)
    assert least < best < most
    for z in (least, most):
        assert seen.share_at(z, 10**13, 20, 1e-5, rng)[0] == pytest.approx(0.8, abs=0.02)
