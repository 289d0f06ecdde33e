"""From the scores of audits to tables and to the panels of figures, with the accountants' ε beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isclose
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike

from dpsub import accounting, estimators
from dpsub._core import checks
from dpsub.estimators import LowerBound, audit_bounds
from dpsub.estimators.scores_and_marks import scores_and_bits

__all__ = [
    "accuracy", "bounds", "d_prime", "every_step_mu", "last_step", "panel", "panels", "promises", "source",
]  # fmt: skip

ALPHA = 0.05  # the default of `estimators.epsilon_lower_bound`
DIMENSIONS = {"score": ("repeat", "run", "step"), "bit": ("repeat", "run")}
ONE_TRAINING = (
    "noise_multiplier", "sample_rate", "steps", "max_grad_norm", "learning_rate", "optimizer", "n", "model",
    "task_fingerprint", "adjacency", "sampling",
)  # fmt: skip


def bounds(result: xr.Dataset, *, delta: float, runs: int | None = None, **options: Any) -> list[list[LowerBound]]:
    """The lower bounds on ε of an audit: a list for each repeat, with one bound for each observed step.

    Args:
        result: an audit, by `dpsub.audit` or `dpsub.audit_worst_case`, or read from a store.
        delta: the δ at which ε is stated.
        runs: use only the first `runs` runs of each repeat; None uses all.
        options: of `estimators.epsilon_lower_bound`. Claim "pld" takes `sample_rate`, `steps` and `adjacency` from the
            audit, unless they are given.

    Raises:
        ValueError: if the audit has fewer than `runs` runs, or if a step, a run or a whole repeat is missing.
    """
    given = _scores_and_bits(result)
    if runs is not None:
        given = given.isel(run=slice(checks.whole("runs", runs, at_least=2, at_most=given.sizes["run"])))
    options = _known_of_training(given, options) | options
    repeats = [given.isel(repeat=place) for place in range(given.sizes["repeat"])]
    of_repeats: list[Any] = [
        estimators.epsilon_lower_bound(repeat.score, repeat.bit, delta=delta, **options) for repeat in repeats
    ]
    return of_repeats


def _scores_and_bits(result: xr.Dataset) -> xr.Dataset:
    """The scores (repeat, run, step) and bits (repeat, run) of an audit; what it has no dimension for has size 1.

    Steps taken for runs, or bits that are broadcast over repeats, would give bounds of something else.
    """
    checks.instance("result", result, of=xr.Dataset, called="the dataset of an audit")
    variables = {}
    for name, dims in DIMENSIONS.items():
        given = result[name].dims
        if "run" not in given or set(given) - set(dims) or ("repeat" in given) != ("repeat" in result.score.dims):
            raise ValueError(
                "result must have a score for each run, and step and repeat if there are several, and a bit for each "
                f"of these runs, got {name} with the dimensions {tuple(map(str, given))}"
            )
        variables[name] = result[name].expand_dims([dim for dim in dims if dim not in given]).transpose(*dims)
    return xr.Dataset(variables, attrs=result.attrs)


def _steps(result: xr.Dataset) -> np.ndarray:
    """(steps,) the observed steps: a selection of one step has one."""
    if "step" not in result.coords:  # xarray would count from 0
        raise ValueError("result must have the coordinate step, which says when scores were observed")
    return np.atleast_1d(result.step.values)


def _attribute(result: xr.Dataset, name: str) -> Any:
    if name not in result.attrs:
        raise ValueError(
            f"result must have the attributes of an audit, got one without {name}: give it with "
            f"result.assign_attrs({name}=…), or to audit_training in parameters={{…}}; figures.beside_claims draws "
            "bounds of a mechanism that has none"
        )
    return result.attrs[name]


def _known_of_training(result: xr.Dataset, options: Mapping[str, Any]) -> dict[str, Any]:
    """What claim "pld" must know, as far as the audit says it."""
    audit_bounds.of_one_audit(result)
    return audit_bounds.known_sampling(result, options.get("claim"))


def promises(result: xr.Dataset, *, delta: float) -> dict[str, np.ndarray]:
    """The accountants' ε at the observed steps of an audit, (steps,), for "substitute" and "add_remove".

    Raises:
        ValueError: if its batches have no ε under add/remove.
    """
    sampling = accounting.Sampling.of(result.attrs.get("sampling", "poisson"))
    if reason := sampling.without_epsilon.get("add_remove"):
        raise ValueError(f"result must have an ε under add/remove, got sampling='{sampling}': {reason}")
    about = {name: _attribute(result, name) for name in ("noise_multiplier", "sample_rate")} | {"sampling": sampling}
    return {
        adjacency: np.asarray(accounting.epsilon(**about, steps=_steps(result), delta=delta, adjacency=adjacency))
        for adjacency in ("substitute", "add_remove")
    }


def panel(audited: Mapping[str, xr.Dataset], *, delta: float, **options: Any) -> dict[str, Any]:
    """The arguments of `figures.epsilon_against_step` for several scenarios audited in the same training.

    Args:
        audited: by scenario, audits with the same training parameters, observed steps, runs and repeats.
        delta: the δ at which ε is stated.
        options: of `bounds`. The ceiling is that of bounds with these options; for claim "pld" it depends on the step.

    Raises:
        ValueError: if the audits differ in one of these.
    """
    first = next(iter(audited.values()))
    steps, sizes = _steps(first), _scores_and_bits(first).sizes
    for scenario, other in audited.items():
        for name in ONE_TRAINING:
            mine, its = first.attrs.get(name), other.attrs.get(name)
            rounded = name == "noise_multiplier" and mine and its and isclose(mine, its, rel_tol=1e-6)
            if mine != its and not rounded:  # as between two machines
                raise ValueError(f"audited must be of one training, got {scenario} with {name} {its!r} beside {mine!r}")
        if (its_sizes := _scores_and_bits(other).sizes) != sizes or not np.array_equal(_steps(other), steps):
            raise ValueError(
                f"audited must have the same runs, repeats and steps, got {scenario} with "
                f"{dict(its_sizes)} and the steps {_steps(other).tolist()} beside {dict(sizes)} and {steps.tolist()}"
            )
    by_scenario = {scenario: bounds(result, delta=delta, **options) for scenario, result in audited.items()}
    return {
        "steps": steps,
        **promises(first, delta=delta),
        "audited": by_scenario,
        "ceiling": _ceiling(
            options.get("runs") or sizes["run"], len(steps), delta, _known_of_training(first, options) | options
        ),
    }


def _ceiling(runs: int, count: int, delta: float, options: Mapping[str, Any]) -> float | np.ndarray:
    """What bounds with these options can reach at most; (steps,) if the claim depends on the step."""
    asked = {name: value for name, value in options.items() if name not in ("runs", "simultaneous")}
    if options.get("simultaneous"):
        asked["alpha"] = options.get("alpha", ALPHA) / count
    if "steps" not in asked:
        return estimators.max_certifiable_epsilon(runs, delta=delta, **asked)
    steps = np.atleast_1d(asked.pop("steps")).tolist()
    return np.array([estimators.max_certifiable_epsilon(runs, delta=delta, steps=at, **asked) for at in steps])


def panels(audited: Mapping[tuple[str, str], xr.Dataset], *, delta: float, **options: Any) -> dict[str, dict[str, Any]]:
    """The panels of `figures.epsilon_panels`: for each label, the `panel` of its scenarios.

    Args:
        audited: by label and scenario, as `audits.load_all` returns them.
        delta: the δ at which ε is stated.
        options: of `bounds`.
    """
    by_label: dict[str, dict[str, xr.Dataset]] = {}
    for (label, scenario), result in audited.items():
        by_label.setdefault(label, {})[scenario] = result
    return {
        label: panel({s: of[s] for s in sorted(of, key=str)}, delta=delta, **options) for label, of in by_label.items()
    }


def last_step(audited: Iterable[xr.Dataset], *, delta: float) -> pd.DataFrame:
    """A table of lower bounds from the final models, with one row for each audit.

    Columns: `scenario`; `sample_rate`, `max_grad_norm`, `steps`, `learning_rate`; `bound`, the mean over repeats of the
    valid bound on ε, and `error`, two standard errors of that mean, NaN for a single repeat; `papers_rule`, the mean
    bound with rule="best", which is not valid; `substitute` and `add_remove`, the accountants' ε. All are of the
    last step that the audit holds, which is in `steps`.

    Raises:
        ValueError: if no valid bound exists for an audit's scores.
    """
    rows = []
    for place, result in enumerate(audited):
        steps = _steps(checks.instance("audited", result, of=xr.Dataset, called="a sequence of audits"))
        last = result.isel(step=[int(steps.argmax())]) if "step" in result.dims else result
        own, best = ([of[-1] for of in bounds(last, delta=delta, rule=rule)] for rule in ("auto", "best"))
        if not_valid := [bound.note for bound in own if not bound.valid]:  # no column would say so
            raise ValueError(f"audited[{place}] must have scores that allow a valid bound, got others: {not_valid[0]}")
        valid, papers = estimators.over_repeats(own), estimators.over_repeats(best)
        names = ("scenario", "sample_rate", "max_grad_norm", "steps", "learning_rate")
        rows.append(
            {name: result.attrs.get(name) for name in names}
            | {"steps": int(steps.max()), "bound": valid.mean, "error": valid.error, "papers_rule": papers.mean}
            | {adjacency: float(epsilon[0]) for adjacency, epsilon in promises(last, delta=delta).items()}
        )
    return pd.DataFrame(rows)


def accuracy(result: xr.Dataset) -> np.ndarray:
    """(models, steps): the test accuracies that an audit measured, over all its repeats.

    Args:
        result: an audit with metrics=("accuracy",).

    Raises:
        ValueError: if the audit measured no accuracy.
    """
    if "accuracy" not in result.data_vars:
        raise ValueError('result must be of dpsub.audit(metrics=("accuracy",)), got an audit without accuracies')
    dims = ("repeat", "measured", "step")
    accuracies = result.accuracy.expand_dims([dim for dim in dims if dim not in result.accuracy.dims]).transpose(*dims)
    return np.asarray(accuracies.values.reshape(-1, accuracies.sizes["step"]))


def source(*audited: xr.Dataset) -> str:
    """The tasks of a figure's audits and their number of models, to write below it."""
    held = [_scores_and_bits(result) for result in audited]
    if not all((audit.bit >= 0).all() for audit in held):
        raise ValueError("audited must be whole, got bits of -1: a store is not complete")
    tasks = dict.fromkeys(str(result.attrs.get("task", "simulated")) for result in audited)
    sizes = dict.fromkeys((audit.sizes["run"], audit.sizes["repeat"]) for audit in held)
    models = " and ".join(
        f"{runs:,} models" if repeats == 1 else f"{repeats} × {runs:,} models" for runs, repeats in sizes
    )
    return f"{', '.join(tasks)}; {models} an audit"


def d_prime(scores: ArrayLike | xr.DataArray, bits: ArrayLike | xr.DataArray) -> float:
    """The distance of the worlds' mean scores in standard deviations: μ, if scores are Gaussian of one width.

    The standard deviation is the root of the mean of the worlds' variances. It is a point estimate, and no bound.

    Args:
        scores: (runs,), higher speaks for z.
        bits: (runs,): 0 if z, 1 if z_prime, two or more of each.

    Returns:
        It is positive if scores speak for z. Of scores without any spread it is 0 if the worlds are alike, and else
        infinite.

    Raises:
        ValueError: if the scores are not finite, or are not one for each bit.

    >>> d_prime([4.0, 2.0, 1.0, -1.0], [0, 0, 1, 1])
    2.1213203435596424
    """
    checks.array("scores", scores, shape=("runs",))
    columns, in_z, _ = scores_and_bits(scores, bits)
    with_z, others = columns[in_z, 0], columns[~in_z, 0]
    gap = float(with_z.mean() - others.mean())
    spread = float(np.sqrt((with_z.var(ddof=1) + others.var(ddof=1)) / 2))
    if spread:
        return gap / spread
    return float(np.sign(gap)) * np.inf if gap else 0.0


def every_step_mu(result: xr.Dataset) -> float:
    r"""The μ of an adversary who watches every step: about the most that any look at the final model can show.

    At sample rate 1 the canary is in every batch. Who knows all other records sees its clipped gradient, that of z or
    of z′, beside Gaussian noise. If the two are 2C·d apart, all steps together have μ² = Σ (2d/σ)². The distances
    depend on the models, so this is a mean of μ² over models.

    Args:
        result: an audit with the metric "distance", of one repeat. If it observed only some steps, the others count as
            these on average.

    Raises:
        ValueError: if the audit has no distances, several repeats, or a sample rate below 1.

    >>> import xarray as xr
    >>> found = xr.Dataset({"distance": (("run", "step"), [[1.0, 0.5]])})
    >>> every_step_mu(found.assign_attrs(noise_multiplier=2.0, sample_rate=1.0, steps=4))
    1.5811388300841898
    """
    if "distance" not in result.data_vars or result.distance.dims != ("run", "step"):
        raise ValueError(
            'result must have distances (run, step): audit(..., metrics=("distance",)), and isel(repeat=0) of several '
            f"repeats, got {dict(result.distance.sizes) if 'distance' in result.data_vars else 'none'}"
        )
    sigma, q, steps = (_attribute(result, name) for name in ("noise_multiplier", "sample_rate", "steps"))
    if q < 1:
        raise ValueError(f"result must be of sample rate 1, where each step is a Gaussian mechanism, got {q}")
    distances = checks.array("result's distances", result.distance, at_least=0)
    return float(np.sqrt(steps * np.square(2 * distances / sigma).mean()))
