import numpy as np
import pytest

from dpsub.accounting import borrowed_mass


def one_by_one(p, q, ratio):
    """The rule as a loop over cells."""
    raised = np.zeros((2, len(p)))
    have, at = np.array([p[0], q[0]]), 0
    for i in range(1, len(p)):
        following = np.array([p[i], q[i]])
        missing, offered = ratio[at] * have[1] - have[0], p[i] - ratio[at] * q[i]
        if 0 < missing >= offered:
            have = have + following
            continue
        part = missing / offered if missing > 0 else 0.0
        raised[:, at] = have + part * following
        have, at = (1 - part) * following, i
    raised[:, at] = have
    return raised


@pytest.mark.parametrize("block", [1, 3, 50, 4096])
@pytest.mark.parametrize("mesh", [0.5, 0.02])
@pytest.mark.parametrize("noise", [0.0, 0.1, 2.0])
def test_blocks_of_cells_give_what_a_loop_gives_bit_for_bit(block, mesh, noise, monkeypatch):
    monkeypatch.setattr(borrowed_mass, "BLOCK", block)
    rng = np.random.default_rng(0)
    index = np.arange(-60, 61)
    q = np.exp(-(index**2) / 500) * rng.random(len(index))
    p = q * np.exp(mesh * (index + noise * rng.normal(size=len(index))))
    q[40:60] *= 3  # cells that need all of the next ones
    ratio = np.exp(index * mesh)
    np.testing.assert_array_equal(borrowed_mass.borrow(p, q, ratio), one_by_one(p, q, ratio))
