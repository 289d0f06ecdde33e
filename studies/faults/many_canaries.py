"""What more canaries in each step show: steps until refuted, and bounds.

Observations are drawn as those of a step with noise multiplier 1 that has only a share of its noise, without a
training: what is known is subtracted, so others' gradients do not matter. The noise has 1,000 coordinates.
"""

import sys
from itertools import product

import numpy as np

from dpsub import estimators
from dpsub._core.noise_test import NoiseTest, Summary
from dpsub.estimators.betting import Bets
from dpsub.estimators.claims import GDP
from dpsub.estimators.wealth import Bettor, Expected
from studies.kept import continued

NOISES, CANARIES = (1.0, 0.95, 0.9, 0.8, 0.5), (1, 10, 100)
AUDITS, COORDINATES, STEPS, LONGER = 11, 1_000, 100, 400
ALPHA, DELTA, MOST = 0.05, 1e-5, 1_000
CLAIMED = 2.0  # μ of a step: substitution, noise multiplier 1


def observed(rng, steps, canaries, noise):
    """Scores, and which of them are of z, of each step and canary."""
    in_z = rng.random((steps, canaries)) < 0.5
    drawn = noise * rng.normal(size=(steps, canaries))
    return np.where(in_z, 1.0, -1.0) + drawn, in_z


def refuted_at(scores, in_z, alpha):
    """The step at which bets refute the claim; `MOST` if not before."""
    bettor = Bettor(alpha, Expected(1.0, -1.0, 1.0), scores.shape[1])
    for step in zip(scores, in_z, strict=True):
        bettor.observe(*step, GDP(DELTA), CLAIMED)
        if bettor.refuted_at is not None:
            return bettor.refuted_at
    return MOST


def found_at(rng, noise, alpha):
    """The step at which the test of the noise finds that it is less."""
    test, none = NoiseTest(alpha, [COORDINATES], 0), np.zeros(COORDINATES)
    for step in range(1, (MOST if noise < 1 else STEPS) + 1):
        left = noise * rng.normal(size=COORDINATES)
        test.observe(Summary.of(left, none, [COORDINATES], test.places))
        if test.fault is not None:
            return step
    return MOST


def shown(scores, in_z):
    """The bound on a step's μ."""
    return estimators.epsilon_lower_bound(
        scores.ravel(), np.where(in_z, 0, 1).ravel(), delta=DELTA, rule=Bets(scores.shape[1]), alpha=ALPHA
    ).mu


def measured(cell):
    """Medians over some audits: a row."""
    found = []
    for seed in range(AUDITS):
        rng = np.random.default_rng(seed)
        seen = observed(rng, MOST, cell["canaries"], cell["noise"])
        both = min(refuted_at(*seen, ALPHA / 2), found_at(rng, cell["noise"], ALPHA / 2))
        bounds = [shown(*(each[:steps] for each in seen)) for steps in (STEPS, LONGER)]
        found.append((refuted_at(*seen, ALPHA), both, *bounds))
    bets, both, soon, later = np.median(found, axis=0)
    bounds = {f"mu_{STEPS}": round(soon, 4), f"mu_{LONGER}": round(later, 4)}
    return [{"audits": AUDITS, "refuted_by_bets": bets, "refuted": both} | bounds]


if __name__ == "__main__":
    continued(sys.argv[1], ("noise", "canaries"), product(NOISES, CANARIES), measured)
