"""What crafting an adversarial sample gains, on the models that it was crafted on and on others."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dpsub.crafters import AdversarialSample
from dpsub.crafters.adversarial_samples import trained_with_z
from dpsub.crafters.sample_losses import OBJECTIVES, separation
from dpsub.models import Model


def crafting_curves(
    sample: AdversarialSample, model: Model, weights: ArrayLike | Tensor, bits: ArrayLike
) -> dict[str, NDArray[np.generic]]:
    """What crafting minimised, and the separation, on any models at the moments that the sample's trace keeps.

    Args:
        sample: what `adversarial_sample` returned.
        model: the architecture.
        weights: (runs, parameters), final weights.
        bits: (runs,): 0 if trained with z, 1 if with z′ or with nothing; two models or more of each.

    Returns:
        `step`, `loss` and `separation`, (moments,) each, as in the trace.
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
