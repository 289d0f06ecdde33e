import numpy as np
import pytest
import torch

from dpsub.trainers.coins import coins, threshold


@pytest.mark.parametrize("q", [1e-3, 0.0625, 0.3, 0.999])
def test_coins_fall_as_often_as_they_should(q):
    rows, runs = 2**12 + 1, 2**12 - 1  # an odd number of coins: half of the last word is not used
    heads = int(coins(q, rows, runs, torch.Generator().manual_seed(0)).sum())
    assert abs(heads - rows * runs * q) < 4.5 * np.sqrt(rows * runs * q * (1 - q))


def test_coins_know_their_probability_to_32_bits():
    for q in (1e-9, 2.5 * 2**-24, 0.1, 0.25, 1 - 1e-9):
        assert abs((threshold(q) + 2**31) / 2**32 - q) <= 2**-33 * (1 + 1e-9)
    generator = torch.Generator().manual_seed(0)
    assert not coins(1e-12, 100, 100, generator).any()
    assert coins(1 - 1e-12, 100, 100, generator).all()
    assert coins(0.5, 3, 3, generator).shape == (3, 3)
