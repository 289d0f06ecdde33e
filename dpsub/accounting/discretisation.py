r"""The privacy loss of one step on a grid, bounded from both sides.

Outcomes whose loss lies between two multiples of the mesh are replaced by outcomes on the multiples: either split, so
that every δ(ε) can only increase ("connect the dots", Doroshenko et al., 2022), or merged, so that it can only
decrease. Both keep the masses under P and Q, so their errors decrease with the square of the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg.blas import dtbsv
from scipy.optimize import brentq
from scipy.special import ndtri

from dpsub.accounting.dominating_pairs import Array, Pair, SinglePair, StepPair, parts_of

LARGEST_LOSS = 600.0  # of one step: its exponential must be a floating-point number
REACH = 14.0  # standard deviations: less than 1e-44 lies beyond
FARTHEST = 37.0  # standard deviations; tails beyond are too small for floating point
LEFT_OUT = 1e-6  # the share of δ that may lie beyond the grids of all steps together
LOSS_ROUNDING = 1e-12  # the error of one step's loss from the rounding of its masses


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
    """How many standard deviations of the noise a grid must reach, so that LEFT_OUT · δ lies beyond in all steps."""
    return min(FARTHEST, -float(ndtri(max(LEFT_OUT * delta / steps, 1e-300))))


def loss_range(pair: StepPair, reach: float) -> Array:
    """The losses at `reach` standard deviations of the noise on either side: the outermost of all parts."""
    far = np.array([-1.0, 1.0])
    ends = np.array([part.loss(far * (reach * part.sigma + 1)) for _, part in parts_of(pair)])
    return np.asarray(np.clip([ends.min(), ends.max()], -LARGEST_LOSS, LARGEST_LOSS))


def spread(pair: StepPair) -> float:
    """The standard deviation of the loss under P."""
    nodes = [(weight, part, *part.nodes(reach=12 * part.sigma + 1)) for weight, part in parts_of(pair)]
    p = np.concatenate([weight * np.exp(log_p) for weight, _, _, log_p in nodes])
    loss = np.concatenate([part.loss(x) for _, part, x, _ in nodes])
    p, loss = np.append(p, _rest(pair)), np.append(loss, 0.0)
    return float(np.sqrt(p @ (loss - p @ loss) ** 2))


def _rest(pair: StepPair) -> float:
    """The probability of equal worlds, whose loss is 0."""
    return max(1 - math.fsum(weight for weight, _ in parts_of(pair)), 0.0)


def discretised(pair: StepPair, end: Callable[[SinglePair, float, float], Step], mesh: float, reach: float) -> Step:
    """The step of a pair by `split_outcomes` or `merge_outcomes`: of a mixture, the mixture of its parts' steps."""
    steps = [(weight, end(part, mesh, reach)) for weight, part in parts_of(pair)]
    low = min(step.low for _, step in steps)
    mass = np.zeros(max(step.low + len(step.mass) for _, step in steps) - low)
    for weight, step in steps:
        mass[step.low - low :][: len(step.mass)] += weight * step.mass
    mass[-low] += _rest(pair)
    return Step(mesh, low, mass, sum(weight * step.infinite for weight, step in steps))


def split_outcomes(pair: SinglePair, mesh: float, reach: float = REACH) -> Step:
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


def merge_outcomes(pair: SinglePair, mesh: float, reach: float = REACH) -> Step:
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


@np.errstate(over="ignore", invalid="ignore")  # shares after the first cell that needs all of the next one
def borrow(p: Array, q: Array, ratio: Array) -> tuple[Array, Array]:
    """Raise each cell with p < ratio * q to equality with the mass that this takes from the cells after it."""
    # A cell misses ratio q - p, and the next one, of masses p' and q', offers p' - ratio q'. Let c be the quotient of
    # the two. Where the share s of a cell is left, it takes the part s c of the next cell and leaves 1 - s c of that.
    # This triangular system, whose diagonal of ones dtbsv does not read, is solved up to the first cell, `end`, that
    # needs all of the next one. It takes whole cells as long as they offer no more than it misses, and a part of one.
    missing, offered = np.maximum(ratio * q - p, 0.0), p[1:] - ratio[:-1] * q[1:]
    c = np.append(missing[:-1] / np.maximum(offered, 1e-300), 0.0)  # huge where nothing is offered
    masses, raised = np.stack((p, q)), np.zeros((2, len(p)))
    start, share = 0, 1.0
    while start < len(p):
        shares = dtbsv(1, np.tile(c[start:], (2, 1)), np.append(share, np.ones(len(p) - start - 1)), lower=1, diag=1)
        part = shares * c[start:]
        count = int(np.argmax(np.append(part[:-1] >= 1, True)))
        end = start + count
        raised[:, start : end + 1] = shares[: count + 1] * masses[:, start : end + 1]
        raised[:, start:end] += part[:count] * masses[:, start + 1 : end + 1]
        offered = p[end + 1 :] - ratio[end] * q[end + 1 :]
        surplus = np.cumsum(np.concatenate(([-shares[count] * missing[end]], offered, [np.inf])))
        start = end + int(np.argmax(surplus > 0))
        raised[:, end] += masses[:, end + 1 : start].sum(axis=1)
        if start < len(p):
            taken = min(-surplus[start - end - 1] / offered[start - end - 1], 1.0)
            raised[:, end] += taken * masses[:, start]
            share = 1 - taken
    return raised[0], raised[1]
