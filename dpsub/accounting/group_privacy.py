"""The substitute ε that follows from add/remove accounting alone."""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

from dpsub._core import checks
from dpsub.accounting.dominating_pairs import Array
from dpsub.accounting.engines import TOLERANCE, Curve, Interval, answers, as_arrays
from dpsub.accounting.phases import training_of
from dpsub.accounting.samplings import History, Sampling

SMALLEST_GROUP_DELTA = 1e-60  # if group privacy needs a smaller δ, its bound is of little use
LARGEST_GROUP_EPSILON = 600.0  # beyond this, e^-ε′ δ is too small for floating point


@checks.checked("delta", "steps")
def group_privacy_epsilon(
    *,
    noise_multiplier: float | None = None,
    sample_rate: float | None = None,
    steps: int | None = None,
    history: History | None = None,
    delta: float,
    sampling: Sampling | str = "poisson",
) -> float:
    r"""The substitute ε that follows from add/remove accounting by group privacy alone: a looser bound than `epsilon`.

    A replacement is one removal and one addition, so ε_S = 2ε′ for the smallest ε′ with
    :math:`(1 + e^{\varepsilon'})\,\delta_{AR}(\varepsilon') \le \delta`. Every solution ε′ gives a valid bound.

    The arguments are those of `epsilon`; `steps` is one number. With `sampling="epochs"` the two halves of the
    replacement are a record's exchange for nothing and back (zero-out), since add/remove has no ε then.

    Returns:
        2ε′; `inf` if no solution can be certified.

    Raises:
        ValueError: if an argument is out of range, or if the sampling has no ε under zero-out.

    Source: *Beyond Membership*, Theorem 4.1, with δ adjusted.

    >>> round(group_privacy_epsilon(noise_multiplier=48.4033203125, sample_rate=1, steps=500, delta=1e-5), 3)
    4.108
    """
    if reason := Sampling.of(sampling).without_epsilon.get("zero_out"):
        raise ValueError(f"sampling must have an ε under 'zero_out' for group privacy, got {str(sampling)!r}: {reason}")
    training = training_of("zero_out", sampling, noise_multiplier, sample_rate, steps, history)
    full_batch = all(q == 1 for _, q in training.mechanisms)
    largest = LARGEST_GROUP_EPSILON if full_batch else math.log(delta / SMALLEST_GROUP_DELTA)

    def ask(curve: Curve) -> Interval:
        lower, upper = (_smallest_group_epsilon(curve, end, delta=delta, largest=largest) for end in (0, 1))
        return as_arrays([(lower, upper)])

    def relative_width(low: Array, high: Array) -> float:
        return float(np.max((high - low) / np.maximum(TOLERANCE, TOLERANCE * low)))

    # The rough answer says how small a δ the precise answer needs, or that there is none.
    [(_, [upper])] = answers(training, "auto", ask)
    if not full_batch and math.isfinite(upper):
        least = max(delta / (1 + math.exp(upper)), SMALLEST_GROUP_DELTA)
        [(_, [upper])] = answers(training, "auto", ask, relative_width=relative_width, delta=least)
    return 2 * float(upper)


def _smallest_group_epsilon(curve: Curve, end: int, *, delta: float, largest: float) -> float:
    """ε′ as in `group_privacy_epsilon`, from one end of the curve's intervals."""

    def lacking(current: float) -> float:
        """The ε of add/remove accounting at δ / (1 + e^current), minus `current`: at most 0 if that is a solution."""
        needed = curve.epsilon(delta / (1 + math.exp(current)))[end]
        return min(needed, max(2 * largest, 1.0)) - current  # 1 where `largest` is negative, and only 0 can be found

    enough, stride, lack = 0.0, 0.0, lacking(0.0)
    while lack > 0:
        too_little, stride = enough, max(1.5 * lack, 2 * stride)
        enough += stride
        if enough > largest:
            return math.inf
        lack = lacking(enough)
    if enough == 0:
        return 0.0
    root = float(brentq(lacking, too_little, enough, xtol=1e-6))
    while end and lacking(root) > 0:
        root += 1e-6
    return root
