"""The distinguisher of adversarial samples: a record crafted on some models scores others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from numpy.typing import ArrayLike

from dpsub._core import Record, checks
from dpsub._core.frozen import Frozen, digest, read_only
from dpsub.crafters import AdversarialSample, adversarial_sample
from dpsub.crafters.adversarial_samples import SETTINGS, starting_sample
from dpsub.models import Model
from dpsub.models.interface import numbers


@dataclass(frozen=True, eq=False, repr=False)
class AdversarialSamples(Frozen):
    """Scores a model by minus its loss at an adversarial sample, which is crafted on other models.

    `repr` tells apart any two that craft differently. Results are stored with it.

    Attributes:
        start: the record (x, y) to start from: the canary, or a blank record.
        y_prime, loss, margin, steps, learning_rate, optimizer, bounds: as in `dpsub.crafters.adversarial_sample`.
        device: where it computes; not part of the `repr`.

    Raises:
        ValueError: if a value is out of range.

    Source: *Adversarial Sample-Based Approach*, section 4.

    >>> from dpsub.audits import distinguishers
    >>> distinguishers.AdversarialSamples(([0.0, 0.0], 1), loss="ude", steps=5, learning_rate=0.01, bounds=(0, 1))
    ... # doctest: +NORMALIZE_WHITESPACE
    AdversarialSamples(y_prime=None, loss='ude', margin=0.2, steps=5, learning_rate=0.01, optimizer='adam',
        start=((2: 6522df69), 1), bounds=(0.0, 1.0))
    """

    CHECKS: ClassVar[Mapping[str, checks.Check]] = SETTINGS

    start: Record | tuple[ArrayLike, int]
    y_prime: int | None = None
    loss: str = "ade"
    margin: float = 0.2
    steps: int = 10
    learning_rate: float = 0.05
    optimizer: str = "adam"
    bounds: tuple[ArrayLike, ArrayLike] | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        sample = starting_sample(self.start, self.y_prime, self.bounds)
        bounds = self.bounds and tuple(read_only(numbers("bounds", end)) for end in self.bounds)
        for name, value in {"start": Record(sample.x, sample.y), "y_prime": sample.y_prime, "bounds": bounds}.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        plain = ("y_prime", "loss", "margin", "steps", "learning_rate", "optimizer")
        named = {name: repr(getattr(self, name)) for name in plain}
        named["start"] = f"({digest(self.start[0])}, {self.start[1]})"
        named["bounds"] = "None" if self.bounds is None else f"({', '.join(map(digest, self.bounds))})"
        return f"AdversarialSamples({', '.join(f'{name}={value}' for name, value in named.items())})"

    def learn(self, model: Model, weights: ArrayLike, bits: ArrayLike) -> AdversarialSample:
        """Craft a sample on these models.

        Args:
            model: the architecture.
            weights: (runs, parameters), final weights.
            bits: (runs,): 0 if trained with z, 1 if with z′ or with nothing.

        Raises:
            ValueError: as in `dpsub.crafters.adversarial_sample`.
        """
        settings = {field.name: getattr(self, field.name) for field in fields(self)}
        return adversarial_sample(model, weights, bits, **settings)
