"""Mistakes of those who state an ε or a bound, simulated."""

import numpy as np

from dpsub import audit_worst_case, estimators, figures

MU = 0.5  # the distance between the scores of the two worlds
KNOWN = {"noise_multiplier": 10, "sample_rate": 1, "steps": 100}


def _audit(models, steps, seed):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, models)
    return rng.standard_normal((models, steps)) + MU * (bits == 0)[:, None], bits, rng


def scores_as_runs(times, *, audits, models, delta, seed):
    """The bounds of audits that take several scores of each model, alike but for a little noise, for runs."""
    found = []
    for audit in range(audits):
        scores, bits, rng = _audit(models, 1, [seed, audit])
        repeated = np.repeat(scores[:, 0], times) + 0.01 * rng.standard_normal(times * models)
        found.append(estimators.epsilon_lower_bound(repeated, np.repeat(bits, times), delta=delta).epsilon)
    return np.array(found)


def largest_of_steps(simultaneous, *, audits, steps, delta, seed):
    """The largest bound over the steps of each audit of 500 models."""
    return np.array([
        max(bound.epsilon for bound in estimators.epsilon_lower_bound(
            *_audit(500, steps, [seed, audit])[:2], delta=delta, simultaneous=simultaneous))
        for audit in range(audits)
    ])  # fmt: skip


def bits_both_ways(*, audits, delta, seed):
    """(audits, 2): the bounds of audits of `KNOWN`, with their bits as they are and exchanged."""
    found = [audit_worst_case(**KNOWN, runs=2000, adjacency="substitute", seed=seed + audit) for audit in range(audits)]
    return np.array([
        [estimators.epsilon_lower_bound(one.score[:, -1], bit, delta=delta).epsilon for bit in (one.bit, 1 - one.bit)]
        for one in found
    ])  # fmt: skip


def distance_by_divisor(n, numbers, seed):
    """Standard deviations between the mean squares of a training's noise, divided by n or by n − 1."""
    squares = np.random.default_rng(seed).chisquare(numbers, (2, 20_000)) / numbers
    scales = squares / np.array([[n**2], [(n - 1) ** 2]])
    return float((scales[1].mean() - scales[0].mean()) / scales[0].std())


def stated_and_right(ax, rows):
    """A row for each mistake: the number that is stated (hollow) and the right one (filled)."""
    for row, both in enumerate(rows.values()):
        ax.plot(both, (row, row), color="0.6", lw=1)
    for values, fill, name in zip(zip(*rows.values(), strict=True), ("white", None), ("stated", "right"), strict=True):
        look = {"color": figures.COLORS[0], "mfc": fill or figures.COLORS[0], "label": name}
        ax.plot(values, range(len(rows)), "o", ms=6, ls="none", **look)
    ax.set_yticks(range(len(rows)), rows)
    ax.invert_yaxis()
    ax.set_xlim(left=-0.8)
    ax.set_xlabel("ε")
