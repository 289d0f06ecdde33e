"""What an attacker can learn from a training: risks in place of ε."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit, logit

from dpsub._core import checks
from dpsub.accounting.discretisation import LOSS_ROUNDING
from dpsub.accounting.dominating_pairs import Array
from dpsub.accounting.engines import TOLERANCE, Curve, Interval, answers, as_arrays
from dpsub.accounting.phases import Training, training_of
from dpsub.accounting.samplings import History, Sampling

Prior = float | Sequence[float]

NODES = 2000  # values of ε at which a curve is asked; in between its chords in e^ε bound it
LEVELS = 500  # values of λ that are tried
DELTA_ERROR = 1e-5  # half the width of an interval of δ, where possible
CERTAIN = 40.0  # e^-CERTAIN does not change a belief
LARGEST_EPSILON = 700.0  # its exponential is finite
LEAST_DELTA = 1e-300  # the smallest δ that a curve is asked for
DELTA_ROUNDING = 2e-15  # above the error of a grid's δ, for each step
ROUNDING = 1e-13  # above the error of what is computed from a curve
MEASURES = ("accuracy", "advantage", "tpr", "ppv", "posterior")


@dataclass(frozen=True)
class Risk:
    """Upper bounds on what any attacker reaches who knows everything but the value that they ask about.

    Attributes:
        accuracy: the probability of guessing the value right. It is also the attacker's average belief in the most
            likely value after seeing the model.
        advantage: the largest difference of true- and false-positive rate, whatever the prior.
        tpr: the true-positive rate at the false-positive rate `fpr`: how many of those who have the value are found.
        ppv: how many of the alarms of such an attack are right.
        posterior: the belief in the value asked about, after seeing the model, that is exceeded with a probability of
            at most `delta`. The average belief in those cases is at most this, too.
        prior: what the attacker believes of each value before seeing the model. The first is the one asked about.
        fpr, delta: as given.
    """

    accuracy: float
    advantage: float
    tpr: float
    ppv: float
    posterior: float
    prior: tuple[float, ...]
    fpr: float
    delta: float


@checks.checked("steps", "delta", fpr=checks.probability)
def risk(
    *,
    prior: Prior = 0.5,
    fpr: float = 0.01,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    history: History | None = None,
    adjacency: str,
    sampling: Sampling | str = "poisson",
) -> Risk:
    r"""The most that an attacker can learn from a training, about a record's contents or about its presence.

    It holds for attackers who know all other records and see every step. No number is understated: at q = 1 the
    measures of two values are exact, elsewhere they are certified upper bounds, within 2e-5 where possible.

    All measures follow from the privacy curve :math:`\delta(\varepsilon)`, the larger of both directions, with
    :math:`\delta(-\varepsilon) = 1 - e^{-\varepsilon} + e^{-\varepsilon}\,\delta(\varepsilon)`.

    - Accuracy. Let :math:`A_i` be what is seen where the attacker guesses value i. For any λ > 0 and any value j,
      :math:`\pi_i P_i(A_i) \le \lambda P_j(A_i) + \pi_i\,\delta(\ln(\lambda/\pi_i))`. The :math:`P_j(A_i)` sum to 1,
      so that the sum over i is

      .. math:: \sum_i \pi_i P_i(A_i) \le
          \lambda + \sum_{i \ne j} \pi_i\,\delta(\ln(\lambda/\pi_i)) + \max(\pi_j - \lambda, 0).

      The least of these bounds is taken. Of two values, it is the Bayes success itself.
    - Posterior. Let b be the belief in the value asked about. For any level p, its expected excess is

      .. math:: E[\max(b - p, 0)] \le (1-p)\,\pi\,\delta(\varepsilon), \quad
          \varepsilon = \ln(p/(1-p)) - \ln(\pi/(1-\pi)).

      In the event of probability δ in which b is largest, its mean is at most p + E[max(b − p, 0)]/δ. Outside this
      event b is at most this mean. The least of these bounds is taken.

    Args:
        prior: the probability, > 0 and < 1, that the attacker gives the value that they ask about before seeing the
            model: under "substitute" one of two values of a label or an attribute, otherwise that the record was in.
            Or a sequence of such probabilities, which sum to 1: a label or an attribute with so many values, the first
            of which is asked about. More than two need "substitute", of which each pair of values is an instance.
        fpr: 0 < fpr < 1; the false-positive rate at which `tpr` and `ppv` are stated. An alarm is a guess that the
            record has the value asked about.
        delta: 0 < δ < 1; the probability with which the posterior may be exceeded, over the value and the training.
        noise_multiplier, sample_rate, steps, history, adjacency, sampling: as in `epsilon`; `steps` is one number.

    Returns:
        A `Risk`.

    Raises:
        ValueError: if an argument is out of range.

    Source: Kulynych et al. (2024) for the advantage; Kulynych et al. (2025), Proposition D.1, for the accuracy of two
    values. They bound that of more values by :math:`1 - f(\max_i \pi_i)`, which is never less.

    >>> found = risk(noise_multiplier=48.4033203125, sample_rate=1, steps=500, adjacency="substitute")
    >>> round(found.accuracy, 3), round(found.posterior, 3)  # Φ(μ/2), with μ = 0.92
    (0.678, 0.988)
    >>> label = risk(prior=[0.1] * 10, noise_multiplier=48.4, sample_rate=1, steps=500, adjacency="substitute")
    >>> round(label.accuracy, 3)  # of one label among ten
    0.345
    """
    beliefs = priors("prior", prior, adjacency)
    training = training_of(adjacency, sampling, noise_multiplier, sample_rate, steps, history)
    return risk_of(training, beliefs, fpr, delta)


def priors(name: str, value: Any, adjacency: str) -> tuple[float, ...]:
    """The prior as a probability for each value; (π, 1 − π) for a number."""
    given = checks.array(name, value)
    beliefs = given if given.ndim else np.array([given, 1 - given])
    total = math.fsum(beliefs.ravel()) if given.ndim else 1.0
    if beliefs.ndim > 1 or len(beliefs) < 2 or min(beliefs) <= 0 or abs(total - 1) > 1e-9:
        raise ValueError(
            f"{name} must be a number > 0 and < 1, or a sequence of two or more that sum to 1, got {value!r}, with "
            f"the sum {total:.10g}"
        )
    if len(beliefs) > 2 and adjacency != "substitute":
        raise ValueError(
            f"{name} must be of two values with adjacency {adjacency!r}, that the record was in or not, got "
            f"{len(beliefs)}: give adjacency 'substitute' for a label or an attribute with so many values"
        )
    return tuple((beliefs / total).tolist())


def without_model(prior: tuple[float, ...], fpr: float) -> dict[str, float]:
    """Each measure, for an attacker who has not seen the model."""
    return {"accuracy": max(prior), "advantage": 0.0, "tpr": fpr, "ppv": prior[0], "posterior": prior[0]}


def risk_of(training: Training, prior: tuple[float, ...], fpr: float, delta: float) -> Risk:
    """The risk of the training's only curve, for checked arguments."""
    least = max(TOLERANCE * delta, LEAST_DELTA)  # a smaller δ changes nothing
    [(_, [enough])] = answers(training, "auto", lambda curve: as_arrays([curve.epsilon(least)]), delta=least)
    largest = min(enough, CERTAIN - math.log(min(prior)), LARGEST_EPSILON)
    epsilons = np.linspace(0.0, largest, NODES)
    if len(prior) == 2:
        epsilons = np.append(epsilons, min(abs(math.log(prior[0]) - math.log(prior[1])), LARGEST_EPSILON))
    epsilons = np.unique(epsilons)

    def ask(curve: Curve) -> Interval:
        low, high = curve.deltas(epsilons)
        least_missed, most_missed = curve.tradeoff(np.array([fpr]))
        return np.append(low, 1 - most_missed), np.append(high, 1 - least_missed)

    def relative_width(low: Array, high: Array) -> float:
        steps = sum(training.longest)  # each adds rounding errors, which no finer grid reduces
        allowed = np.minimum(TOLERANCE * np.maximum(low, delta), DELTA_ERROR) + DELTA_ROUNDING * steps
        allowed[-1] = DELTA_ERROR + 3 * LOSS_ROUNDING * steps
        return float(np.max((high - low) / 2 / allowed))

    [(_, high)] = answers(training, "auto", ask, relative_width=relative_width, delta=least)
    deltas, tpr = np.minimum.accumulate(high[:-1]), float(high[-1]) + ROUNDING
    measures = {
        "accuracy": accuracy(prior, epsilons, deltas),
        "advantage": float(deltas[0]),
        "tpr": tpr,
        "ppv": ppv(prior[0], tpr, fpr),
        "posterior": posterior(prior[0], delta, epsilons, deltas),
    }
    return Risk(
        **{name: min(value + ROUNDING, 1.0) for name, value in measures.items()}, prior=prior, fpr=fpr, delta=delta
    )


def ppv(prior: float, tpr: float, fpr: float) -> float:
    """The share of the alarms that are right."""
    alarms = prior * tpr + (1 - prior) * fpr
    return prior * tpr / alarms if alarms else 1.0


def accuracy(prior: Sequence[float], epsilons: Array, deltas: Array) -> float:
    """The least bound on the Bayes success among some λ, from an upper bound on δ at increasing ε, the first of them 0.

    Given λ, what value i costs beyond max(π_i − λ, 0) is `more`. The best j is the value for which it is largest.
    """
    values, counts = np.unique(np.asarray(prior), return_counts=True)
    slopes = np.exp(epsilons)

    def bound(log_level: float) -> float:
        level = math.exp(log_level)
        # δ is convex in e^ε, so that chords are above it.
        delta = np.interp(np.exp(np.minimum(np.abs(log_level - np.log(values)), epsilons[-1])), slopes, deltas)
        more = np.minimum(values, level) * delta
        return float(level + counts @ (np.maximum(values - level, 0.0) + more) - more.max())

    if len(prior) == 2:
        return bound(math.log(values[-1]))
    tried = np.linspace(math.log(values[0]) - epsilons[-1], 0.0, LEVELS)
    for _ in range(2):
        bounds = [bound(level) for level in tried.tolist()]
        best = int(np.argmin(bounds))
        tried = np.linspace(tried[max(best - 1, 0)], tried[min(best + 1, len(tried) - 1)], LEVELS)
    return min(bounds)


def posterior(prior: float, delta: float, epsilons: Array, deltas: Array) -> float:
    """The least bound on the mean of the largest beliefs among these ε and their negatives: any of them is one."""
    negative = -np.expm1(-epsilons) + np.exp(-epsilons) * deltas
    curve, epsilons = np.append(deltas, negative), np.append(epsilons, -epsilons)
    level, rest = expit(logit(prior) + epsilons), expit(-logit(prior) - epsilons)
    return float(min(np.min(level + rest * prior * curve / delta), prior / delta, 1.0))
