import math
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from scipy.special import betaincinv
from scipy.stats import binom, norm

from dpsub.accounting import gdp_epsilon
from dpsub.estimators import CLAIMS, epsilon_lower_bound, max_certifiable_epsilon
from dpsub.estimators.threshold_rules import OneThreshold

DELTA = 1e-5


@pytest.fixture
def naive_best(bounded):
    """The papers' rule as a loop over every threshold."""

    def best_of_all(scores, bits, claim, alpha=0.05):
        if claim not in ("gdp", "dp"):
            return max(bounded(scores, bits, claim, float(cut), alpha=alpha).epsilon for cut in np.unique(scores))
        positives, negatives = scores[bits == 0], scores[bits == 1]
        best = 0.0
        for cut in scores:
            upper = []
            for errors, total in (
                ((negatives > cut).sum(), len(negatives)),
                ((positives <= cut).sum(), len(positives)),
            ):
                upper.append(1.0 if errors == total else betaincinv(errors + 1, total - errors, 1 - alpha / 2))
            fpr, fnr = upper
            if claim == "gdp" and max(upper) < 1:
                best = max(best, gdp_epsilon(max(0.0, norm.isf(fpr) - norm.ppf(fnr)), DELTA))
            if claim == "dp":
                best = max(best, *(math.log(max(1 - DELTA - a, 1e-300) / b) for a, b in ((fpr, fnr), (fnr, fpr))))
        return best

    return best_of_all


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize(
    ("runs", "mu"), [(40, 1.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((120, 0.2), (80, 6.0)))]
)
def test_best_threshold_is_the_naive_loop(bounded, gaussian_scores, naive_best, claim, runs, mu):
    scores, bits = gaussian_scores(runs, runs, mu)
    scores = np.round(scores, 0 if "pld" in claim else 1)  # ties
    bound = bounded(scores, bits, claim, "best")
    assert bound.epsilon == pytest.approx(naive_best(scores, bits, claim), abs=1e-6)
    assert not bound.valid


def test_split_judges_on_the_odd_runs_what_it_chose_on_the_even_ones(gaussian_scores):
    scores, bits = gaussian_scores(5, 1_000, 1.5)
    split = epsilon_lower_bound(scores, bits, delta=DELTA, rule="split")
    chosen = epsilon_lower_bound(scores[::2], bits[::2], delta=DELTA, rule="best").details.get("threshold")
    judged = epsilon_lower_bound(scores[1::2], bits[1::2], delta=DELTA, rule=chosen)
    assert split == replace(judged, rule="split")


@pytest.mark.parametrize(("tied", "least"), [(0.5, 0.7), (2.0, 0.3)])
def test_ties_leave_the_rank_test_conservative(gaussian_scores, tied, least):
    truth = gdp_epsilon(1.0, DELTA)
    rng = np.random.default_rng(12)
    found = []
    for _ in range(30):
        scores, bits = gaussian_scores(rng, 500, 1.0)
        found.append(epsilon_lower_bound(np.floor(scores / tied), bits, delta=DELTA, alpha=0.25).epsilon / truth)
    assert (np.array(found) > 1).sum() <= binom.ppf(0.999, 30, 0.25)
    assert np.mean(found) > least


class Median(OneThreshold):
    """A rule of one's own, which looks at the scores but not at the bits."""

    name: ClassVar[str] = "median"
    valid: ClassVar[bool] = True

    def chosen(self, scores, in_z, claim, alpha):
        return float(np.median(scores)), np.sort(scores[in_z]), np.sort(scores[~in_z])


def test_a_rule_of_ones_own_is_taken(gaussian_scores):
    scores, bits = gaussian_scores(22, 401, 2.0)
    own = epsilon_lower_bound(scores, bits, delta=DELTA, rule=Median())
    at_median = epsilon_lower_bound(scores, bits, delta=DELTA, rule=float(np.median(scores)))
    assert own == replace(at_median, rule="median")
    assert own.epsilon > 0
    ceilings = [max_certifiable_epsilon(400, delta=DELTA, rule=rule) for rule in (Median(), 0.0)]
    assert ceilings[0] == ceilings[1]
