"""Drawings that explain: data sets, two worlds, a step of DP-SGD.

Each function takes an `ax`, draws on it and returns nothing. A world has
one colour, one line style and one marker in all drawings. Letters are
large enough for a figure of 4.6 inches to be read on a phone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyBboxPatch

from dpsub.figures import PALETTES

SIZE = 10.5  # points
WIDTH = 4.6  # inches, of a whole figure
OTHERS, PALE = "#7F9CC0", "#DCE6F2"  # all records but one
WORLDS: dict[str, dict[str, Any]] = {
    world: {"color": color, "linestyle": line, "marker": marker}
    for world, color, line, marker in zip(("z", "z′"), PALETTES["world"], ("-", "--"), "os", strict=True)
}
LETTERS = {"z": "white", "z′": "black"}  # on the colour of a world


def bare(ax, x=(0, 10), y=(0, 10), *, equal=False):
    """No axes, only what is drawn between these limits."""
    ax.set(xlim=x, ylim=y)
    ax.axis("off")
    if equal:
        ax.set_aspect("equal")


def say(ax, x, y, text, **look):
    """Text in the size of all drawings, centred at (x, y)."""
    look = {"ha": "center", "va": "center", "fontsize": SIZE, **look}
    ax.text(x, y, text, **look)


def arrow(ax, start, end, *, color="black", linestyle="-", width=1.6):
    """An arrow whose head stays small and whose ends are exact."""
    ax.annotate(
        "",
        end,
        start,
        arrowprops={
            "arrowstyle": "-|>,head_length=0.5,head_width=0.25",
            "color": color,
            "linestyle": linestyle,
            "linewidth": width,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )


def box(ax, x, y, width, height, text="", **look):
    """A box with round corners around (x, y), with a text in it."""
    look = {"facecolor": "white", "edgecolor": "black", **look}
    letters = look.pop("letters", "black")
    corner = (x - width / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.15"
    ax.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, **look))
    say(ax, x, y, text, color=letters)


def data_set(ax, x, top, slot, *, width=3.6, others=3, text=None):
    """A data set: grey rows, and below them one more in the slot.

    `slot` is "z" or "z′" for the record, "empty" for an empty record, or
    None for no row at all.
    """
    height, gap = 0.55, 0.78
    for row in range(others):
        y = top - row * gap
        box(ax, x, y, width, height, facecolor=PALE, edgecolor=OTHERS)
        for line in (-0.36, -0.12, 0.12, 0.36):
            at = x + line * width
            half = 0.08 * width
            ax.plot([at - half, at + half], [y, y], color=OTHERS, lw=2)
    y = top - others * gap - 0.08
    if slot in WORLDS:
        look = {"facecolor": WORLDS[slot]["color"], "letters": LETTERS[slot]}
        box(ax, x, y, width, 0.8, slot if text is None else text, **look)
    elif slot == "empty":
        look = {"linestyle": (0, (3, 2)), "letters": "0.35"}
        box(ax, x, y, width, 0.8, "empty", edgecolor="0.35", **look)


def adjacent(ax, left, right, *, title, names, texts=(None, None)):
    """Two data sets that an adjacency takes for neighbours."""
    bare(ax, y=(-0.2, 5.3))
    say(ax, 5, 5.0, title, weight="bold")
    for x, slot, name, text in zip((2.3, 7.7), (left, right), names, texts, strict=True):
        data_set(ax, x, 4.1, slot, text=text)
        say(ax, x, 0.6, name)
    ax.annotate("", (5.55, 2.9), (4.45, 2.9), arrowprops={"arrowstyle": "<->"})


def adjacencies(axes):
    """Three pairs of data sets: add/remove, zero-out, substitute."""
    others = {"add/remove": None, "zero-out": "empty", "substitute": "z′"}
    names = ("D′: one record less", "D′: an empty record", "D′: another record")
    for ax, (title, other), name in zip(axes, others.items(), names, strict=True):
        adjacent(ax, "z", other, title=title, names=("D", name))


def two_worlds(ax, texts):
    """Two worlds, a model of each, and an attacker who sees one model."""
    bare(ax, y=(0.1, 11.9))
    for x, world, text in zip((2.4, 7.6), WORLDS, texts, strict=True):
        color = WORLDS[world]["color"]
        say(ax, x, 11.5, f"world {world}", weight="bold")
        data_set(ax, x, 10.6, world, width=4.2, text=text)
        arrow(ax, (x, 7.5), (x, 6.2))
        say(ax, x + 0.25, 6.95, "training", ha="left")
        box(ax, x, 5.65, 3.0, 0.95, "model", edgecolor=color, linewidth=3)
        towards = (4.0, 3.5) if world == "z" else (6.0, 3.5)
        arrow(ax, (x, 5.1), towards, color="0.4", linestyle=":")
    box(ax, 5, 2.95, 4.4, 0.95, "one model is shown", edgecolor="0.4")
    arrow(ax, (5, 2.4), (5, 1.5))
    say(ax, 5, 1.0, "The attacker guesses: z or z′?", weight="bold")


def ball(ax, radius, *, label="C", angle=-2.5):
    """The clipping bound: a circle around 0, its radius named."""
    look = {"facecolor": "0.95", "edgecolor": "0.5", "linewidth": 0.9}
    ax.add_patch(Circle((0, 0), radius, zorder=0, **look))
    end = radius * np.array([np.cos(angle), np.sin(angle)])
    ax.plot(*np.transpose([(0, 0), end]), color="0.5", lw=0.9, zorder=0)
    say(ax, *(1.24 * end), label, color="0.3")


def pair_of_arrows(ax, start, of_z, of_z_prime):
    """The two gradients that the slot may hold, from the same point."""
    for world, end in (("z", of_z), ("z′", of_z_prime)):
        ax.annotate(
            "",
            np.add(start, end),
            start,
            arrowprops={
                "arrowstyle": "simple,head_length=0.7,head_width=0.7,tail_width=0.22",
                "facecolor": WORLDS[world]["color"],
                "edgecolor": "black",
                "linewidth": 0.8,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 15,
            },
        )


def frame(ax, points, title, *, margin=1.15):
    """Equal scales around all points, a thin frame, a title."""
    low, high = np.min(points, axis=0), np.max(points, axis=0)
    middle, half = (low + high) / 2, margin * max(high - low) / 2
    ax.set_xlim(middle[0] - half, middle[0] + half)
    ax.set_ylim(middle[1] - half, middle[1] + half)
    ax.set(xticks=[], yticks=[], aspect="equal")
    ax.set_title(title, fontsize=SIZE, weight="bold")
    for side in ax.spines.values():
        side.set(visible=True, color="0.8")


def worlds_legend(figure, *more):
    """One line above the figure that names both worlds' looks."""
    handles = [
        Line2D([], [], lw=3, ms=8, mec="black", label=f"world {world}", **look) for world, look in WORLDS.items()
    ]
    figure.legend(
        handles=[*handles, *more],
        loc="outside upper center",
        ncols=2 + len(more),
        fontsize=SIZE,
        handlelength=2.6,
        columnspacing=1.2,
    )


def gradient_balls(axes):
    """What the slot's gradient may be under add/remove and under substitute adjacency, in units of C."""
    for ax, title in zip(axes, ("add/remove", "substitute"), strict=True):
        ball(ax, 1.0, angle=-2.2)
        u = np.array([1.0, 0.0])
        if title == "substitute":
            pair_of_arrows(ax, (0, 0), u, -u)
            say(ax, -0.5, 0.24, "v")
        else:
            pair_of_arrows(ax, (0, 0), u, 0 * u)
            look = {"color": WORLDS["z′"]["color"], "mec": "black"}
            ax.plot(0, 0, WORLDS["z′"]["marker"], ms=8, zorder=9, **look)
        say(ax, 0.5, 0.24, "u")
        left = -1.0 if title == "substitute" else 0.0
        ax.annotate("", (1, 1.3), (left, 1.3), arrowprops={"arrowstyle": "<->"})
        say(ax, (1 + left) / 2, 1.52, "2 C" if left else "C")
        frame(ax, np.array([[-1, -1.2], [1, 1.6]]), title, margin=1.05)
    worlds_legend(ax.figure)


@dataclass(frozen=True)
class Step:
    """One step of DP-SGD in two dimensions. Record 0 is the one in doubt.

    In the world with z′ its gradient is `other`; all else is the same.
    """

    gradients: np.ndarray  # (n, 2), of the world with z
    other: np.ndarray  # (2,), record 0 in the world with z′
    sampled: np.ndarray  # (n,), True where a record is in the batch
    clipping_bound: float
    noise_multiplier: float
    noise: np.ndarray  # (2,), what is drawn in this step

    def clipped(self, gradients):
        """The gradients, each no longer than the clipping bound."""
        norms = np.linalg.norm(gradients, axis=-1, keepdims=True)
        return gradients * np.minimum(1, self.clipping_bound / norms)

    @property
    def rest(self):
        """The sum of what the other sampled records contribute."""
        kept = self.clipped(self.gradients)[1:][self.sampled[1:]]
        return kept.sum(axis=0)

    @property
    def sums(self):
        """The sum of the batch in each world, before noise."""
        pair = {"z": self.gradients[0], "z′": self.other}
        return {w: self.rest + self.clipped(g) for w, g in pair.items()}

    @property
    def released(self):
        """What the step releases in the world with z."""
        return self.sums["z"] + self.noise * (self.noise_multiplier * self.clipping_bound)


def draw_sampling(ax, step):
    """First: a coin for each record says whether it is in the batch."""
    for gradient, taken in zip(step.gradients[1:], step.sampled[1:], strict=True):
        look = {"color": OTHERS if taken else PALE}
        arrow(ax, (0, 0), gradient, width=1.6 if taken else 1.2, **look)
    pair_of_arrows(ax, (0, 0), step.gradients[0], step.other)


def draw_clipping(ax, step):
    """Second: a gradient longer than C is cut to C."""
    ball(ax, step.clipping_bound)
    for full in step.gradients[1:][step.sampled[1:]]:
        end = step.clipped(full)
        arrow(ax, (0, 0), end, color=OTHERS)
        ax.plot(*np.transpose([end, full]), ":", color=OTHERS, lw=1.2)
    ends = [step.clipped(g) for g in (step.gradients[0], step.other)]
    pair_of_arrows(ax, (0, 0), *ends)


def draw_sum(ax, step):
    """Third: the gradients of the batch are added up, tip to tail."""
    at = np.zeros(2)
    for gradient in step.clipped(step.gradients)[1:][step.sampled[1:]]:
        arrow(ax, at, at + gradient, color=OTHERS)
        at = at + gradient
    pair_of_arrows(ax, at, *(end - at for end in step.sums.values()))
    ax.plot(0, 0, ".", color="black")


def draw_noise(ax, step):
    """Fourth: noise is added. What is released fits both worlds."""
    spread = step.noise_multiplier * step.clipping_bound
    for world, centre in step.sums.items():
        color, line, mark = WORLDS[world].values()
        for times, alpha in ((1, 0.25), (2, 0.15)):
            size = times * spread
            ax.add_patch(Circle(centre, size, color=color, alpha=alpha, linewidth=0))
            ring = {"edgecolor": "black", "linestyle": line, "fill": False}
            ax.add_patch(Circle(centre, size, linewidth=0.8, **ring))
        ax.plot(*centre, mark, color=color, mec="black", ms=7)
    ax.plot(*step.released, "X", color="white", ms=11, mec="black")


def four_steps(axes, step):
    """Sample, clip, sum, noise: one drawing each, on four axes."""
    gradients = np.vstack([step.gradients, step.other])
    centres = np.array(list(step.sums.values()))
    spread = 2 * step.noise_multiplier * step.clipping_bound
    kept = step.clipped(step.gradients)[1:][step.sampled[1:]]
    path = np.vstack([np.zeros(2), np.cumsum(kept, axis=0), centres])
    cloud = np.vstack([centres - spread, centres + spread, step.released])
    for ax, draw, points, title in zip(
        axes,
        (draw_sampling, draw_clipping, draw_sum, draw_noise),
        (gradients, gradients, path, cloud),
        ("1. sample", "2. clip", "3. sum", "4. add noise"),
        strict=True,
    ):
        draw(ax, step)
        frame(ax, points, title)
