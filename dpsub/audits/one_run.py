r"""One training with many pairs: a fair coin for each says which of its two records is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from dpsub._core import CanaryPair, Pairs, checks
from dpsub._core.datasets import numbered
from dpsub._core.provenance import versions
from dpsub._core.random_streams import stream
from dpsub.accounting import DPSGD
from dpsub.audits.bank_plans import PRECISION, BankPlan, check_canary, refuse_other_batches
from dpsub.audits.execution import Options, execute
from dpsub.audits.observers import Observer, chosen
from dpsub.audits.own_training import OWN_FUNCTION
from dpsub.audits.plans import Arrays, Tick, unfilled
from dpsub.data import Task
from dpsub.models.interface import Model, check_fits
from dpsub.trainers.scored_steps import ScoredSteps

ONE_RUN = "one run"  # the attribute `audited`, which audits of models do not have
METRICS = ("accuracy", "weights")
MODEL, PAIR, SLOT = "model", "pair", "slot"  # the dimensions, and the coordinate of pairs
COPIES = 6  # of all parameters, which the steps' scores take beside the bank's own
WHITENING = 6  # further copies, which whitening takes
REFERENCED = "score of the final model less the reference's, higher speaks for z"
LONG_NAMES = {
    "score": "score of the final model, higher speaks for z",
    "step_score": "score of all steps, higher speaks for z",
    "bit": "0: z was in the slot, 1: z_prime",
    "accuracy": "test accuracy of the final model",
    "weights": "parameters of the final model",
}


@checks.checked(
    "spec",
    "seed",
    models=checks.whole,
    subtract_expected=checks.flag,
    whiten=partial(checks.whole, at_least=0),
    matmul_precision=PRECISION,
)
def audit_one_run(
    task: Task,
    model: Model,
    pairs: Pairs | Sequence[CanaryPair],
    spec: DPSGD,
    *,
    models: int = 1,
    subtract_expected: bool = True,
    whiten: int = 0,
    metrics: Sequence[str] = (),
    seed: int = 0,
    matmul_precision: str = "highest",
    **options: Unpack[Options],
) -> xr.Dataset:
    r"""Train once with m pairs in m slots, each filled with z or z′ by a fair coin of its own, and score every pair.

    A coin exchanges one record. So an adversary who guesses coins from one training tests a claim about substitution,
    with no step from one adjacency to another. `one_run_guesses` makes guesses of the scores, with abstention.

    The other n − m records are the same whatever the coins say. At each step each slot is sampled with probability q,
    by a coin of the same law in both worlds. n counts the slots.

    Args:
        task: the training records.
        model: the architecture, as in `audit`.
        pairs: `Pairs`, such as `crafters.gradient_pairs` makes, or single pairs with a slot each.
        spec: the DP-SGD parameters.
        models: how many models to train, each with coins of its own. They are independent, so that the coins of all of
            them may be guessed together.
        subtract_expected: whether `step_score` subtracts from each step's sum what it is on average over batches and
            fair coins, given that step's model. For gradient pairs without `whiten`, such scores have a mean of 0 over
            both worlds. For record pairs this holds only approximately: their gradients are taken at the current
            models, which the coins have moved in earlier steps. If False, `step_score` subtracts the average share of
            the pair alone. What the other records contribute then stays in the scores: it does not depend on the coins,
            but differs from pair to pair. If True, each step takes the gradients of all records, sampled or not.
            Gradients without dropout are subtracted from those with it.
        whiten: how many iterations of conjugate gradients divide each step's sum by its covariance, before `step_score`
            takes it; 0 for none. The sampled records and the other pairs' coins move the sum most along a few
            directions, in which it says little of a single pair. Such directions then count less. It needs
            `subtract_expected`. More iterations take more directions into account: on MNIST heads, 3,000 records with
            100 pairs took 5, with 1,000 pairs 15. On linear heads each iteration took 0.7
            times (one model) to 2.4 times (16 models) as long as a step without.
        metrics: "accuracy", on the test records, and "weights", the parameters, both of the final model.
        seed: ≥ 0; of batches, noise, starts and coins. Models come in blocks, each with its own streams of randomness,
            as in `audit`. Arguments, versions and the kind of device determine the numbers.
        matmul_precision, options: as in `audit`. What is stored at once are blocks of models: an interrupted
            block begins anew, and so does a single training. Of the pairs a store keeps the slots, the scenario, the
            crafter's details and a checksum. Pairs that differ in any of these are refused, even if they differ by
            rounding.

    Returns:
        A dataset with `score` and `step_score` (model, pair) float32, which speak for z if they are high, and `bit`
        (model, pair) int8, 0 for z and 1 for z′.

        - `score` is what `audit` gives for the pair: of records logit(z) − logit(z′), of gradients the displacement
          along z − z′. It sees the final model alone. Of records that are not alike it is not centred on 0.
        - `step_score` sees every privatised sum S: Σ ⟨S − E, g_z − g_z′⟩/C² over the steps, with clipped gradients at
          the current models. With `whiten` it is Σ ⟨M⁻¹(S − E), g_z − g_z′⟩/C², where M is the covariance of S over
          batches, noise and fair coins, in units of (σC)². A coin counts for all steps: it falls once. M follows from
          the records, pairs and current models, never from the coins.

        With metrics also `accuracy` (model,) and `weights` (model, parameter). The coordinate `slot` (pair,) says which
        records were replaced. The attributes hold all parameters, the seed, the versions, and checksums of task and
        pairs; those of a stored audit also its commit, wall time and devices.

    Raises:
        ValueError: before any training, if an argument is out of range; if pairs share a slot, are of several tasks,
            scenarios or adjacencies, or do not fit task, model or spec; if the
            memory does not hold one block; if the store is refused, as by `audit`. After it, if the training diverged.
        sqlite3.Error, OSError, KeyboardInterrupt: as `audit`.

    Source: Keinan et al. (2025), Algorithm 1, arXiv 2503.07199, for pairs in one training; Steinke, Nasr and Jagielski
    (2023) for guesses with abstention.

    >>> from dpsub import DPSGD, crafters, data, models
    >>> task = data.digits(n_train=200)
    >>> model, spec = models.linear(task), DPSGD(1.0, 1.0, 0.5, 20, 0.5)
    >>> pairs = crafters.gradient_pairs(task, model, spec, pairs=10, seed=0)
    >>> seen = audit_one_run(task, model, pairs, spec, progress=False)
    >>> dict(seen.sizes), seen.attrs["adjacency"]
    ({'model': 1, 'pair': 10}, 'substitute')
    """
    refuse_other_batches(spec)
    check_fits(model, task)
    if whiten and not subtract_expected:
        raise ValueError(f"whiten must be 0 without subtract_expected, got {whiten}: set subtract_expected=True")
    pairs = Pairs.of(pairs)
    check_canary(task, model, pairs, spec)
    training = task, model, spec, (pairs,), models, seed, matmul_precision
    for name in checks.several("metrics must be a sequence of names", metrics):
        checks.choice("metrics", name, METRICS)
    return execute(OneRun(*training, subtract_expected, whiten, chosen(metrics, task)), **options)


@dataclass(frozen=True, eq=False)
class OneRun(BankPlan):
    """What an audit of one training, or of several with coins of their own, trains. Its runs are the models."""

    call: ClassVar[str] = "audit_one_run"
    unit: ClassVar[str] = " steps"
    purpose = "one_run"
    spare: ClassVar[str] = "records or pairs"

    subtract_expected: bool
    whiten: int
    observers: tuple[Observer, ...]

    @property
    def pairs(self) -> Pairs:
        pairs: Pairs = self.canaries[0]
        return pairs

    @property
    def title(self) -> str:
        return f"{len(self.pairs)} pairs of {super().title}"

    def empty(self) -> xr.Dataset:
        models = {MODEL: self.runs}
        of_pairs = models | {PAIR: len(self.pairs)}
        of_metrics = {"accuracy": models, "weights": models | {"parameter": self.model.parameters}}
        sizes = {"score": of_pairs, "step_score": of_pairs} | {one.name: of_metrics[one.name] for one in self.observers}
        variables = {name: unfilled(LONG_NAMES[name], sizes[name]) for name in sizes}
        variables["bit"] = unfilled(LONG_NAMES["bit"], of_pairs, "int8")
        return xr.Dataset(variables, {SLOT: (PAIR, self.pairs.slots)})

    @cached_property
    def attributes(self) -> dict[str, Any]:
        return super().attributes | {
            "audited": ONE_RUN,
            "models": self.runs,
            "pairs": len(self.pairs),
            "pairs_fingerprint": self.pairs.fingerprint,
            "subtract_expected": int(self.subtract_expected),
            "whiten": self.whiten,
            "metrics": " ".join(observer.name for observer in self.observers),
            **{name: value for one in self.observers for name, value in one.attributes(self.task).items()},
            **{f"pairs_{name}": value for name, value in self.pairs.details.items()},
        }

    @property
    def copies(self) -> int:
        return COPIES + WHITENING * (self.whiten > 0)

    def bytes_at_once(self, device: torch.device) -> int:
        runs, n, m = self.models_of(0), len(self.task.y_train), len(self.pairs)
        bank = super().bytes_at_once(device) + 4 * n * runs * (self.whiten > 0)
        in_slots = 4 * (4 * m * runs * self.model.classes if self.pairs.of_records else 5 * self.pairs.z.size)
        return bank + bank * 2 * m // n + in_slots

    def block(self, repeat: int, block: int, device: torch.device, tick: Tick) -> Arrays:
        coins = stream(self.seed, self.purpose, block).integers(0, 2, (self.block_size, len(self.pairs)), dtype=np.int8)
        bits = coins[: self.models_of(block)]
        bank = self.bank(block, device=device, bits=bits, canary=self.pairs, seed=self.seed)
        steps = ScoredSteps(bank, expected=self.subtract_expected, whiten=self.whiten)
        for _ in range(self.spec.steps):
            steps.advance()
            tick(bank.runs)
        results = {"score": bank.slot.scores(bank), "step_score": steps.scores}
        results |= {one.name: one.watch(bank, self.task, bank.runs).after_step() for one in self.observers}
        return {"bit": bits} | {name: values.detach().float().cpu().numpy() for name, values in results.items()}


def scored_pairs(
    score: NDArray[np.float64], bits: NDArray[np.int8], slots: NDArray[np.int64], attributes: dict[str, Any]
) -> xr.Dataset:
    """The scores (m,) of one model that was not trained here, as `audit_one_run` returns them."""
    values: dict[str, NDArray[Any]] = {"score": score.astype(np.float32), "bit": bits.copy()}
    long_names = LONG_NAMES | {"score": REFERENCED if attributes["reference"] else LONG_NAMES["score"]}
    about = {"audited": ONE_RUN, "trained_by": OWN_FUNCTION, "models": 1, "pairs": len(bits)}
    return numbered(
        xr.Dataset(
            {name: ((MODEL, PAIR), row[None], {"long_name": long_names[name]}) for name, row in values.items()},
            {SLOT: (PAIR, slots)},
            about | attributes | {f"version_{name}": version for name, version in versions("torch").items()},
        )
    )
