"""The plan of an audit: everything that its numbers depend on, cut into shards that can be computed anywhere.

A new kind of audit is a subclass of `Plan`, in a file with the public function that makes it. It calls
`execution.execute`, and is then stored, resumed, and spread over threads or a cluster as all others are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from dpsub._core.provenance import commit, versions
from dpsub.trainers import devices

SHARDS = 128  # of a repeat, at most: little is lost with one shard, and few are written

Arrays = dict[str, NDArray[Any]]
Tick = Callable[[int], None]


class Stopped(Exception):
    """Nobody waits for a shard any more."""


class OtherAudit(ValueError):
    """A store holds another audit than the one asked for. The arguments are the differences."""


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
    """How the runs of an audit are cut into shards of whole blocks, at most `most` for each repeat."""

    runs: int
    repeats: int = 1
    block_size: int = 1
    most: int = SHARDS

    @property
    def total(self) -> int:
        """The runs of all repeats."""
        return self.runs * self.repeats

    @property
    def shards(self) -> tuple[Shard, ...]:
        return _shards_of(self)


@lru_cache(maxsize=16)
def _shards_of(cut: Cut) -> tuple[Shard, ...]:
    blocks = -(-cut.runs // cut.block_size)
    size = -(-blocks // cut.most) * cut.block_size
    bounds = [
        (repeat, start, min(start + size, cut.runs))
        for repeat in range(cut.repeats)
        for start in range(0, cut.runs, size)
    ]
    return tuple(
        Shard(number, repeat, range(start // cut.block_size, -(-stop // cut.block_size)), start, stop)
        for number, (repeat, start, stop) in enumerate(bounds)
    )


class Results(NamedTuple):
    """What a shard was computed to be.

    Attributes:
        arrays: by variable. A variable that the first shard fills is missing in the others.
        failed: the messages of runs that failed, by the run's number; their numbers are NaN.
    """

    arrays: Arrays
    failed: Mapping[int, str] = {}


class Made(NamedTuple):
    """Where a shard came from.

    Attributes:
        device: the name of the device.
        cpu_capability: the instructions that torch uses, where it computes on a CPU.
        versions, commit: of the libraries, and of dpsub's sources.
        seconds: how long it took.
        session, elapsed, finished: of a stored shard: which session wrote it, after how many seconds, and when.
    """

    device: str
    cpu_capability: str
    versions: dict[str, str]
    commit: str
    seconds: float
    session: str = ""
    elapsed: float = 0.0
    finished: str = ""

    @property
    def kind(self) -> dict[str, str]:
        """Shards of one audit agree to the last bit if these are equal."""
        versions = {f"version_{name}": self.versions[name] for name in ("torch", "dpsub")}
        return {"device": self.device, "cpu_capability": self.cpu_capability, **versions}


class Plan(ABC):
    """What an audit computes, shard by shard, here or elsewhere.

    Attributes:
        call: the name of the public function that makes such plans.
        unit: what its progress bar counts.
        calls_users: whether runs are calls of a user's function. Then single runs may fail, and the dataset says how
            many did; they are made one after the other in the calling thread, whose settings stay as they are; and
            devices and versions may differ.
        grows: whether its first runs are the same however many follow, up to whole blocks. Then a store of fewer runs
            is gone on with, and one of more is read.
        retry: whether to compute failed runs again, and accept a store of another version of the user's function.
        matmul_precision: of products while it is computed, as in `audit`.
    """

    call: ClassVar[str]
    unit: ClassVar[str] = " models"
    calls_users: ClassVar[bool] = False
    grows: ClassVar[bool] = False
    retry: bool = False
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
    def cut(self) -> Cut:
        """How its runs are cut into shards."""

    @abstractmethod
    def empty(self) -> xr.Dataset:
        """The dataset before any shard, made of `unfilled` variables and the coordinates.

        The first dimension, after `repeat` if there are several, is that of `bit` where each run fills its own rows.
        The first shard of each repeat fills variables of another first dimension.
        """

    @abstractmethod
    def run(self, shard: Shard, device: torch.device, tick: Tick) -> Results:
        """Compute one shard. It depends on nothing but this object, the shard and the kind of device.

        Args:
            shard, device: what to compute, and where.
            tick: called often, with the number of units that were done since the last call. It raises `Stopped` if
                nobody waits for the shard any more.
        """

    def together(self, device: torch.device) -> int:
        """How many shards of a repeat, from the first on, `run_together` takes. It depends on the kind of device."""
        return 1

    def run_together(self, shards: Sequence[Shard], device: torch.device, tick: Tick) -> list[Results]:
        """Compute shards that follow each other, as `run` does one."""
        return [self.run(shard, device, tick) for shard in shards]

    def at_once(self, device: torch.device) -> int:
        """How many shards, or groups of them, to compute at once in this process, each on one torch thread.

        Raises:
            ValueError: if the memory does not hold one.
        """
        return 1

    def made(self, device: torch.device, seconds: float = 0.0) -> Made:
        """Where a shard comes from that was computed here."""
        return made_on(device, seconds)

    def units(self, shard: Shard) -> int:
        """How far a shard moves the progress bar."""
        return shard.runs

    def with_runs(self, runs: int) -> Self:
        """The same plan with more or fewer runs: of plans that grow, which are dataclasses with the field `runs`."""
        return self if runs == self.cut.runs else replace(self, runs=runs)  # type: ignore[type-var]

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


def unfilled(long_name: str, sizes: Mapping[str, int], dtype: str = "float32") -> xr.Variable:
    """A variable before any shard: NaN, or −1 for whole numbers, with its sizes by dimension."""
    fill = np.nan if np.dtype(dtype).kind == "f" else -1
    return xr.Variable(tuple(sizes), np.full(tuple(sizes.values()), fill, dtype), {"long_name": long_name})


def check_same(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Check that two plans have the same attributes.

    Raises:
        OtherAudit: with the differences.
    """
    names = {**asked, **stored}
    said = {name: [repr(about[name]) if name in about else "nothing" for about in (stored, asked)] for name in names}
    if differences := [f"{name}: stored {was}, asked for {now}" for name, (was, now) in said.items() if was != now]:
        raise OtherAudit(*differences)


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


def origin(shards: Iterable[Made]) -> dict[str, str]:
    """Devices and versions as attributes; if there are several, all of them."""
    shards = list(shards)
    names = dict.fromkeys(name for made in shards for name in made.versions)
    return {
        "device": joined(made.device for made in shards),
        "cpu_capability": joined(made.cpu_capability for made in shards),
        **{f"version_{name}": joined(made.versions.get(name, "") for made in shards) for name in names},
    }


def joined(values: Iterable[str]) -> str:
    return " + ".join(sorted({value for value in values if value}))
