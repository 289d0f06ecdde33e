"""How many pairs an audit of one training run needs: the ceiling, and what ideal pairs are likely to reach."""

import matplotlib.pyplot as plt
import numpy as np

from dpsub import estimators, figures

SHARES = np.linspace(0.1, 0.8, 8)  # of ε, that an audit is to find
FEW, MANY = 10, 10**5  # pairs


def ceiling(pairs, *, delta):
    """For each number of pairs the bound of a perfect attack, by claims of μ-GDP and dpsub's number of guesses."""
    made = [estimators.CLAIMS["gdp"].guesses(count) for count in pairs]
    return [
        estimators.one_run_epsilon_lower_bound(guesses, guesses, count, delta=delta).epsilon
        for guesses, count in zip(made, pairs, strict=True)
    ]


def of_ideal_pairs(epsilon, *, delta):
    """Numbers of pairs that can be had, and the bounds that audits are likely to reach with them."""
    needed = []
    for bound in (SHARES * epsilon).tolist():
        try:
            needed.append((estimators.pairs_needed(bound, delta=delta, truth=epsilon), bound))
        except ValueError:  # not with a million
            break
    return tuple(zip(*needed, strict=True))


def drawn(ideal, *, delta):
    """Bounds by pairs: the ceiling, and ideal pairs with their ε (dashed)."""
    fig, ax = plt.subplots(figsize=(5.4, 3.3), layout="constrained")
    for (epsilon, likely), color in zip(ideal.items(), ("black", "0.5"), strict=True):
        ax.axhline(epsilon, color=color, linestyle="--", linewidth=0.9)
        ax.plot(*likely, color=color, label=f"ideal pairs, ε = {epsilon:g}")
    pairs = np.unique(np.geomspace(FEW, MANY, 25).round().astype(int)).tolist()
    ax.plot(pairs, ceiling(pairs, delta=delta), **figures.looks("ceiling", label="ceiling of these pairs"))
    ax.set(
        xscale="log",
        xlabel="pairs in one run",
        xlim=(FEW, MANY),
        ylabel=r"lower bound on $\varepsilon$",
        ylim=(0, 12),
        yticks=range(0, 13, 2),
    )
    fig.legend(loc="outside right upper")
    return fig
