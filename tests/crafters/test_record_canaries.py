import numpy as np
import pytest
from torch.nn.functional import cosine_similarity, mse_loss

from dpsub import crafters, models
from dpsub.crafters.reference_model import reference


def test_crafted_input_descends_by_hand_from_zero(task, spec, gradient_by_hand):
    model = models.linear(task)
    pair = crafters.crafted_input(task, model, spec(), seed=0, steps=6, learning_rate=0.5)
    module = reference(task, model, spec(), seed=0, target=None).module
    wanted = gradient_by_hand(module, *pair.z).detach()

    def losses(x):
        got = gradient_by_hand(module, x, pair.z.y)
        return float(cosine_similarity(wanted, got, dim=0)), float(mse_loss(got, wanted))

    x, h = np.zeros_like(pair.z.x, dtype=np.float64), 1e-6
    for step in range(6):
        np.testing.assert_allclose([pair.trace["cosine"][step], pair.trace["mse"][step]], losses(x), rtol=1e-5)
        ratio = float(gradient_by_hand(module, x, pair.z.y).norm() / wanted.norm())
        assert pair.trace["norm_ratio"][step] == pytest.approx(ratio)
        slope = [(sum(losses(x + h * e)) - sum(losses(x - h * e))) / (2 * h) for e in np.eye(len(x))]
        x -= 0.5 * np.array(slope)
    assert np.abs(x).max() > 0.01
    np.testing.assert_allclose(pair.z_prime.x, x, atol=1e-5)
    assert pair.z_prime.y == pair.z.y
    np.testing.assert_array_equal(pair.trace["x"][0], np.zeros_like(x))
    np.testing.assert_array_equal(pair.trace["x"][-1], pair.z_prime.x)
    assert pair.details["crafting_steps"] == 6
    assert pair.details["crafting_rate"] == 0.5
    assert pair.details["cosine"] == pair.trace["cosine"][-1]


def test_crafted_input_turns_the_gradient_round(task, spec):
    pair = crafters.crafted_input(task, models.linear(task), spec(), seed=0, steps=800, learning_rate=0.06)
    assert pair.trace["cosine"][0] > 0
    assert pair.details["cosine"] < -0.8
    assert 0.5 < pair.details["norm_ratio"] < 2
    assert len(pair.trace["cosine"]) == 801
    assert len(pair.trace["step"]) == len(pair.trace["x"]) == 101


def test_label_and_natural_sample_are_those_that_point_farthest_away(task, spec, gradient_by_hand):
    model = models.mlp(task)
    found = reference(task, model, spec(), seed=2, target=7)
    target = gradient_by_hand(found.module, *found.z)

    def cosine(x, y):
        return float(cosine_similarity(target, gradient_by_hand(found.module, x, int(y)), dim=0))

    label = crafters.mislabeled(task, model, spec(), seed=2, target=7)
    others = [y for y in range(10) if y != found.z.y]
    assert label.z_prime.y == min(others, key=lambda y: cosine(found.z.x, y))
    np.testing.assert_array_equal(label.z_prime.x, label.z.x)
    assert label.trace["cosine"][found.z.y] == pytest.approx(1)

    sample = crafters.natural(task, model, spec(), seed=2, target=7)
    chosen = min(range(len(task.y_aux)), key=lambda i: cosine(task.x_aux[i], task.y_aux[i]))
    assert sample.details["auxiliary"] == chosen
    np.testing.assert_array_equal(sample.z_prime.x, task.x_aux[chosen])
    assert sample.z_prime.y == task.y_aux[chosen]
    assert sample.slot == label.slot == 7
    for pair in (label, sample):
        length = gradient_by_hand(found.module, *pair.z_prime).norm()
        assert pair.details["cosine"] == pytest.approx(cosine(*pair.z_prime))
        assert pair.details["norm"] == pytest.approx(float(target.norm()))
        assert pair.details["norm_ratio"] == pytest.approx(float(length / target.norm()))


def test_descent_that_diverges_is_named(task, spec):
    model = models.linear(task)
    with pytest.raises(ValueError, match="learning_rate must be small enough that crafting does not diverge, got 1e"):
        crafters.crafted_input(task, model, spec(), seed=0, learning_rate=1e300)
