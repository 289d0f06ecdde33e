"""Where the shards of an audit go: the protocols, and the place in memory for audits that are not stored."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

import numpy as np
import xarray as xr

from dpsub.audits.any_plans import AnyPlan
from dpsub.audits.failed_runs import without_failed
from dpsub.audits.learned_scores import Learned
from dpsub.audits.plans import Arrays, Plan, Shard
from dpsub.audits.shard_provenance import Made, origin
from dpsub.audits.step_plans import StepPlan, one_after_the_other
from dpsub.audits.training_plans import TrainingPlan

NO_FAILURES: Mapping[int, str] = {}


class Writer(Protocol):
    """Takes trained shards. It exists only while its place is open for writing."""

    @property
    def plan(self) -> AnyPlan:
        """The plan, with the noise multiplier and canaries that are stored already."""
        ...

    @property
    def missing(self) -> list[Shard]: ...

    @property
    def failed(self) -> list[Shard]:
        """The shards that hold failed runs."""
        ...

    @property
    def made(self) -> list[Made]:
        """Where the shards written so far come from."""
        ...

    def write(self, shard: Shard, arrays: Arrays, made: Made, failed: Mapping[int, str] = ...) -> None:
        """Take a shard, with the messages of its failed runs by their number."""
        ...


class Place(Protocol):
    """Where the results of an audit are kept."""

    @property
    def plan(self) -> AnyPlan: ...

    @property
    def missing(self) -> list[Shard]: ...

    @property
    def made(self) -> list[Made]: ...

    @property
    def failed(self) -> list[Shard]: ...

    def take(self, learned: Learned) -> None:
        """Take what the plan's score was learned to be. Called before the place is opened for writing."""
        ...

    def writing(self) -> AbstractContextManager[Writer]:
        """Open for writing."""
        ...

    def settle(self) -> None:
        """Repair what can be repaired without training. Called when no shard is missing."""
        ...

    def dataset(self) -> xr.Dataset:
        """The whole audit."""
        ...


def with_learned(plan: AnyPlan, learned: Learned) -> AnyPlan:
    """The plan with what its score was learned to be."""
    assert isinstance(plan, Plan)
    assert plan.learning is not None
    return replace(plan, learning=plan.learning.completed(learned))


class Memory:
    """The place for audits that are not stored."""

    def __init__(self, plan: AnyPlan) -> None:
        self.plan = plan
        self.made: list[Made] = []
        self._written: set[int] = set()
        self._failed: dict[int, str] = {}
        self._arrays = {name: np.full(v.shape, v.fill, v.dtype) for name, v in plan.variables.items()}

    @property
    def missing(self) -> list[Shard]:
        return [shard for shard in self.plan.shards if shard.number not in self._written]

    def take(self, learned: Learned) -> None:
        self.plan = with_learned(self.plan, learned)

    def writing(self) -> AbstractContextManager[Memory]:
        return nullcontext(self)

    def settle(self) -> None:
        return

    @property
    def failed(self) -> list[Shard]:
        return [
            shard for shard in self.plan.shards if any(run in self._failed for run in range(shard.start, shard.stop))
        ]

    def write(self, shard: Shard, arrays: Arrays, made: Made, failed: Mapping[int, str] = NO_FAILURES) -> None:
        for name, values in arrays.items():
            self._arrays[name][self.plan.region(name, shard)] = values
        self._written.add(shard.number)
        self._failed |= failed
        self.made.append(made)

    def dataset(self) -> xr.Dataset:
        variables = {
            name: (variable.dims, self._arrays[name], {"long_name": variable.long_name})
            for name, variable in self.plan.variables.items()
        }
        found = xr.Dataset(variables, self.plan.indexes, self.plan.attributes | origin(self.made))
        if isinstance(self.plan, StepPlan):
            return one_after_the_other(found)
        return without_failed(found, self._failed) if isinstance(self.plan, TrainingPlan) else found
