"""The outputs of trained models, as a black box gives them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dpsub._core import checks
from dpsub.models.interface import Model, check_model, final_weights, outputs_of
from dpsub.trainers import devices
from dpsub.trainers.bank import block_size

NUMBERS_AT_ONCE = 2**22  # outputs in one part


@checks.checked(says=partial(checks.choice, options=("logits", "probabilities", "labels")))
def answers_of(
    model: Model, weights: ArrayLike | Tensor, x: ArrayLike | Tensor, *, says: str, device: str = "auto"
) -> NDArray[Any]:
    """The answers of a black box about given records, for each of many trained models.

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
    records = checks.array("x", x, shape=("records", *model.input_shape), kind=np.float32)
    where = devices.device(device)
    n, classes = len(records), model.classes
    shape = (len(trained), n) if says == "labels" else (len(trained), n, classes)
    answers: NDArray[Any] = np.empty(shape, np.int64 if says == "labels" else np.float32)
    prepared, asked = model.prepared(where, 1.0), torch.tensor(records, device=where)
    models_at_once = min(len(trained), block_size(model))
    records_at_once = max(1, NUMBERS_AT_ONCE // (models_at_once * classes))
    with torch.no_grad(), devices.matmul_precision("highest"):
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
                answers[runs, part] = outputs.cpu().numpy()
    return answers
