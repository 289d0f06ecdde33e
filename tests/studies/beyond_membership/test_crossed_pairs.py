import os

import numpy as np
import pytest

from studies.beyond_membership import crossed_pairs, over_draws
from studies.kept import read_table

ROWS = read_table("beyond_membership/crossed_pairs.csv")


def test_each_pair_is_that_of_the_draw_in_the_training_that_it_was_crafted_for():
    own = over_draws.each(over_draws.kept("ImageNet"), "cosine")
    for (setting, scenario), rows in ROWS.sort_values("draw").groupby(["setting", "scenario"]):
        expected = own[crossed_pairs.CRAFTED_FOR[setting, scenario], scenario]
        np.testing.assert_allclose(rows.cosine, expected, rtol=1e-4)


def test_what_the_training_and_the_pair_add_is_the_whole_change():
    for _, row in crossed_pairs.summary().iterrows():
        if row["after"]:
            by = [row[name].split(" ±")[0].replace("−", "-") for name in ("by the training", "by the pair")]
            assert float(row["before"]) + sum(map(float, by)) == pytest.approx(float(row["after"]), abs=0.021)


@pytest.mark.slow
@pytest.mark.skipif("DPSUB_DATA" not in os.environ, reason="needs the features")
def test_a_kept_row_is_what_the_study_measures():
    row = ROWS[ROWS.setting == "rate10"].iloc[0]
    [again] = crossed_pairs.measured(row[list(crossed_pairs.CELL)].to_dict())
    assert float(again["final_mu"]) == pytest.approx(row.final_mu, rel=1e-3)
