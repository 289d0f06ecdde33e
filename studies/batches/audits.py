"""Canaries under three drawings of batches, also where a label is rare."""

import sys
from functools import partial
from itertools import product

import numpy as np
from scipy.special import logsumexp

import dpsub
from dpsub import DPSGD, accounting, crafters, data, estimators, models
from dpsub.audits import Observer, Watch
from studies.batches import canaries
from studies.kept import continued
from studies.trainings import DELTA

N_TRAIN, RARE = 240, 2  # records, and those with the rare label
SETTINGS = {0.25: (2.0, 40), 0.0625: (1.0, 160)}  # by q: σ and T
SAMPLINGS = ("poisson", "without_replacement", "epochs")
CANARIES = {
    "S2": crafters.gradient,
    "mean gradient": canaries.mean_gradient,
    "S3": crafters.crafted_input,
    "S4": crafters.mislabeled,
    "S5": crafters.natural,
}
RUNS, SHADOWS = 5_000, 1_000
CELL = ("sample_rate", "task", "canary", "sampling")


def rare_label():
    """Is it a nine? Of the private records nearly all are not."""
    every = data.digits(n_train=1_000)
    nine = every.y_train == 9
    others, nines = np.flatnonzero(~nine), np.flatnonzero(nine)
    private, auxiliary = (np.r_[others[i::2][: N_TRAIN - RARE], nines[i::2][:RARE]] for i in (0, 1))
    return data.from_arrays(
        every.x_train[private],
        nine[private].astype(int),
        x_aux=every.x_train[auxiliary],
        y_aux=nine[auxiliary].astype(int),
        name="rare label",
    )


TASKS = {"digits": partial(data.digits, n_train=N_TRAIN), "rare label": rare_label}


def spec_of(sample_rate, sampling):
    noise_multiplier, steps = SETTINGS[sample_rate]
    return DPSGD(noise_multiplier, 0.1, sample_rate, steps, learning_rate=0.1, sampling=sampling)


class Others(Observer):
    """⟨g_z, sum of all other records' clipped gradients⟩/C²."""

    name = "others"
    long_name = "sum of the others' gradients times z's, by C squared"

    def watch(self, bank, task, runs):
        return _WatchOthers(bank)


class _WatchOthers(Watch):
    def __init__(self, bank):
        self._bank = bank
        self.before_step()

    def before_step(self):
        bank, bound = self._bank, self._bank.spec.max_grad_norm
        records = slice(bank.shared)
        total = bank.model.clipped_sum(bank.theta, bank.inputs[records], bank.labels[records], None, bound)
        along = getattr(bank.slot, "support", slice(None))
        self._seen = (bank.model.flat(total)[:, along] * bank.slot.gradient(bank)).sum(dim=1) / bound**2

    def after_step(self):
        return self._seen


def likelihood_ratio(audited, shadows, spec, n):
    """(run,): how much the noisy sums of all steps speak for z, in an audit by `audit` of n records with the canary.

    The attacker knows the parameters before each step, and so every other record's gradient. It does not know who is in
    the batch. It takes a sum, projected on z's gradient, as Gaussian, around one place with the canary and around
    another without. A canary takes a record's place, except in a Poisson batch. How wide the Gaussian is, the attacker
    learns from shadow models, which it trains with a seed of its own.
    """
    q = spec.sample_rate

    def places(runs):
        """From the sum without the canary, and z's and z′'s share."""
        # ⟨g_z, g_z′⟩ of two gradients of norm C that are 2C·distance apart
        cosine = 1 - 2 * runs.distance.values.astype(float) ** 2
        mean = runs.others.values.astype(float) / (n - 1)
        own = spec.sampling.own_coins
        size = q * (n - 1) if own else q * n
        displaced = 0 if own else mean
        moved = runs.gradient.values - size * mean
        return moved, 1 - displaced, cosine - displaced

    moved, _, shift = places(shadows.sel(run=shadows.bit.values == 1))
    spread = moved.var(axis=0) - q * (1 - q) * (shift**2).mean(axis=0)
    spread = np.maximum(spread, spec.noise_multiplier**2)
    moved, *shifts = places(audited)
    ratios = [(moved * shift - shift**2 / 2) / spread for shift in shifts]  # log N(shift, spread) − log N(0, spread)
    if spec.sampling == accounting.Epochs():
        batches = round(1 / q)
        logs = [logsumexp(ratio.reshape(len(moved), -1, batches), axis=2) for ratio in ratios]
    else:
        logs = [np.logaddexp(np.log1p(-q), np.log(q) + ratio) for ratio in ratios]
    return (logs[0] - logs[1]).sum(axis=1)


def audit(task, canary, spec, *, runs, seed):
    """Many models, whose every step is watched."""
    metrics = ("gradient", "distance", Others())
    return dpsub.audit(task, models.linear(task), canary, spec, runs=runs, metrics=metrics, seed=seed, progress=False)


def scores(task, canary, spec, *, runs, shadows, seed):
    """An audit, scored by who sees the final model or each step."""
    audited = audit(task, canary, spec, runs=runs, seed=seed)
    shadow = audit(task, canary, spec, runs=shadows, seed=seed + 1)
    final = audited.isel(step=-1)
    ratio = likelihood_ratio(audited, shadow, spec, len(task.y_train))
    watched = final.assign(score=final.score.copy(data=ratio))
    return {"final": final, "steps": watched}


def judged_as_poisson(sample_rate, task, canary, sampling):
    """The bound that all steps of a cell yield if their batches are taken for Poisson's."""
    spec, task = spec_of(sample_rate, sampling), TASKS[task]()
    pair = CANARIES[canary](task, models.linear(task), spec, seed=0)
    watched = scores(task, pair, spec, runs=RUNS, shadows=SHADOWS, seed=0)["steps"]
    return estimators.epsilon_lower_bound(
        watched.score,
        watched.bit,
        delta=DELTA,
        claim="pld",
        sample_rate=sample_rate,
        steps=spec.steps,
        adjacency="substitute",
    )


def accountants(sample_rate):
    """ε of Poisson batches; what is attained and guaranteed otherwise."""
    asked = {**spec_of(sample_rate, "poisson").mechanism, "delta": DELTA, "adjacency": "substitute"}
    fixed = accounting.epsilon_interval(**asked, sampling="without_replacement")
    return {
        "poisson": accounting.epsilon(**asked),
        "attained": fixed.lower,
        "without_replacement": fixed.upper,
        "epochs": accounting.epsilon(**asked, sampling="epochs"),
    }


def measured(cell):
    """What the audit of a cell shows, in one row."""
    task = TASKS[cell["task"]]()
    spec = spec_of(cell["sample_rate"], cell["sampling"])
    craft = CANARIES[cell["canary"]]
    canary = craft(task, models.linear(task), spec, seed=0)
    scored = scores(task, canary, spec, runs=RUNS, shadows=SHADOWS, seed=0)
    rounded = {seen: round(dpsub.bound(of, delta=DELTA, claim="pld").epsilon, 3) for seen, of in scored.items()}
    return [rounded | {"agreement": canary.details.get("agreement"), "runs": RUNS}]


if __name__ == "__main__":
    continued(sys.argv[1], CELL, product(SETTINGS, TASKS, CANARIES, SAMPLINGS), measured)
