"""The trade-off function of a DP-SGD training."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import ArrayLike

from dpsub._core import checks
from dpsub.accounting.dominating_pairs import Array
from dpsub.accounting.engines import TOLERANCE, Testable, answers
from dpsub.accounting.phases import History, of_arguments, one_count

FINEST_RATE = 1e-5  # half the width of a trade-off function's interval


def tradeoff(
    fpr: ArrayLike,
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    history: History | None = None,
    adjacency: str,
    sampling: str = "poisson",
) -> float | Array:
    r"""The trade-off function f: the least false-negative rate of any attack, at a given false-positive rate.

    An adversary who takes z′ for z with probability `fpr` takes z for z′ with probability at least f(fpr). The values
    are exact at q = 1, and elsewhere a certified lower bound, within 2e-5 where possible. Under add/remove adjacency f
    is the lower of the two directions, made symmetric and convex.

    Args:
        fpr: any shape; false-positive rates, from 0 to 1.
        noise_multiplier, sample_rate, steps, history, adjacency, sampling: as in `epsilon`; `steps` is one number.

    Returns:
        False-negative rates, of the shape of `fpr`.

    Raises:
        ValueError: if an argument is out of range.

    Source: Dong, Roth and Su (2022), Definition 2.1 and Proposition 2.12; *Tight Auditing*, section 4.

    >>> round(tradeoff(0.05, noise_multiplier=48.4033203125, sample_rate=1, steps=500, adjacency="substitute"), 3)
    0.765
    """
    training, _ = of_arguments(noise_multiplier, sample_rate, one_count(steps), history, adjacency, sampling)
    rates = checks.rates("fpr", fpr)
    found = answers(
        training,
        "auto",
        lambda curve: cast(Testable, curve).tradeoff(rates.ravel()),
        excess=lambda low, high: float(np.max(high - low, initial=0.0)) / 2 / FINEST_RATE,
        eps_error=TOLERANCE,
        delta=1e-12,
    )
    [(low, _)] = found.intervals
    return low.reshape(rates.shape) if rates.ndim else float(low[0])
