import math

import numpy as np
import pytest

from dpsub.accounting import epsilon, gdp_delta, group_privacy_epsilon


@pytest.mark.parametrize(("mechanism", "expected"), [("full", 4.108), ("quarter", 4.13576627)])
def test_group_privacy_at_known_points(mechanism, expected, request):
    found = group_privacy_epsilon(**request.getfixturevalue(mechanism), steps=500, delta=1e-5)
    assert found == pytest.approx(expected, abs=1e-3)


def test_group_privacy_is_the_smallest_solution_although_the_left_side_is_not_monotone():
    noise, steps, target = 10.0, 25, 2e-3

    def left(eps):
        return (1 + math.exp(eps)) * gdp_delta(math.sqrt(steps) / noise, eps)

    found = group_privacy_epsilon(noise_multiplier=noise, sample_rate=1, steps=steps, delta=target) / 2
    assert left(found) == pytest.approx(target, rel=1e-6)
    assert all(left(eps) > target for eps in np.linspace(0, found - 1e-6, 2_000))
    # A mechanism for which the left side rises at first: starting at 0 it must still be the first crossing.
    rising = [gdp_delta(3.0, eps) * (1 + math.exp(eps)) for eps in (0.0, 1.0, 2.0)]
    assert rising[0] < rising[1] < rising[2]
    found = group_privacy_epsilon(noise_multiplier=1.0, sample_rate=1, steps=9, delta=0.01) / 2
    assert all(gdp_delta(3.0, e) * (1 + math.exp(e)) > 0.01 for e in np.linspace(0, found - 1e-6, 2_000))
    assert gdp_delta(3.0, found) * (1 + math.exp(found)) == pytest.approx(0.01, rel=1e-5)


def test_group_privacy_is_never_below_the_epsilon_that_it_bounds():
    training = {"noise_multiplier": 1.0, "sample_rate": 0.5, "steps": 2, "delta": 1e-59}
    assert group_privacy_epsilon(**training) >= epsilon(**training, adjacency="substitute")
