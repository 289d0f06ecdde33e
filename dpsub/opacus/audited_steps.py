"""The steps of an Opacus optimizer under audit: a canary in each, and what comes out of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MethodType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer

from dpsub._core.random_streams import stream
from dpsub.opacus.canary_gradients import Canaries, Piece, Pieces, Tensor

MARK = "_dpsub_auditor"  # of an optimizer that is audited
PATIENCE = timedelta(minutes=5)  # with processes that do not audit, or not yet


@dataclass(frozen=True)
class Options:
    """The arguments of `audit_optimizer`, checked."""

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


class EnteredCanaries(NamedTuple):
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
        """Of all canaries in a row: the index of the parameter, the piece, and the canary's sign."""
        for pieces, sign in zip(self.canaries, self.signs, strict=True):
            yield from ((index, piece, sign) for index, piece in pieces.items())


class Observation(NamedTuple):
    """What came out of one step of the optimizer.

    Attributes:
        products: (canaries, pieces) of the privatised sum, less the records' clipped gradients, with the pieces'
            directions, in units of the canary's clipping bound. With ghost clipping the records are in it.
        residue_and_records: the privatised sum less the records and the canaries, as correct clipping leaves them, and
            the sum of the records' clipped gradients: all parameters in a row, in the same units. None if the noise is
            not tested.
        noise_multiplier: of the optimizer when it added the noise, which is what accountants count.
    """

    products: NDArray[np.float64]
    residue_and_records: tuple[Tensor, Tensor] | None
    noise_multiplier: float


class AuditedSteps:
    r"""Puts canaries into the steps of an optimizer, reads what comes out, and takes the canaries out again.

    It hooks two places that Opacus's optimizers of all classes have:

    1. `optimizer.step`. Before it runs, the records' gradients are clipped and summed here, too, and the canary's row
       is added to `grad_sample` of the parameters (with ghost clipping, the clipped canary to `grad`). Then Opacus
       clips, sums, adds noise and scales: this is what is audited.
    2. `original_optimizer`. Before it steps, the privatised `grad` is read, and what a correctly clipped canary adds is
       subtracted from it. So the parameters are updated as without an audit, up to rounding.

    An observation is valid, since it depends on the canary's coin only by way of what Opacus released: the records' sum
    that is subtracted was computed without the canary.

    The canary enters the first physical batch of a logical step. One coin is tossed for each observation: a step that
    fails after its canary has entered is not tossed for again.

    Args:
        optimizer: Opacus's.
        kind: of the canary, or gradients, one for each parameter.
        options: those of the audit.
        on_step: called after each step with what entered and what came out.

    Attributes:
        parameters: that the optimizer trains.
        ghost: whether it clips without per-sample gradients.
        bounds: with clipping by layer those of the parameters, in units of C; otherwise None.
        taken: the number of steps so far. With `coins` and `canaries` it is all that the next ones depend on.
        batches: physical ones since the last observation.
        accumulated: how many `backward` gave gradients to the step.
    """

    def __init__(
        self,
        optimizer: DPOptimizer,
        kind: str | Sequence[Tensor],
        options: Options,
        on_step: Callable[[EnteredCanaries, Observation], None],
    ) -> None:
        self._optimizer, self._options, self._on_step = optimizer, options, on_step
        self.parameters: list[Tensor] = list(optimizer.params)
        self.ghost = isinstance(optimizer, DPOptimizerFastGradientClipping)
        self.bounds: list[float] | None = None
        if isinstance(optimizer, DPPerLayerOptimizer):
            whole = math.hypot(*optimizer.max_grad_norms)
            self.bounds = [float(bound) / whole for bound in optimizer.max_grad_norms]
        self.canaries = Canaries(kind, options.canary_norm, self.bounds, options.seed, options.anew, options.canaries)
        self.coins = stream(options.seed, "audit")
        self._entered: EnteredCanaries | None = None
        self._extended_rows: list[tuple[Tensor, Tensor, Tensor]] = []  # a parameter, with the canary's row, and without
        self._buffers: dict[int, Tensor] = {}
        self._earlier_sum: Tensor | None = None  # of the records' clipped gradients in this step's earlier batches
        self._records_sum: Tensor | None = None  # the same, and those of the batch that is about to be clipped
        self._observation: Observation | None = None
        self._removed = False
        given = kind if isinstance(kind, str) else [float(one.double().sum()) for one in kind]
        self._group = processes_of(optimizer, (options, given))
        self.taken, self.batches, self.accumulated = 0, 0, 1
        self._step_before = vars(optimizer).get("step")
        self._step = self._audited(optimizer.step)
        optimizer.step = self._step
        setattr(optimizer, MARK, True)

    def remove(self) -> None:
        """Leave the optimizer as it was. If others have wrapped its step since, theirs passes through."""
        if self._removed:
            return
        self._removed = True
        delattr(self._optimizer, MARK)
        if vars(self._optimizer).get("step") is self._step:
            if self._step_before is None:
                del self._optimizer.step
            else:
                self._optimizer.step = self._step_before

    def _audited(self, inner: Callable[..., Any]) -> MethodType:
        """The optimizer's `step`, with canaries."""

        # A method, because torch's schedulers wrap the function of a method.
        @functools.wraps(inner)
        def step(_: DPOptimizer, closure: Callable[[], Any] | None = None, *args: Any, **kwargs: Any) -> Any:
            if self._removed:
                return inner(closure, *args, **kwargs)

            def closure_and_canaries() -> Any:
                result = closure() if closure else None
                self._enter_canaries()
                return result

            self._observation = None
            # Hooked anew at each step: whoever steps the original optimizer besides is not audited.
            observing = self._optimizer.original_optimizer.register_step_pre_hook(self._observe_and_restore)
            try:
                if closure is None:
                    closure_and_canaries()
                result = inner(closure and closure_and_canaries, *args, **kwargs)
            finally:
                observing.remove()
                self._remove_rows()
            self._finish()
            return result

        return MethodType(step, self._optimizer)

    def _finish(self) -> None:
        entered, observation = self._entered, self._observation
        if entered is None or observation is None:
            if not getattr(self._optimizer, "_is_last_step_skipped", False):
                raise RuntimeError(
                    "optimizer.step() must let optimizer.original_optimizer step, whose gradients are audited, got one "
                    "that returned without it"
                )
            self._earlier_sum = self._records_sum  # Only now: a batch whose step fails comes again, and counts once.
            return
        self._entered, self._earlier_sum, self.batches = None, None, 0
        self.taken += 1
        self._on_step(entered, observation)

    def _enter_canaries(self) -> None:
        """Put the canary into the gradients that await the step, if it is not in this logical step already."""
        with torch.no_grad():
            gradients = self._gradients()
            self.accumulated = len(gradients[0]) if isinstance(gradients[0], list) else 1
            self.batches += 1
            bound = float(self._optimizer.max_grad_norm)
            if not self.ghost:
                clipped = clipped_sum(gradients, bound, self.bounds)
                self._records_sum = clipped if self._earlier_sum is None else self._earlier_sum + clipped
            if self._entered is not None:
                return
            if self.canaries.needs_energies:
                self.canaries.learn([self._of_all(_energy(gradient, self.ghost)) for gradient in gradients])
            # For each canary one coin for its world, and one for whether it is in the batch, as a record's is.
            tosses, draws = self.coins.random((self._options.canaries, 2)).T
            bits, present = (tosses < 0.5).astype(int), draws < self._options.canary_rate
            of_z_prime = -1 if self._options.adjacency == "substitute" else 0
            signs = np.where(present, np.where(bits == 1, of_z_prime, 1), 0)
            canaries = self.canaries.draw(self.parameters)
            self._entered = EnteredCanaries(bits.tolist(), signs.tolist(), canaries, bound)
            if self._group is not None and self.taken % self._group.size() != self._group.rank():
                return  # It is another process's turn.
            if self.ghost:  # Gradients are clipped and summed already: so the clipped canary is added to the sum.
                for index, piece, sign in self._entered.pieces:
                    if sign:
                        piece.add_to(gradients[index], sign * piece.clipped * bound)
                return
            rows = present if self._options.adjacency == "zero_out" else signs != 0  # z′ may be a row of zeros
            if rows.any():
                scale = self._options.canary_norm * bound
                self._append_rows([(canaries[row], float(signs[row]) * scale) for row in np.flatnonzero(rows)])

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
        return gradients

    def _append_rows(self, rows: Sequence[tuple[Pieces, float]]) -> None:
        """One more row of each parameter for each canary, with this norm in all.

        The pieces of a canary are written straight into its zeroed row: a Dirac is one number of a million.
        """
        for index, parameter in enumerate(self.parameters):
            held: Any = parameter.grad_sample  # type: ignore[attr-defined]
            old, *later = held if isinstance(held, list) else [held]
            new, back = self._with_room(index, old, len(rows))
            new[: len(old)], new[len(old) :] = old, 0
            new.__dict__.update(old.__dict__)  # Opacus marks tensors that it has used
            new.canary_rows = len(rows)  # type: ignore[attr-defined]
            for row, (pieces, norm) in zip(new[len(old) :], rows, strict=True):
                if index in pieces:
                    pieces[index].add_to(row, norm * pieces[index].share)
            parameter.grad_sample = [new, *later] if isinstance(held, list) else new  # type: ignore[attr-defined]
            self._extended_rows.append((parameter, new, back))

    def _with_room(self, index: int, old: Tensor, extra: int) -> tuple[Tensor, Tensor]:
        """A tensor with so many extra rows, and the one to put back when these are removed.

        On a CPU new pages of memory cost more than what is copied into them, so the buffer is kept between steps. On a
        GPU memory is what is scarce: the records' gradients are not kept twice.
        """
        rows = len(old) + extra
        if old.device.type != "cpu":
            new = old.new_empty((rows, *old.shape[1:]))
            return new, new[: len(old)]
        buffer = self._buffers.get(index)
        if buffer is None or len(buffer) < rows or buffer.dtype != old.dtype:
            buffer = self._buffers[index] = old.new_empty((rows, *old.shape[1:]))
        return buffer[:rows], old

    def _remove_rows(self) -> None:
        """Take the canary's rows off the gradients that Opacus has used."""
        for parameter, extended, back in self._extended_rows:
            held = getattr(parameter, "grad_sample", None)
            back.__dict__.update({name: value for name, value in vars(extended).items() if name != "canary_rows"})
            if held is extended:
                parameter.grad_sample = back  # type: ignore[attr-defined]
            elif isinstance(held, list) and held and held[0] is extended:
                held[0] = back
        self._extended_rows = []

    def _observe_and_restore(self, *_: Any) -> None:
        r"""Before the underlying optimizer steps: read the privatised gradients that it is about to use.

        They are the sum over the records of clip(gᵢ), plus ±clip(g) of each canary, plus noise σC·N(0, 1) in each
        coordinate, and with mean reduction all over the expected size of the batches. Less the first sum, and over C,
        the product with the direction u of the canary, ⟨u, clip(g)⟩ = C, is ±1 + σ·N(0, 1): what the claim is about.

        Then take out of `grad` what canaries add if they are clipped correctly.
        """
        if self._entered is None or self._observation is not None:
            return
        bound, scale = self._entered.max_grad_norm, 1.0
        if self._optimizer.loss_reduction == "mean":
            scale = float(self._optimizer.expected_batch_size) * self.accumulated
            scale *= getattr(self._optimizer, "world_size", 1)  # the expected size is that of one process
        with torch.no_grad():
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            released = _in_a_row(gradients).mul_(scale)
            records = self._records_sum
            if records is not None:
                released -= self._of_all(records)
            released /= bound
            parts = torch.split(released, [parameter.numel() for parameter in self.parameters])
            read = torch.stack([piece.product(parts[index]).double() for index, piece, _ in self._entered.pieces])
            products = read.cpu().numpy().reshape(len(self._entered.canaries), -1)
            if not np.isfinite(products).all():
                raise ValueError(
                    f"optimizer must have finite gradients, got {products[~np.isfinite(products)][0]} in a step: look "
                    "for what overflowed, or lower the learning rate"
                )
            for index, piece, sign in self._entered.pieces:
                if sign:
                    piece.add_to(parts[index].view(self.parameters[index].shape), -sign * piece.clipped)
                    piece.add_to(gradients[index], -sign * piece.clipped * bound / scale)
        residue_and_records = (released, records / bound) if self._options.test_noise and records is not None else None
        # Schedulers change the noise multiplier between batches: what was added now is what counts.
        self._observation = Observation(products, residue_and_records, float(self._optimizer.noise_multiplier))

    def _of_all(self, own: Tensor) -> Tensor:
        """The sum over all processes of a distributed optimizer, which takes the place of a process's own."""
        if self._group is not None:
            torch.distributed.all_reduce(own, group=self._group)
        return own


def processes_of(optimizer: DPOptimizer, asked: Any) -> torch.distributed.ProcessGroup | None:
    """The processes of a distributed optimizer, which must all ask the same of an audit; None if it has only one.

    The group is the audit's own: a process that does not audit must not take the others' sums for its gradients.
    """
    if not hasattr(optimizer, "world_size"):
        return None
    all_asked: list[Any] = [None] * torch.distributed.get_world_size()
    try:
        group: torch.distributed.ProcessGroup = torch.distributed.new_group(timeout=PATIENCE)
        torch.distributed.all_gather_object(all_asked, asked, group=group)
    except RuntimeError as error:
        raise RuntimeError(
            f"audit_optimizer must be called in all {len(all_asked)} processes, got no answer of some in {PATIENCE}"
        ) from error
    if different := [other for other in all_asked if other != asked]:
        raise ValueError(f"audit_optimizer must be given the same in all processes, got {asked} and {different[0]}")
    return group


def clipped_sum(gradients: list[Any], bound: float, bounds: list[float] | None) -> Tensor:
    """The sum of the records' clipped gradients: what clipping should leave of a batch, before noise.

    All parameters in a row.

    Args:
        gradients: of each parameter (records, *shape), or a list of such, of batches that are accumulated.
        bound: C.
        bounds: of each parameter, in units of C; None for flat clipping.
    """
    rows = [_precise(torch.cat(batch) if isinstance(batch, list) else batch) for batch in gradients]
    if len(counts := {len(records) for records in rows}) > 1:
        raise ValueError(
            f"optimizer must have gradients of the same records for all parameters, got {counts} of them: layers take "
            "each word of packed sequences for a record, so pad sequences instead"
        )
    flat = [records.reshape(len(records), math.prod(records.shape[1:])) for records in rows]
    norms = torch.stack([torch.linalg.vector_norm(records, dim=1) for records in flat])
    if bounds is None:
        factors = (bound / norms.norm(dim=0)).clamp(max=1).expand(len(rows), -1)
    else:
        factors = (bound * norms.new_tensor(bounds)[:, None] / norms).clamp(max=1)
    clipped = zip(factors, rows, strict=True)
    sums = (torch.tensordot(factor.to(records.dtype), records, dims=1) for factor, records in clipped)
    return _in_a_row(sums)


def _in_a_row(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([_precise(part).reshape(-1) for part in parts])


def _precise(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _energy(gradients: Any, ghost: bool) -> Tensor:
    """How large the gradients of each coordinate are."""
    if ghost:
        return gradients.abs()  # type: ignore[no-any-return]
    parts = gradients if isinstance(gradients, list) else [gradients]
    return torch.stack([part.square().sum(dim=0) for part in parts]).sum(dim=0)
