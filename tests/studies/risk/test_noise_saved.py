import math

import pytest

from dpsub import accounting
from dpsub.estimators.claims import ApproximateDP
from studies.risk import noise_saved

FULL_BATCH = {"full batch": (26.892, 1.0, 500)}


@pytest.mark.parametrize("target", [0.02, 0.2, 0.7, 0.95])
def test_the_implying_epsilon_is_the_largest_that_bounds_the_risk(target):
    guarantee, epsilon = ApproximateDP(1e-5), noise_saved.implying("tpr", target, delta=1e-5, fpr=0.01)
    assert 1 - guarantee.tradeoff(0.01, epsilon) == pytest.approx(target)
    if target > 0.5:
        epsilon = noise_saved.implying("accuracy", target, delta=1e-5, fpr=0.01)
        crossing = (1 - 1e-5) / (1 + math.exp(epsilon))  # where both error rates are equal
        assert 1 - (crossing + guarantee.tradeoff(crossing, epsilon)) / 2 == pytest.approx(target)
        assert noise_saved.any_mechanism(epsilon, 1e-5) == pytest.approx(target)


def test_a_risk_needs_less_noise_than_the_epsilon_that_implies_it():
    found = noise_saved.table(trainings=FULL_BATCH)
    assert found.by_risk.to_numpy() == pytest.approx(26.892, rel=1e-5)
    assert (found.saved > 0.5).all()
    for row in found.itertuples():
        own = accounting.epsilon(
            noise_multiplier=row.by_epsilon, sample_rate=1, steps=500, delta=1e-5, adjacency="substitute"
        )
        assert own == pytest.approx(row.epsilon, rel=1e-6)


def test_a_risk_is_never_written_smaller_than_it_is():
    assert [noise_saved.at_most(share) for share in (0.5631, 0.5639, 0.25, 0.9000017)] == [
        "56.4 %",
        "56.4 %",
        "25.0 %",
        "90.1 %",
    ]
    assert noise_saved.at_most(0.301, digits=0) == "31 %"
