"""How much of what an ε allows an attacker finds, by what is known of the mechanism."""

import numpy as np
import pandas as pd
from scipy.stats import norm

from dpsub import accounting, figures
from studies.risk import noise_saved


def tpr_of_any(epsilon, fpr, delta):
    """The largest true-positive rate that (ε, δ)-differential privacy allows."""
    return np.minimum(np.exp(epsilon) * fpr + delta, 1 - np.exp(-epsilon) * (1 - fpr - delta))


def draw(ax, *, fpr, delta, marked):
    """What an attacker finds at most against ε: any mechanism and Gaussian noise, with a dot at the marked ε."""
    line = np.linspace(0, 10, 201)
    mus = np.array([0, *(accounting.gdp_mu(one, delta) for one in line[1:])])
    ax.plot(line, 100 * tpr_of_any(line, fpr, delta), "k--", label="any mechanism")
    ax.plot(line, 100 * norm.cdf(norm.ppf(fpr) + mus), color=figures.COLORS[0], label="Gaussian noise")
    ax.plot(marked, 100 * tpr_of_any(marked, fpr, delta), "ks")
    gaussian = norm.cdf(norm.ppf(fpr) + accounting.gdp_mu(marked, delta))
    ax.plot(marked, 100 * gaussian, "o", color=figures.COLORS[0])
    ax.axhline(100 * fpr, color="0.6", ls=":", label="blind guessing")
    ax.set(xlabel="ε", ylabel="found, at most (%)", xlim=(0, 10), ylim=(0, 101))
    ax.legend(loc="upper left", bbox_to_anchor=(0.5, 0.32))


def three(training, *, epsilon, delta, fpr):
    """Three limits, the less is known the weaker: of any mechanism with this ε, of Gaussian noise, of the training."""
    mu = accounting.gdp_mu(epsilon, delta)
    risk = accounting.risk(**training, fpr=fpr, adjacency="substitute")
    rows = {
        "any mechanism with this ε": (tpr_of_any(epsilon, fpr, delta), noise_saved.any_mechanism(epsilon, delta)),
        "Gaussian noise with this ε": (norm.cdf(norm.ppf(fpr) + mu), norm.cdf(mu / 2)),
        "the hospital's training run": (risk.tpr, risk.accuracy),
    }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["found", "right guesses"])
