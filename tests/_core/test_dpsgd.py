import numpy as np
import pytest

from dpsub import DPSGD, accounting

GOOD = {"noise_multiplier": 1.0, "max_grad_norm": 2.0, "sample_rate": 0.5, "steps": 10, "learning_rate": 0.1}


def test_mechanism_is_what_the_accountants_take():
    spec = DPSGD(**GOOD)
    assert spec.mechanism == {"noise_multiplier": 1.0, "sample_rate": 0.5, "steps": 10}
    expected = accounting.epsilon(history=[(1.0, 0.5, 10)], delta=1e-5, adjacency="substitute")
    assert accounting.epsilon(**spec.mechanism, delta=1e-5, adjacency="substitute") == expected
    assert spec.optimizer == "sgd"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier must be > 0, got -1.0"),
        ({"max_grad_norm": 0}, "max_grad_norm must be > 0, got 0"),
        ({"sample_rate": 1.1}, "sample_rate must be > 0 and <= 1, got 1.1"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"learning_rate": float("inf")}, "learning_rate must be finite and > 0, got inf"),
        ({"noise_multiplier": 1e-300}, r"noise_multiplier must be >= 1e-30 and <= 1e\+30, got 1e-300"),
        ({"max_grad_norm": 1e-300}, r"max_grad_norm must be >= 1e-15 and <= 1e\+15, got 1e-300"),
        ({"sample_rate": 1e-13}, "sample_rate must be >= 1e-12 and <= 1, got 1e-13"),
        ({"learning_rate": 1e300}, r"learning_rate must be >= 1e-38 and <= 1e\+38, got 1e\+300"),
        ({"optimizer": "rmsprop"}, "optimizer must be one of 'sgd', 'adam', got 'rmsprop'"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        DPSGD(**{**GOOD, **change})


def test_numbers_are_stored_as_what_they_are():
    spec = DPSGD(**{**GOOD, "steps": 4.0, "noise_multiplier": np.float32(2)})
    assert type(spec.steps) is int
    assert type(spec.noise_multiplier) is float
    assert (spec.steps, spec.noise_multiplier) == (4, 2.0)


def test_infinite_counts_are_named():
    with pytest.raises(ValueError, match="steps must be a whole number >= 1, got inf"):
        DPSGD(**{**GOOD, "steps": float("inf")})
