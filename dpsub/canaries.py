"""A pair of worlds that differ in one record, and by which adjacency they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dpsub import _checks


@dataclass(frozen=True, eq=False)
class CanaryPair:
    """What fills the canary's slot in the two worlds.

    Attributes:
        z, z_prime: (parameters,) float32 for gradients, in the units of max_grad_norm.
        slot: which private record gives its place to the canary. It is one of the n that q·n counts.
        scenario: "S2" … "S5".
        adjacency: how the two worlds differ: "substitute" as crafted.
        score: how the distinguisher scores a model for z. "displacement" is (z/C)·(θ₀ − θ_t).
        details: what the crafter found, for figures and stored results.
    """

    z: NDArray[np.float32]
    z_prime: NDArray[np.float32]
    slot: int
    scenario: str
    adjacency: str = "substitute"
    score: Literal["displacement"] = "displacement"
    details: Mapping[str, float | int | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _checks.adjacency(self.adjacency)
        _checks.choice("score", self.score, ("displacement",))
        object.__setattr__(self, "slot", _checks.whole("slot", self.slot, at_least=0))
        for name in ("z", "z_prime"):
            gradient = np.asarray(getattr(self, name), dtype=np.float32)
            if gradient.ndim != 1 or not np.isfinite(gradient).all():
                raise ValueError(f"{name} must be a finite vector (parameters,), got shape {gradient.shape}")
            object.__setattr__(self, name, gradient)
        if self.adjacency != "substitute" and self.z_prime.any():
            raise ValueError(f"z_prime must be 0 under {self.adjacency!r}: use pair.against_nothing(adjacency=...)")

    def against_nothing(self, *, adjacency: str) -> CanaryPair:
        """The same z against an empty slot: the pair for "add_remove", or for "zero_out", which has the same ε.

        The slot still has its Poisson coin and still counts in q·n, so that nothing else tells the worlds apart.
        """
        _checks.choice("adjacency", adjacency, ("add_remove", "zero_out"))
        return replace(self, z_prime=np.zeros_like(self.z), adjacency=adjacency)
