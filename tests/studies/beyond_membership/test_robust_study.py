import os

import pytest

from studies.beyond_membership import draws, over_draws, robust_inputs
from studies.kept import read_table

ROWS = read_table("beyond_membership/robust_inputs.csv")


def test_each_list_has_the_same_draws_in_their_order():
    shown = robust_inputs.estimates()
    by_draws = over_draws.each(over_draws.kept("ImageNet"))
    of_right = ROWS[(ROWS.setting == "C8") & (ROWS.guessed == "nothing")].set_index("draw").final_epsilon
    for name in draws.IMAGES:
        both = [shown[canary, name, "nothing", 1] for canary in ("gradient", "crafted_input", "robust_input")]
        assert len({len(one) for one in both}) == 1
    for draw, found in enumerate(shown["robust_input", "C8", "nothing", 1]):
        assert found == of_right[draw]
        assert shown["crafted_input", "C8", "nothing", 1][draw] == by_draws["C8", "S3"][draw]
    guesses = [one for (_, _, name, _), one in shown.items() if name != "nothing"]
    assert len({len(one) for one in guesses}) == 1
    assert len(guesses) == len(robust_inputs.FACTORS) * sum(map(len, robust_inputs.USED.values()))


@pytest.mark.slow
@pytest.mark.skipif("DPSUB_DATA" not in os.environ, reason="needs the features")
def test_a_kept_row_is_what_the_study_measures():
    row = ROWS[ROWS.guessed == "max_grad_norm"].iloc[0]
    [again] = robust_inputs.measured(row[list(robust_inputs.CELL)].to_dict())
    assert float(again["final_mu"]) == pytest.approx(row.final_mu, rel=1e-3)
