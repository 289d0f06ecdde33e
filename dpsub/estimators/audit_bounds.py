"""From what an audit returns to its bounds: of one step, of a training, and over repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.special import bdtrik

from dpsub._core import checks
from dpsub.accounting import Sampling
from dpsub.estimators.claims import GDP, Claim
from dpsub.estimators.dpsgd_claim import LEAST_TESTED, Known, MechanismDP
from dpsub.estimators.lower_bounds import (
    CLAIMS,
    OF_GUESSES,
    ClaimLike,
    LowerBound,
    RuleLike,
    claims_of,
    epsilon_lower_bound,
    one_run_epsilon_lower_bound,
)
from dpsub.estimators.numerics import Array
from dpsub.estimators.one_run import Guesses, one_run_guesses

CHANGED = "the claimed noise changed between the steps, and the bound takes all of them for equal"
GROWN = "runs were added to the audit: if what the first ones showed decided that, only rule 'bets' is valid"
NO_RATE = "of one step: the sample rate of the training is not known, which step_to_training takes"
NO_TOLERANCE = (
    "nothing is known of how far the proxy is from the truth, and its mistakes look like leaks: give proxy_labels a "
    "tolerance"
)
OF_PROXY = 0.1  # the share of alpha for more mistakes of a proxy than are allowed for
NOT_GDP = "a step with a canary rate below 1 is not of GDP: give claim 'pld'"


@checks.checked("delta", "alpha")
def bound(
    result: Any,
    *,
    delta: float,
    claim: ClaimLike | None = None,
    rule: RuleLike | Sequence[int] | None = None,
    alpha: float = 0.05,
) -> LowerBound | list[Any]:
    r"""The lower bounds on ε that an audit supports, whatever kind of audit it is. Valid by default for its kind.

    The dimensions and attributes of an audit say of which kind it is:

    - Many models (`run`), as `audit`, `audit_worst_case`, `audit_training` and `distinguish` return them, are judged by
      `epsilon_lower_bound`: by ranks, or by folds where each fold has a scorer of its own.
    - Steps (`observation`), as `audit_steps` and an auditor's `observations()` return them, are judged by bets, which
      bound one step. `step_to_training` makes that the bound of the training, with the attributes `sample_rate`,
      `steps`, `adjacency` and `sampling`; the step's bound is its `step`. Below a canary rate of 1 the claim is
      "pld", of a step that samples the record at this rate. The bound is of one step if the sample rate is not known,
      or if the claim says nothing of noise.
    - Many pairs in one model or more (`pair`), as `audit_one_run` and `one_run_dataset` return them, are judged by
      guesses of the coins: of `step_score`, or of `score`, which sees the final models alone, where there is no other.
      They are made around 0 for step scores from which the expected was subtracted and for labels beside a proxy's,
      otherwise around each model's median. The bound says what was chosen: `guesses`, `correct`, `pairs`, `centre` and
      `scored`.
    - Labels beside a proxy's in one finished model (`pair`), as `proxy_labels` gives them, are judged in the same way,
      less the right guesses that the proxy's tolerance may cause. Without a tolerance no bound is valid.

    Args:
        result: the dataset of an audit.
        delta: 0 < δ < 1; the δ at which ε is stated.
        claim: which claims are tested: a name or a `Claim`, as in `epsilon_lower_bound`; "product", too, for many
            pairs. "gdp" by default. "pld" takes `sample_rate`, `steps`, `adjacency` and `sampling` from the audit. If
            all records are known, as in `audit_worst_case`, the attribute `tested_as` may name an adjacency of Poisson
            batches with the worlds of this data set.
        rule: how the threshold is chosen: a name, a number or a `ThresholdRule`, as in `epsilon_lower_bound`. For m
            pairs it is the number of guesses, or a sequence of several, which share alpha. By default it is 2·m^(2/3),
            and all m for claim "product". For idealised canaries, m from 20 to 50,000 and μ from 0.5 to 4, this showed
            on average as much as the best share of the pairs at each m.
        alpha: 1e-12 < alpha < 0.5; the probability with which the bound may exceed the truth.

    Returns:
        A `LowerBound`. For many models at several steps (dimension `step`) a list with one for each step; for several
        repeats (dimension `repeat`) a list with one of these for each repeat. What the marks or the attributes of an
        audit make invalid has `valid` False, and `note` says why.

    Raises:
        ValueError: if the result is not the dataset of an audit, if runs are missing or there twice, if it holds more
            runs, steps or pairs than its attributes speak of, if claim and rule cannot be used for this kind of audit,
            or if an argument is out of range.

    >>> from dpsub import audit_worst_case
    >>> audited = audit_worst_case(noise_multiplier=20, sample_rate=1, steps=100, runs=2_500, adjacency="substitute")
    >>> print(bound(audited.isel(step=0), delta=1e-5))
    ε ≥ 3.82 at δ = 1e-05, 95 % confidence, of a training (gdp by ranks; assumes a Gaussian mechanism's curve; valid)
    """
    if not {"score", "bit"} <= set(getattr(result, "data_vars", ())):
        raise ValueError(f"result must be the dataset of an audit, with score and bit, got a {type(result).__name__}")
    of_one_audit(result)
    names = result.score.dims
    given = {"delta": delta, "alpha": alpha, "claim": claim, "rule": rule}
    asked: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if "repeat" in names:
        return [bound(result.isel(repeat=i), **asked) for i in range(result.sizes["repeat"])]
    if "pair" in names:
        return _of_pairs(result, **asked)
    if "observation" in names:
        return _of_steps(result, **asked)
    bounds = epsilon_lower_bound(result.score, result.bit, **asked, **known_sampling(result, claim))
    if "grown_from" not in result.attrs:
        return bounds
    return [_noted(one, GROWN) for one in bounds] if isinstance(bounds, list) else _noted(bounds, GROWN)


def of_one_audit(result: Any) -> None:
    """Refuse more rows than the attributes speak of. Fewer are a selection."""
    about = result.attrs
    most = {"run": about.get("runs"), "model": about.get("models"), "pair": about.get("pairs")}
    if "steps" in about:
        most["observation"] = about["steps"] * about.get("runs", 1) * about.get("canaries", 1)
    for name, number in most.items():
        if number is not None and result.sizes.get(name, 0) > number:
            raise ValueError(
                f"result must be of one audit, got {result.sizes[name]:,} rows along {name!r} where its attributes "
                f"speak of {number:,}: joined data sets keep the attributes of the first, not those of the rest. "
                "Bound the audits one by one, or give the joined scores and bits to epsilon_lower_bound "
                "(one_run_guesses for pairs), which reads no attributes"
            )


def known_sampling(result: Any, claim: Any) -> dict[str, Any]:
    """What claim "pld" must know of the training, as far as an audit of models says it."""
    about = {name: value for name, value in result.attrs.items() if name != "steps"}
    if "step" in result.coords:
        about["steps"] = np.atleast_1d(result.step.values).tolist()
    if "tested_as" in about:
        about |= {"adjacency": about["tested_as"], "sampling": "poisson"}
    return _needed(claim, about)


def _needed(claim: Any, about: Mapping[str, Any]) -> dict[str, Any]:
    """The options of claim "pld" among what is known of a training; none for other claims."""
    named = isinstance(claim, str) and issubclass(CLAIMS.get(claim, Claim), MechanismDP)
    return {name: about[name] for name in Known.__annotations__ if name in about} if named else {}


def _of_steps(result: Any, *, delta: float, alpha: float, claim: Any = None, **rule: Any) -> LowerBound:
    about = result.attrs
    rate = checks.real("result's canary rate", about.get("q_c", about.get("canary_rate", 1.0)), above=0, at_most=1)
    adjacency = checks.choice("adjacency", about.get("adjacency"), checks.ADJACENCIES)
    claim = (GDP.name if rate == 1 else MechanismDP.name) if claim is None else claim
    of_step = _needed(claim, {"sample_rate": rate, "steps": 1, "adjacency": adjacency})
    step = epsilon_lower_bound(result.score, result.bit, delta=delta, claim=claim, alpha=alpha, **rule, **of_step)
    assert isinstance(step, LowerBound)
    if rate < 1 and step.assumes == "gdp":
        step = _noted(replace(step, valid=False), NOT_GDP)
    if step.mu is None and step.noise_multiplier is None:
        return _noted(step, f"of one step: claim {step.claim!r} says nothing of its noise, and so of the training")
    if "sample_rate" not in about:
        return _noted(step, NO_RATE)
    known = {name: about[name] for name in Known.__annotations__ if name in about}
    training = step_to_training(step, delta=delta, **known)
    if "noise_multiplier" in result.data_vars and len(np.unique(result.noise_multiplier)) > 1:
        return _noted(replace(training, valid=False), CHANGED)
    return training


def _noted(bound: LowerBound, note: str) -> LowerBound:
    return replace(bound, note="; ".join(filter(None, (bound.note, note))))


def _detailed(bound: LowerBound, **details: Any) -> LowerBound:
    return replace(bound, details={**bound.details, **details})


def _of_pairs(result: Any, *, delta: float, alpha: float, claim: ClaimLike = GDP.name, rule: Any = None) -> LowerBound:
    stepwise = "step_score" in result.data_vars
    scores, bits = result.step_score if stepwise else result.score, result.bit
    if "model" in scores.dims:
        scores, bits = scores.transpose("model", "pair"), bits.transpose("model", "pair")
    [tested] = claims_of(claim, delta, _needed(claim, result.attrs), known=OF_GUESSES)
    asked = tested.guesses(scores.size) if rule is None else rule
    if isinstance(asked, str):
        raise ValueError(f"rule must be a number of guesses, or several, for many pairs in one model, got {asked!r}")
    around_0 = "proxy" in result.attrs or (stepwise and result.attrs.get("subtract_expected"))
    centre = 0.0 if around_0 else "median"
    guessed = one_run_guesses(scores, bits, guesses=asked, centre=centre)
    if "proxy" in result.attrs:
        bound = _beside_proxy(guessed, result.attrs, tested, alpha)
    else:
        bound = one_run_epsilon_lower_bound(*guessed, delta=delta, claim=tested, alpha=alpha)
    scored = "step score" if stepwise else "final model's score"
    if result.attrs.get("reference"):
        scored += " less a reference's"
    return _detailed(bound, centre=centre, scored=scored)


def _beside_proxy(guessed: Guesses, about: Mapping[str, Any], claim: Claim, alpha: float) -> LowerBound:
    """The bound of a finished model's labels, less what the proxy may be wrong: `audits.finished_models` derives it."""
    right, made = np.atleast_1d(guessed.correct), np.atleast_1d(guessed.guesses)
    turned, allowed, tail = about.get("turned"), 0, 0.0
    if turned:
        tail = OF_PROXY * alpha
        allowed = math.ceil(max(about["drawn"] * turned, bdtrik(1 - tail, about["drawn"], turned)))
    counted = np.maximum(right - allowed, 0)
    asked: dict[str, Any] = {"delta": claim.delta, "claim": claim, "alpha": alpha - tail}
    bound = one_run_epsilon_lower_bound(counted, made, guessed.pairs, **asked)
    correct = int(right[list(made).index(bound.details["guesses"])])
    details = {"correct": correct, "proxy": about["proxy"], "tolerance": about.get("tolerance"), "allowed": allowed}
    bound = _detailed(replace(bound, alpha=alpha, assumes="proxy"), **details)
    if turned is None:
        return _noted(replace(bound, valid=False), NO_TOLERANCE)
    if allowed and not bound.epsilon:
        return replace(bound, note=f"{correct} right guesses, less the {allowed} that a proxy may cause")
    return bound


def step_to_training(
    bound: LowerBound,
    *,
    sample_rate: float,
    steps: int,
    delta: float,
    adjacency: str,
    sampling: Sampling | str = "poisson",
) -> LowerBound:
    r"""A lower bound on the ε of a whole training, from the bound of one of its steps.

    A step that surely holds the record adds noise σ to one of two sums that are d clipping bounds apart: d = 2 under
    substitution, 1 otherwise. So it is μ-GDP with :math:`\mu = d/\sigma`. A lower bound on μ is an upper bound on σ,
    and the ε of a training with that noise is a lower bound on its ε. It assumes that every step adds the same noise as
    those observed, and it is against an adversary who sees every step.

    Args:
        bound: of one step. With claim "gdp", the record must have been in every observed batch (`sample_rate` 1), and
            its worlds as far apart as `adjacency` allows. With claim "pld", its noise multiplier is used. A bound that
            says that it is of a training is refused.
        sample_rate, steps: those of the training that the bound is for.
        delta: 0 < δ < 1; the δ at which ε is stated.
        adjacency: "substitute", "add_remove" or "zero_out": that of the observations and of the training.
        sampling: how the training draws its batches, as in `accounting.epsilon`.

    Returns:
        A `LowerBound` of claim "pld", whose `step` is `bound`. It is valid if `bound` is.

    Raises:
        ValueError: if bound is not one `LowerBound` of claim "gdp" or "pld", if it is not of a step, or if an argument
            is out of range.

    Source: *Tight Auditing*, Algorithm 2, which observes steps; section 4.1 and appendix A for claims about noise.

    >>> step = LowerBound(3.9, "gdp", "gdp", True, mu=0.9)
    >>> training = step_to_training(step, sample_rate=0.1, steps=100, delta=1e-5, adjacency="substitute")
    >>> round(training.noise_multiplier, 3), training.epsilon < 3.9 * 100
    (2.222, True)
    """
    if not isinstance(bound, LowerBound):
        raise ValueError(f"bound must be one LowerBound, of one step, got {type(bound).__name__}")
    if bound.of == "training":
        raise ValueError(
            "bound must be of one step of a training, got one that is of a whole training already: state it as it is, "
            "or give the bound of an audit of steps"
        )
    claim = MechanismDP(delta, sample_rate, steps, adjacency, Sampling.of(sampling))
    if bound.mu is not None and bound.assumes != "product":
        parameter = bound.mu * math.sqrt(claim.steps)
    elif bound.noise_multiplier is not None:
        parameter = claim.noise_multiplier(bound.noise_multiplier)
    else:
        raise ValueError(
            f"bound must be of claim 'gdp' or 'pld', which say how much noise a step adds, got {bound.claim!r}"
        )
    note = bound.note
    if parameter > claim.most and sample_rate < 1:
        parameter, note = claim.most, f"of noise_multiplier {LEAST_TESTED}: the step's bound speaks for even less"
    epsilon = claim.epsilon(parameter) if parameter else 0.0
    if not epsilon:
        why = f"{steps} steps with the noise that was not refuted have epsilon 0 at delta = {delta:g}"
        note = why if parameter else f"the step's bound refutes no noise: {bound.note or 'it is 0'}"
    return replace(
        bound,
        epsilon=epsilon,
        claim=claim.name,
        assumes=claim.assumes,
        note=note,
        of="training",
        delta=claim.delta,
        mu=None,
        **claim.says(parameter),
        step=bound,
        details={name: said for name, said in bound.details.items() if name != "upper"},
    )


class OverRepeats(NamedTuple):
    """Repeated audits as the papers draw them. A mean of bounds is not a bound: it has no confidence level.

    Attributes:
        mean: over the repeats; a float, or (steps,).
        error: two standard errors of that mean, of the same shape; NaN for a single repeat.
        repeats: the number of repeats.
    """

    mean: float | Array
    error: float | Array
    repeats: int


def over_repeats(bounds: Any) -> OverRepeats:
    """Mean and two standard errors over repeated audits.

    Args:
        bounds: one entry for each repeat: a `LowerBound`, a list with one for each step, or numbers likewise. Numbers
            whose dimensions have names, as xarray gives, are read by the dimension "repeat".

    Raises:
        ValueError: if there are no repeats, if they differ in their number of steps, or if a bound is NaN.

    Source: *Beyond Membership*, Figures 2–6: "±2 standard errors around the mean".

    >>> over_repeats([3.0, 4.0, 5.0])
    OverRepeats(mean=4.0, error=1.1547005383792517, repeats=3)
    """
    if hasattr(bounds, "dims"):
        bounds = bounds.transpose("repeat", ...)
    stacked = checks.array("bounds", [_epsilons(repeat) for repeat in bounds], shape=("repeats", ...))
    if not stacked.size or stacked.ndim > 2:
        raise ValueError(f"bounds must be of one repeat or more, and of steps at most, got shape {stacked.shape}")
    error = np.full(stacked.shape[1:], np.nan)
    if len(stacked) > 1:
        error = 2 * stacked.std(axis=0, ddof=1) / np.sqrt(len(stacked))
    mean = stacked.mean(axis=0)
    return OverRepeats(mean if mean.ndim else float(mean), error if mean.ndim else float(error), len(stacked))


def _epsilons(bounds: Any) -> Any:
    if isinstance(bounds, LowerBound):
        return bounds.epsilon
    return [_epsilons(bound) for bound in bounds] if isinstance(bounds, list | tuple) else bounds
