r"""Balls and bins: in each epoch every record goes into one of the batches, independently of all others.

No ε under substitution is known for it that is proven and below that of an adversary who knows the record's batches.
What two opposite gradients show, while all others are 0, bounds ε from below.
"""

import math
from functools import partial

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp, softmax

from dpsub import accounting

PILOT = 2_000  # draws that choose how to shift the others
REACHES = np.arange(1.5, 6.0, 0.5)  # of shifts, in standard deviations
AT_ONCE = 2**22  # normals


def epsilon_interval(*, noise_multiplier, sample_rate, steps, delta, samples=20_000, alpha=0.05, seed=0):
    r"""What is known of the substitute ε of balls and bins: a Monte Carlo lower end, an estimate, and a safe upper end.

    The B batches of an epoch are :math:`N(e_i, \sigma^2 I_B)` in the world with z and :math:`N(-e_i, \sigma^2 I_B)` in
    the other, in units of the clipping bound, for a secret batch i that is drawn anew for each epoch: the opposite pair
    of Chua et al. (2025). Its δ(ε) is a mean over the first world. Draws are shifted to where the losses exceed ε, and
    weighted. Means of 2,000 draws choose the shift. Further ones, cut at the largest of those 2,000, bound δ from below
    by an empirical Bernstein bound (Maurer and Pontil, 2009).

    Args:
        noise_multiplier, delta: as in `accounting.epsilon`.
        sample_rate: 1 / (steps an epoch).
        steps: whole epochs; for the lower end, steps beyond them do not count.
        samples: draws for the lower end, of `steps` normals each.
        alpha: the probability with which the lower end may exceed the ε of the pair.
        seed: ≥ 0.

    Returns:
        Three values of ε, of which the second need not be the middle:

        - lower: with probability 1 − alpha at most the ε of the pair, and so that of balls and bins.
        - estimate: the ε of the pair, from those draws, with no stated error.
        - upper: certified, `accounting.epsilon(..., sampling="epochs")`: of an adversary who knows which batches hold
          the record. No smaller upper bound under substitution is proven.
    """
    asked = {"noise_multiplier": noise_multiplier, "sample_rate": sample_rate, "steps": steps, "delta": delta}
    upper = accounting.epsilon(**asked, adjacency="substitute", sampling="epochs")
    batches, rng = accounting.Epochs().batches(sample_rate), np.random.default_rng(seed)
    draw = partial(_drawn, rng, noise_multiplier, steps // batches)
    # The loss of an epoch grows most along its mean gradient, or with the record's own batch.
    own = np.eye(1, batches)
    seen = rng.standard_normal((PILOT, batches)) / noise_multiplier + own / noise_multiplier**2
    mean = (softmax(seen, axis=1) + softmax(-seen, axis=1)).mean(axis=0)
    ways = [way / np.linalg.norm(way) / math.sqrt(steps / batches) for way in (mean, own[0])]
    pilots = []
    for shift in (reach * way for reach in REACHES for way in ways):
        losses, log_weights = draw(PILOT, shift)
        found = _epsilon(losses, log_weights, delta)
        gains = _gains(losses, log_weights, found)
        pilots.append((gains.std() / max(gains.mean(), 1e-300), found, gains.max(), shift))
    _, around, cap, shift = min(pilots, key=lambda pilot: pilot[0])
    losses, log_weights = draw(samples, shift)
    lower, surprise = 0.0, math.log(2 / alpha)
    for candidate in around * np.linspace(0.5, 1.1, 121):  # fixed in advance, and left at the first that is not shown
        gains = np.minimum(_gains(losses, log_weights, candidate), cap)
        error = math.sqrt(2 * gains.var(ddof=1) * surprise / samples) + 7 * cap * surprise / (3 * (samples - 1))
        if gains.mean() - error <= delta:
            break
        lower = float(candidate)
    return min(lower, upper), _epsilon(losses, log_weights, delta), upper


def _drawn(rng, sigma, epochs, samples, shift):
    """Losses of all epochs, with the record in the first batch, and log-weights, of draws with shifted noise."""
    losses, log_weights = np.zeros((2, samples))
    for rows in np.array_split(np.arange(samples), samples * len(shift) // AT_ONCE + 1):
        for _ in range(epochs):
            noise = rng.standard_normal((len(rows), len(shift))) + shift
            log_weights[rows] += (shift / 2 - noise) @ shift
            seen = noise / sigma
            seen[:, 0] += 1 / sigma**2
            losses[rows] += logsumexp(seen, axis=1) - logsumexp(-seen, axis=1)
    return losses, log_weights


def _gains(losses, log_weights, epsilon):
    """What each draw adds to δ(ε)."""
    return -np.exp(log_weights) * np.expm1(np.minimum(epsilon - losses, 0.0))


def _epsilon(losses, log_weights, delta):
    """The ε at which the draws have this δ on average."""

    def excess(epsilon):
        return _gains(losses, log_weights, epsilon).mean() - delta

    return brentq(excess, 0.0, losses.max()) if excess(0.0) > 0 else 0.0
