"""Banks of networks with hidden layers. Each model has its own activations, so products are batched over models."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from dpsub._core.frozen import Frozen, read_only
from dpsub.models.batches import GATHER_BELOW, own_batches, parts_of
from dpsub.models.convolutions import Conv
from dpsub.models.interface import OPACUS_EPS, RECORDS_AT_ONCE, flat_parameters
from dpsub.models.layers import Dense, Kept, Layer, WeightedSum

# About how many numbers one part of a step's computation holds: what suits a CPU core's cache, and what should fill a
# GPU (not measured yet). These are constants, because parts of another size round differently. The free memory decides
# only how many blocks train at once.
ROOM = {"cpu": 2**20, "cuda": 2**28}


@dataclass(frozen=True, eq=False)
class Network(Frozen):
    """A bank of networks with cross-entropy loss.

    The parameters of R models are one tensor (runs, parameters), in the flattened order of `torch.nn.Sequential`.

    Attributes:
        name: the architecture, with everything that input shape and number of classes do not say. It is part of the
            `repr`, which is stored with every audit.
        input_shape: the shape of one record.
        classes: the number of classes.
        layers: the layers in order. The last one is a Dense.
        theta_0: (parameters,) the fixed start, read-only; None if each model starts at random, by PyTorch's default.
        room: about how many numbers one part of the computation may hold. Parts of another size round differently.
        gather: whether each model computes its own batch only. This is faster for small batches.
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    layers: tuple[Layer, ...] = field(repr=False)
    theta_0: NDArray[np.float32] | None = field(default=None, repr=False)
    room: int = field(default=RECORDS_AT_ONCE, repr=False)
    gather: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.theta_0 is not None:
            object.__setattr__(self, "theta_0", read_only(self.theta_0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Network) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def initial(self) -> str:
        """The start, as stored with every audit: "random", or "fixed" and a checksum."""
        return "random" if self.theta_0 is None else f"fixed {crc32(self.theta_0.tobytes()):08x}"

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.input_shape))
        return f"{self.name}({shape} to {self.classes}, {self.parameters} parameters, {self.initial} start)"

    def starting_from(self, theta_0: ArrayLike | Tensor) -> Network:
        """The same network, with the same start for every model of the bank.

        Args:
            theta_0: (parameters,) finite numbers, an array or tensor in the order of
                `torch.nn.utils.parameters_to_vector(module().parameters())`.

        Raises:
            ValueError: if the shape differs, or a number is not finite.
        """
        return replace(self, theta_0=flat_parameters("theta_0", theta_0, self.parameters).numpy())

    def initial_parameters(self, runs: int, generator: torch.Generator) -> Tensor:
        """(runs, parameters): the fixed start, or PyTorch's default: weights and biases U(−1/√fan_in, 1/√fan_in)."""
        if self.theta_0 is not None:
            return torch.tensor(self.theta_0, device=generator.device).repeat(runs, 1)
        theta = torch.empty(runs, self.parameters, device=generator.device)
        for layer, part in self._parts(theta):
            if isinstance(layer, Dense | Conv):
                bound = 1 / math.sqrt(layer.fan_in)
                part.copy_(torch.empty_like(part).uniform_(-bound, bound, generator=generator))
        return theta

    def flat(self, theta: Tensor) -> Tensor:
        """(runs, parameters), a view."""
        return theta

    def first(self, theta: Tensor, runs: int) -> Tensor:
        return theta[:runs]

    def inputs(self, x: Tensor) -> Tensor:
        return x

    def module(self, parameters: ArrayLike | Tensor | None = None) -> nn.Module:
        """One model of the bank as a `torch.nn.Sequential`, with the flat parameters given or random ones."""
        if parameters is None:
            return nn.Sequential(*(layer.module() for layer in self.layers))
        vector = flat_parameters("parameters", parameters, self.parameters)
        with torch.random.fork_rng(devices=[]):  # a new module draws random weights first
            module = nn.Sequential(*(layer.module() for layer in self.layers))
        nn.utils.vector_to_parameters(vector, module.parameters())
        return module

    def logits(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """(records, classes, runs)."""
        out = torch.empty(len(inputs), self.classes, len(theta), device=theta.device)
        for runs, records, values in self._shared_parts(inputs, len(theta)):
            for layer, part in self._parts(theta[runs]):
                values = layer.forward(part, values)[0]
            out[records, :, runs] = values.transpose(1, 2)
        return out

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
        if sampled is not None and sampled.dtype == torch.bool and self.gather:
            counts = sampled.sum(dim=0)
            sizes = counts.tolist()
            batches = own_batches(sampled, counts, largest=max(sizes))
            for runs, places in self._parts_of(sizes):
                records = batches[places, runs]
                taken: Tensor | None = (
                    torch.arange(places.start, places.stop, device=theta.device)[:, None] < counts[runs]
                )
                values = inputs.index_select(0, records.flatten()).view(*records.shape, *inputs.shape[1:])
                values = self._seen(values) if records.shape[1] == 1 else values
                self._add_clipped(total[runs], theta[runs], values, labels[records], taken, max_grad_norm)
            return total
        for runs, part, values in self._shared_parts(inputs, len(theta)):
            here = None if sampled is None else sampled[part, runs]
            self._add_clipped(total[runs], theta[runs], values, labels[part, None], here, max_grad_norm)
        return total

    def gradient_norms(self, theta: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        """(records, runs): the norms of the records' gradients before clipping."""
        norms = torch.empty(len(labels), len(theta), dtype=theta.dtype, device=theta.device)
        for runs, part, values in self._shared_parts(inputs, len(theta)):
            norms[part, runs] = self._gradients(theta[runs], values, labels[part, None])[0]
        return norms

    def prepared(self, device: torch.device, sample_rate: float) -> Network:
        return replace(self, room=ROOM[device.type], gather=sample_rate < GATHER_BELOW)

    def working_floats(self, records: tuple[int, ...], runs: int, sample_rate: float) -> int:
        per_coin = 2 + 12 * sample_rate if self.gather else 2  # 12 for the indices of the batches
        coins = records[0] * runs
        return 3 * math.prod(records) + math.ceil(per_coin * coins) + 4 * max(self.room, RECORDS_AT_ONCE)

    def within_span(self, inputs: Tensor, vectors: Tensor) -> None:
        """None: networks train in all coordinates."""

    def _add_clipped(
        self, total: Tensor, theta: Tensor, values: Tensor, labels: Tensor, sampled: Tensor | None, max_grad_norm: float
    ) -> None:
        norms, weighted_sums = self._gradients(theta, values, labels)
        weights = (max_grad_norm / (norms + OPACUS_EPS)).clamp_(max=1.0)
        if sampled is not None:
            weights = weights * sampled
        layers = (part for layer, part in self._parts(total) if layer.parameters)
        for part, weighted_sum in zip(layers, weighted_sums, strict=True):
            weighted_sum(weights, part)

    def _gradients(self, theta: Tensor, values: Tensor, labels: Tensor) -> tuple[Tensor, list[WeightedSum]]:
        """The norms of the records' gradients, (records, runs), and for each layer a function for its weighted sum."""
        passed: list[tuple[Layer, Tensor, Kept]] = []
        for layer, part in self._parts(theta):
            values, kept = layer.forward(part, values)
            passed.append((layer, part, kept))
        error = _probabilities(values)
        error.scatter_add_(2, labels.expand(error.shape[:2])[..., None], -torch.ones_like(error[..., :1]))

        gradients: list[tuple[Tensor, WeightedSum]] = []
        trained = sum(isinstance(layer, Dense | Conv) for layer in self.layers)
        for layer, part, kept in reversed(passed):
            if isinstance(layer, Dense | Conv):
                gradients.insert(0, layer.gradients(kept, error))
                if len(gradients) == trained:
                    break
            error = layer.backward(part, kept, error)
        squared = torch.stack([norms for norms, _ in gradients]).sum(dim=0)
        return squared.sqrt_(), [weighted_sum for _, weighted_sum in gradients]

    def _parts(self, theta: Tensor) -> Iterator[tuple[Layer, Tensor]]:
        """Each layer with its columns of `theta`."""
        return zip(self.layers, torch.split(theta, [layer.parameters for layer in self.layers], dim=1), strict=True)

    def _seen(self, images: Tensor) -> Tensor:
        """What the first layer computes with, for inputs that models share: of images the patches."""
        first = self.layers[0]
        return first.patches(images) if isinstance(first, Conv) else images

    def _parts_of(self, sizes: Sequence[int]) -> Iterator[tuple[slice, slice]]:
        floats = sum(layer.floats for layer in self.layers)
        return parts_of(sizes, floats=floats, room=self.room, most_floats=RECORDS_AT_ONCE)

    def _shared_parts(self, inputs: Tensor, runs: int) -> Iterator[tuple[slice, slice, Tensor]]:
        """The runs and records of each part of a computation with all records, and what the first layer sees of them.

        Parts with the same records follow each other, so that what is seen is formed once for all models.
        """
        last = None
        for several, part in sorted(self._parts_of([len(inputs)] * runs), key=lambda one: one[1].start):
            if part != last:
                seen, last = self._seen(inputs[part, None]), part
            yield several, part, seen


def _probabilities(outputs: Tensor) -> Tensor:
    """Softmax of outputs (records, runs, classes), which lie in memory by run.

    On a CPU torch's softmax over a last dimension of fewer than 16 numbers takes ten times as long as over a first one.
    """
    if outputs.device.type == "cpu" and outputs.shape[2] < 16:
        found = torch.softmax(outputs.permute(2, 1, 0).contiguous(), dim=0).permute(1, 2, 0).contiguous()
    else:
        found = torch.softmax(outputs.transpose(0, 1), dim=2)
    return found.transpose(0, 1)
