"""What an audit does to the steps of an optimizer, and what it leaves."""

import itertools
import math

import numpy as np
import pytest
import torch
from cases import slow_but
from opacus.optimizers import DPOptimizer
from scipy.stats import kstest

from dpsub.estimators import bound, epsilon_lower_bound
from dpsub.opacus import SubstitutePRVAccountant, audit_optimizer

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")

KINDS = ("flat", "per_layer", "ghost", "adaptive")
CLAIM = {"delta": 1e-5, "adjacency": "substitute", "sample_rate": 0.1}


def audited(trained, **options):
    return audit_optimizer(trained.optimizer, **{**CLAIM, **options})


def same(first, second):
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


TAKEN = [*itertools.product(KINDS, ("dirac", "diracs", "constant", "random"))]


@pytest.mark.parametrize(("kind", "canary"), slow_but(TAKEN, *TAKEN[::5], *TAKEN[3:15:3]))
def test_the_steps_taken_are_opacus_own(private, kind, canary):
    plain, trained = private(kind), private(kind)
    auditor = audited(trained, canary=canary)
    for _ in range(5):
        same(plain.step(), trained.step())
        if kind == "adaptive":  # its bound also follows the canary
            trained.optimizer.max_grad_norm = plain.optimizer.max_grad_norm.clone()
    same(plain.parameters, trained.parameters)
    assert auditor.steps == 5


CLIPPED = [
    *itertools.product(("flat", "per_layer", "ghost"), ("substitute", "add_remove", "zero_out"), ("mean", "sum"))
]


@pytest.mark.parametrize(("kind", "adjacency", "reduction"), slow_but(CLIPPED, *CLIPPED[::5], *CLIPPED[2::5]))
def test_scores_are_the_noise_and_one_clipped_canary(private, kind, adjacency, reduction):
    # With gradients of 0 the sum is the canary and the noise, which a second generator draws again.
    trained = private(kind, reduction=reduction, lr=0.0)
    with torch.no_grad():
        for parameter in trained.parameters:
            parameter.zero_()
    auditor = audited(trained, adjacency=adjacency, canary="constant")
    again, noises = torch.Generator().manual_seed(1), []
    # Clipping by layer clips a long canary to the same norm in each of the four.
    sizes = np.array([parameter.numel() for parameter in trained.parameters])
    lengths = np.full(4, 0.5) if kind == "per_layer" else np.sqrt(sizes / sizes.sum())
    for _ in range(12):
        trained.optimizer.zero_grad()
        trained.backward()
        for parameter in trained.parameters:
            if kind == "ghost":
                parameter.grad.zero_()
            else:
                parameter.grad_sample.zero_()
        trained.optimizer.step()
        noise = [float(torch.normal(0.0, 1.0, one.shape, generator=again).sum()) for one in trained.parameters]
        noises.append(float(np.array(noise) / np.sqrt(sizes) @ lengths))
    seen = auditor.observations()
    means = np.where(seen.bit == 0, 1.0, -1.0 if adjacency == "substitute" else 0.0)
    assert len(np.unique(seen.bit)) == 2
    np.testing.assert_allclose(seen.score, means + noises, atol=2e-5)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_scores_of_a_dirac_are_gaussian(private, adjacency):
    trained = private(noise_multiplier=0.8, c=0.01)
    auditor = audited(trained, adjacency=adjacency)
    for _ in range(200):
        trained.optimizer.zero_grad()
        for parameter in trained.parameters:
            parameter.grad_sample = torch.zeros(8, *parameter.shape)
        trained.optimizer.step()
    seen = auditor.observations()
    means = np.where(seen.bit == 0, 1.0, -1.0 if adjacency == "substitute" else 0.0)
    assert kstest((seen.score - means) / 0.8, "norm").pvalue > 0.01
    assert abs(float(seen.bit.mean()) - 0.5) < 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_removed_canaries_leave_nothing(private, kind):
    plain, trained = private(kind), private(kind)
    before = dict(vars(trained.optimizer))
    auditor = audited(trained)
    assert vars(trained.optimizer).keys() - before.keys() == {"step", "_dpsub_auditor"}
    auditor.remove()
    auditor.remove()
    assert vars(trained.optimizer) == before
    assert not trained.optimizer.original_optimizer._optimizer_step_pre_hooks
    for _ in range(3):
        for mine, theirs in zip(plain.step(), trained.step(), strict=True):
            assert torch.equal(mine, theirs)
    assert auditor.steps == 0
    audited(trained)  # it may be audited again


def test_a_step_without_its_canary_is_bit_for_bit_opacus_own(private):
    plain, trained = private(), private()
    auditor = audited(trained, canary_rate=1e-3)
    for _ in range(3):
        for mine, theirs in zip(plain.step(), trained.step(), strict=True):
            assert torch.equal(mine, theirs)
    assert auditor.steps == 3


def test_the_randomness_of_the_training_is_not_touched(private):
    trained = private()
    audited(trained, canary="random", anew=True)
    trained.optimizer.zero_grad()
    trained.backward()
    before = torch.random.get_rng_state()
    trained.optimizer.step()
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize("kind", ["flat", "ghost"])
def test_canaries_of_a_step_enter_with_coins_of_their_own_and_leave(private, kind, adjacency):
    plain, trained = private(kind, noise_multiplier=0.05), private(kind, noise_multiplier=0.05)
    auditor = audited(trained, adjacency=adjacency, canaries=6, anew=True)
    for _ in range(15):
        same(plain.step(), trained.step())
    seen = auditor.observations()
    assert seen.step.values.tolist() == [step for step in range(1, 16) for _ in range(6)]
    assert len(np.unique(seen.bit.values.reshape(15, 6), axis=0)) > 8
    means = np.where(seen.bit == 0, 1.0, -1.0 if adjacency == "substitute" else 0.0)
    left = 0.3 if kind == "flat" else 2.0  # with ghost clipping the records are in it
    assert np.abs(seen.score - means).max() < left
    if (adjacency, kind) == ("substitute", "flat"):
        report = auditor.report()
        assert (report.observations, report.canaries) == (15, 6)
        assert report.step.epsilon == pytest.approx(epsilon_lower_bound(seen.score, seen.bit, delta=1e-5).epsilon)
        assert bound(seen, delta=1e-5).epsilon == pytest.approx(report.epsilon)


def test_canaries_of_a_step_must_have_coordinates_of_their_own(private):
    for options in ({"canary": "random"}, {"canary": "constant"}):
        with pytest.raises(ValueError, match="canaries must be 1 for any canary but 'dirac' with flat clipping, got 2"):
            audited(private(), canaries=2, **options)
    with pytest.raises(ValueError, match="got 2 with clipping by layer"):
        audited(private("per_layer"), canaries=2)
    trained = private()
    assert audited(trained, canaries=83).steps == 0
    trained.step()


@pytest.mark.parametrize("canary", ["dirac", "random"])
@pytest.mark.parametrize("kind", ["flat", "per_layer"])
def test_what_taking_a_canary_out_leaves_is_rounding(private, kind, canary):
    plain, trained = private(kind, reduction="sum"), private(kind, reduction="sum")
    audited(trained, canary=canary)
    largest = 1.5 + max(float(one.abs().max()) for one in plain.step())
    for one, parameter in zip(trained.step(), plain.parameters, strict=True):
        assert (one - parameter.grad).abs().max() <= 4 * torch.finfo(one.dtype).eps * largest


def test_grad_sample_is_that_of_the_batch_after_the_step_and_stays_so(private):
    plain, trained = private(), private()
    audited(trained)
    kept = []
    for size in (8, 3, 12, 5):
        plain.step(size), trained.step(size)
        kept += [(one.grad_sample.clone(), one.grad_sample) for one in trained.parameters]
        same([one.grad_sample for one in plain.parameters], [one.grad_sample for one in trained.parameters])
    assert all(torch.equal(before, now) for before, now in kept)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove", "zero_out"])
def test_an_empty_batch_is_a_step(private, adjacency):
    trained = private()
    auditor = audited(trained, adjacency=adjacency)
    for _ in range(8):
        gradients = trained.step(0)
    assert all(bool(torch.isfinite(one).all()) for one in gradients)
    assert auditor.steps == 8


def test_a_closure_is_called_once_and_its_gradients_are_audited(private):
    trained, calls = private(), []
    auditor = audited(trained)

    def closure():
        calls.append(None)
        trained.optimizer.zero_grad()
        trained.backward()

    trained.optimizer.step(closure)
    assert (len(calls), auditor.steps) == (1, 1)


def test_schedulers_may_come_before_and_after(private):
    trained = private()
    before = torch.optim.lr_scheduler.StepLR(trained.optimizer, 1)
    auditor = audited(trained)
    after = torch.optim.lr_scheduler.StepLR(trained.optimizer, 1)
    trained.step()
    before.step(), after.step()
    assert auditor.steps == 1
    auditor.remove()
    trained.step()
    assert auditor.steps == 1


def test_a_failed_step_is_not_tossed_for_again(private):
    trained, other = private(), private()
    auditor, undisturbed = audited(trained), audited(other)

    def fail(_):
        raise RuntimeError("out of memory")

    for _ in range(12):
        trained.optimizer.attach_step_hook(fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            trained.step()
        trained.optimizer.attach_step_hook(lambda _: None)
        trained.step()
        other.step()
    assert auditor.observations().bit.equals(undisturbed.observations().bit)


def test_accountants_count_the_records_without_the_canary(private):
    trained, accountant = private(), SubstitutePRVAccountant()
    trained.optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(0.1))
    audited(trained, adjacency="add_remove")
    for _ in range(60):
        trained.step()
    with pytest.raises(ValueError, match="30 of 30 pairs of successive batches were of equal size"):
        accountant.get_epsilon(1e-5)


class OwnSteps(DPOptimizer):
    def step(self, closure=None):
        self.pre_step()
        return self.original_optimizer.step()


class NoOriginal(DPOptimizer):
    def step(self, closure=None):
        self.pre_step()


def test_subclasses_are_audited_as_they_are_if_the_original_optimizer_steps(private):
    trained = private(optimizer=OwnSteps)
    auditor = audited(trained)
    trained.step()
    assert auditor.steps == 1
    trained = private(optimizer=NoOriginal)
    audited(trained)
    with pytest.raises(RuntimeError, match="must let optimizer.original_optimizer step"):
        trained.step()


def test_what_a_step_cannot_be_audited_with_is_named(private):
    trained = private()
    audited(trained)
    trained.model.disable_hooks()
    with pytest.raises(ValueError, match=r"must find grad_sample of all parameters.*mode in which it was wrapped"):
        trained.step()
    trained = private("ghost")
    audited(trained)
    with pytest.raises(ValueError, match=r"must find grad of all parameters.*Call model.train\(\), leave its hooks"):
        trained.optimizer.step()
    trained = private()
    audited(trained)
    trained.parameters[0].requires_grad_(False)
    with pytest.raises(ValueError, match="the 4 parameters that it had when it was wrapped, got 3"):
        trained.step()
    trained = private()
    auditor = audited(trained)
    with torch.no_grad():
        trained.parameters[0].fill_(math.inf)
    with pytest.raises(ValueError, match="optimizer must have finite gradients, got nan in a step"):
        trained.step()
    assert auditor.steps == 0
