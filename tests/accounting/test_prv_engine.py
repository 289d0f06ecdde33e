"""What prv-accountant is given, and how often it is asked."""

import math

import numpy as np
import pytest
from scipy.special import gammaln, logsumexp

from dpsub.accounting import gdp_epsilon, prv_engine
from dpsub.accounting.dominating_pairs import Pair
from dpsub.accounting.engines import epsilons
from dpsub.accounting.phases import training_of


@pytest.mark.parametrize("sigma", [0.02, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("alpha", [1.1, 3.0, 17.0, 63.0])
def test_renyi_divergences_are_the_closed_forms(sigma, alpha):
    for direction, apart in (("remove", 1), ("add", 1), ("substitute", 2)):
        found = prv_engine.renyi_divergence(Pair(direction, sigma, 1.0), alpha)
        assert found == pytest.approx(alpha * apart**2 / (2 * sigma**2), rel=1e-9, abs=1e-13)
    if alpha == int(alpha):  # Mironov, Talwar and Zhang (2019), section 3.3
        k, q = np.arange(alpha + 1), 0.01
        log_binomial = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(alpha - k + 1)
        terms = log_binomial + (alpha - k) * math.log(1 - q) + k * math.log(q) + (k * k - k) / (2 * sigma**2)
        found = prv_engine.renyi_divergence(Pair("remove", sigma, q), alpha)
        assert found == pytest.approx(logsumexp(terms) / (alpha - 1), rel=1e-9, abs=1e-13)


def test_the_finest_grid_is_asked_once_with_a_bar_and_certifies_what_it_can(monkeypatch, capsys):
    """Where it is too coarse for the error asked for, the same grid again would change nothing."""
    asked = []
    curves = prv_engine.curves
    monkeypatch.setattr(prv_engine, "MOST_POINTS", 2**14)
    monkeypatch.setattr(prv_engine, "MANY_POINTS", 2**14)
    monkeypatch.setattr(prv_engine, "curves", lambda *args: asked.append(args) or curves(*args))
    training = training_of("add_remove", "poisson", 0.05, 1.0, 100, None)
    [(low, high)] = epsilons(training, "prv", 1e-5, 1e-3)
    assert len(asked) == 1
    assert low[0] <= gdp_epsilon(10 / 0.05, 1e-5) <= high[0]
    assert high[0] - low[0] > 2e-3 * low[0]
    assert "prv-accountant (engine='auto' is faster):   0%" in capsys.readouterr().err
