"""What hides the coins of pairs in one training, and what helps."""

import sys
import time
from dataclasses import asdict, dataclass
from functools import cache, partial

import torch

from dpsub import data
from studies.kept import continued, remembered
from studies.one_run.bridge import DELTA, EPSILON, SHARES, bound_of_guesses, guesses_of
from studies.one_run.head_scores import projections
from studies.one_run.kinds import CENTRES, LARGE, flat, models_of, of_gradients, pairs_of, scores_of, spec_of
from studies.scores import separation


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
    Cell("mislabeled", 30_000, 1_000, 1, 5),
    Cell("mislabeled", 3_000, 100, 16, 5),
    Cell("unused", 3_000, 100, 4, 5),
    Cell("unused, large", 3_000, 100, 4, 5),
    Cell("natural", 3_000, 100, 4, 5),
    Cell("mislabeled", 3_000, 1_000, 4, 10),
    Cell("mislabeled", 3_000, 10, 16, 5),
    Cell("attribute", 3_000, 100, 4, 5),
    Cell("mislabeled", 1_000, 100, 4, 5),
    Cell("mislabeled", 1_000, 100, 4, 5, 16),
    Cell("mislabeled", 1_000, 100, 4, 5, 64),
    Cell("natural", 3_000, 1_000, 4, 10),
)
PROJECTED = {"pairs": 100, "models": 4, "most": 100, "every": 20}


def rows_of(cell, scores, bits):
    """A row for each score and number of models.

    Each has the bounds of all disjoint groups of so many models.
    """
    rows = []
    for name, of in scores.items():
        count = 1
        while count <= cell.models:
            found = [
                guesses_of(of[i : i + count], bits[i : i + count], centre=CENTRES.get(name, 0.0))
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
                    **{way: [round(bound_of_guesses(one, way), 4) for one in found] for way in ("gdp", "dp")},
                }
            )
            count *= 4
    return rows


def projected(task, spec, *, pairs, models, most, every, seed):
    """The separation without leading directions, and with them divided."""
    model = models_of(task)
    wrong = pairs_of("mislabeled", task, model, spec, pairs, seed)
    found = projections(task, model, wrong, spec, models=models, most=most, every=every, seed=seed)
    bits = found["bits"]
    return {
        "records": len(task.y_train),
        "pairs": pairs,
        "models": models,
        "every": every,
        "projected": [round(separation(one, bits), 4) for one in found["projected"]],
        "softened": round(separation(found["softened"], bits), 4),
    }


def of_cell(cell, task, spec, seed):
    """The rows of a cell."""
    began = time.process_time()  # the machine may be shared
    model = models_of(task, cell.width)
    crafted = pairs_of(cell.kind, task, model, spec, cell.pairs, seed)
    scores, bits, accuracy, alone = scores_of(
        task, model, crafted, spec, models=cell.models, whiten=cell.whiten, seed=seed
    )
    about = {
        "accuracy": round(float(accuracy.mean()), 5),
        "trained": cell.models,
        "seconds": round(time.process_time() - began, 1),
        "alone": alone,
    }
    return [one | about for one in rows_of(cell, scores, bits)]


@cache
def mnist(records, seed=0):
    """MNIST with so many private records, as rows of pixels."""
    return flat(data.mnist(records, 2_000, seed=seed))


NAMES = ("kind", "records", "pairs", "trained", "whiten", "width")


def measured(cell, seed=0):
    """The rows of a cell."""
    kind, records, pairs, models, whiten, width = (cell[name] for name in NAMES)
    return of_cell(Cell(kind, records, pairs, models, whiten, width), mnist(records), spec_of(), seed)


def make(path, cells=CELLS, seed=0):
    """Complete a file with all rows, and how they were made. It reads MNIST."""
    spec = spec_of()
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
    how = {"pairs": 1_000, "models": 8, "audits": 200, "seed": seed}
    remembered(path, "gradient", lambda: of_gradients(mnist(30_000), spec, **how))
    remembered(path, "projection", lambda: projected(mnist(3_000), spec, **PROJECTED, seed=seed))
    cells = [(cell.kind, cell.records, cell.pairs, cell.models, cell.whiten, cell.width) for cell in cells]
    continued(path, NAMES, cells, partial(measured, seed=seed), about={"of": of})


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(sys.argv[1])
