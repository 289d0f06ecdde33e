import math

import numpy as np
import pytest
import torch

from dpsub.accounting import epsilon, epsilon_interval, gdp_epsilon, group_privacy_epsilon


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
    assert found.bound == "closed form"
    # With a phase that hardly matters the grid has to come to the same.
    nearly = epsilon_interval(history=[(40, 1, 250), (60, 1, 250), (50, 1e-4, 1)], delta=1e-5, adjacency="substitute")
    assert nearly.bound == "grid"
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
        ({"history": []}, "history must be a sequence of .*, got none: no step has been taken yet"),
        ({"history": 3}, "history must be a sequence of .*, got 3"),
        ({"history": [(1, 0.1)]}, r"history must be a sequence of .*, got \(1, 0.1\) at place 0"),
        ({"history": [(1, 0.1, 0)]}, r"history\[0\]: steps must be >= 1, got 0"),
        ({"history": [(1, 0.1, 2), (0, 0.1, 2)]}, r"history\[1\]: noise_multiplier must be > 0, got 0"),
        ({"history": [np.array(1.0)]}, r"history must be .*, such as .* got array\(1.\) at place 0"),
        ({"history": [np.ones((1, 3))]}, "history must be a sequence of .* at place 0"),
        ({"history": [torch.ones(3)]}, r"history must be a sequence of .*, got tensor\(\[1., 1., 1.\]\) at place 0"),
        ({"history": [(1, 0.1, torch.tensor(2))]}, r"history\[0\]: steps must be .* tensor\(2\): give its .item\(\)"),
        ({"history": {(1, 0.1, 2)}}, "history must be .*, got a set, which holds equal phases once: give a list"),
    ],
)
def test_what_is_no_history_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        epsilon(delta=1e-5, adjacency="substitute", **change)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (torch.tensor(5), r"must be a whole number >= 1, got tensor\(5\): give its .item\(\)"),
        (np.array(5), r"must be a whole number >= 1, got array\(5\): give its .item\(\)"),
        (torch.tensor([5.0], requires_grad=True), "must be a whole number or a non-empty .*: give a list of whole"),
        (torch.tensor([5.0], dtype=torch.bfloat16), "must be a whole number or a non-empty .*: give a list of whole"),
        (torch.empty(2, device="meta"), "must be a whole number or a non-empty .*: give a list of whole"),
        ([[1], [1, 2]], "must be a whole number or a non-empty .*: give a list of whole"),
        ([[5]], r"must be a whole number or a non-empty .* got \[\[5\]\]"),
        (np.ma.array([1, 2], mask=[0, 1]), "must not be masked"),
        ({5}, r"must be a whole number >= 1, got \{5\}"),
    ],
)
def test_what_is_no_number_of_steps_is_named(steps, message):
    with pytest.raises(ValueError, match=f"^steps {message}"):
        epsilon(**{**MECHANISM, "sample_rate": 1.0, "steps": steps}, delta=1e-5, adjacency="substitute")


@pytest.mark.parametrize("steps", [torch.tensor([2, 3]), np.array([2.0, 3.0]), [torch.tensor(2), 3], (2, np.array(3))])
def test_sequences_of_steps_may_be_arrays_and_tensors(steps):
    asked = {**MECHANISM, "sample_rate": 1.0, "delta": 1e-5, "adjacency": "substitute"}
    assert (epsilon(**{**asked, "steps": steps}) == epsilon(**{**asked, "steps": [2, 3]})).all()


@pytest.mark.parametrize("rate", [5e-324, 1e-310])
def test_sample_rates_without_an_inverse_are_refused(rate):
    for question in (epsilon, epsilon_interval):
        with pytest.raises(ValueError, match="sample_rate must be >= 1e-300 and <= 1"):
            question(history=[(1.0, rate, 5)], delta=1e-5, adjacency="substitute")
    with pytest.raises(ValueError, match="sample_rate must be >= 1e-300 and <= 1"):
        group_privacy_epsilon(history=[(1.0, rate, 5)], delta=1e-5)
