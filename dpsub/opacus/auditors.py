"""An audit of an optimizer while it trains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import xarray as xr

from dpsub import accounting
from dpsub._core import checks
from dpsub._core.datasets import LONG_NAMES
from dpsub._core.provenance import versions
from dpsub.accounting.phases import distance
from dpsub.estimators import LowerBound, epsilon_lower_bound, step_to_training
from dpsub.estimators.claims import GDP, Claim
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.wealth import Bettor, Expected, fewest
from dpsub.opacus.accountant import SubstitutePRVAccountant, accounted
from dpsub.opacus.audited_steps import MARK, AuditedSteps, Observation
from dpsub.opacus.canary_gradients import Canaries, Tensor
from dpsub.opacus.optimizer_checks import Audited
from dpsub.opacus.piece_weights import PieceWeights
from dpsub.opacus.reports import Report


@dataclass(frozen=True)
class Asked:
    """What `audit_optimizer` was asked, checked."""

    delta: float
    adjacency: str
    alpha: float
    canary_rate: float
    canary_norm: float
    sample_rate: float | None
    noise_multiplier: float | None
    anew: bool
    seed: int
    callback: Callable[[Auditor], Any] | None


class Auditor:
    """The audit of one optimizer, as `audit_optimizer` returns it.

    Attributes:
        refuted: whether the claim is refuted so far, at confidence 1 − alpha. Cheap at each step.
        refuted_at: the number of steps after which it was; None if it is not.
        steps: the number of steps observed.
    """

    def __init__(self, audited: Audited, kind: str | Sequence[Tensor], asked: Asked) -> None:
        self._audited, self._asked = audited, asked
        self._kind = kind if isinstance(kind, str) else "own"
        self._claim: Claim = GDP(asked.delta)
        if asked.canary_rate < 1:
            self._claim = MechanismDP(asked.delta, asked.canary_rate, 1, asked.adjacency)
        self._expected = Expected(1.0, -1.0 if asked.adjacency == "substitute" else 0.0, asked.canary_rate)
        self._bettor, self._weights = Bettor(asked.alpha, self._expected), PieceWeights(len(audited.parameters))
        self._scores: list[float] = []
        self._bits: list[int] = []
        self._sigmas: list[float] = []
        self._batches: list[tuple[float | None, int]] = []  # of each step: their sample rate, and how many
        self._reported: Report | None = None
        self._reported_for = (0, "")  # so many observations and this sampling
        self._steps = AuditedSteps(
            audited.optimizer,
            Canaries(kind, norm=asked.canary_norm, bounds=audited.bounds, seed=asked.seed, anew=asked.anew),
            adjacency=asked.adjacency,
            rate=asked.canary_rate,
            norm=asked.canary_norm,
            seed=asked.seed,
            observed=self._judge,
        )
        setattr(audited.optimizer, MARK, self)

    @property
    def refuted(self) -> bool:
        return self._bettor.refuted_at is not None

    @property
    def refuted_at(self) -> int | None:
        return self._bettor.refuted_at

    @property
    def steps(self) -> int:
        return len(self._scores)

    def remove(self) -> None:
        """End the audit: the optimizer is as it was before. Reports remain."""
        self._steps.remove()
        vars(self._audited.optimizer).pop(MARK, None)

    def _judge(self, seen: Observation) -> None:
        sigma = self._asked.noise_multiplier
        if sigma is None:
            sigma = checks.real("optimizer.noise_multiplier", seen.noise_multiplier, above=0)
        bit, sign, pieces, _ = seen.entered
        places = np.array(list(pieces))
        norms = np.array([piece.clipped for piece in pieces.values()])
        score = float(np.float32(self._weights.score(seen.products, norms, places, sign)))
        self._bettor.observe(score, bit == 0, self._claim, distance(self._asked.adjacency) / sigma)
        self._scores.append(score)
        self._bits.append(bit)
        self._sigmas.append(sigma)
        self._batches.append((seen.batch_rate, seen.batches))
        if self._asked.callback is not None:
            self._asked.callback(self)

    def observations(self) -> xr.Dataset:
        """The observations so far: `score` and `bit`, and the noise multiplier that was claimed of each step.

        The attributes hold what is needed to audit again.
        """
        data = {
            "score": ("observation", np.array(self._scores, dtype=np.float32), {"long_name": LONG_NAMES["score"]}),
            "bit": ("observation", np.array(self._bits, dtype=np.int8), {"long_name": LONG_NAMES["bit"]}),
            "noise_multiplier": ("observation", np.array(self._sigmas), {"long_name": "claimed noise multiplier"}),
        }
        made = {f"version_{name}": version for name, version in versions("opacus", "torch").items()}
        optimizer = self._audited.optimizer
        about = {
            "observation": "optimizer",
            "canary": self._kind,
            **{name: value for name, value in vars(self._asked).items() if name != "callback" and value is not None},
            "anew": int(self._asked.anew),
            "optimizer": type(optimizer).__name__,
            "max_grad_norm": float(optimizer.max_grad_norm),
        }
        return xr.Dataset(data, attrs={**about, **made})

    def report(self) -> Report:
        """What the observations so far say.

        Raises:
            ValueError: if no step has been observed, if the sample rate of the training is not known, or if the
                accountant cannot compute what is claimed.
        """
        if not self._scores:
            waiting = f", and {self._steps.batches} batches were accumulated" if self._steps.batches else ""
            raise ValueError(
                f"report() must come after a step of the optimizer, got none so far{waiting}: call optimizer.step() "
                "where it is not skipped"
            )
        sampling = self._sampling()
        if self._reported is None or self._reported_for != (len(self._scores), sampling):
            self._reported, self._reported_for = self._report(sampling), (len(self._scores), sampling)
        return self._reported

    def _sampling(self) -> str:
        """That of the attached accountant, if it is dpsub's. Opacus's own assume Poisson sampling."""
        accountant = accounted(self._audited.optimizer).get("self")
        if not isinstance(accountant, SubstitutePRVAccountant):
            return "poisson"
        accountant.check_sampling(accountant.sampling)
        return accountant.sampling

    def _report(self, sampling: str) -> Report:
        steps = zip(self._sigmas, (self._rate(*one) for one in self._batches), strict=True)
        history = [(*phase, sum(1 for _ in same)) for phase, same in groupby(steps)]
        rate, sigma = min(rate for _, rate, _ in history), min(self._sigmas)
        claimed_step = distance(self._asked.adjacency) / sigma
        step = self._step_bound(claimed_step)
        return Report(
            observations=len(self._scores),
            step=step,
            training=self._training_bound(step, rate),
            claimed=accounting.epsilon(
                history=history, delta=self._asked.delta, adjacency=self._asked.adjacency, sampling=sampling
            ),
            claimed_step=claimed_step,
            refuted=self.refuted,
            refuted_at=self.refuted_at,
            delta=self._asked.delta,
            adjacency=self._asked.adjacency,
            alpha=self._asked.alpha,
            sample_rate=rate,
            noise_multiplier=sigma,
            fewest=fewest(self._claim, claimed_step, self._asked.alpha, self._expected),
            notes=self._audited.notes,
        )

    def _step_bound(self, claimed_step: float) -> LowerBound:
        if len(set(self._bits)) < 2:
            note = f"all {len(self._bits)} observations are of one world"
            return LowerBound(0.0, "gdp", "gdp", True, note, details={"mu": 0.0, "observations": len(self._bits)})
        sampling: dict[str, Any] = {}
        if self._asked.canary_rate < 1:
            sampling = {"sample_rate": self._asked.canary_rate, "steps": 1, "adjacency": self._asked.adjacency}
        bound = epsilon_lower_bound(
            np.array(self._scores),
            np.array(self._bits),
            delta=self._asked.delta,
            method="pld" if sampling else "gdp",
            threshold="bets",
            alpha=self._asked.alpha,
            **sampling,
        )
        assert isinstance(bound, LowerBound)
        return bound if self.refuted else self._no_more_than_claimed(bound, claimed_step)

    def _no_more_than_claimed(self, bound: LowerBound, claimed_step: float) -> LowerBound:
        """The bound, lowered to the claim, which its own bets have not refuted."""
        epsilon = self._claim.epsilon(claimed_step)
        if bound.epsilon <= epsilon:
            return bound
        note = "lowered to the claim, which is not refuted"
        return replace(bound, epsilon=epsilon, note=note).with_details(**self._claim.details(claimed_step))

    def _training_bound(self, step: LowerBound, rate: float) -> LowerBound:
        training = step_to_training(
            step, sample_rate=rate, steps=len(self._scores), delta=self._asked.delta, adjacency=self._asked.adjacency
        )
        if len(set(self._sigmas)) > 1:
            note = "the claimed noise changed between the steps, and the bound takes all of them for equal"
            return replace(training, valid=False, note=note)
        return training

    def _rate(self, batch_rate: float | None, batches: int) -> float:
        """The sample rate of a step, of so many accumulated batches."""
        known = batch_rate if self._asked.sample_rate is None else self._asked.sample_rate
        if known is None:
            raise ValueError(
                "sample_rate must be given to audit_optimizer, since no accountant is attached to the optimizer that "
                "knows it, got None: it is one over the number of batches an epoch"
            )
        rate = checks.real("sample_rate", known, above=0) * batches
        if rate > 1:
            raise ValueError(
                f"sample_rate must be at most 1 for the batches of a step together, got {known:g} for each of "
                f"{batches} accumulated ones: a step that goes through more than an epoch uses records twice, and no ε "
                "is known for it. Accumulate fewer batches"
            )
        return rate
