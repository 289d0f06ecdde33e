"""The plan of an audit of one training: many pairs, with coins of its own for each model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from threading import Event
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from dpsub._core import DPSGD, Pairs
from dpsub._core.random_streams import stream, torch_seed
from dpsub.audits.plans import Arrays, Cut, Shard, Stopped
from dpsub.data import Task
from dpsub.models import Model
from dpsub.trainers import ScoredSteps, assemble_pairs, block_bytes, block_size

ONE_RUN = "one run"  # the attribute `audited`, which audits of models do not have
METRICS = ("accuracy", "weights")
PAIR = "pair"  # the dimension
LONG_NAMES = {
    "score": "score of the final model, higher speaks for z",
    "step_score": "score of all steps, higher speaks for z",
    "bit": "0: z was in the slot, 1: z_prime",
    "accuracy": "test accuracy of the final model",
    "weights": "parameters of the final model",
}
COPIES = 6  # of all parameters, which the steps' scores take beside the bank's own
WHITENING = 6  # further copies, which whitening takes


@dataclass(frozen=True, eq=False)
class OneRunPlan:
    """What an audit of one training, or of several with coins of their own, will train."""

    task: Task
    model: Model
    pairs: Pairs
    spec: DPSGD
    models: int
    subtract_expected: bool
    whiten: int
    metrics: tuple[str, ...]
    seed: int
    matmul_precision: str

    @cached_property
    def shards(self) -> list[Shard]:
        """One block each."""
        cut = Cut(self.models, 1, block_size(self.model), most=self.models)
        return [cut.shard(number) for number in range(cut.shards)]

    def coins(self, shard: Shard) -> NDArray[np.int8]:
        """(models, m): which world fills each slot in the models of a block, by fair coins."""
        tossed = stream(self.seed, "one_run", shard.number).integers(
            0, 2, (block_size(self.model), len(self.pairs)), dtype=np.int8
        )
        return tossed[: shard.stop - shard.start]

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Everything needed to run the audit again, except device and versions."""
        return {
            "audited": ONE_RUN,
            "scenario": self.pairs.scenario,
            "adjacency": self.pairs.adjacency,
            "task": self.task.name,
            "task_fingerprint": self.task.fingerprint,
            "n": len(self.task.y_train),
            "model": repr(self.model),
            **asdict(self.spec),
            "models": self.models,
            "pairs": len(self.pairs),
            "pairs_fingerprint": self.pairs.fingerprint,
            "subtract_expected": int(self.subtract_expected),
            "whiten": self.whiten,
            "metrics": " ".join(self.metrics),
            "seed": self.seed,
            "block_size": block_size(self.model),
            "matmul_precision": self.matmul_precision,
            **{f"pairs_{name}": value for name, value in self.pairs.details.items()},
        }

    def dataset(self, arrays: Arrays, origin: dict[str, str]) -> xr.Dataset:
        """The results of all shards."""
        dims = {"accuracy": ("model",), "weights": ("model", "parameter")}
        return xr.Dataset(
            {
                name: (dims.get(name, ("model", PAIR)), values, {"long_name": LONG_NAMES[name]})
                for name, values in arrays.items()
            },
            coords={"slot": (PAIR, self.pairs.slots)},
            attrs=self.attributes | origin,
        )

    def bytes_of_a_block(self, device: torch.device) -> int:
        """About the most memory, in bytes, that a block takes."""
        runs, n, m = min(self.models, block_size(self.model)), len(self.task.y_train), len(self.pairs)
        bank = block_bytes(self.model, self.task, self.spec, device, runs, spare=COPIES + WHITENING * (self.whiten > 0))
        bank += 4 * n * runs * (self.whiten > 0)
        in_slots = 4 * (4 * m * runs * self.model.classes if self.pairs.of_records else 3 * self.pairs.z.size)
        return bank + bank * 2 * m // n + in_slots


def train_block(
    plan: OneRunPlan, shard: Shard, device: torch.device, stop: Event, tick: Callable[[int], object]
) -> Arrays:
    """Train one block of models, and score its pairs.

    Args:
        plan, shard, device: what to train, and where.
        stop: set to end early.
        tick: called after each step with the number of models.

    Raises:
        Stopped: if `stop` was set before all of it was trained.
        ValueError: if the training diverged.
    """
    bits = plan.coins(shard)
    bank, slots = assemble_pairs(
        plan.model,
        plan.task,
        plan.spec,
        pairs=plan.pairs,
        bits=bits,
        generator=torch.Generator(device).manual_seed(torch_seed(plan.seed, "one_run", shard.number)),
    )
    steps = ScoredSteps(bank, slots, expected=plan.subtract_expected, whiten=plan.whiten)
    for _ in range(plan.spec.steps):
        if stop.is_set():
            raise Stopped
        steps.advance()
        tick(bank.runs)
    found = {"score": slots.scores(bank), "step_score": steps.scores}
    if "accuracy" in plan.metrics:
        x, y = (torch.tensor(one, device=device) for one in (plan.task.x_test, plan.task.y_test))
        found["accuracy"] = bank.accuracy(x, y, bank.runs)
    if "weights" in plan.metrics:
        found["weights"] = bank.model.flat(bank.theta)
    arrays = {name: values.detach().cpu().numpy().astype(np.float32) for name, values in found.items()}
    for name, values in arrays.items():
        if not np.isfinite(values).all():
            wrong = f"{int((~np.isfinite(values)).sum())} numbers of {name!r} are not finite"
            raise ValueError(f"spec must be such that training does not diverge: {wrong}")
    return {**arrays, "bit": bits}
