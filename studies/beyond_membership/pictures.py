"""Pictures of crafting, drawn from the trace of a canary; records as images; test accuracies."""

import textwrap
from itertools import cycle

import numpy as np
import pandas as pd
import xarray as xr

from dpsub import findings
from dpsub.figures import LOOKS, literal, number

TO_TARGET = "cosine with target gradient"
MARK = {"linestyle": "none", "markersize": 6, "zorder": 3}


def travel(path, ranked, trace):
    """S2: the paths of the least, the median and the most travelled parameter, and the distances of all parameters.

    Source: *Beyond Membership*, Algorithm 2.
    """
    color = LOOKS["S2"]["color"]
    looks = (
        {"color": color, "linestyle": "-", "label": "least travelled"},
        {"color": "0.6", "linestyle": "--", "label": "median"},
        {"color": "0.6", "linestyle": "-", "label": "most travelled"},
    )
    for look, values in zip(looks, trace["path"].T, strict=True):
        path.plot(trace["step"], values, **look)
    path.set_xlabel("training step")
    path.set_ylabel("parameter")
    path.legend()
    distance = np.sort(trace["travel"])
    ranked.plot(np.arange(1, len(distance) + 1), distance, color="0.6")
    ranked.plot(1, distance[0], marker=LOOKS["S2"]["marker"], color=color, **MARK)
    ranked.annotate("the canary's parameter", (1, distance[0]), xytext=(8, 0), textcoords="offset points", va="center")
    ranked.set_yscale("log")
    ranked.set_xlabel("parameters, least travelled first")
    ranked.set_ylabel("distance travelled")


def confidence(ax, trace, slot):
    """S3–S5: the probability that a model without privacy gives to each private record's label, and the target's.

    Source: *Beyond Membership*, section 3.2.2.
    """
    values = trace["confidence"]
    order = np.argsort(values)
    ax.plot(np.arange(1, len(values) + 1), values[order], color="0.6")
    place = int(np.flatnonzero(order == slot)[0]) + 1
    ax.plot(place, values[slot], marker="o", color="black", **MARK)
    ax.annotate("the target", (place, values[slot]), xytext=(8, -2), textcoords="offset points", va="center")
    ax.set_xlabel("private records, least sure first")
    ax.set_ylabel("mean probability of the label")


def descent(cosine, ratio, trace):
    """S3: the cosine of x′'s gradient with the target's, and their norms' ratio, at each step of crafting.

    Source: *Beyond Membership*, Algorithm 3.
    """
    for ax, name, label in ((cosine, "cosine", TO_TARGET), (ratio, "norm_ratio", "norm / target's norm")):
        ax.plot(trace[name], color=LOOKS["S3"]["color"])
        ax.axhline(0, color="0.8", linewidth=0.8)
        ax.set_xlabel("crafting step")
        ax.set_ylabel(label)
    cosine.set_ylim(-1.05, 1.05)
    ratio.set_ylim(bottom=0)


def label_cosines(ax, trace, *, own, chosen):
    """S4: the cosine of the target's gradient with the gradient that each label would give it, highest first.

    Source: *Beyond Membership*, Algorithm 4.
    """
    values = trace["cosine"]
    order = np.argsort(values, kind="stable")[::-1]
    places = np.argsort(order)  # of each label, from the left
    of_label = {chosen: LOOKS["S4"]["color"], own: "black"}
    colors = [of_label.get(y, "0.8") for y in order.tolist()]
    ax.bar(np.arange(len(values)), values[order], color=colors, edgecolor="black", linewidth=0.6)
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


def cosine_histogram(ax, trace, chosen):
    """S5: the cosines of all auxiliary records' gradients with the target's.

    Source: *Beyond Membership*, Algorithm 5.
    """
    values = trace["cosine"]
    ax.hist(values, bins=40, color="0.8", edgecolor="white", linewidth=0.4)
    look = LOOKS["S5"]
    ax.plot(values[chosen], 0, marker=look["marker"], color=look["color"], clip_on=False, **MARK)
    ax.annotate(
        "chosen",
        (values[chosen], 0),
        xytext=(40, 50),
        textcoords="offset points",
        arrowprops={"arrowstyle": "-", "color": "0.4", "linewidth": 0.8, "shrinkB": 5},
    )
    ax.set_xlabel(TO_TARGET)
    ax.set_ylabel("auxiliary records")


def row_of_images(axes, images, names):
    """Images (k, height, width) in one grey scale, with a name below each; colour images have a last axis of 3."""
    shown = np.asarray(images)
    for ax, image, name in zip(axes, shown, names, strict=True):
        ax.imshow(image, cmap="gray_r", interpolation="nearest", vmin=shown.min(), vmax=shown.max())
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_xlabel(textwrap.fill(name, 32), fontsize=9, parse_math=False)


def by_slot(audited):
    """The accuracies of models with the target record, the crafted input (S3) or a crafted gradient (S2) in the slot.

    `audited` has the audits of S2 and S3 by scenario.
    """
    worlds = {"target record": (audited["S3"], 0), "S3": (audited["S3"], 1), "S2": (audited["S2"], None)}
    return {slot: findings.accuracy(one) if bit is None else of_world(one, bit) for slot, (one, bit) in worlds.items()}


def of_world(audited, bit):
    """The accuracies (models, steps) of a whole audit's models of one world."""
    measured = audited.bit.transpose(..., "run").values[..., audited.measured.values]
    return findings.accuracy(audited)[measured.ravel() == bit]


def costs(accuracy):
    """A table of the final models' accuracies by slot, in %, and of what each canary costs, with its standard error."""
    final = {slot: pd.Series(100 * each[:, -1]) for slot, each in accuracy.items()}
    found = pd.DataFrame(final).agg(["count", "mean", "std", "sem"]).T
    base, canaries = found.loc["target record"], found.drop("target record")
    return found.assign(cost=base["mean"] - canaries["mean"], error=np.hypot(base["sem"], canaries["sem"]))


def accuracies(ax, steps, accuracy):
    """Figure A1: test accuracy along training, of models with and without canaries.

    `accuracy` is (models, steps) for each scenario, or for a name of your own if there is no canary. The mean is drawn,
    with each model as a thin line or, from ten models on, a band of ± 1 standard deviation. Arrays whose dimensions
    have names, as xarray gives, are read by the dimension "step".

    Source: *Beyond Membership*, Figure A1.
    """
    for (name, values), dash in zip(accuracy.items(), cycle(("-", "--", ":", "-.")), strict=False):
        look = LOOKS.get(name, {"color": "black", "label": literal(name)})
        color = look["color"]
        models = 100 * np.asarray(values.transpose(..., "step") if isinstance(values, xr.DataArray) else values)
        mean = models.mean(axis=0)
        if len(models) < 10:
            ax.plot(steps, models.T, color=color, alpha=0.3, linewidth=0.6)
        else:
            spread = models.std(axis=0, ddof=1)
            ax.fill_between(steps, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
        ax.plot(steps, mean, color=color, linestyle=dash, label=look["label"])
    ax.set_xlabel("training step")
    ax.set_ylabel("test accuracy (%)")
    ax.legend(loc="lower right")
