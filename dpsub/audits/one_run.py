r"""One training with many pairs: a fair coin for each says which of its two records is in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from threading import Event
from typing import Any, ClassVar, Unpack

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from dpsub._core import DPSGD, CanaryPair, Pairs, checks
from dpsub._core.random_streams import stream, torch_seed
from dpsub.audits.bank_plans import PRECISION, BankPlan, check_canary, refuse_other_batches
from dpsub.audits.execution import Options, carried_out
from dpsub.audits.plans import Arrays, Cut, Layout, Shard, Stopped, Tick, Variable
from dpsub.data import Task
from dpsub.models import Model, check_fits
from dpsub.trainers import ScoredSteps, assemble

ONE_RUN = "one run"  # the attribute `audited`, which audits of models do not have
METRICS = ("accuracy", "weights")
MODEL, PAIR, SLOT = "model", "pair", "slot"  # the dimensions, and the coordinate of pairs
MOST_MODELS = 10**6
MOST_ITERATIONS = 10**4
COPIES = 6  # of all parameters, which the steps' scores take beside the bank's own
WHITENING = 6  # further copies, which whitening takes
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
    models=partial(checks.whole, at_most=MOST_MODELS),
    subtract_expected=checks.flag,
    whiten=partial(checks.whole, at_least=0, at_most=MOST_ITERATIONS),
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
            scenarios or adjacencies, or do not fit task, model or spec; if no record is left beside the slots; if the
            memory does not hold one block; if the store is refused, as by `audit`. After it, if the training diverged.
        OSError, ConnectionError, KeyboardInterrupt: as `audit`.

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
    plan = OneRun(
        task=task,
        model=model,
        pairs=pairs,
        spec=spec,
        runs=models,
        subtract_expected=subtract_expected,
        whiten=whiten,
        metrics=_metrics(metrics, task),
        seed=seed,
        matmul_precision=matmul_precision,
    )
    return carried_out(plan, **options)


@dataclass(frozen=True, eq=False, kw_only=True)
class OneRun(BankPlan):
    """What an audit of one training, or of several with coins of their own, trains. Its runs are the models."""

    call: ClassVar[str] = "audit_one_run"
    unit: ClassVar[str] = " steps"
    spare: ClassVar[str] = "records or pairs"

    pairs: Pairs
    subtract_expected: bool
    whiten: int
    metrics: tuple[str, ...]
    seed: int

    @property
    def title(self) -> str:
        return f"{len(self.pairs)} pairs of {self.pairs.scenario} on {self.task.name}"

    def units(self, shard: Shard) -> int:
        return shard.runs * self.spec.steps

    @cached_property
    def layout(self) -> Layout:
        each, models = {MODEL: self.runs, PAIR: len(self.pairs)}, {MODEL: self.runs}
        of_metrics = {"accuracy": models, "weights": {**models, "parameter": self.model.parameters}}
        shapes = {"score": each, "step_score": each, **{name: of_metrics[name] for name in self.metrics}}
        variables = {name: Variable(sizes, "float32", np.nan, LONG_NAMES[name]) for name, sizes in shapes.items()}
        variables["bit"] = Variable(each, "int8", -1, LONG_NAMES["bit"])
        return Layout(Cut(self.runs, 1, self.block_size), variables, {SLOT: (PAIR, self.pairs.slots)})

    @cached_property
    def attributes(self) -> dict[str, Any]:
        details = self.pairs.details.items()
        return {
            "audited": ONE_RUN,
            "scenario": self.pairs.scenario,
            "adjacency": self.pairs.adjacency,
            "task": self.task.name,
            "task_fingerprint": self.task.fingerprint,
            "n": len(self.task.y_train),
            "model": repr(self.model),
            **self.spec.attributes,
            "models": self.runs,
            "pairs": len(self.pairs),
            "pairs_fingerprint": self.pairs.fingerprint,
            "subtract_expected": int(self.subtract_expected),
            "whiten": self.whiten,
            "metrics": " ".join(self.metrics),
            **({"test_fingerprint": self.task.test_fingerprint} if "accuracy" in self.metrics else {}),
            "seed": self.seed,
            "block_size": self.block_size,
            "matmul_precision": self.matmul_precision,
            **{f"pairs_{name}": one.item() if isinstance(one, np.generic) else one for name, one in details},
        }

    def coins(self, block: int) -> NDArray[np.int8]:
        """(models of the block, m): which world fills each slot, by fair coins."""
        size = self.block_size
        tossed = stream(self.seed, "one_run", block).integers(0, 2, (size, len(self.pairs)), dtype=np.int8)
        return tossed[: self.runs - block * size]

    @property
    def copies(self) -> int:
        return COPIES + WHITENING * (self.whiten > 0)

    @property
    def records_told(self) -> str:
        return f"{super().records_told} with {len(self.pairs)} pairs"

    def bytes_at_once(self, device: torch.device) -> int:
        runs, n, m = min(self.runs, self.block_size), len(self.task.y_train), len(self.pairs)
        bank = super().bytes_at_once(device) + 4 * n * runs * (self.whiten > 0)
        in_slots = 4 * (4 * m * runs * self.model.classes if self.pairs.of_records else 5 * self.pairs.z.size)
        return bank + bank * 2 * m // n + in_slots

    def block(self, repeat: int, block: int, device: torch.device, stop: Event, tick: Tick) -> Arrays:
        bits = self.coins(block)
        bank = assemble(
            self.model,
            self.task,
            self.spec,
            canary=self.pairs,
            bits=bits,
            generator=torch.Generator(device).manual_seed(torch_seed(self.seed, "one_run", block)),
        )
        steps = ScoredSteps(bank, expected=self.subtract_expected, whiten=self.whiten)
        for _ in range(self.spec.steps):
            if stop.is_set():
                raise Stopped
            steps.advance()
            tick(bank.runs)
        found = {"score": bank.slot.scores(bank), "step_score": steps.scores}
        if "accuracy" in self.metrics:
            x, y = (torch.tensor(one, device=device) for one in (self.task.x_test, self.task.y_test))
            found["accuracy"] = bank.accuracy(x, y, bank.runs)
        if "weights" in self.metrics:
            found["weights"] = bank.model.flat(bank.theta)
        arrays = {name: values.detach().cpu().numpy().astype(np.float32) for name, values in found.items()}
        return {**arrays, "bit": bits}


def _metrics(metrics: Sequence[str], task: Task) -> tuple[str, ...]:
    found = checks.several("metrics must be a sequence of names", metrics)
    for name in found:
        checks.choice("metrics", name, METRICS)
    if "accuracy" in found and not len(task.y_test):
        raise ValueError("metrics must not name 'accuracy' for a task without test records: give x_test and y_test")
    return tuple(name for name in METRICS if name in found)
