import numpy as np
import pytest
from scipy.stats import norm

from dpsub import accounting
from dpsub.accounting.discretisation import merge_outcomes, split_outcomes
from dpsub.accounting.dominating_pairs import MirroredPair

FIXED = {"adjacency": "substitute", "sampling": "without_replacement"}

# Made by an independent implementation: what is attained, and what holds whatever the other records are.
KNOWN = [
    ((1.0, 512 / 60_000, 1180, 1e-5), 12.5676, 13.9409),
    ((2.0, 0.25, 40, 1e-5), 11.2837, 12.034),
    ((0.7, 512 / 60_000, 1180, 1e-5), 41.1482, 44.7134),
    ((4.0, 512 / 60_000, 1180, 1e-5), 0.5711, 0.6615),
    ((3.0, 0.1, 500, 1e-5), 8.3716, 9.7259),
    ((5.0, 0.01, 10_000, 1e-6), 1.8623, 2.1363),
    ((1.2, 0.05, 20, 1e-5), 6.7133, 6.8895),
    ((1.0, 1.0, 1, 1e-5), 9.9973, 9.9973),
    ((8.0, 1.0, 100, 1e-5), 13.2067, 13.2067),
]


def named(sigma, q, steps, delta):
    return {"noise_multiplier": sigma, "sample_rate": q, "steps": steps, "delta": delta, **FIXED}


@pytest.mark.parametrize(("mechanism", "attained", "upper"), KNOWN)
def test_both_ends_at_known_points(mechanism, attained, upper):
    low, estimate, high = accounting.epsilon_interval(**named(*mechanism))
    assert low == pytest.approx(attained, rel=2e-3)
    assert high == pytest.approx(upper, rel=2e-3)
    assert low <= attained + 5e-5, "the lower end is certified"
    assert high >= upper - 5e-5, "the upper end is certified"
    assert estimate == (low + high) / 2
    assert accounting.epsilon(**named(*mechanism)) == high


def one_step_profile(sigma, q, epsilon):
    """δ(ε) of (1-q) N(0) + q N(2) against N(0), for ε ≥ 0; of N(0) against that mixture, for ε < 0."""

    def mixture(x):
        return (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, 2, sigma)

    def excess(x):
        p, other = (mixture(x), norm.pdf(x, 0, sigma)) if epsilon >= 0 else (norm.pdf(x, 0, sigma), mixture(x))
        return np.maximum(p - np.exp(epsilon) * other, 0.0)

    x = np.linspace(-12 * sigma, 2 + 12 * sigma, 200_001)
    return np.trapezoid(excess(x), x)


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.1), (0.5, 0.9), (4.0, 0.01), (2.0, 1.0)])
@pytest.mark.parametrize("epsilon", [-0.5, 0.0, 1.0])
def test_a_step_has_the_profile_that_the_theorem_names(sigma, q, epsilon):
    pair = MirroredPair(sigma / 2, q)
    truth = one_step_profile(sigma, q, epsilon)
    for end, sign in ((merge_outcomes, -1), (split_outcomes, 1)):
        step = end(pair, 1e-3)
        found = step.infinite + float(np.maximum(-np.expm1(epsilon - step.losses), 0.0) @ step.mass)
        assert sign * (found - truth) >= -1e-9
        assert found == pytest.approx(truth, abs=2e-5)
        assert step.mass.sum() + step.infinite == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.1), (0.5, 0.9), (40.0, 0.3)])
def test_exchanging_the_worlds_mirrors_the_outcomes(sigma, q):
    pair = MirroredPair(sigma, q)
    x = np.linspace(-6 * sigma, 6 * sigma, 501)
    np.testing.assert_array_equal(pair.loss(-x), -pair.loss(x))
    np.testing.assert_allclose(pair.inverse_loss(pair.loss(x)), x, atol=1e-6 * sigma)
    np.testing.assert_allclose(pair.masses(x, "P"), pair.masses(-x[::-1] - 1e-12, "Q")[::-1], rtol=1e-6, atol=1e-10)
    everything = np.array([-np.inf, *x, np.inf])
    for world in ("P", "Q"):
        assert pair.masses(everything, world).sum() == pytest.approx(1, abs=1e-12)
    outcomes, log_p = pair.nodes(12 * sigma + 1)
    assert np.exp(log_p).sum() == pytest.approx(1, abs=1e-9)
    assert np.exp(log_p - pair.loss(outcomes)).sum() == pytest.approx(1, abs=1e-9)


def test_fixed_size_is_never_below_poisson_nor_above_revealed_batches():
    for sigma, q, steps in ((1.0, 0.02, 200), (5.0, 0.3, 50), (0.8, 0.9, 3)):
        asked = {"noise_multiplier": sigma, "sample_rate": q, "steps": steps, "delta": 1e-5}
        poisson = accounting.epsilon_interval(**asked, adjacency="substitute")
        fixed = accounting.epsilon_interval(**asked, **FIXED)
        full = accounting.epsilon(**{**asked, "sample_rate": 1.0}, adjacency="substitute")
        assert poisson.lower <= fixed.lower <= fixed.upper <= full


def test_all_questions_take_it():
    setting = {"sample_rate": 0.05, "steps": 60, **FIXED}
    sigma = accounting.noise_multiplier(target_epsilon=3.0, delta=1e-5, **setting)
    reached = accounting.epsilon(noise_multiplier=sigma, delta=1e-5, **setting)
    assert 2.99 < reached <= 3.0
    assert accounting.epsilon(noise_multiplier=sigma * 0.999, delta=1e-5, **setting) > 3.0
    assert accounting.delta(noise_multiplier=sigma, epsilon=3.0, **setting) == pytest.approx(1e-5, rel=5e-3)
    steps = {**setting, "steps": [30, 60]}
    assert accounting.epsilon(noise_multiplier=sigma, delta=1e-5, **steps)[1] == pytest.approx(reached, abs=2e-3)
    phases = [(sigma, 0.05, 30), (sigma, 0.05, 30)]
    assert accounting.epsilon(history=phases, delta=1e-5, **FIXED) == pytest.approx(reached, abs=2e-3)
    rates = np.linspace(0, 1, 21)
    fixed = accounting.tradeoff(rates, noise_multiplier=sigma, **setting)
    poisson = accounting.tradeoff(rates, noise_multiplier=sigma, **{**setting, "sampling": "poisson"})
    assert (fixed <= poisson + 1e-9).all()
    assert fixed[1] < poisson[1] - 0.01


def test_what_has_no_answer_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="adjacency must be 'substitute' with .* a removed record changes how many"):
        accounting.epsilon(**{**named(*KNOWN[0][0]), "adjacency": "add_remove"})
    with pytest.raises(ValueError, match="sampling must have an ε under .zero_out. for group privacy"):
        accounting.group_privacy_epsilon(
            noise_multiplier=1.0, sample_rate=0.1, steps=5, delta=1e-5, sampling="without_replacement"
        )
