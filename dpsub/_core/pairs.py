"""Many pairs of worlds for one training: each has a slot of its own, and a coin says which of the two fills it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsub._core.canary_pair import CanaryPair, Record, Worlds
from dpsub._core.frozen import fingerprint


@dataclass(frozen=True, eq=False, repr=False)
class Pairs(Worlds):
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

    adjacency = "substitute"

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
        super().__post_init__()
        given = [value is not None for value in (self.y, self.y_prime, self.support, self.parameters)]
        if given not in ([True, True, False, False], [False, False, True, True]):
            raise ValueError("y and y_prime must be given for records, or support and parameters for gradients")
        self.freeze("slots", shape=("pairs",), kind=np.int64, at_least=0)
        m = len(self.slots)
        if not m or len(np.unique(self.slots)) < m:
            raise ValueError(f"slots must be one index or more, all different, got {self.slots}")
        self.freeze("z", shape=(m, "features", ...), kind=np.float32)
        self.freeze("z_prime", shape=self.z.shape, kind=np.float32)
        if self.y is not None:
            for labels in ("y", "y_prime"):
                self.freeze(labels, shape=(m,), kind=np.int64, at_least=0)
        else:
            self.freeze("support", shape=self.z.shape[1:], kind=np.int64, at_least=0, below=self.parameters)
            if len(np.unique(self.support)) < self.z.shape[1]:  # type: ignore[arg-type]
                raise ValueError(f"support must be different parameters, got {self.support}")
        self.check_worlds()

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
        singles: list[Any] = [*pairs] if isinstance(pairs, Iterable) else []
        if not singles or not all(isinstance(pair, CanaryPair) for pair in singles):
            raise ValueError(f"pairs must be one dpsub.CanaryPair or more, or a dpsub.Pairs, got {pairs!r}")
        for name in ("scenario", "task", "adjacency", "parameters"):
            if len(values := {getattr(pair, name) for pair in singles}) > 1:
                raise ValueError(f"pairs must be of one {name}, got {' and '.join(sorted(map(repr, values))[:2])}")
        first, slots = singles[0], np.array([pair.slot for pair in singles])
        if first.adjacency != "substitute":
            raise ValueError(
                f"pairs must be under 'substitute', where a coin exchanges one record, got {first.adjacency!r}"
            )
        about: dict[str, Any] = {"scenario": first.scenario, "task": first.task}
        if first.records is not None:
            x, y = zip(*(pair.records for pair in singles), strict=True)
            return cls(slots, *np.stack(x, axis=1), *np.stack(y, axis=1), **about)
        dense = np.stack([[pair.z, pair.z_prime] for pair in singles], axis=1)
        support = np.flatnonzero(dense.any(axis=(0, 1)))
        z, z_prime = dense[..., support]
        return cls(slots, z, z_prime, support=support, parameters=dense.shape[2], **about)

    def __repr__(self) -> str:
        what = f"records {self.z.shape[1:]}" if self.of_records else f"gradients ({self.parameters},)"
        return f"Pairs({len(self)} pairs of {what}, {self.scenario!r}, {self.fingerprint})"

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, i: int) -> CanaryPair:
        """One of the pairs."""
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
    def records(self) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        if self.y is None or self.y_prime is None:
            return None
        return np.concatenate([self.z, self.z_prime]), np.concatenate([self.y, self.y_prime])

    @property
    def vectors(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        assert self.support is not None
        return np.stack([self.z, self.z_prime]), self.support

    @property
    def of_records(self) -> bool:
        """Whether the pairs are of records, and not of gradients."""
        return self.y is not None

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with any slot or world."""
        arrays = (self.slots, self.y, self.y_prime, self.support, self.z, self.z_prime)
        about = (self.z.shape, self.of_records, self.parameters)
        return fingerprint(about, *(array for array in arrays if array is not None))
