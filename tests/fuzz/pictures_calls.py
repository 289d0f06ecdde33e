"""Calls of dpsub.pictures."""

import numpy as np
import xarray as xr
from hypothesis import strategies as st
from matplotlib.figure import Figure

from dpsub import pictures
from fuzz import cast
from fuzz.call import Call
from fuzz.figures_calls import AX, AXES, NAMES, POINTS, drawn
from fuzz.hostile import ANYTHING, LITTLE, among

TRACES = {
    "travel": {"travel": np.ones(5), "path": np.ones((4, 3)), "step": np.arange(4)},
    "confidence": {"confidence": np.linspace(0, 1, 6)},
    "descent": {"cosine": np.linspace(1, -1, 4), "norm_ratio": np.ones(4)},
    "cosines": {"cosine": np.linspace(-1, 1, 6)},
}
ANY_TRACE = st.one_of(
    LITTLE,
    st.builds(lambda trace, name, value: {**trace, name: value}, among(list(TRACES.values())),
              among(["travel", "path", "step", "confidence", "cosine", "norm_ratio"]), ANYTHING),
    among([canary.trace for canary in cast.CANARIES]),
)  # fmt: skip


def image_axes(count):
    return st.builds(lambda: [Figure().add_subplot() for _ in range(count)])


CALLS = [
    Call(
        "dpsub.pictures.travel",
        pictures.travel,
        {"path": AXES, "ranked": AXES, "trace": [TRACES["travel"], cast.GRADIENT.trace]},
        drawn,
        hostile={"trace": ANY_TRACE},
    ),
    Call(
        "dpsub.pictures.confidence",
        pictures.confidence,
        {**AX, "trace": [TRACES["confidence"]], "slot": [0, np.int8(5)]},
        drawn,
        hostile={"trace": ANY_TRACE},
    ),
    Call(
        "dpsub.pictures.descent",
        pictures.descent,
        {"cosine": AXES, "ratio": AXES, "trace": [TRACES["descent"]]},
        drawn,
        hostile={"trace": ANY_TRACE},
    ),
    Call(
        "dpsub.pictures.label_cosines",
        pictures.label_cosines,
        {**AX, "trace": [TRACES["cosines"]], "own": [0, 3.0], "chosen": [1, 5]},
        drawn,
        hostile={"trace": ANY_TRACE},
    ),
    Call(
        "dpsub.pictures.cosine_histogram",
        pictures.cosine_histogram,
        {**AX, "trace": [TRACES["cosines"]], "chosen": [1, np.int64(5)]},
        drawn,
        hostile={"trace": ANY_TRACE},
    ),
    Call(
        "dpsub.pictures.row_of_images",
        pictures.row_of_images,
        {
            "axes": image_axes(2),
            "images": [np.ones((2, 4, 4)), np.zeros((2, 3, 3, 3)), [[[1, 2]], [[3, 4]]]],
            "names": [["a", "b"], NAMES[:2]],
        },
        drawn,
    ),
    Call(
        "dpsub.pictures.accuracies",
        pictures.accuracies,
        {
            **AX,
            "steps": POINTS,
            "accuracy": [
                {"S2": np.ones((3, 2))},
                {"mine": np.zeros((12, 2)), "S4": [[0.5, 0.6]]},
                {"S2": xr.DataArray(np.ones((2, 3)), dims=("step", "model"))},
            ],
        },
        drawn,
    ),
]
