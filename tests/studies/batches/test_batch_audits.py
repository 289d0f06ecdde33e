"""The attack that watches every step, with batches of three kinds."""

import numpy as np
import pytest

from dpsub import DPSGD, CanaryPair, data
from studies.batches import audits as batch_audits


@pytest.fixture(scope="module")
def alike():
    """The worst data set: all others' gradients are that of z′, and that of z points the other way."""
    return data.from_arrays(np.full((40, 16), 10.0), np.zeros(40, int), num_classes=2)


@pytest.mark.parametrize("sampling", ["poisson", "without_replacement", "epochs"])
def test_the_ratio_is_the_exact_one_where_all_records_are_alike(alike, sampling):
    spec = DPSGD(2.0, 1.0, 0.25, 8, 1e-4, sampling=sampling)
    pair = CanaryPair((alike.x_train[0], 1), (alike.x_train[0], 0), 0, "S4")
    audited, shadows = (batch_audits.audit(alike, pair, spec, runs=400, seed=seed) for seed in (0, 1))
    found = batch_audits.likelihood_ratio(audited, shadows, spec, 40)
    assert found[audited.bit.values == 0].mean() > found[audited.bit.values == 1].mean()
    if sampling == "poisson":
        return
    moved = audited.gradient.values + 10  # ten others, each −1 along z
    parts = (2 * moved - 2) / 4
    if sampling == "epochs":
        exact = np.log(np.exp(parts.reshape(400, 2, 4)).mean(axis=2))
    else:
        exact = np.log(0.75 + 0.25 * np.exp(parts))
    # the spread at each step is that of about 200 shadow models, known to a tenth
    exact = exact.sum(axis=1)
    assert np.sqrt(((found - exact) ** 2).mean()) < 0.1 * exact.std()


def test_the_rare_label_is_rare_and_all_records_are_others():
    task = batch_audits.rare_label()
    assert task.y_train.sum() == batch_audits.RARE
    assert len(task.y_train) == len(task.y_aux) == batch_audits.N_TRAIN
    assert not {row.tobytes() for row in task.x_train} & {row.tobytes() for row in task.x_aux}


def test_a_row_has_what_both_attackers_find(monkeypatch):
    monkeypatch.setattr(batch_audits, "RUNS", 40)
    monkeypatch.setattr(batch_audits, "SHADOWS", 20)
    cell = {"sample_rate": 0.25, "task": "rare label", "canary": "mean gradient", "sampling": "epochs"}
    [row] = batch_audits.measured(cell)
    assert {"final", "steps", "agreement", "runs"} == set(row)
