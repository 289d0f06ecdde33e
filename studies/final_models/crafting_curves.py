"""What crafting an adversarial sample gains, on the models that it was crafted on and on others."""

from dataclasses import replace

import numpy as np
import torch

from dpsub.crafters.adversarial_samples import trained_with_z
from dpsub.crafters.sample_losses import OBJECTIVES, separation


def crafting_curves(sample, model, weights, bits):
    """`step`, and the `loss` that crafting minimised and the `separation` of any models by the samples in its trace.

    Args:
        sample: what `adversarial_sample` returned.
        weights, bits: of the models: (runs, parameters), and (runs,): 0 if trained with z, 1 otherwise.
    """
    criterion, margin = OBJECTIVES[str(sample.details["loss"])], float(sample.details["margin"])
    losses = [-torch.tensor(replace(sample, x=x).scores(model, weights)) for x in sample.trace["x"]]
    with_z = torch.tensor(trained_with_z(bits, len(losses[0])))
    worlds = [(at_moment[with_z], at_moment[~with_z]) for at_moment in losses]
    return {
        "step": sample.trace["step"],
        "loss": np.array([float(criterion(*both, margin)) for both in worlds]),
        "separation": np.array([separation(*both) for both in worlds]),
    }
