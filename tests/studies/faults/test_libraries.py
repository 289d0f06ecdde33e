"""The recipes that audit libraries, with those that are installed."""

import pytest

from dpsub import accounting
from studies.faults import libraries

CLAIMED = accounting.gdp_epsilon(2 / libraries.NOISE_MULTIPLIER, libraries.DELTA)
REFUTED = {"flwr, weighted", "deepee, sum", "deepee, seed"}


def holds(name, steps):
    [found] = libraries.measured({"name": name}, steps=steps)
    assert found["verdict"] == ("refuted" if name in REFUTED else "consistent")
    if name not in REFUTED:
        assert 0.4 * CLAIMED < found["bound"] <= found["claimed"]
        assert found["noise"] == pytest.approx(libraries.NOISE_MULTIPLIER, rel=0.1)
        assert found["clipping"] == ""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Secure RNG")
def test_opacus_adds_the_noise_that_it_claims():
    holds("opacus", 200)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", [name for name in libraries.RECIPES if name != "opacus"])
def test_other_libraries_do_what_the_table_says(name):
    pytest.importorskip(libraries.package(name).replace("-", "_"))
    holds(name, 1_500)
