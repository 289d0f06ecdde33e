"""From the scores of audits to tables and to the panels of figures, with the accountants' ε beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Unpack

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import ArrayLike

from dpsub import accounting, estimators
from dpsub._core import checks
from dpsub.estimators import METHODS, LowerBound, audit_bounds
from dpsub.estimators.catalogue import RULES
from dpsub.estimators.dpsgd_claim import Sampling
from dpsub.estimators.scores_and_marks import scores_and_bits
from dpsub.figures import inputs

__all__ = [
    "accuracy", "bounds", "d_prime", "estimates", "every_step_mu", "last_step", "panel", "panels", "promises", "source",
    "tidy_bounds",
]  # fmt: skip

ALPHA = 0.05  # the default of `estimators.epsilon_lower_bound`
MOST_STEPS = 10**9


def bounds(result: xr.Dataset, *, delta: float, runs: int | None = None, **options: Any) -> list[list[LowerBound]]:
    """The lower bounds on ε of an audit: a list for each repeat, with one bound for each observed step.

    Args:
        result: an audit, by `dpsub.audit` or `dpsub.audit_worst_case`, or read from a store.
        delta: the δ at which ε is stated.
        runs: use only the first `runs` runs of each repeat; None uses all.
        options: of `estimators.epsilon_lower_bound`. Method "pld" takes `sample_rate`, `steps` and `adjacency` from the
            audit, unless they are given.

    Raises:
        ValueError: if the audit has fewer than `runs` runs, or if a step, a run or a whole repeat is missing.
    """
    given = inputs.arranged("result", result)
    if runs is not None:
        given = given.isel(run=slice(checks.whole("runs", runs, at_least=2, at_most=given.sizes["run"])))
    given = inputs.whole("result", given)
    options = _sampling(given, options) | options
    repeats = (given.isel(repeat=repeat) for repeat in range(given.sizes["repeat"]))
    found = [estimators.epsilon_lower_bound(one.score, one.bit, delta=delta, **options) for one in repeats]
    return [[one] if isinstance(one, LowerBound) else one for one in found]


def tidy_bounds(result: xr.Dataset, *, delta: float, runs: int | None = None, **options: Any) -> pd.DataFrame:
    """The bounds of `bounds` as a table with one row for each repeat and observed step.

    Columns: `repeat`, `step`; `epsilon`, `mu` (NaN for methods without it), `method`, `rule`, `assumes`, `valid`,
    `note`, `delta` and `alpha`, as in `estimators.LowerBound`.

    Args:
        result, delta, runs, options: as in `bounds`.

    Raises:
        ValueError: as `bounds`.
    """
    found = bounds(result, delta=delta, runs=runs, **options)
    steps = inputs.steps("result", inputs.dataset("result", result))
    return pd.DataFrame(
        {"repeat": repeat, "step": int(step)} | _told_of(bound)
        for repeat, of_steps in enumerate(found)
        for step, bound in zip(steps, of_steps, strict=True)
    )


@checks.checked("delta", "alpha")
def estimates(
    scores: ArrayLike, bits: ArrayLike, *, delta: float, alpha: float = 0.05, **mechanism: Unpack[Sampling]
) -> pd.DataFrame:
    """What every estimator says of the same runs: one row for each method and threshold rule that go together.

    Choose one of them before you look, by what you know: the largest bound of several is not valid. Columns are those
    of `tidy_bounds`, without `repeat` and `step`. Where a rule cannot be used on these scores, `epsilon` is NaN and
    `note` says why.

    Args:
        scores: (runs,), one for each model; higher speaks for z.
        bits: (runs,) of 0 (trained with z) and 1 (trained with z′).
        delta: 0 < δ < 1; the δ at which ε is stated.
        alpha: as in `estimators.epsilon_lower_bound`.
        mechanism: `sample_rate`, `steps`, `adjacency` and, if batches were not Poisson's, `sampling` of the training.
            Without them method "pld" is left out.

    Raises:
        ValueError: if an argument is out of range, or scores and bits do not go together.

    >>> import numpy as np
    >>> from dpsub import findings
    >>> bits = np.arange(400) % 2
    >>> scores = np.random.default_rng(0).normal(size=400) - 3 * bits
    >>> table = findings.estimates(scores, bits, delta=1e-5)
    >>> bool(table.valid[(table.method == "gdp") & (table.rule == "ranks")].all())
    True
    """
    columns, _, several = scores_and_bits(scores, bits)
    if several:
        raise ValueError(f"scores must be (runs,), one for each model, got shape {columns.shape}")
    rows = []
    for method, claim in METHODS.items():
        for name, rule in RULES.items():
            if (method == "pld" and not mechanism) or name == "folds" or not (rule.one_threshold or claim.exact):
                continue
            sampling = mechanism if method == "pld" else Sampling()
            try:
                bound = estimators.epsilon_lower_bound(
                    scores, bits, delta=delta, alpha=alpha, method=method, threshold=name, **sampling
                )
            except ValueError as error:
                if name == "ranks":  # it takes all scores: what is wrong is an argument
                    raise
                bound = LowerBound(
                    np.nan, method, claim.assumes, False, str(error), rule=name, delta=delta, alpha=alpha
                )
            assert isinstance(bound, LowerBound)
            rows.append(_told_of(bound))
    return pd.DataFrame(rows)


def _told_of(bound: LowerBound) -> dict[str, Any]:
    names = ("epsilon", "mu", "method", "rule", "assumes", "valid", "note", "delta", "alpha")
    told = {name: getattr(bound, name) for name in names}
    return told | {"mu": np.nan if bound.mu is None else bound.mu}


def _sampling(result: xr.Dataset, options: Mapping[str, Any]) -> dict[str, Any]:
    """What method "pld" must know, as far as the audit says it."""
    audit_bounds.of_one_audit(result)
    return audit_bounds.known_sampling(result, options.get("method", options.get("claim")))


def promises(result: xr.Dataset, *, delta: float) -> dict[str, np.ndarray]:
    """The accountants' ε at the observed steps of an audit, (steps,), for "substitute" and "add_remove".

    Raises:
        ValueError: if its batches were not Poisson's, which have no ε under add/remove.
    """
    steps = inputs.steps("result", inputs.dataset("result", result))
    if (sampling := result.attrs.get("sampling", "poisson")) != "poisson":
        raise ValueError(
            f"result must be of Poisson batches, got sampling={sampling!r}, for which there is no add/remove ε: use "
            "bounds(result, ...), and accounting.epsilon with this sampling"
        )
    about = {name: inputs.attribute("result", result, name) for name in ("noise_multiplier", "sample_rate")}
    return {
        adjacency: np.asarray(accounting.epsilon(**about, steps=steps, delta=delta, adjacency=adjacency))
        for adjacency in ("substitute", "add_remove")
    }


def panel(audited: Mapping[str, xr.Dataset], *, delta: float, **options: Any) -> dict[str, Any]:
    """The arguments of `figures.epsilon_against_step` for several scenarios audited in the same training.

    Args:
        audited: by scenario, audits with the same training parameters, observed steps, runs and repeats.
        delta: the δ at which ε is stated.
        options: of `bounds`. The ceiling is that of bounds with these options; for method "pld" it depends on the step.

    Raises:
        ValueError: if there is no audit, or if the audits differ in one of these.
    """
    if not isinstance(audited, Mapping):
        raise ValueError(f"audited must be audits by scenario, in a dictionary, got {type(audited).__name__}")
    if not audited:
        raise ValueError("audited must be one audit or more, by scenario, got none")
    first = inputs.dataset("audited", next(iter(audited.values())))
    steps = inputs.steps("audited", first)
    sizes = inputs.arranged("audited", first).sizes
    for scenario, other in audited.items():
        its_sizes = inputs.arranged(f"audited[{scenario!r}]", other).sizes
        if name := inputs.differing(first, other, inputs.ONE_TRAINING):
            mine, its = first.attrs.get(name), other.attrs.get(name)
            raise ValueError(f"audited must be of one training, got {scenario} with {name} {its!r} beside {mine!r}")
        its_steps = inputs.steps(f"audited[{scenario!r}]", other)
        if its_sizes != sizes or not np.array_equal(its_steps, steps):
            raise ValueError(
                f"audited must have the same runs, repeats and steps, got {scenario} with "
                f"{_told(its_sizes, its_steps)} beside {_told(sizes, steps)}"
            )
    found = {scenario: bounds(result, delta=delta, **options) for scenario, result in audited.items()}
    return {
        "steps": steps,
        **promises(first, delta=delta),
        "audited": found,
        "ceiling": _ceiling(
            options.get("runs") or sizes["run"], len(steps), delta, _sampling(first, options) | options
        ),
    }


def _told(sizes: Mapping[Any, int], steps: np.ndarray) -> str:
    return f"{ {name: sizes[name] for name in ('run', 'repeat')} } and the steps {steps.tolist()}"


def _ceiling(runs: int, count: int, delta: float, options: Mapping[str, Any]) -> float | np.ndarray:
    """What bounds with these options can reach at most; (steps,) if the method depends on the step."""
    rule = {name: value for name, value in options.items() if name not in ("runs", "simultaneous")}
    if options.get("simultaneous"):
        rule["alpha"] = options.get("alpha", ALPHA) / count
    if "steps" not in rule:
        return estimators.max_certifiable_epsilon(runs, delta=delta, **rule)
    steps = np.atleast_1d(rule.pop("steps")).tolist()
    return np.array([estimators.max_certifiable_epsilon(runs, delta=delta, steps=at, **rule) for at in steps])


def panels(audited: Mapping[tuple[str, str], xr.Dataset], *, delta: float, **options: Any) -> dict[str, dict[str, Any]]:
    """The panels of `figures.epsilon_panels`: for each label, the `panel` of its scenarios.

    Args:
        audited: by label and scenario, as `audits.sweep` and `audits.load_all` return them.
        delta: the δ at which ε is stated.
        options: of `bounds`.
    """
    by_label: dict[str, dict[str, xr.Dataset]] = {}
    for key, one in inputs.named("audited", audited).items():
        if not isinstance(key, tuple) or len(key) != 2:
            raise ValueError(f"audited must be audits by label and scenario, in a dictionary, got the key {key!r}")
        by_label.setdefault(key[0], {})[key[1]] = one
    return {
        label: panel({s: of[s] for s in sorted(of, key=str)}, delta=delta, **options) for label, of in by_label.items()
    }


def last_step(audited: Iterable[xr.Dataset], *, delta: float) -> pd.DataFrame:
    """A table of lower bounds from the final models, with one row for each audit.

    Columns: `scenario`; `sample_rate`, `max_grad_norm`, `steps`, `learning_rate`; `bound`, the mean over repeats of the
    valid bound on ε, and `error`, two standard errors of that mean, NaN for a single repeat; `papers_rule`, the mean
    bound with threshold="best", which is not valid; `substitute` and `add_remove`, the accountants' ε. All are of the
    last step that the audit holds, which is in `steps`.

    Raises:
        ValueError: if there is no audit, or if no valid bound exists for an audit's scores.
    """
    rows = []
    for place, result in enumerate(_several(audited)):
        steps = inputs.steps(f"audited[{place}]", inputs.dataset(f"audited[{place}]", result))
        last = result.isel(step=[int(steps.argmax())]) if "step" in result.dims else result
        own, best = ([of[-1] for of in bounds(last, delta=delta, threshold=rule)] for rule in ("auto", "best"))
        inputs.all_valid(f"audited[{place}]", own)
        valid, papers = estimators.over_repeats(own), estimators.over_repeats(best)
        names = ("scenario", "sample_rate", "max_grad_norm", "steps", "learning_rate")
        rows.append(
            {name: result.attrs.get(name) for name in names}
            | {"steps": int(steps.max()), "bound": valid.mean, "error": valid.error, "papers_rule": papers.mean}
            | {adjacency: float(epsilon[0]) for adjacency, epsilon in promises(last, delta=delta).items()}
        )
    return pd.DataFrame(rows)


def _several(audited: Iterable[xr.Dataset]) -> list[xr.Dataset]:
    single = isinstance(audited, xr.Dataset | Mapping | str) or getattr(audited, "shape", None) == ()
    if single or not isinstance(audited, Iterable):
        raise ValueError(f"audited must be a sequence of audits, got {type(audited).__name__}")
    if not (found := list(audited)):
        raise ValueError("audited must be one audit or more, got none")
    return found


@checks.checked(bit=partial(checks.whole, at_least=0, at_most=1))
def accuracy(result: xr.Dataset, *, bit: int | None = None) -> np.ndarray:
    """(models, steps): the test accuracies that an audit measured, over all its repeats.

    Args:
        result: an audit with metrics=("accuracy",).
        bit: use only the models of the world with z (0) or with z′ (1); None uses both.

    Raises:
        ValueError: if the audit measured no accuracy, if some are missing, or if it does not hold the runs, by their
            numbers, whose world decides.
    """
    if "accuracy" not in inputs.dataset("result", result).data_vars:
        raise ValueError('result must be of dpsub.audit(metrics=("accuracy",)), got an audit without accuracies')
    dims = ("repeat", "measured", "step")
    if foreign := set(result.accuracy.dims) - set(dims):
        raise ValueError(f"result must have accuracies by repeat, measured and step, got the dimension {foreign.pop()}")
    found = result.accuracy.expand_dims([name for name in dims if name not in result.accuracy.dims]).transpose(*dims)
    if missing := int(found.isnull().sum()):
        raise ValueError(f"result must be whole, got {missing:,} of {found.size:,} accuracies missing")
    if not found.size:
        raise ValueError(f"result must have accuracies of one model and step or more, got sizes {dict(found.sizes)}")
    models = found.values.reshape(-1, found.sizes["step"])
    if bit is None:
        return np.asarray(models)
    if "measured" not in result.coords:
        raise ValueError(
            "result must have the coordinate measured, the numbers of the runs whose accuracy was measured"
        )
    runs = inputs.numbered("result", inputs.arranged("result", result)).bit
    measured = np.atleast_1d(result.measured.values)
    if unknown := set(measured.tolist()) - set(runs.run.values.tolist()):
        raise ValueError(
            f"result must hold the runs whose accuracy was measured, got none with the number {min(unknown)}: select "
            "the same runs in measured"
        )
    bits = runs.sel(run=measured).values.ravel()
    if not np.isin(bits, (0, 1)).all():
        raise ValueError("result must have bits of 0 or 1 for the measured runs, got others: its store is not complete")
    return np.asarray(models[bits == bit])


def source(*audited: xr.Dataset) -> str:
    """The tasks of a figure's audits and their number of models, to write below it."""
    if not audited:
        raise ValueError("audited must be one audit or more, got none")
    held = [inputs.whole("audited", inputs.arranged("audited", result)) for result in audited]
    tasks = dict.fromkeys(str(result.attrs.get("task", "simulated")) for result in audited)
    sizes = dict.fromkeys((one.sizes["run"], one.sizes["repeat"]) for one in held)
    told = " and ".join(
        f"{runs:,} models" if repeats == 1 else f"{repeats} × {runs:,} models" for runs, repeats in sizes
    )
    return f"{', '.join(tasks)}; {told} an audit"


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
    columns, in_z, several = scores_and_bits(scores, bits)
    if several:
        raise ValueError(f"scores must have shape (runs,), got {columns.shape}: choose a step")
    if not np.isfinite(columns).all():
        raise ValueError("scores must be finite, got some that are infinite: look for diverged runs")
    with_z, others = columns[in_z, 0], columns[~in_z, 0]
    if min(len(with_z), len(others)) < 2:
        raise ValueError(f"bits must hold two runs or more of each world, got {len(with_z)} and {len(others)}")
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
    of = inputs.dataset("result", result)
    if "distance" not in of.data_vars or of.distance.dims != ("run", "step"):
        raise ValueError(
            'result must have distances (run, step): audit(..., metrics=("distance",)), and isel(repeat=0) of several '
            f"repeats, got {dict(of.distance.sizes) if 'distance' in of.data_vars else 'none'}"
        )
    sigma, q, steps = (inputs.attribute("result", of, one) for one in ("noise_multiplier", "sample_rate", "steps"))
    sigma = checks.real("noise_multiplier", sigma, above=0)
    if checks.real("sample_rate", q, above=0, at_most=1) < 1:
        raise ValueError(f"result must be of sample rate 1, where each step is a Gaussian mechanism, got {q}")
    distances = of.distance.values
    if not distances.size or distances.dtype.kind != "f" or not (distances >= 0).all():
        raise ValueError("result must have distances >= 0 of one run and step or more: is its store complete?")
    with np.errstate(over="ignore"):
        mean = np.square(2 * distances.astype(np.float64) / sigma).mean()
        mu = float(np.sqrt(np.float64(checks.whole("steps", steps, at_most=MOST_STEPS)) * mean))
    if not np.isfinite(mu):
        raise ValueError(f"result must have distances that are finite, and not of too little noise, got μ = {mu}")
    return mu
