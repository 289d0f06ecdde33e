"""Lower bounds on ε from one run: how many of many pairs' coins are guessed rightly."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dpsub._core import checks
from dpsub.estimators.claims import GDP, ApproximateDP, Claim
from dpsub.estimators.dpsgd_claim import LEAST_NOISE, MechanismDP
from dpsub.estimators.guess_tests import Guesses, of_independent, of_odds, of_tradeoff
from dpsub.estimators.lower_bounds import SMALLEST_ALPHA, LowerBound
from dpsub.estimators.methods import METHODS, Method, Sampling
from dpsub.estimators.one_threshold import ClopperPearson

MOST_PAIRS = 10**6  # the recursion takes more steps, the more pairs there are
MUCH = 1 / 3  # of what shows if all guesses are right; if δ takes more, the bound says so
INDEPENDENT = "assumes independent guesses, which one run does not give by itself, and a Gaussian mechanism's curve"

Test = Callable[[Claim, Guesses, float], float]
WAYS: dict[str, tuple[Method, Test]] = {
    "gdp": (METHODS["gdp"], of_tradeoff),
    "pld": (METHODS["pld"], of_tradeoff),
    "dp": (METHODS["dp"], of_odds),
    "product": (Method("product", GDP, ClopperPearson, exact=True), of_independent),
}


def one_run_epsilon_lower_bound(
    correct: ArrayLike,
    guesses: ArrayLike,
    pairs: int,
    *,
    delta: float,
    method: str = "gdp",
    alpha: float = 0.05,
    **mechanism: Unpack[Sampling],
) -> LowerBound:
    r"""A lower bound on ε from a single run, with confidence 1 − alpha, from guesses of many pairs' coins.

    For each pair a fair coin of its own puts one of two records into the data, and the run's output is used to guess
    the coins. Flipping a coin substitutes one record, so the bound is on the ε of that, whatever the number of pairs.
    The number of guesses must be fixed before looking at the scores, as `one_run_guesses` does it; which pairs are
    guessed may depend on the output. Methods "gdp", "pld" and "dp" hold however the pairs disturb each other.

    What all guesses being right would show is the ceiling: give `guesses` for `correct`. Few guesses of many pairs show
    more of a Gaussian mechanism than one guess for every pair, since the scores far from 0 are more often right.

    Args:
        correct: how many guesses are right.
        guesses: how many guesses were made, at most one for each pair.
        pairs: the number of pairs, at most 1e6.
        delta: 0 < δ < 1; the δ at which ε is stated.
        method: which claims are tested, and how.

            - "gdp": claims of μ-GDP, with μ converted to ε. It assumes that the mechanism's privacy curve is a Gaussian
              mechanism's.
            - "pld": claims about the noise of DP-SGD itself, at the given `sample_rate`, `steps` and `adjacency`. It
              assumes that the run trained with these.
            - "dp": claims of (ε, δ)-DP. It assumes nothing, and its bounds are smaller. The more so, the larger
              2·pairs·delta is beside guesses·alpha.
            - "product": claims of μ-GDP, as if guesses were independent of each other. They are if each pair's score
              depends on its own coin and on noise of its own alone. Otherwise the bound can be wrong often: in every
              second audit, if a public coin decides whether all pairs are answered or none. It takes one guess for
              every pair.
        alpha: 1e-12 < alpha < 0.5; the probability with which the bound may exceed the truth.
        mechanism: `sample_rate`, `steps` and `adjacency`, for "pld" only.

    `correct` and `guesses` may be sequences of one length, for several numbers of guesses in the same run. Each is
    tested at alpha divided by their number, and the largest bound is returned, so it may be reported.

    Returns:
        A `LowerBound`; `guesses` says which number of guesses decided.

    Raises:
        ValueError: if there are more right guesses than guesses, or more guesses than pairs; if method is "dp" and
            delta so large that nothing shows even if all guesses are right; if an argument is out of range.

    Source: Mahloujifar et al. (2025) for "gdp" and "pld"; Steinke et al. (2023), section 5 and appendix D, for "dp";
    Xiang et al. (2025) for "product"; Keinan et al. (2025) for pairs.

    >>> round(one_run_epsilon_lower_bound(95, 100, 1_000, delta=1e-5).epsilon, 3)
    3.323
    >>> round(one_run_epsilon_lower_bound(75, 100, 1_000, delta=1e-4, method="dp").epsilon, 3)
    0.673
    >>> round(one_run_epsilon_lower_bound(100, 100, 1_000, delta=1e-5).epsilon, 3)  # the ceiling
    5.549
    """
    seen = _counts(correct, guesses, pairs)
    way, refuted_by = WAYS[checks.choice("method", method, tuple(WAYS))]
    level = checks.real("alpha", alpha, above=SMALLEST_ALPHA, below=0.5) / len(seen)
    [claim] = way.claims(checks.probability("delta", delta), mechanism, 1)
    if method == "product" and any(each.guesses < each.pairs for each in seen):
        raise ValueError(
            f"guesses must be as many as pairs, {seen[0].pairs}, for method 'product', got "
            f"{min(each.guesses for each in seen)}: guess every pair, or give method 'gdp'"
        )
    taken = [_taken(claim, each, level) if method == "dp" else 0.0 for each in seen]
    if min(taken) >= 1:
        raise ValueError(
            f"delta must be far smaller for method 'dp' with {seen[0].guesses} guesses of {seen[0].pairs} pairs, got "
            f"{claim.delta:g}, so 2 * pairs * delta = {2 * seen[0].pairs * claim.delta:.2g}: even if all guesses are "
            "right, they refute nothing; give method 'gdp' or 'pld', fewer pairs, more guesses, or a larger alpha"
        )
    parameters = [refuted_by(claim, each, level) for each in seen]
    best = int(np.argmax(parameters))
    parameter, decided = parameters[best], seen[best]
    epsilon = claim.epsilon(parameter)
    reasons = [
        INDEPENDENT if method == "product" else "",
        _lost(claim, decided, taken[best]) if taken[best] > MUCH else "",
        _why(claim, parameter, epsilon, refuted_by, decided, level),
    ]
    return LowerBound(
        epsilon=epsilon,
        mu=parameter if isinstance(claim, GDP) else None,
        threshold=None,
        fpr_upper=None,
        fnr_upper=None,
        method=method,
        assumes="product" if method == "product" else claim.assumes,
        valid=way.exact,
        noise_multiplier=claim.noise_multiplier(parameter) if isinstance(claim, MechanismDP) else None,
        note="; ".join(filter(None, reasons)),
        guesses=decided.guesses,
        of="training",
    )


def _counts(correct: Any, guesses: Any, pairs: Any) -> list[Guesses]:
    """The checked counts, one entry for each number of guesses."""
    pairs = checks.whole("pairs", pairs, at_most=MOST_PAIRS)
    made, right = _several("guesses", guesses), _several("correct", correct)
    if len(right) != len(made):
        raise ValueError(
            f"correct must be as many numbers as guesses, one for each number of guesses, got {len(right)} and "
            f"{len(made)}"
        )
    found = []
    for of, number in zip(right, made, strict=True):
        number = checks.whole("guesses", number)
        if number > pairs:
            raise ValueError(f"guesses must be <= pairs = {pairs}, got {number}: guess each pair at most once")
        of = checks.whole("correct", of, at_least=0)
        if of > number:
            raise ValueError(f"correct must be <= guesses = {number}, got {of}: count the right ones among the guesses")
        found.append(Guesses(of, number, pairs))
    return found


def _several(name: str, value: Any) -> list[Any]:
    """One number, or the numbers of a sequence that is not empty."""
    checks.no_mask(name, value)
    try:
        numbers = np.atleast_1d(np.asarray(value))
        if numbers.dtype.kind not in "iuf" or numbers.ndim != 1 or not numbers.size:
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name} must be a whole number, or a sequence of them, one or more, got {value!r}") from None
    return list(numbers.tolist())


@lru_cache(maxsize=128)
def _taken(claim: Claim, seen: Guesses, alpha: float) -> float:
    """How much δ takes of what shows if all guesses are right: 1 for all of it."""
    perfect = seen._replace(correct=seen.guesses)
    without = of_odds(ApproximateDP(0.0), perfect, alpha)
    return 1 - of_odds(claim, perfect, alpha) / without if without > 0 else 0.0


def _lost(claim: Claim, seen: Guesses, taken: float) -> str:
    return (
        f"delta takes {taken:.0%} of what {seen.guesses} guesses could show, since 2 * pairs * delta = "
        f"{2 * seen.pairs * claim.delta:.2g}: methods 'gdp' and 'pld' do not lose this"
    )


def _why(claim: Claim, parameter: float, epsilon: float, refuted_by: Test, seen: Guesses, alpha: float) -> str:
    """Why the bound is 0 or should be doubted."""
    if parameter >= claim.most:
        return f"refuted at every noise_multiplier down to {LEAST_NOISE}: check sample_rate, steps and adjacency"
    if epsilon > 0:
        return ""
    if parameter > 0:
        return f"the refuted claims have epsilon 0 at delta = {claim.delta:g}"
    if claim.epsilon(refuted_by(claim, seen._replace(correct=seen.guesses), alpha)) == 0:
        return f"{seen.guesses} guesses cannot show an epsilon at delta = {claim.delta:g}, however many are right"
    if refuted_by(claim, seen._replace(correct=seen.guesses - seen.correct), alpha) > 0:
        return (
            "fewer guesses are right than chance allows: bit 0 is z, and scores above 0 must speak for z; if theory "
            "says that yours do not, negate them"
        )
    return "the guesses refute no claim: the attack is too weak, or the guesses are too few"
