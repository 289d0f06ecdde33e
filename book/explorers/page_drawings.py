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
from dpsub import DPSGD, crafters, data, figures, models

IMAGES = Path(__file__).parents[2] / "book/images"
PIXEL = 34  # of a digit's 60 that vary; the attribute of S6


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
