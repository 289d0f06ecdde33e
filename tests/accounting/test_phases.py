import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsub import accounting
from dpsub.accounting import Epochs, epsilon, epsilon_interval, gdp_epsilon, group_privacy_epsilon


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_a_history_of_one_mechanism_is_its_steps(adjacency):
    question = {"delta": 1e-5, "adjacency": adjacency}
    one = epsilon(noise_multiplier=1.0, sample_rate=0.01, steps=300, **question)
    assert epsilon(history=[(1.0, 0.01, 100), (1, 0.01, 200)], **question) == one
    assert epsilon(history=[[1.0, 0.01, 300.0]], **question) == one
    assert epsilon(history=[(1.0, 0.01, 299)], **question) < one


def test_group_privacy_takes_a_history_too():
    by_steps = group_privacy_epsilon(noise_multiplier=1.0, sample_rate=0.01, steps=300, delta=1e-5)
    assert group_privacy_epsilon(history=[(1.0, 0.01, 300)], delta=1e-5) == by_steps


def test_full_batch_phases_are_one_gaussian_mechanism():
    mu = 2 * math.sqrt(250 / 40**2 + 250 / 60**2)
    found = epsilon_interval(history=[(40, 1, 250), (60, 1, 250)], delta=1e-5, adjacency="substitute")
    assert found.upper == pytest.approx(gdp_epsilon(mu, 1e-5))
    # With a phase that hardly matters the grid has to come to the same.
    nearly = epsilon_interval(history=[(40, 1, 250), (60, 1, 250), (50, 1e-4, 1)], delta=1e-5, adjacency="substitute")
    assert nearly.lower - 1e-4 <= found.upper <= nearly.upper + 1e-4


def test_order_and_splitting_of_phases_do_not_matter(history):
    asked = {"delta": 1e-6, "adjacency": "add_remove"}
    one = epsilon_interval(history=history, **asked)
    other = epsilon_interval(history=[*reversed(history[1:]), (1.0, 0.01, 100), (1.0, 0.01, 200)], **asked)
    assert max(one.lower, other.lower) <= min(one.upper, other.upper)


MECHANISM = {"noise_multiplier": 1.0, "sample_rate": 0.5, "steps": 10}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({**MECHANISM, "history": [(1.0, 0.01, 300)]}, "history must be given alone"),
        ({"history": []}, r"history must be a sequence of .*, got \[\]: no step has been taken yet"),
        ({"history": [(1, 0.1, 2), (0, 0.1, 2)]}, r"history\[1\]: noise_multiplier must be > 0, got 0"),
        ({**MECHANISM, "steps": 2.5}, "steps must be whole numbers .*, got 2.5"),
        ({**MECHANISM, "steps": None}, "noise_multiplier, sample_rate and steps must all be given, or else a history"),
    ],
)
def test_what_is_no_training_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        epsilon(delta=1e-5, adjacency="substitute", **change)


SETTING = {"noise_multiplier": 1.3, "sample_rate": 0.05, "steps": 60}
EPOCHS = {**SETTING, "sampling": "epochs"}
MU = {"substitute": 2 * math.sqrt(3) / 1.3, "zero_out": math.sqrt(3) / 1.3}


@pytest.mark.parametrize("adjacency", MU)
def test_epochs_are_full_batches(adjacency):
    mu, asked = MU[adjacency], {**EPOCHS, "adjacency": adjacency}
    assert accounting.epsilon(**asked, delta=1e-5) == pytest.approx(accounting.gdp_epsilon(mu, 1e-5), rel=1e-12)
    assert accounting.delta(**asked, epsilon=4.0) == pytest.approx(accounting.gdp_delta(mu, 4.0), rel=1e-12)
    fnr = accounting.tradeoff([0.01, 0.3], **asked)
    full_batch = accounting.tradeoff([0.01, 0.3], noise_multiplier=1.3, sample_rate=1, steps=3, adjacency=adjacency)
    assert np.allclose(fnr, full_batch, rtol=1e-12)


def test_noise_for_epochs_meets_its_target_and_no_less_does():
    asked = {"sample_rate": 0.05, "steps": 60, "delta": 1e-5, "adjacency": "substitute", "sampling": "epochs"}
    sigma = accounting.noise_multiplier(target_epsilon=4.0, **asked)
    assert accounting.epsilon(noise_multiplier=sigma, **asked) == pytest.approx(4.0, rel=1e-9)
    assert sigma == pytest.approx(2 * math.sqrt(3) / accounting.gdp_mu(4.0, 1e-5), rel=1e-9)


def test_group_privacy_of_epochs_goes_through_zero_out():
    found = accounting.group_privacy_epsilon(**EPOCHS, delta=1e-5)
    half = found / 2
    assert (1 + math.exp(half)) * accounting.gdp_delta(MU["zero_out"], half) == pytest.approx(1e-5, rel=1e-3)
    assert found > accounting.epsilon(**EPOCHS, delta=1e-5, adjacency="substitute")


def test_an_epoch_that_is_not_complete_counts_as_a_whole_one():
    asked = {**EPOCHS, "steps": [1, 20, 21, 40, 60], "delta": 1e-5, "adjacency": "substitute"}
    expected = [accounting.gdp_epsilon(2 * math.sqrt(epochs) / 1.3, 1e-5) for epochs in (1, 1, 2, 2, 3)]
    assert np.allclose(accounting.epsilon(**asked), expected, rtol=1e-12)


@pytest.mark.slow
def test_prv_accountant_agrees_on_epochs():
    asked = {**EPOCHS, "delta": 1e-5, "adjacency": "substitute"}
    low, _, high = accounting.epsilon_interval(**asked, engine="prv")
    assert low <= accounting.epsilon(**asked) <= high


phases = st.lists(
    st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([1, 2, 5, 10]), st.integers(1, 25)),
    min_size=1,
    max_size=6,
)


@given(phases)
def test_an_epoch_counts_with_its_least_noise(phases):
    found: dict[float, int] = {}
    for sigma, _, count in Epochs().phases([(sigma, 1 / steps, count) for sigma, steps, count in phases]):
        found[sigma] = found.get(sigma, 0) + count
    least: dict[int, float] = {}  # step by step: an epoch, and the least noise of the steps that touch it
    done = Fraction(0)
    for sigma, steps, count in phases:
        for _ in range(count):
            end = done + Fraction(1, steps)
            for epoch in range(math.floor(done), math.ceil(end)):
                least[epoch] = min(sigma, least.get(epoch, sigma))
            done = end
    assert found == {sigma: list(least.values()).count(sigma) for sigma in least.values()}


def test_epochs_refuse_add_remove_with_the_reason():
    with pytest.raises(ValueError, match="a removed record would shift the others between batches"):
        epsilon(**EPOCHS, delta=1e-5, adjacency="add_remove")
    with pytest.raises(ValueError, match="sampling must be one of 'poisson', .*: did you mean 'epochs'"):
        epsilon(**SETTING, delta=1e-5, adjacency="substitute", sampling="shuffle")


def test_epochs_need_whole_numbers_of_steps():
    with pytest.raises(ValueError, match=r"sample_rate must be 1 / \(steps an epoch\) .* got 0.3"):
        accounting.epsilon(**{**EPOCHS, "sample_rate": 0.3}, delta=1e-5, adjacency="substitute")
