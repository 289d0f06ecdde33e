"""Observers: what an audit records of models in training.

To record something else, write a subclass of `Observer`: `audit(metrics=[MyObserver()])` takes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar
from zlib import crc32

import torch
from torch import Tensor

from dpsub._core import checks
from dpsub._core.datasets import LONG_NAMES
from dpsub.data import Task
from dpsub.models.identity import Identity, is_installed
from dpsub.trainers import Bank


class Watch:
    """An observer of one bank: what `look` returns after each observed step. Its first dimension is the observed runs.

    To look before the step, too, override `before_step` and `after_step`, which are called around each observed step.

    `bank.theta` holds the parameters of all models, in the layout of `bank.model`; `bank.model.flat(bank.theta)` has
    them as (runs, parameters).
    """

    def __init__(self, look: Callable[[], Tensor]) -> None:
        self._look = look

    def before_step(self) -> None:
        """Record what the step will change, if that is needed."""

    def after_step(self) -> Tensor:
        """The observed values."""
        return self._look()


class Observer(ABC):
    """One kind of observation. It becomes a variable of the audit's dataset.

    Attributes:
        name: of the variable, stored with the audit. No two observers may share one.
        long_name: the variable in words, with its unit.
        dims: ("run", "step") for one number for each model and observed step; ("run", "parameter") for the parameters
            after the last step. If the first dimension is not "run", only the first `most_runs` models are observed,
            and that dimension has their numbers as its coordinate.
        most_runs: how many models are observed at most; None for all.
        all_coordinates: whether models have to train in all their coordinates. True if the observer uses more than
            scores, the slot's own gradients and the records' logits (`Model.within_span`).
        copies: how many tensors with the size of all parameters the observer holds at once, to plan memory.

    >>> from dpsub import DPSGD, audit, audits, crafters, data, models
    >>> class Norm(audits.Observer):
    ...     name, long_name, all_coordinates = "norm", "norm of the parameters", True
    ...     def watch(self, bank, task, runs):
    ...         return audits.Watch(lambda: bank.model.flat(bank.theta).norm(dim=1))
    >>> task, spec = data.digits(n_train=50), DPSGD(1.0, 1.0, 1.0, steps=2, learning_rate=0.1)
    >>> model = models.linear(task)
    >>> canary = crafters.mislabeled(task, model, spec, seed=0)
    >>> watched = audit(task, model, canary, spec, runs=4, metrics=[Norm()], device="cpu", progress=False)
    >>> watched.norm.dims, watched.norm.shape
    (('run', 'step'), (4, 2))
    """

    name: ClassVar[str]
    long_name: ClassVar[str]
    dims: ClassVar[tuple[str, ...]] = ("run", "step")
    most_runs: ClassVar[int | None] = None
    all_coordinates: ClassVar[bool] = False
    copies: ClassVar[int] = 1

    @abstractmethod
    def watch(self, bank: Bank, task: Task, runs: int) -> Watch:
        """Watch the first `runs` models of a bank from before its first step."""

    def check(self, task: Task) -> None:  # noqa: B027
        """Raise a ValueError for a task that this observer cannot be used on."""

    def attributes(self, task: Task) -> dict[str, str]:
        """What else the numbers depend on, as attributes to store: `{"test_fingerprint": task.test_fingerprint}`.

        By default a checksum of the observer's code and its own attributes. One that cannot tell them apart, such as a
        lambda, has to define this method to be stored.
        """
        kept = is_installed(type(self).__module__) and not vars(self)
        return {} if kept else {f"observer_{self.name}": self._identity[0]}

    @property
    def untold(self) -> tuple[str, ...]:
        """What `attributes` does not tell apart."""
        return self._identity[1] if type(self).attributes is Observer.attributes else ()

    @property
    def _identity(self) -> tuple[str, tuple[str, ...]]:
        identity = Identity()
        representation = identity.tell(self.name, (type(self), vars(self)))
        return f"{crc32(representation.encode()):08x}", tuple(identity.untold)


class Score(Observer):
    """The score of each model, which speaks for z if it is high. Every audit observes it."""

    name = "score"
    long_name = LONG_NAMES["score"]

    def watch(self, bank: Bank, task: Task, runs: int) -> Watch:
        return Watch(bank.scores)


class Accuracy(Observer):
    """The share of the test records that a model labels correctly, for eight models at most."""

    name = "accuracy"
    long_name = "share of the test records that the model labels rightly"
    dims = ("measured", "step")
    most_runs = 8
    all_coordinates = True

    def watch(self, bank: Bank, task: Task, runs: int) -> Watch:
        x, y = (torch.tensor(records, device=bank.device) for records in (task.x_test, task.y_test))
        return Watch(lambda: bank.accuracy(x, y, runs))

    def check(self, task: Task) -> None:
        if not len(task.y_test):
            raise ValueError('metrics must not name "accuracy" for a task without test records: give x_test and y_test')

    def attributes(self, task: Task) -> dict[str, str]:
        return {"test_fingerprint": task.test_fingerprint}


class Distance(Observer):
    """‖g_z − g_z′‖/2C of the two canaries' gradients in each model; gradients of records are clipped.

    It is at most 1, or 0.5 if the slot is empty in one world. The accountants assume this maximum at every step.
    """

    name = "distance"
    long_name = "distance of the two canaries' gradients, in units of 2 max_grad_norm"
    copies = 2

    def watch(self, bank: Bank, task: Task, runs: int) -> Watch:
        return Watch(lambda: bank.slot.distance(bank) / (2 * bank.spec.max_grad_norm))


class GradientProduct(Observer):
    """⟨g_z, privatised sum⟩/C²: the observation of an adversary who watches the steps.

    g_z is the gradient canary itself or, for a record, its clipped gradient at the parameters before the step. If g_z
    has norm C and z is in the batch, the value is 1 + N(0, σ²) plus what the other records contribute.

    Source: *Tight Auditing*, Algorithm 2, the observation O[t].
    """

    name = "gradient"
    long_name = "privatised sum times z's gradient, in units of max_grad_norm squared"

    def watch(self, bank: Bank, task: Task, runs: int) -> Watch:
        return _WatchGradient(bank)


class _WatchGradient(Watch):
    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._unit = bank.expected_batch_size / bank.spec.max_grad_norm**2
        self.before_step()

    def before_step(self) -> None:
        self._gradient = self._bank.slot.gradient(self._bank)

    def after_step(self) -> Tensor:
        return self._bank.slot.product(self._bank, self._gradient) * self._unit


class Weights(Observer):
    """The parameters after the last step. `model.module(parameters)` makes a `torch.nn.Module` of one model's."""

    name = "weights"
    long_name = "parameters after the last step"
    dims = ("run", "parameter")
    all_coordinates = True

    def watch(self, bank: Bank, task: Task, runs: int) -> Watch:
        return Watch(lambda: bank.model.flat(bank.theta))


BY_NAME: dict[str, Observer] = {
    observer.name: observer for observer in (Accuracy(), Distance(), GradientProduct(), Weights())
}
RESERVED = ("score", "bit", "repeat", "run", "step", "parameter", "seed", "number")  # of every audit


def chosen(metrics: Sequence[str | Observer], task: Task) -> tuple[Observer, ...]:
    """The observers that `metrics` names or holds, in the order of their names."""
    observers: dict[str, Observer] = {}
    for metric in checks.several('metrics must be a sequence of names or observers, such as ("accuracy",)', metrics):
        observer = metric if isinstance(metric, Observer) else BY_NAME[checks.choice("metrics", metric, [*BY_NAME])]
        if observer.name in RESERVED or observers.setdefault(observer.name, observer) is not observer:
            raise ValueError(
                f"metrics must have names of their own, other than {', '.join(RESERVED)}, got {observer.name!r}"
            )
        observer.check(task)
    return tuple(observers[name] for name in sorted(observers))


def observation(observer: Observer, watch: Watch, shape: tuple[int, ...]) -> Tensor:
    """What it observes after a step, of the shape that its dims say: of another, values would be taken for others'."""
    values = watch.after_step()
    if not isinstance(values, Tensor) or values.shape != shape:
        got = f"one {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise ValueError(
            f"metrics: {type(observer).__name__} has the dims {observer.dims}, so after_step must return a tensor "
            f"{shape} for {shape[0]} observed models, got {got}"
        )
    return values
