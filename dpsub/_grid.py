r"""The privacy loss of one step on a grid, bounded from both sides, and its composition to any precision.

Outcomes whose loss lies between two multiples of the mesh are replaced by outcomes on the multiples: either split, so
that every δ(ε) can only grow ("connect the dots", Doroshenko et al., 2022), or merged, so that it can only fall. Both
keep the masses under P and Q, so their errors fall with the square of the mesh.

Compositions are computed with an exponential tilt, which moves the losses that decide δ(ε) to the middle of the
distribution: the floating-point error is then relative to δ, however small δ is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import fft
from scipy.optimize import minimize_scalar
from scipy.signal import lfilter
from scipy.special import logsumexp

from dpsub._pairs import Array, Pair, pairs

MOST_POINTS = 2**22
LARGEST_LOSS = 600.0  # of one step: its exponential has to be a floating-point number
OUTSIDE = 45.0  # e^-OUTSIDE is the tilted mass left outside of a composition's window on either side
LOSS_ROUNDING = 1e-12  # how far off one step's loss can be for the rounding of its masses
EPS = float(np.finfo(float).eps)
TILTS = 4  # tilts per factor of e; a tilt that is off by e^(1/8) costs next to nothing


@dataclass(frozen=True, eq=False)
class Step:
    """One step's loss under P: `mass` at multiples of the mesh from `low`, and `infinite` where nothing protects."""

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
        return float(logsumexp(self.log_mass + tilt * self.losses))

    @cached_property
    def _blocks(self) -> tuple[Array, Array]:
        """Log-mass and mean loss of about a thousand blocks of cells, fine where the mass is and where the range is."""
        even = np.linspace(0, len(self.mass), 513)[:-1].astype(int)
        total = np.cumsum(self.mass)
        starts = np.unique(np.append(even, np.searchsorted(total, np.linspace(0, total[-1], 513)[1:-1])))
        mass = np.add.reduceat(self.mass, starts)
        kept = mass > 0
        return np.log(mass[kept]), np.add.reduceat(self.mass * self.losses, starts)[kept] / mass[kept]

    def rough_log_moment(self, tilt: float) -> float:
        """`log_moment` from blocks of cells: enough to choose a tilt by."""
        log_mass, losses = self._blocks
        return float(logsumexp(log_mass + tilt * losses))


class Composition:
    """δ(ε) of `steps` independent steps, up to the rounding of floating-point numbers, which is bounded."""

    def __init__(self, step: Step, steps: int) -> None:
        self.step, self.steps = step, steps
        self.infinite = -math.expm1(steps * math.log1p(-step.infinite)) if step.infinite < 1 else 1.0
        self.largest = steps * (step.low + len(step.mass) - 1) * step.mesh  # no finite loss is above it
        self._at_tilt = lru_cache(maxsize=8)(self._compose)

    def delta(self, epsilon: float, *, rounding: int) -> float:
        """δ(ε), with the rounding error added (`rounding` +1) or taken off (−1)."""
        tilt = self._best_tilt(lambda t: self.steps * self.step.rough_log_moment(t) - t * epsilon)
        losses, mass, log_error = self._at_tilt(tilt)
        above = losses > epsilon
        finite = float(mass[above] @ -np.expm1(epsilon - losses[above]))
        error = math.exp(min(log_error - tilt * epsilon, 0.0)) if epsilon < self.largest else 0.0
        return min(max(self.infinite + finite + rounding * error, 0.0), 1.0)

    def epsilon(self, delta: float, *, rounding: int) -> float:
        """The smallest ε ≥ 0 with δ(ε) ≤ delta, for δ(ε) as above."""
        if delta <= self.infinite:
            return math.inf
        tilt = self._best_tilt(lambda t: (self.steps * self.step.rough_log_moment(t) - math.log(delta)) / t)
        losses, mass, log_error = self._at_tilt(tilt)
        step = self.step
        # At ε = losses[k]: P(loss > ε) - e^ε Q(loss > ε), the second term by recursion from the right, in units of P.
        tail = np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0)
        decay = math.exp(-step.mesh)
        tail_under_q = lfilter([0.0, decay], [1.0, -decay], mass[::-1])[::-1]
        error = rounding * np.exp(np.minimum(log_error - tilt * losses, 0.0)) * (losses < self.largest - step.mesh / 2)
        excess = self.infinite + tail - tail_under_q + error - delta
        above = np.flatnonzero(excess > 0)
        if not len(above):
            return max(float(losses[0]), 0.0) if rounding > 0 else 0.0
        k = int(above[-1])
        if tail_under_q[k] <= 0:
            return math.inf if rounding > 0 else max(float(losses[k]), 0.0)
        within_cell = min(math.log1p(excess[k] / tail_under_q[k]), step.mesh)  # the error falls on towards k + 1
        return max(float(losses[k]) + within_cell, 0.0)

    def _best_tilt(self, log_bound: Callable[[float], float]) -> float:
        """The tilt with the smallest Chernoff bound, rounded, so that close questions share one composition."""
        steepest = math.log(5 / self.step.mesh)  # more than e^5 a cell would see nothing but the last one
        found = minimize_scalar(lambda u: log_bound(math.exp(u)), bounds=(-12.0, steepest), method="bounded")
        return math.exp(round(TILTS * found.x) / TILTS)

    def _compose(self, tilt: float) -> tuple[Array, Array, float]:
        """Losses, their masses, and log e for which the masses above any ε are off by at most e^(log e - tilt · ε)."""
        step, steps, mesh = self.step, self.steps, self.step.mesh
        log_moment = step.log_moment(tilt)
        tilted = np.exp(step.log_mass + tilt * step.losses - log_moment)
        mean = float(tilted @ step.losses)
        spread = math.sqrt(steps * float(tilted @ (step.losses - mean) ** 2)) + mesh

        def reach(sign: int) -> float:
            """Chernoff's bound on how far above (or below) 0 the sum of tilted losses lies."""
            extras: list[float] = (np.geomspace(1, 50, 8) / spread).tolist()
            return min(
                (steps * (step.log_moment(tilt + sign * extra) - log_moment) + OUTSIDE) / extra for extra in extras
            )

        first = max(math.floor(-reach(-1) / mesh), steps * step.low)
        last = min(math.ceil(reach(1) / mesh), steps * (step.low + len(step.mass) - 1))
        size = int(fft.next_fast_len(last - first + 1, real=True))
        folded = np.bincount(np.arange(len(tilted)) % size, weights=tilted, minlength=size)
        transformed = fft.rfft(folded)
        power = transformed**steps
        composed = np.roll(fft.irfft(power, size), -((first - steps * step.low) % size))[: last - first + 1]

        losses = np.asarray((first + np.arange(len(composed))) * mesh)
        with np.errstate(divide="ignore"):
            log_mass = np.log(np.maximum(composed, 0.0)) + (steps * log_moment - tilt * losses)
        mass = np.exp(
            np.minimum(log_mass, 300.0)
        )  # a probability, but far left of what the tilt is for, where it is noise
        # What each entry can be off by, times how many count; the rest was left outside or wrapped around.
        entry = EPS * (steps + 5 * math.log2(size) + 5) * float(np.mean(np.abs(power)))
        counted = min(len(losses), -1 / math.expm1(-tilt * mesh))
        error = entry * counted + 2 * math.exp(-OUTSIDE) + 8 * steps * EPS
        return losses, mass, steps * log_moment + math.log(error)


@dataclass(frozen=True, eq=False)
class GridCurve:
    """δ(ε) of one adjacency: the worse of its directions, each between two compositions."""

    directions: tuple[tuple[Composition, Composition], ...]

    def epsilon(self, delta: float) -> tuple[float, float]:
        lower = max(optimistic.epsilon(delta, rounding=-1) for optimistic, _ in self.directions)
        upper = max(pessimistic.epsilon(delta, rounding=1) for _, pessimistic in self.directions)
        slack = self.directions[0][0].steps * LOSS_ROUNDING
        return max(lower - slack, 0.0), upper + slack if upper > 0 else 0.0

    def delta(self, epsilon: float) -> tuple[float, float]:
        lower = max(optimistic.delta(epsilon, rounding=-1) for optimistic, _ in self.directions)
        upper = max(pessimistic.delta(epsilon, rounding=1) for _, pessimistic in self.directions)
        return lower, max(lower, upper)


def coarsest_mesh(adjacency: str, sigma: float, q: float) -> float:
    """A thirtieth of the smallest standard deviation that one step's privacy loss has in any direction."""
    scales = []
    for pair in pairs(adjacency, sigma, q):
        x, log_p = pair.nodes(reach=12 * sigma + 1)
        p, loss = np.exp(log_p), pair.loss(x)
        scales.append(np.sqrt(p @ (loss - p @ loss) ** 2))
    return float(min(scales)) / 30


def points(adjacency: str, sigma: float, q: float, steps: int, mesh: float) -> float:
    """Roughly how many grid points the composition of `steps` steps takes."""
    widest = max(np.ptp(_range(pair)) for pair in pairs(adjacency, sigma, q))
    return float(widest / mesh + 600 * math.sqrt(steps) * coarsest_mesh(adjacency, sigma, q) / mesh)


def curves(adjacency: str, sigma: float, q: float, steps: Sequence[int], mesh: float) -> list[GridCurve]:
    """One curve for each number of steps, all from the same discretisation of a single step."""
    both = [(merge_outcomes(pair, mesh), split_outcomes(pair, mesh)) for pair in pairs(adjacency, sigma, q)]
    return [GridCurve(tuple((Composition(low, t), Composition(high, t)) for low, high in both)) for t in steps]


def _range(pair: Pair) -> Array:
    reach = 14 * pair.sigma + 1
    return np.clip(pair.loss(np.array([-reach, reach])), -LARGEST_LOSS, LARGEST_LOSS)


def split_outcomes(pair: Pair, mesh: float) -> Step:
    """Split each outcome between the two multiples of the mesh around its loss, keeping its mass under P and Q."""
    lowest, highest = _range(pair) / mesh
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


def merge_outcomes(pair: Pair, mesh: float) -> Step:
    """Merge outcomes, cell by cell, with as much of a neighbour as brings each merged loss onto the grid.

    Merging outcomes is post-processing of both P and Q, so every δ(ε) can only fall.
    """
    # The outermost multiples inside the range: mass piles up at the ends of a bounded loss and must be merged inwards.
    lowest, highest = _range(pair) / mesh
    low = math.ceil(lowest)
    high = max(math.floor(highest), low)
    index = np.arange(low, high + 1)
    edges = np.concatenate(([-np.inf], pair.inverse_loss((index[:-1] + 0.5) * mesh), [np.inf]))
    p, q = pair.masses(edges, "P"), pair.masses(edges, "Q")
    ratio = np.exp(index * mesh)
    p, q = _borrow(p, q, ratio)
    p, q = (-part[::-1] for part in _borrow(-p[::-1], -q[::-1], ratio[::-1]))

    # What found no neighbour to merge with is rounded down.
    with np.errstate(divide="ignore", invalid="ignore"):
        cell = np.where(p >= ratio * q * (1 - LOSS_ROUNDING), index, np.floor(np.log(p / q) / mesh))
    kept = (p > 0) & (cell >= low)
    mass = np.bincount(cell[kept].astype(int) - low, weights=p[kept], minlength=len(index))
    return Step(mesh, low, mass.astype(np.float64), 0.0)


def _borrow(p: Array, q: Array, ratio: Array) -> tuple[Array, Array]:
    """Bring each cell with p < ratio * q up to equality with as much of the cells after it as that takes."""
    raised_p, raised_q = np.zeros_like(p), np.zeros_like(q)
    rows = zip(p.tolist(), q.tolist(), ratio.tolist(), strict=True)
    have_p, have_q, target = next(rows)
    at = 0
    for i, (next_p, next_q, next_ratio) in enumerate(rows, start=1):
        missing, offered = target * have_q - have_p, next_p - target * next_q
        if 0 < missing >= offered:
            have_p, have_q = have_p + next_p, have_q + next_q
            continue
        part = missing / offered if missing > 0 else 0.0
        raised_p[at], raised_q[at] = have_p + part * next_p, have_q + part * next_q
        have_p, have_q, target, at = (1 - part) * next_p, (1 - part) * next_q, next_ratio, i
    raised_p[at], raised_q[at] = have_p, have_q
    return raised_p, raised_q
