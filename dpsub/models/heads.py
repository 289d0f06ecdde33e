"""Banks of linear heads: one matrix product with the records serves all models."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dpsub._core import checks
from dpsub.data.tasks import Task, check_task
from dpsub.models.bank_base import GATHER_BELOW, Startable
from dpsub.models.interface import OPACUS_EPS, RECORDS_AT_ONCE, Span, flat_parameters


@dataclass(frozen=True, eq=False)
class Linear(Startable):
    """A bank of linear heads with cross-entropy loss, all starting from 0 unless `starting_from` gives another start.

    The parameters of R heads are one tensor (features + 1, classes, runs) with the bias in the last row. In this layout
    one matrix product with the records serves all heads, and the runs are contiguous. Small batches are gathered.

    Attributes:
        features: d, without the bias.
        classes: number of classes.
        theta_0: (parameters,) the start, read-only, in the order of `flat`; None for 0.
        sample_rate: q of the batches that may be gathered, set by `prepared`; 1 if none are.
    """

    START: ClassVar[str] = "zero"
    one_product: ClassVar[bool] = True
    CHECKS: ClassVar = {"features": partial(checks.whole, at_least=0), "classes": checks.whole}  # a span may have 0
    features: int
    classes: int
    theta_0: NDArray[np.float32] | None = None
    sample_rate: float = 1.0

    def __repr__(self) -> str:
        start = "" if self.theta_0 is None else f", start={self.initial!r}"
        return f"Linear(features={self.features}, classes={self.classes}{start})"

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.features,)

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of one model's parameters. A gradient canary has this shape, flattened."""
        return self.features + 1, self.classes

    @property
    def parameters(self) -> int:
        return self.shape[0] * self.shape[1]

    def initial_parameters(self, runs: int, generator: torch.Generator) -> Tensor:
        if self.theta_0 is None:
            return torch.zeros(*self.shape, runs, device=generator.device)
        return torch.tensor(self.theta_0, device=generator.device).view(*self.shape, 1).repeat(1, 1, runs)

    def flat(self, theta: Tensor) -> Tensor:
        """(runs, parameters), a view."""
        return theta.flatten(0, 1).T

    def first(self, theta: Tensor, runs: int) -> Tensor:
        return theta[..., :runs]

    def inputs(self, x: Tensor) -> Tensor:
        """(n, features) → (n, features + 1): the records with a last column of ones for the bias."""
        return torch.cat([x, torch.ones_like(x[:, :1])], dim=1)

    def module(self, parameters: ArrayLike | Tensor | None = None) -> nn.Module:
        """One model of the bank as a `torch.nn.Linear`, with the parameters given or its start."""
        with torch.random.fork_rng(devices=[]):  # a new module draws random weights first
            module = nn.Linear(self.features, self.classes)
        start = np.zeros(self.parameters) if self.theta_0 is None else self.theta_0
        vector = start if parameters is None else parameters
        theta = flat_parameters("parameters", vector, self.parameters).view(self.shape)
        module.load_state_dict({"weight": theta[:-1].T, "bias": theta[-1]})
        return module

    def logits(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """(n, classes, runs)."""
        return (inputs @ theta.flatten(1)).view(len(inputs), *theta.shape[1:])

    def clipped_sum(
        self,
        theta: Tensor,
        inputs: Tensor,
        labels: Tensor,
        sampled: Tensor | None,
        max_grad_norm: float,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        """The sum of the sampled records' clipped gradients, shaped like `theta`.

        A record's gradient is an outer product, so its norm is ‖input‖·‖output gradient‖, and no gradient of a single
        record is formed. Of two classes one is computed: the other's gradients are its opposites. Either one product
        with all records serves all models, and records that a model did not sample have weight 0; or each model's batch
        is gathered. The two differ by rounding.

        Args:
            theta: (features + 1, classes, runs).
            inputs: (n, features + 1).
            labels: (n,).
            sampled: (n, runs) bool, or weights, or None for the full batch.
            max_grad_norm: C.
            out: memory for the sum, shaped like `theta`; by default new.
        """
        total = torch.zeros_like(theta) if out is None else out.zero_()
        computed = total[:, -1:] if self.classes == 2 else total
        weights = self._weights(theta)
        if sampled is not None and sampled.dtype == torch.bool and self._gathers(*inputs.shape):
            self._gathered_sum(weights, inputs, labels, sampled, max_grad_norm, computed)
        else:
            at_once = max(1, RECORDS_AT_ONCE // (4 * computed[0].numel()))
            for start in range(0, len(inputs), at_once):
                records = slice(start, start + at_once)
                x, y = inputs[records], labels[records]
                output, norms = self._gradients(weights, x, y)
                scale = (max_grad_norm / (norms + OPACUS_EPS)).clamp_(max=1.0)
                if sampled is not None:
                    scale *= sampled[records]
                output *= scale[:, None]
                computed.flatten(1).addmm_(x.T, output.flatten(1))
        if self.classes == 2:
            total[:, 0] = -total[:, 1]
        return total

    def gradient_norms(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """(records, runs): the norms of the records' gradients before clipping."""
        return self._gradients(self._weights(theta), inputs, labels)[1]

    def _gathers(self, records: int, features: int) -> bool:
        """Whether it is faster to gather each model's batch than to compute all records for all models.

        Computed from shapes and the sample rate, not timed: the two round differently, and the same seed has to give
        the same numbers.
        """
        # Microseconds a model on one core (AVX-512, blocks of 128 models; heads of 2 to 100 classes on 65 to 3,073
        # features and 100 to 5,000 records). Few outputs make narrow products, for which gathering costs more.
        outputs = 1 if self.classes == 2 else self.classes
        whole = 4.5e-5 * records * outputs * (features + 50)
        gathered = 14 + 4.5e-3 * features * outputs + 35 * self.sample_rate / outputs * whole
        return self.sample_rate < GATHER_BELOW and gathered < whole

    def _gathered_sum(
        self, weights: Tensor, inputs: Tensor, labels: Tensor, sampled: Tensor, max_grad_norm: float, total: Tensor
    ) -> None:
        """Fill `total`, shaped like `weights`, with the sums of each model's batch alone."""
        features, outputs, runs = weights.shape
        sizes = sampled.sum(dim=0).tolist()
        batches = torch.split(sampled.T.nonzero(as_tuple=True)[1], sizes)
        by_model = weights.flatten(0, 1).T.contiguous().view(runs, features, outputs).transpose(1, 2)
        sums, lengths = weights.new_empty(runs, outputs, features), inputs.norm(dim=1)
        models = max(1, RECORDS_AT_ONCE // (4 * outputs * max(1, *sizes)))
        for part in (slice(first, first + models) for first in range(0, runs, models)):
            of_part, records = batches[part], torch.cat(batches[part])
            output = weights.new_empty(outputs, len(records))
            for weight, batch, own in zip(
                by_model[part], of_part, torch.split(output, sizes[part], dim=1), strict=True
            ):
                torch.mm(weight, inputs.index_select(0, batch).T, out=own)
            # Keeping the gathered rows for the second product would take more memory than a core's caches have.
            [found], norms = self._of_outputs(output[None], labels[records], lengths[records])
            found *= (max_grad_norm / (norms + OPACUS_EPS)).clamp_(max=1.0)
            for own_sum, batch, own in zip(sums[part], of_part, torch.split(found, sizes[part], dim=1), strict=True):
                torch.mm(own, inputs.index_select(0, batch), out=own_sum)
        total.copy_(sums.flatten(1).T.contiguous().view(outputs, features, runs).transpose(0, 1))

    def _weights(self, theta: Tensor) -> Tensor:
        """theta, or of two classes the difference (features + 1, 1, runs)."""
        return theta[:, 1:] - theta[:, :1] if self.classes == 2 else theta

    def _gradients(self, weights: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients with respect to the outputs, (records, classes, runs), and norms of those by the parameters.

        Of two classes the gradient of the second alone, (records, 1, runs).
        """
        return self._of_outputs(self.logits(weights, inputs), labels[:, None], inputs.norm(dim=1)[:, None])

    def _of_outputs(self, outputs: Tensor, labels: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """As `_gradients`, from logits (…, classes, k) and the labels and inputs' lengths, (…, 1) or (k,)."""
        if self.classes == 2:
            output = outputs.sigmoid_().sub_(labels[..., None, :])
            return output, output[:, 0].abs().mul_(math.sqrt(2) * lengths)
        output = torch.softmax(outputs, dim=1)
        classes = torch.arange(self.classes, device=labels.device)[:, None]
        output -= (labels[..., None, :] == classes).to(output.dtype)
        return output, (output * output).sum(dim=1).sqrt_() * lengths

    def within_span(self, inputs: Tensor, vectors: Tensor) -> Span | None:
        """The same training in fewer coordinates: those that the records and `vectors` span.

        Under plain gradient descent from 0, the parameters of a head are a linear combination of its inputs, the canary
        and the noise. The noise has the same law in every orthonormal basis, and coordinates outside the span never
        meet a record. So a head trained in the coordinates of the span has scores of exactly the same law.

        Args:
            inputs: (n, features + 1).
            vectors: (k, parameters), gradients whose inner products with the parameters are preserved.

        Returns:
            A smaller model, and the inputs and vectors in its coordinates. None if the span has no fewer coordinates,
            or training does not start from 0: another start may lie outside the span.
        """
        if self.theta_0 is not None:
            return None
        gradients = vectors.view(len(vectors), *self.shape)
        touched = gradients.any(dim=2).any(dim=0)
        rows = int(touched.sum())
        if rows + len(inputs) >= inputs.shape[1]:
            return None
        rest = inputs.double().masked_fill(touched, 0)
        triangle = torch.linalg.qr(rest.T, mode="r").R
        inside = torch.cat([inputs[:, touched].double(), triangle.T], dim=1).to(inputs.dtype)
        small = replace(self, features=inside.shape[1] - 1)
        moved = torch.zeros(len(vectors), *small.shape, device=vectors.device)
        moved[:, :rows] = gradients[:, touched]
        return Span(small, inside, moved.flatten(1))

    def prepared(self, device: torch.device, sample_rate: float) -> Linear:
        """The same model, which gathers batches on a CPU where that is faster. A GPU has one product for all models."""
        return replace(self, sample_rate=sample_rate if device.type == "cpu" else 1.0)

    def working_floats(self, records: tuple[int, ...], runs: int, sample_rate: float) -> int:
        n = records[0]
        gathered = 3 * self.parameters + math.ceil(16 * sample_rate * n) if self.sample_rate < 1 else 0
        # The span is computed in float64.
        return 12 * math.prod(records) + (2 * n + gathered) * runs + 4 * RECORDS_AT_ONCE


def linear(task: Task) -> Linear:
    """A linear head on the task's features: (d + 1) · num_classes parameters, θ₀ = 0.

    Raises:
        ValueError: if the records are not flat features (n, d).

    Source: *Beyond Membership*, section 5, "fine-tuning the last layer".
    """
    check_task(task)
    if task.x_train.ndim != 2:
        raise ValueError(f"task must have flat features (n, d) for a linear head, got x_train {task.x_train.shape}")
    return Linear(features=task.x_train.shape[1], classes=task.num_classes)
