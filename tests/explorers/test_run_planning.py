from itertools import product

import numpy as np
import pytest

from book.explorers import run_planning as planning
from dpsub.accounting import gdp_epsilon
from dpsub.estimators import max_certifiable_epsilon

STORED = planning.stored()
SETTINGS = list(product(planning.CLAIMS, planning.ALPHAS, planning.RUNS))


def stored(claim, alpha, runs):
    return STORED["rows"][SETTINGS.index((claim, alpha, runs))]


def test_the_stored_axes_are_those_of_the_page():
    named = {"methods": planning.CLAIMS, "alphas": planning.ALPHAS, "runs": planning.RUNS, "mus": planning.MUS}
    assert {name: tuple(STORED[name]) for name in named} == named
    assert len(STORED["rows"]) == len(SETTINGS)


@pytest.mark.parametrize("setting", [("gdp", 0.05, 50), ("dp", 0.1, 158)], ids=str)
def test_stored_numbers_are_the_librarys(setting):
    found, kept = planning.row(setting), stored(*setting)
    assert found["ceiling"] == pytest.approx(kept["ceiling"], abs=2e-4)
    assert found["likely"] == pytest.approx(kept["likely"], abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_all_stored_numbers_are_the_librarys(setting):
    test_stored_numbers_are_the_librarys(setting)


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
@pytest.mark.parametrize(("claim", "alpha", "runs"), [("gdp", 0.05, 500), ("dp", 0.05, 500), ("dp", 0.01, 158_114)])
def test_ceilings_hold_at_every_delta(claim, alpha, runs, delta):
    exact = max_certifiable_epsilon(runs, delta=delta, claim=claim, alpha=alpha)
    kept = stored(claim, alpha, runs)["ceiling"]
    assert (gdp_epsilon(kept, delta) if claim == "gdp" else kept) == pytest.approx(exact, rel=2e-3)


def test_more_runs_show_more_and_never_more_than_the_truth_or_the_ceiling():
    for claim, alpha in product(planning.CLAIMS, planning.ALPHAS):
        rows = [stored(claim, alpha, runs) for runs in planning.RUNS]
        likely = np.array([row["likely"] for row in rows])
        ceilings = np.array([row["ceiling"] for row in rows])
        assert (np.diff(ceilings) > 0).all()
        assert (likely <= ceilings[:, None] + 1e-3).all()
        assert (np.diff(likely, axis=1) >= 0).all()
        truth = planning.MUS if claim == "gdp" else [gdp_epsilon(mu, planning.DELTA) for mu in planning.MUS]
        assert (likely <= np.array(truth)).all()
