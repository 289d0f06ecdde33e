"""What hides the coins of pairs in one training, and what helps."""

import json
import platform
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch
from tqdm.auto import tqdm

from dpsub import data
from dpsub._core.provenance import commit
from own_code.bridge import SHARES, separation
from own_code.ideal_pairs import of_gradients
from own_code.pair_scores import (
    CENTRES,
    DELTA,
    EPSILON,
    LARGE,
    bound,
    counted,
    flat,
    models_of,
    pairs_of,
    scores_of,
    spec_of,
)
from own_code.projected_steps import projections


@dataclass(frozen=True)
class Cell:
    """One audit of the study: pairs, and the models that train with them.

    Attributes:
        kind: of pairs, as in `pairs_of`.
        records: n.
        pairs: m.
        models: trainings, each with coins of its own.
        whiten: iterations; 0 leaves that score out.
        width: of the hidden layer; 0 for a linear head.
    """

    kind: str
    records: int
    pairs: int
    models: int
    whiten: int = 0
    width: int = 0


CELLS = (
    Cell("mislabeled", 3_000, 10, 16, 5),
    Cell("mislabeled", 3_000, 100, 16, 5),
    Cell("mislabeled", 3_000, 1_000, 4, 15),
    Cell("mislabeled", 30_000, 1_000, 1, 10),
    Cell("natural", 3_000, 100, 4, 5),
    Cell("natural", 3_000, 1_000, 4, 15),
    Cell("attribute", 3_000, 100, 4, 5),
    Cell("unused", 3_000, 100, 4, 5),
    Cell("unused, large", 3_000, 100, 4, 5),
    Cell("gradient", 3_000, 100, 4),
    Cell("gradient", 3_000, 1_000, 4),
    Cell("mislabeled", 1_000, 100, 4, 5),
    Cell("mislabeled", 1_000, 100, 4, 5, 16),
    Cell("mislabeled", 1_000, 100, 4, 5, 128),
)
PROJECTED = {"records": 3_000, "pairs": 100, "models": 4, "most": 100}


def rows_of(cell, scores, bits):
    """A row for each score and number of models.

    Each has the bounds of all disjoint groups of so many models.
    """
    rows = []
    for name, of in scores.items():
        count = 1
        while count <= cell.models:
            found = [
                counted(
                    of[i : i + count],
                    bits[i : i + count],
                    centre=CENTRES.get(name, 0.0),
                )
                for i in range(0, cell.models, count)
            ]
            rows.append(
                asdict(cell)
                | {
                    "score": name,
                    "models": count,
                    "scores": of.size,
                    "separation": round(separation(of, bits), 4),
                    "right": [one.correct for one in found],
                    "guesses": found[0].guesses,
                    **{
                        way: [round(bound(one, way), 4) for one in found]
                        for way in ("gdp", "dp")
                    },
                }
            )
            count *= 4
    return rows


def projected(task, spec, *, pairs, models, most, every, seed):
    """The separation without leading directions, and with them divided."""
    model = models_of(task)
    made = pairs_of("mislabeled", task, model, spec, pairs, seed)
    found = projections(
        task,
        model,
        made,
        spec,
        models=models,
        most=most,
        every=every,
        seed=seed,
    )
    bits = found["bits"]
    return {
        "records": len(task.y_train),
        "pairs": pairs,
        "models": models,
        "every": every,
        "projected": [
            round(separation(one, bits), 4) for one in found["projected"]
        ],
        "softened": round(separation(found["softened"], bits), 4),
    }


def of_cell(cell, task, spec, seed):
    """The rows of a cell."""
    began = time.process_time()  # the machine may be shared
    model = models_of(task, cell.width)
    made = pairs_of(cell.kind, task, model, spec, cell.pairs, seed)
    scores, bits, accuracy, alone = scores_of(
        task,
        model,
        made,
        spec,
        models=cell.models,
        whiten=cell.whiten,
        seed=seed,
    )
    about = {
        "accuracy": round(float(accuracy.mean()), 5),
        "trained": cell.models,
        "seconds": round(time.process_time() - began, 1),
        "alone": alone,
    }
    return [one | about for one in rows_of(cell, scores, bits)]


def study(cells=CELLS, seed=0, progress=True):
    """All rows, and how they were made. It reads MNIST."""
    begin, rows, spec = time.monotonic(), [], spec_of()
    tasks = {
        n: flat(data.mnist(n, 2_000, seed=seed))
        for n in {one.records for one in cells} | {3_000, 30_000}
    }
    for cell in (bar := tqdm(cells, unit=" audits", disable=not progress)):
        bar.set_postfix_str(f"{cell.kind} {cell.records} {cell.pairs}")
        rows += of_cell(cell, tasks[cell.records], spec, seed)
    how = {key: PROJECTED[key] for key in ("pairs", "models", "most")}
    found = {
        "rows": rows,
        "projection": projected(
            tasks[PROJECTED["records"]], spec, every=10, seed=seed, **how
        ),
        "gradient": of_gradients(
            tasks[30_000],
            spec,
            pairs=1_000,
            models=8,
            audits=200,
            seed=seed,
        ),
    }
    made = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{platform.machine()}, {platform.system()}",
        "commit": commit(),
        "seconds": round(time.monotonic() - begin),
        **{name: version(name) for name in ("numpy", "scipy", "torch")},
    }
    of = {
        **spec.mechanism,
        "max_grad_norm": spec.max_grad_norm,
        "learning_rate": spec.learning_rate,
        "substitute": EPSILON,
        "delta": DELTA,
        "task": "MNIST",
        "shares": SHARES,
        "large": LARGE,
        "seed": seed,
    }
    return {"made": made, "of": of} | found


def kept(path):
    """What `study` found, read from its file."""
    return json.loads(Path(path).read_text())


if __name__ == "__main__":
    torch.set_num_threads(1)
    Path(sys.argv[1]).write_text(json.dumps(study()) + "\n")
