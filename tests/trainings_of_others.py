"""Training functions that are not dpsub's, for audits of training functions. Other processes import them by name."""

import time
from functools import cache

import numpy as np
import torch
from torch import nn

from dpsub import DPSGD, crafters, data, models

STEPS = (2, 4)
SPEC = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=0.5, steps=10, learning_rate=0.1)


def one_normal(bit, seed):
    return np.random.default_rng(seed).normal(1 - 2 * bit)


def deaf(bit, seed):
    return np.random.default_rng(42).normal(1 - 2 * bit)


def deaf_but_for_rounding(bit, seed):
    return deaf(bit, 0) + 1e-7 * np.random.default_rng(seed).normal(), deaf(bit, 0)


def right_of_ten(bit, seed):
    """How many of ten answers are right: a score of few values, with honest ties."""
    return np.random.default_rng(seed).binomial(10, 0.9 - 0.3 * bit)


def two_scores(bit, seed):
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.normal(1 - 2 * bit, size=(2, 2)).sum(axis=1))


def slow(bit, seed):
    time.sleep(0.02)
    return one_normal(bit, seed)


def fails_at_times(bit, seed):
    """Every fifth seed raises, every seventh has no finite score, every third has one score too many."""
    if seed % 5 == 0:
        raise RuntimeError(f"no luck with {seed}\0\ud800")
    if seed % 7 == 0:
        return [0.0, np.nan]
    return [1.0, 2.0, 3.0] if seed % 3 == 0 else two_scores(bit, seed)


@cache
def digits():
    task = data.digits(n_train=50)
    model = models.linear(task)
    return task, model, crafters.mislabeled(task, model, SPEC, seed=0)


def opacus_head(bit, seed):
    """A linear head by Opacus's optimizer and Poisson batches, scored as dpsub scores records."""
    from opacus import GradSampleModule  # here, since it takes seconds and other processes need it for nothing else
    from opacus.optimizers import DPOptimizer

    task, _, pair = digits()
    world = pair.z if bit == 0 else pair.z_prime
    x, y = task.x_train.reshape(len(task.y_train), -1).copy(), task.y_train.copy()
    x[pair.slot], y[pair.slot] = world.x.ravel(), world.y
    x, y = torch.tensor(x), torch.tensor(y)
    generator = torch.Generator().manual_seed(seed)
    head = nn.Linear(x.shape[1], task.num_classes)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    module = GradSampleModule(head)
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=SPEC.learning_rate),
        noise_multiplier=SPEC.noise_multiplier,
        max_grad_norm=SPEC.max_grad_norm,
        expected_batch_size=SPEC.sample_rate * len(y),
        generator=generator,
    )
    for _ in range(SPEC.steps):
        batch = torch.rand(len(y), generator=generator) < SPEC.sample_rate
        optimizer.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        return _logit(head, pair.z) - _logit(head, pair.z_prime)


def _logit(head, record):
    """log p/(1 − p) for the probability p of the record's label."""
    logits = head(torch.tensor(record.x.ravel()))
    others = torch.cat([logits[: record.y], logits[record.y + 1 :]])
    return float(logits[record.y] - others.logsumexp(0))
