"""Mass that cells of a grid of losses take from their neighbours, so that each cell's loss lies on the grid."""

from __future__ import annotations

import numpy as np

from dpsub.accounting.dominating_pairs import Array

BLOCK = 4096  # cells that are treated together
SWEEPS = 30  # most blocks settle in less than ten


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
