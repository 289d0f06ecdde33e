r"""Algorithm 2 of *Tight Auditing*: every step of a training is an observation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from dpsub._core import CanaryPair, checks
from dpsub._core.random_streams import stream
from dpsub.accounting import DPSGD
from dpsub.audits.bank_plans import (
    EACH_STEP,
    ONCE,
    PRECISION,
    BankPlan,
    canary_attributes,
    check_canary,
    check_norm,
    refuse_other_batches,
)
from dpsub.audits.execution import Options, execute
from dpsub.audits.plans import Arrays, Tick, unfilled
from dpsub.data import Task
from dpsub.models.interface import Model, check_fits
from dpsub.trainers.slot import GradientSlot
from dpsub.trainers.step_canaries import StepCanary

PROTOCOLS = ("coins", "two_trainings", "algorithm_2")
OBSERVATION = "observation"  # the dimension of the steps of one training, and of several, one after the other


@checks.checked(
    "spec",
    "seed",
    protocol=partial(checks.choice, options=PROTOCOLS),
    trainings=checks.whole,
    canary_rate=checks.ARGUMENTS["sample_rate"],
    matmul_precision=PRECISION,
)
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
    matmul_precision: str = "highest",
    **options: Unpack[Options],
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
        spec: the DP-SGD parameters. `spec.steps` is the length of each training. For "algorithm_2" the optimizer is
            SGD.
        canary_rate: q_c, 0 < q_c ≤ 1. At 1, the default, the audit is of the noise alone, and claims of μ-GDP are
            exact. Below, give claim "pld" with `sample_rate=canary_rate, steps=1`.
        trainings: ≥ 1; how many trainings, one after the other: trainings × steps observations, twice as many for
            "algorithm_2". They train side by side.
        protocol: "coins", or "two_trainings", as in the paper's experiments: z is in the slot at all steps of the
            first training and z′ at those of the second, and so on. There the world is not tossed anew at each step,
            so that bets do not apply, and bounds by ranks are not valid: they take observations for independent.
            "algorithm_2", as the paper's listing: two observations a step, at the same models, with batches and noise
            of their own. The first has z in its sum and is not trained on, the second z′, or nothing. For bounds it is
            as "two_trainings".
        seed: ≥ 0; of batches, noise, starts and coins.
        matmul_precision, options: as in `audit`. What is stored at once are trainings: an interrupted
            training begins anew.

    Returns:
        A dataset with `score` (observation,) float32, higher speaks for z, and `bit` (observation,) int8, 0 for z and 1
        for z′, in the order in which they were made, training by training. The coordinates `training`, from 0, and
        `step`, from 1, say where an observation belongs. Unless coins decide, there is the coordinate `same_world`,
        True everywhere: `epsilon_lower_bound` reads it. The attributes hold all parameters.

    Raises:
        ValueError: as `audit`; if `trainings` is odd for "two_trainings", or the optimizer is not SGD for
            "algorithm_2".
        sqlite3.Error, OSError, KeyboardInterrupt: as `audit`.

    Source: *Tight Auditing*, Algorithm 2 and sections 5.1 to 5.4.

    >>> from dpsub import DPSGD, crafters, data, estimators, models
    >>> task = data.digits(n_train=50)
    >>> model, spec = models.linear(task), DPSGD(1.0, 1.0, 0.5, 500, 0.1)
    >>> canary = crafters.gradient(task, model, spec, seed=0)
    >>> seen = audit_steps(task, model, canary, spec, progress=False)
    >>> step = estimators.epsilon_lower_bound(seen.score, seen.bit, delta=1e-5)
    >>> dict(seen.sizes), 1 < step.mu < 2, step.details["observations"]
    ({'observation': 500}, True, 500)
    """
    refuse_other_batches(spec)
    check_fits(model, task)
    checks.instance("canary", canary, of=CanaryPair | StepCanary, called="a dpsub.CanaryPair, or a StepCanary")
    check_canary(task, model, canary, spec)
    if protocol == "two_trainings" and trainings % 2:
        raise ValueError(f"trainings must be even for protocol 'two_trainings', one for each world, got {trainings}")
    if protocol == "algorithm_2" and spec.optimizer != "sgd":
        raise ValueError(f"spec must have optimizer 'sgd' for protocol 'algorithm_2', got {spec.optimizer!r}")
    training = task, model, spec, (canary,), trainings, seed, matmul_precision
    return execute(Steps(*training, canary_rate, protocol), **options)


@dataclass(frozen=True, eq=False)
class Steps(BankPlan):
    """What an audit of steps trains. Its runs are the trainings, and it observes all steps.

    Attributes:
        canary_rate: the probability that the slot is sampled at a step.
        protocol: "coins" tosses the world of each step, "two_trainings" alternates worlds between trainings, and
            "algorithm_2" within each step.
    """

    call: ClassVar[str] = "audit_steps"
    unit: ClassVar[str] = " steps"
    purpose = "steps"

    canary_rate: float
    protocol: str

    @property
    def each_step(self) -> int:
        """How many observations a step has."""
        return 2 if self.protocol == "algorithm_2" else 1

    def empty(self) -> xr.Dataset:
        steps = np.repeat(np.arange(1, self.spec.steps + 1), self.each_step)
        sizes = {OBSERVATION: self.runs * len(steps)}
        coordinates = {
            "training": np.repeat(np.arange(self.runs), len(steps)),
            "step": np.tile(steps, self.runs),
        }
        if self.protocol != "coins":
            coordinates["same_world"] = np.ones(self.runs * len(steps), bool)
        return xr.Dataset(
            {
                "score": unfilled("score of a step, higher speaks for z", sizes),
                "bit": unfilled("0: z was in the slot at this step, 1: z_prime", sizes, "int8"),
            },
            {name: (OBSERVATION, values) for name, values in coordinates.items()},
        )

    @cached_property
    def attributes(self) -> dict[str, Any]:
        return super().attributes | {
            "audited": "steps",
            "runs": self.runs,
            "q_c": self.canary_rate,
            "protocol": self.protocol,
            **canary_attributes(self.canaries, ONCE if self.pairs_kept else EACH_STEP),
        }

    @property
    def copies(self) -> int:
        return 4  # which the canary's gradients and the score take

    def coins(self, block: int) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """(observations, trainings of the block) each: the world of each, and whether the slot is sampled."""
        size, trainings = self.block_size, self.models_of(block)
        source, shape = stream(self.seed, self.purpose, block), (self.spec.steps * self.each_step, size)
        if self.protocol == "coins":
            worlds = source.integers(0, 2, shape, dtype=np.int8)
        else:
            numbers = block * size + np.arange(size) if self.each_step == 1 else np.arange(shape[0])[:, None]
            worlds = np.broadcast_to((numbers % 2).astype(np.int8), shape)
        sampled = source.random(shape) < self.canary_rate
        return worlds[:, :trainings], sampled[:, :trainings]

    def block(self, repeat: int, block: int, device: torch.device, tick: Tick) -> Arrays:
        [canary] = self.canaries
        worlds, sampled = self.coins(block)
        bits = np.zeros(worlds.shape[1], dtype=np.int8)
        bank = self.bank(block, device=device, bits=bits, canary=canary, seed=self.seed)
        # Whatever is in the slot enters as its gradient at the current models, by a coin of the canary rate.
        pair = bank.slot
        bank.inputs, bank.labels = bank.inputs[: bank.shared], bank.labels[: bank.shared]
        with_z_prime = torch.tensor(np.ascontiguousarray(worlds), device=device) != 0
        in_batch = torch.tensor(np.ascontiguousarray(sampled), device=device)
        scores, longest = [], torch.zeros((), device=device)
        for number, (in_z_prime, drawn) in enumerate(zip(with_z_prime, in_batch, strict=True)):
            step, again = divmod(number, self.each_step)
            if not again:
                if isinstance(canary, CanaryPair):
                    gradients = pair.at_step(bank)
                else:
                    gradients = canary.gradients(bank, step + 1)
                    longest = torch.maximum(longest, gradients.longest)
                    if step in (0, self.spec.steps - 1):  # in between it would make a GPU wait
                        check_norm("canary", float(longest), self.spec.max_grad_norm)
            before = bank.theta.clone() if again + 1 < self.each_step else None
            present = torch.stack([~in_z_prime, in_z_prime])[:, None]
            bank.slot = slot = GradientSlot(present[: 1 + (gradients.z_prime is not None)], gradients)
            bank.advance(slot_sampled=drawn)
            scores.append(slot.step_scores(bank, self.canary_rate))
            if before is None:
                tick(bank.runs)
            else:  # this observation is not trained on
                bank.theta.copy_(before)
        return {"score": torch.stack(scores, dim=1).cpu().numpy(), "bit": np.ascontiguousarray(worlds.T)}
