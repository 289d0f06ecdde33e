"""Calls of dpsub.figures."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import xarray as xr
from hypothesis import strategies as st
from matplotlib.artist import Artist
from matplotlib.container import Container
from matplotlib.figure import Figure

from dpsub import estimators, figures
from fuzz.call import OMIT, Call
from fuzz.checkers import of
from fuzz.hostile import ANYTHING, LITTLE, among

AXES = st.builds(lambda: Figure().add_subplot())
POINTS = [[1, 2], np.array([1.0, 4.0]), (1, 3), pd.Series([2.0, 5.0]), xr.DataArray([1.0, 2.0], dims="step")]
NAMES = ["S2", "a name", "a" * 100, "$x$", "_hidden", "ε"]


def bound(epsilon, **changes):
    return estimators.LowerBound(epsilon=epsilon, **{"method": "gdp", "assumes": "gdp", "valid": True, **changes})


BOUNDS = [bound(1.0), bound(0.0, assumes="none"), bound(2.5, valid=False)]
REPEATS = [[[BOUNDS[0], BOUNDS[1]]], [[BOUNDS[0], BOUNDS[2]], [BOUNDS[1], BOUNDS[1]]], [[BOUNDS[0], BOUNDS[2]]] * 12]
AUDITED = [{"S2": REPEATS[0]}, {"S2": REPEATS[1], "mine": REPEATS[2]}, {}]
SPOILED_BOUNDS = [{"S2": [[bound(v), bound(1.0)]]} for v in (np.nan, np.inf, -1.0, None, "a")]
SPOILED_BOUNDS += [{"S2": [[bound(1.0, assumes="luck"), bound(1.0)]]}, {"S2": [[bound(1.0)]]}, {"S2": [[1.0, 2.0]]}]
SPOILED_BOUNDS += [{"S2": [[bound(1.0)] * 2, [bound(1.0)]]}, {1: REPEATS[0]}, {"\ud800": REPEATS[0]}, {"": REPEATS[0]}]
ANY_BOUNDS = st.one_of(LITTLE, among(SPOILED_BOUNDS))
PANEL = {"steps": [1, 2], "substitute": [1.0, 2.0], "add_remove": [0.5, 1.0], "audited": AUDITED[0], "ceiling": 5.0}


def drawn(result, /, **_):
    """The figure can be drawn, too."""
    artists = list(result.values()) if isinstance(result, dict) else result
    for artist in artists if isinstance(artists, list) else [artists]:
        parts = artist if isinstance(artist, tuple | list) else [artist]
        assert isinstance(artist, Artist | Container | tuple | list), type(artist)
        for part in parts:
            if isinstance(part, Artist) and part.figure is not None:
                part.figure.draw_without_rendering()
                return


def panels_drawn(result, /, **_):
    assert isinstance(result, Figure)
    result.draw_without_rendering()


def styled(**arguments):
    with mpl.rc_context():
        return figures.use_style(**arguments)


AX = {"ax": AXES}
AUDITS = {"audited": AUDITED, "substitute": POINTS, "add_remove": POINTS, "ceiling": [OMIT, None, 2.0, 100.0]}
MAPPING = {0.5: [1.0, 2.0], 1.0: [3.0]}

CALLS = [
    Call(
        "dpsub.figures.against_noise",
        figures.against_noise,
        {
            **AX,
            "noise_multipliers": [MAPPING, {1: POINTS[0]}],
            "values": [MAPPING, {1: POINTS[1]}],
            "reference": [1.0, 2],
        },
        drawn,
    ),
    Call(
        "dpsub.figures.against_runs",
        figures.against_runs,
        {
            **AX,
            "runs": [[10, 100], np.array([5, 7])],
            "audited": AUDITED,
            "substitute": [1.0, 2],
            "add_remove": [0.5],
            "ceiling": POINTS,
            "legend": [OMIT, True, False],
        },
        drawn,
        hostile={"audited": ANY_BOUNDS},
    ),
    Call(
        "dpsub.figures.beside_claims",
        figures.beside_claims,
        {
            **AX,
            "bounds": [dict(zip(NAMES, BOUNDS, strict=False))],
            "claimed": [1.0, 0, dict.fromkeys(NAMES[: len(BOUNDS)], 2.0)],
            "ceiling": [OMIT, None, 3.0, dict.fromkeys(NAMES[: len(BOUNDS)], 2)],
        },
        drawn,
        hostile={"bounds": ANY_BOUNDS},
    ),
    Call(
        "dpsub.figures.epsilon_against_step",
        figures.epsilon_against_step,
        {**AX, "steps": POINTS, **AUDITS, "group": [OMIT, None, *POINTS], "legend": [OMIT, False]},
        drawn,
        hostile={"audited": ANY_BOUNDS},
    ),
    Call(
        "dpsub.figures.worst_case",
        figures.worst_case,
        {**AX, **AUDITS, "group": POINTS},
        drawn,
        hostile={"audited": ANY_BOUNDS},
    ),
    Call(
        "dpsub.figures.epsilon_panels",
        figures.epsilon_panels,
        {"panels": [{"q = 1": PANEL}, {"a": PANEL, "b": PANEL}], "source": NAMES},
        panels_drawn,
        hostile={
            "panels": st.one_of(
                LITTLE,
                LITTLE.map(lambda one: {"a": one}),
                st.builds(lambda name, value: {"a": {**PANEL, name: value}}, among([*PANEL, "ax", "more"]), ANYTHING),
            )
        },
        names=tuple(PANEL),
    ),
    Call("dpsub.figures.looks", figures.looks, {"name": NAMES, "color": [OMIT, "red"]}, of(dict)),
    Call("dpsub.figures.name_source", figures.name_source, {"figure": st.builds(Figure), "source": NAMES}, drawn),
    Call("dpsub.figures.number", figures.number, {"value": [1e-5, 20000, -0.25], "digits": [OMIT, 1, 15]}, of(str)),
    Call("dpsub.figures.tag", figures.tag, {**AX, "name": NAMES}, drawn),
    Call(
        "dpsub.figures.tradeoffs",
        figures.tradeoffs,
        {**AX, "fpr": [[0.0, 1.0], np.array([0, 0.5])], "fnr": [{"substitute": [1.0, 0.0]}, {"mine": (0.5, 0.5)}, {}]},
        drawn,
    ),
    Call("dpsub.figures.use_style", styled, {}, of(type(None))),
    Call("dpsub.figures.what_it_rests_on", figures.what_it_rests_on, {"bound": BOUNDS}, of(str)),
]
