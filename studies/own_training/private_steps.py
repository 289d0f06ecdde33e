"""Private steps in NumPy: one that is right, and five that are not."""

import numpy as np


def right(max_grad_norm, noise_multiplier, seed):
    rng = np.random.default_rng(seed)
    std = noise_multiplier * max_grad_norm

    def step(gradients):
        clipped = clip(gradients, max_grad_norm)
        return clipped.sum(axis=0) + rng.normal(
            scale=std, size=clipped.shape[1]
        )

    return step


def clip(gradients, max_grad_norm):
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = gradients / np.maximum(norms / max_grad_norm, 1)
    return np.where(np.isfinite(norms), clipped, 0)


def noise_of_the_mean(max_grad_norm, noise_multiplier, seed):
    """Adds to the sum the noise that its mean needs."""
    rng = np.random.default_rng(seed)
    std = noise_multiplier * max_grad_norm

    def step(gradients):
        clipped = clip(gradients, max_grad_norm)
        noise = rng.normal(scale=std, size=clipped.shape[1])
        return clipped.sum(axis=0) + noise / len(gradients)

    return step


def one_seed(max_grad_norm, noise_multiplier, seed):
    """Seeds the generator at each call."""
    return lambda gradients: right(max_grad_norm, noise_multiplier, seed)(
        gradients
    )


def weighted(max_grad_norm, noise_multiplier, seed):
    """The weighted mean of what clients send, with the noise of the mean.

    A client that sends a long update has 100 examples, the others have 1.
    """
    rng = np.random.default_rng(seed)
    std = noise_multiplier * max_grad_norm

    def step(gradients):
        examples = np.where(np.abs(gradients).max(axis=1) > 1e-3, 100, 1)
        weights = examples / examples.sum()
        noise = rng.normal(scale=std, size=gradients.shape[1])
        mean = weights @ clip(gradients, max_grad_norm)
        return mean + noise / len(gradients)

    return step


def unchecked(max_grad_norm, noise_multiplier, seed):
    """Clips as many do, and lets through what is not finite."""
    rng = np.random.default_rng(seed)
    std = noise_multiplier * max_grad_norm

    def step(gradients):
        norms = np.linalg.norm(gradients, axis=1)
        factors = np.minimum(max_grad_norm / norms, 1)
        noise = rng.normal(scale=std, size=gradients.shape[1])
        return factors @ gradients + noise

    return step


def last_median(max_grad_norm, noise_multiplier, seed):
    """Clips to the median norm of the batch before, if that is less."""
    rng = np.random.default_rng(seed)
    std = noise_multiplier * max_grad_norm
    threshold = max_grad_norm

    def step(gradients):
        nonlocal threshold
        clipped = clip(gradients, threshold)
        if len(gradients):
            norms = np.linalg.norm(gradients, axis=1)
            threshold = min(max_grad_norm, np.median(norms))
        return clipped.sum(axis=0) + rng.normal(
            scale=std, size=clipped.shape[1]
        )

    return step
