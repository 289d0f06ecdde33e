"""Many slots in one training, one for each pair, and what the training shows of their coins."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dpsub.models import Model, losses_of
from dpsub.models.differentiation import ATTENTION, Instead
from dpsub.models.interface import OPACUS_EPS
from dpsub.trainers.bank import Bank
from dpsub.trainers.slot import Slot, label_logits

_FORWARDS = Lock()  # torch counts levels of forward differentiation in the process, not in each thread


class PairSlots(Slot, Protocol):
    """The slots of m pairs in the batches of R models. Each slot has a coin of its own: `sampled` is (m, runs)."""

    @property
    def with_z_prime(self) -> Tensor:
        """(m, runs) bool: which models have z′ in the slot."""
        ...

    def scores(self, bank: Bank) -> Tensor:
        """(runs, m): how much each model speaks for z of each pair, scored as the slot of a single pair is."""
        ...

    def middle(self, bank: Bank) -> Tensor:
        """The sum of (g_z + g_z′)/2 over all pairs, of clipped gradients at the current models, shaped like theta."""
        ...

    def along(self, bank: Bank, theta: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """(runs, m) each: ⟨S, g_z − g_z′⟩ and ⟨(g_z + g_z′)/2, g_z − g_z′⟩, of clipped gradients at `theta`.

        Args:
            bank: the models.
            theta: parameters, shaped like the bank's.
            total: S, shaped like theta.
        """
        ...

    def weighted(self, bank: Bank, theta: Tensor, direction: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
        """The weighted sum of the clipped gradients at `theta` of all z, then all z′, shaped like theta.

        Args:
            bank: the models.
            theta: parameters, shaped like the bank's.
            direction: shaped like theta.
            weigh: gives the weights, (2m, runs), for the gradients' products with the direction, (2m, runs).
        """
        ...


class _Many:
    """What observers ask of the slot of one pair, and many pairs do not answer."""

    def gradient(self, bank: Bank) -> NoReturn:
        raise ValueError("pairs must be observed by their scores, got a question about the gradient of one canary")

    distance = gradient

    def product(self, bank: Bank, gradient: Tensor) -> NoReturn:
        self.gradient(bank)


@dataclass(frozen=True, eq=False)
class GradientPairSlots(_Many):
    """Gradients that the adversary chooses, m pairs of them.

    Attributes:
        support: (k,) indices of the parameters where any gradient is not 0.
        worlds: (2m, k) all z, then all z′, at these parameters.
        with_z_prime: (m, runs) bool: which models have z′ in the slot.
    """

    support: Tensor
    worlds: Tensor
    with_z_prime: Tensor

    def rows(self, sampled: Tensor | None) -> None:
        return None

    def add_to(self, total: Tensor, sampled: Tensor | None) -> None:
        total[:, self.support] += _present(self.with_z_prime, sampled).T.to(total.dtype) @ self.worlds

    def scores(self, bank: Bank) -> Tensor:
        """(runs, m): ((z − z′)/2C)·(θ₀ − θ), as for a single pair."""
        displacement = bank.model.flat(bank.theta_0 - bank.theta)[:, self.support]
        found: Tensor = displacement @ (self._apart / (2 * bank.spec.max_grad_norm)).T
        return found

    def middle(self, bank: Bank) -> Tensor:
        found = torch.zeros_like(bank.theta)
        bank.model.flat(found)[:, self.support] = self.worlds.sum(dim=0) / 2
        return found

    def along(self, bank: Bank, theta: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        z, z_prime = self.worlds.chunk(2)
        own = (z.square().sum(dim=1) - z_prime.square().sum(dim=1)) / 2
        return bank.model.flat(total)[:, self.support] @ self._apart.T, own.expand(bank.runs, -1)

    def weighted(self, bank: Bank, theta: Tensor, direction: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
        products = self.worlds @ bank.model.flat(direction)[:, self.support].T
        found = torch.zeros_like(theta)
        bank.model.flat(found)[:, self.support] = weigh(products).T @ self.worlds
        return found

    @property
    def _apart(self) -> Tensor:
        """(m, k): z − z′."""
        z, z_prime = self.worlds.chunk(2)
        return z - z_prime


@dataclass(frozen=True, eq=False)
class RecordPairSlots(_Many):
    """Records, m pairs of them. Training computes and clips their gradients.

    Attributes:
        inputs: (2m, …) all z, then all z′, as `Model.inputs` returns them.
        labels: (2m,).
        with_z_prime: (m, runs) bool: which models have z′ in the slot.
    """

    inputs: Tensor
    labels: Tensor
    with_z_prime: Tensor

    def rows(self, sampled: Tensor | None) -> Tensor:
        return _present(self.with_z_prime, sampled)

    def add_to(self, total: Tensor, sampled: Tensor | None) -> None:
        return

    def scores(self, bank: Bank) -> Tensor:
        """(runs, m): logit(z; θ) − logit(z′; θ), as for a single pair."""
        z, z_prime = label_logits(bank.model.logits(bank.theta, self.inputs), self.labels).chunk(2)
        return (z - z_prime).T

    def middle(self, bank: Bank) -> Tensor:
        norm = bank.spec.max_grad_norm
        return bank.model.clipped_sum(bank.theta, self.inputs, self.labels, None, norm).div_(2)

    def along(self, bank: Bank, theta: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        products, norms = self._clipped(bank, theta, total)
        (z, z_prime), (length, length_prime) = products.chunk(2), norms.chunk(2)
        return (z - z_prime).T, (length.square() - length_prime.square()).T / 2

    def weighted(self, bank: Bank, theta: Tensor, direction: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
        weights = weigh(self._clipped(bank, theta, direction)[0])
        return bank.model.clipped_sum(theta, self.inputs, self.labels, weights, bank.spec.max_grad_norm)

    def _clipped(self, bank: Bank, theta: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """(2m, runs) each: the clipped gradients' products with a direction, and their norms."""
        products = loss_products(bank.model, theta, self.inputs, self.labels, direction)
        norms = bank.model.gradient_norms(theta, self.inputs, self.labels)
        scale = clipping_scale(norms, bank.spec.max_grad_norm)
        return products * scale, norms * scale


def clipping_scale(norms: Tensor, max_grad_norm: float) -> Tensor:
    """What clipping multiplies gradients of these norms by."""
    return (max_grad_norm / (norms + OPACUS_EPS)).clamp_(max=1.0)


def loss_products(model: Model, theta: Tensor, inputs: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
    """(records, runs): the products of the records' gradients with a direction.

    A record's product with a direction is the derivative of its loss along it. Where torch has that derivative, no
    record's gradient is formed.

    Args:
        model: the architecture.
        theta: the parameters of R models.
        inputs: (records, …), as `Model.inputs` returns them.
        labels: (records,).
        direction: shaped like theta.
    """
    forwards: Any = forward_ad
    try:
        with _FORWARDS, torch.no_grad(), forwards.dual_level(), Instead(ATTENTION):
            logits, tangents = forwards.unpack_dual(model.logits(forwards.make_dual(theta, direction), inputs))
            logits, along = logits.clone(), torch.zeros_like(logits) if tangents is None else tangents.clone()
    except (NotImplementedError, AssertionError):  # an operation that torch cannot differentiate forward
        records = zip(torch.split(inputs, 1), torch.split(labels, 1), strict=True)
        gradients = (model.clipped_sum(theta, *record, None, math.inf) for record in records)
        return torch.stack([model.flat(one * direction).sum(dim=1) for one in gradients])
    runs = logits.shape[2]
    with torch.enable_grad():
        flat = logits.detach().permute(2, 0, 1).flatten(0, 1).requires_grad_()
        [slopes] = torch.autograd.grad(losses_of(model)(flat, labels.repeat(runs)).sum(), flat)
    products: Tensor = (slopes.view(runs, *logits.shape[:2]).permute(1, 2, 0) * along).sum(dim=1)
    return products


def _present(with_z_prime: Tensor, sampled: Tensor | None) -> Tensor:
    """(2m, runs) bool: which models have each z, and then each z′, in their batch."""
    present = torch.cat([~with_z_prime, with_z_prime])
    return present if sampled is None else present & sampled.repeat(2, 1)
