"""Scores of many pairs from the steps of one training: products with each step's sum, which may be whitened first."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dpsub.models.interface import RECORDS_AT_ONCE
from dpsub.trainers.bank import Bank
from dpsub.trainers.batches import poisson_coins
from dpsub.trainers.slot import GradientSlot, RecordSlot, clipping_scale, loss_products


class ScoredSteps:
    """A bank with many pairs that advances step by step, and adds up the scores of the pairs at each step.

    Args:
        bank: the models, with the pairs in its slot.
        expected: whether to subtract from each sum what all records contribute on average.
        whiten: the iterations of `whitened` for each sum, if `expected`. 0 leaves the sum as it is.

    Attributes:
        scores: (runs, m) float64, the sum over the steps so far. Higher speaks for z.
    """

    def __init__(self, bank: Bank, *, expected: bool, whiten: int = 0) -> None:
        self.bank, self._slot, self._expected, self._whiten = bank, _pairs_in(bank), expected, whiten
        self._pairs = self._slot.present.shape[1]
        self.scores = torch.zeros(bank.runs, self._pairs, dtype=torch.float64, device=bank.device)

    def advance(self) -> None:
        """One training step with fresh randomness: a coin of probability q for each slot, then those of `Bank`.

        The score grows by ⟨S − E, g_z − g_z′⟩/C², with the clipped gradients at the models before the step. E is what S
        is on average over batches and fair coins if `expected`, else the pair's own share of that. `whiten` puts M⁻¹
        before S − E.
        """
        bank, spec = self.bank, self.bank.spec
        before = bank.theta.clone()
        mean = self._mean() if self._expected else None
        sampled = None
        if spec.sample_rate < 1:
            sampled = poisson_coins(spec.sample_rate, self._pairs, bank.runs, bank.generator)
        bank.advance(slot_sampled=sampled)
        total = bank.last_sum
        if mean is not None:
            total -= mean
            if self._whiten:
                total = whitened(bank, before, total, self._whiten)
        along, own = self._slot.along_differences(bank, before, total)
        if mean is None:
            along = along - spec.sample_rate * own
        self.scores += along.double() / spec.max_grad_norm**2

    def _mean(self) -> Tensor:
        """The sum of clipped gradients, on average over batches and fair coins, at the current models."""
        bank, shared = self.bank, slice(self.bank.shared)
        norm = bank.spec.max_grad_norm
        mean = bank.model.clipped_sum(bank.theta, bank.inputs[shared], bank.labels[shared], None, norm)
        mean += self._slot.sum_of_middles(bank)
        return mean.mul_(bank.spec.sample_rate)


def whitened(bank: Bank, theta: Tensor, total: Tensor, iterations: int) -> Tensor:
    """About M⁻¹y, by conjugate gradients from 0. M is the `Spread` of a step's sum, y what the sum is beyond its mean.

    The coins of pairs and of batches enter through y and `theta` alone, which the adversary sees. Guesses of the coins
    from such scores therefore use nothing that is hidden from it.

    Args:
        bank: the models, with the pairs in its slot.
        theta: the parameters before the step.
        total: y, shaped like theta.
        iterations: their number. Each takes products with the gradients of all records, and a weighted sum of them.
    """
    # Conjugate gradients, each run by itself: residual r = y − M·x, directions p that are orthogonal under M,
    # step r·r / p·Mp, and the next direction r + p·(r·r of this step / r·r of the last).
    flat, spread = bank.model.flat, Spread(bank, theta)
    solution, residual = torch.zeros_like(total), total.clone()
    direction, squared = residual.clone(), _products(flat(residual), flat(residual))
    for _ in range(iterations):
        image = spread.times(direction)
        step = _ratio(squared, _products(flat(direction), flat(image)))
        flat(solution).add_(step * flat(direction))
        flat(residual).sub_(step * flat(image))
        before, squared = squared, _products(flat(residual), flat(residual))
        flat(direction).mul_(_ratio(squared, before)).add_(flat(residual))
    return solution


class Spread:
    """M, the covariance of the sum of a step in units of (σC)².

    M = 1 + (q(1 − q)·G + q²T·D)/(σC)². G sums g·gᵀ over the clipped gradients of the shared records, and the mean of
    g_z·g_zᵀ and g_z′·g_z′ᵀ over the pairs: what batches cause. D sums d·dᵀ over the pairs, d = (g_z − g_z′)/2: what
    fair coins cause. They fall once for all T steps, so they count T times as much as what each step draws anew.

    Args:
        bank, theta: as in `whitened`.
    """

    def __init__(self, bank: Bank, theta: Tensor) -> None:
        self._bank, self._slot, self._theta = bank, _pairs_in(bank), theta
        q = bank.spec.sample_rate
        self._of_batches, self._of_coins = q * (1 - q), q * q * bank.spec.steps
        self._scale = [
            clipping_scale(bank.model.gradient_norms(theta, x, y), bank.spec.max_grad_norm) for x, y in self._parts()
        ]

    def times(self, vector: Tensor) -> Tensor:
        """M·v of each model, for v shaped like theta."""
        bank, theta = self._bank, self._theta
        norm = bank.spec.max_grad_norm
        product = self._slot.weighted_sum(bank, theta, vector, self._weights)
        for (x, y), scale in zip(self._parts(), self._scale, strict=True):
            weights = self._of_batches * scale * loss_products(bank.model, theta, x, y, vector)
            product += bank.model.clipped_sum(theta, x, y, weights, norm)
        return product.div_((bank.spec.noise_multiplier * norm) ** 2).add_(vector)

    def _weights(self, products: Tensor) -> Tensor:
        """(2m, runs) the weights of the gradients of all z, then all z′, for their products with a vector."""
        z, z_prime = products.chunk(2)
        apart = (z - z_prime) * (self._of_coins / 4)
        return products * (self._of_batches / 2) + torch.cat([apart, -apart])

    def _parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The shared records, in parts whose outputs fit the memory; none if every step takes all of them."""
        bank = self._bank
        if not self._of_batches:
            return
        at_once = max(1, RECORDS_AT_ONCE // (4 * bank.model.classes * bank.runs))
        for start in range(0, bank.shared, at_once):
            part = slice(start, min(start + at_once, bank.shared))
            yield bank.inputs[part], bank.labels[part]


def _pairs_in(bank: Bank) -> GradientSlot | RecordSlot:
    assert isinstance(bank.slot, GradientSlot | RecordSlot)
    return bank.slot


def _products(vectors: Tensor, others: Tensor) -> Tensor:
    """(runs, 1): the product of each run's vectors."""
    return (vectors * others).sum(dim=1, keepdim=True)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The ratio, and 0 where the denominator is 0: the equation is solved."""
    return torch.where(denominator > 0, numerator / denominator, torch.zeros_like(numerator))
