"""Calls of dpsub.findings, on audits that are whole, and on ones that are spoiled."""

import numpy as np
import pandas as pd
from hypothesis import strategies as st
from matplotlib.figure import Figure

from dpsub import figures, findings
from fuzz import cast
from fuzz.accounting_calls import DELTAS
from fuzz.call import OMIT, Call
from fuzz.checkers import is_bound, number, of
from fuzz.estimators_calls import ALPHAS, BITS, SCORES
from fuzz.figures_calls import drawn
from fuzz.hostile import LITTLE, among

ONE, REPEATED = cast.audit(metrics=("accuracy",)), cast.audit(repeats=2)
OTHER = cast.audit(scenario="S4")
WORST = cast.worst_case()
DISTANCES = cast.audit(metrics=("distance",))
SPOILED_DISTANCES = [
    *(DISTANCES.assign_attrs(noise_multiplier=value) for value in (None, -1.0, "1", np.nan, [1.0], 10**400)),
    *(DISTANCES.assign_attrs(sample_rate=value) for value in (None, 2.0, "a", np.nan)),
    *(DISTANCES.assign_attrs(steps=value) for value in (None, 0, 1.5, 10**400)),
    *(DISTANCES.assign(distance=DISTANCES.distance * value) for value in (np.nan, -1, 1j)),
    DISTANCES.assign(distance=DISTANCES.distance.astype(str)),
    DISTANCES.isel(run=[]),
    DISTANCES.isel(step=0),
]


def without(name):
    changed = ONE.copy(deep=True)
    del changed.attrs[name]
    return changed


SPOILED = [
    *(ONE.drop_vars(name) for name in ("score", "bit", "step", "accuracy", "measured")),
    *(ONE.assign_attrs(noise_multiplier=value) for value in (None, -1.0, "1", np.nan, [1.0], 10**400)),
    *(ONE.assign_attrs(sample_rate=value) for value in (None, 2.0, "a")),
    *(without(name) for name in ("noise_multiplier", "sample_rate", "scenario", "task", "canary_fingerprint")),
    ONE.transpose("step", "run", "measured"),
    REPEATED.transpose("step", "run", "repeat"),
    ONE.isel(step=0),
    ONE.isel(step=0, drop=True),
    ONE.isel(run=0),
    ONE.isel(run=[]),
    ONE.isel(step=[]),
    ONE.isel(run=slice(0, 3)),
    ONE.rename(run="runs"),
    ONE.rename(score="scores"),
    ONE.expand_dims(a=2),
    ONE.expand_dims("repeat"),
    ONE.assign(score=ONE.score * np.nan),
    ONE.assign(score=ONE.score * np.inf),
    ONE.assign(score=ONE.score.astype(str)),
    ONE.assign(score=ONE.score.astype(object)),
    ONE.assign(score=ONE.score.astype(complex)),
    ONE.assign(bit=ONE.bit + 5),
    ONE.assign(bit=ONE.bit * 0),
    ONE.assign(bit=ONE.bit.astype(float) * np.nan),
    ONE.assign(bit=("b", [0, 1])),
    ONE.assign_coords(step=[-1, 2]),
    ONE.assign_coords(step=[1.5, 2.5]),
    ONE.assign_coords(step=["a", "b"]),
    ONE.assign_coords(step=[2, 2]),
    ONE.assign_coords(step=[np.nan, 1.0]),
    ONE.isel(step=[1, 0]),
    ONE.score,
    ONE.attrs,
    ONE.to_dataframe(),
]
ANY_AUDIT = st.one_of(LITTLE, among(SPOILED), among(SPOILED))
OF_AUDIT = [ONE, REPEATED, OTHER, WORST]
OF_AUDITS = ("result", "scores", "bits", "noise_multiplier", "sample_rate", "steps")
OPTIONS = {"method": [OMIT, "gdp", "dp", "katz"], "threshold": [OMIT, "best", 0.5], "alpha": ALPHAS}
ANY_PANEL = st.one_of(
    LITTLE, ANY_AUDIT.map(lambda one: {"S2": one}), ANY_AUDIT.map(lambda one: {"S2": ONE, "S4": one}),
    among([{1: ONE}, {None: ONE}, {"\ud800": ONE}, {"": ONE}, {"$": ONE}]),
)  # fmt: skip
ANY_PANELS = st.one_of(
    ANY_PANEL,
    ANY_AUDIT.map(lambda one: {("a", "S2"): one}),
    among([{("a",): ONE}, {"ab": ONE}, {(1, 2): ONE, ("a", "b"): ONE}]),
)


def all_bounds(result, /, **_):
    for repeat in result:
        for one in repeat:
            is_bound(one)


def promises(result, /, **_):
    for epsilon in result.values():
        number(0)(epsilon)
    assert (result["substitute"] >= result["add_remove"] - 1e-3).all()


def panel(result, /, **_):
    for repeats in result["audited"].values():
        all_bounds(repeats)
    number(0)(result["substitute"])
    number(0)(result["ceiling"])
    ax = Figure().add_subplot()
    drawn(figures.epsilon_against_step(ax, **result))


def panels(result, /, **_):
    for one in result.values():
        panel(one)


def table(result, /, **_):
    assert isinstance(result, pd.DataFrame)
    assert len(result) > 0
    assert (
        (result[[name for name in ("bound", "papers_rule", "substitute", "epsilon") if name in result]] >= 0)
        .all()
        .all()
    )


def shares(result, /, **_):
    assert ((result >= 0) & (result <= 1)).all()


FINDINGS = {"result": OF_AUDIT, "delta": DELTAS}

CALLS = [
    Call(
        "dpsub.findings.bounds",
        findings.bounds,
        {**FINDINGS, "runs": [OMIT, None, 4, 8], **OPTIONS},
        all_bounds,
        hostile={"result": ANY_AUDIT},
        names=OF_AUDITS,
    ),
    Call(
        "dpsub.findings.tidy_bounds",
        findings.tidy_bounds,
        {**FINDINGS, "runs": [OMIT, None, 4, 8], **OPTIONS},
        table,
        hostile={"result": ANY_AUDIT},
        names=OF_AUDITS,
    ),
    Call(
        "dpsub.findings.estimates",
        findings.estimates,
        {
            "scores": [SCORES, SCORES.tolist(), np.round(SCORES)],
            "bits": [BITS, BITS.astype(bool)],
            "delta": DELTAS,
            "alpha": ALPHAS,
        },
        table,
        hostile={"scores": st.one_of(LITTLE, ANY_AUDIT), "bits": LITTLE},
    ),
    Call(
        "dpsub.findings.promises", findings.promises, FINDINGS, promises, hostile={"result": ANY_AUDIT}, names=OF_AUDITS
    ),
    Call(
        "dpsub.findings.panel",
        findings.panel,
        {
            "audited": [{"S2": ONE}, {"S2": ONE, "S4": OTHER}, {"S1": WORST}],
            "delta": DELTAS,
            "runs": [OMIT, 4],
            **OPTIONS,
        },
        panel,
        hostile={"audited": ANY_PANEL},
        names=OF_AUDITS,
    ),
    Call(
        "dpsub.findings.panels",
        findings.panels,
        {"audited": [{("a", "S2"): ONE}, {("a", "S2"): ONE, ("a", "S4"): OTHER}], "delta": DELTAS, **OPTIONS},
        panels,
        hostile={"audited": ANY_PANELS},
        names=OF_AUDITS,
    ),
    Call(
        "dpsub.findings.last_step",
        findings.last_step,
        {"audited": [[ONE], [REPEATED, WORST]], "delta": DELTAS},
        table,
        hostile={"audited": st.one_of(LITTLE, ANY_AUDIT.map(lambda one: [one]))},
        names=OF_AUDITS,
    ),
    Call(
        "dpsub.findings.d_prime",
        findings.d_prime,
        {
            "scores": [[2.0, 1.0, 0.0, 0.5], ONE.score[:4, -1], [1, 1, 1, 1]],
            "bits": [[0, 0, 1, 1], np.array([1, 0, 0, 1])],
        },
        number(finite=False),
        hostile={"scores": st.one_of(LITTLE, ANY_AUDIT), "bits": LITTLE},
    ),
    Call(
        "dpsub.findings.every_step_mu",
        findings.every_step_mu,
        {"result": [DISTANCES]},
        number(0),
        hostile={"result": st.one_of(LITTLE, among(SPOILED_DISTANCES), ANY_AUDIT)},
        names=OF_AUDITS,
    ),
    Call(
        "dpsub.findings.accuracy",
        findings.accuracy,
        {"result": [ONE], "bit": [OMIT, None, 0, 1]},
        shares,
        hostile={"result": ANY_AUDIT},
    ),
    Call(
        "dpsub.findings.source",
        lambda audited: findings.source(*audited),
        {"audited": [[ONE], [ONE, REPEATED]]},
        of(str),
        hostile={"audited": ANY_AUDIT.map(lambda one: [one])},
    ),
]
