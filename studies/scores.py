"""What scores say of two worlds."""

import numpy as np


def separation(scores, bits):
    """How far apart the worlds' mean scores are, in standard deviations within a world."""
    z, z_prime = (np.asarray(scores, dtype=float)[np.asarray(bits) == world] for world in (0, 1))
    return float((z.mean() - z_prime.mean()) / np.sqrt((z.var() + z_prime.var()) / 2))
