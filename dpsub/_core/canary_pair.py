"""A pair of worlds that differ in one record, and the adjacency under which they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpsub._core import checks
from dpsub._core.frozen import Frozen, read_only, read_only_mapping

RESERVED = ("fingerprint", "crafted")  # details that audits store themselves


class Record(NamedTuple):
    """One record: features in the shape of a task's, and a label."""

    x: NDArray[np.float32]
    y: int


@dataclass(frozen=True, eq=False, repr=False)
class CanaryPair(Frozen):
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

    z: NDArray[np.float32] | Record
    z_prime: NDArray[np.float32] | Record | None
    slot: int
    scenario: str
    adjacency: str = "substitute"
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    task: str | None = None
    trace: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        checks.adjacency(self.adjacency)
        checks.text("scenario", self.scenario)
        if self.task is not None:
            checks.text("task", self.task)
        for name in ("details", "trace"):
            if not isinstance(value := getattr(self, name), Mapping):
                raise ValueError(f"{name} must be a mapping from names to values, got {value!r}")
            object.__setattr__(self, name, read_only_mapping(value))
        for name, value in self.details.items():
            if not isinstance(name, str) or name in RESERVED or not isinstance(value, str | int | float | np.generic):
                raise ValueError(
                    f"details must be numbers or texts, with names other than {' and '.join(RESERVED)}, got "
                    f"{name!r}: {value!r}"
                )
        object.__setattr__(self, "slot", checks.whole("slot", self.slot, at_least=0))
        z, z_prime, given = _world("z", self.z), self.z_prime, self.z_prime
        if z_prime is not None:
            z_prime = _world("z_prime", z_prime)
            if isinstance(z_prime, Record) != isinstance(z, Record):
                raise ValueError("z and z_prime must both be gradients or both be records")
        elif not isinstance(z, Record):
            z_prime = read_only(np.zeros_like(z))
        object.__setattr__(self, "z", z)
        object.__setattr__(self, "z_prime", z_prime)
        empty = z_prime is None or (not isinstance(z_prime, Record) and not z_prime.any())
        if empty != (self.adjacency != "substitute"):
            raise ValueError(
                f"z_prime must be empty (None or a gradient of 0) if and only if adjacency is 'add_remove' or "
                f"'zero_out', got {given!r} under {self.adjacency!r}: use pair.against_nothing(adjacency=...)"
            )
        if not isinstance(z, Record) and not z.any():
            raise ValueError("z must not be 0: give the other gradient as z, and z_prime=None")
        if _same(z, z_prime):
            raise ValueError("z_prime must differ from z: no audit can tell equal worlds apart")

    def __repr__(self) -> str:
        z, other = self.z, self.z_prime
        what = f"records {z.x.shape} labelled {z.y}" if isinstance(z, Record) else f"gradients {z.shape}"
        what += f" and {other.y}" if isinstance(other, Record) else ""
        return f"CanaryPair({what}, slot {self.slot}, {self.scenario!r}, {self.adjacency!r}, {self.fingerprint})"

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
        digest = sha256(repr((self.slot, self.adjacency)).encode())
        for world in (self.z, self.z_prime):
            x, y = world if isinstance(world, Record) else (world, None)
            digest.update(repr(None if x is None else (x.shape, y)).encode())
            digest.update(b"" if x is None else x.astype("<f4").tobytes())
        return digest.hexdigest()[:16]

    def against_nothing(self, *, adjacency: str) -> CanaryPair:
        """The same z against an empty slot: the pair for "add_remove", or for "zero_out", which has the same ε.

        The slot keeps its Poisson coin and its place in q·n, so nothing else distinguishes the worlds.
        """
        checks.choice("adjacency", adjacency, ("add_remove", "zero_out"))
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


def _same(z: Any, z_prime: Any) -> bool:
    if isinstance(z, Record):
        return z_prime is not None and np.array_equal(z.x, z_prime.x) and z.y == z_prime.y
    return np.array_equal(z, z_prime)


def _world(name: str, value: object) -> NDArray[np.float32] | Record:
    if isinstance(value, tuple):
        if len(value) != 2:
            raise ValueError(f"{name} must be a record (x, y), got {len(value)} values")
        return Record(_array(f"{name}'s features", value[0]), checks.whole(f"{name}'s label", value[1], at_least=0))
    gradient = _array(name, value)
    if gradient.ndim != 1:
        raise ValueError(f"{name} must be a vector (parameters,) or a record, the tuple (x, y), got {gradient.shape}")
    return gradient


def _array(name: str, value: Any) -> NDArray[np.float32]:
    """A copy, so that later changes to the caller's array do not change the canary."""
    checks.no_mask(name, value)
    try:
        wide = np.asarray(value)
        finite = np.isfinite(wide).all() and not np.iscomplexobj(wide)
        with np.errstate(over="ignore"):
            array = wide.astype(np.float32, copy=False) if finite else wide
    except (TypeError, ValueError, RuntimeError):  # the last of tensors that require gradients
        raise ValueError(f"{name} must be real numbers; a record is a tuple (x, y); got {value!r}") from None
    if not finite or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite real numbers that float32 can hold, got {value!r}")
    return read_only(array)
