"""The test of the noise that is left when records and canary are taken out."""

import itertools
import re

import numpy as np
import pytest
from cases import slow_but
from scipy.stats import binom

from dpsub._core import noise_test
from dpsub._core.noise_test import SCALES, NoiseTest, Summary

SIZES = (40, 20, 300)


def watched(steps, noise, *, sizes=SIZES, alpha=0.05, seed=0, records=0.0):
    """A test that has seen so many steps. `noise(rng, sizes)` makes a residue, records add to it."""
    rng = np.random.default_rng(seed)
    test = NoiseTest(alpha, sizes, seed)
    for _ in range(steps):
        known = 0.3 * rng.normal(size=sum(sizes))
        residue = noise(rng, sizes) + records * known
        test.observe(Summary.of(residue, known, sizes, test.places))
        if test.fault is not None:
            break
    return test


def scaled(scale):
    return lambda rng, sizes: scale * rng.normal(size=sum(sizes))


ENOUGH = [*((scale, sizes, 1_000) for scale in (1.0, 1.05, 3.0) for sizes in ((1,), (18,), SIZES)), (1.0, SIZES, 5)]


@pytest.mark.parametrize(
    ("scale", "sizes", "remembered"), slow_but(ENOUGH, (1.0, SIZES, 5), (1.05, (18,), 1_000), (3.0, (1,), 1_000))
)
def test_enough_noise_is_called_wrong_in_at_most_alpha_of_trainings(scale, sizes, remembered, monkeypatch):
    audits = 60
    monkeypatch.setattr(noise_test, "REMEMBERED", remembered)
    found = [watched(40, scaled(scale), sizes=sizes, alpha=0.1, seed=seed) for seed in range(audits)]
    most = binom.ppf(0.999, audits, 0.1)
    assert sum(one.fault is not None for one in found) <= most
    assert sum(one.clipping is not None for one in found) <= most


@pytest.mark.parametrize("audits", slow_but([1_000, 4_000], 1_000))
def test_bets_have_the_mean_of_what_was_staked(audits):
    """The wealth is a mean of likelihood ratios, so its mean stays that of its stakes."""
    wealth = []
    for seed in range(audits):
        test = watched(2, scaled(1.0), sizes=(3, 2), seed=seed)
        scales = np.exp(test._scales[:, SCALES > 0.6]).mean(axis=1)  # others are too seldom large to be averaged
        wealth.append([*scales, np.exp(test._again), np.exp(test._shared), np.exp(test._shifts).mean()])
    mean, error = np.mean(wealth, axis=0), np.std(wealth, axis=0) / len(wealth) ** 0.5
    stakes = np.array([2 / 3, 2 / 3, 2 / 3, 1 / 6, 2 / 3, 0])  # 1/2 of the first step, 1/6 of the second
    assert (abs(mean - stakes) < 4 * error + 0.01).all()


def nothing_in_the_second(rng, sizes):
    return np.concatenate([rng.normal(size=size) * (place != 1) for place, size in enumerate(sizes)])


def the_same_in_all(rng, sizes):
    one = rng.normal(size=max(sizes))
    return np.concatenate([one[:size] for size in sizes])


def of_twenty_seeds(rng, sizes):
    return scaled(1.0)(np.random.default_rng(rng.integers(20)), sizes)


@pytest.mark.parametrize(
    ("noise", "within", "told"),
    [
        (scaled(0.5), 2, "of the standard deviation that is claimed, in all parameters"),
        (scaled(0.9), 20, "of the standard deviation that is claimed, in all parameters"),
        (nothing_in_the_second, 2, "it has about 0 % of the standard deviation that is claimed, in parameter 1"),
        (the_same_in_all, 3, "has the noise of parameter 0"),
        (of_twenty_seeds, 21, "repeats that of step"),
    ],
)
def test_faults_are_named_within_a_few_steps(noise, within, told):
    for seed in range(3):
        test = watched(100, noise, seed=seed)
        assert test.found_at <= within
        assert told in test.fault


@pytest.mark.parametrize("scale", [0.5, 0.9])
def test_how_much_noise_there_is_is_told_from_all_steps(scale):
    """Not from those alone after which the bets were won."""
    for seed in range(10):
        rng, test, steps = np.random.default_rng(seed), NoiseTest(0.05, SIZES, seed), 100
        for _ in range(steps):
            residue, records = scaled(scale)(rng, SIZES), scaled(0.3)(rng, SIZES)
            test.observe(Summary.of(residue, records, SIZES, test.places))
        percent = int(re.search(r"it has about (\d+) % of the standard deviation", test.fault).group(1))
        assert percent / 100 == pytest.approx(scale, abs=0.005 + 4 * scale / (2 * steps * sum(SIZES)) ** 0.5)


@pytest.mark.parametrize("noise", [scaled(0.7), nothing_in_the_second, the_same_in_all])
def test_a_fault_that_begins_late_is_found(noise):
    steps = itertools.count()
    found = watched(330, lambda *of: (scaled(1.0) if next(steps) < 300 else noise)(*of)).found_at
    assert 300 < found < 320


def test_a_repeated_step_is_named():
    test, rng = NoiseTest(0.05, SIZES, 0), np.random.default_rng(0)
    for seed in (5, 6, 7, 8, 6):
        residue = scaled(1.0)(np.random.default_rng(seed), SIZES)
        test.observe(Summary.of(residue, scaled(1.0)(rng, SIZES), SIZES, test.places))
    assert (test.fault, test.found_at) == ("the noise of step 5 repeats that of step 2", 5)


@pytest.mark.parametrize("remembered", [10, 1_000])
def test_noise_of_any_earlier_step_is_found_at_once(remembered, monkeypatch):
    monkeypatch.setattr(noise_test, "REMEMBERED", remembered)
    for seed in range(5):
        test, rng = NoiseTest(0.05, SIZES, seed), np.random.default_rng(seed)
        drawn = [scaled(1.0)(rng, SIZES) for _ in range(150)]
        for residue in (*drawn, drawn[seed]):
            test.observe(Summary.of(residue, scaled(1.0)(rng, SIZES), SIZES, test.places))
        assert test.fault == f"the noise of step 151 repeats that of step {seed + 1}"


@pytest.mark.parametrize("share", [0.5, -0.6])
def test_what_is_left_of_the_records_is_told_and_no_fault(share):
    for seed in range(3):
        test = watched(60, scaled(1.0), records=share, seed=seed)
        percent, more = re.search(r"hold about (\d+) % (more|less) of the records", test.clipping).groups()
        assert (more == "more") == (share > 0)
        assert int(percent) / 100 == pytest.approx(abs(share), abs=0.25)
        assert test.fault is None


def to(norm, rows):
    """The rows, scaled to norms that are a function of theirs."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * norm(norms) / norms


def each_parameter(rows):
    parts = np.split(rows, np.cumsum(SIZES)[:-1], axis=1)
    return np.concatenate([to(lambda norms: np.minimum(norms, 3**-0.5), part) for part in parts], axis=1)


# Seven ways to clip to norm 1 that are private and not the usual one, which comes first.
CLIPPINGS = {
    "usual": lambda rows: to(lambda norms: np.minimum(norms, 1), rows),
    "normalised": lambda rows: to(lambda norms: 1, rows),
    "automatic": lambda rows: to(lambda norms: norms / (norms + 0.01), rows),
    "to a half": lambda rows: to(lambda norms: np.minimum(norms, 0.5), rows),
    "smooth": lambda rows: to(lambda norms: norms / (1 + norms**2) ** 0.5, rows),
    "of each parameter": each_parameter,
    "of each coordinate": lambda rows: rows.clip(-(sum(SIZES) ** -0.5), sum(SIZES) ** -0.5),
    "of means of two": lambda rows: CLIPPINGS["usual"](rows.reshape(-1, 2, rows.shape[1]).mean(axis=1)),
}


def clipped_by(clipping, noise, seed, alpha=0.05):
    """A test of 40 steps on batches of 64 records, whose gradients have a direction in common. `noise(rng, step)`."""
    rng, test = np.random.default_rng(seed), NoiseTest(alpha, SIZES, seed)
    common = rng.normal(size=sum(SIZES))
    for step in range(40):
        rows = common + 2 * rng.normal(size=(64, sum(SIZES)))
        rows *= 10 ** rng.uniform(-1, 1, (64, 1)) / np.linalg.norm(rows, axis=1, keepdims=True)
        records = CLIPPINGS["usual"](rows).sum(axis=0)
        residue = (clipping(rows).sum(axis=0) - records) / 0.5 + noise(rng, step)
        test.observe(Summary.of(residue, records / 0.5, SIZES, test.places))
    return test


@pytest.mark.parametrize("seeds", slow_but([3, 8], 3))
def test_no_other_clipping_is_a_fault(seeds):
    audits = [
        clipped_by(clipping, lambda rng, step: rng.normal(size=sum(SIZES)), seed)
        for clipping in CLIPPINGS.values()
        for seed in range(seeds)
    ]
    assert sum(test.fault is not None for test in audits) <= binom.ppf(0.999, len(audits), 0.05)
    assert sum(test.clipping is not None for test in audits[seeds:]) > len(audits) / 2


REPEATED = [*itertools.product(CLIPPINGS, (1, 10))]


@pytest.mark.parametrize(("clipping", "period"), slow_but(REPEATED, REPEATED[0], *REPEATED[1::2]))
def test_noise_that_repeats_is_found_with_other_clipping_and_then_says_nothing_of_it(clipping, period):
    for seed in range(3):
        drawn = scaled(1.0)(np.random.default_rng(100 + seed), [10 * sum(SIZES)]).reshape(10, -1)
        test = clipped_by(CLIPPINGS[clipping], lambda rng, step: drawn[step % period], seed)
        assert test.found_at <= 15
        assert test.fault == f"the noise of step {test.found_at} repeats that of step {test.found_at - period}"
        assert test.clipping is None
