"""S3, S4, S5: canaries that are records."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from dpsub._core import DPSGD, CanaryPair, Record, checks
from dpsub.crafters.gradient_geometry import Geometry, compare_gradients
from dpsub.crafters.reference_model import Reference, differentiable_by_records, gradient_of, reference, snapshots
from dpsub.data import Task, check_task
from dpsub.data.tasks import features_of
from dpsub.models import Model, losses_of

SAME_DIRECTION = 1 - 1e-6  # two gradients with a larger cosine count as parallel


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
    r"""S3, the crafted input: z = (x, y), and z′ = (x′, y) with x′ crafted to turn the gradient away from z's.

    x′ starts at 0 and descends on the cosine of the two gradients plus the mean squared difference of their
    coordinates, both at the end of a reference model's training. The second term is meant to keep the two gradients
    similar in scale. Once they point in opposite directions it does the reverse: of all opposite gradients, short ones
    are nearest to z's. `details["norm_ratio"]` is the ratio of the norms at the end.

    Args:
        task: the private records, which this adversary knows.
        model: the architecture to be audited. The reference is one such model.
        spec: the batches, steps, learning rate and optimizer of the reference, which trains without clipping and noise.
            The published code trains it with another learning rate than the audit's. To do the same, craft with
            `dataclasses.replace(spec, learning_rate=0.01)`. Target and canary depend on it.
        seed: for the batches of the reference and, if random, its start.
        target: the index of the private record z. By default it is the record to whose label the reference gives the
            least probability, averaged over 100 evenly spaced moments of its training.
        steps: N ≥ 1, the steps of the descent. The paper gives no number; its published code takes 5,000.
        learning_rate: η > 0 of the descent; 0.01 is the default of the published code.

    Returns:
        A substitute pair of records. Details: `confidence` and `norm`, the target's confidence and gradient norm;
        `cosine` and `norm_ratio`, of the gradient of z′ relative to the target's; `crafting_steps`, `crafting_rate`. In
        the trace: `cosine`, `mse` and `norm_ratio` (steps + 1,); `x` (moments, …), x′ after `step` (moments,) steps;
        `confidence` (n,) of all private records.

    Raises:
        ValueError: if an argument is out of range, if the reference's training or the descent diverges, or if the two
            gradients are still parallel at the end.

    Source: *Beyond Membership*, section 3.2.2, Algorithm 3.
    """
    steps = checks.whole("steps", steps)
    learning_rate = checks.real("learning_rate", learning_rate, above=0)
    found = reference(task, model, spec, seed=seed, target=target)
    module = found.module
    wanted = found.gradient()
    norm = wanted.norm()
    direction = wanted / norm
    x = torch.zeros(found.z.x.shape, dtype=wanted.dtype, requires_grad=True)
    seen = snapshots(steps)
    losses, moments = [], []
    for step in range(steps + 1):
        got = gradient_of(module, x, found.z.y, losses_of(model))
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
            with differentiable_by_records():
                (slope,) = torch.autograd.grad(cosine + mse, x)
            x = (x.detach() - learning_rate * slope).requires_grad_()
    curves = torch.stack(losses).numpy()
    if curves[-1, 0] > SAME_DIRECTION:
        raise ValueError(
            f"steps must be enough for the descent to turn the gradient, got {steps} with a final cosine of "
            f"{curves[-1, 0]:.9f}: take more, or another target if its features are all 0, where the descent starts"
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
        task: the private records, which this adversary knows.
        model, spec, seed, target: as in `crafted_input`.

    Returns:
        A substitute pair of records. Details: `confidence` and `norm`, the target's confidence and gradient norm;
        `cosine` and `norm_ratio`, of the gradient of z′ relative to the target's. In the trace: `cosine` (classes,),
        which is 1 at y; `confidence` (n,) of all private records.

    Raises:
        ValueError: if an argument is out of range, or the reference's training diverges.

    Source: *Beyond Membership*, section 3.2.2, Algorithm 4.
    """
    found = reference(task, model, spec, seed=seed, target=target)
    chosen, gradients = farthest_label(found, task.num_classes)
    return CanaryPair(
        z=found.z,
        z_prime=Record(found.z.x, chosen),
        slot=found.slot,
        scenario="S4",
        task=task.fingerprint,
        details={**found.details, **gradients.details(chosen), "seed": seed},
        trace={"confidence": found.confidence, "cosine": gradients.cosine},
    )


def farthest_label(found: Reference, classes: int) -> tuple[int, Geometry]:
    """The label with which the target's gradient points farthest from its own, and the gradients with each label."""
    labels = np.arange(classes)
    repeated = np.broadcast_to(found.z.x, (classes, *found.z.x.shape)).copy()
    gradients = compare_gradients(found, repeated, labels)
    return int(np.where(labels == found.z.y, np.inf, gradients.cosine).argmin()), gradients


def natural(task: Task, model: Model, spec: DPSGD, *, seed: int, target: int | None = None) -> CanaryPair:
    r"""S5, the adversarial natural sample: z, and the auxiliary record whose gradient points farthest from z's.

    Args:
        task: the private records, which this adversary knows, and auxiliary records. None of these may be private.
        model, spec, seed, target: as in `crafted_input`.

    Returns:
        A substitute pair of records. Details: those of `mislabeled`, and `auxiliary`, the index of z′ among the
        auxiliary records. In the trace: `cosine` (auxiliary records,); `confidence` (n,) of all private records.

    Raises:
        ValueError: if an argument is out of range, if there are no auxiliary records or some are private ones, or if
            the reference's training diverges.

    Source: *Beyond Membership*, section 3.2.2, Algorithm 5.
    """
    check_auxiliary(task)
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


def check_auxiliary(task: Task) -> None:
    """Check that there are auxiliary records to choose from, and that none of them is private.

    Raises:
        ValueError: if there are none, or some are private.
    """
    check_task(task)
    if not len(task.y_aux):
        raise ValueError("task must have auxiliary records to choose from: give x_aux and y_aux")
    check_not_private(task, "aux")


def check_not_private(task: Task, part: str) -> None:
    """Check that no record of a part of the task, "aux" or "test", has the features of a private one.

    Raises:
        ValueError: if some have.
    """
    private = set(features_of(task.x_train))
    others = getattr(task, f"x_{part}")
    if known := sum(record in private for record in features_of(others)):
        name = "auxiliary" if part == "aux" else "test"
        raise ValueError(
            f"task must have {name} records that are not private ones, got {known} of {len(others)} with the "
            f"features of a private record: leave those out of x_{part} and y_{part}"
        )
