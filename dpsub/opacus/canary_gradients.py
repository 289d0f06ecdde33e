"""Canary gradients for an optimizer: which piece of the canary each parameter takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dpsub._core.random_streams import stream

KINDS = ("dirac", "diracs", "constant", "random")
QUIET_SHARE = 0.01  # a Dirac is drawn from this share of the coordinates

Tensor = torch.Tensor


class Piece(NamedTuple):
    """What one parameter takes of the canary.

    Attributes:
        share: the norm of this part before clipping, if that of the canary is 1.
        clipped: the norm of this part after correct clipping to 1.
        coordinate: of a Dirac, in the flattened parameter; otherwise None.
        direction: of norm 1 and of the parameter's shape; None for a Dirac.
    """

    share: float
    clipped: float
    coordinate: int | None
    direction: Tensor | None

    def add_to(self, gradient: Tensor, norm: float) -> None:
        """Add this piece, with the given norm, to a gradient."""
        if self.coordinate is not None:
            gradient[np.unravel_index(self.coordinate, gradient.shape)] += norm
        elif self.direction is not None:
            gradient.add_(self.direction.to(gradient.dtype), alpha=norm)

    def product(self, gradient: Tensor) -> Tensor:
        """The product of a gradient with the direction of this piece."""
        if self.direction is None:
            return gradient.reshape(-1)[self.coordinate]
        return torch.dot(gradient.reshape(-1), self.direction.reshape(-1).to(gradient.dtype))


Pieces = dict[int, Piece]  # by the parameter's index in the optimizer


@dataclass
class Canaries:
    """Draws the canary: once, or anew for each step.

    Attributes:
        kind: one of `KINDS`, or gradients, one for each parameter.
        norm: of the canary before clipping, in units of the clipping bound.
        bounds: the clipping bound of each parameter, in units of that of all; None for flat clipping.
        seed: of the draws.
        anew: whether to draw for each step.
        number: of the canaries of a step. More than one are Diracs, each of another coordinate, without `bounds`.
        rng: of the draws. With `quiet` it is all that the next draw depends on.
        quiet: the coordinates that a Dirac is drawn from, as the first batch has shown.
    """

    kind: str | Sequence[Tensor]
    norm: float
    bounds: Sequence[float] | None
    seed: int
    anew: bool
    number: int = 1

    def __post_init__(self) -> None:
        self.rng = stream(self.seed, "crafter")
        self.quiet: list[NDArray[np.int64]] = []
        self._drawn: list[Pieces] | None = None

    @property
    def needs_energies(self) -> bool:
        """Whether the next draw must know how large each coordinate's gradients are."""
        return self.kind in ("dirac", "diracs") and not self.quiet

    def learn(self, energies: Sequence[Tensor]) -> None:
        """Find the coordinates that the first batch moves least.

        Args:
            energies: of each parameter and its shape: how large the records' gradients are in each coordinate.
        """
        flat = [energy.detach().double().reshape(-1).cpu().numpy() for energy in energies]
        if self.kind == "dirac" and self.bounds is None:
            flat = [np.concatenate(flat)]
        for energy in flat:
            order = np.lexsort((self.rng.random(len(energy)), energy))  # ties in a random order
            self.quiet.append(order[: max(math.ceil(QUIET_SHARE * len(energy)), self.number)])

    def draw(self, parameters: Sequence[Tensor]) -> list[Pieces]:
        """The canaries of the next step."""
        if self._drawn is None or self.anew:
            before = self.rng.bit_generator.state
            if self.kind == "dirac" and self.bounds is None:
                drawn = self.rng.choice(self.quiet[0], self.number, replace=self.number == 1)
                self._drawn = [self._dirac(coordinate, parameters) for coordinate in drawn]
            elif self.kind in ("dirac", "diracs"):
                shares = self.bounds or [1 / math.sqrt(len(parameters))] * len(parameters)
                coordinates = [int(self.rng.choice(quiet)) for quiet in self.quiet]
                self._drawn = [{i: self._piece(i, share, coordinates[i], None) for i, share in enumerate(shares)}]
            else:
                self._drawn = [self._dense(parameters)]
            if not self.anew:  # so that whoever goes on from here draws the same
                self.rng.bit_generator.state = before
        return self._drawn

    def _dirac(self, coordinate: int, parameters: Sequence[Tensor]) -> Pieces:
        """A Dirac at a coordinate of all parameters in a row."""
        ends = np.cumsum([parameter.numel() for parameter in parameters])
        index = int(np.searchsorted(ends, coordinate, side="right"))
        return {index: self._piece(index, 1.0, int(coordinate - ends[index]) + parameters[index].numel(), None)}

    def _dense(self, parameters: Sequence[Tensor]) -> Pieces:
        if not isinstance(self.kind, str):
            whole = list(self.kind)
        elif self.kind == "constant":
            whole = [torch.ones_like(parameter) for parameter in parameters]
        else:
            whole = [torch.as_tensor(self.rng.standard_normal(p.shape, dtype=np.float32)) for p in parameters]
        norms = [float(part.detach().double().norm()) for part in whole]
        pieces: Pieces = {}
        for i, (part, norm, parameter) in enumerate(zip(whole, norms, parameters, strict=True)):
            if norm > 0:
                direction = (part.detach().double() / norm).to(parameter.device, parameter.dtype)
                pieces[i] = self._piece(i, norm / math.sqrt(sum(part_norm**2 for part_norm in norms)), None, direction)
        return pieces

    def _piece(self, index: int, share: float, coordinate: int | None, direction: Tensor | None) -> Piece:
        clipped = share * min(self.norm, 1.0) if self.bounds is None else min(share * self.norm, self.bounds[index])
        return Piece(share, clipped, coordinate, direction)


def own_gradients(given: Any, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    """Gradients that a user gave, checked: one for each parameter, in their order."""
    expected = (
        f"canary must be one of {', '.join(map(repr, KINDS))}, or a tensor for each of {len(parameters)} parameters"
    )
    if isinstance(given, Mapping):
        if {*map(id, given)} != {*map(id, parameters)}:
            raise ValueError(f"{expected}, got a mapping that is not of them: its keys must be the parameters")
        given = [given[parameter] for parameter in parameters]
    if not isinstance(given, Sequence) or isinstance(given, str) or len(given) != len(parameters):
        raise ValueError(f"{expected}, got {len(given) if isinstance(given, list | tuple) else repr(given)}")
    gradients = [torch.as_tensor(gradient).detach().clone() for gradient in given]
    for index, (gradient, parameter) in enumerate(zip(gradients, parameters, strict=True)):
        if gradient.shape != parameter.shape:
            shapes = f"{tuple(parameter.shape)}, got {tuple(gradient.shape)}"
            raise ValueError(f"canary[{index}] must have the shape of its parameter, {shapes}")
    norm = math.hypot(*(float(gradient.double().norm()) for gradient in gradients))
    if not 0 < norm < math.inf:
        raise ValueError(f"canary must be of finite numbers, and not 0 everywhere, got one of norm {norm}")
    return gradients
