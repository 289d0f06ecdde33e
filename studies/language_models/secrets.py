"""Many secrets of several candidates in one fine-tuning on film reviews.

    python -m studies.language_models.secrets studies/language_models/secrets.csv

The last words of some private reviews are replaced by one of k words each, drawn uniformly. LoRA learns to say the last
words, once. An attacker who knows all else guesses them. A table that exists is continued.
"""

import sys
from dataclasses import replace
from functools import cache

import numpy as np
import torch

import dpsub
from studies.kept import continued
from studies.language_models import audits as sst2
from studies.trainings import ON_A_CPU

KIND, SECRETS, CANDIDATES, SEEDS = "last word", 200, (2, 10), (0, 1, 2)
CELL = ("candidates", "seed")
CELLS = tuple((k, seed) for seed in SEEDS for k in CANDIDATES)


@cache
def setting():
    """The task, and the bank."""
    return sst2.setting(KIND, sst2.ONE_RUN, 0)


def drawn(candidates, seed):
    """For each secret two different words of k, in the order of a draw."""
    draws = np.random.default_rng([seed, candidates])
    each = np.tile(np.arange(candidates), (SECRETS, 1))
    return draws.permuted(each, axis=1)[:, :2]


def trained(words, ends, spec, seed):
    """One training: which candidates are in it, and its models by step.

    A coin chooses one of two ends, so that each candidate is as likely.
    """
    task, model = setting()
    x, (y, y_prime) = task.x_train[:SECRETS], words[ends].T
    pairs = dpsub.Pairs(range(SECRETS), x, x, y, y_prime, scenario="secrets", task=task.fingerprint)
    path = [model.initial_parameters(1, torch.Generator())]
    how = {"metrics": ["weights"], "subtract_expected": False} | ON_A_CPU
    for steps in range(1, spec.steps + 1):  # each begins as the last one
        seen = dpsub.audit_one_run(task, model, pairs, replace(spec, steps=steps), seed=seed, **how)
        path.append(torch.tensor(seen.weights.values))
    bits = seen.bit.values[0].astype(int)
    return ends[np.arange(SECRETS), bits], torch.cat(path)


def of_final_model(path, words):
    """(secrets, k): how much likelier each candidate has become.

    What training makes likelier everywhere is subtracted.
    """
    task, model = setting()
    x = model.inputs(torch.tensor(task.x_train[:SECRETS]))
    logits = model.logits(path[[0, -1]], x)[:, words].detach().numpy()
    more = logits[..., 1] - logits[..., 0]
    return more - more.mean(0)


def of_steps(path, words, spec):
    """(secrets, k): how well each candidate explains all noisy sums.

    The other secrets count as noise of a known covariance.
    """
    task, model = setting()
    before, norm = path[:-1].contiguous(), spec.max_grad_norm
    x, y = model.inputs(torch.tensor(task.x_train)), torch.tensor(words)
    with torch.no_grad():
        others = torch.tensor(task.y_train[SECRETS:])
        known = model.clipped_sum(before, x[SECRETS:], others, None, norm)
        rows = [(i, j) for i in range(SECRETS) for j in range(len(y))]
        each = torch.stack([model.clipped_sum(before, x[i, None], y[j, None], None, norm) for i, j in rows])
    each = each.numpy().reshape(SECRETS, len(y), -1) / norm
    apart = each - each.mean(1, keepdims=True)
    sums = -path.diff(dim=0) * len(x) / spec.learning_rate
    rest = ((sums - known) / norm).flatten().numpy() - each.mean(1).sum(0)
    flat = apart.reshape(SECRETS * len(y), -1).astype(float)
    products = flat @ flat.T
    spread = products / len(y)
    spread[np.diag_indices(len(spread))] += spec.noise_multiplier**2
    weighed = np.linalg.solve(spread, np.c_[flat @ rest, products])
    found = weighed[:, 0] - np.diag(weighed[:, 1:]) / 2
    return found.reshape(SECRETS, len(y))


def ranks(scores, secrets):
    """The rank of each secret among its candidates, 1 for the highest."""
    own = scores[np.arange(len(secrets)), secrets]
    return 1 + (scores > own[:, None]).sum(1)


def measured(cell):
    """One training: how many guesses are right, and the mean exposure."""
    k, seed = cell["candidates"], cell["seed"]
    number, spec = sst2.reviews(sst2.ONE_RUN)[0].number, sst2.spec_of(KIND)
    words = np.array([number[word] for word in sst2.DIGITS[:k]])
    secrets, path = trained(words, drawn(k, seed), spec, seed)
    row = {"secrets": SECRETS, "trained": len(setting()[0].y_train)}
    for name, scores in (("final", of_final_model(path, words)), ("steps", of_steps(path, words, spec))):
        found = ranks(scores, secrets)
        row[name] = int((found == 1).sum())
        row[f"{name}_exposure"] = round(float(np.log2(k / found).mean()), 3)
    return [row]


if __name__ == "__main__":
    torch.set_num_threads(1)
    about = f"right guesses of last words of SST-2, GPT-2 with LoRA, substitute {sst2.EPSILON:g}; one core of a shared "
    continued(sys.argv[1], CELL, CELLS, measured, about=about + "machine, processor seconds")
