"""S3, S4, S5: canaries that are records, and many pairs of them for one training."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from dpsub._core import CanaryPair, Pairs, Record, checks
from dpsub.accounting import DPSGD
from dpsub.crafters.descent import descend, moments
from dpsub.crafters.reference_model import Reference, compare_gradients, crafted_pair, gradient_of, reference
from dpsub.crafters.slots import check_auxiliary, pairs_of_records, shuffled_slots
from dpsub.data import Task
from dpsub.models.interface import Model, losses_of

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
    module, wanted, label = trained.module, trained.gradient(), torch.tensor([trained.z.y])
    norm = wanted.norm()

    def similarity(x: Tensor) -> tuple[Tensor, Tensor]:
        gradient = gradient_of(module, losses_of(model), x[None], label)
        length = gradient.norm()
        cosine = wanted / norm @ (gradient / length)
        mse = functional.mse_loss(gradient, wanted)
        return cosine + mse, torch.stack([cosine, mse, length / norm])

    start = torch.zeros(trained.z.x.shape, dtype=wanted.dtype)
    seen = moments(steps)
    curves, path = [], []
    for step, x, _, curve in descend(start, similarity, steps, learning_rate):
        curves.append(curve.numpy())
        if step in seen:
            path.append(x.float().numpy())
    cosine, mse, norm_ratio = np.stack(curves, axis=1)
    if cosine[-1] > SAME_DIRECTION:
        raise ValueError(
            f"steps must be enough for the descent to turn the gradient, got {steps} with a final cosine of "
            f"{cosine[-1]:.9f}: take more, or another target if its features are all 0, where the descent starts"
        )
    details = {"norm": float(norm), "norm_ratio": float(norm_ratio[-1]), "cosine": float(cosine[-1])}
    details |= {"crafting_steps": steps, "crafting_rate": learning_rate}
    trace = {"cosine": cosine, "mse": mse, "norm_ratio": norm_ratio, "x": np.stack(path), "step": seen}
    return trained.pair("S3", Record(path[-1], trained.z.y), details, trace)


@checks.checked("spec", "seed")
def mislabeled(task: Task, model: Model, spec: DPSGD, *, seed: int, target: int | str | None = None) -> CanaryPair:
    r"""S4, the mislabeled sample: z = (x, y), and z′ = (x, y′) with the label whose gradient points farthest from z's.

    Args:
        task: the private records, which this adversary knows.
        model, spec, seed: as in `crafted_input`.
        target: likewise, or "most_exposed", as in `attribute`. With many classes the distances differ little, and say
            little about what an audit finds.

    Returns:
        A substitute pair of records. Details: `confidence` and `norm`, the target's confidence and gradient norm;
        `cosine` and `norm_ratio`, of the gradient of z′ relative to the target's. In the trace: `cosine` (classes,),
        which is 1 at y; `confidence` (n,) of all private records; `exposure` as in `attribute`.

    Raises:
        ValueError: if an argument is out of range, or the reference's training diverges.

    Source: *Beyond Membership*, section 3.2.2, Algorithm 4.
    """
    return crafted_pair(_with_farthest_label, range(len(task.y_train)), target, task, model, spec, seed=seed)


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
    pairs, order = shuffled_slots(task, model, pairs, seed)
    trained = reference(task, model, spec, seed=seed)
    return pairs_of_records(pairs, map(_with_farthest_label, trained.targets(order)), {"seed": seed}, "cosine")


def _with_farthest_label(trained: Reference) -> CanaryPair:
    """The target, and the same record with the label whose gradient points farthest from the target's."""
    x, y = trained.z
    labels = np.arange(trained.task.num_classes)
    gradients = compare_gradients(trained, np.repeat(x[None], len(labels), axis=0), labels)
    cosine = np.where(gradients.ratio > 0, gradients.cosine, 2)  # the loss may ignore a label: then it has no gradient
    chosen = int(np.where(labels == y, np.inf, cosine).argmin())
    return trained.pair("S4", Record(x, chosen), gradients.details(chosen), {"cosine": gradients.cosine})


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
    trained = reference(task, model, spec, seed=seed, target=target)
    gradients = compare_gradients(trained, task.x_aux, task.y_aux)
    chosen = int(np.where(gradients.ratio > 0, gradients.cosine, 2).argmin())
    z_prime = Record(task.x_aux[chosen], int(task.y_aux[chosen]))
    details = {"auxiliary": chosen, **gradients.details(chosen)}
    return trained.pair("S5", z_prime, details, {"cosine": gradients.cosine})
