"""Steps run again with the same noise and another record."""

from functools import partial

import numpy as np
import pytest

from studies.faults import libraries
from studies.faults.replay import ALLOWED, replay, told
from studies.own_training import private_steps

CLAIMED = {"max_grad_norm": 1.5, "noise_multiplier": 1.0, "seed": 0}
NOT_FINITE = ["one nan", "all nan", "one infinite", "all infinite"]
ALONE = ["record alone", "short record alone"]


def replayed(step, adjacency="substitute", **asked):
    return replay(partial(step, **CLAIMED), max_grad_norm=CLAIMED["max_grad_norm"], adjacency=adjacency, **asked)


def failed(table):
    found = table.verdict[table.verdict != "passes"]
    return found.to_dict()


def with_noise(sum_of):
    """A step that adds the noise it should."""

    def make(max_grad_norm, noise_multiplier, seed):
        rng = np.random.default_rng(seed)
        std = noise_multiplier * max_grad_norm
        return lambda gradients: sum_of(gradients, max_grad_norm) + std * rng.normal(size=gradients.shape[1])

    return make


@pytest.mark.parametrize("adjacency", ALLOWED)
@pytest.mark.parametrize(("batch_size", "parameters", "seed"), [(2, 1, 0), (8, 20, 1), (33, 300, 2)])
def test_the_right_step_passes_and_records_change_its_sum_as_they_should(adjacency, batch_size, parameters, seed):
    table = replayed(private_steps.right, adjacency, batch_size=batch_size, parameters=parameters, seed=seed)
    assert failed(table) == {}
    other = ALLOWED[adjacency] - 1  # the other record's norm after clipping, opposite to the record's
    changes = {
        "long record": 1,
        "short record": 0.1,
        "zero record": 0,
        "many records": 1,
        **dict.fromkeys(NOT_FINITE, 0),
    }
    for name, norm in changes.items():
        assert table.difference[name] == pytest.approx(norm + other, abs=1e-5)


def refuses(gradients, max_grad_norm):
    """Raises an error if a gradient is not finite."""
    if not np.isfinite(gradients).all():
        raise ValueError("a gradient is not finite")
    return private_steps.clip(gradients, max_grad_norm).sum(axis=0)


def mean_of_eight(gradients, max_grad_norm):
    """The mean of the batch, times the number of records that it is expected to have."""
    return 8 * private_steps.clip(gradients, max_grad_norm).sum(axis=0) / max(len(gradients), 1)


def last_longest(max_grad_norm, noise_multiplier, seed):
    """Clips to the longest norm of the batch before, if that is more than C."""
    threshold = max_grad_norm

    def clipped(gradients, max_grad_norm):
        nonlocal threshold
        total = private_steps.clip(gradients, threshold).sum(axis=0)
        threshold = np.linalg.norm(gradients, axis=1).max(initial=max_grad_norm)
        return total

    return with_noise(clipped)(max_grad_norm, noise_multiplier, seed)


@pytest.mark.parametrize(
    ("step", "asked", "cases"),
    [
        (private_steps.unchecked, {}, dict.fromkeys(NOT_FINITE, "not finite")),
        (private_steps.unchecked, {"adjacency": "add_remove"}, dict.fromkeys(NOT_FINITE, "not finite")),
        (private_steps.last_median, {}, {"later steps": "too far"}),
        (private_steps.last_median, {"adjacency": "add_remove"}, {"later steps": "too far"}),
        (private_steps.noise_of_the_mean, {}, {"empty batch": "not finite"}),
        (
            private_steps.weighted,
            {"divided_by": 8},
            dict.fromkeys(["other records zero", *ALONE], "too far") | {"empty batch": "not finite"},
        ),
        (last_longest, {}, {"after other batches": "too far", "later steps": "not finite"}),
        (with_noise(refuses), {}, dict.fromkeys(NOT_FINITE, "raises ValueError")),
        (with_noise(mean_of_eight), {}, dict.fromkeys(ALONE, "too far")),
        (private_steps.one_seed, {}, {}),  # whose fault is in its noise
    ],
)
def test_a_mistake_is_found_by_the_cases_that_meet_it(step, asked, cases):
    assert failed(replayed(step, **asked)) == cases


@pytest.mark.filterwarnings("ignore:Secure RNG")
@pytest.mark.parametrize("adjacency", ALLOWED)
def test_opacus_lets_through_what_is_not_finite_and_nothing_else(adjacency):
    """Unless such records are set to zero before."""

    def careful():
        step = libraries.opacus()
        return lambda rows: step(np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0))

    asked = {"max_grad_norm": libraries.MAX_GRAD_NORM, "adjacency": adjacency, "divided_by": libraries.BATCH_SIZE}
    assert failed(replay(libraries.opacus, **asked)) == dict.fromkeys(NOT_FINITE, "not finite")
    assert failed(replay(careful, **asked)) == {}


@pytest.mark.filterwarnings("ignore:Secure RNG")
@pytest.mark.parametrize(("value", "spoilt"), [(np.nan, 20), (np.inf, 1)])
def test_one_coordinate_that_is_not_finite_spoils_opacus_sum_in_all_or_in_that_one(value, spoilt):
    gradients = np.random.default_rng(0).normal(size=(8, 20)).astype(np.float32)
    gradients[3, 5] = value
    total = libraries.opacus()(gradients).numpy()
    assert np.isnan(total).sum() == spoilt
    assert np.isnan(total[5])


def test_what_fails_is_told_with_the_largest_difference():
    table = replayed(private_steps.weighted, divided_by=8)
    # alone, a record is the mean; among seven others that have one example each, 100 of 107 examples are its own
    assert table.difference["record alone"] == pytest.approx(16, abs=1e-4)
    assert table.difference["other records zero"] == pytest.approx(16 * 100 / 107, abs=1e-4)
    far = "too far, 16.0 C: other records zero, record alone, short record alone"
    assert told(table) == f"{far}; not finite: empty batch"
    assert told(replayed(private_steps.right)) == "passes"


def test_a_step_whose_noise_does_not_come_again_is_refused():
    def unseeded(**claimed):
        return lambda gradients: private_steps.clip(gradients, 1.5).sum(axis=0) + np.random.normal(size=20)  # noqa: NPY002

    def seeded(**claimed):
        np.random.seed(0)  # noqa: NPY002
        return unseeded()

    with pytest.raises(ValueError, match="make must return a step with the same noise at each call"):
        replayed(unseeded)
    step = private_steps.right(**CLAIMED)
    with pytest.raises(ValueError, match="make must return a step with the same noise at each call"):
        replayed(lambda **claimed: step)
    assert failed(replayed(seeded)) == {}
    with pytest.raises(ValueError, match="step's sum of an ordinary batch must"):
        replayed(with_noise(lambda gradients, max_grad_norm: gradients))
