r"""The audit game: two worlds with a known true ε, a threshold to choose, and the bounds that follow.

Scores are N(0, 1) with z′ and N(μ, 1) with z, as in the strongest attack on a μ-GDP mechanism. `page` is the game on a
web page without a kernel, `widgets.audit_game` the game in a notebook.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from dpsub._core import checks
from dpsub._core.random_streams import stream
from dpsub.accounting.gaussian import gdp_epsilon
from dpsub.estimators import LowerBound, epsilon_lower_bound
from dpsub.estimators.claims import GDP
from dpsub.estimators.numerics import Array, clopper_pearson_upper, crossing
from dpsub.estimators.rank_tests import fixed_ranks, p_value
from dpsub.figures.pages import Page, filled

__all__ = ["MU", "RUNS", "Lies", "Round", "count_lies", "first_lie", "page", "play"]

DELTA, ALPHA = 1e-5, 0.05
RUNS = (125, 1_250, 12_500)
"""The numbers of runs in each world that the game offers."""
MU = (0.5, 1.0, 2.0)
"""The distances between the worlds that the game offers."""
# In how many of 100 audits the best threshold's bound exceeds the truth, for each μ, from 400 audits or more.
LIES = {125: (4, 3, 2), 1_250: (9, 9, 9), 12_500: (14, 17, 22)}
MOST_RUNS = 10**8
TEMPLATE = "game.html"


class Round(NamedTuple):
    """One audit: the scores in each world, and the true ε, which the auditor does not know."""

    with_z: Array
    with_z_prime: Array
    truth: float
    delta: float = DELTA

    def rates(self, threshold: float) -> tuple[float, float]:
        """The observed FPR and FNR at a threshold."""
        threshold = checks.real("threshold", threshold)
        return float((self.with_z_prime > threshold).mean()), float((self.with_z <= threshold).mean())

    def bound(self, threshold: str | float) -> LowerBound:
        """The lower bound by method "gdp"."""
        scores = np.concatenate((self.with_z, self.with_z_prime))
        bits = np.repeat([0, 1], [len(self.with_z), len(self.with_z_prime)])
        found = epsilon_lower_bound(scores, bits, delta=self.delta, threshold=threshold, alpha=ALPHA)
        assert isinstance(found, LowerBound)
        return found


class Lies(NamedTuple):
    """How many of `games` audits had a bound above the truth, for two threshold rules."""

    best: int
    ranks: int
    games: int


def play(*, runs: int, mu: float, seed: int = 0, delta: float = DELTA) -> Round:
    """Simulate one audit.

    Args:
        runs: from 1 to 1e8; models in each world.
        mu: ≥ 0; the distance between the worlds.
        seed: each seed gives another audit.
        delta: 0 < δ < 1; the δ of the truth and of the bounds.
    """
    runs, mu = checks.whole("runs", runs, at_most=MOST_RUNS), checks.real("mu", mu, at_least=0)
    delta = checks.probability("delta", delta)
    rng = stream(checks.whole("seed", seed, at_least=0), "game")
    return Round(rng.normal(mu, 1, runs), rng.normal(0, 1, runs), gdp_epsilon(mu, delta), delta)


def first_lie(*, runs: int, mu: float) -> int:
    """The first seed whose audit is a warning: the best threshold's bound is above the truth, the rank test's is not.

    Args:
        runs: from 100 to 1e8; models in each world.
        mu: 0.1 to 5; the distance between the worlds.

    >>> seed = first_lie(runs=1_250, mu=1.0)
    >>> audit = play(runs=1_250, mu=1.0, seed=seed)
    >>> audit.bound("best").epsilon > audit.truth > audit.bound("ranks").epsilon
    True
    """
    runs = checks.whole("runs", runs, at_least=100, at_most=MOST_RUNS)
    mu = checks.real("mu", mu, at_least=0.1, at_most=5)
    for seed in count():
        audit = play(runs=runs, mu=mu, seed=seed)
        if audit.bound("best").epsilon > audit.truth > audit.bound("ranks").epsilon:
            break
    return seed


def count_lies(*, runs: int, mu: float, games: int = 100, seed: int = 0) -> Lies:
    """Simulate audits with seeds from `seed` on, and count how often each rule's bound exceeds the truth."""
    wrong = {"best": 0, "ranks": 0}
    games, seed = checks.whole("games", games), checks.whole("seed", seed, at_least=0)
    for game in range(games):
        audit = play(runs=runs, mu=mu, seed=seed + game)
        for rule in wrong:
            wrong[rule] += audit.bound(rule).epsilon > audit.truth
    return Lies(**wrong, games=games)


@lru_cache(maxsize=1)
def tables() -> dict[str, Any]:
    """Tables from which the page interpolates bounds linearly.

    For each number of runs: lies in 100 audits for each truth; counts of errors; the normal score of the
    Clopper–Pearson bound at each count; and for each rank the μ that the rank test refutes at each count of false
    negatives. None of them depends on δ.
    """
    claim = GDP(DELTA)

    def refuted(rank: int, share: float, runs: int, count: int) -> float:
        def excess(mu: float) -> float:
            p = p_value(claim, mu, rank=rank, negatives=runs, false_negatives=count, positives=runs)
            return p - share * ALPHA

        return crossing(excess, 0.0, claim.most) if excess(0.0) < 0 else 0.0

    answer: dict[str, Any] = {"mus": list(MU), "runs": []}
    for runs in RUNS:
        few = np.geomspace(1, runs / 2, 40).round()
        counts = np.unique(np.concatenate((np.arange(min(12, runs)), few, runs - few, [runs]))).astype(int)
        upper = clopper_pearson_upper(counts, runs, ALPHA / 2)
        ranks = fixed_ranks(claim, runs).items()
        answer["runs"].append({
            "runs": runs,
            "lies": LIES[runs],
            "counts": counts.tolist(),
            "score": np.minimum(ndtri(upper), 9).round(5).tolist(),
            "ranks": [rank for rank, _ in ranks],
            "refuted": [[round(refuted(*each, runs, count), 5) for count in counts.tolist()] for each in ranks],
        })  # fmt: skip
    return answer


def page() -> Page:
    """The game as HTML for a web page. It needs no kernel and loads nothing."""
    return filled(TEMPLATE, tables=tables())
