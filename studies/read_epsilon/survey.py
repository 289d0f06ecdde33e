"""Audits of a survey whose answers are true with a known probability: randomised response."""

import numpy as np
from scipy.stats import beta

from dpsub import figures


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


def draw(ax, plain, bounds, truth):
    """Histograms of both, and the truth."""
    bins = np.linspace(*np.quantile([*plain, *bounds], [0, 1]), 61)
    ax.hist(plain, bins, color=figures.PALETTES["not valid"][1], alpha=0.5, label="plain estimate")
    outline = {"histtype": "step", "color": figures.PALETTES["valid"][0], "lw": 1.8}
    ax.hist(bounds, bins, label="lower bound", **outline)
    ax.axvline(truth, color="black", ls="--", label="truth")
    ax.set(xlabel="ε that an audit states", ylabel="audits")
    ax.figure.legend(loc="outside upper center", ncols=3)
