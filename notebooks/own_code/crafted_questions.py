"""How two questions to final models compare."""

import numpy as np
from scipy.stats import rankdata


def auc(scores, bits):
    """How often a model trained with z has a higher score than another.

    Ties count one half.

    Args:
        scores: (..., models); a higher score speaks for z.
        bits: as scores: 0 if trained with z, 1 otherwise.
    """
    own = bits == 0
    many = own.sum(-1)
    ranks = np.where(own, rankdata(scores, axis=-1), 0).sum(-1)
    others = bits.shape[-1] - many
    return (ranks - many * (many + 1) / 2) / (many * others)


def ahead_by(scores, others, bits, *, seed=0, draws=1000):
    """By how much one score's AUC exceeds another's on the same models.

    Returns:
        The difference, and the ends of a 95 % bootstrap interval over the
        models.
    """
    bits = np.asarray(bits)
    drawn = np.random.default_rng(seed).integers(
        0, len(bits), (draws, len(bits))
    )
    resampled = auc(scores[drawn], bits[drawn])
    resampled -= auc(others[drawn], bits[drawn])
    low, high = np.quantile(resampled, (0.025, 0.975))
    return float(auc(scores, bits) - auc(others, bits)), low, high
