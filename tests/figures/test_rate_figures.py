from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import roc_curve

from dpsub import figures
from dpsub.estimators import risk_lower_bound


def test_tradeoffs_are_drawn_over_guessing(ax):
    artists = figures.tradeoffs(ax, [0, 0.5, 1], {"substitute": [1, 0.1, 0], "add_remove": [1, 0.3, 0]})
    assert list(artists) == ["guessing", "substitute", "add_remove"]
    np.testing.assert_array_equal(artists["substitute"].get_xydata().T, [[0, 0.5, 1], [1, 0.1, 0]])
    np.testing.assert_array_equal(artists["add_remove"].get_ydata(), [1, 0.3, 0])
    np.testing.assert_array_equal(artists["guessing"].get_xydata(), [[0, 1], [1, 0]])


def gaussian_scores(runs, mu, seed=0):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, runs)
    return rng.normal(size=runs) + mu * (bits == 0), bits


@pytest.mark.parametrize("digits", [12, 0])  # without and with many ties
def test_a_roc_counts_both_rates_at_every_threshold(ax, digits):
    scores, bits = gaussian_scores(300, 1.0)
    scores = scores.round(digits)
    artists = figures.roc(ax, {"S4": (scores, bits)})
    fpr, tpr, _ = roc_curve(bits == 0, scores, drop_intermediate=False)
    np.testing.assert_allclose(artists["S4"].get_xydata(), np.stack([fpr, tpr], axis=1))
    assert list(artists) == ["guessing", "S4"]
    np.testing.assert_array_equal(artists["guessing"].get_xdata(), artists["guessing"].get_ydata())


def test_certified_points_are_those_of_the_bounds_and_below_what_any_attack_finds(ax):
    scores, bits = gaussian_scores(4_000, 2.0)
    bounds = [risk_lower_bound(scores, bits, measure="tpr", fpr=fpr) for fpr in (0.01, 0.1)]
    one = risk_lower_bound(scores, bits, measure="tpr", fpr=0.05)
    artists = figures.roc(ax, {"mine": (scores, bits)}, certified={"mine": bounds, "S4": one})
    found = artists["mine, certified"].get_xydata()
    np.testing.assert_array_equal(found, [[bound.fpr, bound.risk] for bound in bounds])
    assert (found[:, 1] < norm.cdf(norm.ppf(found[:, 0]) + 2.0)).all()
    assert artists["mine, certified"].get_label() == "mine, certified"
    assert artists["mine, certified"].get_color() == artists["mine"].get_color()
    assert artists["S4, certified"].get_xydata().tolist() == [[0.05, one.risk]]


def test_points_that_are_not_valid_are_hollow_and_other_measures_are_refused(ax):
    scores, bits = gaussian_scores(4_000, 2.0)
    bound = risk_lower_bound(scores, bits, measure="tpr")
    artists = figures.roc(ax, {}, certified={"S4": replace(bound, valid=False)})
    assert artists["S4, certified"].get_markerfacecolor() == "white"
    accuracy = risk_lower_bound(scores, bits)
    with pytest.raises(ValueError, match=r"certified\['S4'\] must be of measure 'tpr', got 'accuracy'"):
        figures.roc(ax, {}, certified={"S4": accuracy})
    with pytest.raises(ValueError, match=r"audits\['S4'\] must have scores of one step, got 2"):
        figures.roc(ax, {"S4": (np.stack([scores, scores], axis=1), bits)})
