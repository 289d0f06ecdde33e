"""Which audit finds which fault of the zoo, and after how many steps."""

import sys

import numpy as np
import pandas as pd
import torch

from own_code import zoo
from own_code.zoo_audits import AUDITS

BEST = {
    "right": ("Diracs", "substitute"),
    "clips the average": ("Dirac", "substitute"),
    "clips each layer": ("Diracs", "substitute"),
    "sums before clipping": ("against the others", "add_remove"),
    "100 seeds": ("noise remembered", "substitute"),
    "half the noise": ("Dirac", "substitute"),
    "noise on one group": ("Diracs", "substitute"),
    "noise of microbatches": ("Dirac", "substitute"),
    "noise of workers": ("Dirac", "substitute"),
    "too much noise": ("Diracs", "substitute"),
    "shuffled": ("sizes", "substitute"),
    "weighted": ("record", "substitute"),
    "divides by n": ("length", "add_remove"),
}
CANARIES = ("Dirac", "Diracs", "constant", "random", "random, anew")
OF_RECORDS = ("record", "record, not seen yet", "length", "sizes")
AUDITS_OF = {
    "sums before clipping": ("against the others",),
    "100 seeds": ("noise remembered",),
    "half the noise": ("noise remembered", "against the others"),
} | dict.fromkeys(("shuffled", "weighted", "divides by n"), OF_RECORDS)


def all_cells():
    """Every fault, with the audits that could concern it."""
    for fault in zoo.ZOO:
        audits = (*CANARIES, "Diracs of norm C", *AUDITS_OF.get(fault, ()))
        if "record" in audits:
            audits = ("Dirac", "Diracs", *OF_RECORDS)
        for audit in audits:
            yield fault, audit, "substitute"
            if audit != "record, not seen yet":
                yield fault, audit, "add_remove"


def detection(cells, *, steps, seeds):
    """After how many steps each audit refutes each trainer.

    Args:
        cells: (fault, audit, adjacency), names of `zoo.ZOO` and `AUDITS`.
        steps: of a training, if it is not refuted before.
        seeds: of the repetitions.

    Returns:
        A row for each cell: how many repetitions found the fault, of how
        many; how many steps each had at most; the median number of steps,
        where those that did not count as infinitely many; and the
        log-wealth of the first repetition.
    """
    rows = []
    for fault, audit, adjacency in cells:
        trained = [
            AUDITS[audit](
                zoo.ZOO[fault], adjacency=adjacency, steps=steps, seed=seed
            )
            for seed in seeds
        ]
        after = [np.inf if at is None else at for _, at in trained]
        rows.append(
            {
                "fault": fault,
                "audit": audit,
                "adjacency": adjacency,
                "found": int(np.isfinite(after).sum()),
                "of": len(after),
                "most": steps,
                "steps": float(np.median(after)),
                "wealth": trained[0][0],
            }
        )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    tables, best = [], [(fault, *how) for fault, how in BEST.items()]
    for cell in all_cells():
        steps = 500 if cell in best else 300
        if cell[1] == "record, not seen yet":
            steps = 2000
        seeds = range(5 if cell in best else 3)
        table = detection([cell], steps=steps, seeds=seeds)
        tables.append(table.drop(columns="wealth"))
        print(tables[-1].to_string(header=False, index=False), flush=True)
    pd.concat(tables).to_csv(sys.argv[1], index=False)
