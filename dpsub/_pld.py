r"""Privacy loss distributions on a grid of losses, composed by dp-accounting, bounded from both sides.

The upper end is dp-accounting's "connect the dots" discretisation (Doroshenko et al., 2022). Its own optimistic one
rounds every loss down, which costs steps * mesh / 2. The lower end here merges neighbouring outcomes instead, which no
adversary can undo: its error, like that of the upper end, falls with the square of the mesh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting import privacy_accountant
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as plds

from dpsub._pairs import Array, Pair, pairs

ROUNDING = 1e-11  # more than floating-point FFTs of the sizes allowed here shift any δ(ε), truncated tails included
MOST_POINTS = 2**22


@dataclass(frozen=True)
class GridCurve:
    """δ(ε) of one composition, between an optimistic and a pessimistic distribution of the privacy loss."""

    optimistic: plds.PrivacyLossDistribution
    pessimistic: plds.PrivacyLossDistribution
    mesh: float

    def epsilon(self, delta: float) -> tuple[float, float]:
        lower = float(self.optimistic.get_epsilon_for_delta(min(delta + ROUNDING, 1.0)))
        if lower > 700:  # exp(-loss) is 0 there, and dp-accounting answers with the next multiple of the mesh
            lower -= self.mesh
        upper = float(self.pessimistic.get_epsilon_for_delta(delta - ROUNDING)) if delta > ROUNDING else math.inf
        return lower, max(lower, upper)

    def delta(self, epsilon: float) -> tuple[float, float]:
        lower = float(self.optimistic.get_delta_for_epsilon(epsilon)) - ROUNDING
        upper = float(self.pessimistic.get_delta_for_epsilon(epsilon)) + ROUNDING
        return max(lower, 0.0), min(max(lower, upper), 1.0)


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
    reach = 9 * sigma + 1
    widest = max(np.ptp(pair.loss(np.array([-reach, reach]))) for pair in pairs(adjacency, sigma, q))
    return float(widest / mesh + 600 * math.sqrt(steps) * coarsest_mesh(adjacency, sigma, q) / mesh)


def curves(adjacency: str, sigma: float, q: float, steps: Sequence[int], mesh: float) -> list[GridCurve]:
    """One curve for each number of steps, all from the same discretisation of a single step."""
    relation = privacy_accountant.NeighboringRelation
    pessimistic = plds.from_gaussian_mechanism(
        sigma,
        sampling_prob=q,
        value_discretization_interval=mesh,
        neighboring_relation=relation.REPLACE_ONE if adjacency == "substitute" else relation.ADD_OR_REMOVE_ONE,
    )
    optimistic = plds.PrivacyLossDistribution(*(_merge_outcomes(pair, mesh) for pair in pairs(adjacency, sigma, q)))
    return [GridCurve(optimistic.self_compose(t), pessimistic.self_compose(t), mesh) for t in steps]


def _merge_outcomes(pair: Pair, mesh: float) -> pld_pmf.DensePLDPmf:
    """Merge outcomes, cell by cell, with as much of a neighbour as brings each merged loss onto the grid.

    Merging outcomes is post-processing of both P and Q, so every δ(ε) can only fall: the result is optimistic.
    """
    reach = 9 * pair.sigma + 1
    # The outermost multiples inside the range: mass piles up at the ends of a bounded loss and must be merged inwards.
    lowest, highest = pair.loss(np.array([-reach, reach])) / mesh
    low, high = math.ceil(lowest), max(math.floor(highest), math.ceil(lowest))
    index = np.arange(low, high + 1)
    edges = np.concatenate(([-np.inf], pair.inverse_loss((index[:-1] + 0.5) * mesh), [np.inf]))
    p, q = pair.masses(edges, "P"), pair.masses(edges, "Q")
    if high * mesh > 700:  # beyond exp: what can always be said is that nothing leaks
        return pld_pmf.DensePLDPmf(mesh, 0, np.ones(1), 0.0, pessimistic_estimate=False)
    ratio = np.exp(index * mesh)
    p, q = _borrow(p, q, ratio)
    p, q = (part[::-1] for part in _borrow(-p[::-1], -q[::-1], ratio[::-1]))
    p, q = -p, -q

    with np.errstate(divide="ignore", invalid="ignore"):
        cell = np.floor(np.log(p / q) / mesh + 1e-7)
    kept = np.isfinite(cell) & (cell >= low) & (p > 0)
    probabilities = np.bincount(np.minimum(cell[kept], high).astype(int) - low, weights=p[kept], minlength=len(index))
    return pld_pmf.DensePLDPmf(mesh, int(low), probabilities, 0.0, pessimistic_estimate=False)


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
