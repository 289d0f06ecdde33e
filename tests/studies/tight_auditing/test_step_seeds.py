"""Audits of steps over seeds: what a row says."""

from dataclasses import replace

import pandas as pd
import pytest

from dpsub import accounting
from studies.kept import read_table
from studies.tight_auditing import step_seeds, step_tables

SMALL = step_seeds.Setting(model="linear", n=100)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("seeds") / "table.csv"
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(step_seeds.FIGURES, "small", [SMALL])
        step_seeds.make(path, [("small", 2)])
    return read_table(path)


@pytest.mark.slow
def test_rows_hold_the_bounds_of_the_audit_that_its_seed_makes_again(table):
    assert list(table.observations) == 2 * [5_000, 500, 2_500, 2_500]
    result = step_seeds.audited(SMALL, 1)
    bounds = step_tables.step_bounds(result, delta=step_seeds.DELTA)
    row = table[table.part == "all"].iloc[1]
    for short, name in zip(step_seeds.ESTIMATORS, step_tables.ESTIMATORS, strict=True):
        assert row[f"step_{short}"] == pytest.approx(bounds.step[name], rel=1e-4)
        known = short in step_seeds.CONVERTED
        assert pd.notna(row[f"training_{short}"]) == known
        if known:
            assert row[f"training_{short}"] == pytest.approx(bounds.training[name], rel=1e-4)


@pytest.mark.slow
def test_the_estimate_is_the_distance_over_all_the_noise(table):
    for row in table.itertuples():
        assert row.mu == pytest.approx(row.apart / (row.noise**2 + row.others**2) ** 0.5, rel=0.1)
        assert row.mu < 1.3 / row.noise
    whole = table[table.part == "all"].iloc[0]
    expected = accounting.epsilon(
        noise_multiplier=1 / whole.mu, sample_rate=0.02, steps=2_500, delta=1e-5, adjacency="add_remove"
    )
    assert whole.training_mu == pytest.approx(expected, rel=2e-3)


def test_noise_is_calibrated_under_the_adjacency_that_a_setting_names():
    one = step_seeds.Setting(epsilon=4.0)
    other = replace(one, epsilon_of="substitute", adjacency="substitute")
    for setting, adjacency in ((one, "add_remove"), (other, "substitute")):
        spec = step_seeds.spec_of(setting)
        law = {"sample_rate": 0.02, "steps": 2_500, "delta": 1e-5, "adjacency": adjacency}
        assert accounting.epsilon(noise_multiplier=spec.noise_multiplier, **law) == pytest.approx(4, rel=1e-3)
