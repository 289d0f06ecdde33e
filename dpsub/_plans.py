"""What an audit is going to do: all that its numbers depend on, cut into shards that can be trained anywhere."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from dpsub import _dataset, _devices
from dpsub._random import stream, torch_seed
from dpsub.canaries import CanaryPair
from dpsub.data import Task
from dpsub.dpsgd import DPSGD
from dpsub.models import Model
from dpsub.trainers import Bank, block_bytes, block_size

ACCURACY_RUNS = 8
SHARDS = 128  # of a repeat, at most: few enough files, and little lost with one of them

Arrays = dict[str, NDArray[Any]]


class Variable(NamedTuple):
    """How one variable is laid out; what has not been trained yet is `fill`."""

    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    fill: float


class Shard(NamedTuple):
    """Whole blocks of one repeat, which are trained and stored together."""

    number: int
    repeat: int
    blocks: range
    start: int
    stop: int

    def __str__(self) -> str:
        return f"runs {self.start} to {self.stop - 1} of repeat {self.repeat}"


class Made(NamedTuple):
    """Where a shard came from."""

    device: str
    cpu_capability: str  # the instructions that torch uses, where it computes on a CPU
    versions: dict[str, str]
    commit: str
    seconds: float

    @property
    def kind(self) -> dict[str, str]:
        """What decides whether two shards of one audit agree to the last bit."""
        versions = {f"version_{name}": self.versions[name] for name in ("torch", "dpsub")}
        return {"device": self.device, "cpu_capability": self.cpu_capability, **versions}


@dataclass(frozen=True, eq=False)
class Plan:
    """An audit, before and apart from being run."""

    task: Task
    model: Model
    canaries: tuple[CanaryPair, ...]  # one for all repeats, or one each
    spec: DPSGD
    runs: int
    observe_every: int
    metrics: tuple[str, ...]
    seeds: tuple[int, ...]
    matmul_precision: str

    @property
    def repeats(self) -> int:
        return len(self.seeds)

    @cached_property
    def observed(self) -> list[int]:
        steps = self.spec.steps
        return sorted({*range(self.observe_every, steps + 1, self.observe_every), steps})

    @property
    def measured(self) -> int:
        return min(ACCURACY_RUNS, self.runs, block_size(self.model))

    @property
    def shard_runs(self) -> int:
        size = block_size(self.model)
        blocks = -(-self.runs // size)
        return -(-blocks // SHARDS) * size

    @cached_property
    def shards(self) -> list[Shard]:
        size, width = block_size(self.model), self.shard_runs
        found: list[Shard] = []
        for repeat in range(self.repeats):
            for start in range(0, self.runs, width):
                stop = min(start + width, self.runs)
                found.append(Shard(len(found), repeat, range(start // size, -(-stop // size)), start, stop))
        return found

    @cached_property
    def variables(self) -> dict[str, Variable]:
        steps = len(self.observed)
        sizes = {"run": self.runs, "step": steps, "measured": self.measured, "parameter": self.model.parameters}
        asked = {
            "score": ("run", "step"),
            "bit": ("run",),
            "accuracy": ("measured", "step"),
            "distance": ("run", "step"),
            "gradient": ("run", "step"),
            "weights": ("run", "parameter"),
        }
        lead = () if self.repeats == 1 else ("repeat",)
        found = {}
        for name, dims in asked.items():
            if name in ("score", "bit", *self.metrics):
                shape = tuple({**sizes, "repeat": self.repeats}[dim] for dim in (*lead, *dims))
                dtype, fill = ("int8", -1) if name == "bit" else ("float32", np.nan)
                found[name] = Variable((*lead, *dims), shape, dtype, fill)
        return found

    @property
    def coordinates(self) -> dict[str, NDArray[np.int64]]:
        found = {"step": np.array(self.observed)}
        if "accuracy" in self.metrics:
            found["measured"] = np.arange(self.measured)
        if self.repeats > 1:
            found["repeat"] = np.arange(self.repeats)
        return {name: values.astype(np.int64) for name, values in found.items()}

    def region(self, name: str, shard: Shard) -> tuple[slice | int, ...]:
        """Where a variable of this shard goes."""
        rows = slice(None) if name == "accuracy" else slice(shard.start, shard.stop)
        return (rows,) if self.repeats == 1 else (shard.repeat, rows)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """What makes the numbers: everything needed to run the audit again, but for device and versions."""
        first = self.canaries[0]

        def each(values: list[Any]) -> Any:
            plain = [value.item() if isinstance(value, np.generic) else value for value in values]
            return plain[0] if len(plain) == 1 else plain

        return {
            "scenario": first.scenario,
            "adjacency": first.adjacency,
            "task": self.task.name,
            "task_fingerprint": self.task.fingerprint,
            **({"test_fingerprint": self.task.test_fingerprint} if "accuracy" in self.metrics else {}),
            "n": len(self.task.y_train),
            "model": repr(self.model),
            **asdict(self.spec),
            "runs": self.runs,
            "observe_every": self.observe_every,
            "repeats": self.repeats,
            "metrics": " ".join(self.metrics),
            "seed": self.seeds[0],
            **({"seeds": list(self.seeds)} if self.repeats > 1 else {}),
            "block_size": block_size(self.model),
            "matmul_precision": self.matmul_precision,
            "slot": each([canary.slot for canary in self.canaries]),
            "canary_crafted": "once" if len(self.canaries) == 1 else "anew for each repeat",
            "canary_fingerprint": each([canary.fingerprint for canary in self.canaries]),
            **{f"canary_{name}": each([c.details[name] for c in self.canaries]) for name in first.details},
        }

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any attribute."""
        return fingerprint(self.attributes)


def fingerprint(attributes: Mapping[str, Any]) -> str:
    return sha256(json.dumps(attributes, sort_keys=True).encode()).hexdigest()[:16]


def train_shard(plan: Plan, shard: Shard, device: torch.device, stop: Event) -> Arrays:
    """The numbers of one shard, the same wherever devices of one kind train it."""
    blocks = [_train_block(plan, shard.repeat, block, device, stop) for block in shard.blocks if not stop.is_set()]
    found = {name: np.concatenate([block[name] for block in blocks if name in block]) for name in blocks[0]}
    for name, values in found.items():
        if not np.isfinite(values).all():
            wrong = f"{int((~np.isfinite(values)).sum())} numbers of {name!r} in {shard} are not finite"
            raise ValueError(f"spec must be such that training does not diverge: {wrong}")
    return found


def _train_block(plan: Plan, repeat: int, block: int, device: torch.device, stop: Event) -> Arrays:
    size, seed = block_size(plan.model), plan.seeds[repeat]
    canary = plan.canaries[repeat if len(plan.canaries) > 1 else 0]
    runs = min(size, plan.runs - block * size)
    bits = stream(seed, "audit", block).integers(0, 2, size, dtype=np.int8)[:runs]
    generator = torch.Generator(device).manual_seed(torch_seed(seed, "audit", block))
    everywhere = "accuracy" in plan.metrics or "weights" in plan.metrics
    bank = Bank(
        plan.model,
        plan.task,
        plan.spec,
        bits=bits,
        generator=generator,
        canary=canary,
        within_span=not everywhere,
    )
    measured = plan.measured if "accuracy" in plan.metrics and block == 0 else 0
    x_test = torch.as_tensor(plan.task.x_test if measured else plan.task.x_test[:0], device=device)
    y_test = torch.as_tensor(plan.task.y_test, device=device)

    seen: dict[str, list[Tensor]] = {"score": [], "distance": [], "gradient": [], "accuracy": []}
    due = set(plan.observed)
    for step in range(1, plan.spec.steps + 1):
        if stop.is_set():
            break
        gradient = bank.watch_gradient() if "gradient" in plan.metrics and step in due else None
        bank.advance()
        if step in due:
            seen["score"].append(bank.scores())
            if "distance" in plan.metrics:
                seen["distance"].append(bank.distance())
            if gradient is not None:
                seen["gradient"].append(gradient())
            if measured:
                seen["accuracy"].append(bank.accuracy(x_test, y_test, measured))
    found: Arrays = {name: torch.stack(values, dim=1).cpu().numpy() for name, values in seen.items() if values}
    if "weights" in plan.metrics:
        found["weights"] = plan.model.flat(bank.theta).cpu().numpy()
    return {"bit": bits, **found}


def workers(plan: Plan, device: torch.device) -> int:
    """How many blocks train side by side: a thread each, as many as the memory holds.

    Raises:
        ValueError: if it does not hold one.
    """
    runs = min(plan.runs, block_size(plan.model))
    needed, free = block_bytes(plan.model, plan.task, plan.spec, device, runs), _devices.free_bytes(device)
    if needed > free:
        raise ValueError(
            f"model and task must fit the memory: a block of {runs} models of {plan.model.parameters} parameters on "
            f"{len(plan.task.y_train)} records takes about {needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are "
            f"free on {device}: free some, or use a smaller model, fewer records or a larger device"
        )
    return 1 if device.type == "cuda" else min(torch.get_num_threads(), free // needed)


def made_on(device: torch.device, seconds: float = 0.0) -> Made:
    if device.type == "cuda":
        return Made(torch.cuda.get_device_name(device), "", _dataset.versions("torch"), _commit(), seconds)
    return Made(device.type, torch.backends.cpu.get_cpu_capability(), _dataset.versions("torch"), _commit(), seconds)


@cache
def _commit() -> str:
    """The commit of dpsub's sources, where they are a checkout."""
    package = Path(__file__).parent

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=package, capture_output=True, text=True, check=False)

    try:
        if git("ls-files", "--error-unmatch", "__init__.py").returncode:
            return "not a checkout"
        changed = git("diff", "--quiet", "HEAD", "--", ".").returncode
        return git("rev-parse", "--short=12", "HEAD").stdout.strip() + ("+changes" if changed else "")
    except OSError:
        return "no git"


def origin(made: list[Made]) -> dict[str, str]:
    """Devices and versions, as attributes: all that there are, where there are several."""
    versions = {name: joined(each.versions[name] for each in made) for name in made[0].versions}
    found = {name: joined(getattr(each, name) for each in made) for name in ("device", "cpu_capability")}
    return found | {f"version_{name}": version for name, version in versions.items()}


def joined(values: Iterable[str]) -> str:
    return " + ".join(sorted({value for value in values if value}))


class Memory:
    """Where the shards of an audit go that is not stored."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.missing = plan.shards
        self._arrays = {name: np.full(v.shape, v.fill, v.dtype) for name, v in plan.variables.items()}
        self.made: list[Made] = []

    def writing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def write(self, shard: Shard, arrays: Arrays, made: Made) -> None:
        for name, values in arrays.items():
            self._arrays[name][self.plan.region(name, shard)] = values
        self.made.append(made)

    def dataset(self) -> xr.Dataset:
        variables = {
            name: (variable.dims, self._arrays[name], {"long_name": _dataset.LONG_NAMES[name]})
            for name, variable in self.plan.variables.items()
        }
        return xr.Dataset(variables, self.plan.coordinates, self.plan.attributes | origin(self.made))
