"""What is there of an audit: the numbers of its shards, in a dataset, and where they come from."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from dpsub._core.datasets import numbered
from dpsub.audits.plans import Arrays, Cut, Made, Plan, Results, Shard, joined, origin

ROUNDING = 1e-5  # of scores, as a part of what the worlds are apart


class Collected:
    """The shards of an audit that are there.

    Attributes:
        cut: how its runs are cut into shards.
        numbers: the dataset, which shards are written into. Its attributes are those of the plan.
        may_fail: whether single runs may fail.
        shards: where each shard that is there comes from, by number.
        failed: the messages of failed runs, by shard and by run.
    """

    def __init__(self, cut: Cut, numbers: xr.Dataset, *, may_fail: bool) -> None:
        self.cut, self.numbers, self.may_fail = cut, numbers, may_fail
        self.shards: dict[int, Made] = {}
        self.failed: dict[int, Mapping[int, str]] = {}

    @property
    def missing(self) -> list[Shard]:
        return [shard for shard in self.cut.shards if shard.number not in self.shards]

    @property
    def runs(self) -> int:
        """How many runs are there."""
        return self.cut.total - sum(shard.runs for shard in self.missing)

    @property
    def messages(self) -> dict[int, str]:
        """The messages of failed runs, by run."""
        return {run: message for messages in self.failed.values() for run, message in messages.items()}

    def part(self, shard: Shard) -> Arrays:
        """What a shard fills of each variable, in the order of their names. To write there is to write the dataset."""
        part, rows = {}, row_dimension(self.numbers)
        for name, variable in sorted(self.numbers.data_vars.items()):
            values = variable.values[shard.repeat] if "repeat" in variable.dims else variable.values
            if rows in variable.dims:
                size = len(values) // self.cut.runs
                part[str(name)] = values[shard.start * size : shard.stop * size]
            elif shard.start == 0:
                part[str(name)] = values
        return part

    def add(self, shard: Shard, results: Results, made: Made) -> None:
        for name, values in self.part(shard).items():
            values[...] = results.arrays[name].reshape(values.shape)
        self.shards[shard.number] = made
        self.failed[shard.number] = results.failed

    def take(self, other: Collected) -> None:
        """Take over the shards of the same audit with another number of runs. What it has of a block, it has whole."""
        holder = np.full((other.cut.repeats, other.cut.runs), -1)  # the shard that each run is in
        for shard in other.cut.shards:
            if shard.number in other.shards:
                holder[shard.repeat, shard.start : shard.stop] = shard.number
        failed = other.messages
        for shard in self.cut.shards:
            held = holder[shard.repeat, shard.start : shard.stop]
            if len(held) == shard.runs and held.min() >= 0:
                for mine, its in zip(self.part(shard).values(), other.part(shard).values(), strict=True):
                    mine[...] = its
                self.shards[shard.number] = other.shards[int(held[-1])]
                own = range(shard.start, shard.stop)
                self.failed[shard.number] = {run: message for run, message in failed.items() if run in own}

    @property
    def wall_seconds(self) -> float:
        """The total time of the sessions that wrote the shards into a file, each up to its last shard."""
        sessions: dict[str, float] = {}
        for made in self.shards.values():
            sessions[made.session] = max(made.elapsed, sessions.get(made.session, 0.0))
        return sum(sessions.values())

    @property
    def origin(self) -> dict[str, Any]:
        """Where the shards come from, as attributes; of those in a file also the commit, and how long they took."""
        shards = self.shards.values()
        if not any(made.session for made in shards):
            return origin(shards)
        return origin(shards) | {
            "commit": joined(made.commit for made in shards),
            "wall_seconds": round(self.wall_seconds, 3),
            "last_written": max(made.finished for made in shards),
        }

    def dataset(self) -> xr.Dataset:
        """The dataset of the shards that are there, without the runs that failed."""
        dataset = numbered(self.numbers.assign_attrs(self.origin))
        if "refute" in dataset.attrs:
            dataset = dataset.assign_coords(watched=("run", np.ones(self.cut.runs, bool)))
        return without_failed(dataset, self.messages) if self.may_fail else dataset


class Place:
    """Where the shards of an audit are kept: in memory, or by a `Database` in a file, too.

    Attributes:
        plan: the plan as it is kept there. It may have more runs than were asked for.
        asked: the number of runs that were asked for.
        collected: the shards that are there.
        history: attributes that say how the audit came to its number of runs.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.asked, self.history = plan, plan.cut.runs, dict[str, Any]()
        self.collected = self.empty()

    def empty(self) -> Collected:
        about = self.plan.attributes | self.history
        return Collected(self.plan.cut, self.plan.empty().assign_attrs(about), may_fail=self.plan.calls_users)

    def to_compute(self) -> list[Shard]:
        """The shards that are not there, and those with runs that failed if the plan retries them."""
        failed = self.collected.failed if self.plan.retry else {}
        again = [shard for shard in self.plan.cut.shards if failed.get(shard.number)]
        return [shard for shard in (*self.collected.missing, *again) if shard.start < self.asked]

    def resize(self, runs: int, **history: Any) -> None:
        """Go on with more or fewer runs, and say why. A file stays as it is until it is written."""
        self.plan, self.history, before = self.plan.with_runs(runs), self.history | history, self.collected
        self.collected = self.empty()
        self.collected.take(before)

    @contextmanager
    def writing(self) -> Iterator[None]:
        yield

    def write(self, shard: Shard, results: Results, made: Made) -> None:
        self.collected.add(shard, results, made)


def row_dimension(dataset: xr.Dataset) -> str:
    """The dimension along which the runs lie: the first of `bit`, repeats aside."""
    return next(str(dim) for dim in dataset.bit.dims if dim != "repeat")


def without_failed(dataset: xr.Dataset, failed: Mapping[int, str]) -> xr.Dataset:
    """The dataset without failed runs, which its attributes name.

    Args:
        dataset: all runs, failed ones included.
        failed: the messages of failed runs, by number.

    Raises:
        ValueError: if all runs failed.
    """
    numbers = sorted(failed)
    if numbers and len(numbers) == dataset.sizes["run"]:
        raise ValueError(
            f"train must not fail in every run, got {len(numbers):,} failures of as many runs, the first: {failed[0]}; "
            "mend it, and call again, with retry=True if the audit is stored"
        )
    bits = dataset.bit.values[numbers]
    dataset = dataset.assign_attrs(failed_with_z=int((bits == 0).sum()), failed_with_z_prime=int((bits == 1).sum()))
    if numbers:
        kept = np.setdiff1d(np.arange(dataset.sizes["run"]), numbers)
        messages = [failed[number] for number in numbers]
        dataset = dataset.isel(run=kept).assign_coords(run=kept)
        dataset = dataset.assign_attrs(failed_runs=numbers, failed_messages=messages)
    if _ignores_seeds(dataset.score.values, dataset.bit.values):
        return dataset.assign_coords(seed_ignored=("run", np.ones(dataset.sizes["run"], bool)))
    return dataset


def _ignores_seeds(scores: NDArray[Any], bits: NDArray[Any]) -> bool:
    """Whether runs of one world differ by rounding alone, and those of two worlds by more."""
    worlds = [scores[bits == bit] for bit in (0, 1)]
    if not all(map(len, worlds)) or len(bits) == len(worlds):
        return False
    within = max(np.ptp(world, axis=0).max() for world in worlds)
    return bool(within < ROUNDING * np.ptp(scores[bits >= 0], axis=0).max())


def warn_of_failures(dataset: xr.Dataset, *, of: str = "", depth: int) -> None:
    """Warn if the attributes of a dataset name failed runs, or if its runs ignored their seeds.

    Args:
        dataset: without the failed runs.
        of: what the message begins with.
        depth: how many calls lie between this one and the user's, that of `checks.checked` among them.
    """
    attributes = dataset.attrs
    if failed := attributes.get("failed_runs"):
        warnings.warn(
            f"{of}{len(failed):,} of {attributes['runs']:,} runs failed, {attributes['failed_with_z']:,} with z and "
            f"{attributes['failed_with_z_prime']:,} with z′, and are not in the dataset. The first is run {failed[0]}: "
            f"{attributes['failed_messages'][0]}. If failures depend on the world, bounds from the other runs may be "
            "wrong: mend train, and call again with retry=True if the audit is stored",
            stacklevel=depth + 2,
        )
    if "seed_ignored" in dataset.coords:
        warnings.warn(
            f"{of}all runs of a world have the same score, whatever their seed. No bound of them is valid: they may be "
            "copies of one run. Let train draw everything from its seed, libraries' defaults included; if it does, "
            "return a score of more values",
            stacklevel=depth + 2,
        )
