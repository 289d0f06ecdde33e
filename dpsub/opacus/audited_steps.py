"""The steps of an Opacus optimizer under audit: a canary in each, and what comes out of them."""

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
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer

from dpsub._core.random_streams import stream
from dpsub.opacus.canary_gradients import Canaries, Piece, Pieces, Tensor

MARK = "_dpsub_auditor"  # of an optimizer that is audited


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
    """What came out of one step of the optimizer.

    Attributes:
        products: (canaries, pieces) of the privatised sum, less the records' clipped gradients, with the pieces'
            directions, in units of the canary's clipping bound. With ghost clipping the records are in it.
        left: the privatised sum less the records and the canaries, as correct clipping leaves them, and the sum of the
            records' clipped gradients: all parameters in a row, in the same units. None if the noise is not tested.
        noise_multiplier: of the optimizer when it added the noise, which is what accountants count.
    """

    products: NDArray[np.float64]
    left: tuple[Tensor, Tensor] | None
    noise_multiplier: float


class AuditedSteps:
    r"""Hooks one optimizer, whatever its class, by two places that all have.

    When `step` is called, the records' gradients are clipped and summed here, too, and the canary enters `grad_sample`
    of the parameters (with ghost clipping, `grad`). When `original_optimizer` steps, `grad` is read, the records' sum
    is subtracted from what was read, and the canary is taken out of `grad`.

    The canary enters the first physical batch of a logical step. One coin is tossed for each observation: a step that
    fails after its canary has entered is not tossed for again.

    Args:
        optimizer: Opacus's.
        kind: of the canary, or gradients, one for each parameter.
        asked: what the audit is to do.
        observed: called after each step with what entered and what came out.

    Attributes:
        parameters: that the optimizer trains.
        ghost: whether it clips without per-sample gradients.
        batches: physical ones since the last observation.
        accumulated: how many `backward` gave gradients to the step.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        kind: str | Sequence[Tensor],
        asked: Asked,
        observed: Callable[[Entered, Observation], None],
    ) -> None:
        self._optimizer, self._asked, self._observed = optimizer, asked, observed
        self.parameters: list[Tensor] = list(optimizer.params)
        self.ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self._bounds: list[float] | None = None  # of each parameter, in units of that of all
        if isinstance(optimizer, DPPerLayerOptimizer):
            whole = math.hypot(*optimizer.max_grad_norms)
            self._bounds = [float(bound) / whole for bound in optimizer.max_grad_norms]
        self._canaries = Canaries(kind, asked.canary_norm, self._bounds, asked.seed, asked.anew, asked.canaries)
        self._coins = stream(asked.seed, "audit")
        self._entered: Entered | None = None
        self._extended: list[tuple[Tensor, Tensor, Tensor]] = []  # a parameter, with the canary's row, and without
        self._room: dict[int, Tensor] = {}
        self._known: Tensor | None = None  # the records' clipped sum of the earlier batches of this step
        self._summed: Tensor | None = None  # and with the batch that is about to be clipped
        self._seen: Observation | None = None
        self._removed = False
        self.batches, self.accumulated = 0, 1
        self._before = vars(optimizer).get("step")
        self._own = self._hooked(optimizer.step)
        optimizer.step = self._own
        setattr(optimizer, MARK, True)

    def remove(self) -> None:
        """Leave the optimizer as it was. If others have wrapped its step since, theirs passes through."""
        if self._removed:
            return
        self._removed = True
        delattr(self._optimizer, MARK)
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

            def entering() -> Any:
                result = closure() if closure else None
                self._enter()
                return result

            self._seen = None
            # Hooked anew at each step: whoever steps the original optimizer besides is not audited.
            reading = self._optimizer.original_optimizer.register_step_pre_hook(self._read)
            try:
                if closure is None:
                    entering()
                result = inner(closure and entering, *args, **kwargs)
            finally:
                reading.remove()
                self._cut_off()
            self._finish()
            return result

        return MethodType(step, self._optimizer)

    def _finish(self) -> None:
        entered, seen = self._entered, self._seen
        if entered is None or seen is None:
            if not getattr(self._optimizer, "_is_last_step_skipped", False):
                raise RuntimeError(
                    "optimizer.step() must let optimizer.original_optimizer step, whose gradients are audited, got one "
                    "that returned without it"
                )
            self._known = self._summed  # Only now: a batch whose step fails comes again, and counts once.
            return
        self._entered, self._known, self.batches = None, None, 0
        self._observed(entered, seen)

    def _enter(self) -> None:
        """Put the canary into the gradients that await the step, if it is not in this logical step already."""
        with torch.no_grad():
            gradients = self._gradients()
            self.batches += 1
            bound = float(self._optimizer.max_grad_norm)
            if not self.ghost:
                clipped = clipped_sum(gradients, bound, self._bounds)
                self._summed = clipped if self._known is None else self._known + clipped
            if self._entered is not None:
                return
            if self._canaries.needs_energies:
                self._canaries.learn([_energy(gradient, self.ghost) for gradient in gradients])
            # For each canary one coin for its world, and one for whether it is in the batch, as a record's is.
            tosses, draws = self._coins.random((self._asked.canaries, 2)).T
            bits, present = (tosses < 0.5).astype(int), draws < self._asked.canary_rate
            of_z_prime = -1 if self._asked.adjacency == "substitute" else 0
            signs = np.where(present, np.where(bits == 1, of_z_prime, 1), 0)
            canaries = self._canaries.draw(self.parameters)
            self._entered = Entered(bits.tolist(), signs.tolist(), canaries, bound)
            if self.ghost:  # Gradients are clipped and summed already: so the clipped canary is added to the sum.
                for place, piece, sign in self._entered.pieces:
                    if sign:
                        piece.add_to(gradients[place], sign * piece.clipped * bound)
                return
            rows = present if self._asked.adjacency == "zero_out" else signs != 0  # z′ may be a row of zeros
            if rows.any():
                scale = self._asked.canary_norm * bound
                self._extend([(canaries[row], float(signs[row]) * scale) for row in np.flatnonzero(rows)])

    def _gradients(self) -> list[Any]:
        """The gradients that await the step: per-sample ones, or the sums of clipped ones."""
        now = list(self._optimizer.params)
        if [*map(id, now)] != [*map(id, self.parameters)]:
            raise ValueError(
                f"optimizer must have the {len(self.parameters)} parameters that it had when it was wrapped, got "
                f"{len(now)} with others: call remove(), then audit_optimizer again"
            )
        name = "grad" if self.ghost else "grad_sample"
        gradients = [getattr(parameter, name, None) for parameter in self.parameters]
        for gradient, parameter in zip(gradients, self.parameters, strict=True):
            if gradient is None or (isinstance(gradient, list) and not gradient):
                raise ValueError(
                    f"optimizer.step() must find {name} of all parameters, got none for one of shape "
                    f"{tuple(parameter.shape)}: the model must be in the mode in which it was wrapped. Call "
                    "model.train(), leave its hooks enabled, and call loss.backward() before each step"
                )
        self.accumulated = len(gradients[0]) if isinstance(gradients[0], list) else 1
        return gradients

    def _extend(self, rows: Sequence[tuple[Pieces, float]]) -> None:
        """One more row of each parameter for each canary, with this norm in all.

        The pieces of a canary are written straight into its zeroed row: a Dirac is one number of a million.
        """
        for place, parameter in enumerate(self.parameters):
            held: Any = parameter.grad_sample  # type: ignore[attr-defined]
            old, *later = held if isinstance(held, list) else [held]
            new, back = self._longer(place, old, len(rows))
            new[: len(old)], new[len(old) :] = old, 0
            new.__dict__.update(old.__dict__)  # Opacus marks tensors that it has used
            new.canary_rows = len(rows)  # type: ignore[attr-defined]
            for row, (pieces, norm) in zip(new[len(old) :], rows, strict=True):
                if place in pieces:
                    pieces[place].add_to(row, norm * pieces[place].share)
            parameter.grad_sample = [new, *later] if isinstance(held, list) else new  # type: ignore[attr-defined]
            self._extended.append((parameter, new, back))

    def _longer(self, place: int, old: Tensor, more: int) -> tuple[Tensor, Tensor]:
        """Room for so many more rows, and what stays when they go.

        On a CPU new pages of memory cost more than what is copied into them, so the room is kept between steps. On a
        GPU memory is what is scarce: the records' gradients are not kept twice.
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

    def _read(self, *_: Any) -> None:
        r"""Before the underlying optimizer steps: read the privatised gradients that it is about to use.

        They are the sum over the records of clip(gᵢ), plus ±clip(g) of each canary, plus noise σC·N(0, 1) in each
        coordinate, and with mean reduction all over the expected size of the batches. Less the first sum, and over C,
        the product with the direction u of the canary, ⟨u, clip(g)⟩ = C, is ±1 + σ·N(0, 1): what the claim is about.

        Then take out of `grad` what canaries add if they are clipped correctly.
        """
        if self._entered is None or self._seen is not None:
            return
        bound, scale = self._entered.max_grad_norm, 1.0
        if self._optimizer.loss_reduction == "mean":
            scale = float(self._optimizer.expected_batch_size) * self.accumulated
        with torch.no_grad():
            gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.parameters]
            released = _in_a_row(gradients).mul_(scale)
            known = self._summed
            if known is not None:
                released -= known
            released /= bound
            parts = torch.split(released, [parameter.numel() for parameter in self.parameters])
            read = torch.stack([piece.product(parts[place]).double() for place, piece, _ in self._entered.pieces])
            products = read.cpu().numpy().reshape(len(self._entered.canaries), -1)
            if not np.isfinite(products).all():
                raise ValueError(
                    f"optimizer must have finite gradients, got {products[~np.isfinite(products)][0]} in a step: look "
                    "for what overflowed, or lower the learning rate"
                )
            for place, piece, sign in self._entered.pieces:
                if sign:
                    piece.add_to(parts[place].view(self.parameters[place].shape), -sign * piece.clipped)
                    piece.add_to(gradients[place], -sign * piece.clipped * bound / scale)
        left = (released, known / bound) if self._asked.test_noise and known is not None else None
        # Schedulers change the noise multiplier between batches: what was added now is what counts.
        self._seen = Observation(products, left, float(self._optimizer.noise_multiplier))


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
