"""Many pairs for one training that are records of the data: with another label, beside another record, or attribute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import DPSGD, Pairs, Record
from dpsub.crafters.attribute_canaries import farthest_value
from dpsub.crafters.attribute_values import attribute_of
from dpsub.crafters.gradient_geometry import compare_gradients
from dpsub.crafters.pair_arguments import order_of, seed_and_count, slots_of
from dpsub.crafters.record_canaries import check_auxiliary, farthest_label
from dpsub.crafters.reference_model import Reference, reference
from dpsub.data import Task
from dpsub.models import Model


def mislabeled_pairs(task: Task, model: Model, spec: DPSGD, *, pairs: int, seed: int) -> Pairs:
    """m mislabeled pairs: private records, each with its label and with the label that `mislabeled` chooses.

    Args:
        task, model, spec: as in `mislabeled`. All pairs are crafted with one reference model.
        pairs: m, from 1 to n − 1.
        seed: of the reference, and for the choice of the records.

    Returns:
        Pairs of records. In the trace: `cosine` (m,) of the gradients of z′ and z.

    Raises:
        ValueError: if an argument is out of range, or the reference's training diverges.

    Source: *Beyond Membership*, Algorithm 4; Keinan et al. (2025), Algorithm 1.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=100)
    >>> spec = DPSGD(1.0, 1.0, 1.0, 10, 0.1)
    >>> pairs = crafters.mislabeled_pairs(task, models.linear(task), spec, pairs=20, seed=0)
    >>> bool((pairs.z == pairs.z_prime).all()), bool((pairs.y == pairs.y_prime).any())
    (True, False)
    """
    seed, pairs = seed_and_count(task, model, spec, pairs, seed)
    made, cosine = [], []
    for found in _targets(task, model, spec, slots_of(task, pairs, seed), seed):
        chosen, gradients = farthest_label(found, task.num_classes)
        made.append((found.slot, found.z, Record(found.z.x, chosen)))
        cosine.append(gradients.cosine[chosen])
    return _of_records(task, made, "S4", {"seed": seed}, {"cosine": np.array(cosine)})


def natural_pairs(task: Task, model: Model, spec: DPSGD, *, pairs: int, seed: int) -> Pairs:
    """m natural pairs: private records, each with the auxiliary record whose gradient points farthest from its own.

    No auxiliary record serves two pairs: each pair takes the farthest of those that the pairs before it left.

    Args:
        task, model, spec: as in `natural`. All pairs are crafted with one reference model.
        pairs: m, from 1 to n − 1 and to the number of auxiliary records.
        seed: of the reference, and for the choice of the private records.

    Returns:
        Pairs of records. In the trace: `cosine` (m,) of the gradients of z′ and z; `auxiliary` (m,), the index of z′
        among the auxiliary records.

    Raises:
        ValueError: as in `natural`, or if there are fewer auxiliary records than pairs.

    Source: *Beyond Membership*, Algorithm 5; Keinan et al. (2025), Algorithm 1.
    """
    seed, pairs = seed_and_count(task, model, spec, pairs, seed)
    check_auxiliary(task)
    if pairs > len(task.y_aux):
        raise ValueError(f"pairs must be <= {len(task.y_aux)}, the number of auxiliary records, got {pairs}")
    free = np.ones(len(task.y_aux), dtype=bool)
    made, cosine, chosen = [], [], []
    for found in _targets(task, model, spec, slots_of(task, pairs, seed), seed):
        gradients = compare_gradients(found, task.x_aux, task.y_aux)
        other = int(np.where(free, gradients.cosine, np.inf).argmin())
        free[other] = False
        made.append((found.slot, found.z, Record(task.x_aux[other], int(task.y_aux[other]))))
        cosine.append(gradients.cosine[other])
        chosen.append(other)
    return _of_records(task, made, "S5", {"seed": seed}, {"cosine": np.array(cosine), "auxiliary": np.array(chosen)})


def attribute_pairs(
    task: Task,
    model: Model,
    spec: DPSGD,
    *,
    columns: int | Sequence[int],
    values: ArrayLike | None = None,
    only: float | tuple[float, float] | None = None,
    pairs: int,
    seed: int,
) -> Pairs:
    """m attribute pairs: private records, each with two values of one attribute, chosen as `attribute` chooses them.

    Args:
        task, model, spec, columns, values, only: as in `attribute`. All pairs are crafted with one reference model.
        pairs: m, from 1 to n − 1. As many private records must have a value that differs from a candidate.
        seed: of the reference, and for the choice of the records.

    Returns:
        Pairs of records. In the trace: `distance` (m,) between the clipped gradients, in units of C.

    Raises:
        ValueError: as in `attribute`, or if too few private records have another value.

    Source: dpsub's own, after section 3.2.2 of *Beyond Membership*; Keinan et al. (2025), Algorithm 1.
    """
    seed, pairs = seed_and_count(task, model, spec, pairs, seed)
    about = attribute_of(task, columns, values, only)
    able = [slot for slot in order_of(task, seed) if len(about.others(task.x_train[slot]))][:pairs]
    if len(able) < pairs:
        raise ValueError(
            f"pairs must be at most the number of private records that may take another value, {len(able)}, got {pairs}"
        )
    made, distance = [], []
    for found in _targets(task, model, spec, np.array(able), seed):
        changed = farthest_value(found, about, spec.max_grad_norm)
        made.append((found.slot, changed.z, changed.z_prime))
        distance.append(changed.distance[changed.chosen])
    details = {"columns": about.name, "seed": seed}
    return _of_records(task, made, "S6", details, {"distance": np.array(distance)})


def _targets(task: Task, model: Model, spec: DPSGD, slots: NDArray[np.int64], seed: int) -> Iterator[Reference]:
    """One reference model, with the record of each slot as its target."""
    found = reference(task, model, spec, seed=seed)
    for slot in slots:
        yield found._replace(z=Record(task.x_train[slot], int(task.y_train[slot])), slot=int(slot))


def _of_records(
    task: Task, made: list[tuple[int, Record, Record]], scenario: str, details: dict[str, Any], trace: dict[str, Any]
) -> Pairs:
    slots, z, z_prime = zip(*made, strict=True)
    return Pairs(
        np.array(slots),
        np.stack([one.x for one in z]),
        np.stack([one.x for one in z_prime]),
        np.array([one.y for one in z]),
        np.array([one.y for one in z_prime]),
        scenario=scenario,
        details=details,
        task=task.fingerprint,
        trace=trace,
    )
