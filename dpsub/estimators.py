r"""From scores and bits to a lower bound on ε. NumPy and SciPy only.

Bit 0 is the world of z, the positive one; bit 1 that of z′, the negative one. A high score speaks for z: a run is
called "z" if its score is above the threshold. The false-positive rate is P(score > threshold | z′), the
false-negative rate P(score ≤ threshold | z).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub import _checks
from dpsub._claims import GDP, LEAST_NOISE, ApproximateDP, Array, Claim, MechanismDP
from dpsub._one_threshold import ClopperPearson, Errors, Katz, Posterior, ThresholdTest, rates_upper
from dpsub._rank_test import LEAST_RUNS, fixed_ranks, smallest_parameter
from dpsub._training import MOST_STEPS, Counts

__all__ = ["LowerBound", "OverRepeats", "epsilon_lower_bound", "max_certifiable_epsilon", "over_repeats"]

METHODS = ("gdp", "dp", "pld", "bayes_gdp", "bayes_dp", "katz")
RULES = ("ranks", "split", "best")
EXACT = ("gdp", "dp", "pld")  # whose bounds can hold with probability 1 - alpha; the rank test goes with these
SMALLEST_ALPHA = 1e-12  # floating-point tails are not exact far beyond


class Mechanism(TypedDict, total=False):
    """What method "pld" has to know of the training."""

    sample_rate: float
    steps: int | Counts
    adjacency: str


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on ε, and what it rests on.

    Attributes:
        epsilon: the bound, at least 0.
        mu: the bound on μ behind it, where the claims are μ-GDP; else None.
        threshold: the score that decided; None if no threshold refuted anything.
        fpr_upper, fnr_upper: Clopper–Pearson bounds on the two error rates at that threshold, at alpha/2 each; None
            for the rank test, which bounds them jointly.
        method: the family of claims that was tested.
        assumes: what has to hold for the bound to mean anything: "none", "gdp" (the privacy curve is that of some
            Gaussian mechanism) or "mechanism" (it is DP-SGD's at the sample rate and steps given).
        valid: True if P(epsilon > truth) ≤ alpha, given what it assumes.
        noise_multiplier: the largest noise multiplier that was not refuted, for method "pld"; else None.
        note: why epsilon is 0, or why to doubt it; "" if there is nothing to say.
    """

    epsilon: float
    mu: float | None
    threshold: float | None
    fpr_upper: float | None
    fnr_upper: float | None
    method: str
    assumes: Literal["none", "gdp", "mechanism"]
    valid: bool
    noise_multiplier: float | None = None
    note: str = ""


class OverRepeats(NamedTuple):
    """Repeated audits as the papers draw them. A mean of bounds is no bound: it carries no confidence of its own.

    Attributes:
        mean: over the repeats; a float, or (steps,).
        error: two standard errors of that mean, of the same shape; NaN for a single repeat.
        repeats: how many.
    """

    mean: float | Array
    error: float | Array
    repeats: int


def epsilon_lower_bound(
    scores: ArrayLike,
    bits: ArrayLike,
    *,
    delta: float,
    method: str = "gdp",
    threshold: str | float = "ranks",
    alpha: float = 0.05,
    simultaneous: bool = False,
    **mechanism: Unpack[Mechanism],
) -> LowerBound | list[LowerBound]:
    r"""A lower bound on ε that an audit's scores support with confidence 1 − alpha.

    Args:
        scores: (runs,) or (runs, steps); higher speaks for z. The direction is fixed by theory, never by the scores.
        bits: (runs,) of 0 (trained with z) and 1 (trained with z′); both must occur.
        delta: 0 < δ < 1; the δ at which ε is stated.
        method: which claims are tested, and how.

            - "gdp": claims of μ-GDP, with μ converted to ε. It assumes that the mechanism's privacy curve is that of a
              Gaussian mechanism: exact at q = 1, and close after some tens of steps. Where it is neither, the bound can
              exceed the truth: at q = 0.9 and one step of S1 (σ = 1) it did in 100 of 100 audits, by a quarter.
            - "dp": claims of (ε, δ)-DP. It assumes nothing, and finds less.
            - "pld": claims about the noise of DP-SGD itself, at the `sample_rate`, `steps` and `adjacency` given. It
              assumes that these are what ran, and is right where "gdp" is not.
            - "bayes_gdp", "bayes_dp": the alpha-quantile of the posterior under Jeffreys priors. Not valid: a credible
              bound promises nothing about how often it is wrong.
            - "katz": Katz's interval for the ratios of rates. Not valid: it is asymptotic, and bounds the ε of pure
              ε-DP; `delta` does not enter.
        threshold: how the score that separates the worlds is chosen.

            - "ranks": the exact rank test on ranks fixed in advance; for "gdp", "dp" and "pld". Valid.
            - "split": the best threshold of the even runs, judged on the odd runs. Valid if the method is.
            - a number: fixed before looking at the scores, both rates at alpha/2. Valid if the method is.
            - "best": the papers' rule, the best of all thresholds on the runs it is judged on. Not valid: for
              comparison only.
        alpha: 1e-12 < alpha < 0.5; the probability with which the bound may exceed the truth.
        simultaneous: for scores of several steps, share alpha among them, so that all bounds hold together and their
            maximum may be reported.
        mechanism: `sample_rate`, `steps` and `adjacency`, for "pld" alone. `steps` is how many were taken when the
            scores were observed, for scores (runs, steps) a sequence with one entry for each column.

    Returns:
        One `LowerBound` for scores (runs,), a list with one a step for scores (runs, steps).

    Raises:
        ValueError: if scores are empty, NaN or of another length than bits, if bits are not 0 and 1 or only one of
            the two occurs, if method and threshold do not go together, or if an argument is out of range.

    Source: *Beyond Membership*, section 5, equations 5–6 ("gdp"); *Tight Auditing*, section 2.3 ("dp", "katz"), 4.1 and
    appendix A ("pld"), 4.2 (the Bayesian ones). The rank test and what each rule is worth are explained in the book.

    >>> rng = np.random.default_rng(0)
    >>> bits = rng.integers(0, 2, 2_500)
    >>> scores = rng.normal(size=2_500) + (bits == 0)  # μ = 1, so ε = 4.38 at δ = 1e-5
    >>> bound = epsilon_lower_bound(scores, bits, delta=1e-5)
    >>> bound.valid, 3.0 < bound.epsilon < 4.38
    (True, True)
    """
    columns, in_z, several = _read(scores, bits)
    if not isinstance(simultaneous, bool | np.bool_):
        raise ValueError(f"simultaneous must be True or False, got {simultaneous!r}")
    rule = _rule(threshold, method)
    alpha = _alpha(alpha)
    claims = _claims(method, _checks.probability("delta", delta), mechanism, columns.shape[1])
    level = alpha / columns.shape[1] if simultaneous else alpha
    bounds = [_bound(*each, in_z, method, rule, level) for each in zip(columns.T, claims, strict=True)]
    return bounds if several else bounds[0]


def max_certifiable_epsilon(
    runs: int,
    *,
    delta: float,
    method: str = "gdp",
    threshold: str | float = "ranks",
    alpha: float = 0.05,
    **mechanism: Unpack[Mechanism],
) -> float:
    """The ceiling: what so many runs, half in each world, can show at most, however good the attack.

    Args:
        runs: ≥ 4; runs in all.
        delta, method, threshold, alpha, mechanism: as in `epsilon_lower_bound`.

    >>> round(max_certifiable_epsilon(256, delta=1e-5, threshold="best"), 3)  # 128 runs a world
    22.835
    """
    runs = _checks.whole("runs", runs, at_least=4)
    rule = _rule(threshold, method)
    alpha = _alpha(alpha)
    [claim] = _claims(method, _checks.probability("delta", delta), mechanism, 1)
    return _ceiling(claim, method, rule, runs, alpha)


def over_repeats(bounds: Sequence[Any]) -> OverRepeats:
    """Mean and two standard errors over repeated audits.

    Args:
        bounds: one entry for each repeat: a `LowerBound`, a list of them, one a step, or numbers of either shape.

    Raises:
        ValueError: if there are none, or the repeats differ in their number of steps.

    Source: *Beyond Membership*, Figures 2–6: "±2 standard errors around the mean".

    >>> over_repeats([3.0, 4.0, 5.0])
    OverRepeats(mean=4.0, error=1.1547005383792517, repeats=3)
    """
    expected = "bounds must be a sequence of repeats, each a bound or as many bounds as steps"
    if isinstance(bounds, str | LowerBound):
        raise ValueError(f"{expected}, got a single {type(bounds).__name__}")
    try:
        stacked = np.stack([np.asarray(_epsilons(repeat), dtype=np.float64) for repeat in bounds])
    except (TypeError, ValueError):
        raise ValueError(f"{expected}, got repeats of several shapes, none, or something else") from None
    if stacked.size == 0 or stacked.ndim > 2 or np.isnan(stacked).any():
        raise ValueError(f"{expected}, got shape {stacked.shape} with {int(np.isnan(stacked).sum())} NaN")
    error = np.full(stacked.shape[1:], np.nan)
    if len(stacked) > 1:
        error = 2 * stacked.std(axis=0, ddof=1) / np.sqrt(len(stacked))
    mean = stacked.mean(axis=0)
    return OverRepeats(mean if mean.ndim else float(mean), error if mean.ndim else float(error), len(stacked))


def _epsilons(bounds: Any) -> Any:
    if isinstance(bounds, LowerBound):
        return bounds.epsilon
    return [_epsilons(bound) for bound in bounds] if isinstance(bounds, list | tuple) else bounds


def _alpha(alpha: float) -> float:
    return _checks.real("alpha", alpha, above=SMALLEST_ALPHA, below=0.5)


def _read(scores: ArrayLike, bits: ArrayLike) -> tuple[Array, NDArray[np.bool_], bool]:
    _checks.no_mask("scores", scores)
    _checks.no_mask("bits", bits)
    try:
        columns = np.asarray(scores)
    except ValueError:
        raise ValueError(
            "scores must have the same number of steps for every run, got rows of several lengths"
        ) from None
    if columns.ndim not in (1, 2) or columns.size == 0:
        raise ValueError(f"scores must have shape (runs,) or (runs, steps), none of them 0, got {columns.shape}")
    if columns.dtype.kind not in "iuf":
        raise ValueError(f"scores must be real numbers, got dtype {columns.dtype}")
    if np.isnan(columns).any():
        raise ValueError(f"scores must not be NaN, got {int(np.isnan(columns).sum())} of them: look for diverged runs")
    try:
        worlds = np.asarray(bits)
        known = bool(np.isin(worlds, (0, 1)).all())
    except (TypeError, ValueError):
        raise ValueError("bits must be 0 (trained with z) or 1 (with z_prime), one for each run") from None
    if worlds.shape != columns.shape[:1]:
        raise ValueError(f"bits must have shape {columns.shape[:1]}, one for each run, got {worlds.shape}")
    if not known:
        raise ValueError(
            f"bits must be 0 (trained with z) or 1 (with z_prime), got {list(dict.fromkeys(worlds.tolist()))[:5]}"
        )
    if len(np.unique(worlds)) < 2:
        raise ValueError(f"bits must hold runs of both worlds, got {worlds[0]} only: run more, or check the coin")
    return columns.reshape(len(columns), -1).astype(np.float64), worlds == 0, columns.ndim == 2


def _rule(threshold: str | float, method: str) -> str | float:
    _checks.choice("method", method, METHODS)
    if not isinstance(threshold, str):
        return _checks.real("threshold", threshold)
    if threshold not in RULES:
        raise ValueError(f"threshold must be one of 'ranks', 'split', 'best' or a number, got {threshold!r}")
    if threshold == "ranks" and method not in EXACT:
        raise ValueError(
            f"threshold 'ranks' goes with the methods {', '.join(map(repr, EXACT))}, got {method!r}: "
            "give 'split', 'best' or a number"
        )
    return threshold


def _claims(method: str, delta: float, mechanism: Mechanism, columns: int) -> list[Claim]:
    """What is tested at each step."""
    needed = list(Mechanism.__annotations__)
    if method != "pld":
        if mechanism:
            raise ValueError(f"{', '.join(mechanism)}: for method 'pld' alone, got method {method!r}: leave them out")
        return [{"gdp": GDP, "bayes_gdp": GDP}.get(method, ApproximateDP)(delta)] * columns
    unknown, missing = sorted(set(mechanism) - set(needed)), sorted(set(needed) - set(mechanism))
    if unknown or missing:
        what = f"without {', '.join(missing)}" if missing else f"with {', '.join(unknown)}"
        raise ValueError(
            f"method 'pld' needs sample_rate, steps and adjacency, and no more, got them {what}"
            + (": the noise is what it finds out" if "noise_multiplier" in unknown else "")
        )
    _, q = _checks.mechanism(1.0, mechanism["sample_rate"])
    adjacency = _checks.adjacency(mechanism["adjacency"])
    _checks.no_mask("steps", mechanism["steps"])
    steps = np.atleast_1d(np.asarray(mechanism["steps"])).tolist()
    if len(steps) != columns:
        raise ValueError(f"steps must have one entry for each of the {columns} columns of scores, got {len(steps)}")
    return [MechanismDP(delta, q, _checks.whole("steps", count, at_most=MOST_STEPS), adjacency) for count in steps]


def _bound(
    scores: Array, claim: Claim, in_z: NDArray[np.bool_], method: str, rule: str | float, alpha: float
) -> LowerBound:
    positives, negatives = np.sort(scores[in_z]), np.sort(scores[~in_z])
    cut: float | None
    fpr: float | None = None
    fnr: float | None = None
    if rule == "ranks":
        parameter, cut = 0.0, None
        if len(negatives) >= LEAST_RUNS:
            ranks = fixed_ranks(claim, len(negatives))
            parameter, cut = smallest_parameter(claim, positives, negatives, ranks, alpha)
    else:
        test = _test(claim, method)
        if rule == "split":
            cut = _best_threshold(*_half(scores, in_z, 0), test, alpha)
            positives, negatives = _half(scores, in_z, 1)
        else:
            cut = _best_threshold(positives, negatives, test, alpha) if rule == "best" else float(rule)
        errors = _errors(positives, negatives, np.array([cut]))
        parameter = test.parameter(errors, alpha)
        fpr, fnr = (float(rate[0]) for rate in rates_upper(errors, alpha))
    epsilon = claim.epsilon(parameter)
    return LowerBound(
        epsilon=epsilon,
        mu=parameter if claim.assumes == "gdp" else None,
        threshold=cut,
        fpr_upper=fpr,
        fnr_upper=fnr,
        method=method,
        assumes=claim.assumes,
        valid=method in EXACT and rule != "best",
        noise_multiplier=claim.noise_multiplier(parameter) if isinstance(claim, MechanismDP) else None,
        note=_note(scores, in_z, claim, method, rule, parameter, epsilon, alpha),
    )


def _note(
    scores: Array,
    in_z: NDArray[np.bool_],
    claim: Claim,
    method: str,
    rule: str | float,
    parameter: float,
    epsilon: float,
    alpha: float,
) -> str:
    """Why the bound is 0, or should be doubted."""
    if parameter >= claim.most:
        return f"refuted at every noise_multiplier down to {LEAST_NOISE}: check sample_rate, steps and adjacency"
    if epsilon > 0:
        return ""
    if scores.min() == scores.max():
        return "all scores are equal: no threshold parts the worlds"
    if rule == "ranks" and (~in_z).sum() < LEAST_RUNS:
        return f"the rank test needs {LEAST_RUNS} runs with z_prime, got {(~in_z).sum()}"
    if parameter > 0:
        return f"what was refuted leaks nothing beyond delta = {claim.delta:g}"
    if method == "katz":
        return "the ratios do not exceed 1 by more than their error, or there is no error that they could be taken of"
    if method != "pld" and _ceiling(claim, method, rule, len(scores), alpha) == 0:
        return f"{len(scores)} runs cannot show an epsilon at delta = {claim.delta:g}, however good the attack"
    return "the scores refute no claim: the attack is too weak, or the runs are too few"


def _test(claim: Claim, method: str) -> ThresholdTest:
    if method == "katz":
        return Katz()
    return Posterior(claim) if method.startswith("bayes") else ClopperPearson(claim)


def _ceiling(claim: Claim, method: str, rule: str | float, runs: int, alpha: float) -> float:
    """The most that so many runs can show, half of them in each world: there is no error, or of one kind only."""
    if rule == "split":
        runs //= 2
    negatives, positives = max(runs // 2, 1), max(runs - runs // 2, 1)
    if rule == "ranks":
        if negatives < LEAST_RUNS:
            return 0.0
        ranks = fixed_ranks(claim, negatives)
        parameter, _ = smallest_parameter(claim, np.ones(positives), np.zeros(negatives), ranks, alpha)
        return claim.epsilon(parameter)
    test = _test(claim, method)
    of_either = np.arange(1 if test.monotone else negatives)
    none = np.zeros_like(of_either)
    errors = Errors(np.append(of_either, none), negatives, np.append(none, of_either), positives)
    most = 0 if test.monotone else test.strongest(errors, alpha)
    return claim.epsilon(test.parameter(errors.at(most), alpha))


def _half(scores: Array, in_z: NDArray[np.bool_], start: int) -> tuple[Array, Array]:
    scores, in_z = scores[start::2], in_z[start::2]
    if len(np.unique(in_z)) < 2:
        raise ValueError(
            'threshold "split" needs runs of both worlds among the even and among the odd runs, got '
            f"{len(scores)} runs in a half: run more, or give another threshold"
        )
    return np.sort(scores[in_z]), np.sort(scores[~in_z])


def _errors(positives: Array, negatives: Array, cuts: Array) -> Errors:
    """Both samples sorted."""
    false_positives = len(negatives) - np.searchsorted(negatives, cuts, side="right")
    return Errors(
        false_positives, len(negatives), np.searchsorted(positives, cuts, side="right").astype(np.int64), len(positives)
    )


def _best_threshold(positives: Array, negatives: Array, test: ThresholdTest, alpha: float) -> float:
    # Between two scores of the negative world only false negatives are added, so one of these scores is best.
    cuts = np.unique(negatives if test.monotone else np.concatenate((negatives, positives)))
    return float(cuts[test.strongest(_errors(positives, negatives, cuts), alpha)])
