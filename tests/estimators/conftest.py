import numpy as np
import pytest

from dpsub.estimators import epsilon_lower_bound


@pytest.fixture(scope="session")
def sampled():
    """What claim "pld" is told of the training: one whose curves are quick to compute."""
    return {"sample_rate": 0.5, "steps": 10, "adjacency": "substitute"}


@pytest.fixture(scope="session")
def bounded(sampled):
    """`epsilon_lower_bound` at δ = 1e-5, with what "pld" needs."""

    def bound(scores, bits, claim="gdp", rule="ranks", *, delta=1e-5, **options):
        mechanism = sampled if "pld" in claim else {}
        return epsilon_lower_bound(scores, bits, delta=delta, claim=claim, rule=rule, **mechanism, **options)

    return bound


@pytest.fixture(scope="session")
def gaussian_scores():
    """Scores N(μ, 1) of z and N(0, 1) of z′, and the bits of a fair coin."""

    def draw(seed, runs, mu):
        rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(seed)
        bits = rng.integers(0, 2, runs)
        return rng.normal(size=runs) + mu * (bits == 0), bits

    return draw


@pytest.fixture(scope="session")
def worlds():
    """Scores of a single threshold, 0.5, with these numbers of errors."""

    def made(false_positives, n0, false_negatives, n1):
        negative = np.arange(n0) < false_positives
        positive = np.arange(n1) >= false_negatives
        return np.concatenate([negative, positive]).astype(float), np.repeat([1, 0], [n0, n1])

    return made
