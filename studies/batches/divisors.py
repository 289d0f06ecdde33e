"""One step of DP-SGD whose sum is divided by the expected batch size, by the number of records, or by microbatches."""

import numpy as np

import dpsub
from dpsub import accounting

RECORDS = 8
WORST = {"expected size": "shifted", "number of records": "opposite", "pairs": "shifted"}  # `audit_mechanism`'s batches


def clipped(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)


def step(divisor, sigma, seed):
    """A private step, clipping norm 1, that returns what an optimizer averages."""
    rng = np.random.default_rng(seed)

    def by_expected_size(rows):
        return (clipped(rows).sum(axis=0) + sigma * rng.normal(size=rows.shape[1])) / RECORDS

    def by_number_of_records(rows):
        return (clipped(rows).sum(axis=0) + sigma * rng.normal(size=rows.shape[1])) / len(rows)

    def by_pairs(rows):
        pairs = [rows[i : i + 2].mean(axis=0) for i in range(0, len(rows), 2)]
        return (clipped(np.array(pairs)).sum(axis=0) + sigma * rng.normal(size=rows.shape[1])) / RECORDS

    steps = {"expected size": by_expected_size, "number of records": by_number_of_records, "pairs": by_pairs}
    return steps[divisor]


def bounds(adjacency, *, sigma, steps, delta, seed):
    """For each divisor the bound on the ε of one step, from its worst batches; and the ε that is claimed, "claimed"."""
    found = {"claimed": accounting.epsilon(history=[(sigma, 1.0, 1)], delta=delta, adjacency=adjacency)}
    for divisor, batches in WORST.items():
        audited = dpsub.audit_mechanism(
            step(divisor, sigma, seed), max_grad_norm=1.0, adjacency=adjacency, steps=steps, gradients=batches,
            batch_size=RECORDS, divided_by=RECORDS, seed=seed, progress=False,
        )  # fmt: skip
        found[divisor] = dpsub.bound(audited, delta=delta).epsilon
    return found


def told_by_scale(*, sigma, parameters, steps, seed):
    """The share of steps in which the spread of what is returned tells whether there was one more record.

    All gradients are 0, and a coin says whether there are 8 records or 7.
    """
    rng, private = np.random.default_rng(seed), step("number of records", sigma, seed)
    coins = rng.integers(2, size=steps)
    middle = sigma * np.sqrt(1 / RECORDS / (RECORDS - 1))
    guesses = [private(np.zeros((RECORDS - coin, parameters))).std() > middle for coin in coins]
    return np.mean(np.array(guesses) == coins)
