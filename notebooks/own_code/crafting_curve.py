"""How what a sample shows of other models grows with those it learns from.

python -m own_code.crafting_curve FILE, in notebooks/, makes the file.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

import dpsub
from dpsub import crafters, findings
from own_code.final_attacks import BOUNDS, MARGIN
from own_code.final_models import grid, made_for
from own_code.provenance import how_made

LOSSES = ("ude", "ade", "fisher")
SIZES = (64, 256, 1024, 4096, 16384)  # models crafted on
JUDGED = 8192
PARTS = 8  # samples of one size at most, each crafted on models of its own
# Steps of Adam from the canary, and their rate: as in the paper's first
# version, as in its second, and longer than in either.
CRAFTINGS = ((10, 0.05), (5, 0.01), (100, 0.01))


def cells():
    """The blank and the mislabeled canary, and blank under substitution."""
    by_name = {one.name: one for one in grid("digits")}
    usual = "digits-average-{}-eps10-C1-{}"
    return [
        by_name[usual.format(*one)]
        for one in (
            ("blank", "add_remove"),
            ("mislabeled", "add_remove"),
            ("blank", "substitute"),
        )
    ]


def curve(cell, *, sizes=SIZES, judged=JUDGED, craftings=CRAFTINGS):
    """The separation of judged models by samples, and by the canary.

    Under substitution samples ask about both labels.

    Args:
        cell: the audit. Its models are trained with another seed.
        sizes: on how many models samples are crafted.
        judged: how many other models are judged, the same for all samples.
        craftings: pairs of steps and rate.

    Returns:
        A row for each loss, crafting and size, with one separation for each
        sample, and the standard error of its share; and the separation of
        the canary's own score.
    """
    records, network, pair = made_for(cell)
    trained = dpsub.audit(
        records,
        network,
        pair,
        cell.spec,
        runs=max(sizes) + judged,
        observe_every=cell.steps,
        metrics=("weights",),
        seed=cell.seed + 2,
        progress=False,
    )
    weights, bits = trained.weights.values, trained.bit.values
    last = slice(max(sizes), None)
    score = trained.score.values[last, -1]
    own = findings.d_prime(score, bits[last])
    both = cell.adjacency == "substitute"
    rows = []
    for loss in LOSSES:
        for steps, rate in craftings:
            for size in sizes:
                found, errors = [], []
                for part in range(min(PARTS, max(sizes) // size)):
                    these = slice(part * size, (part + 1) * size)
                    sample = crafters.adversarial_sample(
                        network,
                        weights[these],
                        bits[these],
                        start=pair.z,
                        y_prime=pair.z_prime.y if both else None,
                        loss=loss,
                        margin=MARGIN,
                        steps=steps,
                        learning_rate=rate,
                        bounds=BOUNDS,
                    )
                    scores = sample.scores(network, weights[last])
                    found.append(findings.d_prime(scores, bits[last]))
                    errors.append(share_error(scores, score, bits[last]))
                row = {"loss": loss, "steps": steps, "rate": rate}
                row |= {"models": size, "separations": found}
                row["share_errors"] = errors
                rows.append(row)
    return rows, own


def share_error(scores, others, bits, parts=16):
    """The standard error of d′ by scores over that by others.

    It is the jackknife's, over parts of the models that both judge.
    """
    part = np.arange(len(bits)) % parts
    left = np.array(
        [
            findings.d_prime(scores[part != one], bits[part != one])
            / findings.d_prime(others[part != one], bits[part != one])
            for one in range(parts)
        ]
    )
    return float(np.sqrt((parts - 1) * left.var()))


def study():
    """The curves of all cells, with how they were made."""
    begin, rows, own, audited = time.monotonic(), [], {}, cells()
    for cell in tqdm(audited, unit=" cells"):
        found, own[cell.name] = curve(cell)
        rows += [{"cell": cell.name} | row for row in found]
    how = how_made(round(time.monotonic() - begin))
    of = {"judged": JUDGED, "n": audited[0].n_train}
    of["epsilon"] = audited[0].epsilon
    return {"made": how, "of": of, "canary": own, "rows": rows}


def table(path):
    """Mean separations by cell, loss, steps and models, and the canary's.

    Returns:
        The table, in which `share` is the separation by the sample over
        that by the canary, and `error` the largest standard error of it;
        and all that the file holds.
    """
    kept = json.loads(Path(path).read_text())
    rows = pd.DataFrame(kept["rows"])
    rows["separation"] = rows.separations.map(
        lambda one: sum(one) / len(one)
    )
    rows["canary"] = rows.cell.map(kept["canary"])
    rows["share"] = rows.separation / rows.canary
    rows["error"] = rows.share_errors.map(max)
    return rows.drop(columns=["separations", "share_errors"]), kept


if __name__ == "__main__":
    torch.set_num_threads(1)
    told = json.dumps(study(), indent=1)
    Path(sys.argv[1]).write_text(told + "\n")
