"""Canary gradients for an optimizer: which piece of the canary each parameter takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from dpsub._core.random_streams import stream

KINDS = ("dirac", "diracs", "constant", "random")
TRAVELLED_LEAST = 0.01  # a Dirac is drawn from this share of the coordinates

Tensor = torch.Tensor


class Piece(NamedTuple):
    """What one parameter takes of the canary.

    Attributes:
        share: the norm of this part before clipping, if that of the canary is 1.
        clipped: the norm of this part after correct clipping to 1.
        place: of a Dirac, in the flattened parameter; otherwise None.
        direction: of norm 1 and of the parameter's shape; None for a Dirac.
    """

    share: float
    clipped: float
    place: int | None
    direction: Tensor | None

    def add_to(self, gradient: Tensor, norm: float) -> None:
        """Add this piece, with the given norm, to a gradient."""
        if self.place is not None:
            gradient[np.unravel_index(self.place, gradient.shape)] += norm
        elif self.direction is not None:
            gradient.add_(self.direction.to(gradient.dtype), alpha=norm)

    def product(self, gradient: Tensor) -> Tensor:
        """The product of a gradient with the direction of this piece."""
        if self.direction is None:
            return gradient.reshape(-1)[self.place]
        return torch.dot(gradient.reshape(-1), self.direction.reshape(-1).to(gradient.dtype))


Pieces = dict[int, Piece]  # by the parameter's place in the optimizer


class Canaries:
    """Draws the canary: once, or anew for each step.

    Args:
        kind: one of `KINDS`, or gradients, one for each parameter.
        norm: of the canary before clipping, in units of the clipping bound.
        bounds: the clipping bound of each parameter, in units of that of all; None for flat clipping.
        seed: of the draws.
        anew: whether to draw for each step.
        number: of the canaries of a step. More than one are Diracs, each of another coordinate, without `bounds`.
    """

    def __init__(
        self,
        kind: str | Sequence[Tensor],
        *,
        norm: float,
        bounds: Sequence[float] | None,
        seed: int,
        anew: bool,
        number: int = 1,
    ) -> None:
        self._kind, self._norm, self._bounds, self._anew, self._number = kind, norm, bounds, anew, number
        self._rng = stream(seed, "crafter")
        self._quiet: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self._drawn: list[Pieces] | None = None

    @property
    def needs_energies(self) -> bool:
        """Whether the next draw must know how large each coordinate's gradients are."""
        return self._kind in ("dirac", "diracs") and not self._quiet

    def learn(self, energies: Sequence[Tensor]) -> None:
        """See which coordinates the first batch moves least: tensors of the parameters' shapes."""
        flat = [energy.detach().double().reshape(-1).cpu().numpy() for energy in energies]
        if self._kind == "dirac" and self._bounds is None:
            flat = [np.concatenate(flat)]
        for energy in flat:
            order = np.lexsort((self._rng.random(len(energy)), energy))  # ties in a random order
            self._quiet.append(order[: max(math.ceil(TRAVELLED_LEAST * len(energy)), self._number)])

    def draw(self, parameters: Sequence[Tensor]) -> list[Pieces]:
        """The canaries of the next step."""
        if self._drawn is None or self._anew:
            self._drawn = self._diracs(parameters) if self._number > 1 else [self._pieces(parameters)]
        return self._drawn

    def _diracs(self, parameters: Sequence[Tensor]) -> list[Pieces]:
        sizes = [one.numel() for one in parameters]
        return [self._dirac(place, sizes) for place in self._rng.choice(self._quiet[0], self._number, replace=False)]

    def _dirac(self, place: int, sizes: Sequence[int]) -> Pieces:
        ends = np.cumsum(sizes)
        which = int(np.searchsorted(ends, place, side="right"))
        return {which: Piece(1.0, min(self._norm, 1.0), int(place - ends[which]) + sizes[which], None)}

    def _pieces(self, parameters: Sequence[Tensor]) -> Pieces:
        if self._kind == "dirac" and self._bounds is None:
            return self._dirac(int(self._rng.choice(self._quiet[0])), [one.numel() for one in parameters])
        if self._kind in ("dirac", "diracs"):
            shares = self._bounds or [1 / math.sqrt(len(parameters))] * len(parameters)
            indices = [int(self._rng.choice(quiet)) for quiet in self._quiet]
            return {i: self._piece(i, *each, None) for i, each in enumerate(zip(shares, indices, strict=True))}
        whole = [one.detach() for one in self._dense(parameters)]
        norm = math.sqrt(sum(float(one.double().norm()) ** 2 for one in whole))
        pieces: Pieces = {}
        for i, (one, parameter) in enumerate(zip(whole, parameters, strict=True)):
            own = float(one.double().norm())
            if own > 0:
                direction = (one.double() / own).to(parameter.device, parameter.dtype)
                pieces[i] = self._piece(i, own / norm, None, direction)
        return pieces

    def _dense(self, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        if not isinstance(self._kind, str):
            return self._kind
        if self._kind == "constant":
            return [torch.ones_like(one) for one in parameters]
        draws = [self._rng.standard_normal(tuple(one.shape), dtype=np.float32) for one in parameters]
        return [torch.as_tensor(one) for one in draws]

    def _piece(self, which: int, share: float, place: int | None, direction: Tensor | None) -> Piece:
        clipped = share * min(self._norm, 1.0)
        if self._bounds is not None:
            clipped = min(share * self._norm, self._bounds[which])
        return Piece(share, clipped, place, direction)


def own_gradients(given: Any, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
    """Gradients that a user gave, checked: one for each parameter, in their order."""
    expected = f"canary must be one of {', '.join(map(repr, KINDS))}, or a tensor for each of the "
    expected += f"{len(parameters)} parameters"
    if isinstance(given, Mapping):
        known = {id(one) for one in parameters}
        if len(given) != len(parameters) or {id(one) for one in given} != known:
            raise ValueError(f"{expected}, got a mapping that is not of them: its keys must be the parameters")
        given = [given[one] for one in parameters]
    if not isinstance(given, Sequence) or isinstance(given, str | bytes):
        raise ValueError(f"{expected}, got {given!r}")
    if len(given) != len(parameters) or not all(isinstance(one, torch.Tensor) for one in given):
        raise ValueError(f"{expected}, got {len(given)} entries of {', '.join({type(one).__name__ for one in given})}")
    for place, (one, parameter) in enumerate(zip(given, parameters, strict=True)):
        if one.shape != parameter.shape:
            shapes = f"{tuple(parameter.shape)}, got {tuple(one.shape)}"
            raise ValueError(f"canary[{place}] must have the shape of its parameter, {shapes}")
        if not one.dtype.is_floating_point or not bool(torch.isfinite(one).all()):
            raise ValueError(f"canary[{place}] must be finite floating-point numbers, got {one.dtype} with others")
    if not any(bool(one.any()) for one in given):
        raise ValueError("canary must not be 0 everywhere, got zeros: it would not enter the sum")
    return [one.detach().clone() for one in given]
