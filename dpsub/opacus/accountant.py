"""An Opacus accountant for substitute adjacency."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from opacus.accountants import PRVAccountant, register_accountant

from dpsub import accounting
from dpsub._core import checks


class SubstitutePRVAccountant(PRVAccountant):  # type: ignore[misc]
    r"""Opacus's PRV accountant for substitute adjacency: one record replaced by another, a label or an attribute.

    It records steps as Opacus's own PRV accountant does. Its ε is `dpsub.accounting.epsilon` of that history: a
    certified upper bound. It assumes what Opacus's accountants assume: Poisson sampling, and noise on a sum of clipped
    gradients.

    >>> accountant = SubstitutePRVAccountant()
    >>> for _ in range(500):
    ...     accountant.step(noise_multiplier=12.115, sample_rate=0.25)
    >>> round(accountant.get_epsilon(delta=1e-5), 2)
    3.99
    """

    def get_epsilon(self, delta: float, *, eps_error: float = 1e-3, **_: Any) -> float:
        """ε spent so far.

        Args:
            delta: 0 < δ < 1.
            eps_error: > 0; half the width of the certified interval, absolute or relative to ε, as in
                `dpsub.accounting.epsilon`.

        Returns:
            ε; 0 before the first step, and infinity if a step added no noise. In these two cases the arguments are not
            checked.

        Raises:
            ValueError: if an argument is out of range, or if the history is not a record of steps.
        """
        if not self.history:
            return 0.0
        if any(noise == 0 for noise, *_ in self.history):
            return math.inf
        return accounting.epsilon(history=self.history, delta=delta, adjacency="substitute", eps_error=eps_error)

    @classmethod
    def mechanism(cls) -> str:
        return "prv_substitute"

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a checkpoint of this accountant. A checkpoint of another accountant raises ValueError."""
        recorded = (state_dict or {}).get("mechanism")
        if recorded not in (None, self.mechanism()):
            raise ValueError(
                f"state_dict must be of the accountant {self.mechanism()!r}, got one of {recorded!r}: its ε is for "
                f"add/remove adjacency; to continue from its steps, assign accountant.history = state_dict['history']"
            )
        super().load_state_dict(state_dict)
        if self.history:
            checks.history(self.history)


register_accountant(SubstitutePRVAccountant.mechanism(), SubstitutePRVAccountant, force=True)
