import numpy as np
import pytest
from dp_accounting import privacy_accountant
from dp_accounting.pld import privacy_loss_distribution as plds


@pytest.fixture(scope="session")
def full():
    """Every record in every batch: ε_S = 3.995 after 500 steps at δ = 1e-5."""
    return {"noise_multiplier": 48.4033203125, "sample_rate": 1.0}


@pytest.fixture(scope="session")
def quarter():
    """A quarter of the records in a batch: ε_S = 3.987 after 500 steps at δ = 1e-5."""
    return {"noise_multiplier": 12.1148681640625, "sample_rate": 0.25}


@pytest.fixture(scope="session")
def history():
    """Three phases that differ in noise and sample rate."""
    return [(1.0, 0.01, 300), (2.0, 0.02, 100), (0.8, 0.005, 50)]


@pytest.fixture(scope="session")
def convolved():
    """The composition of equal steps by direct convolution: its losses and their masses."""

    def convolve(step, times):
        mass = step.mass
        for _ in range(times - 1):
            mass = np.convolve(mass, step.mass)
        return (times * step.low + np.arange(len(mass))) * step.mesh, mass

    return convolve


@pytest.fixture(scope="session")
def by_dp_accounting():
    """ε from dp-accounting alone: its optimistic and its pessimistic estimate."""

    def ends(sigma, q, steps, delta, adjacency, mesh):
        relation = privacy_accountant.NeighboringRelation
        return tuple(
            plds.from_gaussian_mechanism(
                sigma,
                sampling_prob=q,
                value_discretization_interval=mesh,
                use_connect_dots=pessimistic,
                pessimistic_estimate=pessimistic,
                neighboring_relation=relation.REPLACE_ONE if adjacency == "substitute" else relation.ADD_OR_REMOVE_ONE,
            )
            .self_compose(steps)
            .get_epsilon_for_delta(delta)
            for pessimistic in (False, True)
        )

    return ends
