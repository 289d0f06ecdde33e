"""Scores of pairs of records, from the same trainings of linear heads.

`HeadScores` has all the scores that `audit_one_run` knows, `projections`
what a step says outside the leading directions of the other records.
"""

import numpy as np
import torch

from dpsub.trainers import assemble, poisson_coins


def slopes_of(theta, inputs, labels, norm):
    """Of clipped gradients: (records, classes, runs), by which x is scaled.

    theta is (features + 1, classes, runs), the parameters of the heads; inputs and labels are as a bank holds them.
    """
    logits = (inputs @ theta.flatten(1)).view(len(inputs), *theta.shape[1:])
    found = torch.softmax(logits, dim=1)
    found[torch.arange(len(labels)), labels] -= 1
    lengths = found.norm(dim=1) * inputs.norm(dim=1)[:, None]
    return found.mul_((norm / (lengths + 1e-6)).clamp(max=1)[:, None])


class HeadScores:
    """Linear heads in training, and what each step says of the pairs of records.

    `audit_one_run` trains any model, and once for each kind of score. This takes all scores from one training, and
    several times less time. `whiten` is the number of iterations of conjugate gradients.

    Attributes:
        scores: (runs, pairs) by name. "final", of the final model; and sums over the steps: "plain", "expected", less
            what is expected, and "whitened".
        alone: (runs, pairs) the separation if nothing disturbed a pair but the noise and its own sampling.
        accuracy: (runs,) on the test records.
    """

    def __init__(self, task, model, pairs, spec, bits, *, whiten, seed):
        self._spec, self._whiten = spec, whiten
        generator = torch.Generator().manual_seed(seed)
        self._bank = assemble(model, task, spec, canary=pairs, bits=bits, generator=generator)
        self._x, self._m = self._bank.inputs, len(pairs)
        self._x_t = self._x.T.contiguous()
        self._sums = torch.zeros(3, *bits.T.shape, dtype=torch.float64)
        squares = torch.zeros(2, *bits.T.shape)
        z, z_prime = self._records.chunk(2)
        self._lengths = self._records.square().sum(dim=1, keepdim=True)
        self._shared = (z * z_prime).sum(dim=1, keepdim=True)
        for _ in range(spec.steps):
            squares += self._advance()
        q, sigma = spec.sample_rate, spec.noise_multiplier
        distance, own = squares
        spread = sigma**2 * distance + q * (1 - q) * own
        alone = q * distance / spread.clamp(min=1e-12).sqrt()
        self.alone = alone.T.numpy()
        plain, expected, whitened = (one.T.numpy() for one in self._sums)
        final = self._bank.slot.scores(self._bank).numpy()
        self.scores = {"final": final, "plain": plain, "expected": expected}
        if whiten:
            self.scores["whitened"] = whitened
        x, y = torch.tensor(task.x_test), torch.tensor(task.y_test)
        self.accuracy = self._bank.accuracy(x, y, len(bits)).numpy()

    @property
    def _records(self):
        return self._x[self._bank.shared :]

    def _products(self, slopes, vector):
        """(records, runs) of clipped gradients with a vector."""
        along = (self._x @ vector.flatten(1)).view_as(slopes)
        return along.mul_(slopes).sum(dim=1)

    def _sum(self, slopes, weights):
        """The weighted sum of clipped gradients."""
        found = self._x_t @ (slopes * weights[:, None]).flatten(1)
        return found.view(len(self._x_t), *slopes.shape[1:])

    def _apart(self, slopes, vector):
        """(pairs, runs): of z less those of z′."""
        found = self._products(slopes, vector)[self._bank.shared :]
        return found[: self._m] - found[self._m :]

    def _spread(self, slopes, vector):
        """The covariance of a step's sum, as in `audit_one_run`, by it."""
        spec, shared = self._spec, self._bank.shared
        q, scale = (spec.sample_rate, spec.noise_multiplier * spec.max_grad_norm)
        found = self._products(slopes, vector)
        z, z_prime = found[shared:].chunk(2)
        coin = (z - z_prime) * (q * q * spec.steps / 4)
        weights = found * (q * (1 - q))
        weights[shared:] /= 2
        weights[shared:] += torch.cat([coin, -coin])
        return self._sum(slopes, weights) / scale**2 + vector

    def _divided(self, slopes, total):
        """The sum divided by its covariance: conjugate gradients from 0."""
        found, rest = torch.zeros_like(total), total.clone()
        along, length = rest.clone(), rest.square().sum(dim=(0, 1))
        for _ in range(self._whiten):
            changed = self._spread(slopes, along)
            far = length / (along * changed).sum(dim=(0, 1))
            found += far * along
            rest -= far * changed
            before, length = length, rest.square().sum(dim=(0, 1))
            along = rest + length / before * along
        return found

    def _advance(self):
        """Take a step. Returns ‖d‖²/C², and ⟨g, d⟩²/C⁴, a mean over g, where d is g_z − g_z′."""
        bank, spec, shared = self._bank, self._spec, self._bank.shared
        q, norm = spec.sample_rate, spec.max_grad_norm
        slopes = slopes_of(bank.theta, self._x, bank.labels, norm)
        weights = torch.full((len(slopes), bank.runs), q)
        weights[shared:] /= 2
        mean = self._sum(slopes, weights)
        bank.advance(slot_sampled=poisson_coins(q, self._m, bank.runs, bank.generator))
        total = bank.last_sum
        seen = [total, total - mean]
        if self._whiten:
            seen.append(self._divided(slopes, seen[1]))
        for found, one in zip(self._sums, seen, strict=False):
            found += self._apart(slopes, one) / norm**2
        size, other, both = self._lengths_of(slopes[shared:] / norm)
        self._sums[0] -= q * (size - other) / 2  # the pair's own share
        own = ((size - both) ** 2 + (other - both) ** 2) / 2
        return torch.stack([size + other - 2 * both, own])

    def _lengths_of(self, slopes):
        """‖g_z‖², ‖g_z′‖² and ⟨g_z, g_z′⟩, in units of C²."""
        z, z_prime = slopes.chunk(2)
        size, other = (self._lengths * slopes.square().sum(dim=1)).chunk(2)
        both = self._shared * (z * z_prime).sum(dim=1)
        return size, other, both


def fair_coins(models, pairs, seed):
    """(models, pairs) int8."""
    draws = np.random.default_rng(seed)
    return draws.integers(0, 2, (models, pairs), dtype=np.int8)


def gradients_of(inputs, slopes):
    """(records, parameters) of a linear head: the outer products."""
    return (inputs[:, :, None] * slopes[:, None, :]).flatten(1)


def along(apart, total, axes):
    """(most + 1, pairs): within the span of the first k axes, ⟨d, S⟩ for k from 0.

    apart is (pairs, parameters), d; total (parameters,), S; axes (parameters, most), orthonormal.
    """
    parts = (apart @ axes) * (axes.T @ total)
    return torch.cat([torch.zeros(1, len(apart)), parts.T.cumsum(dim=0)])


def projected_steps(task, model, pairs, spec, *, most, every, seed):
    """One training of a linear head, scored in three ways without any coin.

    A step's sum S, less its mean E, is multiplied by d = g_z − g_z′. Before that, nothing is done to it; or the leading
    directions of the other records' gradients are removed, as many as `most`, computed anew after `every` steps; or
    each of these directions is divided by its variance in units of the noise.

    Returns:
        Bits (pairs,), 0 for z and 1 for z′; (most + 1, pairs) scores without the first k directions; and (pairs,)
        scores with these directions divided.
    """
    q, norm = spec.sample_rate, spec.max_grad_norm
    generator = torch.Generator().manual_seed(seed)
    [bits] = fair_coins(1, len(pairs), seed)
    bank = assemble(model, task, spec, canary=pairs, bits=bits[None], generator=generator)
    inputs, labels, shared = bank.inputs, bank.labels, bank.shared
    weights = torch.full((len(labels), 1), q)
    weights[shared:] /= 2
    projected, softened = torch.zeros(most + 1, len(pairs)), torch.zeros(len(pairs))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # svd_lowrank draws its first guess
        for step in range(spec.steps):
            slopes = slopes_of(bank.theta, inputs, labels, norm)[..., 0]
            if step % every == 0:
                others = gradients_of(inputs[:shared], slopes[:shared])
                _, size, axes = torch.svd_lowrank(others, most + 10, niter=2)
                axes, variance = axes[:, :most], q * (1 - q) * size[:most] ** 2
                shrunk = (variance / (variance + (spec.noise_multiplier * norm) ** 2)).sqrt()
            mean = inputs.T @ (weights * slopes)
            z, z_prime = gradients_of(inputs[shared:], slopes[shared:]).chunk(2)
            bank.advance(slot_sampled=torch.rand(len(pairs), 1, generator=generator) < q)
            total = (bank.last_sum[..., 0] - mean).flatten()
            apart = (z - z_prime) / norm
            whole = apart @ total / norm
            projected += whole - along(apart, total / norm, axes)
            softened += whole - along(apart, total / norm, axes * shrunk)[-1]
    return bits, projected, softened


def projections(task, model, pairs, spec, *, models, most, every, seed):
    """Several trainings by `projected_steps`: bits (models, pairs), projected (most + 1, models, pairs), softened."""
    seeds = range(seed, seed + models)
    made = [projected_steps(task, model, pairs, spec, most=most, every=every, seed=one) for one in seeds]
    bits, projected, softened = zip(*made, strict=True)
    return {"bits": np.stack(bits), "projected": np.stack(projected, axis=1), "softened": np.stack(softened)}
