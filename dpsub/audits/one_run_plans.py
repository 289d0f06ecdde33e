"""The plan of an audit of one training: many pairs, with coins of its own for each model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsub._core import DPSGD, CanaryPair, Pairs
from dpsub._core.random_streams import stream
from dpsub.audits.plans import Cut, Shard, Variable, fingerprint
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers import block_size

ONE_RUN = "one run"  # the attribute `audited`, which audits of models do not have
METRICS = ("accuracy", "weights")
MODEL, PAIR, SLOT = "model", "pair", "slot"  # the dimensions, and the coordinate of pairs
MOST_MODELS = 10**6
MOST_ITERATIONS = 10**4
LONG_NAMES = {
    "score": "score of the final model, higher speaks for z",
    "step_score": "score of all steps, higher speaks for z",
    "bit": "0: z was in the slot, 1: z_prime",
    "accuracy": "test accuracy of the final model",
    "weights": "parameters of the final model",
}


@dataclass(frozen=True, eq=False)
class OneRunPlan:
    """What an audit of one training, or of several with coins of their own, will train. Its runs are the models."""

    task: Task
    model: Model
    pairs: Pairs
    spec: DPSGD
    runs: int
    subtract_expected: bool
    whiten: int
    metrics: tuple[str, ...]
    seed: int
    matmul_precision: str

    canaries: tuple[CanaryPair, ...] = ()  # of pairs, stores keep the checksum
    repeats: int = 1

    @property
    def title(self) -> str:
        return one_run_title(self.attributes)

    @property
    def cut(self) -> Cut:
        return Cut(self.runs, 1, block_size(self.model))

    @cached_property
    def shards(self) -> list[Shard]:
        return [self.cut.shard(number) for number in range(self.cut.shards)]

    @cached_property
    def variables(self) -> dict[str, Variable]:
        return one_run_variables(self.runs, len(self.pairs), self.model.parameters, self.metrics)

    @property
    def indexes(self) -> dict[str, tuple[str, NDArray[np.int64]]]:
        return {SLOT: (PAIR, self.pairs.slots)}

    def region(self, name: str, shard: Shard) -> tuple[slice | int, ...]:
        """The part of a variable that this shard fills."""
        return (slice(shard.start, shard.stop),)

    def coins(self, block: int) -> NDArray[np.int8]:
        """(models of the block, m): which world fills each slot, by fair coins."""
        size = block_size(self.model)
        tossed = stream(self.seed, "one_run", block).integers(0, 2, (size, len(self.pairs)), dtype=np.int8)
        return tossed[: self.runs - block * size]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Everything needed to run the audit again, except device and versions."""
        details = self.pairs.details.items()
        return {
            "audited": ONE_RUN,
            "scenario": self.pairs.scenario,
            "adjacency": self.pairs.adjacency,
            "task": self.task.name,
            "task_fingerprint": self.task.fingerprint,
            "n": len(self.task.y_train),
            "model": repr(self.model),
            **asdict(self.spec),
            "models": self.runs,
            "pairs": len(self.pairs),
            "pairs_fingerprint": self.pairs.fingerprint,
            "subtract_expected": int(self.subtract_expected),
            "whiten": self.whiten,
            "metrics": " ".join(self.metrics),
            **({"test_fingerprint": self.task.test_fingerprint} if "accuracy" in self.metrics else {}),
            "seed": self.seed,
            "block_size": block_size(self.model),
            "matmul_precision": self.matmul_precision,
            **{f"pairs_{name}": one.item() if isinstance(one, np.generic) else one for name, one in details},
        }

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any attribute."""
        return fingerprint(self.attributes)


def is_of_one_run(attributes: Mapping[str, Any]) -> bool:
    """Whether these are the attributes of an audit of one training."""
    return attributes.get("audited") == ONE_RUN


def one_run_title(attributes: Mapping[str, Any]) -> str:
    """What an audit with these attributes is of."""
    return f"{attributes['pairs']} pairs of {attributes['scenario']} on {attributes['task']}"


def one_run_variables(models: int, pairs: int, parameters: int, metrics: Iterable[str]) -> dict[str, Variable]:
    """The variables of an audit of one training."""
    each = {MODEL: models, PAIR: pairs}
    own = {"accuracy": {MODEL: models}, "weights": {MODEL: models, "parameter": parameters}}
    return {
        **{name: Variable(each, "float32", np.nan, LONG_NAMES[name], SLOT) for name in ("score", "step_score")},
        "bit": Variable(each, "int8", -1, LONG_NAMES["bit"], SLOT),
        **{name: Variable(own[name], "float32", np.nan, LONG_NAMES[name]) for name in metrics},
    }
