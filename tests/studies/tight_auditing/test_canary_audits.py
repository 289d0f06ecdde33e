"""What studies/tight_auditing/canary_audits.py makes and keeps."""

import xarray as xr

from dpsub import DPSGD, audits, crafters
from studies.tight_auditing import canary_audits


def test_models_go_by_their_names():
    task = canary_audits.task("digits", 40, 0)
    assert canary_audits.model("linear", task).parameters == 10 * (task.x_train.shape[1] + 1)
    assert canary_audits.model("mlp 7", task).parameters == 7 * (task.x_train.shape[1] + 1) + 80
    noise = canary_audits.task("random", 40, 0)
    assert canary_audits.model("linear", noise).parameters == 650
    pixels = canary_audits.task("random 28", 40, 0)
    assert pixels.x_train.shape == (40, 1, 28, 28)
    assert canary_audits.model("convnet small", pixels).parameters > 7_850


def test_digits_as_images_are_private_or_not_and_train_on_copies():
    images = canary_audits.images("digits", 40, 0)
    assert images.x_train.shape == (40, 1, 8, 8)
    assert len(images.x_test) == 1_797 - 40
    assert 0 <= images.x_train.min() < images.x_train.max() <= 1
    one, four = (canary_audits.augmented("mlp 128", images, copies) for copies in (1, 4))
    assert one.parameters == four.parameters == 8 * 10 + 8 * 16 * 10 + 10
    assert repr(one) != repr(four)


def test_audits_of_both_adjacencies_are_kept_under_their_names(tmp_path):
    task = canary_audits.task("digits", 20, 0)
    model, spec = canary_audits.model("linear", task), DPSGD(1.0, 1.0, 0.5, 5, 0.1)
    pair = crafters.gradient_each_step(task, model, spec, kind="dirac", seed=0)
    made = canary_audits.audited(task, model, spec, {"dirac anew": pair}, name="a", folder=tmp_path, device="cpu")
    assert [one.adjacency for one in made.values()] == ["add_remove", "substitute"]
    for (adjacency, label), one in made.items():
        kept = audits.load(tmp_path / f"a-{adjacency}-{label.replace(' ', '_')}.db")
        xr.testing.assert_equal(kept.score, one.score)
