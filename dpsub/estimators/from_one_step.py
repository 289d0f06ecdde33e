"""From the bound of one step to the bound of a training."""

from __future__ import annotations

import math
from dataclasses import replace

from dpsub._core import checks
from dpsub.accounting.phases import LEAST_NOISE as LEAST_SIGMA
from dpsub.accounting.phases import LEAST_RATE, MOST_STEPS
from dpsub.estimators.dpsgd_claim import LEAST_NOISE, MechanismDP
from dpsub.estimators.lower_bounds import LowerBound


def step_to_training(bound: LowerBound, *, sample_rate: float, steps: int, delta: float, adjacency: str) -> LowerBound:
    r"""A lower bound on the ε of a whole training, from the bound of one of its steps.

    A step that surely holds the record adds noise σ to one of two sums that are d clipping bounds apart: d = 2 under
    substitution, 1 otherwise. So it is μ-GDP with :math:`\mu = d/\sigma`. A lower bound on μ is an upper bound on σ,
    and the ε of a training with that noise is a lower bound on its ε. It assumes that every step adds the same noise as
    those observed, and it is against an adversary who sees every step.

    Args:
        bound: of one step. With method "gdp", the record must have been in every observed batch (`sample_rate` 1), and
            its worlds as far apart as `adjacency` allows. With method "pld", its noise multiplier is used. A bound that
            says that it is of a training is refused.
        sample_rate, steps: those of the training that the bound is for.
        delta: 0 < δ < 1; the δ at which ε is stated.
        adjacency: "substitute", "add_remove" or "zero_out": that of the observations and of the training.

    Returns:
        A `LowerBound` of method "pld". It is valid if `bound` is.

    Raises:
        ValueError: if bound is not one `LowerBound` of method "gdp" or "pld", if it is not of a step, or if an argument
            is out of range.

    Source: *Tight Auditing*, Algorithm 2, which observes steps; section 4.1 and appendix A for claims about noise.

    >>> step = LowerBound(3.9, 0.9, None, None, None, "gdp", "gdp", True)
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
    sample_rate = checks.real("sample_rate", sample_rate, at_least=LEAST_RATE, at_most=1)
    claim = MechanismDP(
        checks.probability("delta", delta),
        sample_rate,
        checks.whole("steps", steps, at_most=MOST_STEPS),
        checks.adjacency(adjacency),
    )
    parameter = _parameter(bound, claim)
    note = bound.note
    if parameter > claim.most and sample_rate < 1:
        parameter, note = claim.most, f"of noise_multiplier {LEAST_NOISE}: the step's bound speaks for even less"
    epsilon = claim.epsilon(parameter) if parameter else 0.0
    if not epsilon:
        why = f"{steps} steps with the noise that was not refuted have epsilon 0 at delta = {delta:g}"
        note = why if parameter else f"the step's bound refutes no noise: {bound.note or 'it is 0'}"
    return replace(
        bound,
        epsilon=epsilon,
        mu=None,
        method="pld",
        assumes="mechanism",
        noise_multiplier=claim.noise_multiplier(parameter),
        note=note,
        of="training",
    )


def _parameter(bound: LowerBound, claim: MechanismDP) -> float:
    """The μ of the training at full batch."""
    if bound.mu is not None and bound.assumes != "product":
        return checks.real("bound.mu", bound.mu, at_least=0, at_most=1e6) * math.sqrt(claim.steps)
    if bound.noise_multiplier is None:
        raise ValueError(
            f"bound must be of method 'gdp' or 'pld', which say how much noise a step adds, got {bound.method!r}"
        )
    if bound.noise_multiplier == math.inf:
        return 0.0
    return claim.noise_multiplier(checks.real("bound.noise_multiplier", bound.noise_multiplier, at_least=LEAST_SIGMA))
