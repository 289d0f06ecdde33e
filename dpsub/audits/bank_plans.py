"""What the audits of dpsub's own trainers share: blocks of models, their memory, and canaries kept with the audit."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isclose
from threading import Event
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray

from dpsub._core import DPSGD, CanaryPair, Pairs, Record, checks
from dpsub._core.canary_pair import RESERVED, Worlds
from dpsub.audits.plans import Arrays, Plan, Results, Shard, Tick, check_same
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers import StepCanary, block_size, devices
from dpsub.trainers.bank import block_bytes

PRECISION = partial(checks.choice, options=tuple(devices.PRECISIONS))
LONGER = 1e-6  # relative, by rounding
SAME = 1e-6  # relative: a noise multiplier calibrated again on another machine may differ in its last digits
# A canary that is crafted again on another machine differs a little.
SAME_FEATURE = 1e-3  # of the feature's standard deviation in the private records; 3.5e-5 was measured for S3
SAME_DIFFERENCE = 1e-3  # of the norm of z − z′
SAME_GRADIENT = 1e-6  # of the gradient's largest entry

World = NDArray[np.float32] | Record


def refuse_other_batches(spec: DPSGD) -> None:
    """Raise ValueError if batches are not Poisson's, for audits that draw the slots apart from the batches."""
    if spec.sampling != "poisson":
        raise ValueError(
            f"spec must have sampling='poisson', got {spec.sampling!r}: this audit draws its slots apart from the "
            "batches. `audit` takes batches of any kind"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class BankPlan(Plan):
    """An audit whose shards are blocks of models, which train side by side."""

    spare: ClassVar[str] = "records"  # what a user may take fewer of, beside a smaller model

    task: Task
    model: Model
    spec: DPSGD
    runs: int
    matmul_precision: str

    @abstractmethod
    def block(self, repeat: int, block: int, device: torch.device, stop: Event, tick: Tick) -> Arrays:
        """The numbers of one block of models, by variable."""

    def run(self, shard: Shard, device: torch.device, stop: Event, tick: Tick) -> Results:
        blocks = [self.block(shard.repeat, block, device, stop, tick) for block in shard.blocks]
        found = {name: np.concatenate([one[name] for one in blocks if name in one]) for name in blocks[0]}
        for name, values in found.items():
            if not np.isfinite(values).all():
                wrong = f"{int((~np.isfinite(values)).sum())} numbers of {name!r} in {shard} are not finite"
                raise ValueError(f"spec must be such that training does not diverge: {wrong}")
        return Results(found)

    @property
    def block_size(self) -> int:
        return block_size(self.model)

    @property
    def copies(self) -> int:
        """How many tensors with the size of all parameters are held beside the bank's own."""
        return 0

    def bytes_at_once(self, device: torch.device) -> int:
        runs = min(self.runs, self.block_size)
        return block_bytes(self.model, self.task, self.spec, device, runs, spare=self.copies)

    def side_by_side(self, device: torch.device) -> int:
        """One on CUDA; on a CPU, as many as the memory holds."""
        needed, free = self.bytes_at_once(device), devices.free_bytes(device)
        if needed > free:
            raise ValueError(
                f"model and task must fit the memory: a block of {min(self.runs, self.block_size)} models of "
                f"{self.model.parameters} parameters on {self.records_told} takes about {needed / 2**30:.1f} GiB, and "
                f"{free / 2**30:.1f} GiB are free on {device}: free some, or use a smaller model, fewer {self.spare}, "
                "or a larger device"
            )
        return 1 if device.type == "cuda" else min(torch.get_num_threads(), free // needed)

    @property
    def records_told(self) -> str:
        return f"{len(self.task.y_train)} records"

    @property
    def told_apart(self) -> tuple[Any, ...]:
        """What users may have written, and a store has to tell from others."""
        return (self.model,)

    def check_told_apart(self) -> None:
        if untold := [one for holder in self.told_apart for one in getattr(holder, "untold", ())]:
            raise ValueError(
                f"store must tell this audit from others, got {', '.join(untold)}, which dpsub cannot tell apart: "
                "define functions and classes by name, in a file or a notebook's cell; or name the model yourself, "
                'models.from_module(..., name="..."), anew whenever it changes (for an observer, define `attributes`)'
            )
        if re.search(r" at 0x|\.\.\.", told := repr(self.model)):
            raise ValueError(
                "store must tell this audit from others, got a model whose repr does not tell it from other models, "
                f"{told:.200}: define a __repr__ that shows all that its training depends on"
            )

    def with_noise(self, stored: Mapping[str, Any]) -> Self:
        """The plan with the stored noise multiplier, if it equals its own up to rounding."""
        noise_multiplier = stored.get("noise_multiplier")
        if not isinstance(noise_multiplier, float | int):
            return self
        if not isclose(noise_multiplier, self.spec.noise_multiplier, rel_tol=SAME):
            return self
        return replace(self, spec=replace(self.spec, noise_multiplier=noise_multiplier))

    def resumed(self, attributes: Mapping[str, Any], arrays: Arrays) -> Self:
        plan = self.with_noise(attributes)
        check_same(attributes, plan.attributes)
        return plan


def check_canary(task: Task, model: Model, canary: Worlds | StepCanary, spec: DPSGD) -> None:
    """Check that a canary fits task, model and spec: otherwise it would land on other parameters, or be clipped.

    Raises:
        ValueError: if it does not. What is crafted at each step is checked by its crafter.
    """
    n, name = len(task.y_train), "pairs" if isinstance(canary, Pairs) else "canary"
    slots = canary.slots if isinstance(canary, Worlds) else [canary.slot]
    if canary.task not in (None, task.fingerprint):
        raise ValueError(
            f"{name} must be crafted for this task, {task!r}, got other private records: craft for this one"
        )
    if not 0 <= min(slots) <= max(slots) < n:
        raise ValueError(f"{name} must have slots among the {n} private records, from 0 to {n - 1}, got {max(slots)}")
    if name == "pairs" and len(slots) == n:
        raise ValueError(f"pairs must leave a record that is not in a slot, got {n} slots for {n} private records")
    if not isinstance(canary, Worlds):
        return
    if canary.records is not None:
        x, y = canary.records
        if x.shape[1:] != task.x_train.shape[1:] or max(y) >= task.num_classes:
            raise ValueError(
                f"{name} must be records like the task's, features {task.x_train.shape[1:]} and labels below "
                f"{task.num_classes}, got {x.shape[1:]} and {max(y)}"
            )
        return
    if canary.parameters != model.parameters:
        raise ValueError(f"{name} must be gradients of {model.parameters} for {model!r}, got {canary.parameters}")
    longest = np.linalg.norm(canary.vectors[0].astype(np.float64), axis=2).max()
    if not longest <= spec.max_grad_norm * (1 + LONGER):
        raise ValueError(
            f"{name} must be gradients of norm <= max_grad_norm = {spec.max_grad_norm:g}, got one of norm {longest:g}"
        )


def canary_attributes(canaries: Sequence[CanaryPair | StepCanary], crafted: str) -> dict[str, Any]:
    """What an audit's attributes say of its canaries: one value for all repeats, or one for each."""

    def each(values: list[Any]) -> Any:
        plain = [value.item() if isinstance(value, np.generic) else value for value in values]
        return plain[0] if len(plain) == 1 else plain

    return {
        "slot": each([canary.slot for canary in canaries]),
        "canary_crafted": crafted,
        "canary_fingerprint": each([canary.fingerprint for canary in canaries]),
        **{f"canary_{name}": each([c.details[name] for c in canaries]) for name in canaries[0].details},
    }


def canary_arrays(canaries: Sequence[CanaryPair]) -> Arrays:
    """The canaries as a store keeps them."""
    found: Arrays = {}
    for name, worlds in _worlds(canaries).items():
        found[f"canary/{name}"] = np.stack([one.x if isinstance(one, Record) else one for one in worlds])
        if labels := [one.y for one in worlds if isinstance(one, Record)]:
            found[f"canary/{name}/labels"] = np.array(labels, np.int64)
    return found


def stored_canaries(
    asked: Sequence[CanaryPair], task: Task, attributes: Mapping[str, Any], arrays: Arrays
) -> tuple[CanaryPair, ...]:
    """The canaries that a store holds, if those asked for equal them up to rounding; else those asked for.

    Args:
        asked: the canaries of a plan.
        task: its task, whose records say how much a feature may differ.
        attributes, arrays: of the store.
    """
    stored = _held(asked, arrays)
    mine, theirs = _worlds(asked), _worlds(stored)
    spread = task.x_train.std(axis=0, dtype=np.float64)
    spread[spread == 0] = spread[spread > 0].min() if spread.any() else 0.0
    same = mine.keys() == theirs.keys() and all(
        len(theirs[name]) == len(worlds) and all(map(partial(_same, spread=spread), worlds, theirs[name]))
        for name, worlds in mine.items()
    )
    if not same or not all(map(_equally_far, zip(*mine.values(), strict=True), zip(*theirs.values(), strict=True))):
        return tuple(asked)
    details = {name.removeprefix("canary_"): value for name, value in attributes.items() if name.startswith("canary_")}
    return tuple(
        replace(
            canary,
            details={
                name: value[i] if len(stored) > 1 and isinstance(value, list) else value
                for name, value in details.items()
                if name not in RESERVED
            },
        )
        for i, canary in enumerate(stored)
    )


def _held(asked: Sequence[CanaryPair], arrays: Arrays) -> tuple[CanaryPair, ...]:
    """The canaries with the stored z and z′; none if there are as many others, or the arrays are of no canaries."""

    def worlds(name: str) -> list[Any]:
        values, labels = arrays.get(f"canary/{name}"), arrays.get(f"canary/{name}/labels")
        if values is None:
            return [None] * len(asked)
        return list(values) if labels is None else [Record(x, int(y)) for x, y in zip(values, labels, strict=True)]

    z, z_prime = worlds("z"), worlds("z_prime")
    if "canary/z" not in arrays or len(z) != len(asked) or len(z_prime) != len(asked):
        return ()
    try:
        return tuple(
            replace(canary, z=one, z_prime=other) for canary, one, other in zip(asked, z, z_prime, strict=True)
        )
    except ValueError:  # of a store that somebody changed, or of the other adjacency
        return ()


def _worlds(canaries: Sequence[CanaryPair]) -> dict[str, list[World]]:
    """z and z′ of each canary; no "z_prime" if the slot is empty in the other world."""
    if not canaries:
        return {}
    others: list[World] = [canary.z_prime for canary in canaries if canary.z_prime is not None]
    return {"z": [canary.z for canary in canaries], **({"z_prime": others} if others else {})}


def _same(mine: World, theirs: World, spread: NDArray[np.float64]) -> bool:
    """Whether two worlds are equal up to rounding: coordinate by coordinate, and in the label."""
    if isinstance(mine, Record) and isinstance(theirs, Record):
        return mine.y == theirs.y and _close(mine.x, theirs.x, SAME_FEATURE * spread)
    if isinstance(mine, Record) or isinstance(theirs, Record):
        return False
    return _close(mine, theirs, SAME_GRADIENT * np.abs(theirs).max(initial=0.0))


def _equally_far(mine: tuple[World, ...], theirs: tuple[World, ...]) -> bool:
    """Whether z − z′, which the audit is about, is the same up to rounding."""
    steps = []
    for worlds in (mine, theirs):
        arrays = [np.asarray(one.x if isinstance(one, Record) else one, dtype=np.float64) for one in worlds]
        steps.append(arrays[0] - arrays[-1])
    return bool(np.linalg.norm(steps[0] - steps[1]) <= SAME_DIFFERENCE * np.linalg.norm(steps[1]))


def _close(x: NDArray[np.float32], y: NDArray[np.float32], allowed: NDArray[np.float64] | float) -> bool:
    if x.shape != y.shape:
        return False
    return bool((np.abs(x.astype(np.float64) - y) <= allowed + 2 * np.spacing(np.abs(y))).all())
