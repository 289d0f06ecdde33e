import os
from pathlib import Path

import numpy as np
import pytest

from dpsub import accounting
from studies.beyond_membership import draws, over_draws
from studies.kept import read_table

WHOLE = read_table("beyond_membership/draws.csv")


def test_only_whole_draws_count(monkeypatch):
    some = WHOLE[WHOLE.features == "ImageNet"]
    monkeypatch.setattr(over_draws, "read_table", lambda _: some.drop(some.index[some.draw == 1][0]))
    assert 1 not in set(over_draws.kept("ImageNet").draw)
    assert 0 in set(over_draws.kept("ImageNet").draw)


def test_a_draw_has_one_target_and_every_setting_of_it():
    table = over_draws.kept("ImageNet")
    assert (table.groupby("draw").target.nunique() == 1).all()
    found = over_draws.each(table)
    assert {name for name, _ in found} == set(draws.IMAGES)
    assert {len(values) for values in found.values()} == {table.draw.nunique()}
    first = table[(table.draw == 0) & (table.max_grad_norm == 8.0) & (table.scenario == "S3")]
    assert found["C8", "S3"][0] == first.final_epsilon.item()


def test_estimates_are_those_of_the_separations():
    for mu, epsilon in zip(WHOLE.final_mu, WHOLE.final_epsilon, strict=True):
        assert accounting.gdp_epsilon(max(mu, 0), draws.DELTA) == pytest.approx(epsilon, abs=1e-3)
    assert np.isfinite(WHOLE.final_bound).all()


@pytest.mark.slow
@pytest.mark.skipif("DPSUB_DATA" not in os.environ, reason="needs the features")
def test_a_kept_row_is_what_the_study_measures():
    row = WHOLE.iloc[3]
    assert Path(os.environ["DPSUB_DATA"], draws.DATA[row.features][0]).exists()
    [again] = draws.measured(row[list(draws.CELL)].to_dict())
    assert float(again["final_mu"]) == pytest.approx(row.final_mu, rel=1e-3)
