"""Calls of dpsub.estimators."""

from dataclasses import replace
from numbers import Real

import numpy as np
import pandas as pd
import xarray as xr
from hypothesis import strategies as st

from dpsub import estimators
from dpsub.estimators import CLAIMS as CLAIMS_BY_NAME
from dpsub.estimators.lower_bounds import RULES
from fuzz.accounting_calls import DELTAS, RATES, STEPS
from fuzz.call import OMIT, Call
from fuzz.checkers import ADJACENCIES, is_bound, number, of
from fuzz.hostile import LITTLE, among

RNG = np.random.default_rng(0)
BITS = (np.arange(40) // 2) % 2
SCORES = RNG.normal(size=40) - 2.0 * BITS
ALL_SCORES = [
    SCORES, SCORES.tolist(), SCORES.astype("f4"), SCORES[:, None], np.stack([SCORES, -SCORES], axis=1), BITS,
    np.round(SCORES), np.where(BITS, -np.inf, np.inf), np.zeros(40), pd.Series(SCORES), SCORES * 1e300,
    xr.DataArray(np.stack([SCORES, SCORES]), dims=("step", "run")).transpose("run", "step"),
]  # fmt: skip
ALL_BITS = [BITS, BITS.tolist(), BITS.astype(bool), BITS.astype("f8"), pd.Series(BITS), xr.DataArray(BITS, dims="run")]
MEASURES = ["accuracy", "advantage", "tpr", "ppv", "posterior"]
CLAIMS = [OMIT, "gdp", "gdp", "dp", "bayes_gdp", "bayes_dp", "katz"]
THRESHOLDS = [OMIT, "ranks", "bets", "folds", "split", "best", 0.0, np.float32(1), -3, 1e300]
ALPHAS = [OMIT, 0.05, 1e-6, 0.49]
OF_BOUND = {"delta": DELTAS, "rule": THRESHOLDS, "alpha": ALPHAS}
PLD = {"claim": ["pld"], "sample_rate": [1.0], "adjacency": list(ADJACENCIES)}
# Other rates than 1 take grids for hundreds of noise multipliers.
NO_RATE = LITTLE.filter(lambda rate: not isinstance(rate, Real) or not 0 < rate < 1)
SEEDS = [OMIT, 0, 5, np.int32(3)]


def bounds(result, /, **_):
    for bound in result if isinstance(result, list) else [result]:
        is_bound(bound)


def risk_bounds(result, /, **_):
    for bound in result if isinstance(result, list) else [result]:
        assert bound.without_model <= bound.risk <= 1
        assert bound.risk > bound.without_model or bound.note
        assert str(bound)


def is_bound_of_guesses(result, /, *, guesses, **_):
    is_bound(result)
    assert result.details["guesses"] in np.atleast_1d(guesses)


def is_bound_of_training(result, /, **_):
    is_bound(result)
    assert result.claim == "pld"


def over_repeats(result, /, **_):
    assert np.isfinite(result.mean).all()
    assert result.repeats == 1 or (np.asarray(result.error) >= 0).all()


STEP = estimators.LowerBound(3.9, "gdp", "gdp", True, mu=0.9)
STEP_NOISE = replace(STEP, claim="pld", mu=None, noise_multiplier=2.0)
RUNS = [4, 50, 1_000, np.int64(7), 30.0]
OBJECTS = {
    "claim": [OMIT, None, "gdp", "dp", CLAIMS_BY_NAME["gdp"](1e-5), CLAIMS_BY_NAME["katz"](1e-5)],
    "rule": [OMIT, None, "ranks", "split", 0.5, RULES["best"], RULES["ranks"]],
    "delta": [1e-5],
}


def audits():
    """Datasets as audits of models, steps and pairs return them."""
    score, bit, law = np.tile(SCORES, 3), np.tile(BITS, 3), {"sample_rate": 1.0, "steps": 3, "adjacency": "substitute"}
    of_runs = xr.Dataset({"score": ("run", score), "bit": ("run", bit)}, coords={"step": 3}, attrs=law)
    steps = of_runs.drop_vars("step").rename(run="observation")
    pairs = of_runs.drop_vars("step").rename(run="pair").expand_dims("model")
    return [of_runs, of_runs.expand_dims(repeat=2).transpose("run", "repeat"), steps, pairs]


def bounds_of_audit(result, /, **_):
    for bound in np.ravel(result):
        is_bound(bound)


CALLS = [
    *(
        Call(
            f"dpsub{room}.bound",
            estimators.bound,
            {
                "result": audits(),
                "delta": [1e-5],
                "claim": OBJECTS["claim"][:5],
                "rule": [OMIT, None],
                "alpha": ALPHAS,
            },
            bounds_of_audit,
            hostile={"result": st.one_of(LITTLE, among([one.drop_vars("bit") for one in audits()]))},
        )
        for room in ("", ".estimators")
    ),
    Call(
        "dpsub.estimators.epsilon_lower_bound by objects",
        estimators.epsilon_lower_bound,
        {"scores": ALL_SCORES[:4], "bits": ALL_BITS[:2], **OBJECTS},
        bounds,
    ),
    Call(
        "dpsub.estimators.max_certifiable_epsilon by objects",
        estimators.max_certifiable_epsilon,
        {"runs": [50, 1_000], **OBJECTS},
        number(0),
        hostile={"runs": LITTLE},
    ),
    Call(
        "dpsub.estimators.one_run_epsilon_lower_bound by objects",
        estimators.one_run_epsilon_lower_bound,
        {"correct": [60], "guesses": [100], "pairs": [100], **{name: OBJECTS[name] for name in ("claim", "delta")}},
        is_bound_of_guesses,
    ),
    Call(
        "dpsub.estimators.epsilon_lower_bound",
        estimators.epsilon_lower_bound,
        {"scores": ALL_SCORES, "bits": ALL_BITS, "claim": CLAIMS, **OF_BOUND, "simultaneous": [OMIT, True, False]},
        bounds,
    ),
    Call(
        "dpsub.estimators.epsilon_lower_bound of the mechanism",
        estimators.epsilon_lower_bound,
        {
            "scores": ALL_SCORES[:4],
            "bits": ALL_BITS,
            **PLD,
            **OF_BOUND,
            "steps": [3, [3], np.array([2])],
            "simultaneous": [OMIT, False],
        },
        bounds,
        hostile={"sample_rate": NO_RATE},
    ),
    Call(
        "dpsub.estimators.epsilon_lower_bound by bets",
        estimators.epsilon_lower_bound,
        {
            "scores": [np.tile(scores, 4) for scores in (SCORES, np.round(SCORES), np.where(BITS, -np.inf, np.inf))],
            "bits": [np.tile(BITS, 4)],
            "claim": ["gdp", "dp"],
            "rule": ["bets"],
            "delta": DELTAS,
            "alpha": ALPHAS,
        },
        bounds,
    ),
    Call(
        "dpsub.estimators.epsilon_lower_bound by folds",
        estimators.epsilon_lower_bound,
        {
            "scores": ALL_SCORES,
            "bits": ALL_BITS,
            "folds": [np.arange(40) // 20, (np.arange(40) // 10).tolist(), np.zeros(40), np.ones(40, bool)],
            "claim": ["gdp", "dp"],
            "rule": [OMIT, "auto", "folds"],
            "delta": DELTAS,
            "alpha": ALPHAS,
        },
        bounds,
    ),
    Call(
        "dpsub.estimators.one_run_epsilon_lower_bound",
        estimators.one_run_epsilon_lower_bound,
        {
            "correct": [0, 5, 50.0, np.int8(100), [50], (1, 60), np.array([0, 100])],
            "guesses": [100, 100.0, np.int16(100), [100], (60, 100), np.array([100, 100])],
            "pairs": [100, 1_000, np.int32(100), 10**6],
            "claim": [OMIT, "gdp", "dp", "product"],
            "candidates": [OMIT, 2, 10, np.int64(10**6)],
            "delta": DELTAS,
            "alpha": ALPHAS,
        },
        is_bound_of_guesses,
    ),
    Call(
        "dpsub.estimators.one_run_epsilon_lower_bound of the mechanism",
        estimators.one_run_epsilon_lower_bound,
        {
            "correct": [0, 60, [70, 100]],
            "guesses": [100, [80, 100]],
            "pairs": [100, 1_000],
            **PLD,
            "steps": [3, [3], np.int64(2)],
            "delta": DELTAS,
            "alpha": ALPHAS,
        },
        is_bound_of_guesses,
        hostile={"sample_rate": NO_RATE},
    ),
    Call(
        "dpsub.estimators.max_certifiable_epsilon",
        estimators.max_certifiable_epsilon,
        {"runs": RUNS, "claim": CLAIMS, **OF_BOUND, "folds": [OMIT, 1, 3, np.int8(2)]},
        number(0),
        hostile={"runs": LITTLE, "folds": LITTLE},
    ),
    Call(
        "dpsub.estimators.max_certifiable_epsilon of the mechanism",
        estimators.max_certifiable_epsilon,
        {"runs": RUNS, **PLD, **OF_BOUND, "steps": [3, np.int64(2)], "folds": [OMIT, 1]},
        number(0),
        hostile={"runs": LITTLE, "sample_rate": NO_RATE},
    ),
    Call(
        "dpsub.estimators.risk_lower_bound",
        estimators.risk_lower_bound,
        {
            "scores": ALL_SCORES,
            "bits": ALL_BITS,
            "measure": [OMIT, *MEASURES],
            "prior": [OMIT, 0.1, np.float32(0.9), 1e-9],
            "fpr": [OMIT, 0.3, 1e-9],
            "delta": st.one_of(st.just(OMIT), DELTAS),
            "alpha": ALPHAS,
            "folds": [OMIT, OMIT, None, np.arange(40) // 20],
        },
        risk_bounds,
    ),
    Call(
        "dpsub.estimators.step_to_training",
        estimators.step_to_training,
        {
            "bound": [STEP, STEP_NOISE],
            "sample_rate": RATES,
            "steps": STEPS,
            "delta": DELTAS,
            "adjacency": list(ADJACENCIES),
        },
        is_bound_of_training,
        hostile={
            "bound": st.one_of(
                LITTLE,
                among(
                    [
                        [STEP],
                        replace(STEP, details={"mu": np.nan}),
                        replace(STEP_NOISE, details={"noise_multiplier": -1}),
                    ]
                ),
            )
        },
    ),
    Call(
        "dpsub.estimators.runs_needed",
        estimators.runs_needed,
        {
            "epsilon": [0.5, 2, np.float32(3)],
            "delta": DELTAS,
            "truth": [4.0, 5, np.float64(6)],
            "power": [OMIT, 0.5, 0.95],
            "claim": [OMIT, "gdp", "dp"],
            "alpha": ALPHAS,
        },
        of(int),
        hostile={"truth": LITTLE},
    ),
    Call(
        "dpsub.estimators.runs_needed of the mechanism",
        estimators.runs_needed,
        {"epsilon": [8], "delta": [1e-5], "truth": [14.0], **PLD, "steps": [3, 5]},
        of(int),
        hostile={"sample_rate": NO_RATE},
    ),
    Call(
        "dpsub.estimators.wealth_of_bets",
        estimators.wealth_of_bets,
        {
            "scores": [
                SCORES,
                *(np.tile(scores, 4) for scores in (SCORES, np.round(SCORES), np.where(BITS, -np.inf, np.inf))),
            ],
            "bits": [BITS, np.tile(BITS, 4)],
            "epsilon": [0.1, 1, np.float32(3), 100.0],
            "delta": DELTAS,
            "claim": [OMIT, "gdp", "dp"],
        },
        number(),
    ),
    Call(
        "dpsub.estimators.over_repeats",
        estimators.over_repeats,
        {"bounds": [[1.0], [1.0, 2.0], [[1, 2], [3, 4]], np.ones((3, 2)), (0.0, 5), *ALL_SCORES]},
        over_repeats,
    ),
]
