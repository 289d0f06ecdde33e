import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dpsub.accounting.dominating_pairs import Pair, poisson_pairs

DIRECTIONS = ("substitute", "remove", "add")


def densities(pair, x):
    def mixture(mean):
        return (1 - pair.q) * norm.pdf(x, 0, pair.sigma) + pair.q * norm.pdf(x, mean, pair.sigma)

    p = norm.pdf(x, 0, pair.sigma) if pair.direction == "add" else mixture(1)
    q = norm.pdf(x, 0, pair.sigma) if pair.direction == "remove" else mixture(-1)
    return p, q


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("sigma", "q"), [(0.5, 0.9), (1.0, 0.01), (12.0, 0.25), (2.0, 1.0)])
def test_loss_is_the_log_ratio_of_the_densities(direction, sigma, q):
    pair = Pair(direction, sigma, q)
    x = np.linspace(-4 * sigma, 4 * sigma, 101)
    p, other = densities(pair, x)
    np.testing.assert_allclose(pair.loss(x), np.log(p / other), atol=1e-12)


@given(
    direction=st.sampled_from(DIRECTIONS),
    sigma=st.floats(0.3, 100),
    q=st.floats(1e-4, 1.0),
    z=st.floats(-5, 5),
)
def test_inverse_loss_undoes_loss(direction, sigma, q, z):
    pair = Pair(direction, sigma, q)
    x = np.array([z * sigma])
    loss = pair.loss(x)
    # Where the loss is bounded it flattens, and x can only be found again as precisely as the loss determines it.
    slope = (pair.loss(x + 1e-6 * sigma) - loss) / (1e-6 * sigma)
    precision = 1e-13 * (1 + abs(loss)) / np.maximum(slope, 1e-300)
    assert abs(pair.inverse_loss(loss) - x) <= 1e-6 * sigma + 10 * precision


@pytest.mark.parametrize(
    ("direction", "loss", "expected"),
    [
        ("remove", np.log(0.75) - 0.1, -np.inf),  # the loss of a removal never falls to log(1 - q)
        ("remove", np.log(0.75), -np.inf),
        ("add", -np.log(0.75), np.inf),
        ("add", -np.log(0.75) + 0.1, np.inf),
    ],
)
def test_losses_out_of_range_have_infinite_inverse(direction, loss, expected):
    assert Pair(direction, 1.0, 0.25).inverse_loss(np.array(loss)) == expected


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_masses_are_probabilities_of_both_worlds(direction):
    pair = Pair(direction, 1.5, 0.3)
    edges = np.concatenate(([-np.inf], np.linspace(-10, 10, 2001), [np.inf]))
    middle = (edges[1:-2] + edges[2:-1]) / 2
    for world, density in zip("PQ", densities(pair, middle), strict=True):
        masses = pair.masses(edges, world)
        assert masses.sum() == pytest.approx(1, abs=1e-14)
        np.testing.assert_allclose(masses[1:-1], density * 0.01, rtol=2e-4)


def test_substitution_is_its_own_mirror():
    (pair,) = poisson_pairs("substitute", 2.0, 0.2)
    x = np.linspace(-5, 5, 11)
    np.testing.assert_allclose(pair.loss(x), -pair.loss(-x), atol=1e-15)
    assert [p.direction for p in poisson_pairs("add_remove", 2.0, 0.2)] == ["remove", "add"]
    assert poisson_pairs("zero_out", 2.0, 0.2) == poisson_pairs("add_remove", 2.0, 0.2)
