"""Calls of dpsub.accounting, and of the worst case."""

import numpy as np
from hypothesis import strategies as st

import dpsub
from dpsub import accounting
from dpsub.accounting.risks import MEASURES, without_model
from fuzz.call import OMIT, Call
from fuzz.checkers import ADJACENCIES, is_audit, number
from fuzz.hostile import TEXTS, THINGS, among

# Mostly full batches, which have closed forms; the others are short enough for small grids.
NOISE = st.one_of(st.sampled_from([1.0, 2, 2.5, 20.0, np.float32(1.5), 1e-4, 1e6]), st.floats(0.5, 50))
RATES = [1.0] * 11 + [1, np.float32(1), np.int64(1), 0.5]
STEPS = [1, 2, 3, np.int64(2), 4.0]
SEVERAL_STEPS = [*STEPS, [1, 3], (2,), np.array([2, 1]), range(1, 3)]
DELTAS = st.one_of(st.sampled_from([1e-5, 1e-3, 0.5, np.float32(1e-6), 1e-300]), st.floats(1e-12, 0.99))
EPSILONS = st.one_of(st.sampled_from([0, 1.0, 10, np.float64(3)]), st.floats(0, 100))
PRIORS = [OMIT, 0.5, np.float32(0.1), 1e-9, [0.2, 0.8], (0.3, 0.3, 0.4), np.full(10, 0.1), [1e-300, 1.0 - 1e-16]]
SAMPLING = [OMIT, OMIT, "poisson", "epochs", "without_replacement"]
ENGINES = [OMIT, "auto"]  # the others take minutes for some noise multipliers
ALL_ENGINES = [*ENGINES * 10, "prv"]
HISTORIES = [[(1.0, 1.0, 2)], [(2.0, 1, 3), (np.float32(1.5), 1, 1)], [[1.0, 0.5, 2], [3.0, 1.0, 1]], ((5, 1.0, 1.0),)]
HISTORIES += [np.array([[1.0, 1.0, 3.0]])]
TRAINING = {"noise_multiplier": NOISE, "sample_rate": st.sampled_from(RATES), "steps": STEPS}
ADJACENT = {"adjacency": list(ADJACENCIES), "sampling": SAMPLING}

epsilon_or_infinity = number(0, finite=False)


def epsilon(result, /, **_):
    number(0)(result)


def interval(result, /, **_):
    lower, estimate, upper = map(np.asarray, result)
    assert ((lower <= estimate) & (estimate <= upper)).all()
    assert (lower >= 0).all()
    assert np.isfinite(upper).all()
    assert result.bound


def rates(result, /, *, fpr, **_):
    number(0, 1)(result)
    assert np.shape(result) == np.shape(fpr)


def audit(result, /, *, runs, **_):
    is_audit(result)
    assert result.sizes == {"run": runs, "step": 1}


def risk(result, /, **_):
    floor = without_model(result.prior, result.fpr)
    assert all(floor[name] * (1 - 1e-9) <= getattr(result, name) <= 1 for name in MEASURES)


CERTIFIED = {"delta": DELTAS, **ADJACENT, "eps_error": [OMIT, OMIT, 1e-3, 0.1, 1]}
ASKED = {"epsilon": epsilon, "epsilon_interval": interval}

CALLS = [
    *(
        Call(
            f"dpsub.accounting.{name}{of}",
            getattr(accounting, name),
            {**training, **CERTIFIED, "engine": engines},
            fine,
        )
        for name, fine in ASKED.items()
        for of, training, engines in (
            ("", {**TRAINING, "steps": SEVERAL_STEPS, "history": [OMIT]}, ENGINES),
            (" of a history", {"history": HISTORIES}, ALL_ENGINES),
        )
    ),
    Call(
        "dpsub.accounting.delta",
        accounting.delta,
        {
            **TRAINING,
            "history": [OMIT],
            "epsilon": st.one_of(EPSILONS, st.sampled_from([[0.0, 1.0], np.array([2.0]), (3,)])),
            **ADJACENT,
            "engine": ENGINES,
        },
        number(0, 1),
    ),
    Call(
        "dpsub.accounting.delta of a history",
        accounting.delta,
        {"history": HISTORIES, "epsilon": EPSILONS, **ADJACENT},
        number(0, 1),
    ),
    Call("dpsub.accounting.gdp_delta", accounting.gdp_delta, {"mu": EPSILONS, "epsilon": EPSILONS}, number(0, 1)),
    Call("dpsub.accounting.gdp_epsilon", accounting.gdp_epsilon, {"mu": EPSILONS, "delta": DELTAS}, number(0)),
    Call("dpsub.accounting.gdp_mu", accounting.gdp_mu, {"epsilon": EPSILONS, "delta": DELTAS}, number(0)),
    Call(
        "dpsub.accounting.group_privacy_epsilon",
        accounting.group_privacy_epsilon,
        {**TRAINING, "sample_rate": [1.0, 1, np.float64(1)], "history": [OMIT], "delta": DELTAS, "sampling": SAMPLING},
        epsilon_or_infinity,
    ),
    Call(
        "dpsub.accounting.noise_multiplier",
        accounting.noise_multiplier,
        {
            "target_epsilon": st.one_of(st.sampled_from([1.0, 10, np.float32(2)]), st.floats(0.1, 50)),
            "sample_rate": RATES,
            "steps": STEPS,
            "delta": DELTAS,
            **ADJACENT,
        },
        number(np.nextafter(0, 1)),
    ),
    Call(
        "dpsub.accounting.noise_multiplier for a risk",
        accounting.noise_multiplier,
        {
            "target_risk": st.one_of(st.sampled_from([0.6, 0.9, np.float32(0.7)]), st.floats(0.01, 0.99)),
            "measure": [OMIT, "accuracy", "advantage", "tpr", "ppv", "posterior"],
            "prior": PRIORS,
            "fpr": [OMIT, 0.05],
            "sample_rate": [1.0] * 5 + [1, np.float32(1)],  # others take seconds with as many as fifteen grids
            "steps": STEPS,
            "delta": st.one_of(st.just(OMIT), DELTAS),
            **ADJACENT,
        },
        number(np.nextafter(0, 1)),
        hostile={"sample_rate": st.one_of(among(THINGS), among(TEXTS))},
    ),
    *(
        Call(
            f"dpsub.accounting.risk{of}",
            accounting.risk,
            {
                "prior": PRIORS,
                "fpr": [OMIT, 0.05, np.float32(0.5), 1e-300],
                "delta": st.one_of(st.just(OMIT), DELTAS),
                **training,
                **ADJACENT,
            },
            risk,
        )
        for of, training in (("", {**TRAINING, "history": [OMIT]}), (" of a history", {"history": HISTORIES}))
    ),
    *(
        Call(
            f"dpsub.accounting.tradeoff{of}",
            accounting.tradeoff,
            {"fpr": [0.0, 0.05, 1, [0.1, 0.2], np.zeros((2, 2)), np.float32(0.5)], **training, **ADJACENT},
            rates,
        )
        for of, training in (("", {**TRAINING, "history": [OMIT]}), (" of a history", {"history": HISTORIES}))
    ),
    Call(
        "dpsub.accounting.worst_case_epsilon",
        accounting.worst_case_epsilon,
        {**TRAINING, "sample_rate": st.floats(0.01, 1), "delta": DELTAS},
        number(0),
    ),
    *(
        Call(
            f"dpsub{room}.audit_worst_case",
            dpsub.audit_worst_case,
            {
                **TRAINING,
                "sample_rate": st.floats(0.01, 1),
                "runs": [1, 2, 50, np.int16(3), 5.0],
                **ADJACENT,
                "every_step": [OMIT, True, False, np.bool_(True)],
                "seed": [OMIT, 0, 7, np.uint64(3)],
            },
            audit,
        )
        for room in ("", ".worst_case")
    ),
]
