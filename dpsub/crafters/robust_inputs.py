"""A variant of S3 for adversaries who do not know the training exactly, or whose clipping bound is large."""

from __future__ import annotations

import torch
from torch import Tensor

from dpsub._core import CanaryPair, Record, checks
from dpsub.accounting import DPSGD
from dpsub.crafters.descent import descend
from dpsub.crafters.reference_model import clipped_path, compare_gradients, gradient_of, reference
from dpsub.data import Task
from dpsub.models.interface import Model, losses_of, theta_of


@checks.checked("spec", "seed", "steps", "learning_rate", moments=checks.whole)
def robust_input(
    task: Task,
    model: Model,
    spec: DPSGD,
    *,
    seed: int,
    target: int | None = None,
    moments: int = 10,
    steps: int = 500,
    learning_rate: float = 0.5,
) -> CanaryPair:
    r"""S3 for a whole training: z = (x, y), and z′ = (x′, y) with x′ crafted on clipped gradients at many moments.

    `crafted_input` crafts at the end of the reference's training, and on a loss that clipping does not enter and that
    favours short gradients. Here x′ starts at 0 and ascends on the distance of the two gradients after each is clipped
    to C, averaged over evenly spaced moments of a training with clipping and without noise. That distance is what each
    step's noise has to hide. If C is not known, give a large one: x′ becomes as long as it takes.

    Args:
        task, model, seed, target: as in `crafted_input`.
        spec: the training, as in `crafted_input`, and its clipping bound C. The noise multiplier is not used.
        moments: how many, evenly spaced; the first is the start.
        steps: N ≥ 1, the steps of the ascent.
        learning_rate: η > 0 of the ascent.

    Returns:
        A substitute pair of records. Details: `confidence` and `norm`, the target's confidence and gradient norm;
        `cosine` and `norm_ratio`, of the gradient of z′ relative to the target's, all in the reference; `distance`, the
        mean distance of the clipped gradients in units of C, at most 2. In the trace: `distance` (steps + 1,);
        `confidence` (n,) of all private records.

    Raises:
        ValueError: if an argument is out of range, or if the reference's training or the ascent diverges.

    Source: dpsub's own. *Beyond Membership*, section 7, leaves canaries that are robust to hyperparameters open.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=100)
    >>> spec = DPSGD(1.0, 8.0, 1.0, 20, 0.01)
    >>> pair = crafters.robust_input(task, models.linear(task), spec, seed=0, steps=50)
    >>> pair.scenario, bool(pair.trace["distance"][-1] > 2 * pair.trace["distance"][0])
    ('S3', True)
    """
    trained = reference(task, model, spec, seed=seed, target=target)
    path = clipped_path(task, model, spec, seed, moments)
    modules = [trained._replace(theta=theta_of(model, theta[None]).to(trained.theta)).module for theta in path]
    label = torch.tensor([trained.z.y])

    def clipped(x: Tensor) -> Tensor:
        gradients = torch.stack([gradient_of(module, losses_of(model), x[None], label) for module in modules])
        norms: Tensor = gradients.norm(dim=1, keepdim=True)
        return gradients / (norms / spec.max_grad_norm).clamp(min=1)

    target_gradients = clipped(torch.tensor(trained.z.x, dtype=trained.theta.dtype))

    def closeness(x: Tensor) -> tuple[Tensor, Tensor]:
        apart = (clipped(x) - target_gradients).norm(dim=1).mean()
        return -apart, apart / spec.max_grad_norm

    start = torch.zeros(trained.z.x.shape, dtype=trained.theta.dtype)
    *_, (_, x, _, _) = found = list(descend(start, closeness, steps, learning_rate))
    z_prime = Record(x.float().numpy(), trained.z.y)
    details = compare_gradients(trained, z_prime.x[None], label.numpy()).details(0)
    distance = torch.stack([apart for *_, apart in found]).numpy()
    return trained.pair("S3", z_prime, {**details, "distance": float(distance[-1])}, {"distance": distance})
