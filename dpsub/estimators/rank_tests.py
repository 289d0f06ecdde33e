r"""The exact rank test of a claim, at thresholds fixed before looking at the scores, for one fold of runs or several.

The threshold is the k-th largest score of the negative world. Whatever the law of the scores, its false-positive rate
has the law Beta(k, n0 - k + 1), or is stochastically smaller if scores are tied. Under the claim f, the number of false
negatives among n1 runs is stochastically at least Binomial(n1, f(FPR)). So

.. math:: p = E_{U \sim \mathrm{Beta}(k, n_0-k+1)}\big[\mathrm{BinomialCDF}(\mathrm{FN};\, n_1, f(U))\big]

is a p-value of the claim, without nuisance parameters. It decreases with f, so it increases with the parameter.

Each fold of runs may have a scorer of its own, which was learned from the folds before it, as
`dpsub.distinguish(protocol="folds")` does. In fold j the threshold is the k_j-th largest score of its negative world,
and k_j depends on the numbers of runs alone. Let FN_j be the false negatives there, and let M_j be
Binomial(n1_j, f(U_j)) with U_j ~ Beta(k_j, n0_j - k_j + 1). Given the bits and all earlier folds, fold j's scorer is
fixed, so that FN_j is stochastically at least M_j, whose law does not depend on the earlier folds. So the sum of all
FN_j is stochastically at least the sum of independent M_j, and

.. math:: p = P\Big[\sum_j M_j \le \sum_j \mathrm{FN}_j\Big]

is a p-value of the claim, too.

Cross-fitting, where each fold is scored by what was learned from all others, does not allow this: its folds depend on
each other both ways. Its p-values may only be combined by rules that hold under any dependence, such as K times the
least of K.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dpsub.estimators.claims import ApproximateDP, Claim
from dpsub.estimators.numerics import Array, Tested, crossing, false_negatives_law, law_of_sum, probability_above
from dpsub.estimators.scores_and_marks import Marks
from dpsub.estimators.threshold_rules import Decision, ThresholdRule, halves, sorted_worlds

Ranks = tuple[int, ...]  # one for each fold
MOST_RUNS = 10**9  # with more, the integral loses digits
LEAST_P = 1e-16  # below every share of alpha
LEAST_RUNS = 8  # with z′, so that the ranks differ
USUAL_FOLDS = 5  # of a ceiling, for scores that are not known
# Ranks as shares of the negative world's runs, with each rank's share of alpha. If the trade-off curve is like a
# Gaussian mechanism's, all middle ranks refute about the same, and sharing alpha costs less among two than among eight.
# The outer ranks are for attacks that are certain of few models, or of nearly all.
MIDDLING = {0.12: 0.48, 0.35: 0.48, 0.03: 0.02, 0.6: 0.02}
# Under (ε, δ)-DP, the pairs of rates that refute most are those with one small rate.
SMALLEST, LARGEST_SHARE, PER_END = 3, 0.3, 4


def fixed_ranks(claim: Claim, negatives: int) -> dict[int, float]:
    """Ranks among the negative world's scores, counted from the largest, and each one's share of alpha.

    Claims derived from `ApproximateDP` have ranks near the ends, all others at middling shares.
    """
    return near_ends(negatives) if isinstance(claim, ApproximateDP) else at_shares(MIDDLING, negatives)


def near_ends(negatives: int) -> dict[int, float]:
    """Eight ranks from the third score to 30 % of all from either end, with equal shares."""
    largest = LARGEST_SHARE * negatives
    near = np.geomspace(min(SMALLEST, largest), largest, PER_END).round().clip(1).astype(int)
    ends = np.unique(np.concatenate((near, negatives + 1 - near))).tolist()
    return dict.fromkeys(ends, 1 / len(ends))


def at_shares(shares: Mapping[float, float], negatives: int) -> dict[int, float]:
    """The ranks at these shares of the negative world's runs, and each one's share of alpha."""
    ranks: dict[int, float] = {}
    for share, weight in shares.items():
        rank = max(1, round(share * negatives))
        ranks[rank] = ranks.get(rank, 0.0) + weight
    return ranks


def in_folds(ranks: Mapping[int, float], negatives: Sequence[int]) -> dict[Ranks, float]:
    """For each rank among all runs with z′, its place in every fold in proportion, and its share of alpha.

    Args:
        ranks: counted from the largest score of all folds together, with their shares of alpha.
        negatives: the number of runs with z′ in each fold, ≥ 1.
    """
    total = sum(negatives)
    shares: dict[Ranks, float] = {}
    for rank, share in ranks.items():
        places = tuple(min(max(1, round(rank * count / total)), count) for count in negatives)
        shares[places] = shares.get(places, 0.0) + share
    return shares


def ranks_of_folds(claim: Claim, negatives: Sequence[int]) -> dict[Ranks, float]:
    """The fixed ranks of a claim in each fold."""
    return in_folds(fixed_ranks(claim, sum(negatives)), negatives)


def p_value(
    claim: Tested,
    parameter: float,
    *,
    ranks: Ranks,
    negatives: Sequence[int],
    positives: Sequence[int],
    false_negatives: int,
) -> float:
    """An upper bound on the probability of at most this many false negatives in all folds if the claim holds."""
    if false_negatives >= sum(positives):
        return 1.0
    if len(ranks) == 1:  # Binomial(n, f) ≤ m as often as Beta(m + 1, n - m) > f: a single integral, and an exact one.
        rate = np.array([float(ranks[0])]), np.array([negatives[0] - ranks[0] + 1.0])
        count = np.array([false_negatives + 1.0]), np.array([float(positives[0] - false_negatives)])
        return float(probability_above(claim, parameter, rate, count)[0])
    folds = zip(ranks, negatives, positives, strict=True)
    start, law = law_of_sum(false_negatives_law(claim, parameter, *fold) for fold in folds)
    return min(float(law[: max(false_negatives - start + 1, 0)].sum()), 1.0)


def largest_refuted(
    claim: Tested,
    missed: dict[Ranks, int],
    shares: dict[Ranks, float],
    negatives: Sequence[int],
    positives: Sequence[int],
    alpha: float,
) -> tuple[float, Ranks | None]:
    """The largest parameter refuted by the false negatives of all folds at any of the ranks, and these ranks."""
    best, decided = 0.0, None
    for ranks, share in shares.items():
        counts = {"ranks": ranks, "negatives": negatives, "positives": positives, "false_negatives": missed[ranks]}

        # p increases with the parameter. A claim is refuted where p < share·alpha: up to the root of this excess. A
        # rank that does not refute the best parameter so far cannot raise it, and costs one integral.
        @cache
        def excess(parameter: float, counts: dict[str, Any] = counts, level: float = share * alpha) -> float:
            return _probit(p_value(claim, parameter, **counts)) - _probit(level)

        if excess(best) < 0:
            best, decided = crossing(excess, best, claim.most), ranks
    return best, decided


def _probit(p: float) -> float:
    """Where a Gaussian's tail is p: nearly a straight line in the parameter, so its root is found in few steps."""
    return float(ndtri(min(max(p, LEAST_P), 1 - LEAST_P)))


def refuted_by_folds(
    claim: Tested, worlds: Sequence[tuple[Array, Array]], shares: dict[Ranks, float], alpha: float
) -> Decision:
    """What the folds' scores refute at these ranks.

    Args:
        claim: the family of claims.
        worlds: for each fold the scores of z and of z′, sorted.
        shares: ranks in each fold, and their shares of alpha.
        alpha: the probability with which the parameter may exceed the truth.
    """
    missed = {
        ranks: sum(
            int(np.searchsorted(of_z, of_z_prime[-rank], side="right"))
            for rank, (of_z, of_z_prime) in zip(ranks, worlds, strict=True)
        )
        for ranks in shares
    }
    positives, negatives = ([len(world[i]) for world in worlds] for i in (0, 1))
    parameter, decided = largest_refuted(claim, missed, shares, negatives, positives, alpha)
    return Decision(parameter, {"threshold": float(worlds[0][1][-decided[0]])} if decided and len(worlds) == 1 else {})


@dataclass(frozen=True)
class ByRanks(ThresholdRule):
    """The exact rank test at ranks fixed in advance."""

    name: ClassVar[str] = "ranks"
    valid: ClassVar[bool] = True

    def decide(self, scores: Array, in_z: NDArray[np.bool_], claim: Claim, alpha: float) -> Decision:
        worlds = self.worlds(scores, in_z)
        negatives = [len(of_z_prime) for _, of_z_prime in worlds]
        if self.too_few(0, sum(negatives)):
            return Decision(0.0)
        return refuted_by_folds(claim, worlds, ranks_of_folds(claim, negatives), alpha)

    def worlds(self, scores: Array, in_z: NDArray[np.bool_]) -> list[tuple[Array, Array]]:
        """For each fold the scores of z and of z′, sorted."""
        return [sorted_worlds(scores, in_z)]

    def ceiling(self, runs: int, claim: Claim, alpha: float) -> float:
        if runs > MOST_RUNS:
            raise ValueError(f"runs must be at most {MOST_RUNS:g} for rule 'ranks', got {runs}: give 'split'")
        positives, negatives = zip(*map(halves, self.sizes(runs)), strict=True)
        if self.too_few(0, sum(negatives)):
            return 0.0
        shares = ranks_of_folds(claim, negatives)
        return largest_refuted(claim, dict.fromkeys(shares, 0), shares, negatives, positives, alpha)[0]

    def sizes(self, runs: int) -> list[int]:
        """The number of runs in each fold."""
        return [runs]

    def too_few(self, positives: int, negatives: int) -> str:
        return "" if negatives >= LEAST_RUNS else f"the rank test needs {LEAST_RUNS} runs with z_prime, got {negatives}"


@dataclass(frozen=True, eq=False)
class ByFolds(ByRanks):
    """The exact rank test of each fold at ranks fixed in advance, pooled.

    Attributes:
        numbers: (runs,) each run's fold; None until the rule is fitted to scores.
    """

    numbers: NDArray[np.int64] | None = None
    name: ClassVar[str] = "folds"
    for_folds: ClassVar[bool] = True

    def fitted(self, marks: Marks) -> ByFolds:
        if marks.folds is None:
            raise ValueError(
                "folds must be given for rule 'folds', one whole number for each run, or be the coordinate 'fold' "
                "of scores"
            )
        return ByFolds(marks.folds)

    def worlds(self, scores: Array, in_z: NDArray[np.bool_]) -> list[tuple[Array, Array]]:
        assert self.numbers is not None
        folds = np.unique(self.numbers)
        for fold in folds:
            of_z = in_z[self.numbers == fold]
            if len(np.unique(of_z)) < 2:
                raise ValueError(
                    f"folds must each hold runs of both worlds, got one world only in fold {fold}, of {len(of_z)} "
                    "runs: give fewer folds"
                )
        return [sorted_worlds(scores[self.numbers == fold], in_z[self.numbers == fold]) for fold in folds]

    def sizes(self, runs: int) -> list[int]:
        numbers = np.arange(runs) % USUAL_FOLDS if self.numbers is None else self.numbers
        return [int(size) for size in np.unique(numbers, return_counts=True)[1]]
