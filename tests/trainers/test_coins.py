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


@pytest.mark.parametrize("q", [1e-12, 1e-10, 1.2e-10, 1e-6])
def test_rare_coins_know_their_probability_to_64_bits(q):
    assert (threshold(q, bits=64) + 2**63) / 2**64 == pytest.approx(q, rel=1e-7)


@pytest.mark.parametrize("q", [0.999 * 2.0**-16, 1.001 * 2.0**-16])
def test_rare_coins_fall_as_often_as_they_should(q):
    tosses = 2**22
    fallen = int(coins(q, 2**15, 2**7, torch.Generator().manual_seed(0)).sum())
    assert abs(fallen - q * tosses) < 4.5 * np.sqrt(q * tosses)


def test_coins_too_rare_for_32_bits_are_not_tossed_with_them():
    """With 32 bits a probability of 1.2e-10 would be 2.3e-10, and one of 1e-10 would be 0."""
    numbers = torch.full((4, 4), -(2**63) + 2**31, dtype=torch.int64)  # less than 1.2e-10 of all
    generator = torch.Generator()
    drawn = torch.Tensor.random_
    try:
        torch.Tensor.random_ = lambda tensor, *_, **__: tensor.copy_(numbers)
        assert coins(1.2e-10, 4, 4, generator).all()
        assert not coins(1.1e-10, 4, 4, generator).any()
    finally:
        torch.Tensor.random_ = drawn
