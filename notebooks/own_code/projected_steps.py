"""What a step of a linear head says of pairs outside some directions."""

import numpy as np
import torch

from dpsub.trainers import assemble_pairs
from own_code.head_scores import fair_coins, slopes_of


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
    """

    def __init__(self, task, model, pairs, spec, *, most, every, seed):
        self._spec, self._most, self._every = spec, most, every
        self._generator = torch.Generator().manual_seed(seed)
        self._pairs = len(pairs)
        [self.bits] = fair_coins(1, len(pairs), seed)
        self._bank, self._slots = assemble_pairs(
            model,
            task,
            spec,
            pairs=pairs,
            bits=self.bits[None],
            generator=self._generator,
        )
        self.projected = torch.zeros(most + 1, len(pairs))
        self.softened = torch.zeros(len(pairs))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # svd_lowrank draws its first guess
            for step in range(spec.steps):
                self._advance(step)

    def _advance(self, step):
        bank, spec, pairs = self._bank, self._spec, self._pairs
        q, norm, shared = spec.sample_rate, spec.max_grad_norm, bank.shared
        inputs, labels = bank.inputs, bank.labels
        slopes = slopes_of(bank.theta, inputs, labels, norm)[..., 0]
        if step % self._every == 0:
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
        removed = along(apart, total / norm, self._axes)
        self.projected += whole - removed
        part = along(apart, total / norm, self._axes * self._shrunk)
        self.softened += whole - part[-1]


def projections(task, model, pairs, spec, *, models, most, every, seed):
    """Several trainings of `ProjectedSteps`.

    Returns:
        bits (models, pairs), projected (most + 1, models, pairs) and
        softened (models, pairs), as arrays.
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
    }
