"""When to stop: as soon as bets, which hold whenever one stops, refute a claim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpsub import accounting
from dpsub._core import checks
from dpsub.accounting.gaussian import gdp_mu
from dpsub.audits.collected import Place
from dpsub.audits.plans import Plan
from dpsub.estimators.betting import FIRST, reached_after
from dpsub.estimators.claims import GDP

ALPHA = 0.05  # that of `bound` by default
LATER = 1.05  # how much more there has to be before the bets are looked at again
OF_TRAINING = ("noise_multiplier", "sample_rate", "steps")


@dataclass
class Refutation:
    """Whether the last observed step of independent models refutes the claim that their training has this ε at this δ.

    The runs are bet on in the order of their numbers, whatever the order in which they are made: where an audit stops
    depends on nothing else. It stops at the end of the shard after which the bound by rule "bets" is at least ε.

    Attributes:
        looked_at: the number of runs when the bets were last looked at.
        after: the number of runs after which to stop; None as long as nothing is refuted.
    """

    epsilon: float
    delta: float
    looked_at: int = field(default=FIRST, init=False)
    after: int | None = field(default=None, init=False)

    @classmethod
    def of(cls, plan: Plan, refute: Any, delta: Any) -> Refutation:
        """The test of an ε, or of the accountant's for the adjacency with a name."""
        if not plan.grows or plan.cut.repeats > 1:
            raise ValueError(
                "refute must be left out but for independent models without repeats, got one for "
                f"dpsub.{plan.call}{' with repeats' if plan.grows else ''}: bound what it returns"
            )
        checks.probability("delta", delta)
        if not isinstance(refute, str):
            return cls(checks.real("refute", refute, above=0), delta)
        adjacency, about = checks.choice("refute", refute, checks.ADJACENCIES), plan.attributes
        if missing := [name for name in OF_TRAINING if name not in about]:
            raise ValueError(
                f"refute must be a number, got {refute!r}, and {', '.join(missing)} of the training is not known: give "
                "it among the parameters"
            )
        mechanism = {name: about[name] for name in (*OF_TRAINING, "sampling") if name in about}
        return cls(float(accounting.epsilon(**mechanism, delta=delta, adjacency=adjacency)), delta)

    def stops(self, place: Place) -> bool:
        """Whether to stop with what is there. It keeps where."""
        there = place.collected
        ready = next((shard.start for shard in there.missing), place.plan.cut.runs)
        if ready < place.asked and ready < LATER * self.looked_at:
            return False
        self.looked_at = ready
        score, bit = there.numbers.score.values[:ready, -1], there.numbers.bit.values[:ready]
        [runs] = np.nonzero(np.isfinite(score))  # without those that failed
        claim, mu = GDP(self.delta), gdp_mu(self.epsilon, self.delta)
        if after := reached_after(score[runs].astype(np.float64), bit[runs] == 0, claim, mu, ALPHA):
            last = runs[after - 1]
            self.after = next(shard.stop for shard in place.plan.cut.shards if shard.stop > last)
        return self.after is not None

    def settle(self, place: Place) -> None:
        """Let the audit end where it stopped, and say that it was watched: from then on bets alone are valid."""
        place.asked = min(place.asked, self.after or place.asked)
        said = {"refute": self.epsilon, "refute_delta": self.delta, "refuted_after": self.after or 0}
        place.resize(place.asked, **said)
