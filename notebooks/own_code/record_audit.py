"""Audits with a record of the data set as canary, for faults of sampling.

In each step a fair coin says what the record's gradient is, if the batch
has the record: C or -C times a unit vector (substitution), or C times it
or no record at all (add/remove).
"""

import numpy as np
import torch

from own_code.zoo_training import SLOT


def observe(training, steps, *, adjacency, seed):
    """Train for some steps, and observe each sum as it is released.

    Returns:
        For each step the product with the canary; how short the sum is;
        and the coin.
    """
    optimizer, rng = training.optimizer, np.random.default_rng(seed)
    clipping, size = optimizer.max_grad_norm, optimizer.expected_batch_size
    bits = rng.integers(0, 2, steps)
    product, shortness = np.zeros(steps), np.zeros(steps)
    for t, numbers in zip(range(steps), training.batches(), strict=False):
        here = numbers == SLOT
        removed = adjacency == "add_remove" and bits[t] == 1
        for p in optimizer.params:
            p.grad_sample[here] = 0.0
        first = optimizer.params[0]
        first.grad_sample[here, 0, 0] = clipping * (1.0 - 2 * bits[t])
        if removed:
            for p in optimizer.params:
                p.grad_sample = p.grad_sample[~here]
        optimizer.records = training.records - int(removed)
        optimizer.step()
        released = torch.cat([p.grad.flatten() for p in optimizer.params])
        product[t] = float(released[0]) * size / clipping
        # A divisor that follows from n is larger with the record.
        shortness[t] = -float(released.norm()) * size / clipping
    return product, shortness, bits


def not_seen_yet(product, bits, *, noise_multiplier, sample_rate):
    """The steps at which the record is likely, if each epoch has it once.

    A step is chosen from the earlier steps of its epoch alone: if, given
    what they showed, its chance exceeds 1.5 times the sample rate.
    """
    signs = 1 - 2 * bits
    likely = np.exp((signs * product - 0.5) / noise_multiplier**2)
    epoch = round(1 / sample_rate)
    chosen = np.zeros(len(likely), dtype=bool)
    for start in range(0, len(likely), epoch):
        ratios = likely[start : start + epoch]
        shown = np.cumsum(ratios) - ratios
        left = epoch - np.arange(len(ratios))
        chances = 1 / (shown + left)
        chosen[start : start + epoch] = chances > 1.5 * sample_rate
    return chosen


def seen_before(scores, bits, *, adjacency, window=1e-3):
    """Scores by the noise of earlier steps, for noise that comes again.

    1 if an earlier step had the noise that this one has if z was in, -1 if
    it had the noise that this one has if z′ was in; 0 for both or neither.
    """
    shifts = np.array([1.0, -1.0 if adjacency == "substitute" else 0.0])
    noise = scores - shifts[bits]
    known = np.zeros(len(scores))
    for t in range(1, len(scores)):
        apart = np.abs(scores[t] - shifts[:, None] - noise[:t])
        with_z, with_z_prime = (apart < window).any(axis=1)
        known[t] = float(with_z) - float(with_z_prime)
    return known
