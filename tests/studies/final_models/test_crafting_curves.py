import numpy as np
import pytest

from dpsub import crafters
from studies.final_models.crafting_curve import crafting_curves

BITS = np.array([0, 1, 1, 0, 0, 1, 0, 1, 1])


@pytest.mark.parametrize("loss", ["ude", "ade", "fisher", "bhattacharyya"])
def test_curves_on_the_models_crafted_on_are_the_trace_and_on_others_what_the_loss_says_of_them(cast, loss):
    task, model = cast["mlp"]
    weights = np.random.default_rng(0).normal(size=(9, model.parameters)) / 2
    options = {"loss": loss, "margin": 0.3}
    sample = crafters.adversarial_sample(model, weights, BITS, start=(task.x_train[5], 1), steps=30, **options)
    own = crafting_curves(sample, model, weights, BITS)
    for name in ("loss", "separation"):
        np.testing.assert_allclose(own[name], sample.trace[name][own["step"]], rtol=1e-4, atol=1e-5)
    others, bits = weights[:0:-1] + 0.1, BITS[1:]
    on_others = crafting_curves(sample, model, others, bits)
    for number, x in enumerate(sample.trace["x"]):
        there = crafters.adversarial_sample(model, others, bits, start=(x, 1), steps=1, **options)
        assert on_others["loss"][number] == pytest.approx(there.trace["loss"][0], rel=1e-4, abs=1e-5)
        assert on_others["separation"][number] == pytest.approx(there.trace["separation"][0], rel=1e-3, abs=1e-4)
