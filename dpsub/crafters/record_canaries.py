"""S3, S4, S5: canaries that are records, and many pairs of them for one training."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from dpsub._core import DPSGD, CanaryPair, Pairs, Record, checks
from dpsub.crafters.gradient_canaries import gradient
from dpsub.crafters.reference_model import (
    Reference,
    compare_gradients,
    differentiable_by_records,
    gradient_of,
    reference,
    snapshots,
)
from dpsub.crafters.slots import check_auxiliary, slots_of, together
from dpsub.data import Task
from dpsub.models import Model, losses_of

SAME_DIRECTION = 1 - 1e-6  # two gradients with a larger cosine count as parallel


@checks.checked("spec", "seed", "steps", "learning_rate")
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
    trained = reference(task, model, spec, seed=seed, target=target)
    module = trained.module
    wanted = trained.gradient()
    norm = wanted.norm()
    direction = wanted / norm
    x = torch.zeros(trained.z.x.shape, dtype=wanted.dtype, requires_grad=True)
    seen = snapshots(steps)
    losses, moments = [], []
    for step in range(steps + 1):
        got = gradient_of(module, x, trained.z.y, losses_of(model))
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
    return trained.pair(
        task,
        "S3",
        Record(moments[-1].numpy(), trained.z.y),
        seed=seed,
        details={
            "norm": float(norm),
            "norm_ratio": float(curves[-1, 2]),
            "cosine": float(curves[-1, 0]),
            "crafting_steps": steps,
            "crafting_rate": learning_rate,
        },
        trace={
            "cosine": curves[:, 0],
            "mse": curves[:, 1],
            "norm_ratio": curves[:, 2],
            "x": torch.stack(moments).numpy(),
            "step": np.array([0, *sorted(seen)]),
        },
    )


@checks.checked("spec", "seed")
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
    return _with_farthest_label(reference(task, model, spec, seed=seed, target=target), task, seed)


@checks.checked("spec", "seed")
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
    pairs, order = slots_of(task, model, pairs, seed)
    trained = reference(task, model, spec, seed=seed)
    made = (_with_farthest_label(trained.with_target(task, slot), task, seed) for slot in order[:pairs])
    return together(made, {"seed": seed}, "cosine")


def _with_farthest_label(trained: Reference, task: Task, seed: int) -> CanaryPair:
    """The target, and the same record with the label whose gradient points farthest from the target's."""
    labels = np.arange(task.num_classes)
    repeated = np.broadcast_to(trained.z.x, (len(labels), *trained.z.x.shape)).copy()
    gradients = compare_gradients(trained, repeated, labels)
    chosen = int(np.where(labels == trained.z.y, np.inf, gradients.cosine).argmin())
    details, trace = gradients.details(chosen), {"cosine": gradients.cosine}
    return trained.pair(task, "S4", Record(trained.z.x, chosen), seed=seed, details=details, trace=trace)


@checks.checked("spec", "seed")
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
    all_free = np.ones(len(task.y_aux), dtype=bool)
    return with_farthest_auxiliary(reference(task, model, spec, seed=seed, target=target), task, seed, all_free)


def with_farthest_auxiliary(trained: Reference, task: Task, seed: int, free: NDArray[np.bool_]) -> CanaryPair:
    """The target, and the auxiliary record, among those that are free, whose gradient points farthest from its own."""
    gradients = compare_gradients(trained, task.x_aux, task.y_aux)
    chosen = int(np.where(free, gradients.cosine, np.inf).argmin())
    z_prime = Record(task.x_aux[chosen], int(task.y_aux[chosen]))
    details = {"auxiliary": chosen, **gradients.details(chosen)}
    return trained.pair(task, "S5", z_prime, seed=seed, details=details, trace={"cosine": gradients.cosine})


BY_SCENARIO = {"S2": gradient, "S3": crafted_input, "S4": mislabeled, "S5": natural}
"""The crafters of the scenarios S2 to S5, as sweeps call them. S6 needs an attribute and is not there."""
