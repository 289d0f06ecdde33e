"""S3, S4, S5: canaries that are records."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from dpsub._core import DPSGD, CanaryPair, Record, checks
from dpsub.crafters.geometry import compare_gradients
from dpsub.crafters.reference import gradient_of, reference, snapshots
from dpsub.data import Task, check_task
from dpsub.data.tasks import features_of
from dpsub.models import Model

SAME_DIRECTION = 1 - 1e-6  # beyond, two gradients are one


def crafted_input(
    task: Task,
    model: Model,
    spec: DPSGD,
    *,
    seed: int,
    target: int | None = None,
    steps: int = 5_000,
    learning_rate: float = 0.01,
) -> CanaryPair:
    r"""S3, the crafted input: z = (x, y), and z′ = (x′, y) whose gradient points as far from z's as it can be made to.

    x′ starts from 0 and descends on the cosine of the two gradients plus the mean squared difference of their
    coordinates, both at the end of a reference model's training. The second term is meant to keep z′ in scale. Where
    the first has turned the gradient round, it does the contrary: the opposite gradient that is nearest to z's is a
    short one. `details["norm_ratio"]` says where that ended.

    Args:
        task: the private records D, known to this adversary.
        model: what will be trained. The reference is one model of it.
        spec: the batches, steps, learning rate and optimizer of the reference; it is neither clipped nor noisy. The
            published code trains it with a learning rate of its own: for that, craft with another `spec` than the
            audit's, `dataclasses.replace(spec, learning_rate=0.01)`; target and canary depend on it.
        seed: for the batches of the reference, and its start where that is random.
        target: which private record is z; by default the one to whose label the reference gives the least probability,
            averaged over 100 evenly spaced moments of its training.
        steps: N ≥ 1 of the descent. The paper gives none; 5,000 is what its published code takes.
        learning_rate: η > 0 of the descent. The published code has 0.01, unless told otherwise.

    Returns:
        A substitute pair of records. Its details: the target's `confidence` and the `norm` of its gradient, the
        `cosine` and `norm_ratio` of z′'s gradient to it, `crafting_steps` and `crafting_rate`. In the trace: `cosine`,
        `mse` and `norm_ratio` (steps + 1,); `x` (moments, …), x′ after `step` (moments,) steps; `confidence` (n,) of
        all private records.

    Raises:
        ValueError: if an argument is out of range, or a training or the descent diverges.

    Source: *Beyond Membership*, section 3.2.2, Algorithm 3.
    """
    steps = checks.whole("steps", steps)
    learning_rate = checks.real("learning_rate", learning_rate, above=0)
    found = reference(task, model, spec, seed=seed, target=target)
    module = found.module
    wanted = found.gradient()
    norm = wanted.norm()
    direction = wanted / norm
    x = torch.zeros(found.z.x.shape, dtype=torch.float64, requires_grad=True)
    seen = snapshots(steps)
    losses, moments = [], []
    for step in range(steps + 1):
        got = gradient_of(module, x, found.z.y)
        length = got.norm()
        cosine = direction @ (got / length)
        mse = functional.mse_loss(got, wanted)
        losses.append(torch.stack([cosine, mse, length / norm]).detach())
        if step == 0 or step in seen:
            moments.append(x.detach().float())
            if not (torch.isfinite(losses[-1]).all() and torch.isfinite(moments[-1]).all()):
                raise ValueError(
                    f"learning_rate must be small enough that crafting does not diverge, got {learning_rate:g}"
                )
        if step < steps:
            (slope,) = torch.autograd.grad(cosine + mse, x)
            x = (x.detach() - learning_rate * slope).requires_grad_()
    curves = torch.stack(losses).numpy()
    if curves[-1, 0] > SAME_DIRECTION:
        raise ValueError(
            f"steps must be enough for the descent to turn the gradient, got {steps} with a cosine of "
            f"{curves[-1, 0]:.9f} at their end; it cannot leave a target whose features are all 0, where it starts"
        )
    crafted = moments[-1].numpy()
    return CanaryPair(
        z=found.z,
        z_prime=Record(crafted, found.z.y),
        slot=found.slot,
        scenario="S3",
        task=task.fingerprint,
        details={
            **found.details,
            "norm": float(norm),
            "norm_ratio": float(curves[-1, 2]),
            "cosine": float(curves[-1, 0]),
            "crafting_steps": steps,
            "crafting_rate": learning_rate,
            "seed": seed,
        },
        trace={
            "confidence": found.confidence,
            "cosine": curves[:, 0],
            "mse": curves[:, 1],
            "norm_ratio": curves[:, 2],
            "x": torch.stack(moments).numpy(),
            "step": np.array([0, *sorted(seen)]),
        },
    )


def mislabeled(task: Task, model: Model, spec: DPSGD, *, seed: int, target: int | None = None) -> CanaryPair:
    r"""S4, the mislabeled sample: z = (x, y), and z′ = (x, y′) with the label whose gradient points farthest from z's.

    Args:
        task: the private records D, known to this adversary.
        model, spec, seed, target: as of `crafted_input`.

    Returns:
        A substitute pair of records. Its details: the target's `confidence` and the `norm` of its gradient, the
        `cosine` and `norm_ratio` of z′'s gradient to it. In the trace: `cosine` (classes,), 1 for y itself;
        `confidence` (n,).

    Raises:
        ValueError: if an argument is out of range, or the reference's training diverges.

    Source: *Beyond Membership*, section 3.2.2, Algorithm 4.
    """
    found = reference(task, model, spec, seed=seed, target=target)
    labels = np.arange(task.num_classes)
    repeated = np.broadcast_to(found.z.x, (len(labels), *found.z.x.shape)).copy()
    gradients = compare_gradients(found, repeated, labels)
    chosen = int(np.where(labels == found.z.y, np.inf, gradients.cosine).argmin())
    return CanaryPair(
        z=found.z,
        z_prime=Record(found.z.x, chosen),
        slot=found.slot,
        scenario="S4",
        task=task.fingerprint,
        details={**found.details, **gradients.details(chosen), "seed": seed},
        trace={"confidence": found.confidence, "cosine": gradients.cosine},
    )


def natural(task: Task, model: Model, spec: DPSGD, *, seed: int, target: int | None = None) -> CanaryPair:
    r"""S5, the adversarial natural sample: z, and the auxiliary record whose gradient points farthest from z's.

    Args:
        task: the private records D, known to this adversary, and auxiliary records that are none of them.
        model, spec, seed, target: as of `crafted_input`.

    Returns:
        A substitute pair of records. Its details: `auxiliary`, the index of z′ among the auxiliary records, and those
        of `mislabeled`. In the trace: `cosine` (auxiliary records,); `confidence` (n,).

    Raises:
        ValueError: if an argument is out of range, if there are no auxiliary records or some are private ones, or if
            the reference's training diverges.

    Source: *Beyond Membership*, section 3.2.2, Algorithm 5.
    """
    check_task(task)
    if not len(task.y_aux):
        raise ValueError("task must have auxiliary records to choose from: give x_aux and y_aux")
    private = set(features_of(task.x_train))
    if known := sum(record in private for record in features_of(task.x_aux)):
        raise ValueError(
            f"task must have auxiliary records that are not private ones, got {known} of {len(task.y_aux)} with the "
            "features of a private record: leave those out of x_aux and y_aux"
        )
    found = reference(task, model, spec, seed=seed, target=target)
    gradients = compare_gradients(found, task.x_aux, task.y_aux)
    chosen = int(gradients.cosine.argmin())
    return CanaryPair(
        z=found.z,
        z_prime=Record(task.x_aux[chosen], int(task.y_aux[chosen])),
        slot=found.slot,
        scenario="S5",
        task=task.fingerprint,
        details={**found.details, "auxiliary": chosen, **gradients.details(chosen), "seed": seed},
        trace={"confidence": found.confidence, "cosine": gradients.cosine},
    )
