"""What studies/final_models/audits.py makes."""

import numpy as np
import pytest
import torch
from torch import nn

from dpsub import DPSGD, data
from studies.final_models import audits as final

SPEC = DPSGD(1.0, 1.0, 1.0, 3, 0.1)


@pytest.fixture(scope="module")
def images():
    """Random images, half of them auxiliary."""
    x = np.random.default_rng(0).random((40, 1, 28, 28))
    return data.from_arrays(x[:20], np.arange(20) % 10, x_aux=x[20:], y_aux=np.arange(20) % 10, num_classes=10)


def test_images_are_standardised_in_each_channel_and_digits_are_as_they_are(monkeypatch):
    known = data.from_arrays(np.ones((4, 3, 8, 8)), [0, 1, 2, 9], x_aux=np.zeros((2, 3, 8, 8)), y_aux=[1, 2])
    monkeypatch.setattr(final.data, "cifar10", lambda n_train, n_aux, seed: known)
    found = final.task("cifar10", 4, 2, 0)
    mean, std = (np.array(one)[:, None, None] for one in final.PIXELS["cifar10"])
    np.testing.assert_allclose(found.x_train, np.broadcast_to((1 - mean) / std, (4, 3, 8, 8)), rtol=1e-5)
    np.testing.assert_allclose(found.x_aux, np.broadcast_to(-mean / std, (2, 3, 8, 8)), rtol=1e-5)
    assert found.name.endswith(", standardised")
    assert found.fingerprint != known.fingerprint
    digits, same = final.task("digits", 30, 50, 0), data.digits(n_train=30, seed=0)
    np.testing.assert_array_equal(digits.x_train, same.x_train)
    np.testing.assert_array_equal(digits.x_aux, same.x_aux[:50])


def test_an_average_start_is_xaviers_and_the_same_for_all_models(images):
    model = final.network(images, "average", 0)
    before = torch.get_rng_state()
    starts = [repr(final.network(images, "average", seed)) for seed in (0, 1)]
    assert repr(model) == starts[0] != starts[1]
    assert torch.equal(before, torch.get_rng_state())
    theta = model.initial_parameters(2, torch.Generator())
    assert torch.equal(*theta)
    for layer in model.module(theta[0]):
        if isinstance(layer, nn.Linear | nn.Conv2d):
            area = layer.weight[0, 0].numel()
            bound = np.sqrt(6 / (area * (layer.weight.shape[0] + layer.weight.shape[1])))
            assert 0.8 * bound < layer.weight.abs().max() <= bound
            assert not layer.bias.any()


def test_a_worst_start_is_trained_from_the_average_one(images):
    average, worst, longer = (
        final.network(images, start, 0, epochs) for start, epochs in (("average", 5), ("worst", 1), ("worst", 8))
    )
    x, y = torch.tensor(images.x_aux), torch.tensor(images.y_aux)

    def loss(model):
        return nn.functional.cross_entropy(model.module(model.theta_0)(x), y).item()

    assert loss(average) > loss(worst) > loss(longer)


def test_canaries_go_by_their_names_and_z_is_the_papers(images):
    model = final.network(images, "average", 0)
    pairs = {name: final.canary(name, images, model, SPEC, 0) for name in final.CANARIES}
    assert [pair.scenario for pair in pairs.values()] == ["blank", "in-distribution", "S4", "ClipBKD"]
    wrong = pairs["mislabeled"]
    np.testing.assert_array_equal(wrong.z.x, images.x_train[wrong.slot])
    assert wrong.z.y != images.y_train[wrong.slot] == wrong.z_prime.y
    assert not pairs["blank"].z.x.any()
    assert pairs["in-distribution"].z.y == images.y_aux[pairs["in-distribution"].details["auxiliary"]]


def test_audits_at_the_papers_step_of_a_record_differ_from_the_others_in_the_rate_alone():
    cells = final.grid("digits")
    found = final.by_record(cells)
    assert {one.learning_rate / one.n_train for one in found} == {4 / 60_000}
    assert final.record_rate(final.grid("cifar10")[0]) / 1000 == pytest.approx(2 / 50_000)
    again = [one._replace(learning_rate=4.0) for one in found]
    assert sorted(again) == sorted(one for one in cells if one.adjacency == "add_remove")
    assert [one.epsilon for one in found[:4]] == [10, 4, 2, 1]
    assert {one.canary for one in found[:4]} == {"blank"}
    assert len({one.name for one in found + cells + final.by_record(final.grid("mnist"))}) == 3 * len(found) + 1


def test_what_was_run_on_cifar_10_is_the_small_network_and_a_larger_one_has_another_name():
    cell = final.grid("cifar10")[0]
    assert cell.size == "small"
    assert cell._replace(size="large").name == f"{cell.name}-large"
