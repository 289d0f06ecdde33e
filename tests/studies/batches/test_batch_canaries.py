import numpy as np
import pytest
import torch

from dpsub import DPSGD, audit, data, models
from studies.batches.canaries import mean_gradient


def test_mean_gradient_is_that_of_a_training_by_hand():
    task, setting = data.digits(n_train=80), DPSGD(9.0, 0.5, 1.0, 15, 0.05)
    x = torch.cat([torch.tensor(task.x_train), torch.ones(80, 1)], dim=1)
    labels = torch.nn.functional.one_hot(torch.tensor(task.y_train), 10)
    theta, means = torch.zeros(65, 10)[: x.shape[1]], []
    for _ in range(setting.steps):
        gradients = x[:, :, None] * (torch.softmax(x @ theta, dim=1) - labels)[:, None, :]
        scale = (0.5 / (gradients.flatten(1).norm(dim=1) + 1e-6)).clamp(max=1)
        means.append((scale[:, None, None] * gradients).sum(0) / 80)
        theta = theta - 0.05 * means[-1]
    model = models.linear(task)
    pair = mean_gradient(task, model, setting, seed=0)
    mean = model.flat(torch.stack(means).mean(0)[..., None])[0]
    np.testing.assert_allclose(pair.z_prime, 0.5 * mean / mean.norm(), atol=1e-6)
    np.testing.assert_array_equal(pair.z, -pair.z_prime)
    assert pair.details["agreement"] == pytest.approx(float(mean.norm()) / 0.5, rel=1e-4)
    np.testing.assert_allclose(pair.trace["mean_norm"], [float(one.norm()) / 0.5 for one in means], rtol=1e-4)
    assert pair.adjacency == "substitute"


def test_mean_gradient_hides_in_poisson_batches_and_not_in_those_of_fixed_size():
    alike = data.from_arrays(np.full((40, 8), 10.0), np.zeros(40, int), num_classes=2)
    separation = {}
    for sampling in ("poisson", "without_replacement"):
        setting = DPSGD(1.0, 1.0, 0.25, 20, 1e-4, sampling=sampling)
        pair = mean_gradient(alike, models.linear(alike), setting, seed=0)
        audited = audit(
            alike, models.linear(alike), pair, setting, runs=600, observe_every=20, progress=False, device="cpu"
        )
        score = audited.score.values[:, -1]
        one, other = (score[audited.bit.values == bit] for bit in (0, 1))
        separation[sampling] = (one.mean() - other.mean()) / np.sqrt((one.var() + other.var()) / 2)
    # q·2C·√T over the spread: noise and, with Poisson batches, the number of the 39 others
    coins = 0.25 * 0.75
    for sampling, variance in (("poisson", 1 + coins * 40), ("without_replacement", 1 + coins * 4 / 2)):
        assert separation[sampling] == pytest.approx(0.5 * np.sqrt(20 / variance), abs=5 * np.sqrt(4 / 600))
