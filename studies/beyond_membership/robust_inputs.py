"""Crafted inputs where hyperparameters differ from the audit's, or are those of Figures A2 to A4.

``python -m studies.beyond_membership.robust_inputs studies/beyond_membership/robust_inputs.csv 10 5`` crafts
`robust_input` for each setting of 10 draws of `draws`, with the draws' records, targets and seeds. In 5 of them it also
crafts both kinds of inputs for a wrong guess of Figure 3's training at q = 1, which is then audited: a multiple of its
learning rate, number of steps or clipping bound. `crafted_input` does not use the clipping bound. With right values it
is S3 of ``draws.csv``. A file that exists is continued.
"""

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product

import torch

from dpsub import crafters, models
from studies.beyond_membership.draws import ABOUT, IMAGES, drawn, found, trained
from studies.kept import continued

FACTORS = (1 / 16, 1 / 4, 4, 16)  # of the right value
GUESSED = {"crafted_input": ("learning_rate", "steps"), "robust_input": ("learning_rate", "steps", "max_grad_norm")}
CELL = ("draw", "setting", "canary", "guessed", "factor")


def cells(draws, draws_of_guesses):
    """All settings with the right values first."""
    for draw, setting in product(range(draws), IMAGES):
        yield draw, setting, "robust_input", "nothing", 1
    for draw, (canary, guessed) in product(range(draws_of_guesses), GUESSED.items()):
        for name, factor in product(guessed, FACTORS):
            yield draw, "1", canary, name, factor


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


if __name__ == "__main__":
    path, *draws = sys.argv[1:]
    with ProcessPoolExecutor(os.cpu_count()) as workers:
        continued(path, CELL, cells(*map(int, draws)), measured, about=ABOUT, mapped=workers.map, clock=time.monotonic)
