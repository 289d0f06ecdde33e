"""The two kinds of slots, of gradients and of records: what they add to a bank's sums, and how they score models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from dpsub.models.differentiation import ATTENTION, Instead
from dpsub.models.interface import OPACUS_EPS, Model, losses_of
from dpsub.trainers.bank import Bank, Slot, StepGradients

_FORWARD_LOCK = Lock()  # torch counts levels of forward differentiation in the process, not in each thread


@dataclass(frozen=True, eq=False)
class GradientSlot(Slot):
    """Gradients that the adversary chooses. They enter the sum of clipped gradients as they are.

    Attributes:
        gradients: z and z′ of the pairs.
    """

    gradients: StepGradients

    @property
    def support(self) -> Tensor | slice:
        return self.gradients.support

    def add_to(self, total: Tensor, sampled: Tensor | None) -> None:
        present, own = self.in_batch(sampled), total[:, self.support]
        if present.shape[1] == 1:
            # A product of matrices would round the gradients where TF32 or bfloat16 are allowed. This never does.
            for in_batch, gradient in zip(present, self.gradients.worlds, strict=True):
                own.addcmul_(in_batch.T.to(total.dtype), gradient)
        else:
            own += present.flatten(0, 1).T.to(total.dtype) @ self._stacked
        total[:, self.support] = own

    def scores(self, bank: Bank) -> Tensor:
        """(runs, m): ((z − z′)/2C)·(θ₀ − θ), or (z/C)·(θ₀ − θ) if z′ is empty.

        Training descends, so a gradient z moves θ towards −z. The worlds differ along z − z′. For an opposite pair this
        is (z/C)·(θ₀ − θ), too.

        Source: *Beyond Membership*, Algorithm 1, line 23, which is for opposite pairs and prints the opposite sign.
        """
        displacement = bank.model.flat(bank.theta_0 - bank.theta)[:, self.support]
        return self._products(displacement, self._difference / (len(self.present) * bank.spec.max_grad_norm))

    def step_scores(self, bank: Bank, canary_rate: float) -> Tensor:
        r"""(runs,): how much the last step's privatised sum S speaks for z.

        With d = z − z′, or d = z beside an empty slot, it is :math:`\langle d/\lVert d\rVert, S - m\rangle / C`, where
        m is the canary rate times the middle of z and z′, or 0 beside an empty slot. It is 0 if z and z′ are equal.
        With ‖z‖ = C and z′ = −z that is N(±1, σ²), and beside an empty slot N(1, σ²) against N(0, σ²), plus what the
        other records contribute.

        Source: *Tight Auditing*, Algorithm 2 and section 5.2.
        """
        z, z_prime, _ = self.gradients
        total, apart = bank.noisy_average[:, self.support] * bank.expected_batch_size, self._difference
        if z_prime is not None:
            total = total - canary_rate * (z + z_prime) / 2
        length = torch.linalg.vector_norm(apart, dim=-1, keepdim=True)
        direction = torch.where(length > 0, apart / length, 0.0)
        scores: Tensor = (total * direction).sum(dim=1) / bank.spec.max_grad_norm
        return scores

    def sum_of_middles(self, bank: Bank) -> Tensor:
        """The sum of (g_z + g_z′)/2 over all pairs, of clipped gradients at the current models, shaped like theta."""
        middle = torch.zeros_like(bank.theta)
        bank.model.flat(middle)[:, self.support] = self._stacked.sum(dim=0) / 2
        return middle

    def along_differences(self, bank: Bank, theta: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        """(runs, m) each: ⟨S, g_z − g_z′⟩ and ⟨(g_z + g_z′)/2, g_z − g_z′⟩, of clipped gradients at `theta`.

        Args:
            bank: the models.
            theta: parameters, shaped like the bank's.
            total: S, shaped like theta.
        """
        z, z_prime = self._stacked.square().sum(dim=1).chunk(2)
        along = self._products(bank.model.flat(total)[:, self.support], self._difference)
        return along, ((z - z_prime) / 2).expand(bank.runs, -1)

    def weighted_sum(self, bank: Bank, theta: Tensor, direction: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
        """The weighted sum of the clipped gradients at `theta` of all z, then all z′, shaped like theta.

        Args:
            bank: the models.
            theta: parameters, shaped like the bank's.
            direction: shaped like theta.
            weigh: gives the weights, (2m, runs), for the gradients' products with the direction, (2m, runs).
        """
        products = self._stacked @ bank.model.flat(direction)[:, self.support].T
        weighted = torch.zeros_like(theta)
        bank.model.flat(weighted)[:, self.support] = weigh(products).T @ self._stacked
        return weighted

    def _gradient(self, bank: Bank, world: int) -> Tensor:
        return self.gradients.worlds[world].clone()

    @cached_property
    def _stacked(self) -> Tensor:
        """(worlds · m, k): all z, then all z′."""
        return torch.cat(self.gradients.worlds).view(math.prod(self.present.shape[:2]), -1)

    @cached_property
    def _difference(self) -> Tensor:
        """Shaped like z: z − z′, or z beside an empty slot."""
        z, z_prime, _ = self.gradients
        return z if z_prime is None else z - z_prime

    def _products(self, vectors: Tensor, gradients: Tensor) -> Tensor:
        """(runs, m): of vectors (runs, k) and the pairs' gradients, (k,) or (m, k)."""
        return (vectors @ gradients.t()).view(len(vectors), self.present.shape[1])


@dataclass(frozen=True, eq=False)
class RecordSlot(Slot):
    """Records. They have rows among the bank's inputs, and training computes and clips their gradients.

    Attributes:
        inputs: (worlds · m, …) all z, then all z′, as `Model.inputs` returns them.
        labels: (worlds · m,).
    """

    inputs: Tensor
    labels: Tensor

    def rows(self, sampled: Tensor | None) -> Tensor:
        return self.in_batch(sampled).flatten(0, 1)

    def scores(self, bank: Bank) -> Tensor:
        """(runs, m): logit(z; θ) − logit(z′; θ). Training on a record pushes its logit up. An empty z′ has logit 0."""
        logits = label_logits(bank.model.logits(bank.theta, self.inputs), self.labels)
        z, *z_prime = logits.chunk(len(self.present))
        return (z - z_prime[0] if z_prime else z).T

    def sum_of_middles(self, bank: Bank) -> Tensor:
        norm = bank.spec.max_grad_norm
        return bank.model.clipped_sum(bank.theta, self.inputs, self.labels, None, norm).div_(2)

    def along_differences(self, bank: Bank, theta: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        products, norms = self._clipped(bank, theta, total)
        (z, z_prime), (length, length_prime) = products.chunk(2), norms.chunk(2)
        return (z - z_prime).T, (length.square() - length_prime.square()).T / 2

    def weighted_sum(self, bank: Bank, theta: Tensor, direction: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
        weights = weigh(self._clipped(bank, theta, direction)[0])
        return bank.model.clipped_sum(theta, self.inputs, self.labels, weights, bank.spec.max_grad_norm)

    def _gradient(self, bank: Bank, world: int) -> Tensor:
        record, norm = slice(world, world + 1), bank.spec.max_grad_norm
        total = bank.model.clipped_sum(bank.theta, self.inputs[record], self.labels[record], None, norm)
        return bank.model.flat(total)

    def _clipped(self, bank: Bank, theta: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
        """(2m, runs) each: the clipped gradients' products with a direction, and their norms."""
        products = loss_products(bank.model, theta, self.inputs, self.labels, direction)
        norms = bank.model.gradient_norms(theta, self.inputs, self.labels)
        scale = clipping_scale(norms, bank.spec.max_grad_norm)
        return products * scale, norms * scale


def label_logits(logits: Tensor, labels: Tensor) -> Tensor:
    """(records, classes, runs) → (records, runs): log p/(1 − p) for the probability p of each record's label.

    Computed from the logits, since p may round to 0 or 1.
    """
    own = labels[:, None, None].expand(-1, 1, logits.shape[2])
    others = logits.scatter(1, own, -torch.inf).logsumexp(dim=1)
    return logits.gather(1, own)[:, 0] - others


def clipping_scale(norms: Tensor, max_grad_norm: float) -> Tensor:
    """The factor min(1, C/(‖g‖ + 10⁻⁶)) of clipping, for gradients of these norms."""
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
    forward: Any = forward_ad
    try:
        with _FORWARD_LOCK, torch.no_grad(), forward.dual_level(), Instead(ATTENTION):
            logits, tangents = forward.unpack_dual(model.logits(forward.make_dual(theta, direction), inputs))
            logits, along = logits.clone(), torch.zeros_like(logits) if tangents is None else tangents.clone()
    except (NotImplementedError, AssertionError):  # an operation that torch cannot differentiate forward
        records = zip(torch.split(inputs, 1), torch.split(labels, 1), strict=True)
        gradients = (model.clipped_sum(theta, *record, None, math.inf) for record in records)
        return torch.stack([model.flat(gradient * direction).sum(dim=1) for gradient in gradients])
    runs = logits.shape[2]
    with torch.enable_grad():
        flat = logits.detach().permute(2, 0, 1).flatten(0, 1).requires_grad_()
        [slopes] = torch.autograd.grad(losses_of(model)(flat, labels.repeat(runs)).sum(), flat)
    products: Tensor = (slopes.view(runs, *logits.shape[:2]).permute(1, 2, 0) * along).sum(dim=1)
    return products
