"""Which Opacus optimizers can be audited, and their steps: a canary in each, and what comes out of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)

from dpsub._core import checks
from dpsub._core.random_streams import stream
from dpsub.opacus.accountant import accounted
from dpsub.opacus.canary_gradients import Canaries, Piece, Pieces, Tensor

MARK = "_dpsub_auditor"  # of an optimizer that is audited
DISTRIBUTED = (
    DistributedDPOptimizer,
    DistributedDPOptimizerFastGradientClipping,
    FSDPOptimizerFastGradientClipping,
    SimpleDistributedPerLayerOptimizer,
)


class Audited(NamedTuple):
    """An optimizer that can be audited.

    Attributes:
        optimizer: Opacus's.
        parameters: that it trains.
        bounds: the clipping bound of each parameter over that of all; None for flat clipping.
        notes: what an audit cannot look at.
    """

    optimizer: DPOptimizer
    parameters: list[Tensor]
    bounds: list[float] | None
    notes: tuple[str, ...]

    @property
    def per_sample(self) -> bool:
        """Whether the gradient of each record is known; with ghost clipping it is not."""
        return not isinstance(self.optimizer, DPOptimizerFastGradientClipping)


@dataclass(frozen=True)
class Asked:
    """What `audit_optimizer` was asked, checked."""

    delta: float
    adjacency: str
    alpha: float
    canary_rate: float
    canary_norm: float
    canaries: int
    sample_rate: float | None
    noise_multiplier: float | None
    anew: bool
    test_noise: bool
    seed: int
    callback: Callable[[Any], Any] | None


def audited_optimizer(optimizer: Any, claimed: Any) -> Audited:
    """The optimizer with what an audit must know of it. `claimed` is a noise multiplier, or None for its own."""
    if not isinstance(optimizer, DPOptimizer):
        raise ValueError(
            "optimizer must be Opacus's DPOptimizer, as PrivacyEngine.make_private returns it, got "
            f"{type(optimizer).__name__}: make it private first"
        )
    if isinstance(optimizer, DISTRIBUTED):
        raise ValueError(
            f"optimizer must be of one process, got the distributed {type(optimizer).__name__}: audit the same "
            "training in one process"
        )
    if MARK in vars(optimizer):
        raise ValueError("optimizer must not be under audit already, got one that is: call remove() of its auditor")
    parameters = list(optimizer.params)
    if not parameters:
        raise ValueError("optimizer must have parameters that require gradients, got none")
    if claimed is None and not float(optimizer.noise_multiplier) > 0:
        raise ValueError(
            f"optimizer.noise_multiplier must be > 0, got {optimizer.noise_multiplier}: its ε is infinite, and there "
            "is nothing to refute. To test another claim, give noise_multiplier"
        )
    # Adaptive clipping makes a tensor of its bound.
    checks.real("optimizer.max_grad_norm", float(optimizer.max_grad_norm), above=0)
    bounds = None
    if isinstance(optimizer, DPPerLayerOptimizer):
        whole = math.hypot(*optimizer.max_grad_norms)
        bounds = [float(bound) / whole for bound in optimizer.max_grad_norms]
    return Audited(optimizer, parameters, bounds, tuple(_notes(optimizer)))


def _notes(optimizer: DPOptimizer) -> list[str]:
    if isinstance(optimizer, DPOptimizerFastGradientClipping):
        return [
            "With ghost clipping there are no per-sample gradients. The canaries entered after clipping, so clipping "
            "was not audited."
        ]
    if isinstance(optimizer, AdaClipDPOptimizer):
        return [
            "The noisy sum was audited. What adaptive clipping releases besides, the noisy count, was not. The "
            "canaries count among its records, so the clipping bound differs a little from that without an audit."
        ]
    return []


class Entered(NamedTuple):
    """How the canaries entered a step, whose first batch was just clipped or is about to be.

    Attributes:
        bits: of each, 0 for z, 1 for z′.
        signs: of each, 1, -1 or 0: how it is in the sum.
        canaries: their pieces.
        max_grad_norm: what they are clipped to.
    """

    bits: list[int]
    signs: list[int]
    canaries: list[Pieces]
    max_grad_norm: float

    @property
    def pieces(self) -> Iterator[tuple[int, Piece, int]]:
        """Of all canaries in a row: the parameter's place, the piece, and the canary's sign."""
        for pieces, sign in zip(self.canaries, self.signs, strict=True):
            yield from ((place, piece, sign) for place, piece in pieces.items())


class Observation(NamedTuple):
    """One step of the optimizer: which world it was in, and what came out.

    Attributes:
        entered: the canaries.
        products: (canaries, pieces) of the privatised sum, less the records' clipped gradients, with the pieces'
            directions, in units of the canary's clipping bound. With ghost clipping the records are in it.
        left: the privatised sum less the records and the canaries, as correct clipping leaves them, and the sum of the
            records' clipped gradients: all parameters in a row, in the same units. None if the noise is not tested.
        noise_multiplier: of the optimizer when it added the noise, which is what accountants count.
        batch_rate: the sample rate of a batch, as the attached accountant has it; None if there is none.
        batches: how many were accumulated in the step.
    """

    entered: Entered
    products: NDArray[np.float64]
    left: tuple[Tensor, Tensor] | None
    noise_multiplier: float
    batch_rate: float | None
    batches: int


class AuditedSteps:
    """Hooks one optimizer, whatever its class, by two places that all have.

    When `step` is called, the records' gradients are clipped and summed here, too, and the canary enters `grad_sample`
    of the parameters (with ghost clipping, `grad`). When `original_optimizer` steps, `grad` is read, the records' sum
    is subtracted from what was read, and the canary is taken out of `grad`.

    The canary enters the first physical batch of a logical step. One coin is tossed for each observation: a step that
    fails after its canary has entered is not tossed for again.
    """

    def __init__(
        self, audited: Audited, canaries: Canaries, asked: Asked, observed: Callable[[Observation], None]
    ) -> None:
        optimizer = audited.optimizer
        self._optimizer, self._canaries, self._asked, self._observed = optimizer, canaries, asked, observed
        self._coins = stream(asked.seed, "audit")
        self._parameters, self._bounds = audited.parameters, audited.bounds
        self._ghost = not audited.per_sample
        self._entered: Entered | None = None
        self._extended: list[tuple[Tensor, Tensor, Tensor]] = []  # a parameter, with the canary's row, and without
        self._room: dict[int, Tensor] = {}
        self._awaiting: Tensor | None = None  # the records' clipped sum of the batch that is about to be clipped
        self._known: Tensor | None = None  # that of the earlier batches of this step
        self._read: Tensor | None = None
        self._left: tuple[Tensor, Tensor] | None = None
        self._noise_multiplier = 0.0  # that what was read has
        self._inside = self._removed = False
        self._iterations, self._taken = 1, 0
        self.batches = 0  # physical ones since the last observation
        self._before = vars(optimizer).get("step")
        self._own = self._hooked(optimizer.step)
        optimizer.step = self._own
        self._reading = optimizer.original_optimizer.register_step_pre_hook(self._reads)

    def remove(self) -> None:
        """Leave the optimizer as it was. If others have wrapped its step since, theirs passes through."""
        if self._removed:
            return
        self._removed = True
        self._reading.remove()
        if vars(self._optimizer).get("step") is self._own:
            if self._before is None:
                del self._optimizer.step
            else:
                self._optimizer.step = self._before

    def _hooked(self, inner: Callable[..., Any]) -> MethodType:
        # A method, because torch's schedulers wrap the function of a method.
        @functools.wraps(inner)
        def step(_: DPOptimizer, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
            if self._removed:
                return inner(closure, *args, **kwargs)
            if closure is None:
                self._enter()
            else:
                closure = self._entering(closure)
            return self._finish(lambda: inner(closure, *args, **kwargs))

        return MethodType(step, self._optimizer)

    def _entering(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def with_canary() -> Any:
            result = closure()
            self._enter()
            return result

        return with_canary

    def _finish(self, inner: Callable[[], Any]) -> Any:
        self._inside, self._read, self._left = True, None, None
        try:
            result = inner()
        finally:
            self._inside = False
            self._cut_off()
        self._known, self._awaiting = self._with_awaiting(), None
        if self._read is None:
            if not getattr(self._optimizer, "_is_last_step_skipped", False):
                raise RuntimeError(
                    "optimizer.step() must let optimizer.original_optimizer step, whose gradients are audited, got one "
                    "that returned without it"
                )
            return result
        entered, self._entered, self.batches = self._entered, None, 0
        self._known = None
        assert entered is not None
        self._taken += 1
        rate = accounted(self._optimizer).get("sample_rate")
        products = self._read.double().cpu().numpy().reshape(len(entered.canaries), -1)
        self._observed(Observation(entered, products, self._left, self._noise_multiplier, rate, self._iterations))
        return result

    def _with_awaiting(self) -> Tensor | None:
        """The records' clipped sum of this step's batches, the one that is being clipped among them."""
        if self._known is None or self._awaiting is None:
            return self._awaiting if self._known is None else self._known
        return self._known + self._awaiting

    def _enter(self) -> None:
        """Put the canary into the gradients that await the step, if it is not in this logical step already."""
        with torch.no_grad():
            gradients = self._gradients()
            self.batches += 1
            bound = float(self._optimizer.max_grad_norm)
            self._awaiting = None if self._ghost else clipped_sum(gradients, bound, self._bounds)
            if self._entered is not None:
                return
            if self._canaries.needs_energies:
                self._canaries.learn([_energy(one, self._ghost) for one in gradients])
            tosses, draws = self._coins.random((self._asked.canaries, 2)).T
            bits, present = (tosses < 0.5).astype(int), draws < self._asked.canary_rate
            of_z_prime = -1 if self._asked.adjacency == "substitute" else 0
            signs = np.where(present, np.where(bits == 1, of_z_prime, 1), 0)
            canaries = self._canaries.draw(self._parameters)
            self._entered = Entered(bits.tolist(), signs.tolist(), canaries, bound)
            if self._ghost:
                for place, piece, sign in self._entered.pieces:
                    if sign:
                        piece.add_to(gradients[place], sign * piece.clipped * bound)
                return
            rows = present if self._asked.adjacency == "zero_out" else signs != 0
            if rows.any():
                scale = self._asked.canary_norm * bound
                self._extend([(canaries[row], float(signs[row]) * scale) for row in np.flatnonzero(rows)])

    def _gradients(self) -> list[Any]:
        """The gradients that await the step: per-sample ones, or the sums of clipped ones."""
        now = list(self._optimizer.params)
        if len(now) != len(self._parameters) or any(a is not b for a, b in zip(now, self._parameters, strict=True)):
            raise ValueError(
                f"optimizer must have the {len(self._parameters)} parameters that it had when it was wrapped, got "
                f"{len(now)} with others: call remove(), then audit_optimizer again"
            )
        name = "grad" if self._ghost else "grad_sample"
        gradients = [getattr(one, name, None) for one in self._parameters]
        for one, parameter in zip(gradients, self._parameters, strict=True):
            if one is None or (isinstance(one, list) and not one):
                raise ValueError(
                    f"optimizer.step() must find {name} of all parameters, got none for one of shape "
                    f"{tuple(parameter.shape)}: the model must be in the mode in which it was wrapped. Call "
                    "model.train(), leave its hooks enabled, and call loss.backward() before each step"
                )
        self._iterations = len(gradients[0]) if isinstance(gradients[0], list) else 1
        return gradients

    def _extend(self, rows: Sequence[tuple[Pieces, float]]) -> None:
        """One more row of each parameter for each canary, with this norm in all."""
        for place, parameter in enumerate(self._parameters):
            held: Any = parameter.grad_sample  # type: ignore[attr-defined]
            old = held[0] if isinstance(held, list) else held
            new, back = self._longer(place, old, len(rows))
            new[: len(old)], new[len(old) :] = old, 0
            new.__dict__.update(old.__dict__)  # Opacus marks tensors that it has used
            new.canary_rows = len(rows)  # type: ignore[attr-defined]
            for row, (pieces, norm) in zip(new[len(old) :], rows, strict=True):
                if place in pieces:
                    pieces[place].add_to(row, norm * pieces[place].share)
            if isinstance(held, list):
                held[0] = new
            else:
                parameter.grad_sample = new  # type: ignore[attr-defined]
            self._extended.append((parameter, new, back))

    def _longer(self, place: int, old: Tensor, more: int) -> tuple[Tensor, Tensor]:
        """Room for so many more rows, and what stays when they go.

        On a CPU new pages of memory cost more than what is copied into them, so the room is kept between steps.
        """
        rows = len(old) + more
        if old.device.type != "cpu":
            new = old.new_empty((rows, *old.shape[1:]))
            return new, new[: len(old)]
        room = self._room.get(place)
        if room is None or len(room) < rows or room.dtype != old.dtype:
            room = self._room[place] = old.new_empty((rows, *old.shape[1:]))
        return room[:rows], old

    def _cut_off(self) -> None:
        """Take the canary's rows off the gradients that Opacus has used."""
        for parameter, extended, back in self._extended:
            held = getattr(parameter, "grad_sample", None)
            back.__dict__.update({name: value for name, value in vars(extended).items() if name != "canary_rows"})
            if held is extended:
                parameter.grad_sample = back  # type: ignore[attr-defined]
            elif isinstance(held, list) and held and held[0] is extended:
                held[0] = back
        self._extended = []

    def _reads(self, *_: Any) -> None:
        """Before the underlying optimizer steps: read the privatised gradients that it is about to use.

        Then take out of them what canaries add if they are clipped correctly.
        """
        if not self._inside or self._entered is None:
            return
        bound, scale = self._entered.max_grad_norm, 1.0
        if self._optimizer.loss_reduction == "mean":
            scale = float(self._optimizer.expected_batch_size) * self._iterations
        with torch.no_grad():
            gradients = [one.grad for one in self._parameters]
            released = _in_a_row(
                torch.zeros_like(one) if grad is None else grad
                for one, grad in zip(self._parameters, gradients, strict=True)
            ).mul_(scale)
            known = self._with_awaiting() if self._read is None else None
            if known is not None:
                released -= known
            released /= bound  # and so in units of the bound, less what is known
            parts = torch.split(released, [one.numel() for one in self._parameters])
            read = torch.stack([piece.product(parts[place]).double() for place, piece, _ in self._entered.pieces])
        if not bool(torch.isfinite(read).all()):
            raise ValueError(
                f"optimizer must have finite gradients, got {read[~torch.isfinite(read)][0].item()} at step "
                f"{self._taken + 1}: look for what overflowed, or lower the learning rate"
            )
        if self._read is None:
            with torch.no_grad():
                for place, piece, sign in self._entered.pieces:
                    if not sign:
                        continue
                    grad = gradients[place]
                    piece.add_to(parts[place].view(self._parameters[place].shape), -sign * piece.clipped)
                    if grad is not None:
                        piece.add_to(grad, -sign * piece.clipped * bound / scale)
        if self._asked.test_noise and known is not None:
            self._left = released, known / bound
        self._read = read if self._read is None else self._read + read
        self._noise_multiplier = float(self._optimizer.noise_multiplier)  # schedulers change it between batches


def clipped_sum(gradients: list[Any], bound: float, bounds: list[float] | None) -> Tensor:
    """The sum of the records' clipped gradients: what clipping should leave of a batch, before noise.

    All parameters in a row.

    Args:
        gradients: of each parameter (records, *shape), or a list of such, of batches that are accumulated.
        bound: C.
        bounds: of each parameter, in units of C; None for flat clipping.
    """
    rows = [_precise(torch.cat(one) if isinstance(one, list) else one) for one in gradients]
    if len(counts := {len(one) for one in rows}) > 1:
        raise ValueError(
            f"optimizer must have gradients of the same records for all parameters, got {counts} of them: layers take "
            "each word of packed sequences for a record, so pad sequences instead"
        )
    norms = torch.stack(
        [torch.linalg.vector_norm(one.reshape(len(one), math.prod(one.shape[1:])), dim=1) for one in rows]
    )
    if bounds is None:
        factors = (bound / norms.norm(dim=0)).clamp(max=1).expand(len(rows), -1)
    else:
        factors = (bound * norms.new_tensor(bounds)[:, None] / norms).clamp(max=1)
    sums = (torch.tensordot(factor.to(one.dtype), one, dims=1) for factor, one in zip(factors, rows, strict=True))
    return _in_a_row(sums)


def _in_a_row(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([_precise(one).reshape(-1) for one in parts])


def _precise(one: Tensor) -> Tensor:
    return one.to(torch.promote_types(one.dtype, torch.float32))


def _energy(gradients: Any, ghost: bool) -> Tensor:
    """How large the gradients of each coordinate are."""
    if ghost:
        return gradients.abs()  # type: ignore[no-any-return]
    parts = gradients if isinstance(gradients, list) else [gradients]
    return torch.stack([part.square().sum(dim=0) for part in parts]).sum(dim=0)
