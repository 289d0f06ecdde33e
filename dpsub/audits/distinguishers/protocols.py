r"""Protocols: which models a distinguisher learns from, and which it judges.

The rank test needs scores that are independent given the worlds and alike within each world. If the scorer was learned
from other models than those that it judges, the judged models' scores are so, given the scorer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from tqdm.auto import tqdm

from dpsub._core import checks
from dpsub._core.datasets import LONG_NAMES
from dpsub.audits.distinguishers.interface import Distinguisher
from dpsub.models import Model
from dpsub.models.interface import check_model

PROTOCOLS = ("held_out", "folds", "in_sample")
SHARES = {"held_out": 0.5, "folds": 0.35, "in_sample": 0.5}  # learned from only; unused in sample
LEAST = 2  # models of each world in each part


@dataclass(frozen=True)
class Part:
    """One lesson: the scorer is learned from the first runs, and judges others."""

    learned_from: slice
    judged: slice


@checks.checked(
    "folds",
    "progress",
    protocol=partial(checks.choice, options=PROTOCOLS),
    share=partial(checks.real, above=0, below=1),
)
def distinguish(
    trained: xr.Dataset,
    model: Model,
    by: Distinguisher,
    *,
    protocol: str = "held_out",
    share: float | None = None,
    folds: int = 5,
    progress: bool = True,
) -> xr.Dataset:
    r"""Score final models by a distinguisher that is learned from some of them.

    Args:
        trained: an audit with the metric "weights", of one repeat.
        model: its architecture.
        by: what learns the score, such as one of `dpsub.distinguishers`.
        protocol: which models are learned from, and which are judged. Runs are exchangeable, so parts are runs with
            successive numbers.

            - "held_out": a share of the runs is learned from, and the others are judged. All estimators apply.
            - "folds": a share of the runs is only learned from, and the others are divided into folds. Each fold is
              judged by what was learned from all runs before it, so that later folds have better scorers.
              `epsilon_lower_bound` then pools the rank tests of the folds (rule "folds", which "auto" chooses for
              these scores).
            - "in_sample": the models that are judged are learned from. Such scores show overfitting as if it were
              leakage. `epsilon_lower_bound` returns valid=False for them: for comparison only. The mark is a
              coordinate. It is lost if only `.values` are passed on.
        share: 0 < share < 1; the share of the runs that is only learned from: by default 0.5 for "held_out" and 0.35
            for "folds".
        folds: ≥ 1; how many folds are judged, for "folds". One fold is the same as "held_out".
        progress: show a progress bar of the folds.

    Returns:
        A dataset of the judged runs: `score` (run,) float32, higher speaks for z; `bit` (run,) int8; the coordinate
        `run`, the number in `trained`; for "folds" the coordinate `fold` (run,), from 1 on; and for "in_sample" the
        coordinate `in_sample` (run,), True everywhere. The attributes are those of `trained`, and `distinguisher`,
        `protocol`, `learned_from` and `judged`: the numbers of runs, one for each judged fold.

    Raises:
        ValueError: if `trained` holds no weights, several repeats, runs that are not trained yet, or weights of another
            model; if a part holds fewer than two models of a world; if scores are not finite or not one for each
            model; or if an argument is out of range.

    Source: *Adversarial Sample-Based Approach*, first version, learns from the models that it judges: "in_sample". The
    second version (arXiv 2412.01756) holds models out.

    >>> from dpsub import DPSGD, audit, crafters, data, distinguishers, models
    >>> task = data.digits(n_train=50)
    >>> spec = DPSGD(noise_multiplier=2.0, max_grad_norm=1.0, sample_rate=1.0, steps=5, learning_rate=1.0)
    >>> model = models.linear(task)
    >>> pair = crafters.mislabeled(task, model, spec, seed=0)
    >>> trained = audit(task, model, pair, spec, runs=40, metrics=("weights",), progress=False)
    >>> judged = distinguish(trained, model, distinguishers.Canary(pair), share=0.25, progress=False)
    >>> judged.sizes["run"], int(judged.run[0])
    (30, 10)
    """
    _check(trained, model)
    bits = trained.bit.values.astype(np.int8)
    first = SHARES[protocol] if share is None else share
    parts = _parts(protocol, len(bits), round(first * len(bits)), folds)
    _check_parts(parts, bits, protocol)
    scores = [
        _scores(by, model, trained, part) for part in tqdm(parts, unit=" folds", desc=repr(by), disable=not progress)
    ]
    rows = np.concatenate([np.arange(len(bits))[part.judged] for part in parts])
    counts = {
        "learned_from": [len(bits[part.learned_from]) for part in parts],
        "judged": [len(values) for values in scores],
    }
    result = xr.Dataset(
        {
            "score": ("run", np.concatenate(scores), {"long_name": LONG_NAMES["score"]}),
            "bit": trained.bit[rows].astype(np.int8),
        },
        coords={"run": trained.run.values[rows].astype(np.int64)},
        attrs=trained.attrs
        | {"distinguisher": repr(by), "protocol": protocol}
        | {name: values[0] if len(values) == 1 else values for name, values in counts.items()},
    )
    if protocol == "in_sample":
        return result.assign_coords(in_sample=("run", np.ones(len(rows), bool)))
    if protocol == "folds":
        return result.assign_coords(fold=("run", np.repeat(np.arange(1, folds + 1), counts["judged"])))
    return result


def _check(trained: xr.Dataset, model: Model) -> None:
    """Check that the dataset holds final weights of this model, in one repeat, with the worlds of all."""
    checks.instance("trained", trained, of=xr.Dataset, called="the dataset of an audit")
    check_model(model)
    if "weights" not in trained or trained.weights.dims != ("run", "parameter"):
        raise ValueError(
            'trained must hold the weights (run, parameter) of one repeat: audit(..., metrics=("weights",)), and '
            f"isel(repeat=0) if there are several, got {dict(trained.sizes)} and {', '.join(map(str, trained))}"
        )
    audited = trained.attrs.get("model", repr(model))
    if audited != repr(model) or trained.sizes["parameter"] != model.parameters:
        raise ValueError(
            f"trained must hold the weights of model, {model!r}, got {trained.sizes['parameter']} parameters of "
            f"{audited}"
        )
    if untrained := int((~np.isin(trained.bit.values, (0, 1))).sum()):
        raise ValueError(
            f"trained must hold bits of 0 and 1, got {untrained} runs with others: finish the audit, or drop them with "
            "trained.isel(run=trained.bit.values >= 0)"
        )


def _parts(protocol: str, runs: int, first: int, folds: int) -> list[Part]:
    if protocol == "in_sample":
        return [Part(slice(0, runs), slice(0, runs))]
    folds = folds if protocol == "folds" else 1
    ends = np.cumsum([first, *map(len, np.array_split(np.arange(first, runs), folds))]).tolist()
    return [Part(slice(0, start), slice(start, stop)) for start, stop in pairwise(ends)]


def _check_parts(parts: list[Part], bits: NDArray[np.int8], protocol: str) -> None:
    remedy = {"held_out": "another share", "folds": "fewer folds", "in_sample": "another audit"}[protocol]
    for part in parts:
        for rows, use in ((part.learned_from, "learned from"), (part.judged, "judged")):
            counts = np.bincount(bits[rows], minlength=2)
            if counts.min() < LEAST:
                raise ValueError(
                    f"trained must hold at least {LEAST} models of each world in each part, got {counts[0]} with z and "
                    f"{counts[1]} with z_prime among the {counts.sum()} {use}: train more models, or give {remedy}"
                )


def _scores(by: Distinguisher, model: Model, trained: xr.Dataset, part: Part) -> NDArray[np.float32]:
    """Learn from a part's models, and score its others."""
    weights = checks.array("trained's weights", trained.weights.values, kind=np.float32)
    learned_from, judged = weights[part.learned_from].copy(), weights[part.judged].copy()
    scorer = by.learn(model, learned_from, trained.bit.values[part.learned_from].astype(np.int8))
    given = scorer.scores(model, judged)
    return checks.array(f"scores by {by!r}", given, shape=(len(judged),), kind=np.float32)
