r"""Algorithm 2 of *Tight Auditing*: every step of a training is an observation."""

from __future__ import annotations

import os
from typing import Any

import xarray as xr

from dpsub._core import DPSGD, CanaryPair, checks
from dpsub.audits.checked_arguments import check_canary
from dpsub.audits.many_runs import carried_out
from dpsub.audits.step_plans import PROTOCOLS, StepPlan
from dpsub.data import Task
from dpsub.models import Model, check_fits
from dpsub.trainers import StepCanary, devices

LEAST_RATE = 1e-9


def audit_steps(
    task: Task,
    model: Model,
    canary: CanaryPair | StepCanary,
    spec: DPSGD,
    *,
    canary_rate: float = 1.0,
    trainings: int = 1,
    protocol: str = "coins",
    seed: int = 0,
    device: str = "auto",
    matmul_precision: str = "highest",
    store: str | os.PathLike[str] | None = None,
    repair: bool = False,
    allow_mix: bool = False,
    client: Any = None,
    progress: bool = True,
) -> xr.Dataset:
    r"""Train with z or z′ in the slot by a fair coin for each step, and score every privatised sum.

    The adversary sees every step and, if the canary is a gradient, chooses it. So one training shows what thousands of
    final models show otherwise. Observations of one training depend on each other: the model of a step comes from the
    steps before it. `epsilon_lower_bound` takes the scores as they are, and bets on them by default, which allows that.
    Its bound is that of one step; `step_to_training` makes it that of a training.

    At each step a fair coin says which of z and z′ is in the slot, and the slot is sampled with probability
    `canary_rate`. The other n − 1 records are sampled with probability `spec.sample_rate`. The score is the privatised
    sum's product with the direction from z′ to z, in units of C: N(±1, σ²) for opposite gradients of norm C, and
    N(1, σ²) against N(0, σ²) beside an empty slot, plus what the other records contribute in that direction.

    Args:
        task, model: as in `audit`.
        canary: a pair, which stays the same, or a `StepCanary`, which is crafted anew at each step, such as
            `crafters.gradient_each_step` and `crafters.record_each_step` make. A record's gradient is always that at
            the current model, clipped.
        spec: the DP-SGD parameters. `spec.steps` is the length of each training.
        canary_rate: q_c, 0 < q_c ≤ 1. At 1, the default, the audit is of the noise alone, and claims of μ-GDP are
            exact. Below, give method "pld" with `sample_rate=canary_rate, steps=1`.
        trainings: ≥ 1; how many trainings, one after the other: trainings × steps observations. They train side by
            side.
        protocol: "coins", or "two_trainings", as in the paper's experiments: z is in the slot at all steps of the
            first training and z′ at those of the second, and so on. There the world is not tossed anew at each step,
            so that bets do not apply, and bounds by ranks are not valid: they take observations for independent.
        seed: ≥ 0; of batches, noise, starts and coins.
        device, matmul_precision, repair, allow_mix, client, progress: as in `audit`.
        store: as in `audit`. What is stored at once are trainings: an interrupted training begins anew.

    Returns:
        A dataset with `score` (observation,) float32, higher speaks for z, and `bit` (observation,) int8, 0 for z and 1
        for z′, in the order in which they were made, training by training. The coordinates `training`, from 0, and
        `step`, from 1, say where an observation belongs. For "two_trainings" there is the coordinate `same_world`, True
        everywhere: `epsilon_lower_bound` reads it. The attributes hold all parameters.

    Raises:
        ValueError: as `audit`; if `trainings` is odd for "two_trainings".
        OSError, ConnectionError, KeyboardInterrupt: as `audit`.

    Source: *Tight Auditing*, Algorithm 2 and sections 5.1 to 5.4.

    >>> from dpsub import DPSGD, crafters, data, estimators, models
    >>> task = data.digits(n_train=50)
    >>> model, spec = models.linear(task), DPSGD(1.0, 1.0, 0.5, 500, 0.1)
    >>> canary = crafters.gradient(task, model, spec, seed=0)
    >>> seen = audit_steps(task, model, canary, spec, progress=False)
    >>> step = estimators.epsilon_lower_bound(seen.score, seen.bit, delta=1e-5)
    >>> dict(seen.sizes), 1 < step.mu < 2, step.observations
    ({'observation': 500}, True, 500)
    """
    check_fits(model, task)
    if not isinstance(spec, DPSGD):
        raise ValueError(f"spec must be a dpsub.DPSGD, got a {type(spec).__name__}")
    if not isinstance(canary, CanaryPair | StepCanary):
        raise ValueError(f"canary must be a dpsub.CanaryPair, or a StepCanary, got a {type(canary).__name__}")
    check_canary(task, model, canary, spec)
    checks.choice("protocol", protocol, PROTOCOLS)
    trainings = checks.whole("trainings", trainings)
    if protocol == "two_trainings" and trainings % 2:
        raise ValueError(
            f"trainings must be even for protocol 'two_trainings', one with z for each with z_prime, got {trainings}"
        )
    plan = StepPlan(
        task=task,
        model=model,
        canaries=(canary,) if isinstance(canary, CanaryPair) else (),
        spec=spec,
        runs=trainings,
        observe_every=1,
        observers=(),
        coordinates="all",
        seeds=(checks.whole("seed", seed, at_least=0),),
        matmul_precision=checks.choice("matmul_precision", matmul_precision, tuple(devices.PRECISIONS)),
        canary=canary,
        canary_rate=checks.real("canary_rate", canary_rate, at_least=LEAST_RATE, at_most=1),
        protocol=protocol,
    )
    return carried_out(
        plan, device=device, store=store, repair=repair, allow_mix=allow_mix, client=client, progress=progress
    )
