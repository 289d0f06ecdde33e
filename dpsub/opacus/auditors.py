"""An audit of an optimizer while it trains: how its steps are scored and bet on, and what it reports."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer, DPOptimizerFastGradientClipping, DPPerLayerOptimizer

from dpsub import accounting
from dpsub._core import checks
from dpsub._core.datasets import LONG_NAMES, numbered
from dpsub._core.noise_test import NoiseTest, Summary
from dpsub._core.provenance import versions
from dpsub.accounting.dominating_pairs import distance
from dpsub.accounting.statements import rounded
from dpsub.estimators import LowerBound, epsilon_lower_bound, step_to_training
from dpsub.estimators.audit_bounds import CHANGED
from dpsub.estimators.betting import FIRST, Bets, steps_before
from dpsub.estimators.claims import GDP, Claim
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.wealth import Bettor, Expected, fewest
from dpsub.opacus.accountant import SubstitutePRVAccountant, attached_accountant
from dpsub.opacus.audited_steps import MARK, AuditedSteps, EnteredCanaries, Observation, Options
from dpsub.opacus.canary_gradients import KINDS, Tensor, own_gradients

LEAST_VARIANCE = 1e-9  # relative to the largest
NOT_AUDITED = {
    DPOptimizerFastGradientClipping: (
        "With ghost clipping there are no per-sample gradients. The canaries entered after clipping, so clipping "
        "was not audited."
    ),
    AdaClipDPOptimizer: (
        "The noisy sum was audited. What adaptive clipping releases besides, the noisy count, was not, and with it the "
        "true ε can exceed the claimed one. The canaries are counted, too, which changes the clipping bound a little."
    ),
}
NO_RATE = "give audit_optimizer sample_rate, one over the number of batches an epoch"

Array = NDArray[np.float64]


class Auditor:
    """The audit of one optimizer, as `audit_optimizer` returns it.

    Attributes:
        refuted: whether the claim is refuted so far, at confidence 1 − alpha. Cheap at each step.
        refuted_at: the number of steps after which it was; None if it is not.
        steps: the number of steps observed.
    """

    def __init__(self, optimizer: DPOptimizer, kind: str | Sequence[Tensor], options: Options, callback: Any) -> None:
        self._optimizer, self._options, self._callback = optimizer, options, callback
        self._kind = kind if isinstance(kind, str) else "own"
        self._stated: dict[str, Any] = {"delta": options.delta, "adjacency": options.adjacency}  # every ε
        self._claim: Claim = GDP(options.delta)
        if options.canary_rate < 1:
            self._claim = MechanismDP(options.delta, options.canary_rate, 1, options.adjacency)
        self._expected = Expected(1.0, -1.0 if options.adjacency == "substitute" else 0.0, options.canary_rate)
        self._scores: list[float] = []
        self._bits: list[int] = []
        self._sigmas: list[float] = []
        self._rates: list[float | None] = []  # of each step; None if nobody said
        self._steps = AuditedSteps(optimizer, kind, options, self._observe)
        self._sizes = [parameter.numel() for parameter in self._steps.parameters]
        self._weights = PieceWeights(len(self._sizes))
        self._noise: NoiseTest | None = None
        self._bets_alpha = options.alpha  # of the bets on canaries; those on the noise have the rest
        if options.test_noise and not self._steps.ghost:
            self._bets_alpha /= 2
            self._noise = NoiseTest(self._bets_alpha, self._sizes, options.seed)
        self._bettor = Bettor(self._bets_alpha, self._expected, options.canaries)

    @property
    def refuted(self) -> bool:
        return self.refuted_at is not None

    @property
    def refuted_at(self) -> int | None:
        verdicts = (self._bettor.refuted_at, None if self._noise is None else self._noise.found_at)
        return min((step for step in verdicts if step is not None), default=None)

    @property
    def steps(self) -> int:
        return len(self._sigmas)

    def remove(self) -> None:
        """End the audit: the optimizer is as it was before. Reports remain."""
        self._steps.remove()

    def _observe(self, entered: EnteredCanaries, observation: Observation) -> None:
        """Score the canaries of a step, and bet on them and on the noise before the step is kept."""
        sigma = self._options.noise_multiplier
        if sigma is None:
            sigma = checks.real("optimizer.noise_multiplier", observation.noise_multiplier, above=0)
        scores = []
        for products, pieces, sign in zip(observation.products, entered.canaries, entered.signs, strict=True):
            norms = np.array([piece.clipped for piece in pieces.values()])
            scores.append(float(np.float32(self._weights.score(products, norms, np.array(list(pieces)), sign))))
        self._bet(scores, entered.bits, sigma)
        if self._noise is not None and observation.residue_and_records is not None:
            places = torch.as_tensor(self._noise.places)
            self._noise.observe(noise_statistics(*observation.residue_and_records, sigma, self._sizes, places))
        self._scores += scores
        self._bits += entered.bits
        self._sigmas.append(sigma)
        # A record is in a step's batches together with at most the sum of their rates.
        rate = self._options.sample_rate or attached_accountant(self._optimizer)[1]
        self._rates.append(None if rate is None else rate * self._steps.accumulated)
        if self._callback is not None:
            self._callback(self)

    def _bet(self, scores: ArrayLike, bits: ArrayLike, sigma: float) -> None:
        self._bettor.observe(scores, np.asarray(bits) == 0, self._claim, distance(self._options.adjacency) / sigma)

    @property
    def _same(self) -> dict[str, Any]:
        """What audits must have in common if one goes on from the state of the other."""
        shapes = {f"shape of parameter {i}": tuple(one.shape) for i, one in enumerate(self._steps.parameters)}
        clipping = "ghost" if self._steps.ghost else self._steps.bounds or "flat"
        model = {"number of parameters": len(shapes), **shapes}
        return {**model, "clipping": clipping, "canary": self._kind, **vars(self._options)}

    def state_dict(self) -> dict[str, Any]:
        """The audit so far, for the checkpoint of its training: what `torch.load` takes with `weights_only=True`.

        A training that goes on from it reports what it would have reported without the interruption, and finds noise
        that repeats, such as that of a generator that starts anew with the same seed. For this the state holds some
        coordinates of the noise of all steps: do not publish it with the model.
        """
        state = {
            "audit": self._same,
            "history": [self._scores, self._bits, self._sigmas, self._rates],
            "streams": [self._steps.coins.bit_generator.state, self._steps.canaries.rng.bit_generator.state],
            "quiet": self._steps.canaries.quiet,
            "weights": vars(self._weights),
            "noise": vars(self._noise) if self._noise else {},
        }
        return dict(_exchanged(state))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the audit of an interrupted training, before the first step.

        Args:
            state: what `state_dict` returned when the parameters, the optimizer and the accountant were saved that the
                training goes on from.

        Raises:
            ValueError: if a step was observed already, or if the state is that of another audit: of another model, way
                to clip, or argument of `audit_optimizer`.
        """
        if self.steps or self._steps.batches:
            raise ValueError(f"load_state_dict() must come before the first step, got an audit of {self.steps} steps")
        for name, mine in self._same.items():
            if (theirs := state.get("audit", {}).get(name)) != mine:
                raise ValueError(
                    f"state must be of an audit with the same {name}, {mine!r}, got {theirs!r}: give audit_optimizer "
                    "the same arguments (without noise_multiplier and sample_rate if they change), or load no state"
                )
        seen, canaries = _exchanged(state), self._steps.canaries
        self._scores, self._bits, self._sigmas, self._rates = seen["history"]
        self._steps.taken, canaries.quiet = self.steps, seen["quiet"]
        self._steps.coins.bit_generator.state, canaries.rng.bit_generator.state = seen["streams"]
        vars(self._weights).update(seen["weights"])
        if self._noise:
            vars(self._noise).update(seen["noise"])
        by_step = (np.reshape(one, (self.steps, self._options.canaries)) for one in (self._scores, self._bits))
        for scores, bits, sigma in zip(*by_step, self._sigmas, strict=True):
            self._bet(scores, bits, sigma)

    def observations(self) -> xr.Dataset:
        """The observations so far: `score` and `bit`, and the noise multiplier that was claimed of each step.

        A step has an observation of each of its canaries: `step` is the number of the step. The attributes hold what is
        needed to audit again.
        """
        steps = np.repeat(np.arange(1, self.steps + 1), self._options.canaries)
        sigmas = np.repeat(self._sigmas, self._options.canaries)
        data = {
            "score": ("observation", np.array(self._scores, dtype=np.float32), {"long_name": LONG_NAMES["score"]}),
            "bit": ("observation", np.array(self._bits, dtype=np.int8), {"long_name": LONG_NAMES["bit"]}),
            "noise_multiplier": ("observation", sigmas, {"long_name": "claimed noise multiplier"}),
        }
        options = {name: value for name, value in {**vars(self._options), **self._asked}.items() if value is not None}
        attributes = {
            "observation": "optimizer",
            "canary": self._kind,
            **{name: int(value) if isinstance(value, bool) else value for name, value in options.items()},
            "optimizer": type(self._optimizer).__name__,
            "max_grad_norm": float(self._optimizer.max_grad_norm),
            "steps": self.steps,
            **{f"version_{name}": version for name, version in versions("opacus", "torch").items()},
        }
        return numbered(xr.Dataset(data, coords={"step": ("observation", steps)}, attrs=attributes))

    def report(self) -> Report:
        """What the observations so far say.

        Raises:
            ValueError: if no step has been observed, if accumulated batches together have a sample rate above 1 (a step
                that goes through more than an epoch uses records twice, and no ε is known for it), or if the accountant
                cannot compute what is claimed.
        """
        if not self._scores:
            waiting = f", and {self._steps.batches} batches were accumulated" if self._steps.batches else ""
            raise ValueError(
                f"report() must come after a step of the optimizer, got none so far{waiting}: call optimizer.step() "
                "where it is not skipped"
            )
        accountant, _ = attached_accountant(self._optimizer)
        counted = self.steps if accountant is None else sum(steps for *_, steps in accountant.history)
        rates = [rate for rate in self._rates if rate is not None]
        rate = min(rates) if len(rates) == self.steps else None
        claimed_step = distance(self._options.adjacency) / min(self._sigmas)
        step = self._step_bound(claimed_step)
        return Report(
            observations=self.steps,
            canaries=self._options.canaries,
            step=step,
            training=None if rate is None else self._training_bound(step, rate),
            claimed=None if rate is None else self._claimed(rates, accountant),
            claimed_step=claimed_step,
            refuted=self.refuted,
            refuted_at=self.refuted_at,
            **self._stated,
            alpha=self._options.alpha,
            sample_rate=rate,
            noise_multiplier=min(self._sigmas),
            fewest=fewest(self._claim, claimed_step, self._bets_alpha, self._expected, self._options.canaries),
            notes=tuple(note for kind, note in NOT_AUDITED.items() if isinstance(self._optimizer, kind)),
            fault=None if self._noise is None else self._noise.fault,
            clipping=None if self._noise is None else self._noise.clipping,
            unseen=max(0, counted - self.steps),
            uncounted=max(0, self.steps - counted),
        )

    @property
    def _asked(self) -> dict[str, Any]:
        """What accountants are asked for a training. Opacus's own assume Poisson sampling, and do not say so."""
        return self._stated | {"sampling": str(getattr(attached_accountant(self._optimizer)[0], "sampling", "poisson"))}

    def _claimed(self, rates: list[float], accountant: Any) -> float:
        """ε of the steps so far, if each has the claimed noise and these sample rates."""
        if isinstance(accountant, SubstitutePRVAccountant):
            accountant.check_sampling(accountant.sampling)
        history = [(*phase, len([*same])) for phase, same in groupby(zip(self._sigmas, rates, strict=True))]
        return float(accounting.epsilon(history=history, **self._asked))

    def _step_bound(self, claimed_step: float) -> LowerBound:
        if len(set(self._bits)) < 2:
            note = f"all {len(self._bits)} observations are of one world"
            return LowerBound(0.0, "gdp", "gdp", True, note, mu=0.0, details={"observations": len(self._bits)})
        by: dict[str, Any] = {"claim": self._claim, "rule": Bets(self._options.canaries), "alpha": self._options.alpha}
        bound = epsilon_lower_bound(np.array(self._scores), np.array(self._bits), delta=self._options.delta, **by)
        assert isinstance(bound, LowerBound)
        epsilon = self._claim.epsilon(claimed_step)
        if self.refuted or bound.epsilon <= epsilon:
            return bound
        note = "lowered to the claim, which is not refuted"
        return replace(bound, epsilon=epsilon, note=note, **self._claim.says(claimed_step))

    def _training_bound(self, step: LowerBound, rate: float) -> LowerBound:
        training = step_to_training(step, sample_rate=rate, steps=self.steps, **self._asked)
        return training if len(set(self._sigmas)) == 1 else replace(training, valid=False, note=CHANGED)


@checks.checked(
    "delta",
    "adjacency",
    "alpha",
    "sample_rate",
    "noise_multiplier",
    "seed",
    canary_rate=partial(checks.real, above=0, at_most=1),
    canary_norm=partial(checks.real, above=0),
    canaries=checks.whole,
    anew=checks.flag,
    test_noise=checks.flag,
)
def audit_optimizer(
    optimizer: DPOptimizer,
    *,
    delta: float,
    adjacency: str,
    canary: str | Sequence[Tensor] | Mapping[Tensor, Tensor] = "dirac",
    canary_rate: float = 1.0,
    canary_norm: float = 10.0,
    canaries: int = 1,
    alpha: float = 0.05,
    sample_rate: float | None = None,
    noise_multiplier: float | None = None,
    anew: bool = False,
    test_noise: bool = True,
    seed: int = 0,
    callback: Callable[[Auditor], Any] | None = None,
) -> Auditor:
    r"""Test an implementation of DP-SGD while it trains: a canary in each step, and what it leaves in the noisy sum.

    At each step of the optimizer a fair coin decides between two worlds. The canary is a gradient g that enters as one
    more record's, before clipping. Under substitution z is g and z′ is −g; otherwise z is g and z′ is nothing. Correct
    DP-SGD clips g to max_grad_norm C. The auditor clips and sums the records' gradients as well, and subtracts their
    sum from the privatised one: ε is about an adversary who knows all other records. The observation is what is left in
    the direction of the clipped canary, in units of C: N(±1, σ²), or N(1, σ²) against N(0, σ²).

    Bets against the claim decide whether it is refuted. They hold though later steps depend on earlier ones, and at any
    moment: a correct optimizer is ever refuted with probability at most alpha. The report's bound on a step comes from
    bets of the same kind on a family of claims, this one among them; the verdict is that of `refuted`.

    What is left besides the canary is the noise in all coordinates. Other bets, with half of alpha, are that it is less
    than claimed, everywhere or in one parameter, or that it repeats earlier noise or another parameter's. They take a
    few steps where a canary takes hundreds, and the report names what they found. They take no other way to clip for a
    fault, since it may be private, too: that the sums are not those of clipped gradients is a message and no verdict.

    What is audited are clipping, accumulation, noise and scaling. How batches are sampled is not seen: the canary's own
    coin decides whether it is in. It enters the first of the batches that `BatchMemoryManager` makes of one. If
    max_grad_norm shrinks between them, the noise covers less than what earlier records were clipped to: a fault.

    After it has been observed, the canary is taken out of the gradients again, as correct clipping leaves it. So a
    correct optimizer takes the steps that it would have taken without an audit, up to rounding: a canary must go
    through the optimizer's own sum, where faults are, and to subtract it again rounds once more. With a Dirac this is
    one coordinate. Only the bound of adaptive clipping remembers that there was one more record.

    Args:
        optimizer: Opacus's `DPOptimizer`, as `make_private` returns it, or a subclass of it: with flat, per-layer or
            adaptive clipping. With ghost clipping (`DPOptimizerFastGradientClipping`) there are no per-sample
            gradients: the canary enters after clipping, which is then not audited, the records stay in the sum, and the
            noise is not tested. Distributed ones (`DistributedDPOptimizer` and its kin) must be audited in all their
            processes alike: canaries enter in each process in turn, and all processes report the same. Those of FSDP
            are refused.
        delta: 0 < δ < 1; the δ at which ε are stated.
        adjacency: "substitute", "add_remove" (the canary's row is there or not) or "zero_out" (z′ is a row of zeros).
        canary: "dirac" (one coordinate, among the hundredth that the first batch moves least; with clipping by layer
            one of each parameter), "diracs" (one of each parameter), "constant", "random" (a Gaussian direction), or
            gradients of your own: a tensor for each of `optimizer.params`, or a mapping from parameters to tensors.
            Only their direction counts.
        canary_rate: in (0, 1]; the probability with which the canary is in a step at all. Below 1 the claim of a step
            is that of the subsampled Gaussian mechanism.
        canary_norm: > 0; the norm of the canary before clipping, in units of C.
        canaries: ≥ 1; so many in each step, each a row and a coordinate of its own, with a coin of its own. More than
            one must be "dirac", without clipping by layer. Ten show more in a hundred steps than one in four
            hundred; a hundred show little more than ten. The bets on a step are one bet, their mean. It holds however
            they depend on each other: the claim is that a step is private for each record, given all others.
        alpha: the probability with which a correct optimizer may be refuted, 1e-12 < alpha < 0.5.
        sample_rate: of a batch, for the ε of the training; accumulated batches add up. None: that of the attached
            accountant. If there is none, the report is of steps alone.
        noise_multiplier: what is claimed of each step, as the documentation says. None: what
            `optimizer.noise_multiplier` is when a step adds its noise.
        anew: draw the canary anew for each step.
        test_noise: bet on the noise as well, with half of alpha.
        seed: ≥ 0; of the coins and of the canary. The training's own randomness is not touched.
        callback: called with the auditor after each step, when the parameters have been updated. What it raises comes
            out of `optimizer.step()` and so ends the training.

    Returns:
        An `Auditor`: `report()`, `observations()`, `remove()`, and `refuted`, which a training loop may ask. Its
        `state_dict()` belongs in the checkpoints of the training.

    Raises:
        ValueError: if an argument is out of range, if the optimizer is none of these or is being audited already, or
            if the claim is a noise multiplier of 0, whose ε is infinite. Later, from `optimizer.step()`: if there are
            no per-sample gradients, the parameters are others than before, or the gradients are not finite.
        RuntimeError: if a process of a distributed optimizer is not audited: after five minutes. From
            `optimizer.step()`, if it returns without a step of `original_optimizer`.

    Source: *Tight Auditing*, Algorithm 2 and section 6.3.

    >>> import torch
    >>> from opacus.optimizers import DPOptimizer
    >>> weights = torch.nn.Parameter(torch.zeros(1_000))
    >>> optimizer = DPOptimizer(
    ...     torch.optim.SGD([weights], lr=0.1), noise_multiplier=0.5, max_grad_norm=1.0, expected_batch_size=8,
    ...     generator=torch.Generator().manual_seed(0),
    ... )
    >>> auditor = audit_optimizer(
    ...     optimizer, delta=1e-5, adjacency="substitute", sample_rate=0.1, noise_multiplier=1.0
    ... )
    >>> while not auditor.refuted:
    ...     weights.grad_sample = torch.ones(8, 1_000)
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> report = auditor.report()
    >>> report.refuted, report.refuted_at == auditor.steps
    (True, True)
    >>> auditor.remove()
    """
    given = locals()
    if not isinstance(optimizer, DPOptimizer):
        raise ValueError(
            "optimizer must be Opacus's DPOptimizer, as PrivacyEngine.make_private returns it, got "
            f"{type(optimizer).__name__}: make it private first"
        )
    if hasattr(optimizer, "world_size") and not hasattr(optimizer, "reduce_gradients"):
        raise ValueError(
            "optimizer must be of one process or sum its processes' gradients when it steps, as DistributedDPOptimizer "
            f"does, got {type(optimizer).__name__}: audit the same training in one process"
        )
    if hasattr(optimizer, MARK):
        raise ValueError("optimizer must not be under audit already, got one that is: call remove() of its auditor")
    if noise_multiplier is None and not float(optimizer.noise_multiplier) > 0:
        raise ValueError(
            f"optimizer.noise_multiplier must be > 0, got {optimizer.noise_multiplier}: its ε is infinite, and there "
            "is nothing to refute. To test another claim, give noise_multiplier"
        )
    kind = canary if isinstance(canary, str) and canary in KINDS else own_gradients(canary, list(optimizer.params))
    by_layer = isinstance(optimizer, DPPerLayerOptimizer)
    if canaries > 1 and (kind != "dirac" or by_layer):
        clipped = " with clipping by layer" if by_layer else ""
        raise ValueError(f"canaries must be 1 for any canary but 'dirac' with flat clipping, got {canaries}{clipped}")
    options = Options(**{field.name: given[field.name] for field in fields(Options)})
    return Auditor(optimizer, kind, options, callback)


def _exchanged(value: Any) -> Any:
    """Tensors for arrays, and arrays for tensors, in lists and dictionaries; Python's numbers for NumPy's."""
    if isinstance(value, dict):
        return {name: _exchanged(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(_exchanged, value)]
    if isinstance(value, Tensor):
        return value.cpu().numpy().copy()
    return torch.tensor(value) if isinstance(value, np.ndarray) else getattr(value, "item", lambda: value)()


def noise_statistics(residue: Tensor, records: Tensor, sigma: float, sizes: Sequence[int], places: Tensor) -> Summary:
    """What `NoiseTest` takes, of tensors in units of C with all parameters in a row."""
    norms = [torch.linalg.vector_norm(part) for part in torch.split(residue, list(sizes))]
    numbers = torch.stack([*norms, residue @ records, records @ records]).double().cpu().numpy()
    sampled = torch.stack([residue[places], records[places]]).double().cpu().numpy()
    return Summary((numbers[:-2] / sigma) ** 2, sampled / sigma, *(numbers[-2:] / sigma**2))


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
        claimed: the ε of these steps by `dpsub.accounting.epsilon`, if each has the claimed noise. Sampling is
            Poisson's, as Opacus's accountants assume, or that of dpsub's accountant. None without a sample rate.
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
        uncounted: the number of observed steps that are not in that history.
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
    uncounted: int = 0

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
        but = "" if self.refuted or self.clipping is None else ", but clipping is not what is claimed"
        paragraphs = [
            f"The claim of noise multiplier {self.noise_multiplier:.4g} is {self.verdict}{but}, at {confidence} "
            f"({self.observations:,} steps observed, {self.adjacency} adjacency, δ = {self.delta:g})."
        ]
        if self.unseen:
            paragraphs.append(
                f"Not observed: {self.unseen:,} of the {self.unseen + self.observations:,} steps in the accountant's "
                "history. No number here is about them."
            )
        if self.uncounted:
            paragraphs.append(
                f"Not accounted for: {self.uncounted:,} of the {self.observations:,} steps observed are not in the "
                "accountant's history, so its ε is too small. Load both states from the same checkpoint."
            )
        if self.fault is not None:
            paragraphs.append(
                f"What is left without the records and the canary is not the noise that is claimed: {self.fault}."
            )
        if self.clipping is not None:
            paragraphs.append(f"Clipping is not what is claimed: {self.clipping}.")
        first = steps_before(self.canaries)
        if self.observations <= first:
            more = first + 1 - self.observations
            or_canaries = ", or more canaries in each step (canaries=10)" if self.canaries == 1 else ""
            paragraphs.append(f"There are no bounds yet: they need {more} more step{'s' * (more > 1)}{or_canaries}.")
        else:
            paragraphs += self._bound_sentences()
        if not self.refuted:
            shows = (
                "That it is consistent does not show that it is right: more steps, or another canary, may refute it. "
            )
            paragraphs.append((shows if self.observations > first else "") + self._steps_needed())
        return [*paragraphs, *self.notes]

    def _bound_sentences(self) -> list[str]:
        texts, most = [], self._noise_shown()
        if self.refuted and most >= self.noise_multiplier:  # why they lag comes before them
            texts.append("The bounds bet on all claims at once, and need more steps to show what the verdict says.")
        shown = (
            f"its noise multiplier is at most {rounded(most)}" if most < math.inf else "its noise is not bounded yet"
        )
        training = f"The ε of the training needs a sample rate: {NO_RATE}."
        if self.training is not None and self.claimed is not None:
            training = (
                f"The {self.observations:,} steps at sample rate {self.sample_rate:.4g}, if batches are drawn as the "
                f"accountant assumes: ε is at least {rounded(self.training.epsilon, up=False)}, "
                f"where {rounded(self.claimed)} is claimed."
            )
        return [*texts, f"One step: {shown}, where {self.noise_multiplier:.4g} is claimed. {training}"]

    def _noise_shown(self) -> float:
        """The largest noise multiplier that the observations of a step leave."""
        if self.step.mu is not None:
            return distance(self.adjacency) / self.step.mu if self.step.mu else math.inf
        return math.inf if self.step.noise_multiplier is None else self.step.noise_multiplier

    def _steps_needed(self) -> str:
        if self.fewest is None:
            return "Bets that guess every coin right would not refute this claim within 20,000 steps."
        return f"Bets that guess every coin right would refute this claim after {self.fewest:,} steps, and not before."
