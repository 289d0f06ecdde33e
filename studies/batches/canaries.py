"""A canary for batches of a fixed size."""

import numpy as np
import torch

from dpsub import CanaryPair
from dpsub._core import checks
from dpsub.crafters.reference_model import noiseless_training
from dpsub.crafters.slots import random_slot

CANCELLED = 1e-6  # of max_grad_norm: float32 has no direction for a shorter mean


@checks.checked("spec", "seed")
def mean_gradient(task, model, spec, *, seed):
    r"""A canary for batches of a fixed size: z′ along the others' mean gradient, z against it.

    In a batch of fixed size a record takes another one's place. If all others' gradients equal that of z′, then a batch
    with z′ looks like one without, and one with z differs from it by 2C. Real records only agree in part. With Poisson
    batches, how many records a batch has moves the sum in the same direction: the more they agree, the better this
    hides the canary.

    One model is trained on all private records with clipping but without noise. The mean over its steps of the batch's
    mean clipped gradient is :math:`\bar g`; :math:`z' = C\,\bar g / \lVert\bar g\rVert` and :math:`z = -z'`.

    Returns:
        A substitute pair of gradients of norm C, 2C apart. `details["agreement"]` is :math:`\lVert\bar g\rVert / C`:
        1 if all records' gradients point one way at all steps and are at least C long, 0 if they cancel. In the trace:
        `mean_norm` (steps,), the norm of each step's mean gradient, in units of C.

    Source: Zhu et al. (2022), the worst data set for batches of fixed size under substitution.
    """
    slot = random_slot(task, model, seed)
    total, norms = torch.zeros(model.parameters), []
    for step, bank in enumerate(noiseless_training(task, model, spec, seed)):
        if step:
            total += bank.noisy_average[0]
            norms.append(float(bank.noisy_average.norm()) / spec.max_grad_norm)
    mean = total / spec.steps
    agreement = float(mean.norm()) / spec.max_grad_norm
    if agreement < CANCELLED:
        raise ValueError(
            f"task must have records whose gradients do not cancel, got a mean of {agreement:.1g} max_grad_norm: "
            "crafters.gradient needs no such mean"
        )
    z_prime = (spec.max_grad_norm * mean / mean.norm()).numpy()
    return CanaryPair(
        -z_prime,
        z_prime,
        slot,
        "mean gradient",
        task=task.fingerprint,
        details={"agreement": agreement, "seed": seed},
        trace={"mean_norm": np.array(norms)},
    )
