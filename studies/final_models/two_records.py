"""Audits of two worlds that differ by two records, as published code has.

Published code drops the last private record from the world without the canary. The other world holds both. An audit
there measures more than the ε of one record allows: compare it with that of a group of two.

``python -m studies.final_models.two_records MODELS TABLES`` audits the first setting of digits with worlds that differ
by two records, and by one, and keeps both tables. MODELS has the store of one record, or gets it.
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
from dpsub.trainers import Bank, RecordSlot, block_size
from studies.final_models import attacks
from studies.final_models.audits import grid, made_for, trained

RUNS = 1280
WAYS = ("first version", "second version", "held out")


class TwoRecords(RecordSlot):
    """The canary and one more record: both are in a model, or neither."""

    def scores(self, bank):
        """The logit of the canary alone. It is high for both records."""
        return super().scores(bank)[:, :1]


def bank_of_two(task, model, canary, second, spec, *, bits, generator):
    """A bank in which bit 0 says that a model trains with both records: the canary, and the private one of this number.

    n counts both: the other n - 2 records are in all models. All are in each batch.
    """
    both = [canary.slot, second]
    x = np.concatenate([np.delete(task.x_train, both, axis=0), canary.z.x[None], task.x_train[[second]]])
    y = np.concatenate([np.delete(task.y_train, both), [canary.z.y], task.y_train[[second]]])
    model = model.prepared(generator.device, 1.0)
    inputs, labels = model.inputs(torch.tensor(x)), torch.tensor(y)
    here = torch.tensor(np.asarray(bits) == 0)
    return Bank(
        model,
        inputs,
        labels,
        shared=len(labels) - 2,
        slot=TwoRecords(torch.stack([here, here])[None], inputs[-2:], labels[-2:]),
        spec=spec,
        expected_batch_size=len(task.y_train),
        generator=generator,
    )


def audited(task, model, canary, second, spec, *, runs, seed=0):
    """Final models that were trained with both records or with neither, by a fair coin, as `dpsub.audit` gives them.

    Bits, starts and noise are those of `dpsub.audit` with the same seed and `coordinates="all"`: the models can be
    compared one by one. The score is the logit of the canary alone.
    """
    size, bits, scores, weights = block_size(model), [], [], []
    for block in range(-(-runs // size)):
        count = min(size, runs - block * size)
        own = stream(seed, "audit", block).integers(0, 2, size, dtype=np.int8)[:count]
        generator = torch.Generator().manual_seed(torch_seed(seed, "audit", block))
        bank = bank_of_two(task, model, canary, second, spec, bits=own, generator=generator)
        for _ in range(spec.steps):
            bank.advance(slot_sampled=None)
        bits.append(own)
        scores.append(bank.scores()[:, None].numpy())
        weights.append(bank.model.flat(bank.theta).numpy())
    return xr.Dataset(
        {
            "score": (("run", "step"), np.concatenate(scores)),
            "bit": ("run", np.concatenate(bits)),
            "weights": (("run", "parameter"), np.concatenate(weights)),
        },
        coords={"step": [spec.steps]},
        attrs={"adjacency": canary.adjacency, "task": task.name, "model": repr(model), **spec.attributes},
    )


def with_second(cell):
    """Models of a cell's worlds, with the last private record in one only.

    The bits, starts and noise are those of `trained`.
    """
    records, network, pair = made_for(cell)
    last = len(records.y_train) - 1
    second = last - 1 if pair.slot == last else last
    begun = time.perf_counter()
    found = audited(records, network, pair, second, cell.spec, runs=RUNS, seed=cell.seed + 1)
    return found.assign_coords(run=range(RUNS)).assign_attrs(
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
    one = trained(cell, sys.argv[1], progress=False).isel(run=slice(0, RUNS))
    attacks.keep(compared(cell, one), cell, one, tables / "one.csv")
