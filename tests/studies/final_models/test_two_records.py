"""What studies/final_models/two_records.py says of worlds that differ by two records."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dpsub import DPSGD, audit, crafters, data, models
from studies.final_models import two_records as two

SPEC = DPSGD(noise_multiplier=0.7, max_grad_norm=0.8, sample_rate=1.0, steps=4, learning_rate=0.5)
SECOND = 5


@pytest.fixture(scope="module")
def task():
    return data.digits(n_train=20)


@pytest.fixture(scope="module")
def canary(task):
    pair = crafters.blank(task, models.linear(task), SPEC, seed=1)
    assert pair.slot != SECOND
    return pair.against_nothing(adjacency="add_remove")


def clipped(module, x, y, norm):
    """A record's clipped gradient, flat in the order of the module."""
    loss = cross_entropy(module(torch.tensor(x)[None]), torch.tensor([int(y)]))
    found = torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(module.parameters()))])
    return found * min(1.0, norm / (float(found.norm()) + 1e-6))


def test_a_step_is_the_sum_of_clipped_gradients_by_hand(task, canary):
    model = models.mlp(task, (5,))
    bits, generator = np.array([0, 1, 0, 1, 0, 1]), torch.Generator().manual_seed(0)
    bank = two.bank_of_two(task, model, canary, SECOND, SPEC, bits=bits, generator=generator)
    others = [i for i in range(20) if i not in (canary.slot, SECOND)]
    records = [(task.x_train[i], task.y_train[i]) for i in others]
    records += [(canary.z.x, canary.z.y), (task.x_train[SECOND], task.y_train[SECOND])]
    noise = torch.randn(6, model.parameters, generator=generator)
    before = bank.theta.clone()
    bank.step(sampled=None, slot_sampled=None, noise=noise)
    for run, bit in enumerate(bits):
        module = model.module(before[run])
        there = records if bit == 0 else records[:18]
        total = sum((clipped(module, *one, 0.8) for one in there), 0.7 * 0.8 * noise[run])
        torch.testing.assert_close(bank.theta[run], before[run] - 0.5 * total / 20, rtol=1e-4, atol=1e-5)


def learnt(task):
    """A task with a feature that the second record alone has, and a head that is sure of it: its gradient is 0."""
    x = np.hstack([task.x_train, np.eye(20)[:, [SECOND]]])
    made = data.from_arrays(x, task.y_train, num_classes=10)
    weights = torch.zeros(x.shape[1] + 1, 10)
    weights[-2, task.y_train[SECOND]] = 1e3
    return made, models.linear(made).starting_from(weights.flatten())


def test_without_a_gradient_of_the_second_record_it_is_the_audit_of_one(task):
    made, model = learnt(task)
    pair = crafters.blank(made, model, SPEC, seed=1).against_nothing(adjacency="add_remove")
    options = {"runs": 256, "seed": 4}
    found = two.audited(made, model, pair, SECOND, SPEC, **options)
    one = audit(made, model, pair, SPEC, metrics=["weights"], observe_every=4, device="cpu", progress=False, **options)
    np.testing.assert_array_equal(found.bit, one.bit)
    np.testing.assert_array_equal(found.step, one.step)
    for name in ("score", "weights"):
        assert found[name].dims == one[name].dims
        assert found[name].dtype == one[name].dtype
        np.testing.assert_allclose(found[name], one[name], rtol=1e-4, atol=2e-5)


def test_a_second_record_like_the_canary_helps_to_tell_the_worlds_apart(task):
    x = task.x_train.copy()
    x[SECOND], labels = 0, task.y_train.copy()
    labels[SECOND] = 9
    made = data.from_arrays(x, labels, num_classes=10)
    model = models.linear(made)
    pair = crafters.blank(made, model, SPEC, seed=1).against_nothing(adjacency="add_remove")
    options = {"runs": 400, "seed": 4}
    found = two.audited(made, model, pair, SECOND, SPEC, **options)
    one = audit(made, model, pair, SPEC, coordinates="all", device="cpu", progress=False, **options)

    def apart(result):
        scores, bits = result.score.values[:, -1], result.bit.values
        return (scores[bits == 0].mean() - scores[bits == 1].mean()) / scores[bits == 1].std()

    assert apart(found) > 1.5 * apart(one) > 0
