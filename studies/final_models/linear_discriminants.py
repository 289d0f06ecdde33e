r"""Linear distinguishers: the difference of the worlds' means, whitened or not, of weights or of logits.

With noise alone, θ_T is Gaussian around its start with variance (ησC)²T/(qn)² in each coordinate, alike in both worlds.
Then the difference of the means is the best direction. Gradients that follow the parameters change the covariance,
which the linear discriminant estimates and shrinks towards that isotropic law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub._core.frozen import Frozen, digest, read_only
from dpsub.crafters.adversarial_samples import trained_with_z
from dpsub.models import Model
from dpsub.models.interface import check_model, final_weights, numbers
from dpsub.trainers import answers_of

AT_ONCE = 2**22  # numbers, in float64


@dataclass(frozen=True)
class Direction:
    """A learned direction: a model's score is the inner product of its weights, or logits, with it.

    Attributes:
        direction: (features,), scaled to one standard deviation of the models learned from.
        probes: (k, *input_shape), records whose logits are the features; None for the weights.
    """

    direction: NDArray[np.float32]
    probes: NDArray[np.float32] | None = None

    def scores(self, model: Model, weights: ArrayLike) -> NDArray[np.float32]:
        """(runs,): how much each model speaks for z.

        Args:
            model: the architecture.
            weights: (runs, parameters).

        Raises:
            ValueError: if the weights do not fit the model, or not what was learned.
        """
        features = _features(model, weights, self.probes)
        if features.shape[1:] != self.direction.shape:
            raise ValueError(f"weights must have {len(self.direction)} features, as learned, got {features.shape[1]}")
        scores: NDArray[np.float32] = features @ self.direction
        return scores


@dataclass(frozen=True, eq=False, repr=False)
class LinearDiscriminant(Frozen):
    """Fisher's linear discriminant, with a covariance that is shrunk towards a multiple of the identity.

    The covariance is (1 − ridge)·S + ridge·(tr S/d)·I, where S is the pooled covariance within the worlds. With a ridge
    of 1 it is the matched filter: the projection on the difference of the worlds' means.

    Attributes:
        ridge: in [0, 1]. 0 needs more models than features, and features that do not depend on each other, as the
            logits of one record do.
        probes: (k, *input_shape), records whose logits are the features. None: the weights are.

    Raises:
        ValueError: if a value is out of range.

    >>> LinearDiscriminant(ridge=0.5)
    LinearDiscriminant(ridge=0.5, probes=None)
    """

    ridge: float = 0.1
    probes: ArrayLike | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "ridge", checks.real("ridge", self.ridge, at_least=0, at_most=1))
        if self.probes is not None:
            probes = numbers("probes", self.probes)
            if probes.ndim < 2 or not probes.size:
                raise ValueError(f"probes must have shape (k, …), one record or more, got {probes.shape}")
            object.__setattr__(self, "probes", read_only(probes))

    def __repr__(self) -> str:
        return (
            f"LinearDiscriminant(ridge={self.ridge!r}, probes={None if self.probes is None else digest(self.probes)})"
        )

    def learn(self, model: Model, weights: ArrayLike, bits: ArrayLike) -> Direction:
        """Learn from final models of both worlds.

        Args:
            model: the architecture.
            weights: (runs, parameters).
            bits: (runs,) 0 for models trained with z, 1 with z_prime.

        Raises:
            ValueError: if an argument does not fit the model, ridge is 0 and the models are too few, or the models are
                all alike.
        """
        probes = None if self.probes is None else np.asarray(self.probes)
        features = _features(model, weights, probes)
        with_z = trained_with_z(bits, len(features))
        return Direction(_discriminant(features, with_z, self.ridge), probes)


def _features(model: Model, weights: ArrayLike, probes: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """(runs, features): the weights, or the logits of the probes."""
    check_model(model)
    if probes is None:
        return final_weights(model, weights)
    answers = answers_of(model, weights, probes, says="logits")
    return answers.reshape(len(answers), -1)


def _discriminant(features: NDArray[np.float32], with_z: NDArray[np.bool_], ridge: float) -> NDArray[np.float32]:
    """w of ((1 − ridge)·S + ridge·(tr S/d)·I) w = difference of the means, solved in the smaller dimension.

    It is scaled so that scores have a standard deviation of 1 within a world.
    """
    means = [features[world].mean(axis=0, dtype=np.float64) for world in (with_z, ~with_z)]
    residuals = (features - np.where(with_z[:, None], *means)).astype(np.float32)
    apart, (runs, width) = means[0] - means[1], features.shape
    freedom = runs - 2
    if ridge == 0 and freedom < width:
        raise ValueError(
            f"ridge must be > 0 for {runs} models with {width} features each, got 0: give a ridge, or at least "
            f"{width + 2} models"
        )
    common = ridge * float(np.einsum("ij,ij->", residuals, residuals, dtype=np.float64)) / (freedom * width)
    if common == 0 and ridge > 0:
        raise ValueError("weights must differ between models of one world, got models that are all alike")
    share = (1 - ridge) / freedom
    try:
        if ridge == 1:
            found = apart
        elif width <= runs:
            found = np.linalg.solve(share * _gram(residuals) + common * np.eye(width), apart)
        else:
            dual = _gram(np.ascontiguousarray(residuals.T)) + common / share * np.eye(runs)
            found = (apart - residuals.T @ np.linalg.solve(dual, residuals @ apart)) / common
    except np.linalg.LinAlgError:
        raise ValueError("ridge must be > 0 for features that depend on each other, got 0") from None
    spread = float((residuals @ found).std())
    scaled = found / (spread if spread > 0 else 1.0)
    if not np.isfinite(scaled).all():
        raise ValueError("weights must give a finite direction, got numbers too large or too small for float32")
    return np.asarray(scaled, dtype=np.float32)


def _gram(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """The sum of the rows' outer products, in float64, some rows at a time."""
    width = rows.shape[1]
    total = np.zeros((width, width))
    for start in range(0, len(rows), step := max(1, AT_ONCE // width)):
        part = rows[start : start + step].astype(np.float64)
        total += part.T @ part
    return total
