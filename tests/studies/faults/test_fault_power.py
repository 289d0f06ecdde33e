"""Simulated audits of faulty steps."""

import json

import numpy as np
import pytest

from dpsub import accounting
from studies.faults import fault_power


def seen(fault, count=40_000):
    return fault_power.observed(fault, count, np.random.default_rng(0))


@pytest.mark.parametrize("fault", list(fault_power.FAULTS))
def test_the_worlds_of_a_fault_are_as_far_apart_as_it_says(fault):
    scores, bits = seen(fault)
    noise = 1 / accounting.gdp_mu(fault_power.FAULTS[fault], fault_power.DELTA)
    apart = scores[bits == 0].mean() - scores[bits == 1].mean()
    assert apart == pytest.approx(10 if fault == "clips the average" else 1, abs=5 * noise / 100)
    few = fault == "100 seeds"
    assert scores[bits == 1].std() == pytest.approx(noise, rel=0.3 if few else 0.03)
    assert len(np.unique(scores[bits == 1])) <= (100 if few else 40_000)


@pytest.mark.slow
def test_a_table_is_continued_and_counts_the_audits_that_exceed_the_claim(tmp_path, monkeypatch):
    path = tmp_path / "power.json"
    monkeypatch.setattr(fault_power, "AUDITS", 2)
    monkeypatch.setattr(fault_power, "COUNTS", (500, 1_000))
    monkeypatch.setattr(fault_power, "FAULTS", dict.fromkeys(["none", "clips the average"], 1.27))
    fault_power.make(path, ["clips the average"])
    fault_power.make(path)
    table = fault_power.table(path)
    assert len(table) == 2 * 2 * len(fault_power.ESTIMATORS)
    assert table.found["clips the average", "bets", 1_000] == 1
    assert table.found["none", "ranks", 500] < 1
    assert json.loads(path.read_text())["made"]["commit"]
