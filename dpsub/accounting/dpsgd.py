"""The parameters of one DP-SGD training, apart from its data and model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, ClassVar

from dpsub._core import checks
from dpsub._core.frozen import Frozen
from dpsub.accounting.samplings import Poisson, Sampling

OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class DPSGD(Frozen):
    r"""The parameters of one DP-SGD or DP-Adam training, under the names that Opacus uses.

    Attributes:
        noise_multiplier: σ > 0; the noise on the sum of clipped gradients has standard deviation σ·max_grad_norm.
        max_grad_norm: C > 0; each record's gradient is scaled down to at most this norm.
        sample_rate: 0 < q ≤ 1; each record enters each batch with this probability. The noisy sum is divided by q·n.
        sampling: how batches are drawn, an `accounting.Sampling` or its name: "poisson", each record independently
            with probability q; `accounting.TruncatedPoisson`, the same up to a largest size; "without_replacement",
            q·n of the n records anew at each step; or "epochs", shuffled anew, each record in one of the 1/q batches of
            each epoch.
        steps: T ≥ 1; an empty batch is a step too.
        learning_rate: η > 0.
        optimizer: "sgd", or "adam" with betas (0.9, 0.999) and eps 1e-8 on the noisy average.

    Raises:
        ValueError: if a value is out of range.

    Source: *Beyond Membership*, section 2.2, equation 1.
    """

    CHECKS: ClassVar[dict[str, checks.Check]] = {"optimizer": partial(checks.choice, options=OPTIMIZERS)}

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float
    steps: int
    learning_rate: float
    optimizer: str = "sgd"
    sampling: Sampling = field(default=Poisson())

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sampling.check_rate(self.sample_rate)

    @property
    def mechanism(self) -> dict[str, Any]:
        """The arguments that accountants take: `accounting.epsilon(**spec.mechanism, delta=…, adjacency=…)`."""
        names = ["noise_multiplier", "sample_rate", "steps", *(["sampling"] if self.sampling != Poisson() else [])]
        return {name: getattr(self, name) for name in names}

    @property
    def attributes(self) -> dict[str, Any]:
        """All parameters by name, for the attributes of a dataset. Poisson sampling, the default, is left out."""
        attributes = asdict(self)
        if attributes.pop("sampling") != Poisson():
            attributes["sampling"] = str(self.sampling)
        return attributes


checks.ARGUMENTS["spec"] = partial(checks.instance, of=DPSGD, called="a dpsub.DPSGD")
