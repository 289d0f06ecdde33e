"""What notebooks/own_code/crafted_questions.py measures of scores."""

import numpy as np
import pytest
from test_own_code import imported

questions = imported("crafted_questions")


def test_auc_counts_pairs_and_ties_by_half():
    rng = np.random.default_rng(1)
    scores, bits = rng.integers(0, 5, (3, 30)).astype(float), rng.integers(0, 2, (3, 30))
    for row, coins, found in zip(scores, bits, questions.auc(scores, bits), strict=True):
        own, others = row[coins == 0][:, None], row[coins == 1][None]
        assert found == pytest.approx(((own > others) + (own == others) / 2).mean())
    assert questions.auc(np.array([2.0, 1.0]), np.array([0, 1])) == 1
    assert questions.auc(np.array([2.0, 2.0]), np.array([0, 1])) == 0.5


def test_a_better_score_is_ahead_and_a_score_is_not_ahead_of_itself():
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2, 400)
    noise = rng.normal(size=400)
    strong, weak = noise - 2 * bits, noise - 0.5 * bits
    apart, low, high = questions.ahead_by(strong, weak, bits)
    assert 0 < low < apart < high
    assert questions.ahead_by(strong, strong, bits) == (0, 0, 0)


def test_the_interval_holds_the_true_difference_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    held = 0
    for seed in range(60):
        bits = rng.integers(0, 2, 200)
        one, other = rng.normal(size=(2, 200)) - bits  # the same AUC
        _, low, high = questions.ahead_by(one, other, bits, seed=seed, draws=200)
        held += low <= 0 <= high
    assert held >= 51  # of 60 at 95 %: fewer with probability 0.001
