"""The protocol of canaries that are crafted anew at each step of a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, runtime_checkable

from torch import Tensor

if TYPE_CHECKING:
    from dpsub.trainers.bank import Bank


class StepGradients(NamedTuple):
    """What the canary is at one step: the clipped gradients of z and z′, of norm at most C.

    Attributes:
        z: (k,) one for all models of the bank, or (runs, k).
        z_prime: the same, or None: the slot is empty in that world.
        support: (k,) int64, the indices of the parameters; None: all parameters, k = parameters.
    """

    z: Tensor
    z_prime: Tensor | None
    support: Tensor | None = None


@runtime_checkable
class StepCanary(Protocol):
    """A canary that is crafted anew at each step. Implement it to audit steps with a canary of your own.

    `scenario`, `adjacency`, `slot`, `details` and `task` are as in `CanaryPair`.
    """

    @property
    def scenario(self) -> str: ...

    @property
    def adjacency(self) -> str: ...

    @property
    def slot(self) -> int: ...

    @property
    def details(self) -> Mapping[str, float | int | str]: ...

    @property
    def task(self) -> str | None: ...

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that change with anything that determines the canaries."""
        ...

    def gradients(self, bank: Bank, step: int) -> StepGradients:
        """The canary of a step.

        It may look at the current models, and draws only from streams of its own seed. The coins that say which world
        is trained must not influence it otherwise than through the models.

        Args:
            bank: the models before the step, in all coordinates.
            step: from 1.
        """
        ...

    def against_nothing(self, *, adjacency: str) -> Self:
        """The same z against an empty slot, for "add_remove" or "zero_out"."""
        ...
