"""Adversarial samples: records at which the losses of two worlds' final models are far apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dpsub._core import Record, checks
from dpsub._core.frozen import Frozen, read_only, read_only_mapping
from dpsub.crafters.reference_model import snapshots
from dpsub.crafters.sample_losses import BY_NAME, LossesAtRecord, in_deviations, need_spread
from dpsub.models import Model
from dpsub.models.interface import check_model, final_weights, numbers
from dpsub.trainers.devices import NAMES, matmul_precision
from dpsub.trainers.devices import device as device_of

MOMENTS = 10
OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
MOST = 1e30  # a larger rate or margin overflows float32
Limits = tuple[NDArray[np.float32], NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class AdversarialSample(Frozen):
    """A record whose loss tells two worlds' final models apart. Its arrays are read-only copies.

    Attributes:
        x: the features, float32.
        y: the label.
        y_prime: None, or another label: the loss is that of y minus that of y_prime.
        details: how it was crafted: `loss`, `margin`, `steps`, `learning_rate`, `optimizer`, and `runs`, on how many
            models.
        trace: `loss` (steps + 1,), what crafting minimised, and `separation` (steps + 1,), the mean loss of the models
            trained without z minus that of those with z, in pooled standard deviations. Both are of the models that it
            was crafted on, so they overstate what it shows on others. `x` (moments, …), the sample after `step`
            (moments,) steps.
        device: where `scores` computes: "auto" for CUDA if there is any, "cpu" or "cuda".
    """

    x: NDArray[np.float32]
    y: int
    y_prime: int | None = None
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    trace: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    device: str = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", read_only(numbers("x", self.x)))
        y, y_prime = two_labels(self.y, self.y_prime)
        object.__setattr__(self, "y", y)
        object.__setattr__(self, "y_prime", y_prime)
        checks.choice("device", self.device, NAMES)
        checks.check_fields(self, details=read_only_mapping, trace=read_only_mapping)

    def curves(
        self, model: Model, weights: ArrayLike | Tensor, bits: ArrayLike
    ) -> dict[str, NDArray[np.int64] | NDArray[np.float64]]:
        """What crafting minimised, and the separation, on any models at the moments that the trace keeps.

        On models other than those it was crafted on, this is what crafting gained.

        Args:
            model: the architecture.
            weights: (runs, parameters), final weights.
            bits: (runs,): 0 if trained with z, 1 if with z′ or with nothing; two models or more of each.

        Returns:
            `step`, `loss` and `separation`, (moments,) each, as in the trace.

        Raises:
            ValueError: as in `scores`; if the bits do not fit; or if the sample was not crafted, and so has no trace.
        """
        if not {"x", "step"} <= self.trace.keys() or not {"loss", "margin"} <= self.details.keys():
            raise ValueError("trace must hold the moments of crafting, as adversarial_sample records them, got none")
        criterion, margin = BY_NAME[str(self.details["loss"])], float(self.details["margin"])
        moments = [replace(self, x=x) for x in self.trace["x"]]
        losses = [-torch.tensor(moment.scores(model, weights)) for moment in moments]
        with_z = torch.tensor(trained_with_z(bits, len(losses[0])))
        worlds = [(at_moment[with_z], at_moment[~with_z]) for at_moment in losses]
        return {
            "step": np.asarray(self.trace["step"]),
            "loss": np.array([float(criterion(*two, margin)) for two in worlds]),
            "separation": np.array([in_deviations(*two) for two in worlds]),
        }

    def scores(self, model: Model, weights: ArrayLike | Tensor) -> NDArray[np.float32]:
        """Minus the loss of each model at this sample. A higher score speaks for z.

        Args:
            model: the architecture.
            weights: (runs, parameters), the final weights of models. They may be others than it was crafted on.

        Returns:
            (runs,) float32.

        Raises:
            ValueError: if the sample does not fit the model, `weights` has another shape or is not finite, or a model's
                loss is not finite.
        """
        check_model(model)
        check_sample(model, self.x, self.y, self.y_prime)
        where = device_of(self.device)
        checked = final_weights(model, weights)
        losses_of_all = LossesAtRecord(model, checked, self.y, self.y_prime, where, keep=False)
        with matmul_precision("highest"), torch.no_grad():
            losses = losses_of_all(torch.tensor(self.x, device=where))
        if not torch.isfinite(losses).all():
            many = int((~torch.isfinite(losses)).sum())
            raise ValueError(f"weights must give finite losses at the sample, got {many} that are not")
        return np.asarray(-losses.cpu().numpy(), dtype=np.float32)


def adversarial_sample(
    model: Model,
    weights: ArrayLike | Tensor,
    bits: ArrayLike,
    *,
    start: Record | tuple[ArrayLike, int],
    y_prime: int | None = None,
    loss: str = "ade",
    margin: float = 0.2,
    steps: int = 10,
    learning_rate: float = 0.05,
    optimizer: str = "adam",
    bounds: tuple[ArrayLike, ArrayLike] | None = None,
    device: str = "auto",
) -> AdversarialSample:
    r"""Craft a record at which models trained with z have a lower loss than the others.

    With M′ the models trained with z, M the others, and l a model's loss at (x, y), or that minus its loss at (x, y′),
    the losses to minimise over x are

    - "ude": mean l(M′) − mean l(M);
    - "ade": the mean over M′ of max(0, l(M′) − mean l(M) + margin);
    - "fisher": ∓(mean l(M) − mean l(M′))²/(v + v′), with the variances v, v′ of l(M), l(M′);
    - "bhattacharyya": ∓(¼(mean l(M) − mean l(M′))²/(v + v′) + ½ log((v + v′)/(2√(vv′)))), of two normals.

    The last two are negative where M′ has the lower mean loss and positive otherwise, so that worlds which are apart in
    the wrong direction are brought together first. "bhattacharyya" rewards a difference of variances, too: start it
    where the means differ, such as at the canary.

    The result is x after the last step. On the models that it was crafted on it finds chance differences, too. Only its
    scores of other models are evidence.

    Args:
        model: the architecture.
        weights: (runs, parameters), the final weights of models, such as the variable "weights" of an audit.
        bits: (runs,): 0 if trained with z, 1 if with z′ or with nothing; two models or more of each.
        start: the record (x, y) to start from: the canary, or a blank record. y does not change.
        y_prime: None, or another label y′, whose loss is subtracted. Where z′ is z with another label, give that of z′.
        loss: "ude", "ade", "fisher" or "bhattacharyya".
        margin: α ≥ 0 of "ade", in the unit of the loss. The others do not use it.
        steps: how many; 0 leaves x as it is.
        learning_rate: η > 0.
        optimizer: "adam", with torch's defaults, or "sgd", without momentum.
        bounds: (low, high), to which x is clamped after each step: numbers, or arrays that broadcast to x. None: x is
            not clamped.
        device: "auto" for CUDA if there is any, "cpu" or "cuda".

    Returns:
        The sample. `scores(model, weights)` scores models with it.

    Raises:
        ValueError: if an argument is out of range or does not fit the model; if at `start` losses are not finite or,
            for "fisher" and "bhattacharyya", all losses of a world are equal; if crafting diverges; or if the model's
            outputs cannot be differentiated by the record.

    Source: *Adversarial Sample-Based Approach*, section 4; its second version (arXiv 2412.01756) for "fisher" and
    "bhattacharyya".

    >>> import numpy as np
    >>> from dpsub import crafters, data, models
    >>> model = models.linear(data.from_arrays([[0.0, 3.0], [1.0, 2.0]], [0, 1]))
    >>> bits = np.arange(40) % 2
    >>> weights = np.random.default_rng(0).normal(size=(40, model.parameters)) - bits[:, None] * [1, 0, 0, 0, 0, 0]
    >>> sample = crafters.adversarial_sample(model, weights, bits, start=([0.0, 0.0], 0), loss="ude", bounds=(-1, 1))
    >>> bool(sample.x[0] > 0), sample.scores(model, weights[:3]).shape
    (True, (3,))
    """
    check_model(model)
    margin, steps, learning_rate = check_settings(loss, margin, steps, learning_rate, optimizer)
    checked = final_weights(model, weights)
    with_z = trained_with_z(bits, len(checked))
    first = record("start", start)
    check_record("start", model, first)
    _, y_prime = two_labels(first.y, y_prime, classes=model.classes)
    ends_of_x = limits(bounds, first.x)
    where = device_of(device)

    criterion = BY_NAME[loss]
    x = torch.tensor(first.x, device=where, requires_grad=True)
    descent = OPTIMIZERS[optimizer]([x], lr=learning_rate)
    own = torch.tensor(with_z, device=where)
    ends = None if ends_of_x is None else [torch.tensor(end, device=where) for end in ends_of_x]
    moments = {0} | snapshots(steps, MOMENTS)
    values, separation, seen = [], [], []
    with matmul_precision("highest"), torch.enable_grad():
        losses_of_all = LossesAtRecord(model, checked, first.y, y_prime, where, keep=True)
        for step in range(steps + 1):
            losses = losses_of_all(x)
            found = losses.detach().requires_grad_()
            value = criterion(found[own], found[~own], margin)
            if not (torch.isfinite(value) and torch.isfinite(x).all()):
                raise _not_finite(step, learning_rate)
            if not step and need_spread(loss) and not found[own].var() + found[~own].var() > 0:
                raise ValueError(
                    f"start must be a record at which the losses of a world's models differ, for loss {loss!r}, got "
                    "one at which all are equal: start from another record"
                )
            values.append(float(value.detach()))
            separation.append(in_deviations(found[own].detach(), found[~own].detach()))
            if step in moments:
                seen.append(x.detach().cpu().numpy().copy())
            if step < steps:
                (factors,) = torch.autograd.grad(value, found)
                x.grad = losses_of_all.gradient(x, losses, factors)
                if x.grad is None:
                    raise ValueError(f"model must have outputs that can be differentiated by the record, got {model!r}")
                descent.step()
                if ends is not None:
                    x.data.clamp_(*ends)
    return AdversarialSample(
        x=seen[-1],
        y=first.y,
        y_prime=y_prime,
        details={
            "loss": loss,
            "margin": margin,
            "steps": steps,
            "learning_rate": learning_rate,
            "optimizer": optimizer,
            "runs": len(checked),
        },
        trace={
            "loss": np.array(values, dtype=np.float32),
            "separation": np.array(separation, dtype=np.float32),
            "x": np.stack(seen),
            "step": np.array(sorted(moments)),
        },
        device=device,
    )


def _not_finite(step: int, learning_rate: float) -> ValueError:
    if step:
        return ValueError(f"learning_rate must be small enough that crafting does not diverge, got {learning_rate:g}")
    return ValueError("start must be a record at which all models' losses are finite, got one at which some are not")


def check_settings(loss: Any, margin: Any, steps: Any, learning_rate: Any, optimizer: Any) -> tuple[float, int, float]:
    """Check how a sample is crafted. Returns the margin, steps and learning rate as Python's numbers."""
    checks.choice("loss", loss, tuple(BY_NAME))
    checks.choice("optimizer", optimizer, tuple(OPTIMIZERS))
    return (
        checks.real("margin", margin, at_least=0, at_most=MOST),
        checks.whole("steps", steps, at_least=0),
        checks.real("learning_rate", learning_rate, above=0, at_most=MOST),
    )


def trained_with_z(bits: object, runs: int) -> NDArray[np.bool_]:
    """(runs,): which models were trained with z."""
    checks.no_mask("bits", bits)
    try:
        array = np.asarray(bits.detach().cpu() if isinstance(bits, Tensor) else bits)
        if array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"bits must be 0 (trained with z) or 1, got {bits!r}") from None
    if array.shape != (runs,):
        raise ValueError(f"bits must have shape ({runs},), one bit for each model, got {array.shape}")
    with_z = array == 0
    if min(with_z.sum(), runs - with_z.sum()) < 2:
        raise ValueError(
            f"bits must hold two models or more of each world, got {with_z.sum()} trained with z and "
            f"{runs - with_z.sum()} others"
        )
    return np.asarray(with_z)


def record(name: str, value: object) -> Record:
    """A record (x, y), read-only."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError(f"{name} must be a record, the tuple (x, y), got a {type(value).__name__}")
    x = read_only(numbers(f"{name}'s features", value[0]))
    return Record(x, checks.whole(f"{name}'s label", value[1], at_least=0))


def check_record(name: str, model: Model, value: Record) -> None:
    """Check that a record has a model's shape and one of its labels."""
    if value.x.shape != model.input_shape:
        raise ValueError(
            f"{name} must have features of shape {model.input_shape}, as {model!r} does, got {value.x.shape}"
        )
    checks.whole(f"{name}'s label", value.y, at_least=0, at_most=model.classes - 1)


def two_labels(y: object, y_prime: object, *, classes: int | None = None) -> tuple[int, int | None]:
    """A label, and another one or None, as Python's numbers."""
    most = None if classes is None else classes - 1
    own = checks.whole("y", y, at_least=0, at_most=most)
    if y_prime is None:
        return own, None
    other = checks.whole("y_prime", y_prime, at_least=0, at_most=most)
    if other == own:
        raise ValueError(f"y_prime must be None or a label other than y, got {other}, which is y")
    return own, other


def check_sample(model: Model, x: NDArray[np.float32], y: int, y_prime: int | None) -> None:
    """Check that a model takes a sample's features, and has its labels."""
    if x.shape != model.input_shape or not 0 <= y < model.classes or not (y_prime or 0) < model.classes:
        labels = f"label {y}" if y_prime is None else f"labels {y} and {y_prime}"
        raise ValueError(f"model must take records like the sample, of shape {x.shape} with {labels}, got {model!r}")


def limits(bounds: object, start: NDArray[np.float32]) -> Limits | None:
    """The bounds, each broadcast to the features of the start, which are within them."""
    if bounds is None:
        return None
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        raise ValueError(f"bounds must be None or a pair (low, high), got {bounds!r}")
    ends = [numbers("bounds", end) for end in bounds]
    try:
        low, high = (np.broadcast_to(end, start.shape).copy() for end in ends)
    except ValueError:
        shapes = " and ".join(str(end.shape) for end in ends)
        raise ValueError(
            f"bounds must be numbers or broadcast to the start's shape {start.shape}, got {shapes}"
        ) from None
    if not (low <= high).all():
        raise ValueError("bounds must be (low, high) with low <= high everywhere, got some that are not")
    if outside := int(((start < low) | (start > high)).sum()):
        raise ValueError(
            f"start must be within bounds, got {outside} of {start.size} features outside: clip them first, or widen "
            "the bounds"
        )
    return low, high
