"""A step of DP-SGD on ten patients and two weights, small enough to be drawn."""

from book.explorers import drawings
from dpsub import data


def small_step(rng, *, patients=10, sample_rate=0.5, clipping_bound=0.6, noise_multiplier=1.0):
    """The first step of a logistic regression on breast cancer data, with the first patient's diagnosis in doubt."""
    task = data.breast_cancer(n_train=60, seed=0)
    x, benign = task.x_train[:patients, :2], task.y_train[:patients]
    gradients = (0.5 - benign[:, None]) * x  # at weights of 0
    sampled = rng.random(patients) < sample_rate
    sampled[0] = True  # a step that holds the patient
    noise = rng.normal(size=2)
    return drawings.Step(gradients, -gradients[0], sampled, clipping_bound, noise_multiplier, noise)
