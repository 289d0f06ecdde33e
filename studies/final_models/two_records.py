"""Audits of two worlds that differ by two records, as published code has.

Published code drops the last private record from the world without the
canary. The other world holds both. An audit there measures more than the
ε of one record allows: compare it with that of a group of two.

``python -m studies.final_models.two_records MODELS TABLES`` audits the
first setting of digits with worlds that differ by two records, and by one,
and keeps both tables. MODELS has the store of one record, or gets it.
"""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import xarray as xr

from dpsub import audits
from dpsub._core.random_streams import stream, torch_seed
from dpsub.models import check_fits
from dpsub.trainers import Bank, RecordSlot, block_size, poisson_coins
from studies.final_models import attacks
from studies.final_models.audits import grid, made_for, trained


class TwoRecords(RecordSlot):
    """The canary and one more record: both are in a model, or neither."""

    def scores(self, bank):
        """The logit of the canary alone. It is high for both records."""
        return super().scores(bank)[:, :1]

    def distance(self, bank):
        """The norm of the sum of both clipped gradients."""
        total = bank.model.clipped_sum(bank.theta, self.inputs, self.labels, None, bank.spec.max_grad_norm)
        return torch.linalg.vector_norm(bank.model.flat(total), dim=1)


def bank_of_two(task, model, canary, second, spec, *, bits, generator):
    """A bank in which bit 0 says that a model trains with both records.

    n counts both: the other n - 2 records are in all models.
    """
    device = generator.device
    model = model.prepared(device, spec.sample_rate)
    both = [canary.slot, second]
    x = [np.delete(task.x_train, both, axis=0), canary.z.x[None]]
    y = [np.delete(task.y_train, both), [canary.z.y]]
    x.append(task.x_train[[second]])
    y.append(task.y_train[[second]])
    inputs = model.inputs(torch.tensor(np.concatenate(x), device=device))
    labels = torch.tensor(np.concatenate(y), device=device)
    here = torch.tensor(np.asarray(bits) == 0, device=device)
    present = torch.stack([here, here])[None]
    return Bank(
        model,
        inputs,
        labels,
        shared=len(labels) - 2,
        slot=TwoRecords(present, inputs[-2:], labels[-2:]),
        spec=spec,
        expected_batch_size=spec.sample_rate * len(task.y_train),
        generator=generator,
    )


def advance(bank):
    """One step. Below a sample rate of 1 each record has its own coin."""
    q, own = bank.spec.sample_rate, None
    if q < 1:
        own = poisson_coins(q, 2, bank.runs, bank.generator)
    bank.advance(slot_sampled=own)


def audited(task, model, canary, second, spec, *, runs, observe_every=1, seed=0):
    """Train models with both records or with neither, by a fair coin.

    At a sample rate of 1, bits, starts and noise are those of `dpsub.audit`
    with the same seed and `coordinates="all"`: the models can be compared
    one by one.

    Args:
        task, model, spec: as in `dpsub.audit`.
        canary: a record against nothing. It replaces its slot's record.
        second: the index of the private record that goes with it.
        runs: models of both worlds together.
        observe_every, seed: as in `dpsub.audit`.

    Returns:
        A dataset as of `dpsub.audit(..., metrics=["weights"])`. The score
        is the logit of the canary alone.
    """
    check_fits(model, task)
    _check(task, canary, second)
    total, size = spec.steps, block_size(model)
    seen = sorted({*range(observe_every, total + 1, observe_every), total})
    bits, scores, weights = [], [], []
    for block in range(-(-runs // size)):
        count = min(size, runs - block * size)
        drawn = stream(seed, "audit", block)
        own = drawn.integers(0, 2, size, dtype=np.int8)[:count]
        generator = torch.Generator()
        generator.manual_seed(torch_seed(seed, "audit", block))
        bank = bank_of_two(task, model, canary, second, spec, bits=own, generator=generator)
        columns = []
        for step in range(1, total + 1):
            advance(bank)
            if step in seen:
                columns.append(bank.scores())
        bits.append(own)
        scores.append(torch.stack(columns, dim=1).numpy())
        weights.append(bank.model.flat(bank.theta).numpy())
    found = xr.Dataset(
        {
            "score": (("run", "step"), np.concatenate(scores)),
            "bit": ("run", np.concatenate(bits)),
            "weights": (("run", "parameter"), np.concatenate(weights)),
        },
        coords={"step": seen},
        attrs={
            "scenario": f"{canary.scenario} and a second record",
            "adjacency": canary.adjacency,
            "records_changed": 2,
            "task": task.name,
            "task_fingerprint": task.fingerprint,
            "n": len(task.y_train),
            "model": repr(model),
            **spec.attributes,
            "runs": runs,
            "seed": seed,
            "slot": canary.slot,
            "second": second,
            "canary_fingerprint": canary.fingerprint,
        },
    )
    if not np.isfinite(found.weights).all():
        raise ValueError("spec must be such that training converges")
    return found


def _check(task, canary, second):
    if canary.score != "logit" or canary.z_prime is not None:
        raise ValueError(
            "canary must be a record against nothing, got one of the pair "
            f"{canary.scenario} under {canary.adjacency}: use "
            "pair.against_nothing(adjacency='add_remove')"
        )
    if canary.task not in (None, task.fingerprint):
        raise ValueError("canary must be crafted for this task")
    n = len(task.y_train)
    if second == canary.slot or not 0 <= second < n:
        raise ValueError(
            f"second must be a private record, 0 to {n - 1}, other than the canary's slot, {canary.slot}, got {second}"
        )


RUNS = 1280
WAYS = ("first version", "second version", "held out")


def with_second(cell, runs=RUNS):
    """Models of a cell's worlds, with the last private record in one only.

    The bits, starts and noise are those of `trained`.
    """
    records, network, pair = made_for(cell)
    last = len(records.y_train) - 1
    second = last - 1 if pair.slot == last else last
    begun = time.perf_counter()
    found = audited(records, network, pair, second, cell.spec, runs=runs, observe_every=cell.steps, seed=cell.seed + 1)
    return found.assign_coords(run=range(runs)).assign_attrs(
        audits.made_here("cpu"),
        last_written=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_seconds=time.perf_counter() - begun,
    )


def compared(cell, models):
    """What attacks show in audits of 256 models and in one of them all."""
    size = models.sizes["run"]
    parts = [attacks.evaluated(cell, models, size=one, ways=WAYS) for one in sorted({min(256, size), size})]
    return pd.concat(parts, ignore_index=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    cell = grid("digits")[0]
    tables = Path(sys.argv[2])
    both = with_second(cell)
    attacks.keep(compared(cell, both), cell, both, tables / "two.csv")
    one = trained(cell, sys.argv[1], progress=False)
    one = one.isel(run=slice(0, RUNS))
    attacks.keep(compared(cell, one), cell, one, tables / "one.csv")
