r"""From scores and bits to a lower bound on ε. NumPy and SciPy only.

Bit 0 is the world of z, the positive one; bit 1 that of z′, the negative one. A high score speaks for z: a run is
called "z" if its score is above the threshold. The false-positive rate is P(score > threshold | z′), the
false-negative rate P(score ≤ threshold | z).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainccinv

from dpsub import _checks
from dpsub._claims import CLAIMS, Array, Claim
from dpsub._rank_test import smallest_parameter

__all__ = ["LowerBound", "epsilon_lower_bound", "max_certifiable_epsilon"]

METHODS = tuple(CLAIMS)
RULES = ("ranks", "split", "best")
SMALLEST_ALPHA = 1e-12  # floating-point tails are not exact far beyond


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on ε, and what it rests on.

    Attributes:
        epsilon: the bound, at least 0.
        mu: the bound on μ behind it, where the claims are μ-GDP; else None.
        threshold: the score that decided; None if no threshold refuted anything.
        fpr_upper, fnr_upper: confidence bounds on the two error rates at that threshold; None for the rank test,
            which bounds them jointly.
        method: the family of claims that was tested.
        assumes: what has to hold for the bound to mean anything: "none", "gdp" (the privacy curve is that of some
            Gaussian mechanism) or "mechanism".
        valid: True if P(epsilon > truth) ≤ alpha, given what it assumes.
    """

    epsilon: float
    mu: float | None
    threshold: float | None
    fpr_upper: float | None
    fnr_upper: float | None
    method: str
    assumes: Literal["none", "gdp", "mechanism"]
    valid: bool


def epsilon_lower_bound(
    scores: ArrayLike,
    bits: ArrayLike,
    *,
    delta: float,
    method: str = "gdp",
    threshold: str | float = "ranks",
    alpha: float = 0.05,
    simultaneous: bool = False,
) -> LowerBound | list[LowerBound]:
    r"""A lower bound on ε that an audit's scores support with confidence 1 − alpha.

    Args:
        scores: (runs,) or (runs, steps); higher speaks for z. The direction is fixed by theory, never by the scores.
        bits: (runs,) of 0 (trained with z) and 1 (trained with z′); both must occur.
        delta: 0 < δ < 1; the δ at which ε is stated.
        method: "gdp" tests claims of μ-GDP and converts μ to ε. It assumes that the mechanism's privacy curve is that
            of a Gaussian mechanism: exact at q = 1, and close after some tens of steps. Where it is neither, the bound
            can exceed the truth: at q = 0.9 and one step of S1 (σ = 1) it did in 100 of 100 audits, by a quarter.
            "dp" tests claims of (ε, δ)-DP, assumes nothing, and finds less.
        threshold: how the score that separates the worlds is chosen.

            - "ranks": the exact rank test on eight ranks fixed in advance. Valid.
            - "split": the best threshold of the even runs, judged on the odd runs. Valid.
            - a number: fixed before looking at the scores, Clopper–Pearson at alpha/2 for each rate. Valid.
            - "best": the papers' rule, the best of all thresholds on the runs it is judged on. Not valid: for
              comparison only.
        alpha: 1e-12 < alpha < 1; the probability with which the bound may exceed the truth.
        simultaneous: for scores of several steps, share alpha among them, so that all bounds hold together and their
            maximum may be reported.

    Returns:
        One `LowerBound` for scores (runs,), a list with one a step for scores (runs, steps).

    Raises:
        ValueError: if scores are empty, NaN or of another length than bits, if bits are not 0 and 1 or only one of
            the two occurs, or if an argument is out of range.

    Source: *Beyond Membership*, section 5, equations 5–6 ("gdp"); Kairouz, Oh and Viswanath (2015) ("dp"). The rank
    test and what it costs are explained in the book.

    >>> rng = np.random.default_rng(0)
    >>> bits = rng.integers(0, 2, 2_500)
    >>> scores = rng.normal(size=2_500) + (bits == 0)  # μ = 1, so ε = 4.38 at δ = 1e-5
    >>> bound = epsilon_lower_bound(scores, bits, delta=1e-5)
    >>> bound.valid, 3.0 < bound.epsilon < 4.38
    (True, True)
    """
    columns, in_z = _read(scores, bits)
    delta = _checks.probability("delta", delta)
    alpha = _checks.real("alpha", alpha, above=SMALLEST_ALPHA, below=1)
    claim = CLAIMS[_checks.choice("method", method, METHODS)](delta)
    rule = _rule(threshold)
    level = alpha / columns.shape[1] if simultaneous else alpha
    bounds = [_bound(column, in_z, claim, method, rule, level) for column in columns.T]
    return bounds[0] if np.ndim(scores) == 1 else bounds


def max_certifiable_epsilon(
    runs: int, *, delta: float, method: str = "gdp", threshold: str | float = "ranks", alpha: float = 0.05
) -> float:
    """The bound of a perfect attack: what so many runs, half in each world, can show at most.

    Args:
        runs: ≥ 4; runs in all.
        delta, method, threshold, alpha: as in `epsilon_lower_bound`.

    >>> round(max_certifiable_epsilon(256, delta=1e-5, threshold="best"), 3)  # 128 runs a world
    22.835
    """
    runs = _checks.whole("runs", runs, at_least=4)
    bits = np.arange(runs) // 2 % 2
    perfect = np.where(bits == 0, np.inf, -np.inf)
    bound = epsilon_lower_bound(perfect, bits, delta=delta, method=method, threshold=threshold, alpha=alpha)
    assert isinstance(bound, LowerBound)
    return bound.epsilon


def clopper_pearson_upper(count: ArrayLike, trials: int, alpha: float) -> Array:
    """The upper end of the one-sided exact confidence interval for a proportion, at confidence 1 − alpha."""
    count = np.asarray(count, dtype=np.float64)
    missed = np.maximum(trials - count, 1)
    return np.where(count < trials, betainccinv(count + 1, missed, alpha), 1.0)


def _read(scores: ArrayLike, bits: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    _checks.no_mask("scores", scores)
    _checks.no_mask("bits", bits)
    columns = np.asarray(scores)
    if columns.ndim not in (1, 2) or columns.size == 0:
        raise ValueError(f"scores must have shape (runs,) or (runs, steps), none of them 0, got {columns.shape}")
    if not np.issubdtype(columns.dtype, np.number) or np.iscomplexobj(columns):
        raise ValueError(f"scores must be real numbers, got dtype {columns.dtype}")
    if np.isnan(columns).any():
        raise ValueError(f"scores must not be NaN, got {int(np.isnan(columns).sum())} of them: look for diverged runs")
    worlds = np.asarray(bits)
    if worlds.shape != columns.shape[:1]:
        raise ValueError(f"bits must have shape {columns.shape[:1]}, one for each run, got {worlds.shape}")
    if not np.isin(worlds, (0, 1)).all():
        raise ValueError(f"bits must be 0 (trained with z) or 1 (with z_prime), got {np.unique(worlds)[:5].tolist()}")
    if len(np.unique(worlds)) < 2:
        raise ValueError(f"bits must hold runs of both worlds, got {worlds[0]} only: run more, or check the coin")
    return columns.reshape(len(columns), -1).astype(np.float64), worlds == 0


def _rule(threshold: str | float) -> str | float:
    if threshold in RULES:
        return threshold
    if isinstance(threshold, str):
        raise ValueError(f"threshold must be one of 'ranks', 'split', 'best' or a number, got {threshold!r}")
    return _checks.real("threshold", threshold)


def _bound(
    scores: Array, in_z: NDArray[np.bool_], claim: Claim, method: str, rule: str | float, alpha: float
) -> LowerBound:
    cut: float | None
    if rule == "ranks":
        parameter, cut = smallest_parameter(claim, np.sort(scores[in_z]), np.sort(scores[~in_z]), alpha)
        return _lower_bound(claim, method, parameter, cut, None, None, valid=True)
    if rule == "split":
        choosing, judging = (_half(scores, in_z, start) for start in (0, 1))
        cut = _best_threshold(*choosing, claim, alpha)
        positives, negatives = judging
    else:
        positives, negatives = np.sort(scores[in_z]), np.sort(scores[~in_z])
        cut = _best_threshold(positives, negatives, claim, alpha) if rule == "best" else float(rule)
    fpr, fnr = (rates[0] for rates in _rates_upper(positives, negatives, np.array([cut]), alpha))
    parameter = float(claim.parameter(fpr, fnr))
    return _lower_bound(claim, method, parameter, cut, float(fpr), float(fnr), valid=rule != "best")


def _lower_bound(
    claim: Claim, method: str, parameter: float, cut: float | None, fpr: float | None, fnr: float | None, *, valid: bool
) -> LowerBound:
    return LowerBound(
        epsilon=claim.epsilon(parameter),
        mu=parameter if claim.assumes == "gdp" else None,
        threshold=cut,
        fpr_upper=fpr,
        fnr_upper=fnr,
        method=method,
        assumes=claim.assumes,
        valid=valid,
    )


def _half(scores: Array, in_z: NDArray[np.bool_], start: int) -> tuple[Array, Array]:
    scores, in_z = scores[start::2], in_z[start::2]
    if len(np.unique(in_z)) < 2:
        raise ValueError(
            'threshold "split" needs runs of both worlds among the even and among the odd runs, got '
            f'{len(scores)} runs in a half: run more, or use the default, "ranks"'
        )
    return np.sort(scores[in_z]), np.sort(scores[~in_z])


def _rates_upper(positives: Array, negatives: Array, cuts: Array, alpha: float) -> tuple[Array, Array]:
    """Clopper–Pearson bounds on FPR and FNR at each cut, at alpha/2 each; both samples sorted."""
    false_positives = len(negatives) - np.searchsorted(negatives, cuts, side="right")
    false_negatives = np.searchsorted(positives, cuts, side="right")
    return (
        clopper_pearson_upper(false_positives, len(negatives), alpha / 2),
        clopper_pearson_upper(false_negatives, len(positives), alpha / 2),
    )


def _best_threshold(positives: Array, negatives: Array, claim: Claim, alpha: float) -> float:
    # A best threshold is a score of the negative world: from there up to the next one only false negatives are added.
    cuts = np.unique(negatives)
    return float(cuts[np.argmax(claim.parameter(*_rates_upper(positives, negatives, cuts, alpha)))])
