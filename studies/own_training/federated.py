"""Federated averaging in NumPy, with DP for whole clients."""

from itertools import pairwise

import numpy as np

from studies.own_training.private_steps import clip

ROUNDS = 10  # all hospitals take part in each
RATE = 1.0  # of the training at a hospital
PASSES = 2  # over its patients, in each round


def federated(x, y, seed, *, max_grad_norm, noise_multiplier):
    """The models after 0, 1, 2 … rounds.

    Hospitals have rows x (hospitals, patients, features) and labels y of
    −1 and 1.
    """
    rng = np.random.default_rng(seed)
    std = noise_multiplier * max_grad_norm / len(x)
    models = [np.zeros(x.shape[-1])]
    for _ in range(ROUNDS):
        sent = clip(updates(models[-1], x, y), max_grad_norm)
        noise = rng.normal(scale=std, size=x.shape[-1])
        models.append(models[-1] + sent.mean(axis=0) + noise)
    return models


def updates(model, x, y):
    """How a few steps of logistic regression at each hospital move it."""
    towards = y[..., None] * x
    local = np.tile(model, (len(x), 1))
    for _ in range(PASSES):
        margins = np.einsum("hpf,hf->hp", towards, local)
        missed = 1 / (1 + np.exp(margins))
        slopes = np.einsum("hp,hpf->hf", missed, towards)
        local += RATE * slopes / x.shape[1]
    return local - model


def train(bit, seed, *, others, pair, run=federated, **promised):
    """Train with hospital z (bit 0) or z′ (bit 1) as the last; score it.

    Args:
        others: x and y of the other hospitals.
        pair: x (2, patients, features) and y (2, patients) of z and z′.
        run: trains, and returns the models.
    """
    x, y = map(np.concatenate, zip(others, pair, strict=True))
    with_one = [*range(len(x) - 2), bit - 2]
    models = run(x[with_one], y[with_one], seed, **promised)
    return scores(models, x, y, promised["max_grad_norm"])


def scores(models, x, y, max_grad_norm):
    """After each round, the log-ratio of likelihoods up to a factor.

    The attacker knows the models and all data but the coin, as DP
    assumes. z and z′ are the last two of x and y.
    """
    found = []
    for old, new in pairwise(models):
        sent = clip(updates(old, x, y), max_grad_norm)
        *_, z, z_prime = sent / (len(x) - 1)
        with_z = old + sent[:-1].sum(axis=0) / (len(x) - 1)
        middle = with_z + (z_prime - z) / 2
        found.append((new - middle) @ (z - z_prime))
    return np.cumsum(found)
