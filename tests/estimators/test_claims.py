import numpy as np
import pytest

from dpsub.estimators.claims import GDP, ApproximateDP

CLAIMS = [GDP(1e-5), ApproximateDP(1e-5), ApproximateDP(0.1)]
RATES = np.linspace(0.001, 0.999, 97)


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("parameter", [0.3, 1.0, 2.5])
def test_a_claims_parameter_is_the_one_whose_curve_the_rates_lie_on(claim, parameter):
    fnr = claim.tradeoff(RATES, parameter)
    inside = (fnr > 1e-9) & (RATES + fnr < 1 - 1e-9)
    found = [claim.parameter(float(u), float(v)) for u, v in zip(RATES[inside], fnr[inside], strict=True)]
    assert len(found) > 20
    assert found == pytest.approx([parameter] * len(found), rel=1e-6)


@pytest.mark.parametrize("claim", CLAIMS)
def test_exchanging_the_worlds_changes_no_claim(claim):
    fnr = claim.tradeoff(RATES, 1.0)
    assert (np.diff(fnr) <= 0).all()
    inside = fnr > 1e-9
    assert claim.tradeoff(fnr[inside], 1.0) == pytest.approx(RATES[inside], abs=1e-9)


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_strongest_rates_are_those_of_the_largest_parameter(claim):
    fpr, fnr = np.array([0.4, 0.05, 0.3]), np.array([0.3, 0.2, 0.9])
    assert claim.strongest(fpr, fnr) == 1
    assert claim.strongest(fnr, fpr) == 1
    assert claim.parameter(0.3, 0.9) == 0
