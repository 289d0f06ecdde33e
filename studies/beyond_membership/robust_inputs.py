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


def changes(shown, canary):
    """By what was guessed and the factor, what a wrong guess changes of the estimate in each draw."""
    found = {}
    for name, factor in product(USED[canary], FACTORS):
        right, wrong = (shown[canary, GUESSED[name], *guess] for guess in (("nothing", 1), (name, factor)))
        found[name, factor] = np.subtract(wrong, right[: len(wrong)])
    return found


def figure(shown):
    """The mean estimates with 95 % intervals against C, and what wrong guesses of three values change in each draw."""
    looks = {name: figures.looks(scenario) for name, scenario in (("gradient", "S2"), ("crafted_input", "S3"))}
    looks["robust_input"] = looks["crafted_input"] | {"mfc": "white", "ls": ":", "label": "robust input (S3)"}
    fig, (known, *guesses) = plt.subplots(1, 4, figsize=(9.6, 3.0), width_ratios=(1.1, 1, 1, 1), layout="constrained")
    names = ("C1", "1", "C8")
    for i, (canary, look) in enumerate(looks.items()):
        mean, low, high = np.transpose([interval(shown[canary, name, "nothing", 1]) for name in names])
        known.errorbar(np.arange(3) + 0.08 * (i - 1), mean, yerr=[mean - low, high - mean], **look)
    known.set_xticks(range(3), [f"{IMAGES[name][2]:g}" for name in names])
    known.set(xlabel="C, known", ylabel="estimated ε in the final models", ylim=(0, None), xlim=(-0.4, 2.4))
    for ax, (name, setting) in zip(guesses, GUESSED.items(), strict=True):
        right = IMAGES[setting][SETTING.index(name)]
        for canary, shift in (("crafted_input", -0.08), ("robust_input", 0.08)):
            found = [one for (guessed, _), one in changes(shown, canary).items() if guessed == name]
            if found:
                at = np.arange(len(FACTORS)) + shift
                ax.plot(at, [np.mean(one) for one in found], **looks[canary])
                ax.plot(at, found, ".", color=looks[canary]["color"], ms=3)
        ax.axhline(0, color="0.6", lw=0.8, zorder=0)
        ax.set_xticks(range(len(FACTORS)), [f"× {factor:g}" for factor in FACTORS])
        ax.set(xlabel=f"guess of {varied.NAMES[name].split()[-1]} = {right:,g}", ylim=(-2.5, 1), xlim=(-0.4, 3.4))
        ax.tick_params(labelleft=ax is guesses[0])
    guesses[0].set_ylabel("change by a wrong guess")
    fig.legend(*known.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig


if __name__ == "__main__":
    path, *draws = sys.argv[1:]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        continued(path, CELL, cells(*map(int, draws)), measured, about=ABOUT, mapped=workers.map, clock=time.monotonic)
