"""The distinguisher behind a box: it sees what final models answer, and never their weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dpsub._core.frozen import Frozen, digest, read_only
from dpsub.audits.distinguishers.interface import Distinguisher, Scorer
from dpsub.crafters.adversarial_samples import check_sample, trained_with_z
from dpsub.models import Model
from dpsub.models.interface import check_model, numbers
from dpsub.trainers import answers_of
from studies.final_models.distillation import Surrogates, distilled

LEAST_PROBABILITY = np.finfo(np.float32).tiny


@dataclass(frozen=True, eq=False)
class BlackBox(Frozen):
    """Scores a model by what a box says of it at one sample. The sample is crafted on surrogates of other models.

    The adversary asks the box about known records, trains one surrogate of each model on the answers, and crafts a
    sample on the surrogates. Of the models' weights it uses the answers only. `repr` tells apart any two that learn
    differently.

    Attributes:
        records: (n, *input_shape), the records that the box is asked about: those of D′, which the adversary knows.
        craft: the distinguisher that crafts the sample, such as `AdversarialSamples`.
        says: what the box says of a model: "logits", "probabilities" or "labels".
        epochs, batch_size, learning_rate, temperature: as in `distilled`. By default those of the
            paper's code, for 60,000 records: 118 steps an epoch. With few records there are fewer steps, and surrogates
            need a higher rate or smaller batches. The scorer's `surrogates.loss` shows whether they have learnt.
        surrogate: the surrogates' architecture. None for that of the models, which the adversary then knows.
        seed: of the surrogates' starts and batches.
        device: where it computes; not part of the `repr`.

    Source: *Adversarial Sample-Based Approach*, section 5.3.

    >>> from dpsub.audits import distinguishers
    >>> from studies.final_models.black_boxes import BlackBox
    >>> craft = distinguishers.AdversarialSamples(([0.0, 0.0], 1))
    >>> BlackBox([[0.0, 1.0], [1.0, 0.0]], craft, epochs=100)  # doctest: +NORMALIZE_WHITESPACE
    BlackBox(records=(2×2: c6f776d8), says='probabilities', epochs=100, batch_size=512, learning_rate=0.0001,
        temperature=1.0, surrogate=None, seed=0, craft=AdversarialSamples(y_prime=None, loss='ade', margin=0.2,
        steps=10, learning_rate=0.05, optimizer='adam', start=((2: 6522df69), 1), bounds=None))
    """

    records: ArrayLike
    craft: Distinguisher
    says: str = "probabilities"
    epochs: int = 200
    batch_size: int = 512
    learning_rate: float = 1e-4
    temperature: float = 1.0
    surrogate: Model | None = None
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", read_only(numbers("records", self.records)))

    def __repr__(self) -> str:
        named = {"records": digest(self.records)}
        for name in ("says", "epochs", "batch_size", "learning_rate", "temperature", "surrogate", "seed", "craft"):
            named[name] = repr(getattr(self, name))
        return f"BlackBox({', '.join(f'{name}={value}' for name, value in named.items())})"

    def learn(self, model: Model, weights: ArrayLike, bits: ArrayLike) -> SampleForBoxes:
        """Train surrogates on what the box says of these models, and craft a sample on them.

        Args:
            model: the architecture.
            weights: (runs, parameters), final weights: what is in the box.
            bits: (runs,): 0 if trained with z, 1 if with z′ or with nothing.
        """
        other = model if self.surrogate is None else self.surrogate
        said = answers_of(model, weights, self.records, says=self.says, device=self.device)
        trained_with_z(bits, len(said))
        found = distilled(
            other,
            said,
            self.records,
            seed=self.seed,
            says=self.says,
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            temperature=self.temperature,
            device=self.device,
        )
        sample = self.craft.learn(other, found.weights, np.asarray(bits))
        y_prime = getattr(sample, "y_prime", None)
        return SampleForBoxes(np.asarray(sample.x), int(sample.y), y_prime, self.says, found, sample, self.device)


@dataclass(frozen=True, eq=False)
class SampleForBoxes:
    """A sample that boxes are asked about.

    Attributes:
        x: the features, float32.
        y: the label.
        y_prime: None, or another label, for which the answer is subtracted.
        says: what the box says of a model.
        surrogates: on which the sample was crafted: their weights, and their loss by epoch.
        crafted: what `craft` learned, with the curves that it recorded.
        device: where it computes.
    """

    x: NDArray[np.float32]
    y: int
    y_prime: int | None
    says: str
    surrogates: Surrogates
    crafted: Scorer
    device: str = "auto"

    def scores(self, model: Model, weights: ArrayLike) -> NDArray[np.float32]:
        """How much the box's answer speaks for z: a higher score does.

        For logits and probabilities it is the logarithm of the probability of y. A probability that rounds to 0 counts
        as float32's smallest normal number, a score of −87.3, and those near 1 round to few values, so scores may tie.
        For labels it is 1 if the box says y and else 0, so nearly all scores tie. The rank test is conservative under
        ties. With `y_prime` the same of y_prime is subtracted.

        Args:
            model: the architecture.
            weights: (runs, parameters), final weights: what is in the box.

        Returns:
            (runs,) float32.

        Raises:
            ValueError: if the sample does not fit the model, or `weights` has another shape or is not finite.
        """
        check_model(model)
        check_sample(model, self.x, self.y, self.y_prime)
        said = answers_of(model, weights, self.x[None], says=self.says, device=self.device)[:, 0]
        own = self._of_label(said, self.y)
        return own if self.y_prime is None else own - self._of_label(said, self.y_prime)

    def _of_label(self, said: NDArray[Any], label: int) -> NDArray[np.float32]:
        if self.says == "labels":
            return np.asarray(said == label, dtype=np.float32)
        if self.says == "logits":
            return np.asarray(torch.log_softmax(torch.tensor(said), dim=1)[:, label].numpy())
        return np.asarray(np.log(np.maximum(said[:, label], LEAST_PROBABILITY)))
