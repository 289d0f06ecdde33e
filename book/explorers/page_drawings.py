"""The drawings of pages that run no code: kept in book/images.

    python -m book.explorers.page_drawings

writes them anew. Numbers in them come from the
accountants and from canaries that are crafted on handwritten digits.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from book.explorers import drawings
from book.explorers.drawings import WIDTH, WORLDS, say
from dpsub import DPSGD, accounting, crafters, data, figures, models

IMAGES = Path(__file__).parents[2] / "book/images"
MECHANISM = {"noise_multiplier": 2.0, "sample_rate": 0.05, "steps": 1_000}
DELTA = 1e-5
FPR = 0.05
PIXEL = 34  # of a digit's 60 that vary; the attribute of S6


def adjacencies():
    """Three pairs of data sets: add/remove, zero-out, substitute."""
    figure, axes = plt.subplots(3, 1, figsize=(WIDTH, 6.6))
    for ax, other, title, name in zip(
        axes,
        (None, "empty", "z′"),
        ("add/remove", "zero-out", "substitute"),
        ("D′: one record less", "D′: an empty record", "D′: another record"),
        strict=True,
    ):
        names = ("D", name)
        drawings.adjacent(ax, "z", other, title=title, names=names)
    return figure, {}


def gradient_ball():
    """What the slot's gradient may be, in units of C."""
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 2.8))
    for ax, title in zip(axes, ("add/remove", "substitute"), strict=True):
        drawings.ball(ax, 1.0, angle=-2.2)
        u = np.array([1.0, 0.0])
        if title == "substitute":
            drawings.pair_of_arrows(ax, (0, 0), u, -u)
            say(ax, -0.5, 0.24, "v")
        else:
            drawings.pair_of_arrows(ax, (0, 0), u, 0 * u)
            look = {"color": WORLDS["z′"]["color"], "mec": "black"}
            ax.plot(0, 0, WORLDS["z′"]["marker"], ms=8, zorder=9, **look)
        say(ax, 0.5, 0.24, "u")
        left = -1.0 if title == "substitute" else 0.0
        ax.annotate("", (1, 1.3), (left, 1.3), arrowprops={"arrowstyle": "<->"})
        say(ax, (1 + left) / 2, 1.52, "2 C" if left else "C")
        corners = np.array([[-1, -1.2], [1, 1.6]])
        drawings.frame(ax, corners, title, margin=1.05)
    drawings.worlds_legend(figure)
    return figure, {}


def tradeoff_curves():
    """Trade-off functions of one training under both adjacencies."""
    figure, ax = plt.subplots(figsize=(WIDTH, 3.7))
    rates = np.linspace(0, 1, 101)
    curves = {
        adjacency: accounting.tradeoff(rates, **MECHANISM, adjacency=adjacency)
        for adjacency in ("add_remove", "substitute")
    }
    figures.tradeoffs(ax, rates, curves)
    ax.axvline(FPR, color="0.8", linewidth=0.9)
    ax.legend(loc="upper right", fontsize=drawings.SIZE)
    ax.tick_params(labelsize=drawings.SIZE)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_size(drawings.SIZE)
    numbers = {
        f"{adjacency}: {name}": float(number)
        for adjacency, curve in curves.items()
        for name, number in (
            ("missed", np.interp(FPR, rates, curve)),
            ("epsilon", accounting.epsilon(**MECHANISM, delta=DELTA, adjacency=adjacency)),
        )
    }
    return figure, numbers


def crafted(seed=0):
    """A canary pair of each scenario on digits, and where their task is."""
    task = data.digits(n_train=500, seed=seed)
    model = models.linear(task)
    spec = DPSGD(
        noise_multiplier=12.0,  # no crafter uses it
        max_grad_norm=2.0,
        sample_rate=1.0,
        steps=500,
        learning_rate=1e-3,
    )
    pairs = {scenario: craft(task, model, spec, seed=seed) for scenario, craft in crafters.BY_SCENARIO.items()}
    pairs["S6"] = crafters.attribute(task, model, spec, columns=PIXEL, seed=seed)
    return task, pairs, spec.max_grad_norm


def geometry(pair, bound):
    """Lengths of both gradients, clipped, in C, and their cosine."""
    if pair.score != "logit":  # gradients, not records
        lengths = [np.linalg.norm(g) / bound for g in (pair.z, pair.z_prime)]
        cosine = pair.z @ pair.z_prime / np.prod(lengths) / bound**2
        return *map(float, lengths), float(cosine)
    norm, ratio = pair.details["norm"], pair.details["norm_ratio"]
    lengths = (min(1, norm / bound), min(1, norm * ratio / bound))
    return *lengths, pair.details["cosine"]


def scenarios():
    """A row for each scenario: z, z′, and their gradients in the ball."""
    task, pairs, bound = crafted()
    found = {"S1": (1.0, 1.0, -1.0)}
    found |= {name: geometry(pair, bound) for name, pair in pairs.items()}
    titles = {
        "S1": "S1  worst-case data set",
        "S2": "S2  crafted gradient",
        "S3": "S3  crafted input",
        "S4": "S4  mislabeled",
        "S5": "S5  natural",
        "S6": "S6  one attribute",
    }
    figure, rows = plt.subplots(6, 3, figsize=(WIDTH, 9.6), width_ratios=(1, 1, 1.25))
    numbers = {}
    for axes, (name, (of_z, of_other, cosine)) in zip(rows, found.items(), strict=True):
        _shown(axes[:2], name, pairs.get(name), task)
        axes[0].set_title(titles[name], fontsize=drawings.SIZE, weight="bold", loc="left")
        apart = _in_the_ball(axes[2], of_z, of_other, cosine)
        angle = float(np.degrees(np.arccos(cosine)))
        numbers |= {f"{name}: angle": angle, f"{name}: apart": apart}
        axes[2].set_title(f"{angle:.0f}°, {apart:.2f} C apart", fontsize=drawings.SIZE)
    return figure, numbers


def _in_the_ball(ax, of_z, of_other, cosine):
    """Both gradients in the plane that they span; their distance."""
    half = np.arccos(cosine) / 2
    ends = [length * np.array([np.sin(side), np.cos(side)]) for length, side in ((of_z, half), (of_other, -half))]
    drawings.ball(ax, 1.0, angle=-1.57)
    drawings.pair_of_arrows(ax, (0, 0), *ends)
    drawings.bare(ax, x=(-1.1, 1.1), y=(-1.5, 1.05), equal=True)
    return float(np.linalg.norm(ends[0] - ends[1]))


def _shown(axes, name, pair, task):
    """What the slot holds in each world: a record, or a gradient."""
    shown = {"S1": ("+C", "−C")}.get(name, (None, None))
    if name == "S2":
        pictures = _on_pixels(pair, task)
        shown = [f"{sign}C at one\nparameter" for sign in "+−"]
    elif pair is not None:
        records = (pair.z, pair.z_prime)
        pictures = task.pictures(np.stack([one.x for one in records]))
        shown = [f"labelled {one.y}" for one in records]
    for place, (ax, world) in enumerate(zip(axes, WORLDS, strict=True)):
        color = WORLDS[world]["color"]
        ax.set(xticks=[], yticks=[])
        for side in ax.spines.values():
            side.set(visible=True, color=color, linewidth=3)
        if name == "S1":
            ax.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal")
            say(ax, 0, 0, shown[place], weight="bold")
            ax.set_xlabel("gradient", fontsize=9)
            continue
        ax.set_xlabel(shown[place], fontsize=9)
        if name == "S2":
            filled = LinearSegmentedColormap.from_list("", ["white", color])
            ax.imshow(np.abs(pictures[place]), cmap=filled)
            continue
        low = min(0.0, float(pictures.min()))
        high = max(1.0, float(pictures.max()))
        ax.imshow(pictures[place], cmap="gray_r", vmin=low, vmax=high)
        if name == "S6":
            row, column = np.argwhere(pictures[0] != pictures[1])[0]
            corner = (column - 0.5, row - 0.5)
            look = {"fill": False, "edgecolor": "black", "linewidth": 2}
            ax.add_patch(Rectangle(corner, 1, 1, **look))


def _on_pixels(pair, task):
    """The gradients of S2 for the class whose weight they push."""
    pixels, classes = task.x_train.shape[1], task.num_classes
    of_class = pair.details["parameter"] % classes
    weights = (g[: pixels * classes] for g in (pair.z, pair.z_prime))
    return task.pictures(np.stack([g.reshape(pixels, classes)[:, of_class] for g in weights]))


ALL = {
    "adjacencies": adjacencies,
    "gradient_ball": gradient_ball,
    "tradeoff_curves": tradeoff_curves,
    "scenarios": scenarios,
}


def written(name, folder):
    """Draw one of them into a folder; the numbers that are in it."""
    with plt.style.context([figures.STYLE, {"svg.hashsalt": name}]):
        figure, numbers = ALL[name]()
        about = {"Date": None, "Description": json.dumps(numbers)}
        path = Path(folder, f"{name}.svg")
        figure.savefig(path, metadata=about)
        plt.close(figure)
    lines = (line.rstrip() for line in path.read_text().splitlines())
    path.write_text("\n".join(lines) + "\n")
    return numbers


if __name__ == "__main__":
    for name in ALL:
        print(name, written(name, IMAGES))
