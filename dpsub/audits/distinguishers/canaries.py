"""The distinguisher that learns nothing: the canary's own score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dpsub._core import CanaryPair, Record
from dpsub.models import Model
from dpsub.trainers import answers_of
from dpsub.trainers.slot import label_logits


@dataclass(frozen=True, repr=False)
class Canary:
    """The score of audits by records, logit(z; θ) − logit(z′; θ). It learns nothing. An empty z′ contributes 0.

    Attributes:
        pair: the two worlds, which must be records.

    Raises:
        ValueError: if `pair` is no pair of records.

    >>> from dpsub import CanaryPair
    >>> Canary(CanaryPair((np.zeros(2), 0), (np.zeros(2), 1), slot=0, scenario="S4"))
    Canary(S4, substitute, a873a793305bd653)
    """

    pair: CanaryPair

    def __post_init__(self) -> None:
        if not isinstance(self.pair.z, Record):
            raise ValueError(
                "pair must be of records, got gradients, whose score is a displacement from the start: take the scores "
                "of the audit itself"
            )

    def __repr__(self) -> str:
        return f"Canary({self.pair.scenario}, {self.pair.adjacency}, {self.pair.fingerprint})"

    def learn(self, model: Model, weights: NDArray[np.float32], bits: NDArray[np.int8]) -> Canary:
        """Nothing: the score is fixed."""
        return self

    def scores(self, model: Model, weights: NDArray[np.float32]) -> NDArray[np.float32]:
        """(runs,): logit(z; θ) − logit(z′; θ).

        Args:
            model: the architecture.
            weights: (runs, parameters).

        Raises:
            ValueError: if the pair's records do not fit the model.
        """
        x, y = map(np.asarray, self.pair.records or ())
        answers = answers_of(model, weights, x, says="logits")
        logits = label_logits(torch.tensor(answers).permute(1, 2, 0), torch.tensor(y))
        scores: NDArray[np.float32] = (logits[0] - logits[1] if len(y) > 1 else logits[0]).numpy()
        return scores
