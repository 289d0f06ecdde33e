"""The crafter of records for audits of single steps, and the checks of its options."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from dpsub._core import DPSGD, checks
from dpsub._core.random_streams import stream
from dpsub.crafters.record_canaries import check_not_private
from dpsub.crafters.record_descents import BALLS, Ascent, Turning, mean_gradient
from dpsub.crafters.recrafted_records import RecordEachStep
from dpsub.crafters.reference_model import differentiable_by_records
from dpsub.data import Task
from dpsub.models import Model, check_fits, losses_of

RECORDS = ("mislabeled", "blank", "adversarial", "crafted")
OPTIONS = {
    "steps": ("adversarial", "crafted"),
    "learning_rate": ("adversarial", "crafted"),
    "radius": ("adversarial",),
    "ball": ("adversarial",),
    "target": ("mislabeled", "adversarial", "crafted"),
}
STEPS = {"adversarial": 10, "crafted": 20}
RADII = {"linf": 8 / 255, "l2": 128 / 255}  # as is usual for pixels from 0 to 1
CRAFTING_RATE = 10.0


def record_each_step(
    task: Task,
    model: Model,
    spec: DPSGD,
    *,
    kind: str,
    seed: int,
    steps: int | None = None,
    learning_rate: float | None = None,
    radius: float | None = None,
    ball: str | None = None,
    target: int | None = None,
) -> RecordEachStep:
    r"""A record canary that is crafted anew at each step, for each model as it is before the step.

    It starts from a record that is not private: an auxiliary one, or a test record if the task has no auxiliary ones.
    Under substitution z′ is the same record with the label whose clipped gradient at the current model is farthest from
    z's. The paper has no such pair; it audits z against nothing.

    Args:
        task: the private records, one of which the canary replaces, and the others to start from.
        model: the architecture to be audited.
        spec: checked only. Gradients are clipped to the bound of the training that is audited.
        kind: "mislabeled": a record with a random wrong label. "blank": all features 0, and a random label.
            "adversarial": projected gradient ascent on the loss of a record's own label. "crafted": a record with its
            own label, changed until its gradient is as orthogonal as possible to the mean gradient of all records that
            are not private (the paper's Algorithm 3). The private ones' gradients stay unseen.
        seed: for the draws of each step and the choice of the record to replace.
        steps: ≥ 1, of "adversarial" (by default 10) and "crafted" (by default 20). The paper gives none of these
            numbers. "crafted" keeps the best of its steps, where Algorithm 3 returns the last.
        learning_rate: > 0. Of "adversarial": how far a step moves the record, by default a quarter of the radius. Of
            "crafted": η, by default 10.
        radius: > 0, of the ball that "adversarial" stays in. By default the features' range times 8/255 for "linf" and
            128/255 for "l2". The features are not kept within their range.
        ball: "linf" (the default) or "l2", of "adversarial".
        target: the index of the record to start from, among the auxiliary (or test) records. By default a random one at
            each step.

    Returns:
        A `dpsub.trainers.StepCanary` under substitution. `against_nothing(adjacency="add_remove")` is the paper's.
        Details: `kind`, `seed`, `records`, the number of records to start from, and what was chosen above, as
        `crafting_steps`, `crafting_rate`, `ball`, `radius` and `target`. Each step draws from a stream of its own,
        which is independent of the audit's streams.

    Raises:
        ValueError: if an argument is out of range or not one of this kind; if there are neither auxiliary nor test
            records, or some of them are private ones; if the model cannot be differentiated by its records.

    Source: *Tight Auditing*, section 5.3, Algorithm 3 and appendix C.3.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=20)
    >>> spec = DPSGD(1.0, 0.5, 1.0, 10, 0.1)
    >>> canary = crafters.record_each_step(task, models.linear(task), spec, kind="crafted", seed=0)
    >>> canary.details["crafting_steps"], canary.details["crafting_rate"]
    (20, 10.0)
    """
    check_fits(model, task)
    if not isinstance(spec, DPSGD):
        raise ValueError(f"spec must be a dpsub.DPSGD, got a {type(spec).__name__}")
    checks.choice("kind", kind, RECORDS)
    seed = checks.whole("seed", seed, at_least=0)
    x, y = np.zeros((1, *task.x_train.shape[1:]), dtype=np.float32), np.zeros(1, dtype=np.int64)
    if kind != "blank":
        x, y = _not_private(task)
    given = {"steps": steps, "learning_rate": learning_rate, "radius": radius, "ball": ball, "target": target}
    for name, value in given.items():
        if value is not None and kind not in OPTIONS[name]:
            raise ValueError(f"{name} must be left out for kind {kind!r}, got {value!r}")
    if target is not None:
        target = checks.whole("target", target, at_least=0, at_most=len(y) - 1)
    change = _change(kind, float(np.ptp(x)), steps, learning_rate, radius, ball)
    if change is not None:
        _check_differentiable(model, x, y, change)
    slot = int(stream(seed, "crafter").integers(len(task.y_train)))
    return RecordEachStep(kind, x, y, task.num_classes, change, target, seed, slot, task.fingerprint)


def _not_private(task: Task) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The records that an adversary starts from."""
    part = "aux" if len(task.y_aux) else "test"
    if not len(task.y_test) and part == "test":
        raise ValueError(
            "task must have auxiliary or test records to start from, got neither: give x_aux and y_aux, or craft with "
            "kind='blank'"
        )
    check_not_private(task, part)
    return (task.x_aux, task.y_aux) if part == "aux" else (task.x_test, task.y_test)


def _change(
    kind: str, span: float, steps: int | None, learning_rate: float | None, radius: float | None, ball: str | None
) -> Ascent | Turning | None:
    if kind not in STEPS:
        return None
    steps = checks.whole("steps", STEPS[kind] if steps is None else steps)
    rate = None if learning_rate is None else checks.real("learning_rate", learning_rate, above=0)
    if kind == "crafted":
        return Turning(steps, CRAFTING_RATE if rate is None else rate)
    ball = checks.choice("ball", "linf" if ball is None else ball, BALLS)
    if radius is None and not span > 0:
        raise ValueError("radius must be given where all features of all records are equal, got None")
    radius = checks.real("radius", RADII[ball] * span if radius is None else radius, above=0)
    return Ascent(steps, radius / 4 if rate is None else rate, radius, ball)


def _check_differentiable(model: Model, x: NDArray[np.float32], y: NDArray[np.int64], change: Ascent | Turning) -> None:
    with torch.random.fork_rng(devices=[]):  # a new module may draw random weights
        module = model.module()
    losses, first = losses_of(model), (torch.tensor(x[:1]), torch.tensor(y[:1]))
    with differentiable_by_records():
        if isinstance(change, Ascent):
            replace(change, steps=1)(module, losses, first[0][0], int(y[0]))
        else:
            away_from = mean_gradient(module, losses, *first)
            replace(change, steps=1)(module, losses, first[0][0], int(y[0]), away_from)
