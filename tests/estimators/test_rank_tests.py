import numpy as np
import pytest
from scipy.integrate import trapezoid
from scipy.stats import beta, binom, norm

from dpsub.accounting import gdp_epsilon
from dpsub.estimators.claims import GDP, ApproximateDP
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.rank_tests import fixed_ranks, p_value, smallest_parameter

DELTA = 1e-5


def test_rank_p_value_at_a_known_point():
    p = p_value(GDP(DELTA), 1.0, rank=125, negatives=1250, false_negatives=730, positives=1250)
    assert p == pytest.approx(0.12075265, abs=1e-6)


@pytest.mark.parametrize("claim", [GDP(DELTA), ApproximateDP(DELTA)])
@pytest.mark.parametrize(
    ("n0", "n1", "rank", "false_negatives", "parameter"),
    [
        (1250, 1250, 25, 1020, 0.9),
        (1250, 1250, 284, 501, 0.87),
        (1250, 1250, 3, 1200, 2.0),
        (1, 50_000, 1, 9_000, 0.3),
        (5, 5_000, 2, 2_500, 0.5),
        (5_000, 5, 300, 1, 1.5),
        (30, 2_000, 1, 100, 3.0),
        (100, 100, 2, 0, 2.5),
    ],
)
def test_rank_p_value_is_the_integral_over_the_beta_law(claim, n0, n1, rank, false_negatives, parameter):
    z = np.linspace(-8, 8, 100_001)
    u = beta(rank, n0 - rank + 1).isf(norm.sf(z))
    inside = binom.cdf(false_negatives, n1, np.clip(claim.tradeoff(u, parameter), 0, 1))
    naive = trapezoid(inside * norm.pdf(z), z)
    p = p_value(claim, parameter, rank=rank, negatives=n0, false_negatives=false_negatives, positives=n1)
    assert p == pytest.approx(naive, rel=5e-5, abs=1e-12)


@pytest.mark.parametrize(("n0", "n1"), [(1, 50_000), (3, 5_000), (1250, 1250)])
@pytest.mark.parametrize("alpha", [0.05, 0.01, 1e-4])
def test_rank_test_rejects_a_true_claim_with_a_probability_just_below_its_level(n0, n1, alpha):
    mu = 0.3
    for rank in fixed_ranks(GDP(DELTA), n0):
        # Exactly: the largest FN that is rejected, and how likely so few are under the claim.
        rejected = -1
        low, high = 0, n1
        while low <= high:
            middle = (low + high) // 2
            p = p_value(GDP(DELTA), mu, rank=rank, negatives=n0, false_negatives=middle, positives=n1)
            rejected, low, high = (middle, middle + 1, high) if p <= alpha else (rejected, low, middle - 1)
        z = np.linspace(-8, 8, 20_001)
        u = beta(rank, n0 - rank + 1).isf(norm.sf(z))
        size = trapezoid(binom.cdf(rejected, n1, norm.sf(norm.ppf(u) + mu)) * norm.pdf(z), z)
        assert 0.65 * alpha <= size <= alpha * (1 + 1e-4)  # counts are whole numbers


@pytest.mark.parametrize(("seed", "decisive"), [(3, 0), (6, 1), (12, 2)])
def test_rank_bound_is_the_claim_at_which_the_smallest_p_value_reaches_its_level(gaussian_scores, seed, decisive):
    scores, bits = gaussian_scores(seed, 2_500, 1.0)
    positives, negatives = np.sort(scores[bits == 0]), np.sort(scores[bits == 1])
    ranks = fixed_ranks(GDP(DELTA), len(negatives))
    parameter, threshold = smallest_parameter(GDP(DELTA), positives, negatives, ranks, 0.05)

    def p_at(rank, mu):
        false_negatives = int((positives <= negatives[-rank]).sum())
        return p_value(
            GDP(DELTA), mu, rank=rank, negatives=len(negatives), false_negatives=false_negatives,
            positives=len(positives),
        )  # fmt: skip

    assert min(p_at(rank, parameter - 1e-4) / share for rank, share in ranks.items()) < 0.05
    assert min(p_at(rank, parameter + 1e-4) / share for rank, share in ranks.items()) > 0.05
    of_level = [p_at(rank, parameter) / share for rank, share in ranks.items()]
    assert np.argmin(of_level) == decisive
    assert threshold == negatives[-list(ranks)[decisive]]


@pytest.mark.parametrize("claim", [GDP(DELTA), ApproximateDP(DELTA), MechanismDP(DELTA, 0.5, 10, "substitute")])
def test_ranks_are_distinct_and_share_all_of_alpha(claim):
    for negatives in (8, 9, 50, 1_250, 25_000):
        ranks = fixed_ranks(claim, negatives)
        assert sum(ranks.values()) == pytest.approx(1)
        assert all(share > 0 for share in ranks.values())
        assert all(1 <= rank <= negatives for rank in ranks)
    assert len(ranks) == (8 if claim.assumes == "none" else 4)


# Eight ranks from 2 % to 60 %, equal shares. Its maker's quadrature, of about 65 nodes, is off by 1.7e-4.
def test_eight_ranks_at_a_known_point():
    negatives = norm.ppf((np.arange(1, 1251) - 0.5) / 1250)
    ranks = {round(share * 1250): 1 / 8 for share in np.geomspace(0.02, 0.6, 8)}
    mu, _ = smallest_parameter(GDP(DELTA), negatives + 1, negatives, ranks, 0.05)
    assert gdp_epsilon(mu, DELTA) == pytest.approx(3.71325348, abs=3e-4)
    one, _ = smallest_parameter(GDP(DELTA), np.repeat([-1e9, 1e9], [700, 550]), negatives, {125: 1.0}, 0.05)
    assert gdp_epsilon(one, DELTA) == pytest.approx(4.54533011, abs=1e-5)
