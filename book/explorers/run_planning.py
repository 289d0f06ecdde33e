"""The numbers of the page that plans audits.

That is, what so many runs can show at most, and what an ideal attack shows.
``python -m book.explorers.run_planning`` computes them again,
which takes some minutes. The tests compare a sample of them with
`estimators.max_certifiable_epsilon` and `estimators.runs_needed`.
"""

import json
import math
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from scipy.special import ndtr, ndtri
from tqdm.auto import tqdm

from dpsub.accounting import gdp_epsilon, gdp_mu
from dpsub.estimators import max_certifiable_epsilon
from dpsub.estimators.claims import GDP, ApproximateDP
from dpsub.estimators.numerics import crossing
from dpsub.estimators.rank_tests import fixed_ranks, p_value

FILE = Path(__file__).with_name("assets") / "run_planning.json"
# Claims of μ-GDP do not depend on it; claims of (ε, δ)-DP hardly do.
DELTA = 1e-5
POWER = 0.8
CLAIMS = ("gdp", "dp")
ALPHAS = (0.1, 0.05, 0.01)
# 50 to 500,000, both worlds together.
RUNS = tuple(2 * round(25 * 10 ** (k / 4)) for k in range(17))
MUS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6)
AUDITS = 4_000


def stored():
    """The stored numbers. A bound by "gdp" is a μ, one by "dp" an ε."""
    return json.loads(FILE.read_text())


def of_ideal_attack(epsilon, *, delta):
    """For each of RUNS the bound by claims of μ-GDP that an ideal attack of this ε reaches in 80 % of audits."""
    rows = stored()["rows"][len(RUNS) * ALPHAS.index(0.05) :][: len(RUNS)]
    strength = np.log(gdp_mu(epsilon, delta))
    return [gdp_epsilon(np.interp(strength, np.log(MUS), one["likely"]), delta) for one in rows]


def ceiling(claim, alpha, runs):
    """`max_certifiable_epsilon`, for claim "gdp" as a μ."""
    epsilon = max_certifiable_epsilon(runs, delta=DELTA, claim=claim, alpha=alpha)
    return gdp_mu(epsilon, DELTA) if claim == "gdp" else epsilon


def likely_bounds(claim, alpha, runs):
    """For each μ, the bound that the rank test reaches in 80 % of audits.

    Half of the runs are in each world.
    """
    tested = GDP(DELTA) if claim == "gdp" else ApproximateDP(DELTA)
    half = runs // 2
    ranks = sorted(fixed_ranks(tested, half).items())
    tests = [refuted(tested, rank, share * alpha, half) for rank, share in ranks]
    return [float(np.quantile(simulated(ranks, tests, half, mu), 1 - POWER)) for mu in MUS]


def largest_refuted(claim, rank, alpha, half):
    """What a rank's test refutes at a count of false negatives.

    Returns:
        A function from a parameter and a count to what the p-value exceeds
        alpha by, and one from a count to the largest parameter refuted.
    """

    def excess(parameter, count):
        p = p_value(claim, parameter, ranks=(rank,), negatives=[half], false_negatives=count, positives=[half])
        return p - alpha

    def largest(count):
        if excess(0.0, count) >= 0:
            return 0.0
        return crossing(lambda parameter: excess(parameter, count), 0.0, claim.most)

    return excess, largest


def refuted(claim, rank, alpha, half):
    """Normal scores of counts of false negatives, and what is refuted.

    That is the largest parameter that the rank's test refutes at each.
    """
    excess, largest = largest_refuted(claim, rank, alpha, half)
    # The most with which anything is refuted: the curve has a kink there.
    most, too_many = -1, half
    while too_many > most + 1:
        between = (most + too_many) // 2
        if excess(0.0, between) < 0:
            most = between
        else:
            too_many = between
    even = (half * ndtr(np.linspace(-4, 3, 29))).round()
    few = np.arange(4)
    ends = [max(most, 0), too_many, half]
    counts = np.concatenate((few, even[even < most], ends))
    counts = np.unique(counts).astype(int)
    return normal_score(counts, half), np.array([largest(count) for count in counts.tolist()])


def normal_score(counts, half):
    """In which what is refuted is nearly linear."""
    return ndtri((counts + 0.5) / (half + 1))


def simulated(ranks, tests, half, mu):
    """The bounds of simulated audits of an attack that is exactly μ-GDP."""
    own = np.random.SeedSequence(0, spawn_key=(7, 0))
    rng = np.random.default_rng(own)
    gaps = np.diff([0, *(rank for rank, _ in ranks), half + 1])
    parts = rng.gamma(gaps, size=(AUDITS, len(gaps))).cumsum(axis=1)
    fnr = GDP(DELTA).tradeoff(parts[:, :-1] / parts[:, -1:], mu)
    missed, remaining = np.full(AUDITS, half), np.ones(AUDITS)
    best = np.zeros(AUDITS)
    for (scores, largest), rate in zip(tests, fnr.T, strict=True):
        below = np.zeros(AUDITS)
        np.divide(rate, remaining, out=below, where=remaining > 0)
        missed, remaining = rng.binomial(missed, below.clip(max=1)), rate
        shown = np.interp(normal_score(missed, half), scores, largest)
        best = np.maximum(best, shown)
    return best


def row(setting):
    """The stored numbers of one claim, α and number of runs."""

    def down(value):
        return math.floor(1e4 * value) / 1e4

    likely = [down(bound) for bound in likely_bounds(*setting)]
    return {"ceiling": down(ceiling(*setting)), "likely": likely}


def compute():
    settings = list(product(CLAIMS, ALPHAS, RUNS))
    with ProcessPoolExecutor() as pool:
        rows = list(tqdm(pool.map(row, settings), total=len(settings)))
    axes = {"methods": CLAIMS, "alphas": ALPHAS, "runs": RUNS, "mus": MUS}
    return axes | {"rows": rows}


if __name__ == "__main__":
    FILE.write_text(json.dumps(compute(), separators=(",", ":")) + "\n")
