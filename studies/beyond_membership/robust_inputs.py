"""Crafted inputs where hyperparameters differ from the audit's, or are those of Figures A2 to A4.

``python -m studies.beyond_membership.robust_inputs studies/beyond_membership/robust_inputs.csv 5 3`` crafts
`robust_input` for each setting of 5 draws of `draws`, with the draws' records, targets and seeds. In 3 of them it also
crafts both kinds of inputs for a wrong guess: a multiple of the learning rate, the number of steps or the clipping
bound of the training that is audited, which is the one of Figures A2 to A4 with the largest. `crafted_input` does not
use the clipping bound. With right values it is S3 of ``draws.csv``. A file that exists is continued.
"""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product

import matplotlib.pyplot as plt
import numpy as np
import torch

from dpsub import crafters, figures, models
from studies.beyond_membership import over_draws, varied
from studies.beyond_membership.draws import ABOUT, IMAGES, SETTING, drawn, found, trained
from studies.kept import continued, read_table
from studies.tight_auditing.seed_tables import interval

FACTORS = (0.1, 0.3, 3, 10)  # of the right value
GUESSED = {"learning_rate": "rate10", "steps": "T2500", "max_grad_norm": "C8"}  # and in which setting
USED = {"crafted_input": ("learning_rate", "steps"), "robust_input": tuple(GUESSED)}  # by crafting
CELL = ("draw", "setting", "canary", "guessed", "factor")


def cells(draws, draws_of_guesses):
    """All settings with the right values first."""
    for draw, setting in product(range(draws), IMAGES):
        yield draw, setting, "robust_input", "nothing", 1
    for draw, (canary, used) in product(range(draws_of_guesses), USED.items()):
        for name, factor in product(used, FACTORS):
            yield draw, GUESSED[name], canary, name, factor


def measured(cell):
    """What a crafted input finds that was crafted for a guess of the setting."""
    torch.set_num_threads(1)
    draw, guessed = cell["draw"], cell["guessed"]
    task, slot = drawn("ImageNet", draw)
    model, spec = models.linear(task), trained(IMAGES[cell["setting"]])
    guess = spec
    if guessed != "nothing":
        right = getattr(spec, guessed)
        guess = replace(spec, **{guessed: type(right)(right * cell["factor"])})
    pair = getattr(crafters, cell["canary"])(task, model, guess, seed=draw, target=slot)
    return [found(task, model, pair, spec, slot, draw)]


def estimates():
    """By canary, setting, what was guessed and the factor, the estimate of ε in the final models for each draw.

    With right values these are all that both tables have. `gradient` is the crafted gradient (S2).
    """
    table = read_table("beyond_membership/robust_inputs.csv").sort_values("draw")
    by_draws = over_draws.kept("ImageNet")
    table = table[table.draw.isin(by_draws.draw)]
    right = by_draws[by_draws.draw.isin(table.draw)]
    keys = ["canary", "setting", "guessed", "factor"]
    shown = {key: rows.final_epsilon.tolist() for key, rows in table.groupby(keys)}
    for canary, scenario in (("gradient", "S2"), ("crafted_input", "S3")):
        for name in IMAGES:
            shown[canary, name, "nothing", 1] = over_draws.each(right)[name, scenario]
    return shown


def lost(shown):
    """By what was guessed and the factor, how much less the robust input shows on average than with right values."""
    found = {}
    for (name, setting), factor in product(GUESSED.items(), FACTORS):
        right, wrong = (shown["robust_input", setting, *guess] for guess in (("nothing", 1), (name, factor)))
        found[name, factor] = float(np.mean(np.subtract(right[: len(wrong)], wrong)))
    return found


def figure(shown):
    """The mean estimates with 95 % intervals against C, and against wrong guesses of three values: a panel each."""
    looks = {name: figures.looks(scenario) for name, scenario in (("gradient", "S2"), ("crafted_input", "S3"))}
    looks["robust_input"] = looks["crafted_input"] | {"mfc": "white", "ls": ":", "label": "robust input (S3)"}
    panels = {"C, known": {f"{IMAGES[name][2]:g}": (name, "nothing", 1) for name in ("C1", "1", "C8")}}
    for guessed, setting in GUESSED.items():
        right = IMAGES[setting][SETTING.index(guessed)]
        wrong = {factor: (setting, guessed, factor) for factor in FACTORS} | {1: (setting, "nothing", 1)}
        label = f"guess of {varied.NAMES[guessed].split()[-1]} = {right:,g}"
        panels[label] = {f"× {factor:g}": wrong[factor] for factor in sorted(wrong)}
    fig, axes = plt.subplots(1, len(panels), figsize=(9.6, 3.0), sharey=True, layout="constrained")
    for ax, (title, places) in zip(axes, panels.items(), strict=True):
        for i, (canary, look) in enumerate(looks.items()):
            known = [(at, shown[canary, *key]) for at, key in enumerate(places.values()) if (canary, *key) in shown]
            at, values = zip(*known, strict=True)
            mean, low, high = np.transpose([interval(one) for one in values])
            ax.errorbar(np.add(at, 0.08 * (i - 1)), mean, yerr=[mean - low, high - mean], **look)
        ax.axhline(10, **figures.looks("substitute"))
        ax.set(xlabel=title, xlim=(-0.4, len(places) - 0.6))
        ax.set_xticks(range(len(places)), places)
    axes[0].set(ylabel="estimated ε in the final models", ylim=(0, None))
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return fig


if __name__ == "__main__":
    path, *draws = sys.argv[1:]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        continued(path, CELL, cells(*map(int, draws)), measured, about=ABOUT, mapped=workers.map, clock=time.monotonic)
