"""Pairs of records for one training, beside those that crafters make."""

import numpy as np

from dpsub import DPSGD, Pairs
from dpsub._core import Record, checks
from dpsub._core.random_streams import stream
from dpsub.crafters.reference_model import compare_gradients, reference
from dpsub.crafters.slots import check_auxiliary, pairs_of_records, shuffled_slots
from dpsub.data import Task
from dpsub.models import Model


@checks.checked("spec", "seed")
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
    pairs, order = shuffled_slots(task, model, pairs, seed)
    check_auxiliary(task)
    if pairs > len(task.y_aux):
        raise ValueError(f"pairs must be <= {len(task.y_aux)}, the number of auxiliary records, got {pairs}")
    trained = reference(task, model, spec, seed=seed)
    free = np.ones(len(task.y_aux), dtype=bool)
    crafted = []
    for slot in order[:pairs]:
        target = trained.with_target(slot)
        cosine = compare_gradients(target, task.x_aux, task.y_aux).cosine
        chosen = int(np.where(free, cosine, np.inf).argmin())
        free[chosen] = False
        z_prime = Record(task.x_aux[chosen], int(task.y_aux[chosen]))
        crafted.append(target.pair("S5", z_prime, {"auxiliary": chosen, "cosine": float(cosine[chosen])}, {}))
    return pairs_of_records(crafted, {"seed": seed}, "cosine", "auxiliary")


@checks.checked("spec", "seed", value=checks.real)
def unused_feature_pairs(
    task: Task, model: Model, spec: DPSGD, *, pairs: int, seed: int, value: float | None = None
) -> Pairs:
    """m crafted pairs that touch what no other record touches: a pixel or a token that is 0 in all private records.

    z and z′ have one such feature, another one for each pair, and are 0 elsewhere. Their labels differ. In a linear
    head the weights of this feature meet no other record. Its bias does, so that a larger `value` is disturbed less.

    Args:
        task: the private records, with flat features (n, d).
        model, spec: checked only.
        pairs: m, from 1 to n − 1 and to the number of unused features.
        seed: for the choice of features, labels and of the records to replace.
        value: of the feature, not 0; by default the largest absolute value of any private feature.

    Returns:
        Pairs of records. Details: `value`, `unused`, the number of unused features, and `seed`. In the trace: `feature`
        (m,), the index of each pair's feature.

    Raises:
        ValueError: if an argument is out of range, the features are not flat, or too few are unused.

    Source: dpsub's own; Keinan et al. (2025), Algorithm 1, for pairs in one training.

    >>> from dpsub import DPSGD, data, models
    >>> task = data.from_arrays([[0.0, 3.0, 0.0], [0.0, 2.0, 0.0], [0.0, 5.0, 0.0]], [0, 1, 1])
    >>> spec = DPSGD(1.0, 1.0, 1.0, 10, 0.1)
    >>> pairs = unused_feature_pairs(task, models.linear(task), spec, pairs=2, seed=0)
    >>> sorted(pairs.z.tolist()), bool((pairs.y != pairs.y_prime).all())
    ([[0.0, 0.0, 5.0], [5.0, 0.0, 0.0]], True)
    """
    pairs, order = shuffled_slots(task, model, pairs, seed)
    if task.x_train.ndim != 2:
        raise ValueError(
            f"task must have flat features (n, d), got records of shape {task.x_train.shape[1:]}: make a task of "
            "flattened features"
        )
    unused = np.flatnonzero(~task.x_train.any(axis=0))
    if pairs > len(unused):
        raise ValueError(f"pairs must be <= {len(unused)}, the number of features that are 0 throughout, got {pairs}")
    height = float(np.abs(task.x_train).max()) if value is None else value
    if not np.float32(height):
        raise ValueError(f"value must not be 0, got {height:g}")
    draws = stream(seed, "crafter", 4)
    features = draws.permutation(unused)[:pairs]
    x = np.zeros((pairs, task.x_train.shape[1]), dtype=np.float32)
    x[np.arange(pairs), features] = height
    labels = np.stack([draws.choice(task.num_classes, 2, replace=False) for _ in range(pairs)])
    return Pairs(
        order[:pairs],
        x,
        x,
        labels[:, 0],
        labels[:, 1],
        scenario="unused feature",
        details={"value": height, "unused": len(unused), "seed": seed},
        task=task.fingerprint,
        trace={"feature": features},
    )
