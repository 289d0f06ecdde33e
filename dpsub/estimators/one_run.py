"""Many pairs in one run: guesses of their coins with abstention, and the bound that right guesses give."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr

from dpsub._core import checks
from dpsub.estimators.catalogue import OF_GUESSES, ClaimLike, claims_of
from dpsub.estimators.claims import Claim
from dpsub.estimators.dpsgd_claim import Sampling
from dpsub.estimators.guess_tests import Seen
from dpsub.estimators.lower_bounds import LowerBound
from dpsub.estimators.scores_and_marks import no_row_twice, real_array

MOST_CANDIDATES = 10**9
MOST_PAIRS = 10**6  # the recursion takes more steps, the more pairs there are
UNLIKELY = 1e-9  # fair coins fall so rarely
CENTRES = ("median", "sides")
TIES = 0x636F696E  # a seed of its own: what breaks ties must say nothing about coins


class Guesses(NamedTuple):
    """Guesses of coins, as `one_run_epsilon_lower_bound` takes them: `one_run_epsilon_lower_bound(*guesses, …)`.

    Attributes:
        correct: how many guesses are right. A tuple for several numbers of guesses.
        guesses: how many there are. The other pairs are abstained from. A tuple for several.
        pairs: how many pairs there are, of all models together.
    """

    correct: int | tuple[int, ...]
    guesses: int | tuple[int, ...]
    pairs: int


def one_run_guesses(
    scores: ArrayLike, bits: ArrayLike, *, guesses: int | Sequence[int], centre: float | str = 0.0
) -> Guesses:
    """Guess the coins of the pairs with the clearest scores, and abstain from the others.

    The guesses depend on the scores alone, never on the bits. So a bound of them is valid whatever the centre is; a
    centre between the worlds makes it tight. The number of guesses must be fixed before one looks at the bits.

    Args:
        scores: (pairs,) or (models, pairs), higher speaks for z. Pairs of several models are guessed together.
        bits: shaped like scores, 0 where z was in the slot and 1 where z′ was.
        guesses: r, from 1 to the number of pairs of all models; or a sequence of several, which then share the bound's
            alpha.
        centre: what a score is compared with.

            - A number: the r scores that are farthest from it are guessed, those above it as z. 0 is right for
              `step_score` of `audit_one_run` with `subtract_expected`, and for gradient pairs.
            - "median": the same, with the median of each model's scores. For scores whose centre is not known, such as
              those of final models.
            - "sides": the r/2 highest scores of all are guessed as z, and the r/2 lowest as z′. r must be even.

    Returns:
        How many guesses are correct, how many there are, and how many pairs. Among equal scores a fixed seed draws
        which are guessed, since the order of pairs may depend on the coins.

    Raises:
        ValueError: if shapes differ, a score is not finite, r is larger than the number of pairs, the bits are not
            fair coins: 0 or 1 nearly always, or the same in two models; if a pair is there twice, which scores with the
            coordinates `seed` and `number` tell, and bare arrays do not; or if the scores are of a training's steps.

    Source: Steinke, Nasr and Jagielski (2023), Algorithm 1, for guesses with abstention.

    >>> one_run_guesses([3.0, -2.0, 0.5, -0.1], [0, 1, 1, 0], guesses=2)
    Guesses(correct=2, guesses=2, pairs=4)
    >>> one_run_guesses([3.0, -2.0, 0.5, -0.1], [0, 1, 1, 0], guesses=(2, 4))
    Guesses(correct=(2, 2), guesses=(2, 4), pairs=4)
    """
    table, worlds = _checked(scores, bits)
    if isinstance(centre, str):
        checks.choice("centre", centre, CENTRES)
    else:
        table = table - checks.real("centre", centre)
        centre = "a number"
    several = np.iterable(guesses) and not isinstance(guesses, str | bytes)
    expected = "guesses must be a whole number, or a sequence of one or more"
    given = checks.several(expected, guesses) if several else [guesses]
    if not given:
        raise ValueError(f"{expected}, got none")
    numbers = [_number(one, table.size, centre) for one in given]
    if centre == "median":
        table = table - np.median(table, axis=1, keepdims=True)
    right = [_right(table.ravel(), worlds.ravel() == 0, number, centre == "sides") for number in numbers]
    if several:
        return Guesses(tuple(right), tuple(numbers), table.size)
    return Guesses(right[0], numbers[0], table.size)


def _number(guesses: Any, pairs: int, centre: str) -> int:
    number = checks.whole("guesses", guesses)
    if number > pairs:
        raise ValueError(f"guesses must be at most the number of pairs, {pairs}, got {number}")
    if centre == "sides" and number % 2:
        raise ValueError(f"guesses must be even for centre 'sides', half of them for z, got {number}")
    return number


def _right(scores: NDArray[np.float64], in_z: NDArray[np.bool_], number: int, sides: bool) -> int:
    """How many of the clearest guesses are right."""
    drawn = np.random.default_rng(TIES).permutation(scores.size)
    if sides:
        order = np.lexsort((drawn, -scores))
        chosen = np.concatenate([order[: number // 2], order[scores.size - number // 2 :]])
        guessed_z = np.arange(number) < number // 2
    else:
        chosen = np.lexsort((drawn, -np.abs(scores)))[:number]
        guessed_z = scores[chosen] >= 0
    return int((guessed_z == in_z[chosen]).sum())


def _checked(scores: ArrayLike, bits: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.int8]]:
    """Scores and bits as (models, pairs)."""
    if "observation" in getattr(scores, "dims", ()):
        raise ValueError(
            "scores must be of pairs in one training or more, got observations of steps: epsilon_lower_bound "
            "takes these"
        )
    no_row_twice(scores, bits)
    checks.no_mask("scores", scores)
    checks.no_mask("bits", bits)
    table = real_array("scores must be an array of numbers", scores, "biuf")
    worlds = real_array("bits must be an array of numbers", bits, "biuf")
    if table.ndim not in (1, 2) or not table.size:
        raise ValueError(f"scores must have shape (pairs,) or (models, pairs), neither of them 0, got {table.shape}")
    if worlds.shape != table.shape:
        raise ValueError(f"bits must have the shape of scores, {table.shape}, got {worlds.shape}")
    if not np.isfinite(table).all():
        raise ValueError(f"scores must be finite, got {int((~np.isfinite(table)).sum())} that are not")
    if not np.isin(worlds, (0, 1)).all():
        raise ValueError(
            f"bits must be 0 (z was in the slot) or 1 (z_prime), got {worlds[~np.isin(worlds, (0, 1))][0]}"
        )
    of_models = worlds.reshape(-1, worlds.shape[-1]).astype(np.int8)
    ones = int(of_models.sum())
    if 2 * bdtr(min(ones, worlds.size - ones), worlds.size, 0.5) < UNLIKELY:
        raise ValueError(f"bits must be fair coins, one for each pair, got {ones} ones among {worlds.size}")
    if 2.0 ** -of_models.shape[1] * len(of_models) ** 2 < UNLIKELY and len(np.unique(of_models, axis=0)) < len(
        of_models
    ):
        raise ValueError("bits must be tossed anew for each model, got two models with the same coins")
    return table.reshape(of_models.shape).astype(np.float64), of_models


@checks.checked(
    "delta",
    "alpha",
    pairs=partial(checks.whole, at_most=MOST_PAIRS),
    candidates=partial(checks.whole, at_least=2, at_most=MOST_CANDIDATES),
)
def one_run_epsilon_lower_bound(
    correct: ArrayLike,
    guesses: ArrayLike,
    pairs: int,
    *,
    delta: float,
    claim: ClaimLike = "gdp",
    alpha: float = 0.05,
    candidates: int = 2,
    **mechanism: Unpack[Sampling],
) -> LowerBound:
    r"""A lower bound on ε from a single run, with confidence 1 − alpha, from guesses of many pairs' coins.

    For each pair a fair coin of its own puts one of two records into the data, and the run's output is used to guess
    the coins. Flipping a coin substitutes one record, so the bound is on the ε of that, whatever the number of pairs.
    The number of guesses must be fixed before looking at the scores, as `one_run_guesses` does it; which pairs are
    guessed may depend on the output. Claims "gdp", "pld" and "dp" hold however the pairs disturb each other.

    What all guesses being right would show is the ceiling: give `guesses` for `correct`. Few guesses of many pairs show
    more of a Gaussian mechanism than one guess for every pair, since the scores far from 0 are more often right.

    Args:
        correct: how many guesses are right.
        guesses: how many guesses were made, at most one for each pair.
        pairs: the number of pairs, at most 1e6.
        delta: 0 < δ < 1; the δ at which ε is stated.
        claim: which claims are tested, and how: a name, or a `Claim` at this delta.

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
        candidates: how many records each slot is filled from, each with the same probability and independently of the
            other slots: 2 for pairs. Of a secret that was drawn from more of them a guess is right more rarely by
            chance, so that as many right guesses show more.
        mechanism: `sample_rate`, `steps`, `adjacency` and, if batches are not Poisson's, `sampling`, for "pld" only.

    `correct` and `guesses` may be sequences of one length, for several numbers of guesses in the same run. Each is
    tested at alpha divided by their number, and the largest bound is returned, so it may be reported.

    Returns:
        A `LowerBound`; `guesses` says which number of guesses decided, `correct` how many of them are right.

    Raises:
        ValueError: if there are more right guesses than guesses, or more guesses than pairs; if claim is "dp" and
            delta so large that nothing shows even if all guesses are right; if an argument is out of range.

    Source: Mahloujifar et al. (2025) for "gdp" and "pld"; Steinke et al. (2023), section 5 and appendix D, for "dp"
    with two candidates; Xiang et al. (2025) for "product"; Keinan et al. (2025) for pairs.

    >>> round(one_run_epsilon_lower_bound(95, 100, 1_000, delta=1e-5).epsilon, 3)
    3.323
    >>> round(one_run_epsilon_lower_bound(75, 100, 1_000, delta=1e-4, claim="dp").epsilon, 3)
    0.673
    >>> round(one_run_epsilon_lower_bound(100, 100, 1_000, delta=1e-5).epsilon, 3)  # the ceiling
    5.549
    >>> round(one_run_epsilon_lower_bound(50, 100, 100, delta=1e-5, claim="dp", candidates=10).epsilon, 3)
    1.848
    """
    seen = _counts(correct, guesses, pairs, candidates)
    level = alpha / len(seen)
    [tested] = claims_of(claim, delta, mechanism, known=OF_GUESSES)
    if not tested.exact:
        raise ValueError(f"claim must have an exact test of guesses, got {tested.name!r}")
    if refused := tested.cannot_show(seen, level):
        raise ValueError(refused)
    parameters = [tested.refuted_by_guesses(each, level) for each in seen]
    best = int(np.argmax(parameters))
    parameter, decided = parameters[best], seen[best]
    epsilon = tested.epsilon(parameter)
    reasons = [tested.note_of_guesses(decided, level), _why(tested, parameter, epsilon, decided, level)]
    return LowerBound(
        epsilon=epsilon,
        claim=tested.name,
        assumes=tested.assumes,
        valid=True,
        note="; ".join(filter(None, reasons)),
        of="training",
        rule="guesses",
        delta=delta,
        alpha=alpha,
        **tested.says(parameter),
        details={
            "guesses": decided.guesses,
            "correct": decided.correct,
            "pairs": pairs,
            **({"candidates": candidates} if candidates > 2 else {}),
        },
    )


def _counts(correct: Any, guesses: Any, pairs: int, candidates: int) -> list[Seen]:
    """The checked counts, one entry for each number of guesses."""
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
        found.append(Seen(of, number, pairs, candidates))
    return found


def _several(name: str, value: Any) -> list[Any]:
    """One number, or the numbers of a sequence that is not empty."""
    checks.no_mask(name, value)
    expected = f"{name} must be a whole number, or a sequence of them, one or more"
    numbers = np.atleast_1d(real_array(expected, value))
    if numbers.ndim != 1 or not numbers.size:
        raise ValueError(f"{expected}, got {value!r}")
    return list(numbers.tolist())


def _why(claim: Claim, parameter: float, epsilon: float, seen: Seen, alpha: float) -> str:
    """Why the bound is 0 or should be doubted."""
    if parameter >= claim.most:
        return claim.beyond
    if epsilon > 0:
        return ""
    if parameter > 0:
        return f"the refuted claims have epsilon 0 at delta = {claim.delta:g}"
    if claim.epsilon(claim.refuted_by_guesses(seen._replace(correct=seen.guesses), alpha)) == 0:
        return f"{seen.guesses} guesses cannot show an epsilon at delta = {claim.delta:g}, however many are right"
    turned = seen._replace(correct=seen.guesses - seen.correct)
    if seen.candidates == 2 and claim.refuted_by_guesses(turned, alpha) > 0:
        return (
            "fewer guesses are right than chance allows: bit 0 is z, and scores above 0 must speak for z; if theory "
            "says that yours do not, negate them"
        )
    return "the guesses refute no claim: the attack is too weak, or the guesses are too few"
