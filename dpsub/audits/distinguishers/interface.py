"""What a distinguisher implements: it learns from models whose worlds it is told, and scores others."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpsub.models import Model


class Scorer(Protocol):
    """What was learned: a score of any final model."""

    def scores(self, model: Model, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """(runs,): how much each model speaks for z.

        Each model's score may depend on that model and on what was learned, and on no other model that is scored.

        Args:
            model: the architecture.
            weights: (runs, parameters), the final models, in the order of `model.flat`.
        """


class Distinguisher(Protocol):
    """A way to learn a score. `repr` must tell apart any two distinguishers that learn differently: results store it.

    A distinguisher with randomness has a seed of its own. It must not keep anything from one call of `learn` for the
    next.
    """

    def learn(self, model: Model, weights: NDArray[np.float32], bits: NDArray[np.int8]) -> Scorer:
        """Learn from final models of both worlds.

        Args:
            model: the architecture.
            weights: (runs, parameters), the final models, in the order of `model.flat`.
            bits: (runs,) 0 for models trained with z, 1 with z_prime.
        """
