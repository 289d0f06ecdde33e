import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from cases import slow_but

from dpsub import audit, crafters, models
from dpsub._core.random_streams import torch_seed
from dpsub.trainers import assemble

C = 0.7


@pytest.mark.parametrize("kind", slow_but(["linear", "mlp"], "linear"))
def test_ascent_by_hand_on_the_mean_distance_of_clipped_gradients(kind, task, spec, gradient_by_hand):
    model, setting = getattr(models, kind)(task), spec(max_grad_norm=C, steps=12, learning_rate=0.5)
    pair = crafters.robust_input(task, model, setting, seed=1, target=3, moments=3, steps=3, learning_rate=0.4)
    generator = torch.Generator().manual_seed(torch_seed(1, "crafter"))
    bank = assemble(model, task, setting, bits=np.zeros(1, np.int8), generator=generator)
    modules = [
        model.module(model.flat(bank.theta)[0].clone()).double()
        for step, _ in enumerate(itertools.chain([None], bank.train(noise=False)))
        if step in (0, 4, 8)
    ]

    def distance(x):
        both = ([gradient_by_hand(module, one, pair.z.y) for one in (x, pair.z.x)] for module in modules)
        apart = [np.subtract(*(one * min(1, C / float(one.norm())) for one in each)) for each in both]
        return np.mean([float(one.norm()) for one in apart]) / C

    x, h = np.zeros_like(pair.z.x, dtype=np.float64), 1e-6
    for step in range(3):
        assert pair.trace["distance"][step] == pytest.approx(distance(x), rel=1e-5)
        x += 0.4 * C * np.array([(distance(x + h * e) - distance(x - h * e)) / (2 * h) for e in np.eye(len(x))])
    assert pair.details["distance"] == pytest.approx(distance(x), rel=1e-5)
    assert pair.details["distance"] > pair.trace["distance"][0]
    np.testing.assert_allclose(pair.z_prime.x, x, atol=1e-5)
    assert (pair.slot, pair.z_prime.y, pair.scenario, pair.adjacency) == (3, pair.z.y, "S3", "substitute")


def test_a_large_clipping_bound_weakens_it_less(task, spec):
    setting = replace(spec(max_grad_norm=20.0, steps=40), noise_multiplier=4.0)
    model, told = models.linear(task), []
    for craft in (crafters.crafted_input, crafters.robust_input):
        pair = craft(task, model, setting, seed=0, steps=200, learning_rate=1.0)
        last = audit(task, model, pair, setting, runs=200, observe_every=40, progress=False, device="cpu")
        score, bit = last.score.values[:, -1], last.bit.values
        told.append((score[bit == 0].mean() - score[bit == 1].mean()) / score[bit == 0].std())
    assert told[1] > 1.3 * told[0]
