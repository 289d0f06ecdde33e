import itertools
import json
import math

import numpy as np
import pytest

from dpsub import accounting, explorer

STORED = explorer.grid()
SETTINGS = list(itertools.product(*(explorer.AXES[name] for name in ("noise_multiplier", "sample_rate", "steps"))))
# Little noise takes long and is left to the slow test.
SAMPLE = [i for i in np.random.default_rng(3).choice(len(SETTINGS), 12, replace=False).tolist() if SETTINGS[i][0] > 1]


def check(i):
    found = explorer.row(SETTINGS[i])
    stored = STORED["rows"][i]
    assert found.keys() == stored.keys()
    for name in ("add_remove", "substitute", "group"):
        for one, other in zip(found[name], stored[name], strict=True):
            assert (one is None) == (other is None)
            assert one is None or one == pytest.approx(other, rel=2e-3)
    for name in ("add_remove_fnr", "substitute_fnr"):
        assert found[name] == pytest.approx(stored[name], abs=1.1e-3)


def test_the_stored_axes_are_the_explorers():
    assert STORED["axes"] == explorer.AXES
    assert STORED["fpr"] == explorer.FALSE_POSITIVE_RATES
    assert len(STORED["rows"]) == len(SETTINGS)


@pytest.mark.parametrize("i", SAMPLE)
def test_stored_numbers_are_the_librarys(i):
    check(i)


@pytest.mark.slow
def test_all_stored_numbers_are_the_librarys():
    for i in range(len(SETTINGS)):
        check(i)


def test_stored_bounds_stay_on_the_safe_side():
    i = SETTINGS.index((1.0, 0.01, 1_000))
    history = [SETTINGS[i]]
    row = STORED["rows"][i]
    interval = accounting.epsilon_interval(history=history, delta=1e-5, adjacency="substitute", eps_error=1e-6)
    assert interval.lower <= row["substitute"][0] <= interval.upper * 1.003 + 0.003
    exact = accounting.tradeoff(explorer.FALSE_POSITIVE_RATES, history=history, adjacency="substitute")
    assert (np.array(row["substitute_fnr"]) <= exact).all()


def test_a_row_is_rounded_to_the_safe_side():
    setting = (8.0, 0.03, 100)
    row = explorer.row(setting)
    for place, delta in enumerate(explorer.AXES["delta"]):
        exact = explorer.numbers(noise_multiplier=8.0, sample_rate=0.03, steps=100, delta=delta)
        for name, value in exact.items():
            assert value <= row[name][place] <= value * 1.001
    for adjacency in ("add_remove", "substitute"):
        exact = accounting.tradeoff(explorer.FALSE_POSITIVE_RATES, history=[setting], adjacency=adjacency)
        found = np.array(row[f"{adjacency}_fnr"])
        assert (found <= exact).all()
        assert (found > exact - 1e-3).all()


def test_numbers_are_in_the_right_order_everywhere():
    for row in STORED["rows"]:
        for low, middle, high in zip(row["add_remove"], row["substitute"], row["group"], strict=True):
            assert 0 <= low <= middle
            assert high is None or middle <= high * 1.003
        assert row["add_remove"] == sorted(row["add_remove"])  # δ falls along the axis
        assert row["substitute_fnr"] == sorted(row["substitute_fnr"], reverse=True)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1.23456, 1.235), (1.2, 1.2), (0.0, 0.0), (99.999, 100.0), (0.00012341, 0.0001235), (1186.2, 1187.0)],
)
def test_no_bound_is_rounded_down(value, shown):
    assert explorer.rounded_up(value) == shown
    assert explorer.rounded_up(math.inf) is None


def test_the_page_carries_its_numbers_and_asks_for_nothing():
    html = explorer.page().data
    assert "{{" not in html
    data = html.split('<script type="application/json">')[1].split("</script>")[0]
    assert json.loads(data) == STORED
    assert "http" not in html
    assert len(html) < 200_000
