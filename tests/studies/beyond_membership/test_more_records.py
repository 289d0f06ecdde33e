"""What studies/beyond_membership/more_records.py trains: one audit of the crafted gradient, and twins for a record."""

import numpy as np

from dpsub import audits, data
from studies.beyond_membership import more_records
from studies.beyond_membership.twins import of_twins

TASK = data.digits(n_train=60, seed=0)
OPTIONS = {"steps": 4, "device": "cpu", "progress": False}


def test_the_gradient_is_audited_and_records_are_trained_twice(tmp_path):
    for scenario in ("S2", "S4"):
        more_records.train(tmp_path, TASK, 0.25, scenario, 6, **OPTIONS)
    assert sorted(path.name for path in tmp_path.glob("*.db")) == [
        "q=0.25-n=60-S2.db", "q=0.25-n=60-S4-exchanged.db", "q=0.25-n=60-S4.db",
    ]  # fmt: skip
    assert audits.load(tmp_path / "q=0.25-n=60-S2.db").optimizer == "adam"
    ((of, (one, twin)),) = more_records.twins(tmp_path).items()
    assert of == (0.25, 60, "S4")
    assert np.array_equal(one.bit, twin.bit)
    # The other canary changes the score, by less than starts and noise do.
    change = np.abs(one.score + twin.score).mean()
    assert 0 < change < one.score.std()
    assert np.isfinite(of_twins(one, twin, delta=1e-5).mu).all()


def test_a_record_may_be_audited_alone_and_a_gradient_on_a_chosen_parameter(tmp_path):
    more_records.train(tmp_path, TASK, 0.25, "S4", 6, alone=1, **OPTIONS)
    more_records.train(tmp_path, TASK, 0.25, "S2", 6, crafted=2, **OPTIONS)
    more_records.train(tmp_path, TASK, 0.25, "S2", 6, parameter=7, **OPTIONS)
    alone, crafted, chosen = (
        audits.load(tmp_path / f"q=0.25-n=60-{name}.db") for name in ("S4-alone=1", "S2-crafted=2", "S2-parameter=7")
    )
    assert len(list(tmp_path.glob("*.db"))) == 3
    assert (alone.attrs["seed"], crafted.canary_seed) == (1, 2)
    assert chosen.canary_parameter == 7
    assert chosen.canary_travel > crafted.canary_travel
    assert not more_records.twins(tmp_path)


def test_a_place_is_that_of_the_canary_that_is_audited(tmp_path):
    found = more_records.place(TASK, 0.25, 2, steps=4)
    more_records.train(tmp_path, TASK, 0.25, "S2", 2, crafted=2, **OPTIONS)
    kept = audits.load(tmp_path / "q=0.25-n=60-S2-crafted=2.db")
    assert (found["parameter"], found["travel"]) == (kept.canary_parameter, kept.canary_travel)
    assert found["travel"] <= min(found["travel_of_bias"], found["travel_by_squares"])


def test_after_one_step_of_adam_the_parameter_that_moved_least_has_the_least_gradient():
    shoppers = data.purchase100_like(n_train=60, n_aux=0)
    found = more_records.place(shoppers, 1.0, 2, steps=1)
    assert found["travel"] < found["travel_of_median"]
    assert found["by_squares"] == found["parameter"]
    assert more_records.place(shoppers, 1.0, 2, steps=40)["by_squares"] != found["by_squares"]
