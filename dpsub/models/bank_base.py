"""What banks share: a start that may be fixed, and theta (runs, parameters) whose gradients are computed in parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Self
from zlib import crc32

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dpsub._core.frozen import Frozen, read_only
from dpsub.models.interface import OPACUS_EPS, RECORDS_AT_ONCE, flat_parameters

# Below this sample rate each model computes its own batch only. From it on, each computes all records, and those not
# sampled have weight 0.
GATHER_BELOW = 0.5

WeightedSum = Callable[[Tensor, Tensor], None]


class Startable(Frozen, ABC):
    """A bank whose models may all start from the same parameters.

    Attributes:
        START: what the start is called if it is not fixed.
        theta_0: (parameters,) the fixed start, read-only, in the order of `flat`; None for the usual one.
    """

    START: ClassVar[str]
    theta_0: NDArray[np.float32] | None

    @property
    @abstractmethod
    def parameters(self) -> int:
        """The number of parameters of one model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.theta_0 is not None:
            theta_0 = flat_parameters("theta_0", self.theta_0, self.parameters)
            object.__setattr__(self, "theta_0", read_only(theta_0.numpy()))

    @property
    def initial(self) -> str:
        """The start, as stored with every audit that has one: "fixed" and a checksum, or what it is called."""
        return self.START if self.theta_0 is None else f"fixed {crc32(self.theta_0.tobytes()):08x}"

    def starting_from(self, theta_0: ArrayLike | Tensor) -> Self:
        """The same bank, with the same start for every model.

        Args:
            theta_0: (parameters,) finite numbers in the order of `flat`, which `module` takes and audits store as
                "weights". For networks it is `torch.nn.utils.parameters_to_vector(module().parameters())`, for linear
                heads another one.

        Raises:
            ValueError: if the shape differs, or a number is not finite.
        """
        return replace(self, theta_0=theta_0)  # type: ignore[type-var]


class Rows(ABC):
    """What banks share whose theta is (runs, parameters). It implements part of `Model`.

    Attributes:
        room: about how many numbers one part of the computation may hold. Parts of another size round differently.
        gather: whether each model computes its own batch only. This is faster for small batches.
    """

    room: int
    gather: bool

    @property
    @abstractmethod
    def _floats(self) -> int:
        """About how many numbers one record takes in one model."""

    @abstractmethod
    def _gradients(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> tuple[Tensor, WeightedSum]:
        """The gradients of records, before clipping.

        Args:
            theta: (runs, parameters).
            inputs: what `_shared` or `_own` returns.
            labels: (records,), or (records, runs) if each model has its own.

        Returns:
            Their norms, (records, runs), and a function (weights, total) that adds the gradients to `total` (runs,
            parameters) in place, weighted by `weights` (records, runs).
        """

    def _shared(self, inputs: Tensor) -> Tensor:
        """Records (records, …) that all models see, as `_gradients` takes them."""
        return inputs

    @abstractmethod
    def _own(self, inputs: Tensor, records: Tensor) -> Tensor:
        """Of all records those with the indices (records, runs), each model's own, as `_gradients` takes them."""

    def flat(self, theta: Tensor) -> Tensor:
        """(runs, parameters), a view."""
        return theta

    def first(self, theta: Tensor, runs: int) -> Tensor:
        return theta[:runs]

    def inputs(self, x: Tensor) -> Tensor:
        return x

    def within_span(self, inputs: Tensor, vectors: Tensor) -> None:
        """None: these banks train in all coordinates."""
        return None

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

        Args:
            theta: (runs, parameters).
            inputs: (n, *input_shape).
            labels: (n,).
            sampled: (n, runs) bool, or weights, or None for the full batch.
            max_grad_norm: C.
            out: memory for the sum, shaped like `theta`; by default new.
        """
        total = torch.zeros_like(theta) if out is None else out.zero_()

        def add(runs: slice, values: Tensor, labels: Tensor, taken: Tensor | None) -> None:
            norms, weighted_sum = self._gradients(theta[runs], values, labels)
            weights = (max_grad_norm / (norms + OPACUS_EPS)).clamp_(max=1.0)
            weighted_sum(weights if taken is None else weights * taken, total[runs])

        if sampled is None or sampled.dtype != torch.bool or not self.gather:
            for runs, part, values in self._shared_parts(inputs, len(theta)):
                add(runs, values, labels[part], None if sampled is None else sampled[part, runs])
            return total
        counts = sampled.sum(dim=0)
        sizes = counts.tolist()
        taken = torch.arange(max(sizes), device=theta.device) < counts[:, None]
        batches = torch.zeros_like(taken, dtype=torch.int64).masked_scatter_(taken, sampled.T.nonzero()[:, 1])
        taken, batches = taken.T.contiguous(), batches.T.contiguous()  # (largest batch, runs); padded with record 0
        for runs, places in self._parts(sizes):
            records = batches[places, runs]
            add(runs, self._own(inputs, records), labels[records], taken[places, runs])
        return total

    def gradient_norms(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """(records, runs): the norms of the records' gradients before clipping."""
        norms = torch.empty(len(labels), len(theta), dtype=theta.dtype, device=theta.device)
        for runs, part, values in self._shared_parts(inputs, len(theta)):
            norms[part, runs] = self._gradients(theta[runs], values, labels[part])[0]
        return norms

    def _shared_parts(self, inputs: Tensor, models: int) -> Iterator[tuple[slice, slice, Tensor]]:
        """The runs and records of each part of a computation with all records, and what `_shared` makes of them.

        Parts with the same records follow each other, so that this is formed once for all models.
        """
        last = None
        for runs, part in sorted(self._parts([len(inputs)] * models), key=lambda place: place[1].start):
            if part != last:
                seen, last = self._shared(inputs[part]), part
            yield runs, part, seen

    def _parts(self, sizes: Sequence[int]) -> Iterator[tuple[slice, slice]]:
        """The runs and records of each part of a computation in which run i has `sizes[i]` records."""
        floats = self._floats
        batch = max(1, min(RECORDS_AT_ONCE // floats, max(sizes)))
        models = max(1, self.room // (batch * floats))
        for first in range(0, len(sizes), models):
            runs = slice(first, first + models)
            most = max(sizes[runs])
            for start in range(0, most, batch):
                yield runs, slice(start, min(start + batch, most))
