"""A step of DP-SGD on ten patients and two weights, small enough to be drawn."""

from book.explorers import drawings
from dpsub import data


def small_step(rng):
    """The first step of a logistic regression on breast cancer data, with the first patient's diagnosis in doubt."""
    task = data.breast_cancer(n_train=60, seed=0)
    x, benign = task.x_train[:10, :2], task.y_train[:10]
    gradients = (0.5 - benign[:, None]) * x  # at weights of 0
    sampled = rng.random(10) < 0.5
    sampled[0] = True  # a step that holds the patient
    return drawings.Step(
        gradients, -gradients[0], sampled, clipping_bound=0.6, noise_multiplier=1.0, noise=rng.normal(size=2)
    )
