"""The plan of an audit: everything that its numbers depend on, cut into shards that can be trained anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsub._core import DPSGD, CanaryPair
from dpsub._core.datasets import LONG_NAMES
from dpsub.audits.learned_scores import LearnedScore, Learning
from dpsub.audits.observers import BY_NAME, Observer, Score
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers import StepCanary, block_size

SHARDS = 128  # of a repeat, at most: few files, and little is lost with one shard
ONCE, EACH_REPEAT = "once", "anew for each repeat"  # the attribute `canary_crafted`

Arrays = dict[str, NDArray[Any]]  # of a shard, by variable


class Stopped(Exception):
    """A shard was told to stop before it was trained."""


class Variable(NamedTuple):
    """How one variable is stored; `fill` stands for values that are not trained yet."""

    sizes: dict[str, int]  # by dimension, in order
    dtype: str
    fill: float
    long_name: str
    coordinates: str = ""  # that it has beside those of its dimensions

    @property
    def dims(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @property
    def attributes(self) -> dict[str, str]:
        """What a store says of it, as xarray reads it."""
        return {"long_name": self.long_name, **({"coordinates": self.coordinates} if self.coordinates else {})}

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes.values())


class Shard(NamedTuple):
    """Whole blocks of one repeat, trained and stored together: its runs from `start` to before `stop`."""

    number: int
    repeat: int
    blocks: range
    start: int
    stop: int

    def __str__(self) -> str:
        return f"runs {self.start} to {self.stop - 1} of repeat {self.repeat}"


class Cut(NamedTuple):
    """How the runs of an audit are cut into shards of whole blocks."""

    runs: int
    repeats: int
    block_size: int
    most: int = SHARDS  # shards of a repeat

    @property
    def shard_runs(self) -> int:
        """The runs of each shard of a repeat but the last, which may have fewer."""
        return -(-self._blocks // self.most) * self.block_size

    @property
    def shards_each(self) -> int:
        """How many shards a repeat has."""
        return -(-self.runs // self.shard_runs)

    @property
    def shards(self) -> int:
        return self.shards_each * self.repeats

    def shard(self, number: int) -> Shard:
        repeat, place = divmod(number, self.shards_each)
        start = place * self.shard_runs
        stop = min(start + self.shard_runs, self.runs)
        return Shard(number, repeat, range(start // self.block_size, -(-stop // self.block_size)), start, stop)

    @property
    def _blocks(self) -> int:
        return -(-self.runs // self.block_size)


@dataclass(frozen=True, eq=False)
class Plan:
    """What an audit will train and observe."""

    task: Task
    model: Model
    canaries: tuple[CanaryPair, ...]  # one for all repeats, or one for each
    spec: DPSGD
    runs: int
    observe_every: int
    observers: tuple[Observer, ...]  # beside the scores
    coordinates: str  # "span" or "all"
    seeds: tuple[int, ...]
    matmul_precision: str
    learning: Learning | None = field(default=None, kw_only=True)  # None: the canary's own score

    @property
    def repeats(self) -> int:
        return len(self.seeds)

    @property
    def is_to_learn(self) -> bool:
        """Whether the score has to be learned before models can be judged."""
        return self.learning is not None and self.learning.learned is None

    @property
    def score_copies(self) -> int:
        return Score.copies if self.learning is None else LearnedScore.copies

    def score(self, repeat: int) -> Observer:
        """The score of the models of a repeat."""
        if self.learning is None:
            return Score()
        assert self.learning.learned is not None
        return LearnedScore(self.learning.learned, repeat, self.canaries[0].score == "displacement")

    @property
    def described(self) -> tuple[CanaryPair | StepCanary, ...]:
        """The canaries whose descriptions are stored."""
        return self.canaries

    @property
    def canary_crafted(self) -> str:
        return ONCE if len(self.canaries) == 1 else EACH_REPEAT

    @property
    def title(self) -> str:
        return f"{self.described[0].scenario} on {self.task.name}"

    @cached_property
    def observed(self) -> list[int]:
        return observed_steps(self.spec.steps, self.observe_every)

    def rows(self, observer: Observer) -> int:
        """How many models of a repeat this observer observes."""
        return self.runs if observer.most_runs is None else min(observer.most_runs, self.runs, block_size(self.model))

    @property
    def cut(self) -> Cut:
        return Cut(self.runs, self.repeats, block_size(self.model))

    @cached_property
    def shards(self) -> list[Shard]:
        return [self.cut.shard(number) for number in range(self.cut.shards)]

    @cached_property
    def variables(self) -> dict[str, Variable]:
        lead: dict[str, int] = {} if self.repeats == 1 else {"repeat": self.repeats}
        sizes = {"step": len(self.observed), "parameter": self.model.parameters}
        found = {}
        for observer in (Score(), *self.observers):
            dims = lead | {observer.dims[0]: self.rows(observer), observer.dims[1]: sizes[observer.dims[1]]}
            found[observer.name] = Variable(dims, "float32", np.nan, observer.long_name)
            if observer.name == "score":
                found["bit"] = Variable(lead | {"run": self.runs}, "int8", -1, LONG_NAMES["bit"])
        return found

    @property
    def indexes(self) -> dict[str, tuple[str, NDArray[np.int64]]]:
        """The coordinates of the dataset, each with its dimension."""
        found = {"step": np.array(self.observed)}
        found |= {one.dims[0]: np.arange(self.rows(one)) for one in self.observers if one.most_runs is not None}
        if self.repeats > 1:
            found["repeat"] = np.arange(self.repeats)
        return {name: (name, values.astype(np.int64)) for name, values in found.items()}

    def region(self, name: str, shard: Shard) -> tuple[slice | int, ...]:
        """The part of a variable that this shard fills."""
        rows = slice(shard.start, shard.stop) if "run" in self.variables[name].dims else slice(None)
        return (rows,) if self.repeats == 1 else (shard.repeat, rows)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """What determines the numbers: everything needed to run the audit again, except device and versions."""
        canaries = self.described
        first = canaries[0]

        def each(values: list[Any]) -> Any:
            plain = [value.item() if isinstance(value, np.generic) else value for value in values]
            return plain[0] if len(plain) == 1 else plain

        observed = {name: value for one in self.observers for name, value in one.attributes(self.task).items()}
        own = {
            "scenario": first.scenario,
            "adjacency": first.adjacency,
            "task": self.task.name,
            "task_fingerprint": self.task.fingerprint,
            "n": len(self.task.y_train),
            "model": repr(self.model),
            **asdict(self.spec),
            "runs": self.runs,
            "observe_every": self.observe_every,
            "repeats": self.repeats,
            "metrics": " ".join(one.name for one in self.observers),
            "trained_coordinates": self.coordinates,  # `coordinates` means something else to xarray
            "seed": self.seeds[0],
            **({"seeds": list(self.seeds)} if self.repeats > 1 else {}),
            "block_size": block_size(self.model),
            "matmul_precision": self.matmul_precision,
            "slot": each([canary.slot for canary in canaries]),
            "canary_crafted": self.canary_crafted,
            "canary_fingerprint": each([canary.fingerprint for canary in canaries]),
            **{f"canary_{name}": each([c.details[name] for c in canaries]) for name in first.details},
        }
        if self.learning is not None:
            own |= self.learning.attributes
        if taken := sorted(observed.keys() & own.keys()):
            raise ValueError(f"metrics must have attributes of other names than the audit's own, got {taken[0]!r}")
        return own | observed

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any attribute."""
        return fingerprint(self.attributes)


def observed_steps(steps: int, observe_every: int) -> list[int]:
    return sorted({*range(observe_every, steps + 1, observe_every), steps})


def implied_coordinates(metrics: str) -> str:
    """The coordinates that "auto" chooses for these metrics. Observers outside `BY_NAME` do not count."""
    known = (BY_NAME[name] for name in metrics.split() if name in BY_NAME)
    return "all" if any(one.all_coordinates for one in known) else "span"


def fingerprint(attributes: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that change with any attribute.

    Coordinates that the metrics imply do not count, so that stores from before the choice keep their fingerprint.
    """
    known = dict(attributes)
    if "metrics" in known and known.get("trained_coordinates") == implied_coordinates(known["metrics"]):
        del known["trained_coordinates"]
    return sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]
