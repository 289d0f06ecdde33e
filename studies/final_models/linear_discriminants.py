r"""Linear distinguishers: the difference of the worlds' means, whitened or not, of weights or of logits.

With noise alone, θ_T is Gaussian around its start with variance (ησC)²T/(qn)² in each coordinate, alike in both worlds.
Then the difference of the means is the best direction. Gradients that follow the parameters change the covariance,
which the linear discriminant estimates and shrinks towards that isotropic law.
"""

from dataclasses import dataclass

import numpy as np

from dpsub._core.frozen import digest
from dpsub.crafters.adversarial_samples import trained_with_z
from dpsub.models.interface import final_weights
from dpsub.trainers import answers_of

AT_ONCE = 2**22  # numbers, in float64


@dataclass(frozen=True)
class Direction:
    """A learned direction: a model's score is the inner product of its features with it."""

    direction: np.ndarray  # (features,), scaled to one standard deviation of the models learned from
    probes: np.ndarray | None = None

    def scores(self, model, weights):
        """(runs,): how much each model speaks for z."""
        return _features(model, weights, self.probes) @ self.direction


@dataclass(frozen=True, eq=False, repr=False)
class LinearDiscriminant:
    """Fisher's linear discriminant, with a covariance that is shrunk towards a multiple of the identity.

    The covariance is (1 − ridge)·S + ridge·(tr S/d)·I, where S is the pooled covariance within the worlds. With a ridge
    of 1 it is the matched filter: the projection on the difference of the worlds' means. A ridge of 0 needs more models
    than features, and features that do not depend on each other, as the logits of one record do.
    """

    ridge: float = 0.1
    probes: np.ndarray | None = None  # (k, *input_shape), records whose logits are the features; None: the weights are

    def __repr__(self):
        probes = None if self.probes is None else digest(self.probes)
        return f"LinearDiscriminant(ridge={self.ridge!r}, probes={probes})"

    def learn(self, model, weights, bits):
        """The direction that tells these models apart: (runs, parameters), and bits (runs,), 0 for z."""
        features = _features(model, weights, self.probes)
        return Direction(_discriminant(features, trained_with_z(bits, len(features)), self.ridge), self.probes)


def _features(model, weights, probes):
    """(runs, features): the weights, or the logits of the probes."""
    if probes is None:
        return final_weights(model, weights)
    answers = answers_of(model, weights, probes, says="logits")
    return answers.reshape(len(answers), -1)


def _discriminant(features, with_z, ridge):
    """w of ((1 − ridge)·S + ridge·(tr S/d)·I) w = difference of the means, solved in the smaller dimension.

    It is scaled so that scores have a standard deviation of 1 within a world.
    """
    means = [features[world].mean(axis=0, dtype=np.float64) for world in (with_z, ~with_z)]
    residuals = (features - np.where(with_z[:, None], *means)).astype(np.float32)
    apart, (runs, width) = means[0] - means[1], features.shape
    freedom = runs - 2
    common = ridge * float(np.einsum("ij,ij->", residuals, residuals, dtype=np.float64)) / (freedom * width)
    share = (1 - ridge) / freedom
    if ridge == 1:
        found = apart
    elif width <= runs:
        found = np.linalg.solve(share * _gram(residuals) + common * np.eye(width), apart)
    else:
        dual = _gram(np.ascontiguousarray(residuals.T)) + common / share * np.eye(runs)
        found = (apart - residuals.T @ np.linalg.solve(dual, residuals @ apart)) / common
    return np.asarray(found / float((residuals @ found).std()), dtype=np.float32)


def _gram(rows):
    """The sum of the rows' outer products, in float64, some rows at a time."""
    width = rows.shape[1]
    total = np.zeros((width, width))
    for start in range(0, len(rows), step := max(1, AT_ONCE // width)):
        part = rows[start : start + step].astype(np.float64)
        total += part.T @ part
    return total
