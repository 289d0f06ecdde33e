"""The methods by name: which claims are tested, and by which test of the errors at one threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from dpsub._core import checks
from dpsub.accounting.phases import MOST_STEPS, StepCounts
from dpsub.estimators.claims import GDP, ApproximateDP, Claim
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.one_threshold import ClopperPearson, Katz, Posterior, ThresholdTest


class Sampling(TypedDict, total=False):
    """What method "pld" must know about the training."""

    sample_rate: float
    steps: int | StepCounts
    adjacency: str


@dataclass(frozen=True)
class Method:
    """A family of claims, and the test of a claim from the errors at one threshold.

    Attributes:
        name: the string that users pass.
        claim: makes the family at a δ. `MechanismDP` needs more arguments: see `claims`.
        test: makes the test of one threshold.
        exact: whether its bounds can hold with probability 1 − alpha.
    """

    name: str
    claim: Callable[..., Claim]
    test: Callable[[Claim], ThresholdTest]
    exact: bool

    def claims(self, delta: float, sampling: Sampling, columns: int) -> list[Claim]:
        """One family for each column of scores."""
        if self.claim is MechanismDP:
            return _mechanisms(delta, sampling, columns)
        if sampling:
            names = ", ".join(sampling)
            raise ValueError(f"{names} must be given for method 'pld' only, got method {self.name!r}: leave them out")
        return [self.claim(delta)] * columns


METHODS = {
    method.name: method
    for method in (
        Method("gdp", GDP, ClopperPearson, exact=True),
        Method("dp", ApproximateDP, ClopperPearson, exact=True),
        Method("pld", MechanismDP, ClopperPearson, exact=True),
        Method("bayes_gdp", GDP, Posterior, exact=False),
        Method("bayes_dp", ApproximateDP, Posterior, exact=False),
        Method("katz", ApproximateDP, lambda _: Katz(), exact=False),
    )
}
"""The methods of `epsilon_lower_bound` by name: the family of claims that each tests, and how."""
EXACT = tuple(name for name, method in METHODS.items() if method.exact)
"""The methods with exact tests. Bounds by the other methods are not valid, and are kept for comparison."""


def _mechanisms(delta: float, sampling: Sampling, columns: int) -> list[Claim]:
    needed = set(Sampling.__annotations__)
    unknown, missing = sorted(set(sampling) - needed), sorted(needed - set(sampling))
    if unknown or missing:
        what = f"without {', '.join(missing)}" if missing else f"with {', '.join(unknown)}"
        raise ValueError(
            f"method 'pld' needs sample_rate, steps and adjacency, and nothing else, got them {what}"
            + (": the noise is what it bounds" if "noise_multiplier" in unknown else "")
        )
    q = checks.real("sample_rate", sampling["sample_rate"], above=0, at_most=1)
    adjacency = checks.adjacency(sampling["adjacency"])
    checks.no_mask("steps", sampling["steps"])
    try:
        steps = np.atleast_1d(np.asarray(sampling["steps"])).tolist()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"steps must be whole numbers, got {sampling['steps']!r}") from None
    if len(steps) != columns:
        raise ValueError(f"steps must have one entry for each of the {columns} columns of scores, got {len(steps)}")
    return [MechanismDP(delta, q, checks.whole("steps", count, at_most=MOST_STEPS), adjacency) for count in steps]
