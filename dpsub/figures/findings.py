"""What audits found beside what the accountants promise: datasets of scores made ready for tables and figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isclose
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from dpsub import accounting, estimators
from dpsub._core import checks
from dpsub.estimators import LowerBound

ONE_TRAINING = (
    "noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate", "optimizer", "n", "model",
    "task_fingerprint", "adjacency",
)  # fmt: skip
# What makes two models twins, given that their audits' trainings are one.
ONE_RANDOMNESS = (
    "scenario", "slot", "runs", "repeats", "seed", "block_size", "matmul_precision", "device", "cpu_capability",
    "version_torch",
)  # fmt: skip


def bounds(result: xr.Dataset, *, delta: float, runs: int | None = None, **options: Any) -> list[list[LowerBound]]:
    """The lower bounds on ε of an audit: for each of its repeats a list, one bound for each step observed.

    Args:
        result: of `dpsub.audit` or `dpsub.audit_worst_case`, or read from a store.
        delta: at which δ.
        runs: use the first so many runs of each repeat only.
        options: of `estimators.epsilon_lower_bound`.

    Raises:
        ValueError: if there are not so many runs, or a step, a run or a whole repeat is missing.
    """
    if "repeat" not in result.dims:
        result = result.expand_dims("repeat")
    if runs is not None:
        result = result.isel(run=slice(checks.whole("runs", runs, at_least=2, at_most=result.sizes["run"])))
    found = []
    for repeat in range(result.sizes["repeat"]):
        one = result.isel(repeat=repeat)
        answer = estimators.epsilon_lower_bound(one.score, one.bit, delta=delta, **options)
        found.append([answer] if isinstance(answer, LowerBound) else answer)
    return found


def promises(result: xr.Dataset, *, delta: float) -> dict[str, np.ndarray]:
    """The accountants' ε at the steps of an audit: "substitute" and "add_remove"."""
    about = result.attrs
    steps = np.atleast_1d(result.step.values)
    return {
        adjacency: np.asarray(
            accounting.epsilon(
                noise_multiplier=about["noise_multiplier"],
                sample_rate=about["sample_rate"],
                steps=steps,
                delta=delta,
                adjacency=adjacency,
            )
        )
        for adjacency in ("substitute", "add_remove")
    }


def panel(audited: Mapping[str, xr.Dataset], *, delta: float, **options: Any) -> dict[str, Any]:
    """All that `figures.epsilon_against_step` draws of several scenarios in one training: steps, promises, audits.

    Args:
        audited: by scenario, audits of the same training at the same steps, with the same number of runs and repeats.
        delta: at which δ.
        options: of `bounds`.

    Raises:
        ValueError: if the audits differ in what they are of.
    """
    if not audited:
        raise ValueError("audited must be one audit or more, by scenario, got none")
    first = next(iter(audited.values()))
    for scenario, other in audited.items():
        if name := _differing(first, other, ONE_TRAINING):
            mine, its = first.attrs.get(name), other.attrs.get(name)
            raise ValueError(f"audited must be of one training, got {scenario} with {name} {its!r} beside {mine!r}")
        if not np.array_equal(other.step, first.step) or dict(other.sizes) != dict(first.sizes):
            raise ValueError(
                f"audited must have the same runs, repeats and steps, got {scenario} with {dict(other.sizes)} beside "
                f"{dict(first.sizes)}"
            )
    rule = {name: options[name] for name in ("method", "threshold", "alpha") if name in options}
    runs = options.get("runs") or first.sizes["run"]
    return {
        "steps": np.atleast_1d(first.step.values),
        **promises(first, delta=delta),
        "audited": {scenario: bounds(result, delta=delta, **options) for scenario, result in audited.items()},
        "ceiling": estimators.max_certifiable_epsilon(runs, delta=delta, **rule),
    }


def panels(audited: Mapping[tuple[str, str], xr.Dataset], *, delta: float, **options: Any) -> dict[str, dict[str, Any]]:
    """What `figures.epsilon_panels` draws: for each label, the `panel` of its scenarios.

    Args:
        audited: by label and scenario, as `audits.sweep` and `audits.load_all` return them.
        delta: at which δ.
        options: of `bounds`.
    """
    labels = dict.fromkeys(label for label, _ in audited)
    return {
        label: panel({s: one for (of, s), one in sorted(audited.items()) if of == label}, delta=delta, **options)
        for label in labels
    }


def last_step(audited: Iterable[xr.Dataset], *, delta: float) -> pd.DataFrame:
    """What audits found in the final models: a row each.

    Columns: `scenario`; `sample_rate`, `max_grad_norm`, `steps`, `learning_rate`; `bound`, the mean over repeats of the
    valid bound on ε, and `error`, two standard errors of it, NaN for a single repeat; `papers_rule`, the mean with the
    best threshold on the scores that it judges, not valid; `substitute` and `add_remove`, the accountants' ε.
    """
    rows = []
    for result in audited:
        last = result.isel(step=[-1]) if "step" in result.dims else result
        valid, papers = (
            estimators.over_repeats([repeat[-1] for repeat in bounds(last, delta=delta, threshold=rule)])
            for rule in ("ranks", "best")
        )
        names = ("scenario", "sample_rate", "max_grad_norm", "steps", "learning_rate")
        rows.append(
            {name: result.attrs.get(name) for name in names}
            | {"bound": valid.mean, "error": valid.error, "papers_rule": papers.mean}
            | {adjacency: float(epsilon[0]) for adjacency, epsilon in promises(last, delta=delta).items()}
        )
    return pd.DataFrame(rows)


def _differing(one: xr.Dataset, other: xr.Dataset, names: Iterable[str]) -> str | None:
    """The first of these attributes that is not the same in both; another machine computes σ a little differently."""
    for name in names:
        mine, its = one.attrs.get(name), other.attrs.get(name)
        same = isclose(mine, its, rel_tol=1e-6) if name == "noise_multiplier" and mine and its else its == mine
        if not same:
            return name
    return None


def separation(result: xr.Dataset, exchanged: xr.Dataset, *, delta: float) -> pd.DataFrame:
    """How far apart the two worlds' scores lie, by models that were each trained twice: an estimate, and no bound.

    Each model of `result` has a twin in `exchanged`, with the same start, batches and noise and the other canary in its
    slot, so that a few models tell the distance between the worlds well. Their spread they tell less well: twelve of
    them to a standard error of 20 % or more.

    Args:
        result: of `dpsub.audit` with a canary. Of a linear head with metrics=("accuracy",): in the coordinates that
            its records span, where it trains without, the noise of twins is not the same.
        exchanged: of the same call with `canary.exchanged()`. That it was this pair, and no third canary, is not
            checked.
        delta: at which δ.

    Returns:
        A row for each step: `gap`, the mean difference between twins; `spread`, the standard deviation within a world;
        `mu`, gap over spread, less what a spread of so few models makes it too large by (Hedges, 1981), and `error`,
        two standard errors of it (jackknife over pairs of twins); `epsilon`, and `epsilon_low` and `epsilon_high` at
        mu ∓ error, 0 where that is negative: what μ-GDP makes of it, which is what an audit of very many models would
        come to if scores were Gaussian and equally spread in both worlds.

    Raises:
        ValueError: if the two are of different trainings, randomness, runs or steps, or are of one canary; if they have
            repeats or fewer than 4 runs, or if a score is missing.
    """
    for argument, audited in (("result", result), ("exchanged", exchanged)):
        if set(audited.score.dims) != {"run", "step"} or audited.sizes["run"] < 4:
            raise ValueError(
                f"{argument} must have the dimensions run, of 4 or more, and step, got {dict(audited.score.sizes)}"
            )
        if "canary_fingerprint" not in audited.attrs:
            raise ValueError(
                f"{argument} must be of dpsub.audit, with its attributes, got one without canary_fingerprint"
            )
    if name := _differing(result, exchanged, (*ONE_TRAINING, *ONE_RANDOMNESS)):
        mine, its = result.attrs.get(name), exchanged.attrs.get(name)
        raise ValueError(
            f"exchanged must be the same audit with canary.exchanged(), got one with {name} {its!r} beside {mine!r}"
        )
    if result.canary_fingerprint == exchanged.canary_fingerprint:
        raise ValueError("exchanged must be of canary.exchanged(), got an audit of the same canary as result")
    if not np.array_equal(result.bit, exchanged.bit) or not np.array_equal(result.step, exchanged.step):
        raise ValueError("exchanged must have the bits and steps of result: run both with the same seed and options")
    scores = np.asarray(result.score.transpose("run", "step"), float)
    opposite = -np.asarray(exchanged.score.transpose("run", "step"), float)
    if not np.isfinite([scores, opposite]).all():
        raise ValueError("result and exchanged must be whole, got scores that are not finite or not there yet")
    saw_z = result.bit.values[:, None] == 0
    worlds = np.stack([np.where(saw_z, scores, opposite), np.where(saw_z, opposite, scores)])  # (world, run, step)

    def of(runs: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        here = worlds[:, runs]
        return here[0].mean(axis=0) - here[1].mean(axis=0), np.sqrt(here.var(axis=1, ddof=1).mean(axis=0))

    count = len(scores)
    gap, spread = of(np.ones(count, dtype=bool))
    left_out = [of(np.arange(count) != run) for run in range(count)]
    if not (np.stack([spread, *(other for _, other in left_out)]) > 0).all():
        raise ValueError("result must have scores that differ between models, got all, or all but one, alike at a step")
    few = 1 - 3 / (4 * (count - 1) - 1)
    mu = few * gap / spread
    error = 2 * few * np.sqrt((count - 1) * np.var([other / its for other, its in left_out], axis=0))
    at = {"epsilon": mu, "epsilon_low": mu - error, "epsilon_high": mu + error}
    return pd.DataFrame(
        {"gap": gap, "spread": spread, "mu": mu, "error": error}
        | {name: [accounting.gdp_epsilon(max(0.0, value), delta) for value in values] for name, values in at.items()},
        index=pd.Index(result.step.values, name="step"),
    )


def accuracy(result: xr.Dataset, *, bit: int | None = None) -> np.ndarray:
    """(models, steps): the test accuracy of the models that an audit measured, of all its repeats.

    Args:
        result: of `dpsub.audit(metrics=("accuracy",))`.
        bit: only those of the world of z, 0, or z′, 1.

    Raises:
        ValueError: if the audit measured no accuracy.
    """
    if "accuracy" not in result:
        raise ValueError('result must be of dpsub.audit(metrics=("accuracy",)), got an audit without accuracies')
    found = result.accuracy.values.reshape(-1, result.sizes["step"])
    bits = result.bit.isel(run=result.measured.values).values.ravel()
    return np.asarray(found if bit is None else found[bits == bit])


def source(*audited: xr.Dataset) -> str:
    """What a figure's audits were made on and of how many models, to stand under it."""
    if not audited:
        raise ValueError("audited must be one audit or more, got none")
    tasks = dict.fromkeys(result.attrs.get("task", "simulated") for result in audited)
    sizes = dict.fromkeys((result.sizes["run"], result.sizes.get("repeat", 1)) for result in audited)
    told = " and ".join(
        f"{runs:,} models" if repeats == 1 else f"{repeats} × {runs:,} models" for runs, repeats in sizes
    )
    return f"{', '.join(tasks)}; {told} an audit"
