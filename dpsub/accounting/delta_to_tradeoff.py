"""From δ(ε) to the trade-off function."""

from __future__ import annotations

import numpy as np

from dpsub.accounting.dominating_pairs import Array

ROUNDING = 1e-15  # the error of a difference of two rates


def tradeoff(fpr: Array, epsilon: Array, delta: Array) -> Array:
    r"""The trade-off function that δ at these ε implies. Exchanging the two worlds does not change it.

    .. math:: f(u) = \max_\varepsilon \max\{0,\; 1-\delta-e^{\varepsilon}u,\; e^{-\varepsilon}(1-\delta-u)\}

    Every line bounds f from below. In each family, the highest line at u is found from its intersections with its
    neighbours. `epsilon` must increase from 0, and `delta` must not increase.

    Source: Dong, Roth and Su (2022), Proposition 2.12.
    """
    # Neighbouring lines of the first family meet at fpr = `meet`. The second family is its mirror image.
    with np.errstate(over="ignore", invalid="ignore"):
        meet = (delta[:-1] - delta[1:]) / (np.exp(epsilon[:-1]) * np.expm1(np.diff(epsilon)))
    meet = np.minimum.accumulate(np.nan_to_num(meet))
    steep = np.searchsorted(-meet, -fpr, side="left")
    fnr = 1 - delta[1:] - np.exp(np.minimum(epsilon[1:], 700.0)) * meet
    shallow = np.searchsorted(np.maximum.accumulate(fnr), fpr, side="left")
    with np.errstate(over="ignore"):
        falling = 1 - delta[steep] - np.exp(epsilon[steep] + np.log(np.maximum(fpr, 1e-300))) * (fpr > 0)
    flat = np.exp(-epsilon[shallow]) * (1 - delta[shallow] - fpr)
    return np.asarray(np.clip(np.maximum(falling, flat) - ROUNDING, 0.0, 1.0))
