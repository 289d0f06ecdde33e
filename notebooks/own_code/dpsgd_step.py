"""One step of DP-SGD in two dimensions, as four drawings."""

from dataclasses import dataclass

import numpy as np
from matplotlib.patches import Circle

from own_code.drawings import (
    OTHERS,
    PALE,
    WORLDS,
    arrow,
    ball,
    frame,
    pair_of_arrows,
)


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
        return self.sums["z"] + self.noise * (
            self.noise_multiplier * self.clipping_bound
        )


def sample(ax, step):
    """First: a coin for each record says whether it is in the batch."""
    for gradient, taken in zip(
        step.gradients[1:], step.sampled[1:], strict=True
    ):
        look = {"color": OTHERS if taken else PALE}
        arrow(ax, (0, 0), gradient, width=1.6 if taken else 1.2, **look)
    pair_of_arrows(ax, (0, 0), step.gradients[0], step.other)


def clip(ax, step):
    """Second: a gradient longer than C is cut to C."""
    ball(ax, step.clipping_bound)
    for full in step.gradients[1:][step.sampled[1:]]:
        end = step.clipped(full)
        arrow(ax, (0, 0), end, color=OTHERS)
        ax.plot(*np.transpose([end, full]), ":", color=OTHERS, lw=1.2)
    ends = [step.clipped(g) for g in (step.gradients[0], step.other)]
    pair_of_arrows(ax, (0, 0), *ends)


def add(ax, step):
    """Third: the gradients of the batch are added up, tip to tail."""
    at = np.zeros(2)
    for gradient in step.clipped(step.gradients)[1:][step.sampled[1:]]:
        arrow(ax, at, at + gradient, color=OTHERS)
        at = at + gradient
    pair_of_arrows(ax, at, *(end - at for end in step.sums.values()))
    ax.plot(0, 0, ".", color="black")


def blur(ax, step):
    """Fourth: noise is added. What is released fits both worlds."""
    spread = step.noise_multiplier * step.clipping_bound
    for world, centre in step.sums.items():
        color, line, mark = WORLDS[world].values()
        for times, alpha in ((1, 0.25), (2, 0.15)):
            size = times * spread
            ax.add_patch(
                Circle(centre, size, color=color, alpha=alpha, linewidth=0)
            )
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
        (sample, clip, add, blur),
        (gradients, gradients, path, cloud),
        ("1. sample", "2. clip", "3. sum", "4. add noise"),
        strict=True,
    ):
        draw(ax, step)
        frame(ax, points, title)
