"""Canaries that are records and need no target: blank, ordinary, along the least variance, or of an unused feature."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from dpsub._core import CanaryPair, Record, checks
from dpsub._core.random_streams import stream
from dpsub.accounting import DPSGD
from dpsub.crafters.reference_model import reference
from dpsub.crafters.slots import check_not_private, random_slot
from dpsub.data import Task
from dpsub.models import Model


@checks.checked("spec", "seed")
def blank(task: Task, model: Model, spec: DPSGD, *, seed: int, label: int | None = None) -> CanaryPair:
    """The blank record: z = (0, y), and z′ = (0, y′) with the next label.

    Args:
        task: the private records. In centred features the blank record is their mean; otherwise it is all black.
        model, spec: the model and training to be audited. They do not change the canary.
        seed: chooses the private record whose slot the canary takes.
        label: y. By default the last class: 9 for digits, as in the published code.

    Returns:
        A substitute pair of records. `pair.against_nothing(adjacency="add_remove")` is the paper's pair.

    Raises:
        ValueError: if an argument is out of range, or the model does not fit the task.

    Source: *Adversarial Sample-Based Approach*, section 3; De et al. (2022).

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.from_arrays([[0.0, 3.0], [1.0, 2.0], [1.0, 5.0]], [0, 1, 1])
    >>> pair = crafters.blank(task, models.linear(task), DPSGD(1.0, 1.0, 1.0, 10, 0.1), seed=0)
    >>> pair.z.x.tolist(), pair.z.y, pair.z_prime.y
    ([0.0, 0.0], 1, 0)
    """
    slot = random_slot(task, model, seed)
    y = task.num_classes - 1 if label is None else label
    return _pair_with_next_label(task, np.zeros_like(task.x_train[0]), y, slot, "blank", seed)


@checks.checked("spec", "seed")
def in_distribution(task: Task, model: Model, spec: DPSGD, *, seed: int) -> CanaryPair:
    """An ordinary record: z and z′ are two auxiliary records with different labels, drawn at random.

    Args:
        task: the private records, and auxiliary records of two classes or more. None of these may be private.
        model, spec: the model and training to be audited. They do not change the canary.
        seed: chooses the two records, and the private record whose slot they take.

    Returns:
        A substitute pair of records. Details: `auxiliary` and `auxiliary_prime`, their indices.

    Raises:
        ValueError: if an argument is out of range, the model does not fit the task, or the auxiliary records are
            missing, of one class, or private.

    Source: *Adversarial Sample-Based Approach*, section 5.4, "in-distribution".

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=50)
    >>> pair = crafters.in_distribution(task, models.linear(task), DPSGD(1.0, 1.0, 1.0, 10, 0.1), seed=0)
    >>> pair.z.y != pair.z_prime.y
    True
    """
    slot = random_slot(task, model, seed)
    if len(set(task.y_aux.tolist())) < 2:
        raise ValueError("task must have auxiliary records of two classes or more: give x_aux and y_aux")
    check_not_private(task, "aux")
    order = stream(seed, "crafter", 1).permutation(len(task.y_aux))
    first = int(order[0])
    other = int(next(i for i in order if task.y_aux[i] != task.y_aux[first]))
    z, z_prime = (Record(task.x_aux[i], int(task.y_aux[i])) for i in (first, other))
    details = {"auxiliary": first, "auxiliary_prime": other, "seed": seed}
    return CanaryPair(z, z_prime, slot, "in-distribution", task=task.fingerprint, details=details)


@checks.checked("spec", "seed")
def clipbkd(task: Task, model: Model, spec: DPSGD, *, seed: int, label: int | None = None) -> CanaryPair:
    r"""ClipBKD: z points along the direction in which the private records vary least, and z′ has the next label.

    The direction is a right singular vector of the private records with the smallest singular value, and z has the mean
    norm of the private records. With fewer records than features, or with features that are always 0, many directions
    have the singular value 0, and z is orthogonal to all private records. One of these directions is then drawn at
    random, each as likely as any other. So is the sign.

    Args:
        task: the private records, as they are: the paper does not centre them. Published code takes the last principal
            component instead, and so centres them.
        model, spec: the model and training to be audited. The label depends on them by default.
        seed: for the slot, the direction, the sign, and the training of the reference model.
        label: y. By default the label to which a model trained without privacy gives z the least probability, of those
            with a gradient, so that z's gradient is long.

    Returns:
        A substitute pair of records. Details: `singular_value`, of the direction, divided by the largest one;
        `directions`, the number of orthogonal directions with this singular value.

    Raises:
        ValueError: if an argument is out of range, the model does not fit the task, all private records are 0, or the
            reference's training diverges.

    Source: Jagielski, Ullman and Oprea (2020), Algorithm 2; *Adversarial Sample-Based Approach*, section 5.4.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.from_arrays([[3.0, 0.0], [5.0, 0.0], [4.0, 0.0]], [0, 1, 1])
    >>> pair = crafters.clipbkd(task, models.linear(task), DPSGD(1.0, 1.0, 1.0, 10, 0.1), seed=0, label=1)
    >>> abs(pair.z.x).tolist(), pair.z.y
    ([0.0, 4.0], 1)
    """
    slot = random_slot(task, model, seed)
    flat = task.x_train.reshape(len(task.x_train), -1).astype(np.float64)
    norm = np.linalg.norm(flat, axis=1).mean()
    if not norm > 0:
        raise ValueError("task must have private records that are not all 0: the canary has their mean norm")
    squared, vectors = np.linalg.eigh(flat.T @ flat)  # squares of singular values, ascending
    rounding = len(squared) * np.finfo(float).eps * squared[-1]
    least = vectors[:, squared <= squared[0] + rounding]
    # A projection does not depend on the basis that LAPACK finds for them.
    direction = least @ (least.T @ stream(seed, "crafter", 1).normal(size=len(squared)))
    direction /= np.linalg.norm(direction)
    x = (norm * direction).reshape(task.x_train.shape[1:]).astype(np.float32)
    if label is None:
        trained = reference(task, model, spec, seed=seed)
        with torch.no_grad():
            logits = model.logits(trained.theta, trained.inputs(x[None]))[0, :, 0]
        labels = logits.argsort(stable=True).tolist()
        label = next((y for y in labels if trained._replace(z=Record(x, y)).has_gradient), labels[0])
    details = {"singular_value": float(np.sqrt(max(squared[0], 0) / squared[-1])), "directions": least.shape[1]}
    return _pair_with_next_label(task, x, label, slot, "ClipBKD", seed, **details)


def _pair_with_next_label(
    task: Task, x: NDArray[np.float32], label: int, slot: int, scenario: str, seed: int, **details: float
) -> CanaryPair:
    y = checks.whole("label", label, at_least=0, at_most=task.num_classes - 1)
    z, z_prime = Record(x, y), Record(x, (y + 1) % task.num_classes)
    return CanaryPair(z, z_prime, slot, scenario, task=task.fingerprint, details={**details, "seed": seed})
