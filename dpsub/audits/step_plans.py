"""The plan of an audit of steps: trainings side by side, with a world for each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from dpsub._core import CanaryPair
from dpsub._core.random_streams import stream
from dpsub.audits.plans import Plan, Variable
from dpsub.trainers import StepCanary

STEPS = "steps"  # the attribute `audited`, which audits of models do not have
EACH_STEP = "anew at each step"  # the attribute `canary_crafted`
PROTOCOLS = ("coins", "two_trainings")
OBSERVATION = "observation"  # the dimension of the steps of one training, and of several, one after the other


@dataclass(frozen=True, eq=False)
class StepPlan(Plan):
    """What an audit of steps will train. Its runs are the trainings, and it observes all steps.

    Attributes:
        canary: the pair, or what crafts it at each step.
        canary_rate: the probability that the slot is sampled at a step.
        protocol: "coins" tosses the world of each step, "two_trainings" alternates worlds between trainings.
    """

    canary: CanaryPair | StepCanary
    canary_rate: float
    protocol: str

    @property
    def described(self) -> tuple[CanaryPair | StepCanary, ...]:
        return (self.canary,)

    @property
    def canary_crafted(self) -> str:
        return super().canary_crafted if self.canaries else EACH_STEP

    @cached_property
    def variables(self) -> dict[str, Variable]:
        sizes = {"run": self.runs, "step": self.spec.steps}
        return {
            "score": Variable(sizes, "float32", np.nan, "score of a step, higher speaks for z"),
            "bit": Variable(sizes, "int8", -1, "0: z was in the slot at this step, 1: z_prime"),
        }

    @cached_property
    def attributes(self) -> dict[str, Any]:
        return super().attributes | {"audited": STEPS, "q_c": self.canary_rate, "protocol": self.protocol}

    def coins(self, block: int) -> tuple[NDArray[np.int8], NDArray[np.bool_]]:
        """(steps, trainings of the block) each: the world of each step, and whether the slot is sampled."""
        size, seed = self.cut.block_size, self.seeds[0]
        trainings = min(size, self.runs - block * size)
        source = stream(seed, "steps", block)
        if self.protocol == "coins":
            worlds = source.integers(0, 2, (self.spec.steps, size), dtype=np.int8)
        else:
            numbers = block * size + np.arange(size)
            worlds = np.broadcast_to((numbers % 2).astype(np.int8), (self.spec.steps, size))
        sampled = source.random((self.spec.steps, size)) < self.canary_rate
        return worlds[:, :trainings], sampled[:, :trainings]


def is_of_steps(attributes: Mapping[str, Any]) -> bool:
    """Whether these are the attributes of an audit of steps."""
    return attributes.get("audited") == STEPS


def one_after_the_other(found: xr.Dataset) -> xr.Dataset:
    """Scores and bits (observation,), training by training, from those of an audit of steps, (run, step)."""
    trainings, steps = found.sizes["run"], found.sizes["step"]
    same_world = {"same_world": (OBSERVATION, np.ones(trainings * steps, bool))}
    return xr.Dataset(
        {name: (OBSERVATION, found[name].values.reshape(-1), found[name].attrs) for name in ("score", "bit")},
        coords={
            "training": (OBSERVATION, np.repeat(np.arange(trainings), steps)),
            "step": (OBSERVATION, np.tile(found.step.values, trainings)),
            **(same_world if found.attrs["protocol"] != "coins" else {}),
        },
        attrs=found.attrs,
    )
