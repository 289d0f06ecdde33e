"""What the audits of dpsub's own trainers share: blocks of models, their memory, and canaries kept with the audit."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import isclose
from typing import Any, ClassVar, Self

import numpy as np
import torch

from dpsub._core import CanaryPair, Pairs, Record, checks
from dpsub._core.canary_pair import RESERVED, Worlds
from dpsub._core.random_streams import torch_seed
from dpsub.accounting import DPSGD
from dpsub.audits.plans import Arrays, Cut, Plan, Results, Shard, Tick, check_same
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers import Bank, assemble, block_size, devices
from dpsub.trainers.bank import block_bytes
from dpsub.trainers.step_canaries import StepCanary

ONCE, EACH_REPEAT, EACH_STEP = "once", "anew for each repeat", "anew at each step"  # the attribute `canary_crafted`
PRECISION = partial(checks.choice, options=tuple(devices.PRECISIONS))
LONGER = 1e-5  # relative, by rounding
SAME = 1e-6  # relative: a noise multiplier calibrated again on another machine may differ in its last digits
# A canary that is crafted again on another machine differs a little.
SAME_FEATURE = 1e-3  # of the feature's standard deviation in the private records; 3.5e-5 was measured for S3
SAME_DIFFERENCE = 1e-3  # of the norm of z − z′
SAME_GRADIENT = 1e-6  # of the gradient's largest entry


def refuse_other_batches(spec: DPSGD) -> None:
    """Raise ValueError if batches are not Poisson's, for audits that draw the slots apart from the batches."""
    if not spec.sampling.own_coins:
        raise ValueError(
            f"spec must have sampling='poisson', got '{spec.sampling}': this audit draws its slots apart from the "
            "batches. `audit` takes batches of any kind"
        )


@dataclass(frozen=True, eq=False)
class BankPlan(Plan):
    """An audit whose shards are blocks of models, which train side by side.

    Attributes:
        canaries: what fills the slots: pairs, one for all repeats or one for each; `Pairs`; or what crafts it at each
            step.
        runs: the models of each repeat.
        seed: of batches, noise, starts and coins.
        repeats: how many independent audits.
    """

    purpose: ClassVar[str]  # of its streams of randomness, in `random_streams.PURPOSES`
    spare: ClassVar[str] = "records"  # what a user may take fewer of, beside a smaller model

    task: Task
    model: Model
    spec: DPSGD
    canaries: tuple[Any, ...]
    runs: int
    seed: int
    matmul_precision: str = field()  # without the default of `Plan`
    repeats: int = field(default=1, kw_only=True)

    @abstractmethod
    def block(self, repeat: int, block: int, device: torch.device, tick: Tick) -> Arrays:
        """The numbers of one block of models, by variable."""

    @property
    def title(self) -> str:
        return f"{self.canaries[0].scenario} on {self.task.name}"

    @property
    def attributes(self) -> dict[str, Any]:
        return {
            "scenario": self.canaries[0].scenario,
            "adjacency": self.canaries[0].adjacency,
            "task": self.task.name,
            "task_fingerprint": self.task.fingerprint,
            "n": len(self.task.y_train),
            "model": repr(self.model),
            **self.spec.attributes,
            "seed": self.seed,
            "block_size": self.block_size,
            "matmul_precision": self.matmul_precision,
        }

    @cached_property
    def cut(self) -> Cut:
        return Cut(self.runs, self.repeats, self.block_size)

    def units(self, shard: Shard) -> int:
        return shard.runs * (self.spec.steps if self.unit == " steps" else 1)

    def run(self, shard: Shard, device: torch.device, tick: Tick) -> Results:
        blocks = [self.block(shard.repeat, block, device, tick) for block in shard.blocks]
        arrays = {name: np.concatenate([block[name] for block in blocks if name in block]) for name in blocks[0]}
        return self.results(shard, arrays)

    def results(self, shard: Shard, arrays: Arrays) -> Results:
        """The numbers of a shard, which are finite."""
        for name, values in arrays.items():
            if not np.isfinite(values).all():
                wrong = f"{int((~np.isfinite(values)).sum())} numbers of {name!r} in {shard} are not finite"
                raise ValueError(f"spec must be such that training does not diverge: {wrong}")
        return Results(arrays)

    @property
    def block_size(self) -> int:
        return block_size(self.model)

    def models_of(self, block: int) -> int:
        """How many models a block has: the last one may have fewer."""
        return min(self.block_size, self.runs - block * self.block_size)

    def bank(self, *blocks: int, device: torch.device, seed: int, **options: Any) -> Bank:
        """The models of a block or several, before their first step. The options are those of `assemble`."""
        seeds = (torch_seed(seed, self.purpose, block) for block in blocks)
        generators = [torch.Generator(device).manual_seed(one) for one in seeds]
        return assemble(self.model, self.task, self.spec, generator=generators, **options)

    @property
    def copies(self) -> int:
        """How many tensors with the size of all parameters are held beside the bank's own."""
        return 0

    def bytes_at_once(self, device: torch.device) -> int:
        """About the most memory, in bytes, that blocks take which train as one bank."""
        return block_bytes(self.model, self.task, self.spec, device, self.models_at_once(device), spare=self.copies)

    def models_at_once(self, device: torch.device) -> int:
        """How many models train as one bank."""
        return self.models_of(0)

    def at_once(self, device: torch.device) -> int:
        """One on CUDA; on a CPU, as many as the memory holds."""
        needed, free = self.bytes_at_once(device), devices.free_bytes(device)
        if needed > free:
            raise ValueError(
                f"model and task must fit the memory: a block of {self.models_at_once(device)} models of "
                f"{self.model.parameters} parameters on {len(self.task.y_train)} records takes about "
                f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free on {device}: free some, or use a "
                f"smaller model, fewer {self.spare}, or a larger device"
            )
        return 1 if device.type == "cuda" else min(torch.get_num_threads(), free // needed)

    @property
    def written_by_users(self) -> tuple[Any, ...]:
        """What users may have written, and a store has to tell from others."""
        return (self.model,)

    def check_told_apart(self) -> None:
        if untold := [part for holder in self.written_by_users for part in getattr(holder, "untold", ())]:
            raise ValueError(
                f"store must tell this audit from others, got {', '.join(untold)}, which dpsub cannot tell apart: "
                "define functions and classes by name, in a file or a notebook's cell; or name the model yourself, "
                'models.from_module(..., name="..."), anew whenever it changes (for an observer, define `attributes`)'
            )
        if re.search(r" at 0x|\.\.\.", shown := repr(self.model)):
            raise ValueError(
                "store must tell this audit from others, got a model whose repr does not tell it from other models, "
                f"{shown:.200}: define a __repr__ that shows all that its training depends on"
            )

    @property
    def pairs_kept(self) -> tuple[CanaryPair, ...]:
        """The pairs that a store keeps, to go on with on another machine."""
        return tuple(canary for canary in self.canaries if isinstance(canary, CanaryPair))

    @property
    def arrays(self) -> Arrays:
        return canary_arrays(self.pairs_kept)

    def resumed(self, attributes: Mapping[str, Any], arrays: Arrays) -> Self:
        """The plan with the stored noise multiplier and canaries, if they equal its own up to rounding."""
        plan, noise_multiplier = self, attributes["noise_multiplier"]
        if isclose(noise_multiplier, self.spec.noise_multiplier, rel_tol=SAME):
            plan = replace(self, spec=replace(self.spec, noise_multiplier=noise_multiplier))
        if self.pairs_kept:
            plan = replace(plan, canaries=stored_canaries(self.pairs_kept, self.task, attributes, arrays))
        check_same(attributes, plan.attributes)
        return plan


def check_canary(task: Task, model: Model, canary: Worlds | StepCanary, spec: DPSGD) -> None:
    """Check that a canary fits task, model and spec: otherwise it would land on other parameters, or be clipped.

    Raises:
        ValueError: if it does not. What is crafted at each step is checked by its crafter.
    """
    name = "pairs" if isinstance(canary, Pairs) else "canary"
    if canary.task not in (None, task.fingerprint):
        raise ValueError(
            f"{name} must be crafted for this task, {task!r}, got other private records: craft for this one"
        )
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
    check_norm(name, np.linalg.norm(canary.vectors[0].astype(np.float64), axis=2).max(), spec.max_grad_norm)


def check_norm(name: str, longest: float, max_grad_norm: float) -> None:
    """Check that no gradient of a canary is longer than what records are clipped to."""
    if not longest <= max_grad_norm * (1 + LONGER):
        raise ValueError(
            f"{name} must be gradients of norm <= max_grad_norm = {max_grad_norm:g}, got one of norm {longest:g}: "
            "craft for the spec of this audit"
        )


def canary_attributes(canaries: Sequence[CanaryPair | StepCanary], how_often: str) -> dict[str, Any]:
    """What an audit's attributes say of its canaries: one value for all repeats, or one for each."""

    def listed(values: list[Any]) -> Any:
        return values[0] if len(values) == 1 else values

    return {
        "slot": listed([canary.slot for canary in canaries]),
        "canary_crafted": how_often,
        "canary_fingerprint": listed([canary.fingerprint for canary in canaries]),
        **{f"canary_{name}": listed([c.details[name] for c in canaries]) for name in canaries[0].details},
    }


def canary_arrays(canaries: Sequence[CanaryPair]) -> Arrays:
    """The canaries as a store keeps them: "canary/z", "canary/z/labels" of records, and z_prime unless it is None."""
    arrays: Arrays = {}
    for name in ("z", "z_prime"):
        worlds = [world for world in (getattr(canary, name) for canary in canaries) if world is not None]
        if worlds and isinstance(worlds[0], Record):
            arrays[f"canary/{name}/labels"] = np.array([world.y for world in worlds], np.int64)
            worlds = [world.x for world in worlds]
        if worlds:
            arrays[f"canary/{name}"] = np.stack(worlds)
    return arrays


def stored_canaries(
    asked: Sequence[CanaryPair], task: Task, attributes: Mapping[str, Any], arrays: Arrays
) -> tuple[CanaryPair, ...]:
    """The canaries that a store holds, if those asked for equal them up to rounding; else those asked for.

    Args:
        asked: the canaries of a plan.
        task: its task, whose records say how much a feature may differ.
        attributes, arrays: of the store.
    """
    if not _same(canary_arrays(asked), arrays, task):
        return tuple(asked)

    def world(name: str, i: int) -> Any:
        values, labels = arrays.get(f"canary/{name}"), arrays.get(f"canary/{name}/labels")
        if values is None:
            return None
        return values[i] if labels is None else Record(values[i], int(labels[i]))

    details = {name.removeprefix("canary_"): value for name, value in attributes.items() if name.startswith("canary_")}
    several = len(asked) > 1
    return tuple(
        replace(
            canary,
            z=world("z", i),
            z_prime=world("z_prime", i),
            details={
                name: value[i] if several and isinstance(value, list) else value
                for name, value in details.items()
                if name not in RESERVED
            },
        )
        for i, canary in enumerate(asked)
    )


def _same(asked: Arrays, stored: Arrays, task: Task) -> bool:
    """Whether canaries are equal up to rounding: in each coordinate, in the labels, and in z − z′, which is audited."""
    if {name: values.shape for name, values in asked.items()} != {name: v.shape for name, v in stored.items()}:
        return False
    spread = task.x_train.std(axis=0, dtype=np.float64)
    spread[spread == 0] = spread[spread > 0].min() if spread.any() else 0.0
    for name, values in stored.items():
        allowed = 0.0 if name.endswith("labels") else 2 * np.spacing(np.abs(values))
        if f"{name}/labels" in stored:
            allowed = allowed + SAME_FEATURE * spread
        elif values.dtype.kind == "f":
            allowed = allowed + SAME_GRADIENT * np.abs(values).max(axis=1, keepdims=True)
        if (np.abs(asked[name] - values.astype(np.float64)) > allowed).any():
            return False
    if "canary/z_prime" not in stored:
        return True
    (mine, theirs) = (
        (arrays["canary/z"].astype(np.float64) - arrays["canary/z_prime"]).reshape(len(arrays["canary/z"]), -1)
        for arrays in (asked, stored)
    )
    near = np.linalg.norm(mine - theirs, axis=1) <= SAME_DIFFERENCE * np.linalg.norm(theirs, axis=1)
    return bool(near.all())
