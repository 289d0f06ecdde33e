"""What hides the coins of pairs in one training, and what helps."""

import sys
import time
from functools import cache

import torch

from dpsub import data
from studies.kept import continued, remembered
from studies.one_run.bridge import DELTA, EPSILON, SHARES, bound_of_guesses, guesses_of
from studies.one_run.head_scores import projections
from studies.one_run.kinds import CENTRES, LARGE, flat, models_of, of_gradients, pairs_of, scores_of, spec_of
from studies.scores import separation

# Kinds of pairs, n, m, models with coins of their own, iterations of whitening (0: that score is left out), and hidden
# units (0: a linear head).
CELL = ("kind", "records", "pairs", "trained", "whiten", "width")
CELLS = (
    ("mislabeled", 30_000, 1_000, 1, 5, 0),
    ("mislabeled", 3_000, 100, 16, 5, 0),
    ("unused", 3_000, 100, 4, 5, 0),
    ("unused, large", 3_000, 100, 4, 5, 0),
    ("natural", 3_000, 100, 4, 5, 0),
    ("mislabeled", 3_000, 1_000, 4, 10, 0),
    ("mislabeled", 3_000, 10, 16, 5, 0),
    ("attribute", 3_000, 100, 4, 5, 0),
    ("mislabeled", 1_000, 100, 4, 5, 0),
    ("mislabeled", 1_000, 100, 4, 5, 16),
    ("mislabeled", 1_000, 100, 4, 5, 64),
    ("natural", 3_000, 1_000, 4, 10, 0),
)
PROJECTED = {"pairs": 100, "models": 4, "most": 100, "every": 20}
SEED = 0


def rows_of(scores, bits):
    """A row for each score and number of models, with the bounds of all disjoint groups of so many models."""
    rows = []
    for name, of in scores.items():
        count = 1
        while count <= len(of):
            found = [
                guesses_of(of[i : i + count], bits[i : i + count], centre=CENTRES.get(name, 0.0))
                for i in range(0, len(of), count)
            ]
            rows.append(
                {
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


@cache
def mnist(records):
    """MNIST with so many private records, as rows of pixels."""
    return flat(data.mnist(records, 2_000, seed=SEED))


def measured(cell):
    """The rows of a cell."""
    kind, records, pairs, models, whiten, width = (cell[name] for name in CELL)
    task, spec = mnist(records), spec_of()
    began = time.process_time()  # the machine may be shared
    model = models_of(task, width)
    crafted = pairs_of(kind, task, model, spec, pairs, SEED)
    scores, bits, accuracy, alone = scores_of(task, model, crafted, spec, models=models, whiten=whiten, seed=SEED)
    about = {
        "accuracy": round(float(accuracy.mean()), 5),
        "seconds": round(time.process_time() - began, 1),
        "alone": alone,
    }
    return [one | about for one in rows_of(scores, bits)]


def make(path):
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
        "seed": SEED,
    }
    how = {"pairs": 1_000, "models": 8, "audits": 200, "seed": SEED}
    remembered(path, "gradient", lambda: of_gradients(mnist(30_000), spec, **how))
    remembered(path, "projection", lambda: projected(mnist(3_000), spec, **PROJECTED, seed=SEED))
    continued(path, CELL, CELLS, measured, about={"of": of})


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(sys.argv[1])
