import numpy as np
import pytest

from dpsub.estimators.betting import FIRST
from dpsub.opacus.auditors import PieceWeights

NORMS, PLACES = np.array([0.6, 0.8]), np.array([0, 2])


def scores(rng, observations, spreads):
    weights = PieceWeights(3)
    signs = rng.choice([-1, 1], observations)
    return signs, np.array([
        weights.score(sign * NORMS + spreads * rng.normal(size=2), NORMS, PLACES, int(sign)) for sign in signs
    ])  # fmt: skip


def test_the_first_scores_are_products_with_the_clipped_canary():
    weights, products = PieceWeights(3), np.array([0.3, -2.0])
    assert weights.score(products, NORMS, PLACES, 1) == pytest.approx(0.3 * 0.6 - 2.0 * 0.8)


def test_a_piece_without_noise_decides_after_a_while():
    signs, found = scores(np.random.default_rng(0), 200, np.array([1.0, 0.0]))
    assert np.abs(found[:FIRST] - signs[:FIRST]).mean() > 0.3
    np.testing.assert_allclose(found[FIRST + 1 :], signs[FIRST + 1 :], atol=1e-3)


def test_equal_noise_keeps_the_scale_of_the_score():
    signs, found = scores(np.random.default_rng(1), 3_000, np.array([0.5, 0.5]))
    assert np.mean(found * signs) == pytest.approx(1, abs=0.05)
    assert np.std(found - signs) == pytest.approx(0.5, rel=0.06)


def test_scores_use_the_past_only():
    products = np.array([0.2, 0.4])
    ends = []
    for sign in (-1, 0, 1):
        weights = PieceWeights(3)
        state = np.random.default_rng(3)
        for _ in range(100):
            weights.score(state.normal(size=2), NORMS, PLACES, int(state.integers(-1, 2)))
        ends.append(weights.score(products, NORMS, PLACES, sign))
    assert len(set(ends)) == 1


def test_no_noise_at_all_is_no_trouble():
    signs, found = scores(np.random.default_rng(4), 100, np.zeros(2))
    np.testing.assert_allclose(found, signs)
