"""Calls of dpsub.distinguish and dpsub.distinguishers."""

import numpy as np
import xarray as xr
from hypothesis import strategies as st

import dpsub
from dpsub import distinguishers
from fuzz.call import OMIT, Call
from fuzz.cast import ANY_CANARY, CANARIES, FLAT, LINEAR, MISLABELED, MLP, SPEC
from fuzz.checkers import ADJACENCIES, of
from fuzz.hostile import LITTLE, among

OPTIONS = {"runs": 40, "seed": 1, "device": "cpu", "progress": False}
TRAINED = dpsub.audit(FLAT, LINEAR, MISLABELED, SPEC, metrics=("weights",), **OPTIONS)
OF_MLP = dpsub.audit(FLAT, MLP, MISLABELED, SPEC, metrics=("weights",), **OPTIONS)
WEIGHTS = TRAINED.weights.values
RECORDS = [pair for pair in CANARIES if pair.score == "logit"]
OWN = [distinguishers.Canary(pair) for pair in RECORDS]
PROBES = np.eye(3, dtype=np.float32)
LINEAR_BY = {
    "": distinguishers.LinearDiscriminant(),
    " of probes": distinguishers.LinearDiscriminant(1e-3, PROBES),
}
BY = [*OWN, *LINEAR_BY.values()]
LEARNED = LINEAR_BY[""].learn(LINEAR, WEIGHTS, TRAINED.bit.values)
SPOILED = [
    OF_MLP, TRAINED.drop_vars("weights"), TRAINED.drop_vars("bit"), TRAINED.isel(run=slice(0)), TRAINED.weights,
    TRAINED.isel(run=slice(2)), TRAINED.isel(parameter=[0]), TRAINED.assign(bit=TRAINED.bit - 1),
    TRAINED.assign(weights=TRAINED.weights * np.nan), TRAINED.expand_dims(repeat=2), TRAINED.rename(run="r"),
    TRAINED.assign(weights=TRAINED.weights.astype(str)), TRAINED.assign(bit=TRAINED.bit.astype(str)),
    TRAINED.assign_coords(run=[str(i) for i in range(40)]), TRAINED.assign_coords(run=np.full(40, np.nan)),
]  # fmt: skip


def judged(result, /, *, protocol="held_out", **_):
    assert isinstance(result, xr.Dataset)
    assert result.score.dims == result.bit.dims == ("run",)
    assert (result.score.dtype, result.bit.dtype) == (np.float32, np.int8)
    assert np.isfinite(result.score).all()
    assert ("fold" in result.coords) == (protocol == "folds")
    assert result.attrs["adjacency"] in ADJACENCIES


def scores(result, /, *, weights, **_):
    assert result.shape == (len(weights),)
    assert result.dtype == np.float32


CALLS = [
    *(
        Call(
            f"dpsub{room}.distinguish",
            dpsub.distinguish,
            {
                "trained": [TRAINED],
                "model": [LINEAR],
                "by": BY,
                "protocol": [OMIT, "held_out", "folds", "in_sample"],
                "share": [OMIT, 0.5, 0.25, np.float32(0.75)],
                "folds": [OMIT, 2, 3.0, np.int8(2)],
                "progress": [False],
            },
            judged,
            hostile={"trained": st.one_of(LITTLE, among(SPOILED), among(SPOILED)), "folds": LITTLE},
        )
        for room in ("", ".audits", ".distinguishers")
    ),
    Call(
        "dpsub.distinguishers.Canary",
        distinguishers.Canary,
        {"pair": RECORDS},
        of(distinguishers.Canary),
        hostile={"pair": ANY_CANARY},
    ),
    Call(
        "dpsub.distinguishers.Canary.learn",
        OWN[0].learn,
        {"model": [LINEAR], "weights": [WEIGHTS], "bits": [TRAINED.bit.values]},
        of(distinguishers.Canary),
    ),
    Call(
        "dpsub.distinguishers.Canary.scores",
        OWN[0].scores,
        {"model": [LINEAR], "weights": [WEIGHTS, WEIGHTS[:1]]},
        scores,
        hostile={"model": among([MLP]), "weights": among([WEIGHTS[:, :3], WEIGHTS[0], WEIGHTS[:0]])},
    ),
    Call(
        "dpsub.distinguishers.LinearDiscriminant",
        distinguishers.LinearDiscriminant,
        {"ridge": [OMIT, 0, 1, 0.5, np.float32(0.25)], "probes": [OMIT, None, PROBES, PROBES.tolist()]},
        of(distinguishers.LinearDiscriminant),
    ),
    *(
        Call(
            f"dpsub.distinguishers.LinearDiscriminant.learn{of_what}",
            by.learn,
            {"model": [LINEAR], "weights": [WEIGHTS], "bits": [TRAINED.bit.values]},
            of(distinguishers.Direction),
            hostile={
                "model": among([MLP]),
                "weights": among([WEIGHTS[:, :3], WEIGHTS[0], WEIGHTS[:0], WEIGHTS * 0]),
                "bits": among([TRAINED.bit.values[:3], TRAINED.bit.values * 0, TRAINED.bit.values - 1]),
            },
        )
        for of_what, by in LINEAR_BY.items()
    ),
    Call(
        "dpsub.distinguishers.Direction.scores",
        LEARNED.scores,
        {"model": [LINEAR], "weights": [WEIGHTS, WEIGHTS[:1]]},
        scores,
        hostile={"model": among([MLP]), "weights": among([WEIGHTS[:, :3], WEIGHTS[0]])},
    ),
]
