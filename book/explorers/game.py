"""The audit game: two worlds with a known ε, and a threshold to choose.

Scores are N(0, 1) with z′ and N(μ, 1) with z, as in the strongest attack on
a μ-GDP mechanism. `page` is the game on a web page without a kernel,
`widgets.audit_game` the game in a notebook.
"""

from functools import lru_cache
from itertools import count
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import binomtest

from book.explorers.pages import filled
from book.explorers.run_planning import largest_refuted
from dpsub.accounting import gdp_epsilon
from dpsub.estimators import LowerBound, epsilon_lower_bound
from dpsub.estimators.claims import GDP
from dpsub.estimators.rank_tests import fixed_ranks
from dpsub.figures import PALETTES

DELTA, ALPHA = 1e-5, 0.05
RUNS = (125, 1_250, 12_500)  # in each world, that the game offers
MUS = (0.5, 1.0, 2.0)  # the distances between the worlds that it offers
# In how many of 100 audits the best threshold's bound exceeds the truth,
# for each μ, from 400 audits or more.
TOO_HIGH = {125: (4, 3, 2), 1_250: (9, 9, 9), 12_500: (14, 17, 22)}


class Round(NamedTuple):
    """One audit: the scores in each world, and the true ε.

    The auditor does not know the truth.
    """

    with_z: np.ndarray
    with_z_prime: np.ndarray
    truth: float
    delta: float = DELTA

    def rates(self, threshold: float) -> tuple[float, float]:
        """The observed FPR and FNR at a threshold."""
        fpr = (self.with_z_prime > threshold).mean()
        fnr = (self.with_z <= threshold).mean()
        return float(fpr), float(fnr)

    def bound(self, rule: str | float) -> LowerBound:
        """The lower bound by claim "gdp"."""
        scores = np.concatenate((self.with_z, self.with_z_prime))
        worlds = [len(self.with_z), len(self.with_z_prime)]
        return epsilon_lower_bound(scores, np.repeat([0, 1], worlds), delta=self.delta, rule=rule, alpha=ALPHA)


def play(*, runs, mu, seed=0, delta=DELTA):
    """Simulate one audit.

    Args:
        runs: models in each world.
        mu: the distance between the worlds.
        seed: each seed gives another audit.
        delta: the δ of the truth and of the bounds.
    """
    own = np.random.SeedSequence(seed, spawn_key=(5, 0))
    rng = np.random.default_rng(own)
    with_z, with_z_prime = rng.normal(mu, 1, runs), rng.normal(0, 1, runs)
    return Round(with_z, with_z_prime, gdp_epsilon(mu, delta), delta)


def first_warning(*, runs, mu):
    """The first seed whose audit is a warning.

    The best threshold's bound is above the truth, the rank test's is not.
    """
    for seed in count():
        audit = play(runs=runs, mu=mu, seed=seed)
        best, ranks = (audit.bound(rule).epsilon for rule in ("best", "ranks"))
        if best > audit.truth > ranks:
            return seed


def count_too_high(*, runs, mu, games=100, seed=0):
    """How often each rule's bound exceeds the truth, of so many audits.

    Their seeds are whole numbers from `seed` on.
    """
    wrong = {"best": 0, "ranks": 0}
    for game in range(seed, seed + games):
        audit = play(runs=runs, mu=mu, seed=game)
        for rule in wrong:
            wrong[rule] += audit.bound(rule).epsilon > audit.truth
    return wrong


@lru_cache(maxsize=1)
def tables():
    """Tables from which the page interpolates bounds linearly.

    For each number of runs: how many bounds of 100 are too high, for each
    truth; counts of errors; the normal score of the Clopper–Pearson bound
    at each count; and for each rank the μ that the rank test refutes at
    each count of false negatives. None of them depends on δ.
    """
    claim = GDP(DELTA)
    rows = []
    for runs in RUNS:
        few = np.geomspace(1, runs / 2, 40).round()
        small = np.arange(min(12, runs))
        counts = np.concatenate((small, few, runs - few, [runs]))
        counts = np.unique(counts).astype(int)
        upper = [
            binomtest(one, runs, alternative="less").proportion_ci(1 - ALPHA / 2, "exact").high
            for one in counts.tolist()
        ]
        ranks = fixed_ranks(claim, runs)
        refuted = []
        for rank, share in ranks.items():
            _, largest = largest_refuted(claim, rank, share * ALPHA, runs)
            refuted.append([round(largest(one), 5) for one in counts.tolist()])
        rows.append(
            {
                "runs": runs,
                "lies": TOO_HIGH[runs],
                "counts": counts.tolist(),
                "score": np.minimum(ndtri(upper), 9).round(5).tolist(),
                "ranks": list(ranks),
                "refuted": refuted,
            }
        )
    return {"mus": list(MUS), "runs": rows}


def page():
    """The game as HTML for a web page.

    It needs no kernel and loads nothing.
    """
    return filled("game.html", tables=tables())


def draw(left, right, audit, threshold):
    """The scores of both worlds with a threshold; bounds and the truth."""
    artists = {}
    common = {"bins": np.linspace(-4, 6, 51), "density": True}
    of_z, of_z_prime = PALETTES["world"]
    blue = PALETTES["valid"][0]
    artists["z_prime"] = left.hist(audit.with_z_prime, color=of_z_prime, label="world z′", **common)
    artists["z"] = left.hist(audit.with_z, histtype="step", color=of_z, label="world z", **common)
    artists["threshold"] = left.axvline(threshold, color=blue)
    fpr, fnr = audit.rates(threshold)
    left.set_xlabel(f"score; FPR {fpr:.3f}, FNR {fnr:.3f}")
    left.set_yticks([])
    left.legend(loc="upper right")
    bounds = {
        "your threshold": audit.bound(threshold),
        "best threshold": audit.bound("best"),
        "rank test": audit.bound("ranks"),
    }
    values = [bound.epsilon for bound in bounds.values()]
    artists["bars"] = right.barh(
        range(len(bounds)),
        values,
        height=0.6,
        color=[blue if one.valid else "white" for one in bounds.values()],
        edgecolor="black",
        linewidth=0.8,
    )
    told = [f"{value:.2f}" for value in values]
    right.bar_label(artists["bars"], told, padding=3)
    names = [f"{name}\n{'valid' if bound.valid else 'not valid'}" for name, bound in bounds.items()]
    right.set_yticks(range(len(bounds)), names)
    artists["truth"] = right.axvline(audit.truth, color="black", linestyle="--", label="truth")
    right.set_xlim(0, 1.25 * max(audit.truth, *values))
    right.invert_yaxis()
    right.set_xlabel(r"$\varepsilon$ (dashed: the truth)")
    return artists
