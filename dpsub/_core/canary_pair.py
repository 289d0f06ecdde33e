"""A pair of worlds that differ in one record, and the adjacency under which they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub._core.frozen import Frozen, fingerprint, read_only

RESERVED = ("fingerprint", "crafted")  # details that audits store themselves


class Record(NamedTuple):
    """One record: features in the shape of a task's, and a label."""

    x: NDArray[np.float32]
    y: int


def _details(name: str, values: Mapping[str, object]) -> dict[str, object]:
    for key, value in values.items():
        if key in RESERVED or not isinstance(value, str | int | float | np.generic):
            expected = f"numbers or texts, with names other than {' and '.join(RESERVED)}"
            raise ValueError(f"{name} must be {expected}, got {key!r}: {value!r}")
    return {key: value.item() if isinstance(value, np.generic) else value for key, value in values.items()}


def _world(name: str, value: Any) -> NDArray[np.float32] | Record:
    """A copy, so that later changes to the caller's array do not change the canary."""
    if isinstance(value, tuple) and len(value) == 2:
        x = read_only(checks.array(f"{name}'s features", value[0], kind=np.float32))
        return Record(x, checks.whole(f"{name}'s label", value[1], at_least=0))
    return read_only(checks.array(f"{name}, if it is no record (x, y),", value, shape=("parameters",), kind=np.float32))


class Worlds(Frozen):
    """What `CanaryPair` and `Pairs` share: m pairs of worlds, each with a slot of its own.

    Arrays of both worlds hold all z, then all z′, and the latter only under substitution: else those slots are empty.

    Attributes:
        slots: (m,) the private records that the pairs replace.
        records: the features (worlds · m, …) and labels (worlds · m,) of records; None for gradients.
        vectors: the gradients (worlds, m, k), and the indices (k,) of the parameters that they belong to. Not of
            records.
        parameters: how many parameters the model has that gradients are for; None for records.
    """

    CHECKS: ClassVar[Mapping[str, checks.Check]] = {
        "scenario": checks.text,
        "task": lambda name, value: None if value is None else checks.text(name, value),
        "details": _details,
    }

    slots: Any
    records: Any
    vectors: Any
    parameters: Any
    adjacency: Any
    scenario: str
    details: Mapping[str, float | int | str]
    task: str | None

    def check_worlds(self) -> None:
        """Check that the worlds of each pair differ, and that no gradient is 0, as an empty slot is."""
        m = len(self.slots)
        if self.records is not None:
            x, y = self.records
            same = (x[:m] == x[-m:]).reshape(m, -1).all(axis=1) & (y[:m] == y[-m:])
        else:
            gradients = self.vectors[0]
            if not (there := gradients.any(axis=2)).all():
                world, pair = np.argwhere(~there)[0]
                raise ValueError(f"{('z', 'z_prime')[world]} must not be 0, as an empty slot is, got 0 in pair {pair}")
            same = (gradients[0] == gradients[-1]).all(axis=1)
        if self.adjacency == "substitute" and same.any():
            where = f"got equal ones in pair {same.argmax()}"
            raise ValueError(f"z_prime must differ from z: no audit can tell equal worlds apart, {where}")


@dataclass(frozen=True, eq=False, repr=False)
class CanaryPair(Worlds):
    """What fills the canary's slot in the two worlds: gradients or records. Its arrays are read-only copies.

    Attributes:
        z, z_prime: gradients, (parameters,) float32 in the unit of max_grad_norm, which enter the sum unclipped; or
            records (x, y), whose gradients training computes and clips. z_prime=None leaves the slot empty; if z is a
            gradient, it is stored as zeros.
        slot: the index of the private record that the canary replaces. It is one of the n records that q·n counts.
        scenario: the attack's name in figures and results: "S2" … "S5" as in the papers, "S6", or your own.
        adjacency: how the two worlds differ; "substitute" as crafted.
        details: numbers and texts that the crafter reports, for figures and stored results.
        task: `Task.fingerprint` of the task that the pair was crafted for; an audit on another task refuses the pair.
            None allows any task.
        trace: arrays that the crafter recorded, for pictures; not stored.

    A crafter of your own is a function that returns one, of z first: scores are high for the world with z.

    >>> import numpy as np
    >>> from dpsub import DPSGD, CanaryPair, audit, data, models
    >>> def next_label(task, model, spec, *, seed):
    ...     slot = int(np.random.default_rng(seed).integers(len(task.y_train)))
    ...     x, y = task.x_train[slot], int(task.y_train[slot])
    ...     return CanaryPair((x, y), (x, (y + 1) % task.num_classes), slot, "next label", task=task.fingerprint)
    >>> task, spec = data.digits(n_train=50), DPSGD(1.0, 1.0, 1.0, steps=2, learning_rate=0.1)
    >>> model = models.linear(task)
    >>> canary = next_label(task, model, spec, seed=0)
    >>> audit(task, model, canary, spec, runs=4, device="cpu", progress=False).score.shape
    (4, 2)
    """

    CHECKS: ClassVar[Mapping[str, checks.Check]] = {
        **Worlds.CHECKS,
        "z": _world,
        "z_prime": lambda name, value: None if value is None else _world(name, value),
        "slot": partial(checks.whole, at_least=0),
    }

    z: NDArray[np.float32] | Record
    z_prime: NDArray[np.float32] | Record | None
    slot: int
    scenario: str
    adjacency: str = "substitute"
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    task: str | None = None
    trace: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        z_prime, is_record = self.z_prime, isinstance(self.z, Record)
        if z_prime is not None and is_record != isinstance(z_prime, Record):
            raise ValueError("z and z_prime must both be gradients or both be records")
        empty = z_prime is None or not (isinstance(z_prime, Record) or z_prime.any())
        if empty != (self.adjacency != "substitute"):
            raise ValueError(
                f"z_prime must be empty (None or a gradient of 0) if and only if adjacency is 'add_remove' or "
                f"'zero_out', got {z_prime!r} under {self.adjacency!r}: use pair.against_nothing(adjacency=...)"
            )
        if z_prime is None and not is_record:
            object.__setattr__(self, "z_prime", read_only(np.zeros_like(self.z)))
        self.check_worlds()

    def __repr__(self) -> str:
        z, other = self.z, self.z_prime
        what = f"records {z.x.shape} labelled {z.y}" if isinstance(z, Record) else f"gradients {z.shape}"
        what += f" and {other.y}" if isinstance(other, Record) else ""
        return f"CanaryPair({what}, slot {self.slot}, {self.scenario!r}, {self.adjacency!r}, {self.fingerprint})"

    @property
    def slots(self) -> NDArray[np.int64]:
        """(1,): the slot."""
        return np.array([self.slot])

    @property
    def parameters(self) -> int | None:
        """How many parameters the model has that gradients are for. None for records."""
        return None if isinstance(self.z, Record) else len(self.z)

    @property
    def records(self) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        worlds = [world for world in (self.z, self.z_prime) if isinstance(world, Record)]
        if not worlds:
            return None
        return np.stack([world.x for world in worlds]), np.array([world.y for world in worlds])

    @property
    def vectors(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        worlds = np.array([self.z, self.z_prime][: 1 + (self.adjacency == "substitute")])
        support = np.flatnonzero(worlds.any(axis=0))
        return np.take(worlds, support, axis=1)[:, None], support  # in C order: products round by the layout

    @property
    def score(self) -> str:
        """How the distinguisher scores a model with parameters θ; a higher score speaks for z.

        "displacement", for gradients: ((z − z′)/2C)·(θ₀ − θ), or (z/C)·(θ₀ − θ) if z′ is empty. "logit", for records:
        logit(z; θ) − logit(z′; θ), where logit is log p/(1 − p) for the probability p of the record's label. An empty
        z′ contributes a logit of 0.
        """
        return "logit" if isinstance(self.z, Record) else "displacement"

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with either world, the slot or the adjacency."""
        parts: list[object] = [(self.slot, self.adjacency)]
        for world in (self.z, self.z_prime):
            x, y = world if isinstance(world, Record) else (world, None)
            parts += [None] if x is None else [(x.shape, y), x]
        return fingerprint(*parts)

    def against_nothing(self, *, adjacency: str) -> CanaryPair:
        """The same z against an empty slot: the pair for "add_remove", or for "zero_out", which has the same ε.

        The slot keeps its Poisson coin and its place in q·n, so nothing else distinguishes the worlds.
        """
        return replace(self, z_prime=None, adjacency=adjacency)

    def exchanged(self) -> CanaryPair:
        """The pair with z and z′ exchanged.

        An audit of the exchanged pair with the same seed trains a twin of each model: the same start, batches and
        noise, with the other canary in the slot. Its scores speak for z′, so they point the other way.
        `details` and `trace` are not changed.

        Raises:
            ValueError: if one world is empty.
        """
        if self.adjacency != "substitute":
            raise ValueError(f"adjacency must be 'substitute' for worlds to be exchanged, got {self.adjacency!r}")
        assert self.z_prime is not None
        return replace(self, z=self.z_prime, z_prime=self.z)
