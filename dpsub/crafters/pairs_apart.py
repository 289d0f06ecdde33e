"""Many pairs for one training that keep apart: on parameters, or on features, that little else touches."""

from __future__ import annotations

import numpy as np

from dpsub._core import DPSGD, Pairs, checks
from dpsub._core.random_streams import stream
from dpsub.crafters.gradient_canaries import noiseless_travel
from dpsub.crafters.pair_arguments import seed_and_count, slots_of
from dpsub.data import Task
from dpsub.models import Model


def gradient_pairs(task: Task, model: Model, spec: DPSGD, *, pairs: int, seed: int) -> Pairs:
    """m gradient pairs, ±C on a parameter each: on the m parameters that training moves least, as `gradient` has one.

    The pairs are orthogonal, so that none disturbs another. Where private records leave parameters unmoved, as at
    pixels that none of them uses, no record disturbs a pair either.

    Args:
        task, model, spec: as in `gradient`.
        pairs: m, from 1 to n − 1 and to the number of parameters.
        seed: for the noiseless training, and for the choice of the records to replace.

    Returns:
        Pairs of gradients of norm C, 2C apart. Details: `unmoved`, the number of parameters that did not move, and
        `seed`. In the trace: `travel` (m,), how far each pair's parameter travelled, in ascending order.

    Raises:
        ValueError: if an argument is out of range, or the training diverges.

    Source: *Beyond Membership*, Algorithm 2, for the parameter that travels least; Keinan et al. (2025), Algorithm 1.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=100)
    >>> spec = DPSGD(1.0, 0.5, 1.0, 10, 0.1)
    >>> pairs = crafters.gradient_pairs(task, models.linear(task), spec, pairs=20, seed=0)
    >>> len(pairs), float(pairs[3].z.max()), float(pairs[3].z_prime.min())
    (20, 0.5, -0.5)
    """
    seed, pairs = seed_and_count(task, model, spec, pairs, seed)
    if pairs > model.parameters:
        raise ValueError(f"pairs must be <= {model.parameters}, the number of parameters, got {pairs}")
    travel = noiseless_travel(task, model, spec, seed)[0].numpy()
    places = np.argsort(travel, kind="stable")[:pairs]
    z = np.eye(pairs, dtype=np.float32) * np.float32(spec.max_grad_norm)
    return Pairs(
        slots_of(task, pairs, seed),
        z,
        -z,
        support=places,
        parameters=model.parameters,
        scenario="S2",
        details={"unmoved": int((travel == 0).sum()), "seed": seed},
        task=task.fingerprint,
        trace={"travel": travel[places]},
    )


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

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.from_arrays([[0.0, 3.0, 0.0], [0.0, 2.0, 0.0], [0.0, 5.0, 0.0]], [0, 1, 1])
    >>> spec = DPSGD(1.0, 1.0, 1.0, 10, 0.1)
    >>> pairs = crafters.unused_feature_pairs(task, models.linear(task), spec, pairs=2, seed=0)
    >>> sorted(pairs.z.tolist()), bool((pairs.y != pairs.y_prime).all())
    ([[0.0, 0.0, 5.0], [5.0, 0.0, 0.0]], True)
    """
    seed, pairs = seed_and_count(task, model, spec, pairs, seed)
    if task.x_train.ndim != 2:
        raise ValueError(
            f"task must have flat features (n, d), got records of shape {task.x_train.shape[1:]}: make a task of "
            "flattened features"
        )
    unused = np.flatnonzero(~task.x_train.any(axis=0))
    if pairs > len(unused):
        raise ValueError(f"pairs must be <= {len(unused)}, the number of features that are 0 throughout, got {pairs}")
    height = float(np.abs(task.x_train).max()) if value is None else checks.real("value", value)
    if not np.float32(height):
        raise ValueError(f"value must not be 0, got {height:g}")
    draws = stream(seed, "crafter", 4)
    features = draws.permutation(unused)[:pairs]
    x = np.zeros((pairs, task.x_train.shape[1]), dtype=np.float32)
    x[np.arange(pairs), features] = height
    labels = np.stack([draws.choice(task.num_classes, 2, replace=False) for _ in range(pairs)])
    return Pairs(
        slots_of(task, pairs, seed),
        x,
        x,
        labels[:, 0],
        labels[:, 1],
        scenario="unused feature",
        details={"value": height, "unused": len(unused), "seed": seed},
        task=task.fingerprint,
        trace={"feature": features},
    )
