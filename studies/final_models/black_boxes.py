"""A sample for black boxes: crafted without the models' weights, from what the models answer."""

from dataclasses import dataclass

import numpy as np
import torch

from dpsub.trainers import answers_of
from studies.final_models.distillation import Surrogates, distilled

LEAST_PROBABILITY = np.finfo(np.float32).tiny


@dataclass(frozen=True, eq=False)
class SampleForBoxes:
    """A sample that boxes are asked about, and the surrogates on which it was crafted."""

    x: np.ndarray
    y: int
    says: str
    surrogates: Surrogates
    device: str

    def scores(self, model, weights):
        """(runs,): how much the box's answer speaks for z.

        For logits and probabilities it is the logarithm of the probability of y. A probability that rounds to 0 counts
        as float32's smallest normal number, a score of −87.3, and those near 1 round to few values, so scores may tie.
        For labels it is 1 if the box says y and else 0, so nearly all scores tie. The rank test is conservative under
        ties.
        """
        said = answers_of(model, weights, self.x[None], says=self.says, device=self.device)[:, 0]
        if self.says == "labels":
            return np.asarray(said == self.y, dtype=np.float32)
        if self.says == "logits":
            return torch.log_softmax(torch.tensor(said), dim=1)[:, self.y].numpy()
        return np.log(np.maximum(said[:, self.y], LEAST_PROBABILITY))


def crafted_on_answers(model, weights, bits, *, records, craft, says="probabilities", device="auto", **training):
    """Train a surrogate of each model on what a box says of it, and craft a sample on the surrogates.

    Of the weights the adversary uses the answers only: "logits", "probabilities" or "labels" of `records`, those of D′,
    which it knows. `craft` is the distinguisher that crafts the sample, and `training` has further arguments of
    `distilled`. `surrogates.loss` shows whether the surrogates have learnt: with few records there are fewer steps, and
    they need a higher rate or smaller batches than the paper's.

    Source: *Adversarial Sample-Based Approach*, section 5.3.
    """
    said = answers_of(model, weights, records, says=says, device=device)
    found = distilled(model, said, records, says=says, device=device, **training)
    sample = craft.learn(model, found.weights, np.asarray(bits))
    return SampleForBoxes(np.asarray(sample.x), int(sample.y), says, found, device)
