"""The audits of the pages on final models: which there are, and made.

python -m own_code.final_grid MODELS TABLES DATA ..., in notebooks/, trains
the models of each audit, keeps them in the folder MODELS, and keeps what
attacks show of them in the folder TABLES. What is there is not made again.
"""

import sys
from pathlib import Path

import pandas as pd
import torch

from own_code import final_attacks as attacks
from own_code.final_models import LEARNING_RATES, Cell, trained

EPSILONS = (10.0, 4.0, 2.0, 1.0)
MARGINS = (0.05, 0.1, 0.15, 0.25)  # of Table 1, beside 0.2
# For CIFAR-10 from a copy that has 12,000 records to train on.
SIZES = {
    "digits": {"n_train": 250, "n_aux": 800, "steps": 100, "runs": 2560},
    "mnist": {"n_train": 1000, "n_aux": 30000, "steps": 100, "runs": 256},
    "cifar10": {"n_train": 1000, "n_aux": 11000, "steps": 200, "runs": 256},
}


def grid(
    data,
    *,
    epsilons=EPSILONS,
    clipping=(0.1, 10.0),
    canaries=("mislabeled", "ClipBKD"),
    starts=("average", "worst"),
    substitute=("blank",),
    seed=0,
    **sizes,
):
    """The audits of one data set, the figures' main ones first.

    Each differs from the first in one thing, or in one thing and ε.

    Args:
        data: "digits", "mnist" or "cifar10".
        epsilons: ε of the accountant; where nothing else is said, the
            first.
        clipping: C beside 1, for Figure 8.
        canaries: beside the blank and the ordinary record, for Figure 6.
        starts: for Figure 7.
        substitute: canaries that are audited under substitution, too.
        seed: of all.
        sizes: what differs from SIZES.
    """
    first = Cell(
        data=data,
        start="average",
        canary="blank",
        epsilon=epsilons[0],
        max_grad_norm=1.0,
        adjacency="add_remove",
        learning_rate=LEARNING_RATES[data],
        seed=seed,
        **(SIZES[data] | sizes),
    )
    cells = [first]
    if "worst" in starts:
        cells.append(first._replace(start="worst"))
    cells.append(first._replace(canary="in-distribution"))
    cells += [first._replace(max_grad_norm=one) for one in clipping]
    cells += [first._replace(canary=one) for one in canaries]
    cells += [
        first._replace(canary=one, adjacency="substitute")
        for one in substitute
    ]
    main = [first, first._replace(canary="in-distribution")]
    if "worst" in starts:
        main.insert(1, first._replace(start="worst"))
    return cells + [
        one._replace(epsilon=epsilon)
        for epsilon in epsilons[1:]
        for one in main
    ]


def slower(cells, learning_rate):
    """The first two audits, from either start, with another rate."""
    return [one._replace(learning_rate=learning_rate) for one in cells[:2]]


def made(cell, models, *, boxes=0, **options):
    """All that the pages show of a cell, from its models.

    Args:
        cell: the audit.
        models: what `trained` returned for it.
        boxes: how many audits of Figure 4 are attacked by a black box.
        options: of `final_attacks.evaluated`, for all cells.

    Returns:
        The rows. Folds, black boxes and the margins of Table 1 are for the
        blank canary from the average start alone, and audits of 2,048
        models for ε = 10.
    """
    usual = cell._replace(
        start="average",
        canary="blank",
        max_grad_norm=1.0,
        adjacency="add_remove",
        learning_rate=LEARNING_RATES[cell.data],
    )
    if cell == usual:
        options |= {"boxes": boxes, "ways": tuple(attacks.WAYS)}
        options["margins"] = MARGINS if cell.epsilon == 4 else ()
    parts = [attacks.evaluated(cell, models, **options)]
    if models.sizes["run"] >= 2048 and cell.epsilon == 10:
        ways = ("second version", "held out", "held out, second crafting")
        parts.append(attacks.evaluated(cell, models, size=2048, ways=ways))
    return pd.concat(parts, ignore_index=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, tables = map(Path, sys.argv[1:3])
    for name in sys.argv[3:]:
        cells = grid(name)
        more = slower(cells, 0.5) if name != "cifar10" else []
        for cell in cells + more:
            path = tables / f"{cell.name}.csv"
            if not path.exists():
                models = trained(cell, folder, progress=False)
                rows = made(cell, models, boxes=1)
                attacks.keep(rows, cell, models, path)
                print(cell.name, flush=True)
