from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpsub import data, models, trainers
from dpsub.audits.distinguishers import AdversarialSamples
from studies.final_models import distillation
from studies.final_models.black_boxes import crafted_on_answers

RNG = np.random.default_rng(0)
TASK = data.from_arrays(RNG.normal(size=(40, 4)), RNG.integers(0, 3, 40), num_classes=3)
MODEL = models.mlp(TASK, (5,))
BITS = np.arange(12) % 2
SAMPLE = (np.array([0.5, -1.0, 0.25, 2.0], dtype=np.float32), 1)


class Given:
    """Crafts the same sample always, and keeps what it was given."""

    def __init__(self, x=SAMPLE[0], y=SAMPLE[1]):
        self.sample, self.seen = SimpleNamespace(x=x, y=y), None

    def learn(self, model, weights, bits):
        self.seen = (model, weights, bits)
        return self.sample


def final_models(model, runs, seed=3):
    generator = torch.Generator().manual_seed(seed)
    weights = model.flat(model.initial_parameters(runs, generator)).clone()
    return (weights + 0.3 * torch.randn(weights.shape, generator=generator)).numpy()


def turned(weights):
    """Models that answer the same with other weights: every hidden unit of a tanh network with its sign turned."""
    hidden = 5 * 4 + 5
    other = weights.copy()
    other[:, :hidden] *= -1
    other[:, hidden : hidden + 3 * 5] *= -1
    return other


TRAINING = {"epochs": 3, "learning_rate": 0.01, "batch_size": 16, "seed": 2, "device": "cpu"}


def crafted(model, weights, bits, craft=None, **changes):
    return crafted_on_answers(model, weights, bits, records=TASK.x_train, craft=craft or Given(), **TRAINING | changes)


SAYS = pytest.mark.parametrize("says", ["logits", "probabilities", "labels"])


@SAYS
def test_it_knows_of_the_models_what_they_answer(says):
    weights = final_models(MODEL, 12)
    other = turned(weights)
    assert np.abs(weights - other).max() > 0.5
    both = []
    for one in (weights, other):
        craft = Given()
        learnt = crafted(MODEL, one, BITS, craft, says=says)
        both.append((craft.seen[1], learnt.surrogates.loss, learnt.scores(MODEL, one)))
    for mine, others in zip(*both, strict=True):
        np.testing.assert_array_equal(mine, others)
    changed = Given()
    crafted(MODEL, final_models(MODEL, 12, seed=4), BITS, changed, says=says)
    assert not np.array_equal(changed.seen[1], both[0][0])


@SAYS
def test_samples_are_crafted_on_surrogates_of_the_answers(says):
    weights, craft = final_models(MODEL, 12), Given()
    learnt = crafted(MODEL, weights, BITS, craft, says=says)
    said = trainers.answers_of(MODEL, weights, TASK.x_train, says=says, device="cpu")
    expected = distillation.distilled(MODEL, said, TASK.x_train, says=says, **TRAINING)
    model, surrogates, bits = craft.seen
    assert model is MODEL
    np.testing.assert_array_equal(surrogates, expected.weights)
    np.testing.assert_array_equal(bits, BITS)
    np.testing.assert_array_equal(learnt.surrogates.loss, expected.loss)


def test_scores_are_what_the_box_says_of_the_label():
    weights = final_models(MODEL, 30, seed=9)
    with torch.no_grad():
        outputs = torch.stack([MODEL.module(one)(torch.tensor(SAMPLE[0][None]))[0] for one in weights])
    logs = torch.log_softmax(outputs, dim=1)[:, 1].numpy()
    for says, sought in (("logits", logs), ("probabilities", logs), ("labels", outputs.argmax(dim=1).numpy() == 1)):
        scores = crafted(MODEL, weights, np.arange(30) % 2, says=says, epochs=1).scores(MODEL, weights)
        assert scores.dtype == np.float32
        np.testing.assert_allclose(scores, sought, atol=1e-5)
    assert set(scores) == {0.0, 1.0}


def test_probabilities_that_round_to_0_have_the_lowest_score():
    model = models.linear(TASK)
    weights = np.zeros((4, model.parameters), dtype=np.float32)
    weights[:, -2] = [-1e4, -200.0, -50.0, 0.0]  # the bias of class 1
    found = {
        says: crafted(model, weights, BITS[:4], says=says, epochs=1).scores(model, weights)
        for says in ("logits", "probabilities")
    }
    floor = np.log(np.finfo(np.float32).tiny)
    np.testing.assert_allclose(found["logits"], [-1e4, -200, -50, 0] - np.log([2, 2, 2, 3]), rtol=1e-5)
    np.testing.assert_allclose(found["probabilities"], np.maximum(found["logits"], floor), rtol=1e-5)


def test_it_finds_on_surrogates_what_tells_the_worlds_apart():
    model = models.linear(TASK)
    bits = np.arange(60) % 2
    weights = np.random.default_rng(1).normal(size=(120, model.parameters)).astype(np.float32)
    apart = np.zeros(model.parameters, dtype=np.float32)
    apart[3:6] = [-2.0, 4.0, -2.0]  # the second feature speaks for class 1 in the models trained with z
    weights += (np.tile(bits, 2) == 0)[:, None] * apart
    craft = AdversarialSamples((np.zeros(4), 1), loss="ude", bounds=(-1, 1), steps=20, device="cpu")
    for says in ("logits", "probabilities", "labels"):
        learnt = crafted(model, weights[:60], bits, craft, says=says, epochs=40, learning_rate=0.05)
        assert learnt.x[1] > 0.8
        assert learnt.surrogates.loss[-1] < learnt.surrogates.loss[0] / 2
        scores = learnt.scores(model, weights[60:])
        gap = scores[bits == 0].mean() - scores[bits == 1].mean()
        assert gap > scores.std()
