"""The spread of audits over seeds."""

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from studies.tight_auditing import seed_tables
from studies.tight_auditing.step_seeds import Setting

HERE, OTHER = Setting(), Setting(canary="blank")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    rows = [
        asdict(one) | {"seed": seed, "part": part, "bound": rng.normal(shift)}
        for one, shift in ((HERE, 5), (OTHER, 3))
        for seed in (2, 0, 1)
        for part in ("all", "first half")
    ]
    return pd.DataFrame(rows)


def test_a_setting_has_an_entry_for_each_seed_in_their_order(table):
    found = seed_tables.over_seeds(table, HERE, "bound")
    assert list(found.index) == [0, 1, 2]
    own = table[(table.canary == "mislabeled") & (table.part == "all")].sort_values("seed")
    assert list(found) == list(own.bound)
    half = seed_tables.over_seeds(table, HERE, "bound", part="first half")
    assert not set(half) & set(found)
    without = table.assign(bound=table.bound.where(table.seed != 1))
    assert list(seed_tables.over_seeds(without, HERE, "bound").index) == [0, 2]


def test_the_interval_is_students():
    values = np.random.default_rng(1).normal(2, 1, 12)
    mean, low, high = seed_tables.interval(values)
    assert mean == pytest.approx(values.mean())
    margin = 2.20099 * values.std(ddof=1) / 12**0.5  # the 97.5 % quantile of t with 11 degrees of freedom
    assert (low, high) == pytest.approx((mean - margin, mean + margin), rel=1e-5)
    assert np.isnan(seed_tables.interval([1.0])[1:]).all()


def test_a_summary_says_means_and_intervals(table):
    found = seed_tables.summary(table, {"a": HERE, "b": OTHER}, {"bound": "bound"})
    assert list(found.index) == ["a", "b"]
    assert list(found.seeds) == [3, 3]
    assert found.bound["a"] == seed_tables.said(seed_tables.over_seeds(table, HERE, "bound"))
    assert seed_tables.said([-1.0, -1.0]) == "−1.00 (n = 2)"
    assert seed_tables.said([-1.0] * 4) == "−1.00 ± 0.00"
