"""From the scores of audits to tables and to the panels of figures, with the accountants' ε beside them."""

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
# Two audits that agree in `ONE_TRAINING` and in these train twins.
ONE_RANDOMNESS = (
    "scenario", "slot", "runs", "repeats", "seed", "block_size", "trained_coordinates", "matmul_precision",
    "device", "cpu_capability", "version_torch",
)  # fmt: skip


def bounds(result: xr.Dataset, *, delta: float, runs: int | None = None, **options: Any) -> list[list[LowerBound]]:
    """The lower bounds on ε of an audit: a list for each repeat, with one bound for each observed step.

    Args:
        result: an audit, by `dpsub.audit` or `dpsub.audit_worst_case`, or read from a store.
        delta: the δ at which ε is stated.
        runs: use only the first `runs` runs of each repeat; None uses all.
        options: of `estimators.epsilon_lower_bound`.

    Raises:
        ValueError: if the audit has fewer than `runs` runs, or if a step, a run or a whole repeat is missing.
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
    """The accountants' ε at the observed steps of an audit, (steps,), for "substitute" and "add_remove"."""
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
    """The arguments of `figures.epsilon_against_step` for several scenarios audited in the same training.

    Args:
        audited: by scenario, audits with the same training parameters, observed steps, runs and repeats.
        delta: the δ at which ε is stated.
        options: of `bounds`.

    Raises:
        ValueError: if there is no audit, or if the audits differ in one of these.
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
    """The panels of `figures.epsilon_panels`: for each label, the `panel` of its scenarios.

    Args:
        audited: by label and scenario, as `audits.sweep` and `audits.load_all` return them.
        delta: the δ at which ε is stated.
        options: of `bounds`.
    """
    labels = dict.fromkeys(label for label, _ in audited)
    return {
        label: panel({s: one for (of, s), one in sorted(audited.items()) if of == label}, delta=delta, **options)
        for label in labels
    }


def last_step(audited: Iterable[xr.Dataset], *, delta: float) -> pd.DataFrame:
    """A table of lower bounds from the final models, with one row for each audit.

    Columns: `scenario`; `sample_rate`, `max_grad_norm`, `steps`, `learning_rate`; `bound`, the mean over repeats of the
    valid bound on ε, and `error`, two standard errors of that mean, NaN for a single repeat; `papers_rule`, the mean
    bound with threshold="best", which is not valid; `substitute` and `add_remove`, the accountants' ε.
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
    """The first of these attributes that differs. σ may differ by rounding, as between two machines."""
    for name in names:
        mine, its = one.attrs.get(name), other.attrs.get(name)
        same = isclose(mine, its, rel_tol=1e-6) if name == "noise_multiplier" and mine and its else its == mine
        if not same:
            return name
    return None


def separation(result: xr.Dataset, exchanged: xr.Dataset, *, delta: float) -> pd.DataFrame:
    """Estimate how far apart the two worlds' scores lie, from models that were each trained twice. Not a bound.

    Each model of `result` has a twin in `exchanged`: the same start, batches and noise, with the other canary in its
    slot. A few models are therefore enough to estimate the distance between the worlds. The spread within a world is
    less precise: with twelve models its standard error is at least 20 %.

    Args:
        result: an audit by `dpsub.audit`, for a linear head with coordinates="all": in the coordinates that its records
            span, twins do not share their noise.
        exchanged: the same audit with `canary.exchanged()`. That it was this pair, and not a third canary, is not
            checked.
        delta: the δ at which ε is stated.

    Returns:
        One row for each step. `gap`: the mean difference between twins. `spread`: the standard deviation within a
        world. `mu`: gap over spread, corrected for the bias that few models cause (Hedges, 1981). `error`: two standard
        errors of mu (jackknife over pairs of twins). `epsilon`: the ε of μ-GDP at mu, or 0 if mu is negative; an audit
        of very many models would approach it if scores were Gaussian and equally spread in both worlds. `epsilon_low`
        and `epsilon_high`: the same at mu − error and mu + error.

    Raises:
        ValueError: if the two audits differ in training, randomness, runs or steps, or have the same canary; if a
            linear head trained in the coordinates that its records span; if they have repeats or fewer than 4 runs; if
            a score is missing, or if scores do not differ between models.
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
    about = result.attrs
    in_span = about.get("trained_coordinates") == "span" and about.get("optimizer") == "sgd"
    if in_span and str(about.get("model")).startswith("Linear("):
        raise ValueError("result must be audited with coordinates='all', got 'span': twins must share their noise")
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
    """(models, steps): the test accuracies that an audit measured, over all its repeats.

    Args:
        result: an audit with metrics=("accuracy",).
        bit: use only the models of the world of z (0) or of z′ (1); None uses both.

    Raises:
        ValueError: if the audit measured no accuracy.
    """
    if "accuracy" not in result:
        raise ValueError('result must be of dpsub.audit(metrics=("accuracy",)), got an audit without accuracies')
    found = result.accuracy.values.reshape(-1, result.sizes["step"])
    bits = result.bit.isel(run=result.measured.values).values.ravel()
    return np.asarray(found if bit is None else found[bits == bit])


def source(*audited: xr.Dataset) -> str:
    """The tasks of a figure's audits and their number of models, to write below it."""
    if not audited:
        raise ValueError("audited must be one audit or more, got none")
    tasks = dict.fromkeys(result.attrs.get("task", "simulated") for result in audited)
    sizes = dict.fromkeys((result.sizes["run"], result.sizes.get("repeat", 1)) for result in audited)
    told = " and ".join(
        f"{runs:,} models" if repeats == 1 else f"{repeats} × {runs:,} models" for runs, repeats in sizes
    )
    return f"{', '.join(tasks)}; {told} an audit"
