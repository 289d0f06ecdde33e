"""The study of canaries over seeds."""

import pytest

from studies.beyond_membership import crafting_seeds


@pytest.mark.slow
def test_a_cell_is_measured_again(monkeypatch):
    monkeypatch.setattr(crafting_seeds, "RUNS", dict.fromkeys(crafting_seeds.RUNS, 8))
    cells = [*crafting_seeds.cells()]
    assert len({*cells}) == len(cells)
    cell = {"study": "optimizer", "canary": "S4", "variant": "adam, fixed", "seed": 1}
    [found] = crafting_seeds.measured(cell)
    assert [found] == crafting_seeds.measured(cell)
    assert found["runs"] == 8


def test_one_start_is_that_of_all_models():
    task = crafting_seeds.data.digits(n_train=50)
    model = crafting_seeds.models.mlp(task, (4,))
    start = crafting_seeds.first_start(model, 3)
    assert model.starting_from(start).initial[:5] == "fixed"
    assert (start == crafting_seeds.first_start(model, 3)).all()
    assert (start != crafting_seeds.first_start(model, 4)).any()
