"""What studies/final_models/two_records.py says of worlds that differ by two records."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from torch.nn.functional import cross_entropy

from dpsub import DPSGD, CanaryPair, audit, crafters, data, models
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


@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_a_step_is_the_sum_of_clipped_gradients_by_hand(task, canary, rate):
    model, spec = models.mlp(task, (5,)), replace(SPEC, sample_rate=rate)
    bits, generator = np.array([0, 1, 0, 1, 0, 1]), torch.Generator().manual_seed(0)
    bank = two.bank_of_two(task, model, canary, SECOND, spec, bits=bits, generator=generator)
    others = [i for i in range(20) if i not in (canary.slot, SECOND)]
    records = [(task.x_train[i], task.y_train[i]) for i in others]
    records += [(canary.z.x, canary.z.y), (task.x_train[SECOND], task.y_train[SECOND])]
    taken = torch.rand(20, 6, generator=generator) < rate
    noise = torch.randn(6, model.parameters, generator=generator)
    before = bank.theta.clone()
    bank.step(sampled=taken[:18], slot_sampled=taken[18:], noise=noise)
    for run, bit in enumerate(bits):
        module = model.module(before[run])
        there = [i for i in range(20) if taken[i, run] and (i < 18 or bit == 0)]
        total = sum((clipped(module, *records[i], 0.8) for i in there), 0.7 * 0.8 * noise[run])
        torch.testing.assert_close(bank.theta[run], before[run] - 0.5 * total / (rate * 20), rtol=1e-4, atol=1e-5)


def test_each_record_has_a_coin_of_its_own(task, canary):
    model, runs = models.linear(task), 4_000
    spec = replace(SPEC, sample_rate=0.3, noise_multiplier=1e-6)
    seen = []

    class Watched(two.TwoRecords):
        def rows(self, sampled):
            seen.append(super().rows(sampled))
            return seen[-1]

    bits, generator = np.arange(runs) % 2, torch.Generator().manual_seed(0)
    bank = two.bank_of_two(task, model, canary, SECOND, spec, bits=bits, generator=generator)
    bank.slot = Watched(bank.slot.present, bank.slot.inputs, bank.slot.labels)
    two.advance(bank)
    first, second = seen[0].numpy()
    assert not first[bits == 1].any()
    assert not second[bits == 1].any()
    with_both = first[bits == 0], second[bits == 0]
    error = 4 * np.sqrt(0.25 / (runs / 2))
    for taken, rate in ((with_both[0], 0.3), (with_both[1], 0.3), (with_both[0] & with_both[1], 0.09)):
        assert abs(taken.mean() - rate) < error


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
    options = {"runs": 140, "observe_every": 3, "seed": 4}
    found = two.audited(made, model, pair, SECOND, SPEC, **options)
    one = audit(made, model, pair, SPEC, metrics=["weights"], device="cpu", progress=False, **options)
    np.testing.assert_array_equal(found.bit, one.bit)
    np.testing.assert_array_equal(found.step, one.step)
    for name in ("score", "weights"):
        assert found[name].dims == one[name].dims
        assert found[name].dtype == one[name].dtype
        np.testing.assert_allclose(found[name], one[name], rtol=1e-4, atol=2e-5)


def test_below_a_sample_rate_of_1_it_is_of_the_law_of_the_audit_of_one(task):
    made, model = learnt(task)
    spec = replace(SPEC, sample_rate=0.4)
    pair = crafters.blank(made, model, spec, seed=1).against_nothing(adjacency="add_remove")
    found = two.audited(made, model, pair, SECOND, spec, runs=1_500, observe_every=4, seed=4)
    one = audit(made, model, pair, spec, runs=1_500, observe_every=4, seed=5, device="cpu", progress=False)
    for bit in (0, 1):
        mine, its = (result.score.values[result.bit.values == bit, -1] for result in (found, one))
        assert ks_2samp(mine, its).pvalue > 1e-3


def test_a_second_record_like_the_canary_helps_to_tell_the_worlds_apart(task):
    x = task.x_train.copy()
    x[SECOND], labels = 0, task.y_train.copy()
    labels[SECOND] = 9
    made = data.from_arrays(x, labels, num_classes=10)
    model = models.linear(made)
    pair = crafters.blank(made, model, SPEC, seed=1).against_nothing(adjacency="add_remove")
    options = {"runs": 400, "observe_every": 4, "seed": 4}
    found = two.audited(made, model, pair, SECOND, SPEC, **options)
    one = audit(made, model, pair, SPEC, coordinates="all", device="cpu", progress=False, **options)

    def apart(result):
        scores, bits = result.score.values[:, -1], result.bit.values
        return (scores[bits == 0].mean() - scores[bits == 1].mean()) / scores[bits == 1].std()

    assert apart(found) > 1.5 * apart(one) > 0
    generator = torch.Generator().manual_seed(0)
    bank = two.bank_of_two(made, model, pair, SECOND, SPEC, bits=np.zeros(3), generator=generator)
    alike = float(clipped(model.module(), pair.z.x, 9, 0.8).norm())
    torch.testing.assert_close(bank.slot.distance(bank), torch.full((3,), 2 * alike))


def test_what_does_not_fit_is_named(task, canary):
    model = models.linear(task)
    with pytest.raises(ValueError, match="canary must be a record against nothing, got one of the pair blank under"):
        two.audited(task, model, crafters.blank(task, model, SPEC, seed=0), SECOND, SPEC, runs=2)
    with pytest.raises(ValueError, match="canary must be crafted for this task"):
        two.audited(data.digits(n_train=21), model, canary, SECOND, SPEC, runs=2)
    for wrong in (canary.slot, 20, -1):
        with pytest.raises(ValueError, match=rf"second must be a private record, 0 to 19, .* got {wrong}"):
            two.audited(task, model, canary, wrong, SPEC, runs=2)
    gradient = CanaryPair(np.eye(model.parameters)[0] * 0.8, None, 3, "S2", "add_remove")
    with pytest.raises(ValueError, match="canary must be a record against nothing"):
        two.audited(task, model, gradient, SECOND, SPEC, runs=2)
