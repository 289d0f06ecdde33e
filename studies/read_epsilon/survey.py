"""Audits of a survey whose answers are true with a known probability: randomised response."""

import numpy as np
from scipy.stats import beta


def bound(missed, of_z, alarms, of_other, delta):
    """The lower bound on ε from counts of errors, with 95 % confidence."""
    fnr = beta.ppf(0.975, missed + 1, of_z - missed)
    fpr = beta.ppf(0.975, alarms + 1, of_other - alarms)
    return np.log(np.maximum((1 - fnr - delta) / fpr, (1 - fpr - delta) / fnr))


def many(rng, *, audits, answers, honesty, delta):
    """Of so many audits, the plain estimates of ε and the lower bounds."""
    of_z = rng.binomial(answers, 0.5, audits)
    missed = rng.binomial(of_z, 1 - honesty)
    alarms = rng.binomial(answers - of_z, 1 - honesty)
    plain = np.log((1 - missed / of_z) / (alarms / (answers - of_z)))
    return plain, bound(missed, of_z, alarms, answers - of_z, delta)
