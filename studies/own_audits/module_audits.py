"""The audits of a module beside those of a network of built-in layers."""

import time
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

import dpsub
from dpsub import crafters, data, figures, models

KINDS = {"S2": "gradient", "S3": "crafted record", "S4": "other label"}
MARKS = {"own module": "o", "own module, fresh starts": "X", "built-in MLP": "s"}


def rows_of_digits(n_train, seed):
    """Digits as images (n, 8, 8); the task has pixels without blanks."""
    flat = data.digits(n_train=n_train, seed=seed)
    return data.from_arrays(
        flat.pictures(flat.x_train),
        flat.y_train,
        x_aux=flat.pictures(flat.x_aux),
        y_aux=flat.y_aux,
        x_test=flat.pictures(flat.x_test),
        y_test=flat.y_test,
        name="rows of digits",
    )


def audited(task, banks, spec, options, crafting_steps, results):
    """By bank and scenario. Fresh starts are audited with S4 alone."""
    found = {}
    for name, bank in sorted(banks.items()):
        for scenario in KINDS if "fresh" not in name else ["S4"]:
            more = {"steps": crafting_steps} if scenario == "S3" else {}
            craft = crafters.BY_SCENARIO[scenario]
            canary = craft(task, bank, spec, seed=options["seed"], **more)
            place = name.replace(",", "").replace(" ", "_")
            store = results and Path(results, f"{scenario}_{place}.db")
            found[name, scenario] = dpsub.audit(task, bank, canary, spec, store=store, **options)
    return found


def worst_cases(spec, options, repeats, delta, alpha):
    """The bounds of simulated audits of the worst case (S1)."""
    return [
        dpsub.bound(
            dpsub.audit_worst_case(
                **spec.mechanism,
                runs=options["runs"],
                adjacency="substitute",
                seed=options["seed"] + 1 + number,
            ),
            delta=delta,
            alpha=alpha,
        )[-1].epsilon
        for number in range(repeats)
    ]


def both_ways(task, spec, options):
    """The same MLP built in and as a module: scores and seconds of each."""
    built_in = models.mlp(task, hidden=(8,))
    start = nn.utils.parameters_to_vector(built_in.module().parameters())
    fixed = built_in.starting_from(start)
    canary = crafters.mislabeled(task, fixed, spec, seed=options["seed"])
    found = {}
    for name, bank in {"built in": fixed, "as a module": models.from_module(fixed.module(start), task)}.items():
        began = time.perf_counter()
        seen = dpsub.audit(task, bank, canary, spec, **options)
        found[name] = seen.score.values, time.perf_counter() - began
    return found


def marks(ax, table, worst, substitute, add_remove):
    """A row for each scenario, and a mark for each bank."""
    ax.axvline(substitute, **figures.looks("substitute"))
    ax.axvline(add_remove, **figures.looks("add_remove"))
    look = {"color": "0.4", "lw": 4, "label": "worst case (S1), simulated"}
    ax.plot(np.quantile(worst, (0.025, 0.975)), [2.18, 2.18], **look)
    for color, (name, mark) in zip(figures.COLORS, MARKS.items(), strict=False):
        dots = {"color": color, "marker": mark, "ls": "none"}
        ax.plot(table.loc[name], [2, 1, 0], label=name, **dots)
    ax.set_yticks([2, 1, 0], [f"{KINDS[one]} ({one})" for one in table])
    ax.set_ylim(-0.4, 2.4)
    ax.set_xlim(left=0)
    ax.set_xlabel("ε")
    ax.figure.legend(loc="outside upper center")


def table_of(found, delta, alpha):
    """The bound of each audit: a row for each bank."""
    bounds = {key: dpsub.bound(one, delta=delta, alpha=alpha)[-1].epsilon for key, one in found.items()}
    return pd.Series(bounds).unstack().reindex(columns=list(KINDS))
