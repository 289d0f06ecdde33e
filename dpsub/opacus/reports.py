"""What the audit of an optimizer says, in numbers and in words."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from dpsub.estimators import LowerBound
from dpsub.estimators.betting import FIRST


@dataclass(frozen=True)
class Report:
    """What the observations of an optimizer say about its claim. `str` puts it into words.

    Attributes:
        observations: the number of steps that were observed.
        step: the bound on the ε of one step with the canary at its rate.
        training: the bound on the ε of the observed steps, as a training at `sample_rate`.
        claimed: the accountant's ε of these steps, for the same adjacency and δ. Opacus's accountants assume Poisson
            sampling; with dpsub's, its `sampling` counts.
        claimed_step: the μ that is claimed of a step that surely holds the record: the distance of its worlds over the
            noise. If the claim changed, the largest one.
        refuted: whether the claim is refuted, at confidence 1 − alpha.
        refuted_at: the number of steps after which it was; None if it is not.
        delta, adjacency, alpha, sample_rate: what all this holds for.
        noise_multiplier: the least that was claimed of a step.
        fewest: the number of steps after which a perfect attack would refute this claim; None if that takes more than
            20,000.
        notes: what the audit did not look at.
    """

    observations: int
    step: LowerBound
    training: LowerBound
    claimed: float
    claimed_step: float
    refuted: bool
    refuted_at: int | None
    delta: float
    adjacency: str
    alpha: float
    sample_rate: float
    noise_multiplier: float
    fewest: int | None
    notes: tuple[str, ...] = ()

    @property
    def epsilon(self) -> float:
        """The lower bound on the ε of the training so far."""
        return self.training.epsilon

    @property
    def verdict(self) -> str:
        """In a few words: "consistent so far" or "refuted at step t"."""
        return "consistent so far" if self.refuted_at is None else f"refuted at step {self.refuted_at:,}"

    def __str__(self) -> str:
        return "\n\n".join(textwrap.fill(paragraph, 100) for paragraph in self._paragraphs())

    def _paragraphs(self) -> list[str]:
        confidence = f"confidence {100 * (1 - self.alpha):g} %"
        found = [
            f"The claim of noise multiplier {self.noise_multiplier:.4g} is {self.verdict}, at {confidence} "
            f"({self.observations:,} steps observed, {self.adjacency} adjacency, δ = {self.delta:g})."
        ]
        if self.observations <= FIRST:
            found.append(f"There are no bounds yet: they need more than {FIRST} observations.")
            if not self.refuted:
                found.append(self._needed())
            return [*found, *self.notes]
        most = self._noise_shown()
        shown = f"its noise multiplier is at most {most:.3g}" if most < math.inf else "its noise is not bounded yet"
        found.append(
            f"One step: {shown}, where {self.noise_multiplier:.4g} is claimed. The {self.observations:,} steps at "
            f"sample rate {self.sample_rate:.4g}: ε is at least {self.training.epsilon:.3g}, where {self.claimed:.3g} "
            "is claimed."
        )
        if self.refuted and most >= self.noise_multiplier:
            found.append("The bounds bet on all claims at once, and need more steps to show what the verdict says.")
        if not self.refuted:
            found.append(
                "That it is consistent does not show that it is right: more steps, or another canary, may refute it. "
                f"{self._needed()}"
            )
        return [*found, *self.notes]

    def _noise_shown(self) -> float:
        """The largest noise multiplier that the observations of a step leave."""
        distance = 2.0 if self.adjacency == "substitute" else 1.0
        if self.step.mu is not None:
            return distance / self.step.mu if self.step.mu else math.inf
        return math.inf if self.step.noise_multiplier is None else self.step.noise_multiplier

    def _needed(self) -> str:
        if self.fewest is None:
            return "Even a perfect attack would not refute this claim within 20,000 steps."
        return f"Even a perfect attack would take {self.fewest:,} steps to refute this claim."
