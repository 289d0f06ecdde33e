"""S6: one record with two values of one attribute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import DPSGD, CanaryPair, Record, checks
from dpsub.crafters.attribute_values import Attribute, attribute_of
from dpsub.crafters.gradient_geometry import Geometry, compare_gradients
from dpsub.crafters.reference_model import Reference, reference
from dpsub.data import Task
from dpsub.models import Model, check_fits


def attribute(
    task: Task,
    model: Model,
    spec: DPSGD,
    *,
    columns: int | Sequence[int],
    values: ArrayLike | None = None,
    only: float | tuple[float, float] | None = None,
    seed: int,
    target: int | None = None,
) -> CanaryPair:
    r"""S6, the attribute: z = (x, y), and z′ = (x′, y), where x′ is x with another value of one attribute.

    Of all candidate values the one is taken whose gradient, clipped to C, lies farthest from z's clipped gradient. Both
    gradients are those of a reference model at the end of its training.

    Args:
        task: the private records, which this adversary knows. Its features must be flat, (n, d).
        model, spec, seed: as in `crafted_input`. This adversary also uses `spec.max_grad_norm`, C.
        columns: the attribute: the index of its column, or the indices of the two or more columns of a one-hot group.
        values: candidates for the value in z′. By default those that occur among the private records. For a one-hot
            group, positions within the group, from 0; by default all.
        only: the values to tell apart, instead of candidates to choose from. One value: z keeps the record's own and z′
            has this one. A pair: z has the first and z′ the second, whatever the record's own is. For a one-hot group,
            positions within the group.
        target: the index of the private record. By default it is the record to whose label the reference gives the
            least probability, as in `crafted_input`.

    Returns:
        A substitute pair of records with the same label, which differ in `columns` alone. Details: `confidence` and
        `norm`, the record's confidence and z's gradient norm; `cosine` and `norm_ratio`, of the gradient of z′ relative
        to z's; `distance` between the clipped gradients in units of C, at most 2; `columns`; `value` and `other`, the
        attribute of z and of z′ (positions, for a one-hot group). In the trace: `value`, `cosine` and `distance`
        (candidates,); `confidence` (n,) of all private records.

    Raises:
        ValueError: if an argument is out of range, if the columns do not vary or are no one-hot group, if no candidate
            differs from the record's own value, or if the reference's training diverges.

    Source: dpsub's own, after section 3.2.2 of *Beyond Membership*.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.from_arrays([[0.0, 3.0], [1.0, 2.0], [1.0, 5.0]], [0, 1, 1])
    >>> spec = DPSGD(1.0, 1.0, 1.0, 10, 0.1)
    >>> pair = crafters.attribute(task, models.linear(task), spec, columns=0, only=(0.0, 1.0), target=2, seed=0)
    >>> pair.z.x.tolist(), pair.z_prime.x.tolist()
    ([0.0, 5.0], [1.0, 5.0])
    """
    check_fits(model, task)
    seed = checks.whole("seed", seed, at_least=0)
    if target is not None:
        target = checks.whole("target", target, at_least=0, at_most=len(task.y_train) - 1)
    about = attribute_of(task, columns, values, only)
    for slot in range(len(task.y_train)) if target is None else [target]:
        if len(about.others(task.x_train[slot])):
            break
    else:
        raise _nothing_else(about, target)
    found = reference(task, model, spec, seed=seed, target=target)
    if not len(about.others(found.z.x)):
        raise _nothing_else(about, found.slot)
    changed = farthest_value(found, about, spec.max_grad_norm)
    return CanaryPair(
        z=changed.z,
        z_prime=changed.z_prime,
        slot=found.slot,
        scenario="S6",
        task=task.fingerprint,
        details={
            **found.details,
            **changed.gradients.details(changed.chosen),
            "distance": float(changed.distance[changed.chosen]),
            "columns": about.name,
            "value": about.told(changed.value),
            "other": about.told(changed.others[changed.chosen]),
            "seed": seed,
        },
        trace={
            "confidence": found.confidence,
            "value": changed.others,
            "cosine": changed.gradients.cosine,
            "distance": changed.distance,
        },
    )


class Changed(NamedTuple):
    """A record with two values of one attribute, and the other values that there were.

    Attributes:
        z, z_prime: the two records.
        value: of z.
        others: (k,) candidates for z′.
        gradients: those of the candidates, compared with z's.
        distance: (k,) between the clipped gradients, in units of C.
        chosen: which candidate z′ has.
    """

    z: Record
    z_prime: Record
    value: np.float32
    others: NDArray[np.float32]
    gradients: Geometry
    distance: NDArray[np.float64]
    chosen: int


def farthest_value(found: Reference, about: Attribute, max_grad_norm: float) -> Changed:
    """The target with the value of an attribute whose clipped gradient lies farthest from its own."""
    own = found.z.x
    others = about.others(own)
    value = about.value_of(own) if about.first is None else about.first
    z = Record(about.with_value(own, value), found.z.y)
    changed = np.stack([about.with_value(own, other) for other in others])
    gradients = compare_gradients(found._replace(z=z), changed, np.full(len(others), z.y))
    distance = clipped_distance(gradients, max_grad_norm) / max_grad_norm
    chosen = int(distance.argmax())
    return Changed(z, Record(changed[chosen], z.y), value, others, gradients, distance, chosen)


def clipped_distance(gradients: Geometry, max_grad_norm: float) -> NDArray[np.float64]:
    """(k,): the distance of each candidate's gradient from the target's, both clipped to `max_grad_norm`."""
    mine = min(gradients.norm, max_grad_norm)
    theirs = np.minimum(gradients.ratio * gradients.norm, max_grad_norm)
    squared = (mine - theirs) ** 2 + 2 * mine * theirs * (1 - gradients.cosine)
    return np.sqrt(np.maximum(squared, 0))  # rounding may leave equal gradients slightly below 0


def _nothing_else(about: Attribute, slot: int | None) -> ValueError:
    whose = "every private record has already" if slot is None else f"private record {slot} has already"
    return ValueError(
        f"{about.given} must hold a value that differs from the record's own, got only the one that {whose}: give "
        "another value, or choose another target"
    )
