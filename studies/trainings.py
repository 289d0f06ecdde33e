"""What most studies train: DP-SGD with the noise for an ε, and models that are looked at after their last step."""

import dpsub
from dpsub import accounting

DELTA = 1e-5
HOSPITAL = (5.634, 0.1, 200)  # σ, q and T of the book's case, whose substitute ε is 2
PUBLISHED = {
    "MNIST": (1.0, 512 / 60_000, 1_180),
    "Abadi et al.": (4.0, 0.01, 10_000),
    "Figure 2": (1.6772842, 1 / 16, 500),
    "full batch": (26.892, 1.0, 500),
}
ON_A_CPU = {"device": "cpu", "progress": False}


def calibrated(epsilon, adjacency, max_grad_norm, sample_rate, steps, learning_rate, optimizer="sgd", *, delta=DELTA):
    """DP-SGD with the least noise that promises this ε under an adjacency."""
    noise = accounting.noise_multiplier(
        target_epsilon=epsilon, sample_rate=sample_rate, steps=steps, delta=delta, adjacency=adjacency
    )
    return dpsub.DPSGD(noise, max_grad_norm, sample_rate, steps, learning_rate, optimizer)


def final_models(task, model, pair, spec, **options):
    """An audit that observes its models after the last step alone."""
    return dpsub.audit(task, model, pair, spec, observe_every=spec.steps, progress=False, **options)
