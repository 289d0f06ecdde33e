"""Adversarial samples: records at which the losses of two worlds' final models are far apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dpsub._core import Record, checks
from dpsub._core.frozen import Frozen, read_only
from dpsub.crafters.descent import descend, moments
from dpsub.crafters.sample_losses import OBJECTIVES, losses_at, separation, thetas_of
from dpsub.models import Model
from dpsub.models.interface import check_model, final_weights, numbers
from dpsub.trainers.devices import NAMES, matmul_precision
from dpsub.trainers.devices import device as device_of

PATH_POINTS = 10  # steps at which the trace keeps the sample, beside the start
OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
SETTINGS: Mapping[str, checks.Check] = {
    "loss": partial(checks.choice, options=tuple(OBJECTIVES)),
    "margin": partial(checks.real, at_least=0),
    "optimizer": partial(checks.choice, options=tuple(OPTIMIZERS)),
    "device": partial(checks.choice, options=NAMES),
}
"""The checks of the options of `adversarial_sample` that are its own."""


@dataclass(frozen=True, eq=False)
class AdversarialSample(Frozen):
    """A record whose loss tells two worlds' final models apart.

    Attributes:
        x: the features, a read-only float32 copy.
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

    CHECKS: ClassVar[Mapping[str, checks.Check]] = {
        "x": lambda name, value: read_only(numbers(name, value)),
        "y": partial(checks.whole, at_least=0),
        "y_prime": lambda name, value: None if value is None else checks.whole(name, value, at_least=0),
        "device": SETTINGS["device"],
    }

    x: NDArray[np.float32]
    y: int
    y_prime: int | None = None
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    trace: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)
    device: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.y_prime == self.y:
            raise ValueError(f"y_prime must be None or a label other than y, got {self.y}, which is y")

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
        check_sample(model, self.x, self.y, self.y_prime)
        device = device_of(self.device)
        model, x = model.prepared(device, 1.0), torch.tensor(self.x, device=device)
        with matmul_precision("highest"), torch.no_grad():
            parts = thetas_of(model, final_weights(model, weights), device)
            losses = torch.cat([losses_at(model, [theta], x, self.y, self.y_prime) for theta in parts])
        return numbers("the models' scores at the sample", -losses)


@checks.checked("steps", "learning_rate", **SETTINGS)
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
        steps: how many.
        learning_rate: η > 0.
        optimizer: "adam", with torch's defaults, or "sgd", without momentum.
        bounds: (low, high), to which x is clamped after each step: numbers, or arrays that broadcast to x. None: x is
            not clamped.
        device: "auto" for CUDA if there is any, "cpu" or "cuda".

    Returns:
        The sample. `scores(model, weights)` scores models with it.

    Raises:
        ValueError: if an argument is out of range or does not fit the model; if at `start` losses are not finite; if
            crafting diverges; or if the model's outputs cannot be differentiated by the record.

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
    sample = starting_sample(start, y_prime, bounds, device)
    check_sample(model, sample.x, sample.y, sample.y_prime)
    weights = final_weights(model, weights)
    where = device_of(device)
    with_z = torch.tensor(trained_with_z(bits, len(weights)), device=where)
    model = model.prepared(where, 1.0)
    thetas = list(thetas_of(model, weights, where))
    point = torch.tensor(sample.x, device=where)
    optimize = OPTIMIZERS[optimizer]([point], lr=learning_rate)
    ends = None if bounds is None else [torch.tensor(numbers("bounds", end), device=where) for end in bounds]

    def objective(x: Tensor) -> tuple[Tensor, Tensor]:
        losses = losses_at(model, thetas, x, sample.y, sample.y_prime)
        return OBJECTIVES[loss](losses[with_z], losses[~with_z], margin), losses

    def move(x: Tensor, slope: Tensor) -> Tensor:
        point.grad = slope
        optimize.step()
        return point if ends is None else point.clamp_(*ends)

    values, separations, seen, path = [], [], moments(steps, PATH_POINTS), []
    with matmul_precision("highest"), torch.enable_grad():
        for step, x, value, losses in descend(point, objective, steps, learning_rate, move):
            of_z, of_others = losses[with_z], losses[~with_z]
            values.append(value)
            separations.append(separation(of_z, of_others))
            if step in seen:
                path.append(x.cpu().numpy().copy())
    details: dict[str, float | int | str] = {"loss": loss, "optimizer": optimizer, "runs": len(weights)}
    details |= {"margin": margin, "steps": steps, "learning_rate": learning_rate}
    return replace(
        sample,
        x=path[-1],
        details=details,
        trace={
            "loss": np.array(values, dtype=np.float32),
            "separation": np.array(separations, dtype=np.float32),
            "x": np.stack(path),
            "step": seen,
        },
    )


def starting_sample(start: Any, y_prime: int | None, bounds: Any, device: str = "auto") -> AdversarialSample:
    """The record to start from as a sample, with y_prime and within the bounds, (low, high) or None.

    Raises:
        ValueError: if they do not fit each other.
    """
    if not isinstance(start, tuple) or len(start) != 2:
        raise ValueError(f"start must be a record, the tuple (x, y), got a {type(start).__name__}")
    sample = AdversarialSample(*start, y_prime, device=device)
    if bounds is not None:
        low, high = (numbers("bounds", end) for end in bounds)
        outside = (sample.x < low) | (sample.x > high)
        if outside.shape != sample.x.shape or outside.any():
            raise ValueError(
                f"bounds must be (low, high), numbers or arrays that broadcast to the start's shape {sample.x.shape}, "
                f"and hold the start, got {outside.sum()} of its features outside: clip them first, or widen the bounds"
            )
    return sample


def trained_with_z(bits: object, runs: int) -> NDArray[np.bool_]:
    """(runs,): which models were trained with z."""
    with_z = checks.array("bits", bits, shape=(runs,), kind=np.int64, at_least=0, at_most=1) == 0
    if min(with_z.sum(), runs - with_z.sum()) < 2:
        raise ValueError(
            f"bits must hold two models or more of each world, got {with_z.sum()} trained with z and "
            f"{runs - with_z.sum()} others"
        )
    return np.asarray(with_z)


def check_sample(model: Model, x: NDArray[np.float32], y: int, y_prime: int | None) -> None:
    """Check that a model takes a sample's features, and has its labels."""
    check_model(model)
    if x.shape != model.input_shape or max(y, y_prime or 0) >= model.classes:
        labels = f"label {y}" if y_prime is None else f"labels {y} and {y_prime}"
        raise ValueError(f"model must take records like the sample, of shape {x.shape} with {labels}, got {model!r}")
