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


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="noise_multiplier must be > 0, got -1.0"):
        DPSGD(**GOOD | {"noise_multiplier": -1.0})


def test_numbers_are_stored_as_what_they_are():
    spec = DPSGD(**{**GOOD, "steps": 4.0, "noise_multiplier": np.float32(2)})
    assert type(spec.steps) is int
    assert type(spec.noise_multiplier) is float
    assert (spec.steps, spec.noise_multiplier) == (4, 2.0)


def test_sampling_is_named_where_it_is_not_poissons():
    assert "sampling" not in DPSGD(**GOOD).mechanism
    assert "sampling" not in DPSGD(**GOOD).attributes
    fixed = DPSGD(**GOOD, sampling="without_replacement").mechanism
    assert fixed["sampling"] == accounting.WithoutReplacement()
    with pytest.raises(ValueError, match="sample_rate must be 1 / "):
        DPSGD(**GOOD | {"sample_rate": 0.3}, sampling="epochs")
