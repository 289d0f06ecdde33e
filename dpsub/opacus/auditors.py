"""An audit of an optimizer while it trains: how its steps are scored and bet on, and what it reports."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from dpsub import accounting
from dpsub._core import checks
from dpsub._core.datasets import LONG_NAMES, numbered
from dpsub._core.noise_test import Left, NoiseTest
from dpsub._core.provenance import versions
from dpsub.accounting.phases import distance
from dpsub.estimators import LowerBound, epsilon_lower_bound, step_to_training
from dpsub.estimators.betting import FIRST, Bets, steps_before
from dpsub.estimators.claims import GDP, Claim
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.wealth import Bettor, Expected, fewest
from dpsub.opacus.accountant import SubstitutePRVAccountant, accounted
from dpsub.opacus.audited_steps import MARK, Asked, Audited, AuditedSteps, Observation
from dpsub.opacus.canary_gradients import Canaries, Tensor

LEAST_VARIANCE = 1e-9  # relative to the largest
NO_RATE = "give audit_optimizer sample_rate, one over the number of batches an epoch"

Array = NDArray[np.float64]


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
        self._noise: NoiseTest | None = None
        self._share = asked.alpha  # of the bets
        if asked.test_noise and audited.per_sample:
            self._share /= 2
            self._sizes = [one.numel() for one in audited.parameters]
            self._noise = NoiseTest(self._share, self._sizes, asked.seed)
        self._bettor = Bettor(self._share, self._expected, asked.canaries)
        self._weights = PieceWeights(len(audited.parameters))
        self._scores: list[float] = []
        self._bits: list[int] = []
        self._sigmas: list[float] = []
        self._batches: list[tuple[float | None, int]] = []  # of each step: their sample rate, and how many
        self._reported: Report | None = None
        self._reported_for = (0, 0, "")  # so many steps, unseen ones and this sampling
        self._steps = AuditedSteps(
            audited,
            Canaries(
                kind,
                norm=asked.canary_norm,
                bounds=audited.bounds,
                seed=asked.seed,
                anew=asked.anew,
                number=asked.canaries,
            ),
            asked,
            self._judge,
        )
        setattr(audited.optimizer, MARK, self)

    @property
    def refuted(self) -> bool:
        return self.refuted_at is not None

    @property
    def refuted_at(self) -> int | None:
        found = (self._bettor.refuted_at, None if self._noise is None else self._noise.found_at)
        return min((at for at in found if at is not None), default=None)

    @property
    def steps(self) -> int:
        return len(self._sigmas)

    def remove(self) -> None:
        """End the audit: the optimizer is as it was before. Reports remain."""
        self._steps.remove()
        vars(self._audited.optimizer).pop(MARK, None)

    def _judge(self, seen: Observation) -> None:
        sigma = self._asked.noise_multiplier
        if sigma is None:
            sigma = checks.real("optimizer.noise_multiplier", seen.noise_multiplier, above=0)
        bits, signs, canaries, _ = seen.entered
        scores = []
        for products, pieces, sign in zip(seen.products, canaries, signs, strict=True):
            norms = np.array([piece.clipped for piece in pieces.values()])
            scores.append(float(np.float32(self._weights.score(products, norms, np.array(list(pieces)), sign))))
        self._bettor.observe(scores, np.array(bits) == 0, self._claim, distance(self._asked.adjacency) / sigma)
        if self._noise is not None and seen.left is not None:
            self._noise.observe(looked_at(*seen.left, sigma, self._sizes, torch.as_tensor(self._noise.places)))
        self._scores += scores
        self._bits += bits
        self._sigmas.append(sigma)
        self._batches.append((seen.batch_rate, seen.batches))
        if self._asked.callback is not None:
            self._asked.callback(self)

    def observations(self) -> xr.Dataset:
        """The observations so far: `score` and `bit`, and the noise multiplier that was claimed of each step.

        A step has an observation of each of its canaries: `step` is the number of the step. The attributes hold what is
        needed to audit again.
        """
        each = self._asked.canaries
        steps = np.repeat(np.arange(1, self.steps + 1), each)
        data = {
            "score": ("observation", np.array(self._scores, dtype=np.float32), {"long_name": LONG_NAMES["score"]}),
            "bit": ("observation", np.array(self._bits, dtype=np.int8), {"long_name": LONG_NAMES["bit"]}),
            "noise_multiplier": (
                "observation",
                np.repeat(self._sigmas, each),
                {"long_name": "claimed noise multiplier"},
            ),
        }
        made = {f"version_{name}": version for name, version in versions("opacus", "torch").items()}
        optimizer = self._audited.optimizer
        about = {
            "observation": "optimizer",
            "canary": self._kind,
            **{name: value for name, value in vars(self._asked).items() if name != "callback" and value is not None},
            **{name: int(getattr(self._asked, name)) for name in ("anew", "test_noise")},
            "optimizer": type(optimizer).__name__,
            "max_grad_norm": float(optimizer.max_grad_norm),
            "steps": self.steps,
        }
        return numbered(xr.Dataset(data, coords={"step": ("observation", steps)}, attrs={**about, **made}))

    def report(self) -> Report:
        """What the observations so far say.

        Raises:
            ValueError: if no step has been observed, if accumulated batches together have a sample rate above 1, or if
                the accountant cannot compute what is claimed.
        """
        if not self._scores:
            waiting = f", and {self._steps.batches} batches were accumulated" if self._steps.batches else ""
            raise ValueError(
                f"report() must come after a step of the optimizer, got none so far{waiting}: call optimizer.step() "
                "where it is not skipped"
            )
        accountant = accounted(self._audited.optimizer).get("self")
        unseen = max(0, sum(steps for *_, steps in getattr(accountant, "history", ())) - self.steps)
        about = self.steps, unseen, self._sampling(accountant)
        if self._reported is None or self._reported_for != about:
            self._reported, self._reported_for = self._report(*about[1:]), about
        return self._reported

    def _sampling(self, accountant: Any) -> str:
        """That of the attached accountant, if it is dpsub's. Opacus's own assume Poisson sampling."""
        if not isinstance(accountant, SubstitutePRVAccountant):
            return "poisson"
        accountant.check_sampling(accountant.sampling)
        return accountant.sampling

    def _report(self, unseen: int, sampling: str) -> Report:
        rates = [self._rate(*one) for one in self._batches]
        known = [rate for rate in rates if rate is not None]
        rate, sigma = (min(known) if len(known) == len(rates) else None), min(self._sigmas)
        claimed_step = distance(self._asked.adjacency) / sigma
        step = self._step_bound(claimed_step)
        return Report(
            observations=self.steps,
            canaries=self._asked.canaries,
            step=step,
            training=None if rate is None else self._training_bound(step, rate),
            claimed=None if rate is None else self._claimed(known, sampling),
            claimed_step=claimed_step,
            refuted=self.refuted,
            refuted_at=self.refuted_at,
            delta=self._asked.delta,
            adjacency=self._asked.adjacency,
            alpha=self._asked.alpha,
            sample_rate=rate,
            noise_multiplier=sigma,
            fewest=fewest(self._claim, claimed_step, self._share, self._expected, self._asked.canaries),
            notes=self._audited.notes,
            fault=None if self._noise is None else self._noise.fault,
            clipping=None if self._noise is None else self._noise.clipping,
            unseen=unseen,
        )

    def _claimed(self, rates: list[float], sampling: str) -> float:
        """The accountant's ε of the steps so far, with these sample rates."""
        phases = groupby(zip(self._sigmas, rates, strict=True))
        history = [(*phase, sum(1 for _ in same)) for phase, same in phases]
        return accounting.epsilon(
            history=history, delta=self._asked.delta, adjacency=self._asked.adjacency, sampling=sampling
        )

    def _step_bound(self, claimed_step: float) -> LowerBound:
        if len(set(self._bits)) < 2:
            note = f"all {len(self._bits)} observations are of one world"
            return LowerBound(0.0, "gdp", "gdp", True, note, mu=0.0, details={"observations": len(self._bits)})
        sampling: dict[str, Any] = {}
        if self._asked.canary_rate < 1:
            sampling = {"sample_rate": self._asked.canary_rate, "steps": 1, "adjacency": self._asked.adjacency}
        bound = epsilon_lower_bound(
            np.array(self._scores),
            np.array(self._bits),
            delta=self._asked.delta,
            claim="pld" if sampling else "gdp",
            rule=Bets(self._asked.canaries),
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
        return replace(bound, epsilon=epsilon, note=note, **self._claim.says(claimed_step))

    def _training_bound(self, step: LowerBound, rate: float) -> LowerBound:
        training = step_to_training(
            step, sample_rate=rate, steps=self.steps, delta=self._asked.delta, adjacency=self._asked.adjacency
        )
        if len(set(self._sigmas)) > 1:
            note = "the claimed noise changed between the steps, and the bound takes all of them for equal"
            return replace(training, valid=False, note=note)
        return training

    def _rate(self, batch_rate: float | None, batches: int) -> float | None:
        """The sample rate of a step, of so many accumulated batches; None if nobody said."""
        known = batch_rate if self._asked.sample_rate is None else self._asked.sample_rate
        if known is None:
            return None
        rate = checks.real("sample_rate", known, above=0) * batches
        if rate > 1:
            raise ValueError(
                f"sample_rate must be at most 1 for the batches of a step together, got {known:g} for each of "
                f"{batches} accumulated ones: a step that goes through more than an epoch uses records twice, and no ε "
                "is known for it. Accumulate fewer batches"
            )
        return rate


def looked_at(residue: Tensor, records: Tensor, sigma: float, sizes: Sequence[int], places: Tensor) -> Left:
    """What the test of the noise takes, of tensors in clipping bounds, all parameters in a row."""
    norms = [torch.linalg.vector_norm(one) for one in torch.split(residue, list(sizes))]
    numbers = torch.stack([*norms, residue @ records, records @ records]).double().cpu().numpy()
    sampled = torch.stack([residue[places], records[places]]).double().cpu().numpy()
    return Left((numbers[:-2] / sigma) ** 2, sampled / sigma, *(numbers[-2:] / sigma**2))


class PieceWeights:
    """Weighs the pieces of a canary by what the past shows of their noise.

    For the first `FIRST` observations the score is the product with the clipped canary, of norm 1. Later the weight of
    a piece is its norm over the variance of its products in the past (a matched filter): a parameter without noise then
    decides. The score of an observation uses earlier ones only, so bets may use it. The scale stays: without noise,
    the score of a clipped canary is its norm.
    """

    def __init__(self, parameters: int) -> None:
        # One row each for observations with -canary, without it, and with +canary.
        self._counts, self._sums, self._squares = (np.zeros((3, parameters)) for _ in range(3))

    def score(self, products: Array, norms: Array, places: NDArray[np.int64], sign: int) -> float:
        """The score of an observation, which is learnt from afterwards.

        Args:
            products: of the privatised sum with the pieces' directions, in clipping bounds.
            norms: of the pieces after correct clipping, in clipping bounds.
            places: the parameters that the pieces are of.
            sign: 1, -1 or 0: how the canary was in.
        """
        if len(places) == 1:
            return float(products[0])
        weights = norms / self._variances(places)
        self._counts[sign + 1, places] += 1
        self._sums[sign + 1, places] += products
        self._squares[sign + 1, places] += products**2
        return float((weights @ products) / (weights @ norms) * np.sqrt(norms @ norms))

    def _variances(self, places: NDArray[np.int64]) -> Array:
        counts = self._counts[:, places]
        if counts.sum(axis=0).min() < FIRST:
            return np.ones(len(places))
        means = self._sums[:, places] / np.maximum(counts, 1)
        spread = (self._squares[:, places] - counts * means**2).sum(axis=0) / counts.sum(axis=0)
        return np.maximum(spread, LEAST_VARIANCE * spread.max()) if spread.max() > 0 else np.ones(len(places))


@dataclass(frozen=True)
class Report:
    """What the observations of an optimizer say about its claim. `str` puts it into words.

    Attributes:
        observations: the number of steps that were observed.
        canaries: of each step.
        step: the bound on the ε of one step with the canary at its rate.
        training: the bound on the ε of the observed steps, as a training at `sample_rate`; None if nobody said which.
        claimed: the accountant's ε of these steps, for the same adjacency and δ. Opacus's accountants assume Poisson
            sampling; with dpsub's, its `sampling` counts. None without a sample rate.
        claimed_step: the μ that is claimed of a step that surely holds the record: the distance of its worlds over the
            noise. If the claim changed, the largest one.
        refuted: whether the claim is refuted, at confidence 1 − alpha.
        refuted_at: the number of steps after which it was; None if it is not.
        delta, adjacency, alpha, sample_rate: what all this holds for.
        noise_multiplier: the least that was claimed of a step.
        fewest: the number of steps after which a perfect attack would refute this claim; None if that takes more than
            20,000.
        notes: what the audit did not look at.
        fault: what is wrong with the noise, in words; None if nothing was found.
        clipping: how the released sums differ from those of clipped gradients, in words; None if they do not, or if the
            noise comes again, which has a share of any sums.
        unseen: the number of steps in the attached accountant's history that were not observed.
    """

    observations: int
    canaries: int
    step: LowerBound
    training: LowerBound | None
    claimed: float | None
    claimed_step: float
    refuted: bool
    refuted_at: int | None
    delta: float
    adjacency: str
    alpha: float
    sample_rate: float | None
    noise_multiplier: float
    fewest: int | None
    notes: tuple[str, ...] = ()
    fault: str | None = None
    clipping: str | None = None
    unseen: int = 0

    @property
    def epsilon(self) -> float:
        """The lower bound on the ε of the training so far.

        Raises:
            ValueError: if nobody said at which sample rate it trains.
        """
        if self.training is None:
            raise ValueError(f"epsilon is that of a training, got no sample rate: {NO_RATE}")
        return self.training.epsilon

    @property
    def verdict(self) -> str:
        """In a few words: "consistent so far" or "refuted at step t"."""
        return "consistent so far" if self.refuted_at is None else f"refuted at step {self.refuted_at:,}"

    def __str__(self) -> str:
        return "\n\n".join(textwrap.fill(paragraph, 76) for paragraph in self._paragraphs())

    def _paragraphs(self) -> list[str]:
        confidence = f"confidence {100 * (1 - self.alpha):g} %"
        found = [
            f"The claim of noise multiplier {self.noise_multiplier:.4g} is {self.verdict}, at {confidence} "
            f"({self.observations:,} steps observed, {self.adjacency} adjacency, δ = {self.delta:g})."
        ]
        if self.unseen:
            found.append(
                f"Not observed: {self.unseen:,} of the {self.unseen + self.observations:,} steps in the accountant's "
                "history. No number here is about them."
            )
        if self.fault is not None:
            found.append(
                f"What is left without the records and the canary is not the noise that is claimed: {self.fault}."
            )
        if self.clipping is not None:
            found.append(f"Clipping is not what is claimed: {self.clipping}.")
        first = steps_before(self.canaries)
        if self.observations <= first:
            more = first + 1 - self.observations
            found.append(f"There are no bounds yet: they need {more} more {'steps' if more > 1 else 'step'}.")
            if not self.refuted:
                found.append(self._needed())
            return [*found, *self.notes]
        most = self._noise_shown()
        if self.refuted and most >= self.noise_multiplier:  # why they lag comes before them
            found.append("The bounds bet on all claims at once, and need more steps to show what the verdict says.")
        shown = f"its noise multiplier is at most {most:.3g}" if most < math.inf else "its noise is not bounded yet"
        training = f"The ε of the training needs a sample rate: {NO_RATE}."
        if self.training is not None:
            training = (
                f"The {self.observations:,} steps at sample rate {self.sample_rate:.4g}: ε is at least "
                f"{self.training.epsilon:.3g}, where {self.claimed:.3g} is claimed."
            )
        found.append(f"One step: {shown}, where {self.noise_multiplier:.4g} is claimed. {training}")
        if not self.refuted:
            found.append(
                "That it is consistent does not show that it is right: more steps, or another canary, may refute it. "
                f"{self._needed()}"
            )
        return [*found, *self.notes]

    def _noise_shown(self) -> float:
        """The largest noise multiplier that the observations of a step leave."""
        distance = 2.0 if self.adjacency == "substitute" else 1.0
        if self.step.mu is not None:
            return distance / self.step.mu if self.step.mu else math.inf
        return math.inf if self.step.noise_multiplier is None else self.step.noise_multiplier

    def _needed(self) -> str:
        if self.fewest is None:
            return "Even a perfect attack would not refute this claim within 20,000 steps."
        return f"Even a perfect attack would take {self.fewest:,} steps to refute this claim."
