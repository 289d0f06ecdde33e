from dataclasses import replace

import numpy as np
import pytest
import torch

from dpsub import DPSGD, crafters
from dpsub.trainers import assemble
from dpsub.trainers.bank import StepGradients
from dpsub.trainers.slot import GradientSlot


@pytest.fixture
def bank(cast):
    task, model = cast["mlp"]
    spec = DPSGD(1e-7, 0.5, 1.0, 3, 0.1)
    canary = crafters.gradient_each_step(task, model, spec, kind="dirac", seed=0)
    generator = torch.Generator().manual_seed(0)
    return assemble(model, task, spec, bits=np.zeros(2, np.int8), generator=generator, canary=replace(canary, slot=7))


def step_slot(gradients):
    """z is in the first model's slot, and z′ in that of the second."""
    return GradientSlot(torch.eye(2, dtype=torch.bool)[: 1 + (gradients.z_prime is not None), None], gradients)


@pytest.mark.parametrize("kind", ["gradient", "record"])
def test_a_slot_of_steps_agrees_with_the_slot_of_a_pair(bank_of, canary_of, bank, kind):
    pair = canary_of("mlp", kind, norm=0.5)
    model, other = bank.model, bank_of("mlp", bank.spec, [0, 1], pair)
    bank.slot = step_slot(other.slot.at_step(other))
    torch.testing.assert_close(bank.slot.distance(bank), other.slot.distance(other))
    gradient, its = bank.slot.gradient(bank), other.slot.gradient(other)
    for each in (bank, other):
        each.step()
    torch.testing.assert_close(model.flat(bank.theta), model.flat(other.theta), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(bank.slot.product(bank, gradient), other.slot.product(other, its), atol=1e-5, rtol=1e-4)


def test_gradients_of_all_parameters_and_of_some_are_scored_alike(bank):
    parameters, places = bank.model.parameters, torch.tensor([3, 11])
    few = torch.tensor([0.3, -0.4])
    whole = torch.zeros(parameters)
    whole[places] = few
    scores = []
    for worlds in (
        StepGradients(few, -few, places),
        StepGradients(whole, -whole),
        StepGradients(whole.expand(2, -1), None),
    ):
        bank.slot = step_slot(worlds)
        assert float(worlds.longest) == pytest.approx(0.5)
        bank.theta.copy_(bank.theta_0)
        bank.model.flat(bank.theta)[1] = bank.model.flat(bank.theta)[0]
        bank.step()
        scores.append(bank.slot.step_scores(bank, 1.0))
    torch.testing.assert_close(scores[0], scores[1])
    assert float(scores[0][0] - scores[0][1]) == pytest.approx(2.0, abs=1e-4)
    assert float(scores[2][0] - scores[2][1]) == pytest.approx(1.0, abs=1e-4)
