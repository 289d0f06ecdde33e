"""What a box says of trained models: logits, probabilities or labels for records, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dpsub._core import checks
from dpsub.models import Model, outputs_of
from dpsub.models.interface import check_model, final_weights, numbers
from dpsub.trainers.blocks import block_size
from dpsub.trainers.devices import device as device_of
from dpsub.trainers.devices import matmul_precision

SAYS = ("logits", "probabilities", "labels")
NUMBERS_AT_ONCE = 2**22  # outputs in one part
SUM_WITHIN = 1e-3  # of 1: boxes round


def answers_of(
    model: Model, weights: ArrayLike | Tensor, x: ArrayLike | Tensor, *, says: str, device: str = "auto"
) -> NDArray[Any]:
    """What a black box says of trained models.

    Args:
        model: the architecture.
        weights: (runs, parameters), the flat parameters of trained models, such as the variable "weights" of an audit.
        x: (n, *input_shape), the records that the models are asked about.
        says: "logits", "probabilities", or "labels" for the most likely label alone.
        device: "auto", "cpu" or "cuda".

    Returns:
        Logits or probabilities (runs, n, classes) float32, or labels (runs, n) int64. A small probability may round
        to 0.

    Raises:
        ValueError: if an argument is out of range, or shapes do not fit.

    Source: *Adversarial Sample-Based Approach*, section 5.3.

    >>> import torch
    >>> from dpsub import data, models, trainers
    >>> task = data.digits(n_train=50)
    >>> model = models.mlp(task, (8,))
    >>> weights = model.initial_parameters(3, torch.Generator())
    >>> trainers.answers_of(model, weights, task.x_train, says="labels").shape
    (3, 50)
    """
    check_model(model)
    trained = final_weights(model, weights)
    records = checked_records("x", x, model)
    checks.choice("says", says, SAYS)
    where = device_of(device)
    n, classes = len(records), model.classes
    found: NDArray[Any] = (
        np.empty((len(trained), n), np.int64) if says == "labels" else np.empty((len(trained), n, classes), np.float32)
    )
    prepared, asked = model.prepared(where, 1.0), torch.tensor(records, device=where)
    models_at_once = min(len(trained), block_size(model))
    records_at_once = max(1, NUMBERS_AT_ONCE // (models_at_once * classes))
    with torch.no_grad(), matmul_precision("highest"):
        for first in range(0, len(trained), models_at_once):
            runs = slice(first, first + models_at_once)
            theta = torch.tensor(trained[runs], device=where)
            for start in range(0, n, records_at_once):
                part = slice(start, start + records_at_once)
                outputs = outputs_of(prepared, theta, asked[part])
                if says == "probabilities":
                    outputs = torch.softmax(outputs, dim=2)
                elif says == "labels":
                    outputs = outputs.argmax(dim=2)
                found[runs, part] = outputs.cpu().numpy()
    return found


def checked_records(name: str, x: ArrayLike | Tensor, model: Model) -> NDArray[np.float32]:
    """Records as float32 (n, *input_shape), finite, at least one."""
    found = numbers(name, x)
    if found.ndim == 0 or found.shape[1:] != model.input_shape or not len(found):
        shape = ", ".join(map(str, model.input_shape))
        raise ValueError(f"{name} must have shape (n, {shape}), one record or more, got {found.shape}")
    return found


def checked_answers(
    answers: ArrayLike | Tensor, says: str, records: int, classes: int
) -> NDArray[np.float32] | NDArray[np.int64]:
    """Answers as float32 (runs, n, classes), or as int64 (runs, n) if they are labels."""
    found = numbers("answers", answers)
    shape = (records,) if says == "labels" else (records, classes)
    if found.ndim != len(shape) + 1 or found.shape[1:] != shape or not len(found):
        expected = ", ".join(map(str, shape))
        raise ValueError(f"answers must have shape (runs, {expected}) where a box says {says}, got {found.shape}")
    if says == "labels":
        if not ((found == np.floor(found)) & (found >= 0) & (found < classes)).all():
            raise ValueError(
                f"answers must be labels, whole numbers from 0 to {classes - 1}, got {found.min()} to {found.max()}"
            )
        return found.astype(np.int64)
    if says == "probabilities":
        if found.min() < 0:
            raise ValueError(
                f"answers must be probabilities, got {found.min():g}: say that they are logits if they are"
            )
        sums = found.sum(axis=2, dtype=np.float64)
        if (worst := np.abs(sums - 1).max()) > SUM_WITHIN:
            raise ValueError(
                f"answers must be probabilities that sum to 1 over the {classes} classes, got a sum that is "
                f"{worst:.2g} off: divide them by their sums"
            )
    return found
