"""Many pairs of worlds for one training: each has a slot of its own, and a coin says which of the two fills it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub._core.canary_pair import RESERVED, CanaryPair, Record
from dpsub._core.frozen import Frozen, read_only, read_only_mapping

NO_PAIRS = "pairs must be one dpsub.CanaryPair or more, or a dpsub.Pairs"


@dataclass(frozen=True, eq=False, repr=False)
class Pairs(Frozen):
    """m pairs under substitution, in m slots. Its arrays are read-only copies.

    Attributes:
        slots: (m,) int64, the indices of the private records that the pairs replace, each once.
        z, z_prime: (m, …) float32: the features of records, or (m, k) gradients.
        y, y_prime: (m,) int64, the labels of records; None for gradients.
        support: (k,) int64, the indices of the parameters that gradients belong to: they are 0 elsewhere. None for
            records.
        parameters: how many parameters the model has that gradients are for. None for records.
        scenario: the attack's name in figures and results.
        details: numbers and texts that the crafter reports, for stored results.
        task: `Task.fingerprint` of the task that the pairs were crafted for. None allows any task.
        trace: arrays that the crafter recorded; not stored.

    Raises:
        ValueError: if shapes do not fit, a slot is there twice, or a pair's two worlds are equal.

    Source: Keinan et al. (2025), Algorithm 1: pairs of elements, one of which is in the data by a fair coin.

    >>> import numpy as np
    >>> from dpsub import Pairs
    >>> x = np.eye(3)
    >>> pairs = Pairs([4, 9, 2], x, x, y=[0, 1, 2], y_prime=[1, 2, 0], scenario="wrong labels")
    >>> len(pairs), pairs[1].slot, pairs[1].z.y, pairs[1].z_prime.y
    (3, 9, 1, 2)
    """

    slots: NDArray[np.int64]
    z: NDArray[np.float32]
    z_prime: NDArray[np.float32]
    y: NDArray[np.int64] | None = None
    y_prime: NDArray[np.int64] | None = None
    support: NDArray[np.int64] | None = None
    parameters: int | None = None
    scenario: str = "pairs"
    details: Mapping[str, float | int | str] = field(default_factory=dict)
    task: str | None = None
    trace: Mapping[str, NDArray[Any]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        checks.text("scenario", self.scenario)
        if self.task is not None:
            checks.text("task", self.task)
        for name in ("details", "trace"):
            if not isinstance(value := getattr(self, name), Mapping):
                raise ValueError(f"{name} must be a mapping from names to values, got {value!r}")
            object.__setattr__(self, name, read_only_mapping(value))
        for name, value in self.details.items():
            if not isinstance(name, str) or name in RESERVED or not isinstance(value, str | int | float | np.generic):
                raise ValueError(f"details must be numbers or texts by name, got {name!r}: {value!r}")
        slots = _whole_numbers("slots", self.slots)
        if not len(slots):
            raise ValueError("slots must be one index or more, got none")
        found, counts = np.unique(slots, return_counts=True)
        if (counts > 1).any():
            twice = int(found[counts > 1][0])
            raise ValueError(f"slots must differ, one for each pair, got {twice} {counts.max()} times")
        object.__setattr__(self, "slots", slots)
        for name in ("z", "z_prime"):
            object.__setattr__(self, name, _features(name, getattr(self, name), len(slots)))
        if self.z.shape != self.z_prime.shape:
            raise ValueError(f"z_prime must have the shape of z, {self.z.shape}, got {self.z_prime.shape}")
        of_records, of_gradients = (self.y, self.y_prime), (self.support, self.parameters)
        given = [sum(one is not None for one in group) for group in (of_records, of_gradients)]
        if given not in ([2, 0], [0, 2]):
            raise ValueError("y and y_prime must be given for records, or support and parameters for gradients")
        for name in ("y", "y_prime"):
            if getattr(self, name) is not None:
                labels = _whole_numbers(name, getattr(self, name))
                if len(labels) != len(slots):
                    raise ValueError(f"{name} must be one label for each of {len(slots)} pairs, got {len(labels)}")
                object.__setattr__(self, name, labels)
        if self.support is not None:
            self._check_support()
        if (equal := np.flatnonzero(self._equal)).size:
            raise ValueError(
                "z_prime must differ from z in each pair: no audit can tell equal worlds apart, got equal ones in "
                f"pair {int(equal[0])}"
            )

    def _check_support(self) -> None:
        parameters = checks.whole("parameters", self.parameters)
        support = _whole_numbers("support", self.support)
        if (support >= parameters).any():
            raise ValueError(f"support must be below parameters = {parameters}, got {int(support.max())}")
        if len(np.unique(support)) != len(support) or self.z.shape[1:] != support.shape:
            raise ValueError(
                f"support must be the {self.z[0].size} different parameters that z and z_prime belong to, got "
                f"{len(support)}, {len(np.unique(support))} of them different"
            )
        for name in ("z", "z_prime"):
            if (empty := np.flatnonzero(~getattr(self, name).any(axis=1))).size:
                raise ValueError(
                    f"{name} must not be 0 in a pair of gradients, as an empty slot is, got 0 in pair {int(empty[0])}"
                )
        object.__setattr__(self, "support", support)
        object.__setattr__(self, "parameters", parameters)

    @property
    def _equal(self) -> NDArray[np.bool_]:
        """(m,): whether the two worlds of a pair are the same."""
        same: NDArray[np.bool_] = (self.z == self.z_prime).reshape(len(self), -1).all(axis=1)
        return same if self.y is None or self.y_prime is None else same & (self.y == self.y_prime)

    @classmethod
    def of(cls, pairs: Pairs | Sequence[CanaryPair]) -> Pairs:
        """Pairs from single ones.

        Args:
            pairs: records of one shape, or gradients of one length, each with a slot of its own, all under
                substitution, of one scenario and task. Details of single pairs are not kept.

        Raises:
            ValueError: if they are not.
        """
        if isinstance(pairs, Pairs):
            return pairs
        several = checks.several(NO_PAIRS, pairs)
        for one in several:
            if not isinstance(one, CanaryPair):
                raise ValueError(f"{NO_PAIRS}, got a {type(one).__name__} among them")
        if not several:
            raise ValueError(f"{NO_PAIRS}, got none")
        for name, why in (("scenario", ""), ("task", ": craft them for one"), ("adjacency", "")):
            if len(found := {getattr(one, name) for one in several}) > 1:
                listed = " and ".join(sorted(map(repr, found))[:2])
                raise ValueError(f"pairs must be of one {name}, got {listed}{why}")
        first = several[0]
        if first.adjacency != "substitute":
            raise ValueError(
                f"pairs must be under 'substitute', where a coin exchanges one record, got {first.adjacency!r}"
            )
        worlds = [(one.z, one.z_prime) for one in several]
        kinds = {(isinstance(z, Record), np.shape(z.x if isinstance(z, Record) else z)) for z, _ in worlds}
        kinds |= {(isinstance(z, Record), np.shape(z.x if isinstance(z, Record) else z)) for _, z in worlds}
        if len(kinds) > 1:
            raise ValueError(
                "pairs must be all records of one shape, or all gradients of one length, got several kinds"
            )
        slots = np.array([one.slot for one in several])
        fields: dict[str, Any] = {"scenario": first.scenario, "task": first.task}
        if isinstance(first.z, Record):
            z, z_prime = (np.stack([world[i].x for world in worlds]) for i in (0, 1))
            fields |= {name: np.array([world[i].y for world in worlds]) for i, name in enumerate(("y", "y_prime"))}
        else:
            z, z_prime = (np.stack([world[i] for world in worlds]) for i in (0, 1))
            support = np.flatnonzero(z.any(axis=0) | z_prime.any(axis=0))
            fields |= {"support": support, "parameters": z.shape[1]}
            z, z_prime = z[:, support], z_prime[:, support]
        try:
            return cls(slots, z, z_prime, **fields)
        except ValueError as error:
            raise ValueError(f"pairs: {error}") from None

    def __repr__(self) -> str:
        what = f"records {self.z.shape[1:]}" if self.of_records else f"gradients ({self.parameters},)"
        return f"Pairs({len(self)} pairs of {what}, {self.scenario!r}, {self.fingerprint})"

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, i: int) -> CanaryPair:
        """One of the pairs."""
        i = checks.whole("i", i, at_least=-len(self), at_most=len(self) - 1)
        z: Any = self.z[i]
        z_prime: Any = self.z_prime[i]
        if self.y is not None and self.y_prime is not None:
            z, z_prime = Record(z, int(self.y[i])), Record(z_prime, int(self.y_prime[i]))
        else:
            dense = np.zeros((2, self.parameters or 0), np.float32)
            dense[:, self.support] = z, z_prime
            z, z_prime = dense
        return CanaryPair(z, z_prime, int(self.slots[i]), self.scenario, task=self.task)

    def __iter__(self) -> Iterator[CanaryPair]:
        return (self[i] for i in range(len(self)))

    @property
    def adjacency(self) -> str:
        """How the two worlds of each pair differ."""
        return "substitute"

    @property
    def of_records(self) -> bool:
        """Whether the pairs are of records, and not of gradients."""
        return self.y is not None

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any slot or world."""
        digest = sha256(repr((self.z.shape, self.of_records, self.parameters)).encode())
        for values in (self.slots, self.y, self.y_prime, self.support):
            digest.update(b"" if values is None else values.astype("<i8").tobytes())
        for world in (self.z, self.z_prime):
            digest.update(world.astype("<f4").tobytes())
        return digest.hexdigest()[:16]


def _whole_numbers(name: str, values: ArrayLike | None) -> NDArray[np.int64]:
    checks.no_mask(name, values)
    expected = f"{name} must be a vector of whole numbers >= 0"
    try:
        numbers = np.asarray(values)
        if numbers.dtype.kind not in "iuf":
            raise TypeError
        with np.errstate(invalid="ignore"):
            narrow = numbers.astype(np.int64)
        fine = numbers.ndim == 1 and (numbers == narrow).all() and (narrow >= 0).all()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        fine = False
    if not fine:
        raise ValueError(f"{expected}, got {values!r}")
    return read_only(narrow)


def _features(name: str, values: Any, count: int) -> NDArray[np.float32]:
    checks.no_mask(name, values)
    expected = f"{name} must be finite real numbers ({count}, ...), one row for each slot"
    try:
        wide = np.asarray(values)
        if wide.dtype.kind not in "iufb":
            raise TypeError
        with np.errstate(over="ignore"):
            narrow = wide.astype(np.float32)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{expected}, got {values!r}") from None
    if narrow.ndim < 2 or len(narrow) != count:
        raise ValueError(f"{expected}, got shape {narrow.shape}")
    if not np.isfinite(narrow).all():
        raise ValueError(f"{expected}, got {int((~np.isfinite(narrow)).sum())} numbers that are not")
    return read_only(narrow)
