"""What a training with Opacus protects, in numbers and in words."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass

from opacus import PrivacyEngine
from opacus.accountants import IAccountant

from dpsub import accounting
from dpsub._core import checks
from dpsub.accounting import History

FALSE_ALARMS = 0.01  # the false-positive rate at which a statement says what an attack can find


@dataclass(frozen=True)
class PrivacyStatement:
    """What a training protects: as numbers, and as a text by `str`.

    Attributes:
        add_remove: ε under add/remove adjacency, which protects membership.
        substitute: ε under substitute adjacency, which protects a record's contents.
        group_privacy: the substitute ε that group privacy derives from add/remove accounting alone.
        found_members: the largest share of the members that an attack can identify at a 1 % false-positive rate.
        found_contents: the same for the records with one of two values, where the attack decides between the two.
        delta: the δ of all three.
        history: phases of (noise_multiplier, sample_rate, steps).
    """

    add_remove: float
    substitute: float
    group_privacy: float
    found_members: float
    found_contents: float
    delta: float
    history: tuple[tuple[float, float, int], ...]

    def __str__(self) -> str:
        return "\n\n".join(textwrap.fill(paragraph, 100) for paragraph in self._paragraphs())

    def _repr_markdown_(self) -> str:
        return "\n\n".join(self._paragraphs())

    def _paragraphs(self) -> list[str]:
        phases = [
            f"{steps:,} steps at noise multiplier {sigma:.4g} and sample rate {q:.4g}"
            for sigma, q, steps in self.history
        ]
        if len(phases) > 3:
            steps = sum(count for *_, count in self.history)
            phases = [f"{steps:,} steps in {len(phases)} phases of different noise multiplier or sample rate"]
        return [
            f"This model was trained with differentially private SGD ({'; '.join(phases)}; δ = {self.delta:g}).",
            f"Membership: whether a record was in the training data is protected with ε = {_up(self.add_remove)} "
            "(add/remove adjacency). At a 1 % false-positive rate, an attack identifies at most "
            f"{_percent(self.found_members)} of the members.",
            "Labels and attributes: the contents of a record known to be in the training data are protected with "
            f"ε = {_up(self.substitute)} (substitute adjacency). An attack that decides which of two values a record "
            "has, and is wrong about 1 % of the records with the second value, identifies at most "
            f"{_percent(self.found_contents)} of the records with the first.",
            "State the substitute ε to protect a record's contents and the add/remove ε to protect its presence. "
            "Always name the adjacency. The substitute ε is an upper bound computed for this training. From add/remove "
            f"accounting alone, group privacy would give ε = {_up(self.group_privacy)}. All of these numbers assume "
            "that batches were drawn by Poisson sampling.",
        ]


def privacy_statement(engine_or_history: PrivacyEngine | IAccountant | History, *, delta: float) -> PrivacyStatement:
    """State what a training with Opacus protects: membership, and the contents of records.

    Args:
        engine_or_history: a `PrivacyEngine` after training, with any of Opacus's accountants; or an accountant; or
            phases of (noise_multiplier, sample_rate, steps).
        delta: 0 < δ < 1.

    Returns:
        A `PrivacyStatement`, which prints as a text to paste.

    Raises:
        ValueError: if `delta` is out of range, no step has been taken, a step added no noise, or the history does not
            consist of such phases.

    Source: *Beyond Membership*, sections 2.1 and 4.

    >>> print(privacy_statement([(1.1, 0.064, 469)], delta=1e-5).substitute > 2)
    True
    """
    delta = checks.probability("delta", delta)
    recorded = engine_or_history
    if isinstance(recorded, PrivacyEngine):
        recorded = recorded.accountant
    if isinstance(recorded, IAccountant):
        recorded = recorded.history
    history = tuple(checks.history(recorded))

    def found(adjacency: str) -> float:
        return 1 - float(accounting.tradeoff(FALSE_ALARMS, history=history, adjacency=adjacency))

    return PrivacyStatement(
        add_remove=accounting.epsilon(history=history, delta=delta, adjacency="add_remove"),
        substitute=accounting.epsilon(history=history, delta=delta, adjacency="substitute"),
        group_privacy=accounting.group_privacy_epsilon(history=history, delta=delta),
        found_members=found("add_remove"),
        found_contents=found("substitute"),
        delta=delta,
        history=history,
    )


def _up(epsilon: float) -> str:
    """Three digits, rounded up so that an upper bound remains one."""
    if not 0 < epsilon < math.inf:
        return f"{epsilon:g}"
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / unit) * unit:.{max(0, 2 - math.floor(math.log10(epsilon)))}f}"


def _percent(rate: float) -> str:
    return f"{math.ceil(1000 * rate) / 10:g} %"
