import math
from dataclasses import replace

import numpy as np
import pytest

from dpsub import accounting
from dpsub.estimators import LowerBound, epsilon_lower_bound, step_to_training

DELTA = 1e-5
STEP = LowerBound(3.9, 0.9, None, None, None, "gdp", "gdp", True, note="rests on coins", observations=500, reached=400)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_at_full_batch_mu_grows_with_the_root_of_the_steps(adjacency):
    training = step_to_training(STEP, sample_rate=1, steps=25, delta=DELTA, adjacency=adjacency)
    assert training.epsilon == pytest.approx(accounting.gdp_epsilon(0.9 * 5, DELTA))
    assert training.noise_multiplier == pytest.approx({"substitute": 2, "add_remove": 1}[adjacency] / 0.9)
    assert (training.method, training.assumes, training.mu) == ("pld", "mechanism", None)
    assert (training.note, training.observations, training.reached) == ("rests on coins", 500, 400)


@pytest.mark.parametrize(("adjacency", "distance"), [("substitute", 2), ("add_remove", 1), ("zero_out", 1)])
def test_a_sampled_training_has_the_lower_end_of_its_noises_epsilon(adjacency, distance):
    training = step_to_training(STEP, sample_rate=0.1, steps=50, delta=DELTA, adjacency=adjacency)
    ends = accounting.epsilon_interval(
        noise_multiplier=distance / 0.9, sample_rate=0.1, steps=50, delta=DELTA, adjacency=adjacency
    )
    assert training.epsilon <= ends.upper
    assert training.epsilon == pytest.approx(ends.lower, rel=1e-3)


def test_noise_of_a_step_is_taken_as_it_is():
    of_noise = replace(STEP, mu=None, method="pld", noise_multiplier=2 / 0.9)
    arguments = {"sample_rate": 0.2, "steps": 10, "delta": DELTA, "adjacency": "substitute"}
    both = [step_to_training(bound, **arguments) for bound in (STEP, of_noise)]
    assert both[0].epsilon == pytest.approx(both[1].epsilon)


def test_bets_on_steps_bound_their_training():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 1_000)
    step = epsilon_lower_bound(rng.normal(size=1_000) + (bits == 0), bits, delta=DELTA, threshold="bets")
    training = step_to_training(step, sample_rate=0.05, steps=1_000, delta=DELTA, adjacency="substitute")
    truth = accounting.epsilon(noise_multiplier=2, sample_rate=0.05, steps=1_000, delta=DELTA, adjacency="substitute")
    assert training.valid
    assert 0.5 * truth < training.epsilon < truth


def test_a_bound_that_is_not_valid_makes_none_that_is():
    arguments = {"sample_rate": 1, "steps": 2, "delta": DELTA, "adjacency": "substitute"}
    assert not step_to_training(replace(STEP, valid=False), **arguments).valid


def test_no_bound_of_a_step_is_none_of_the_training():
    arguments = {"sample_rate": 0.1, "steps": 5, "delta": DELTA, "adjacency": "substitute"}
    none = step_to_training(replace(STEP, epsilon=0.0, mu=0.0, note="too weak"), **arguments)
    assert (none.epsilon, none.noise_multiplier) == (0, math.inf)
    assert none.note == "the step's bound refutes no noise: too weak"
    little = step_to_training(replace(STEP, mu=1e-3), **{**arguments, "delta": 0.1})
    assert little.epsilon == 0
    assert little.note == "5 steps with the noise that was not refuted have epsilon 0 at delta = 0.1"
    huge = step_to_training(replace(STEP, mu=40.0), **arguments)
    assert huge.noise_multiplier == pytest.approx(0.2)
    assert huge.note.startswith("of noise_multiplier 0.2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bound": [STEP]}, "bound must be one LowerBound, of one step, got list"),
        ({"bound": replace(STEP, mu=None, method="dp")}, "bound must be of method 'gdp' or 'pld'.* got 'dp'"),
        ({"bound": replace(STEP, method="product", assumes="product")}, "bound must be of method .* got 'product'"),
        ({"bound": replace(STEP, mu=math.nan)}, "bound.mu must be finite"),
        ({"sample_rate": 0}, "sample_rate must be >= 1e-300 and <= 1, got 0"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"delta": 1}, "delta must be > 0 and < 1, got 1"),
        ({"adjacency": "replace"}, "adjacency must be one of .* did you mean 'substitute'"),
    ],
)
def test_bad_input_is_named(options, message):
    arguments = {"bound": STEP, "sample_rate": 0.1, "steps": 5, "delta": DELTA, "adjacency": "substitute", **options}
    with pytest.raises(ValueError, match=message):
        step_to_training(**arguments)
