"""How far apart two worlds are, by models that were each trained twice."""

from math import isclose

import numpy as np
import pandas as pd

from dpsub import findings
from studies.scores import epsilon_at

# Two audits that agree in these train twins.
SHARED = ("noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate", "optimizer")
SHARED += ("n", "model", "task_fingerprint", "adjacency", "scenario", "slot", "runs", "repeats", "seed", "block_size")
SHARED += ("trained_coordinates", "matmul_precision", "device", "cpu_capability", "version_torch")


def of_twins(result, exchanged, *, delta):
    """Estimate how far apart the two worlds' scores lie. Not a bound.

    Each model of `result`, an audit of one repeat, has a twin in `exchanged`, the same audit with `canary.exchanged()`:
    the same start, batches and noise, with the other canary in its slot. A few models are therefore enough to estimate
    the distance between the worlds. The spread within a world is less precise: with twelve models its standard error is
    at least 20 %. A linear head needs coordinates="all": in those that its records span, twins do not share their
    noise.

    Returns:
        One row for each step. `gap`: the mean difference between twins. `spread`: the standard deviation within a
        world.
        `mu`: gap over spread, corrected for the bias that few models cause (Hedges, 1981). `error`: two standard errors
        of mu (jackknife over pairs of twins). `epsilon`: the ε of μ-GDP at mu, or 0 if mu is negative; an audit of very
        many models would approach it if scores were Gaussian and equally spread in both worlds. `epsilon_low` and
        `epsilon_high`: the same at mu − error and mu + error.
    """
    refuse_strangers(result.attrs, exchanged.attrs)
    if not np.array_equal(result.bit, exchanged.bit) or not np.array_equal(result.step, exchanged.step):
        raise ValueError("exchanged must have the bits and steps of result: run both with the same seed and options")
    scores, others = (one.score.transpose("run", "step").values.astype(float) for one in (result, exchanged))
    saw_z = result.bit.values[:, None] == 0
    worlds = np.where(saw_z, [scores, -others], [-others, scores])

    def gap_and_spread(runs):
        here = worlds[:, runs]  # (world, run, step)
        z, z_prime = here.mean(axis=1)
        return z - z_prime, np.sqrt(here.var(axis=1, ddof=1).mean(axis=0))

    count = len(scores)
    gap, spread = gap_and_spread(slice(None))
    left_out = [gap_and_spread(np.arange(count) != run) for run in range(count)]
    few = 1 - 3 / (4 * (count - 1) - 1)
    mu = few * gap / spread
    ratios = [other / its for other, its in left_out]
    error = 2 * few * np.sqrt((count - 1) * np.var(ratios, axis=0))
    index = pd.Index(result.step.values, name="step")
    ends = [epsilons(*at, delta) for at in zip(mu, error, strict=True)]
    found = pd.DataFrame({"gap": gap, "spread": spread, "mu": mu, "error": error}, index=index)
    return found.join(pd.DataFrame(ends, index))


def of_two_worlds(scores, bits, *, delta):
    """What `of_twins` has for one step, of models trained once: (runs,) scores and bits.

    `error`: two standard errors of mu, as if scores were Gaussian (Hedges and Olkin, 1985).
    """
    mu = findings.d_prime(scores, bits)
    scores, bits = np.asarray(scores), np.asarray(bits)
    gap = scores[bits == 0].mean() - scores[bits == 1].mean()
    per_world = np.bincount(bits)
    error = 2 * np.sqrt((1 / per_world).sum() + mu**2 / (2 * len(bits)))
    found = {"gap": gap, "spread": gap / mu, "mu": mu, "error": error}
    return found | epsilons(mu, error, delta)


def epsilons(mu, error, delta):
    """The ε of μ-GDP at mu, and at both ends of an interval."""
    ends = {"": mu, "_low": mu - error, "_high": mu + error}
    return {f"epsilon{name}": epsilon_at(at, delta) for name, at in ends.items()}


def refuse_strangers(about, its):
    """Refuse audits whose models are no twins, by their attributes.

    σ may differ by rounding, as between two machines.
    """
    for name in SHARED:
        same = about.get(name) == its.get(name)
        if not same and not (name == "noise_multiplier" and isclose(about[name], its[name], rel_tol=1e-6)):
            raise ValueError(
                "exchanged must be the same audit with canary.exchanged(), "
                f"got one with {name} {its.get(name)!r} beside {about.get(name)!r}"
            )
    in_span = about.get("trained_coordinates") == "span"
    if in_span and about.get("optimizer") == "sgd" and str(about.get("model")).startswith("Linear("):
        raise ValueError("result must be audited with coordinates='all', got 'span': twins must share their noise")
    if about["canary_fingerprint"] == its["canary_fingerprint"]:
        raise ValueError("exchanged must be of canary.exchanged(), got an audit of the same canary as result")
