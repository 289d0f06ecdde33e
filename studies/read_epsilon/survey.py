"""Audits of a survey whose answers are true with a known probability: randomised response."""

import numpy as np

from studies.tight_auditing import formulas


def many(rng, *, audits, answers, honesty, delta):
    """Of so many audits, the plain estimates of ε and the lower bounds with 95 % confidence."""
    of_z = rng.binomial(answers, 0.5, audits)
    of_other = answers - of_z
    missed = rng.binomial(of_z, 1 - honesty)
    alarms = rng.binomial(of_other, 1 - honesty)
    fnr, fpr = formulas.upper(missed, of_z, 0.025), formulas.upper(alarms, of_other, 0.025)
    return np.log((1 - missed / of_z) / (alarms / of_other)), formulas.epsilon_dp(fpr, fnr, delta)
