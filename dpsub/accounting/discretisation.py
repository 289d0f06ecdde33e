r"""The privacy loss of one step on a grid, bounded from both sides.

Outcomes whose loss lies between two multiples of the mesh are replaced by outcomes on the multiples: either split, so
that every δ(ε) can only increase ("connect the dots", Doroshenko et al., 2022), or merged, so that it can only
decrease. Both keep the masses under P and Q, so their errors decrease with the square of the mesh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from dpsub.accounting.dominating_pairs import Array, Pair, StepPair

LARGEST_LOSS = 600.0  # of one step: its exponential must be a floating-point number
REACH = 14.0  # standard deviations: less than 1e-44 lies beyond
FARTHEST = 37.0  # standard deviations; tails beyond are too small for floating point
BEYOND = 1e-6  # the share of δ that the grids of all steps together may leave out
LOSS_ROUNDING = 1e-12  # the error of one step's loss from the rounding of its masses
BLOCK = 4096  # cells that are treated together
SWEEPS = 30  # most blocks settle in less than ten


@dataclass(frozen=True, eq=False)
class Step:
    """One step's loss under P: `mass` at successive multiples of the mesh from `low`, `infinite` at +∞."""

    mesh: float
    low: int
    mass: Array
    infinite: float

    @cached_property
    def losses(self) -> Array:
        return np.asarray((self.low + np.arange(len(self.mass))) * self.mesh)

    @cached_property
    def log_mass(self) -> Array:
        with np.errstate(divide="ignore"):
            return np.log(self.mass)

    def log_moment(self, tilt: float) -> float:
        """log E[e^(tilt · loss)] of the finite part."""
        return _log_sum_exp(self.log_mass + tilt * self.losses)

    @cached_property
    def _blocks(self) -> tuple[Array, Array]:
        """Log-mass and mean loss of about a thousand blocks of cells, with edges even in mass and in range."""
        even = np.linspace(0, len(self.mass), 513)[:-1].astype(int)
        total = np.cumsum(self.mass)
        starts = np.unique(np.append(even, np.searchsorted(total, np.linspace(0, total[-1], 513)[1:-1])))
        mass = np.add.reduceat(self.mass, starts)
        kept = mass > 0
        return np.log(mass[kept]), np.add.reduceat(self.mass * self.losses, starts)[kept] / mass[kept]

    def rough_log_moment(self, tilt: float) -> float:
        """`log_moment` from blocks of cells: precise enough to choose a tilt."""
        log_mass, losses = self._blocks
        return _log_sum_exp(log_mass + tilt * losses)


def _log_sum_exp(exponents: Array) -> float:
    """scipy's logsumexp takes ten times as long on a thousand numbers: it prepares for arrays of any library."""
    top = exponents.max()
    return float(top + math.log(np.exp(exponents - top).sum()))


def deviations(steps: int, delta: float) -> float:
    """How many standard deviations of the noise a grid must reach, so that BEYOND · δ lies beyond in all steps."""
    return min(FARTHEST, -float(ndtri(max(BEYOND * delta / steps, 1e-300))))


def loss_range(pair: StepPair, reach: float) -> Array:
    """The losses at `reach` standard deviations of the noise on either side."""
    x = reach * pair.sigma + 1
    return np.clip(pair.loss(np.array([-x, x])), -LARGEST_LOSS, LARGEST_LOSS)


def spread(pair: StepPair) -> float:
    """The standard deviation of the loss under P."""
    x, log_p = pair.nodes(reach=12 * pair.sigma + 1)
    p, loss = np.exp(log_p), pair.loss(x)
    return float(np.sqrt(p @ (loss - p @ loss) ** 2))


def split_outcomes(pair: StepPair, mesh: float, reach: float = REACH) -> Step:
    """Split each outcome between the two multiples of the mesh around its loss, keeping its mass under P and Q."""
    lowest, highest = loss_range(pair, reach) / mesh
    low, high = math.floor(lowest), math.ceil(highest)
    index = np.arange(low, high + 1)
    edges = pair.inverse_loss(index * mesh)
    p, q = pair.masses(edges, "P"), pair.masses(edges, "Q")
    up = np.clip((p - np.exp(index[:-1] * mesh) * q) / -math.expm1(-mesh), 0.0, p)
    mass = np.append(p - up, 0.0)
    mass[1:] += up
    below, beyond = pair.masses(np.array([-np.inf, edges[0]]), "P"), pair.masses(np.array([edges[-1], np.inf]), "P")
    mass[0] += below[0]
    return Step(mesh, low, mass, float(beyond[0]))


def merge_outcomes(pair: StepPair, mesh: float, reach: float = REACH) -> Step:
    """Merge the outcomes of each cell with the part of a neighbour that brings the merged loss onto the grid.

    Merging outcomes is post-processing of both P and Q, so every δ(ε) can only decrease.
    """
    # The outermost multiples inside the range: mass piles up at the ends of a bounded loss and must be merged inwards.
    lowest, highest = loss_range(pair, reach) / mesh
    low = math.ceil(lowest)
    high = max(math.floor(highest), low)
    index = np.arange(low, high + 1)
    edges = np.concatenate(([-np.inf], pair.inverse_loss((index[:-1] + 0.5) * mesh), [np.inf]))
    if len(index) > 1 and isinstance(pair, Pair) and pair.q < 1 and pair.direction == "remove":
        edges[1] = _balanced_edge(pair, -math.inf, edges[1], low * mesh)
    if len(index) > 1 and isinstance(pair, Pair) and pair.q < 1 and pair.direction == "add":
        edges[-2] = _balanced_edge(pair, math.inf, edges[-2], high * mesh)
    p, q = pair.masses(edges, "P"), pair.masses(edges, "Q")
    ratio = np.exp(index * mesh)
    p, q = borrow(p, q, ratio)
    p, q = (-part[::-1] for part in borrow(-p[::-1], -q[::-1], ratio[::-1]))

    # Mass that found no neighbour to merge with is rounded down.
    with np.errstate(divide="ignore", invalid="ignore"):
        cell = np.where(p >= ratio * q * (1 - LOSS_ROUNDING), index, np.floor(np.log(p / q) / mesh))
    kept = (p > 0) & (cell >= low)
    mass = np.bincount(cell[kept].astype(int) - low, weights=p[kept], minlength=len(index)).astype(np.float64)
    mass[0] = max(mass[0], 1e-300)  # so that its logarithm is finite
    return Step(mesh, low, mass, 0.0)


def _balanced_edge(pair: Pair, end: float, edge: float, loss: float) -> float:
    """The edge beyond `edge` at which the merged mass between it and `end` has this loss; if there is none, `edge`.

    Most of the mass can lie at a bounded end, where it has no neighbour to merge with.
    """

    def excess(x: float) -> float:
        ends = np.sort([end, x])
        return math.log(pair.masses(ends, "P")[0] / pair.masses(ends, "Q")[0]) - loss

    far = math.copysign(FARTHEST * pair.sigma, end)
    if excess(edge) * excess(far) >= 0:
        return edge
    return float(brentq(excess, far, edge, xtol=1e-15, rtol=1e-14))


def borrow(p: Array, q: Array, ratio: Array) -> tuple[Array, Array]:
    """Raise each cell with p < ratio * q to equality with the mass that this takes from the cells after it."""
    raised = np.zeros((2, len(p)))
    at, following, have_p, have_q = 0, 1, float(p[0]), float(q[0])
    while following < len(p):
        end = min(at + BLOCK, len(p) - 1)
        at, have_p, have_q = _together(p[: end + 1], q[: end + 1], ratio, at, have_p, have_q, raised)
        following = at + 1
        if at < end:
            at, following, have_p, have_q = _one_by_one(p, q, ratio, at, at + BLOCK, have_p, have_q, raised)
    raised[:, at] = have_p, have_q
    return raised[0], raised[1]


def _together(
    p: Array, q: Array, ratio: Array, at: int, have_p: float, have_q: float, raised: Array
) -> tuple[int, float, float]:
    """Treat the cells from `at` up to the first that needs all of the next one; returns that cell and what it has.

    What a cell has left depends on the cell before it, so all cells are computed again until none changes.
    """
    left_p, left_q, target = p[at:].copy(), q[at:].copy(), ratio[at : len(p) - 1]
    left_p[0], left_q[0] = have_p, have_q
    next_p, next_q = p[at + 1 :], q[at + 1 :]
    offered = next_p - target * next_q
    for _ in range(SWEEPS):
        with np.errstate(all="ignore"):
            missing = target * left_q[:-1] - left_p[:-1]
            part = np.where(missing > 0, missing / offered, 0.0)
            new_p, new_q = (1 - part) * next_p, (1 - part) * next_q
        unsettled = (new_p != left_p[1:]) | (new_q != left_q[1:])
        left_p[1:], left_q[1:] = new_p, new_q
        if not unsettled.any():
            break
    stops = np.flatnonzero(unsettled | ((missing > 0) & (missing >= offered)))
    count = int(stops[0]) if len(stops) else len(part)
    done = slice(at, at + count)
    raised[0, done] = left_p[:count] + part[:count] * next_p[:count]
    raised[1, done] = left_q[:count] + part[:count] * next_q[:count]
    return at + count, float(left_p[count]), float(left_q[count])


def _one_by_one(
    p: Array, q: Array, ratio: Array, at: int, until: int, have_p: float, have_q: float, raised: Array
) -> tuple[int, int, float, float]:
    """Treat the cells from `at` to `until`; returns the next cell, the cell after it, and what the next cell has."""
    ratios = ratio[at:until].tolist()  # Python's loop over lists takes a fifth of that over arrays
    first, cells, masses_p, masses_q = at, [], [], []
    following = at + 1
    while following < len(p) and (at < until or following > at + 1):
        block = slice(following, following + BLOCK)
        for next_p, next_q in zip(p[block].tolist(), q[block].tolist(), strict=True):
            target = ratios[at - first]
            missing, offered = target * have_q - have_p, next_p - target * next_q
            if 0 < missing >= offered:
                have_p, have_q = have_p + next_p, have_q + next_q
            else:
                part = missing / offered if missing > 0 else 0.0
                cells.append(at)
                masses_p.append(have_p + part * next_p)
                masses_q.append(have_q + part * next_q)
                have_p, have_q, at = (1 - part) * next_p, (1 - part) * next_q, following
            following += 1
            if at >= until:
                break
    raised[0, cells], raised[1, cells] = masses_p, masses_q
    return at, following, have_p, have_q
