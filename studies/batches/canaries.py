"""A canary for batches of a fixed size."""

import numpy as np
import torch

from dpsub import CanaryPair
from dpsub._core import checks
from dpsub.crafters.reference_model import noiseless_training
from dpsub.crafters.slots import random_slot


@checks.checked("spec", "seed")
def mean_gradient(task, model, spec, *, seed):
    """A canary for batches of a fixed size: z′ along the others' mean gradient, z against it, both of norm C.

    In a batch of fixed size a record takes another one's place. If all others' gradients equal that of z′, then a batch
    with z′ looks like one without, and one with z differs from it by 2C. Real records only agree in part. With Poisson
    batches, how many records a batch has moves the sum in the same direction: the more they agree, the better this
    hides the canary.

    The mean ḡ is over the steps of one training on all private records with clipping but without noise.
    `details["agreement"]` is ‖ḡ‖ / C: 1 if all records' gradients point one way at all steps and are at least C long, 0
    if they cancel. In the trace: `mean_norm` (steps,), the norm of each step's mean gradient, in units of C.

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
