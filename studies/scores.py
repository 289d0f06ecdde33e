"""What scores say of two worlds."""

import numpy as np

from dpsub import accounting
from studies.trainings import DELTA


def separation(scores, bits):
    """How far apart the worlds' mean scores are, in standard deviations within a world."""
    z, z_prime = (np.asarray(scores, dtype=float)[np.asarray(bits) == world] for world in (0, 1))
    return float((z.mean() - z_prime.mean()) / np.sqrt((z.var() + z_prime.var()) / 2))


def epsilon_at(mu, delta=DELTA):
    """The ε of μ-GDP if the worlds are mu apart: an estimate, and no bound. Below 0 it is that of 0."""
    return accounting.gdp_epsilon(max(mu, 0.0), delta)
