"""The parameters of one DP-SGD training, apart from its data and model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar, NotRequired, TypedDict

from dpsub._core import checks
from dpsub._core.frozen import Frozen

OPTIMIZERS = ("sgd", "adam")


class Mechanism(TypedDict):
    noise_multiplier: float
    sample_rate: float
    steps: int
    sampling: NotRequired[str]


@dataclass(frozen=True)
class DPSGD(Frozen):
    r"""The parameters of one DP-SGD or DP-Adam training, under the names that Opacus uses.

    Attributes:
        noise_multiplier: σ, from 1e-30 to 1e30; the noise on the sum of clipped gradients has standard deviation
            σ·max_grad_norm.
        max_grad_norm: C, from 1e-15 to 1e15; each record's gradient is scaled down to at most this norm.
        sample_rate: q, from 1e-12 to 1; each record enters each batch with this probability. The noisy sum is divided
            by q·n.
        sampling: how batches are drawn, as in `accounting.epsilon`: "poisson", each record by a coin of its own;
            "without_replacement", q·n of the n records anew at each step; or "epochs", shuffled anew, each record in
            one of the 1/q batches of each epoch.
        steps: T ≥ 1; an empty batch is a step too.
        learning_rate: η, from 1e-38 to 1e38.
        optimizer: "sgd", or "adam" with betas (0.9, 0.999) and eps 1e-8 on the noisy average.

    Raises:
        ValueError: if a value is out of range.

    Source: *Beyond Membership*, section 2.2, equation 1.
    """

    # What models in float32, and the coins of their batches, can compute with.
    CHECKS: ClassVar[dict[str, checks.Check]] = {
        "noise_multiplier": partial(checks.real, at_least=1e-30, at_most=1e30),
        "max_grad_norm": partial(checks.real, at_least=1e-15, at_most=1e15),
        "sample_rate": partial(checks.real, at_least=1e-12, at_most=1),
        "learning_rate": partial(checks.real, at_least=1e-38, at_most=1e38),
        "optimizer": partial(checks.choice, options=OPTIMIZERS),
    }

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float
    steps: int
    learning_rate: float
    optimizer: str = "sgd"
    sampling: str = "poisson"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling == "epochs":
            checks.steps_an_epoch(self.sample_rate)

    @property
    def mechanism(self) -> Mechanism:
        """The arguments that accountants take: `accounting.epsilon(**spec.mechanism, delta=…, adjacency=…)`."""
        drawn = Mechanism(noise_multiplier=self.noise_multiplier, sample_rate=self.sample_rate, steps=self.steps)
        return drawn if self.sampling == "poisson" else {**drawn, "sampling": self.sampling}

    @property
    def attributes(self) -> dict[str, Any]:
        """All parameters by name, for the attributes of a dataset. Poisson batches are meant where there is none."""
        named = asdict(self)
        return named if self.sampling != "poisson" else {name: named[name] for name in named if name != "sampling"}


checks.ARGUMENTS["spec"] = partial(checks.instance, of=DPSGD, called="a dpsub.DPSGD")
