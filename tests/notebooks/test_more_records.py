"""What own_code/more_records.py trains: one audit of the crafted gradient, and twins for a record."""

import numpy as np
from own_code import more_records
from own_code.twins import separation

from dpsub import audits, data

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
    assert np.isfinite(separation(one, twin, delta=1e-5).mu).all()
