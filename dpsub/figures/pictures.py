"""Figures of crafting, drawn from the trace of a canary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from dpsub._core import checks
from dpsub.figures.inputs import named, numbers, on_axes, points, text
from dpsub.figures.style import LOOKS, broken, literal, number

Trace = Mapping[str, NDArray[Any]]
TO_TARGET = "cosine with target gradient"
OF_TRACE = "trace must be that of a canary, as CanaryPair.trace holds it"
MARK: dict[str, Any] = {"linestyle": "none", "markersize": 6, "zorder": 3}


def travel(path: Axes, ranked: Axes, trace: Trace) -> dict[str, Artist]:
    """S2: the paths of the least, the median and the most travelled parameter, and the distances of all parameters.

    Source: *Beyond Membership*, Algorithm 2.
    """
    on_axes(path=path, ranked=ranked)
    steps, distance = _of(trace, "step"), np.sort(_of(trace, "travel"))
    paths = numbers("trace['path']", _entry(trace, "path"))
    if paths.shape != (len(steps), 3):
        raise ValueError(f"{OF_TRACE}, with a path of shape ({len(steps)}, 3), got {paths.shape}")
    artists: dict[str, Artist] = {}
    color = LOOKS["S2"]["color"]
    looks = (
        ("least", {"color": color, "linestyle": "-", "label": "least travelled"}),
        ("middling", {"color": "0.6", "linestyle": "--", "label": "median"}),
        ("most", {"color": "0.6", "linestyle": "-", "label": "most travelled"}),
    )
    for (name, look), values in zip(looks, paths.T, strict=True):
        (artists[name],) = path.plot(steps, values, **look)
    path.set_xlabel("training step")
    path.set_ylabel("parameter")
    path.legend()
    ranked.plot(np.arange(1, len(distance) + 1), distance, color="0.6")
    (artists["chosen"],) = ranked.plot(1, distance[0], marker=LOOKS["S2"]["marker"], color=color, **MARK)
    ranked.annotate("the canary's parameter", (1, distance[0]), xytext=(8, 0), textcoords="offset points", va="center")
    ranked.set_yscale("log")
    ranked.set_xlabel("parameters, least travelled first")
    ranked.set_ylabel("distance travelled")
    return artists


def confidence(ax: Axes, trace: Trace, slot: int) -> dict[str, Artist]:
    """S3–S5: the probability that a model without privacy gives to each private record's label, least sure first.

    `slot` is the target's place among the records.

    Source: *Beyond Membership*, section 3.2.2.
    """
    on_axes(ax=ax)
    values = _of(trace, "confidence")
    slot = checks.whole("slot", slot, at_least=0, at_most=len(values) - 1)
    order = np.argsort(values)
    artists: dict[str, Artist] = {}
    (artists["records"],) = ax.plot(np.arange(1, len(values) + 1), values[order], color="0.6")
    place = int(np.flatnonzero(order == slot)[0]) + 1
    (artists["target"],) = ax.plot(place, values[slot], marker="o", color="black", **MARK)
    ax.annotate("the target", (place, values[slot]), xytext=(8, -2), textcoords="offset points", va="center")
    ax.set_xlabel("private records, least sure first")
    ax.set_ylabel("mean probability of the label")
    return artists


def descent(cosine: Axes, ratio: Axes, trace: Trace) -> dict[str, Artist]:
    """S3: the cosine of x′'s gradient with the target's, and their norms' ratio, at each step of crafting.

    Source: *Beyond Membership*, Algorithm 3.
    """
    on_axes(cosine=cosine, ratio=ratio)
    artists: dict[str, Artist] = {}
    steps = np.arange(len(_of(trace, "cosine")))
    color = LOOKS["S3"]["color"]
    for ax, name, label in ((cosine, "cosine", TO_TARGET), (ratio, "norm_ratio", "norm / target's norm")):
        (artists[name],) = ax.plot(steps, _of(trace, name, len(steps)), color=color)
        ax.axhline(0, color="0.8", linewidth=0.8)
        ax.set_xlabel("crafting step")
        ax.set_ylabel(label)
    cosine.set_ylim(-1.05, 1.05)
    ratio.set_ylim(bottom=0)
    return artists


def label_cosines(ax: Axes, trace: Trace, *, own: int, chosen: int) -> dict[str, Artist]:
    """S4: the cosine of the target's gradient with the gradient that each label would give it, highest first.

    Source: *Beyond Membership*, Algorithm 4.
    """
    on_axes(ax=ax)
    values = _of(trace, "cosine")
    own, chosen = (
        checks.whole(argument, y, at_least=0, at_most=len(values) - 1)
        for argument, y in (("own", own), ("chosen", chosen))
    )
    order = np.argsort(values, kind="stable")[::-1]
    places = np.argsort(order)  # of each label, from the left
    of_label = {chosen: LOOKS["S4"]["color"], own: "black"}
    colors = [of_label.get(y, "0.8") for y in order.tolist()]
    bars = ax.bar(np.arange(len(values)), values[order], color=colors, edgecolor="black", linewidth=0.6)
    for y, name in ((own, "own"), (chosen, f"chosen: {number(values[chosen])}")):
        up = values[y] > 0
        ax.annotate(
            name,
            (places[y] + (0.4 if y == chosen else 0), values[y]),
            xytext=(0, 3 if up else -3),
            textcoords="offset points",
            ha="right" if y == chosen else "center",
            va="bottom" if up else "top",
        )
    ax.axhline(values[chosen], color=LOOKS["S4"]["color"], linestyle=":", linewidth=0.9, zorder=0)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.margins(y=0.15)
    ax.set_xticks(np.arange(len(values)), [str(y) for y in order])
    ax.set_xlabel("label, from the highest cosine to the lowest")
    ax.set_ylabel(TO_TARGET)
    return {"bars": bars[places[chosen]]}


def cosine_histogram(ax: Axes, trace: Trace, chosen: int) -> dict[str, Artist]:
    """S5: the cosines of all auxiliary records' gradients with the target's.

    Source: *Beyond Membership*, Algorithm 5.
    """
    on_axes(ax=ax)
    values = _of(trace, "cosine")
    chosen = checks.whole("chosen", chosen, at_least=0, at_most=len(values) - 1)
    ax.hist(values, bins=40, color="0.8", edgecolor="white", linewidth=0.4)
    look = LOOKS["S5"]
    (mark,) = ax.plot(values[chosen], 0, marker=look["marker"], color=look["color"], clip_on=False, **MARK)
    ax.annotate(
        "chosen",
        (values[chosen], 0),
        xytext=(40, 50),
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", "color": "0.4", "linewidth": 0.8, "shrinkB": 5},
    )
    ax.set_xlabel(TO_TARGET)
    ax.set_ylabel("auxiliary records")
    return {"chosen": mark}


def row_of_images(axes: Sequence[Axes], images: ArrayLike, names: Sequence[str]) -> list[Artist]:
    """Images (k, height, width) in one grey scale, with a name below each; colour images have a last axis of 3."""
    shown = numbers("images", images)
    if shown.ndim not in (3, 4) or not shown.size or shown.shape[3:] not in ((), (3,)):
        raise ValueError(f"images must have shape (k, height, width) or (k, height, width, 3), got {shown.shape}")
    for argument, listed in (("axes", axes), ("names", names)):
        if (
            not isinstance(listed, Sequence | np.ndarray)
            or isinstance(listed, str)
            or getattr(listed, "shape", None) == ()
        ):
            raise ValueError(f"{argument} must be a list, one for each image, got {type(listed).__name__}")
    if not len(axes) == len(shown) == len(names):
        raise ValueError(
            f"axes and names must be one for each of {len(shown)} images, got {len(axes)} and {len(names)}"
        )
    for place, ax in enumerate(axes):
        on_axes(**{f"axes[{place}]": ax})
    low, high = float(shown.min()), float(shown.max())
    artists: list[Artist] = []
    for ax, image, name in zip(axes, shown, names, strict=True):
        artists.append(ax.imshow(image, cmap="gray_r", interpolation="nearest", vmin=low, vmax=high))
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_xlabel(broken(text("names", name), 40), fontsize=7, parse_math=False)
    return artists


def accuracies(ax: Axes, steps: ArrayLike, accuracy: Mapping[str, ArrayLike]) -> dict[str, Artist]:
    """Figure A1: test accuracy along training, of models with and without canaries.

    Args:
        ax: where to draw.
        steps: (k,) the observed steps.
        accuracy: (models, k) for each scenario, or for a name of your own if there is no canary. The mean is drawn,
            with each model as a thin line or, from ten models on, a band of ± 1 standard deviation. Arrays whose
            dimensions have names, as xarray gives, are read by the dimension "step".

    Source: *Beyond Membership*, Figure A1.
    """
    on_axes(ax=ax)
    artists: dict[str, Artist] = {}
    x = points("steps", steps)
    for (name, values), dash in zip(named("accuracy", accuracy).items(), cycle(("-", "--", ":", "-.")), strict=False):
        look = LOOKS.get(name, {"color": "black", "label": literal(name)})
        color = look["color"]
        models = 100 * _by_model(f"accuracy[{name!r}]", values, len(x))
        mean = models.mean(axis=0)
        if len(models) < 10:
            ax.plot(x, models.T, color=color, alpha=0.3, linewidth=0.6)
        else:
            spread = models.std(axis=0, ddof=1)
            ax.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
        (artists[name],) = ax.plot(x, mean, color=color, linestyle=dash, label=look["label"])
    ax.set_xlabel("training step")
    ax.set_ylabel("test accuracy (%)")
    ax.legend(loc="lower right")
    return artists


def _entry(trace: Trace, name: str) -> Any:
    if not isinstance(trace, Mapping) or name not in trace:
        raise ValueError(f"{OF_TRACE}, with {name!r}, got {list(trace) if isinstance(trace, Mapping) else trace!r}")
    return trace[name]


def _of(trace: Trace, name: str, count: int | None = None) -> NDArray[np.float64]:
    return points(f"trace[{name!r}]", _entry(trace, name), count)


def _by_model(argument: str, values: Any, count: int) -> NDArray[np.float64]:
    """(models, count) accuracies; a dimension named "step" is the last, whatever its place."""
    names = getattr(values, "dims", None)
    if isinstance(names, tuple) and "step" in names:
        values = values.transpose(..., "step")
    found = checks.rates(argument, numbers(argument, values))
    if found.ndim != 2 or found.shape[1] != count or not len(found):
        raise ValueError(f"{argument} must have shape (models, {count}), one column for each step, got {found.shape}")
    return found
