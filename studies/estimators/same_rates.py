"""What two claims make of the same error rates, and how often each mechanism's bound follows from them."""

import numpy as np

from dpsub.accounting import gdp_epsilon
from dpsub.figures import COLORS
from studies.estimators.known_truths import Gaussian
from studies.tight_auditing import formulas

FPR = np.linspace(0, 1, 2_001)
CLAIMS = ("dp", "gdp")


def epsilon(fpr, fnr, delta):
    """The ε that two rates show, by claim."""
    by_gdp = gdp_epsilon(float(formulas.mu_gdp(fpr, fnr)), delta)
    return {"dp": float(formulas.epsilon_dp(fpr, fnr, delta)), "gdp": by_gdp}


def draw(ax, mechanism, fpr, delta):
    """The rates of the best attack on a mechanism, and the curve of each claim that they show.

    Returns:
        The ε that they show, by claim.
    """
    fnr = float(mechanism.tradeoff(np.array(fpr)))
    shown = epsilon(fpr, fnr, delta)
    curves = {
        "dp": formulas.from_lines(FPR, np.array([shown["dp"]]), np.array([delta])),
        "gdp": Gaussian(float(formulas.mu_gdp(fpr, fnr))).tradeoff(FPR),
    }
    ax.plot([0, 1], [1, 0], color="0.8", ls=":")
    ax.plot(FPR, mechanism.tradeoff(FPR), color="0.75", lw=5, label="the mechanism")
    for claim, color, style in zip(CLAIMS, COLORS, ("-.", "-"), strict=False):
        ax.plot(FPR, curves[claim], color=color, ls=style, label=f'"{claim}": ε = {shown[claim]:.2f}')
    ax.plot(fpr, fnr, "o", color="black", ms=6, label="what was seen")
    ax.set(xlabel="false-positive rate", xlim=(0, 1), ylim=(0, 1))
    ax.legend(loc="upper right")
    return shown
