"""Pairs of records for one training, beside those that crafters make."""

import numpy as np

from dpsub import Pairs
from dpsub._core import Record, checks
from dpsub._core.random_streams import stream
from dpsub.crafters.reference_model import compare_gradients, reference
from dpsub.crafters.slots import check_auxiliary, pairs_of_records, shuffled_slots


@checks.checked("spec", "seed")
def natural_pairs(task, model, spec, *, pairs, seed):
    """m natural pairs: private records, each with the auxiliary record whose gradient points farthest from its own.

    No auxiliary record serves two pairs: each pair takes the farthest of those that the pairs before it left. All are
    crafted with one reference model. In the trace: `cosine` (m,) of the gradients of z′ and z; `auxiliary` (m,), the
    index of z′ among the auxiliary records.

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
    return pairs_of_records(pairs, crafted, {"seed": seed}, "cosine", "auxiliary")


@checks.checked("spec", "seed")
def unused_feature_pairs(task, model, spec, *, pairs, seed, value=None):
    """m crafted pairs that touch what no other record touches: a pixel or a token that is 0 in all private records.

    z and z′ have one such feature, another one for each pair, and are 0 elsewhere. Their labels differ. In a linear
    head the weights of this feature meet no other record. Its bias does, so that a larger `value`, by default the
    largest of any private feature, is disturbed less. In the trace: `feature` (m,), the index of each pair's feature.

    Source: dpsub's own; Keinan et al. (2025), Algorithm 1, for pairs in one training.
    """
    pairs, order = shuffled_slots(task, model, pairs, seed)
    unused = np.flatnonzero(~task.x_train.any(axis=0))
    height = float(np.abs(task.x_train).max()) if value is None else float(value)
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
