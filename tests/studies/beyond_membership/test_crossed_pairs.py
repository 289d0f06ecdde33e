import os

import numpy as np
import pytest

from studies.beyond_membership import crossed_pairs, over_draws
from studies.kept import read_table

ROWS = read_table("beyond_membership/crossed_pairs.csv")


def test_each_pair_is_that_of_the_draw_in_the_training_that_it_was_crafted_for():
    own = over_draws.each(over_draws.kept("ImageNet"), "cosine")
    own = {(crossed_pairs.CALLED[setting], s): cosines for (setting, s), cosines in own.items()}
    table = ROWS[ROWS.features == "ImageNet"].sort_values("draw")
    for (crafted_for, scenario, _), rows in table.groupby(["crafted_for", "scenario", "setting"]):
        np.testing.assert_allclose(rows.cosine, own[crafted_for, scenario], rtol=1e-4)


def test_a_draw_has_one_pair_for_each_training_that_it_is_crafted_for():
    for _, rows in ROWS.groupby(["features", "draw", "scenario", "crafted_for"]):
        assert rows.cosine.nunique() == 1


@pytest.mark.parametrize("features", sorted(set(ROWS.features)))
def test_what_the_training_and_the_pair_add_is_the_whole_change(features):
    for _, row in crossed_pairs.summary(features).iterrows():
        if row["after"]:
            by = [row[name].split(" ±")[0].replace("−", "-") for name in ("by the training", "by the pair")]
            assert float(row["before"]) + sum(map(float, by)) == pytest.approx(float(row["after"]), abs=0.021)


@pytest.mark.slow
@pytest.mark.skipif("DPSUB_DATA" not in os.environ, reason="needs the features")
def test_a_kept_row_is_what_the_study_measures():
    row = ROWS[ROWS.setting == "rate10"].iloc[0]
    [again] = crossed_pairs.measured(row[list(crossed_pairs.CELL)].to_dict())
    assert float(again["final_mu"]) == pytest.approx(row.final_mu, rel=1e-3)
