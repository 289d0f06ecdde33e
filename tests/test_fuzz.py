"""A seeded fuzz of the statistics wing: whatever is given, a number that is answered can be right.

Each call takes good arguments, most of the time with one or two that are spoiled. Any error refuses.
"""

import numpy as np
import pandas as pd
import pytest
import torch
import xarray as xr

from dpsub import accounting, audit_worst_case, estimators, opacus

OMIT = object()  # leaves an argument out
pytestmark = pytest.mark.filterwarnings("ignore")

SPOILED = [
    0, 1, 3, -1, -0.0, 0.5, 1.0, -1.5, 1e-300, 5e-324, float("nan"), float("inf"), np.int8(3), None, True, 1 + 0j,
    "", "nan", "ranks", (), {}, [None], [[1], [1, 2]], np.array([]), np.array([np.nan, 1.0]), np.zeros(3),
    np.ones((2, 3)), np.array(["a", "b"]), np.array([True, False, True]),
    np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, True, False]), np.arange(12.0).reshape(3, 4)[::-1, ::2],
    pd.Series([1.0, 2.0, 3.0], index=[5, 6, 7]), pd.NA, xr.DataArray(np.ones(3), dims="step"),
    torch.ones(2, requires_grad=True), iter([1.0, 2.0]),
]  # fmt: skip
ADJACENCIES, DELTAS = ["substitute", "add_remove", "zero_out"], [1e-5, 0.5, np.float32(1e-6), 1e-300]


def number(low=0.0, high=np.inf):
    def right(result):
        values = np.asarray(result, dtype=float)
        assert ((values >= low) & (values <= high)).all()  # no NaN is

    return right


def of(names, low=0.0, high=np.inf):
    """Takes results whose attributes of these names are numbers in this range."""
    return lambda result: number(low, high)([getattr(result, name) for name in names.split()])


def bounds(result):
    for bound in np.ravel(result):
        assert 0 <= bound.epsilon < np.inf
        assert bound.mu is None or 0 <= bound.mu < np.inf
        assert bound.noise_multiplier is None or bound.noise_multiplier > 0
        assert bound.epsilon > 0 or bound.note


def risks(result):
    number(0, 1)([bound.risk for bound in np.ravel(result)])


def simulated(result):
    assert np.isin(result.bit, (0, 1)).all()
    assert np.isfinite(result.score).all()


def finite(result):
    assert np.isfinite(np.asarray(result)).all()


def of_accounting():
    # Mostly full batches, which have closed forms; the others are short enough for small grids.
    law = {"sample_rate": [1.0, np.float32(1), 0.5], "steps": [1, 2, np.int64(2), 4.0]}
    training = {"noise_multiplier": [1.0, 2, 20.0, np.float32(1.5), 1e-2, 1e6], **law}
    drawn = {"adjacency": ADJACENCIES, "sampling": [OMIT, "poisson", "epochs", "without_replacement"]}
    asked, rate = {"delta": DELTAS, **drawn}, {"sample_rate": [0.01, 0.3, 1]}
    prior = {"prior": [OMIT, 0.5, 1e-9, [0.2, 0.8], [1e-300, 1.0 - 1e-16]], "fpr": [OMIT, 0.05, 1e-300]}
    whole, histories = {"sample_rate": [1.0, np.float32(1)]}, [[(1.0, 1.0, 2)], [(2.0, 1, 3), [1.5, 1, 1.0]]]
    seen = {"runs": [1, 50, np.int16(3)], "every_step": [OMIT, True], "seed": [OMIT, 7, np.uint64(3)]}
    yield accounting.epsilon, number(), training, asked, {"steps": [2, [1, 3], np.array([2, 1]), range(1, 3)]}
    yield accounting.epsilon, number(), asked, {"history": histories}
    yield accounting.epsilon_interval, of("lower estimate upper"), training, asked, {"eps_error": [OMIT, 1e-3, 1]}
    yield accounting.delta, number(0, 1), training, drawn, {"epsilon": [0, 1.0, [0.0, 1.0], (3,), np.float64(100)]}
    yield accounting.gdp_delta, number(0, 1), {"mu": [0, 1, 30.0], "epsilon": [0, 1.0, np.float64(100)]}
    yield accounting.gdp_mu, number(), {"epsilon": [0, 1.0, np.float64(100)], "delta": DELTAS}
    yield accounting.gdp_epsilon, number(), {"mu": [0, 1, 30.0], "delta": DELTAS}
    yield accounting.group_privacy_epsilon, number(), training, whole, {"delta": DELTAS}
    yield accounting.noise_multiplier, number(5e-324), law, whole, asked, {"target_epsilon": [1.0, 10, np.float32(2)]}
    yield accounting.noise_multiplier, number(5e-324), law, whole, asked, prior, {"target_risk": [0.9, 0.1]}
    yield accounting.risk, of("posterior advantage fpr tpr", 0, 1), training, asked, prior
    yield accounting.tradeoff, number(0, 1), training, drawn, {"fpr": [0.0, 1, [0.1, 0.2], np.zeros((2, 2))]}
    yield accounting.worst_case_epsilon, number(), training, rate, {"delta": DELTAS}
    yield audit_worst_case, simulated, training, rate, drawn, seen


def of_estimators():
    bits, rng = (np.arange(40) // 2) % 2, np.random.default_rng(0)
    scores = rng.normal(size=40) - 2.0 * bits
    observed = {
        "scores": [
            scores, scores.tolist(), scores.astype("f4"), np.stack([scores, -scores], axis=1), np.round(scores),
            np.where(bits, -np.inf, np.inf), np.zeros(40), pd.Series(scores), scores * 1e300,
        ],
        "bits": [bits, bits.tolist(), bits.astype(bool), xr.DataArray(bits, dims="run")],
    }  # fmt: skip
    level = {"delta": DELTAS, "alpha": [OMIT, 0.05, 1e-6, 0.49]}
    claims = {"claim": [OMIT, "gdp", "dp", "katz"], "rule": [OMIT, "ranks", "bets", "split", "best", 0.0, -3, 1e300]}
    law = {"claim": ["pld"], "sample_rate": [1.0], "steps": [3], "adjacency": ADJACENCIES}
    of_audit = {"sample_rate": 1.0, "steps": 3, "adjacency": "substitute", "seed": 0}
    steps = xr.Dataset({"score": ("observation", scores), "bit": ("observation", bits)}, attrs=of_audit)
    runs = steps.rename(observation="run").assign_coords(step=3)
    pairs = steps.rename(observation="pair").expand_dims("model")
    guesses = {"correct": [0, 60, np.int8(100), [50]], "guesses": [100, [100]], "pairs": [100, 10**6]}
    certain, folds = {"claim": [OMIT, "gdp", "dp"]}, {"folds": [np.arange(40) // 20, (np.arange(40) // 10).tolist()]}
    measures = {"measure": [OMIT, "accuracy", "tpr", "ppv"], "prior": [OMIT, 0.1, 1e-9], "fpr": [OMIT, 0.3]}
    step = estimators.LowerBound(3.9, "gdp", "gdp", True, mu=0.9)
    yield estimators.bound, bounds, level, {"result": [runs, steps, pairs, runs.drop_vars("bit")]}
    yield estimators.epsilon_lower_bound, bounds, observed, level, claims, {"simultaneous": [OMIT, True]}
    yield estimators.epsilon_lower_bound, bounds, observed, level, law
    yield estimators.epsilon_lower_bound, bounds, observed, level, certain, folds
    yield estimators.max_certifiable_epsilon, number(), level, claims, {"runs": [4, 1_000, np.int64(7)]}
    product = {"claim": [OMIT, "gdp", "dp", "product"]}
    yield estimators.one_run_epsilon_lower_bound, bounds, guesses, level, product
    yield estimators.risk_lower_bound, risks, observed, measures, {"alpha": level["alpha"]}
    yield estimators.step_to_training, bounds, law, {"bound": [step], "delta": [1e-5], "claim": [OMIT]}
    bets = {"scores": [scores], "bits": [bits], "epsilon": [0.1, 3], "delta": [1e-5]}
    yield estimators.wealth_of_bets, finite, certain, bets


def of_opacus():
    said = {"engine_or_history": [[(1.0, 1.0, 2)], [(2.0, 1.0, 1)]], "delta": DELTAS, "prior": [OMIT, 1e-9, [0.2, 0.8]]}
    more = {"sampling": [OMIT, "poisson", "epochs"], "trials": [OMIT, 2, np.int64(3)]}
    yield opacus.privacy_statement, of("zero_out substitute"), said, more


@pytest.mark.parametrize("room", [of_accounting, of_estimators, of_opacus])
@pytest.mark.parametrize("examples", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_a_call_is_refused_or_answered_with_numbers_that_can_be_right(room, examples):
    for function, right, *groups in room():
        good = {argument: values for group in groups for argument, values in group.items()}
        rng, answered = np.random.default_rng(0), 0
        for example in range(examples):
            arguments = {argument: values[rng.integers(len(values))] for argument, values in good.items()}
            for argument in rng.choice([*good], min(rng.integers(3) if example % 4 else 0, len(good)), replace=False):
                arguments[argument] = SPOILED[rng.integers(len(SPOILED))]
            arguments = {argument: value for argument, value in arguments.items() if value is not OMIT}
            try:
                result = function(**arguments)
            except Exception:  # whoever refuses it: dpsub, NumPy or Python
                continue
            answered += 1
            try:
                right(result)
            except AssertionError as error:
                raise AssertionError(f"{function.__name__}({arguments}) is {result}") from error
        assert answered, f"{function.__name__} is never answered"
