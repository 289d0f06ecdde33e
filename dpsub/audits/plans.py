"""The plan of an audit: everything that its numbers depend on, cut into shards that can be computed anywhere.

A new kind of audit is a subclass of `Plan`, in a file with the public function that makes it. It calls
`execution.carried_out`, and is then stored, resumed, and spread over processes or a cluster as all others are.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from threading import Event
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from dpsub._core.datasets import numbered
from dpsub._core.provenance import commit, versions
from dpsub.trainers import devices

ROUNDING = 1e-5  # of scores, as a part of what the worlds are apart
SHARDS = 128  # of a repeat, at most: little is lost with one shard, and few are written

Arrays = dict[str, NDArray[Any]]
Tick = Callable[[int], None]


class Stopped(Exception):
    """A shard was told to stop before it was computed."""


class Variable(NamedTuple):
    """A variable of the dataset.

    Attributes:
        sizes: by dimension, in order. The dimension of repeats, if there are several, is the first.
        dtype: its name in NumPy.
        fill: stands for values that are not computed yet.
        long_name: in words, with the unit.
        of_first_shard: whether the first shard of each repeat fills all of it. Else each run fills its own part.
    """

    sizes: dict[str, int]
    dtype: str
    fill: float
    long_name: str
    of_first_shard: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes.values())


class Shard(NamedTuple):
    """Whole blocks of one repeat, computed and stored together: its runs from `start` to before `stop`."""

    number: int
    repeat: int
    blocks: range
    start: int
    stop: int

    @property
    def runs(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"runs {self.start} to {self.stop - 1} of repeat {self.repeat}"


class Cut(NamedTuple):
    """How the runs of an audit are cut into shards of whole blocks."""

    runs: int
    repeats: int = 1
    block_size: int = 1
    most: int = SHARDS  # shards of a repeat

    @property
    def shard_runs(self) -> int:
        """The runs of each shard of a repeat but the last, which may have fewer."""
        blocks = -(-self.runs // self.block_size)
        return -(-blocks // self.most) * self.block_size

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


@dataclass(frozen=True)
class Layout:
    """The variables and coordinates of an audit's dataset, and the part of each that a shard fills.

    A variable's values are stored run by run, so that the part of a shard is one stretch of the flat array.

    Attributes:
        cut: how runs are cut into shards.
        variables: by name.
        coordinates: by name: dimension and values.
        may_fail: whether single runs may fail. The dataset then says how many did.
    """

    cut: Cut
    variables: Mapping[str, Variable]
    coordinates: Mapping[str, tuple[str, NDArray[Any]]] = field(default_factory=dict)
    may_fail: bool = False

    @cached_property
    def shards(self) -> list[Shard]:
        return [self.cut.shard(number) for number in range(self.cut.shards)]

    def part(self, name: str, shard: Shard) -> slice:
        """Which values of the flat variable this shard fills."""
        variable, (runs, repeats) = self.variables[name], self.cut[:2]
        if variable.of_first_shard:
            each = prod(variable.shape) // repeats
            return slice(shard.repeat * each, (shard.repeat + (shard.start == 0)) * each)
        each = prod(variable.shape) // (repeats * runs)
        first = shard.repeat * runs
        return slice((first + shard.start) * each, (first + shard.stop) * each)

    def empty(self) -> Arrays:
        """The flat variables before any shard."""
        return {name: np.full(prod(one.shape), one.fill, one.dtype) for name, one in self.variables.items()}

    def dataset(self, flat: Arrays, attributes: Mapping[str, Any], failed: Mapping[int, str]) -> xr.Dataset:
        """The dataset of flat variables, without the runs that failed."""
        variables = {
            name: (tuple(one.sizes), flat[name].reshape(one.shape), {"long_name": one.long_name})
            for name, one in self.variables.items()
        }
        found = numbered(xr.Dataset(variables, dict(self.coordinates), dict(attributes)))
        return without_failed(found, failed) if self.may_fail else found


class Results(NamedTuple):
    """What a shard was computed to be.

    Attributes:
        arrays: by variable. A variable that the first shard fills is missing in the others.
        failed: the messages of runs that failed, by the run's number; their numbers are NaN.
    """

    arrays: Arrays
    failed: Mapping[int, str] = {}


class Made(NamedTuple):
    """Where a shard came from."""

    device: str
    cpu_capability: str  # the instructions that torch uses, where it computes on a CPU
    versions: dict[str, str]
    commit: str
    seconds: float

    @property
    def kind(self) -> dict[str, str]:
        """Shards of one audit agree to the last bit if these are equal."""
        versions = {f"version_{name}": self.versions[name] for name in ("torch", "dpsub")}
        return {"device": self.device, "cpu_capability": self.cpu_capability, **versions}


class OtherAudit(ValueError):
    """A store holds another audit than the one asked for. The arguments are the differences."""


class Plan(ABC):
    """What an audit computes, shard by shard, here or elsewhere.

    Attributes:
        call: the name of the public function that makes such plans.
        things: what its runs are.
        unit: what its progress bar counts.
        of_one_kind: whether all shards should be made on one kind of device, with one version of dpsub and torch.
        serial: whether shards are computed one after the other in the calling thread, whose settings stay as they are.
        not_sent: what must hold so that other processes can take it, if that is not sure; "" if it is.
        matmul_precision: of products while it is computed, as in `audit`.
    """

    call: ClassVar[str]
    things: ClassVar[str] = "models"
    unit: ClassVar[str] = " models"
    of_one_kind: ClassVar[bool] = True
    serial: ClassVar[bool] = False
    not_sent: ClassVar[str] = ""
    matmul_precision: str = "highest"

    @property
    @abstractmethod
    def title(self) -> str:
        """What the audit is of, for progress bars and `status`."""

    @property
    @abstractmethod
    def attributes(self) -> dict[str, Any]:
        """Everything that determines the numbers, device and versions aside: texts, numbers, and lists of them.

        `seed` is one of them, or `seeds`, one for each repeat: rows of one seed and number have the same randomness.
        """

    @property
    @abstractmethod
    def layout(self) -> Layout: ...

    @abstractmethod
    def run(self, shard: Shard, device: torch.device, stop: Event, tick: Tick) -> Results:
        """Compute one shard. It depends on nothing but this object, the shard and the kind of device.

        Args:
            shard, device: what to compute, and where.
            stop: set to end early.
            tick: may be called with the number of units that were done since the last call.

        Raises:
            Stopped: if `stop` was set before all of it was computed.
        """

    def side_by_side(self, device: torch.device) -> int:
        """How many shards to compute at once in this process, each on one torch thread, unless they are serial.

        Raises:
            ValueError: if the memory does not hold one.
        """
        return 1

    def bytes_at_once(self, device: torch.device) -> int:
        """About the most memory, in bytes, that a shard takes; 0 if that is not known."""
        return 0

    def made(self, device: torch.device, seconds: float) -> Made:
        """Where a shard comes from that was computed here."""
        return made_on(device, seconds)

    def units(self, shard: Shard) -> int:
        """How far a shard moves the progress bar."""
        return shard.runs

    @property
    def arrays(self) -> Arrays:
        """What a store keeps beside the shards, to go on with on another machine."""
        return {}

    def resumed(self, attributes: Mapping[str, Any], arrays: Arrays) -> Self:
        """The plan as a store holds it already.

        Raises:
            OtherAudit: if the store's plan is another one.
        """
        check_same(attributes, self.attributes)
        return self

    def check_told_apart(self) -> None:  # noqa: B027
        """Raise a ValueError if its attributes do not tell it from other plans, so that a store could mistake it."""


def check_same(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Check that two plans have the same attributes.

    Raises:
        OtherAudit: with the differences.
    """
    others = []
    for name in {**asked, **stored}:
        told = [repr(about[name]) if name in about else "nothing" for about in (stored, asked)]
        if told[0] != told[1]:
            others.append(f"{name}: stored {told[0]}, asked for {told[1]}")
    if others:
        raise OtherAudit(*others)


def made_on(device: torch.device, seconds: float = 0.0) -> Made:
    if device.type == "cuda":
        return Made(torch.cuda.get_device_name(device), "", versions("torch"), commit(), seconds)
    return Made(device.type, torch.backends.cpu.get_cpu_capability(), versions("torch"), commit(), seconds)


def made_here(device: str = "auto") -> dict[str, str]:
    """How results are made here: what every audit that is stored here keeps of it among its attributes.

    Args:
        device: "auto", "cpu" or "cuda".

    Returns:
        The device and, for a CPU, the instructions that torch uses there ("cpu_capability"); the versions of Python,
        dpsub, NumPy, SciPy and torch ("version_python" and so on); and the commit of dpsub's sources, if they are a
        checkout ("commit").

    Raises:
        ValueError: if the device is another one, or torch finds no CUDA device.

    >>> sorted(made_here("cpu"))[:3]
    ['commit', 'cpu_capability', 'device']
    """
    made = made_on(devices.device(device))
    return origin([made]) | {"commit": made.commit}


def origin(made: Iterable[Made]) -> dict[str, str]:
    """Devices and versions as attributes; if there are several, all of them."""
    made = list(made)
    names = dict.fromkeys(name for each in made for name in each.versions)
    versions = {name: joined(each.versions.get(name, "") for each in made) for name in names}
    found = {name: joined(getattr(each, name) for each in made) for name in ("device", "cpu_capability")}
    return found | {f"version_{name}": version for name, version in versions.items()}


def joined(values: Iterable[str]) -> str:
    return " + ".join(sorted({value for value in values if value}))


def without_failed(found: xr.Dataset, failed: Mapping[int, str]) -> xr.Dataset:
    """The dataset without failed runs, which its attributes name.

    Args:
        found: all runs, failed ones included.
        failed: the messages of failed runs, by number.

    Raises:
        ValueError: if all runs failed.
    """
    numbers = sorted(failed)
    if numbers and len(numbers) == found.sizes["run"]:
        raise ValueError(
            f"train must not fail in every run, got {len(numbers):,} failures of as many runs, the first: {failed[0]}; "
            "mend it, and call again, with retry=True if the audit is stored"
        )
    bits = found.bit.values[numbers]
    found = found.assign_attrs(
        {f"failed_with_{world}": int((bits == bit).sum()) for bit, world in enumerate(("z", "z_prime"))}
    )
    if numbers:
        kept = np.setdiff1d(np.arange(found.sizes["run"]), numbers)
        messages = [failed[number] for number in numbers]
        found = found.isel(run=kept).assign_coords(run=kept)
        found = found.assign_attrs(failed_runs=numbers, failed_messages=messages)
    if not _ignores_seeds(found.score.values, found.bit.values):
        return found
    return found.assign_coords(seed_ignored=("run", np.ones(found.sizes["run"], bool)))


def _ignores_seeds(scores: NDArray[Any], bits: NDArray[Any]) -> bool:
    """Whether runs of one world differ by rounding alone, and those of two worlds by more."""
    worlds = [scores[bits == bit] for bit in (0, 1)]
    if not all(map(len, worlds)) or len(bits) == len(worlds):
        return False
    alike, apart = (max(np.ptp(one, axis=0).max() for one in several) for several in (worlds, [scores[bits >= 0]]))
    return bool(alike < ROUNDING * apart)


def warn_of_failures(found: xr.Dataset, *, of: str = "", depth: int = 3) -> None:
    """Warn if the attributes of a dataset name failed runs, or if its runs ignored their seeds.

    Args:
        found: the dataset, without the failed runs.
        of: what the message begins with.
        depth: how many calls lie between this one and the user's, that of `checks.checked` among them.
    """
    about = found.attrs
    if failed := about.get("failed_runs"):
        warnings.warn(
            f"{of}{len(failed):,} of {about['runs']:,} runs failed, {about['failed_with_z']:,} with z and "
            f"{about['failed_with_z_prime']:,} with z′, and are not in the dataset. The first is run {failed[0]}: "
            f"{about['failed_messages'][0]}. If failures depend on the world, bounds from the other runs may be wrong: "
            "mend train, and call again with retry=True if the audit is stored",
            stacklevel=depth + 2,
        )
    if "seed_ignored" in found.coords:
        warnings.warn(
            f"{of}all runs of a world have the same score, whatever their seed. No bound of them is valid: they may be "
            "copies of one run. Let train draw everything from its seed, libraries' defaults included; if it does, "
            "return a score of more values",
            stacklevel=depth + 2,
        )
