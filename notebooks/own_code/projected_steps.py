"""What a step of a linear head says of pairs outside some directions."""

import numpy as np
import torch

from dpsub.trainers import assemble_pairs


def slopes_of(theta, inputs, labels, norm):
    """Of clipped gradients: (records, classes), by which x is multiplied.

    Args:
        theta: (features + 1, classes) the parameters of one head.
        inputs, labels: of records, as a bank holds them.
        norm: C.
    """
    found = torch.softmax(inputs @ theta, dim=1)
    found[torch.arange(len(labels)), labels] -= 1
    lengths = found.norm(dim=1) * inputs.norm(dim=1)
    return found * (norm / (lengths + 1e-6)).clamp(max=1)[:, None]


def gradients_of(inputs, slopes):
    """(records, parameters) of a linear head: the outer products."""
    return (inputs[:, :, None] * slopes[:, None, :]).flatten(1)


def along(apart, total, axes):
    """Within the span of the first k axes, ⟨d, S⟩ for k from 0.

    Args:
        apart: (pairs, parameters), d.
        total: (parameters,), S.
        axes: (parameters, most), orthonormal.

    Returns:
        (most + 1, pairs).
    """
    parts = (apart @ axes) * (axes.T @ total)
    return torch.cat([torch.zeros(1, len(apart)), parts.T.cumsum(dim=0)])


class ProjectedSteps:
    """One training of a linear head, scored in three ways.

    A step's sum S, less its mean E, is multiplied by d = g_z − g_z′.
    Before that, nothing is done to it; or the leading directions of the
    other records' gradients are removed; or each of these directions is
    divided by its variance in units of the noise. No coin is used.

    Args:
        task, model, pairs, spec: as in `audit_one_run`; pairs of records.
        most: directions.
        every: steps, after which the directions are computed anew.
        seed: of coins, batches and noise.

    Attributes:
        bits: (pairs,) 0 for z and 1 for z′.
        projected: (most + 1, pairs) scores without the first k directions.
        softened: (pairs,) scores with these directions divided.
        alone: (pairs,) the separation if nothing disturbed a pair but the
            noise and its own sampling.
    """

    def __init__(self, task, model, pairs, spec, *, most, every, seed):
        self._spec, self._most, self._every = spec, most, every
        self._generator = torch.Generator().manual_seed(seed)
        self._pairs = len(pairs)
        self.bits = np.random.default_rng(seed).integers(0, 2, len(pairs))
        self._bank, self._slots = assemble_pairs(
            model,
            task,
            spec,
            pairs=pairs,
            bits=self.bits[None].astype(np.int8),
            generator=self._generator,
        )
        self.projected = torch.zeros(most + 1, len(pairs))
        self.softened = torch.zeros(len(pairs))
        squares = torch.zeros(2, len(pairs))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # svd_lowrank draws its first guess
            for step in range(spec.steps):
                squares += self._advance(step)
        q, sigma = spec.sample_rate, spec.noise_multiplier
        distance, own = squares
        spread = sigma**2 * distance + q * (1 - q) * own
        self.alone = q * distance / spread.clamp(min=1e-12).sqrt()

    def _advance(self, step):
        """Returns ‖d‖²/C², and the mean over both g of ⟨g, d⟩²/C⁴."""
        bank, spec, pairs = self._bank, self._spec, self._pairs
        q, norm, shared = spec.sample_rate, spec.max_grad_norm, bank.shared
        inputs, labels = bank.inputs, bank.labels
        slopes = slopes_of(bank.theta[..., 0], inputs, labels, norm)
        if step % self._every == 0 and self._most:
            others = gradients_of(inputs[:shared], slopes[:shared])
            _, size, self._axes = torch.svd_lowrank(
                others, self._most + 10, niter=2
            )
            self._axes = self._axes[:, : self._most]
            variance = q * (1 - q) * size[: self._most] ** 2
            shrunk = variance / (
                variance + (spec.noise_multiplier * norm) ** 2
            )
            self._shrunk = shrunk.sqrt()
        weights = torch.full((len(labels), 1), q)
        weights[shared:] /= 2
        mean = inputs.T @ (weights * slopes)
        z, z_prime = gradients_of(inputs[shared:], slopes[shared:]).chunk(2)
        coins = torch.rand(pairs, 1, generator=self._generator) < q
        bank.advance(slot_sampled=coins)
        total = (bank.last_sum[..., 0] - mean).flatten()
        apart = (z - z_prime) / norm
        whole = apart @ total / norm
        if self._most:
            removed = along(apart, total / norm, self._axes)
            self.projected += whole - removed
            part = along(apart, total / norm, self._axes * self._shrunk)
            self.softened += whole - part[-1]
        else:
            self.projected += whole
            self.softened += whole
        own = torch.stack(
            [(one * apart).sum(dim=1) for one in (z, z_prime)]
        )
        own = own.square().mean(dim=0) / norm**2
        return torch.stack([apart.square().sum(dim=1), own])


def projections(task, model, pairs, spec, *, models, most, every, seed):
    """Several trainings of `ProjectedSteps`.

    Returns:
        bits (models, pairs), projected (most + 1, models, pairs), softened
        (models, pairs) and alone (models, pairs), as arrays.
    """
    made = [
        ProjectedSteps(
            task, model, pairs, spec, most=most, every=every, seed=one
        )
        for one in range(seed, seed + models)
    ]
    return {
        "bits": np.stack([one.bits for one in made]),
        "projected": np.stack([one.projected for one in made], axis=1),
        "softened": np.stack([one.softened for one in made]),
        "alone": np.stack([one.alone for one in made]),
    }
