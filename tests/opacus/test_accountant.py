import io
import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from opacus.accountants import PRVAccountant, create_accountant
from opacus.accountants.utils import get_noise_multiplier
from scipy.stats import binom

from dpsub import accounting
from dpsub.opacus import SubstitutePRVAccountant, privacy_statement
from dpsub.opacus.accountant import BatchSizes, equal_chance

pytestmark = pytest.mark.filterwarnings("default")  # Opacus warns about many things


@pytest.fixture
def accountant(steps):
    recorded = SubstitutePRVAccountant()
    recorded.history = list(steps)
    return recorded


def test_a_training_is_accounted_for_under_substitution(trained):
    engine, _, optimizer, *_ = trained(noise_multiplier=1.3)
    optimizer.noise_multiplier = 2.0
    engine.accountant.step(noise_multiplier=2.0, sample_rate=0.1)
    assert engine.accountant.history == [(1.3, 0.1, 20), (2.0, 0.1, 1)]
    expected = accounting.epsilon(history=engine.accountant.history, delta=1e-5, adjacency="substitute")
    assert engine.get_epsilon(1e-5) == expected
    assert expected > accounting.epsilon(history=engine.accountant.history, delta=1e-5, adjacency="add_remove")


def test_noise_is_calibrated_to_a_substitute_target(trained):
    engine, _, optimizer, *_ = trained(target_epsilon=3.0, target_delta=1e-5)
    assert 3.0 - 0.02 < engine.get_epsilon(1e-5) <= 3.0
    smallest = accounting.noise_multiplier(
        target_epsilon=3.0, sample_rate=0.1, steps=20, delta=1e-5, adjacency="substitute"
    )
    assert smallest <= optimizer.noise_multiplier < 1.01 * smallest


def test_a_checkpoint_keeps_the_steps_taken(trained):
    engine, model, optimizer, *_ = trained(noise_multiplier=1.3)
    file = io.BytesIO()
    engine.save_checkpoint(path=file, module=model, optimizer=optimizer)
    file.seek(0)
    other, model, optimizer, *_ = trained(noise_multiplier=1.3, epochs=0)
    other.load_checkpoint(path=file, module=model, optimizer=optimizer)
    assert other.accountant.history == [(1.3, 0.1, 20)]
    assert other.get_epsilon(1e-5) == engine.get_epsilon(1e-5) > 0


def test_a_checkpoint_of_another_accountant_is_refused_with_a_way_out(steps):
    recorded = PRVAccountant()
    recorded.history = steps
    accountant = SubstitutePRVAccountant()
    with pytest.raises(ValueError, match=r"state_dict must be of .*, got one of 'prv': .*\['history'\]"):
        accountant.load_state_dict(recorded.state_dict())
    accountant.history = recorded.state_dict()["history"]
    assert accountant.get_epsilon(1e-5) == accounting.epsilon(history=steps, delta=1e-5, adjacency="substitute")


def test_batches_of_fixed_size_are_noticed_after_a_checkpoint_too(trained):
    engine, *_ = trained(noise_multiplier=1.0, poisson_sampling=False)
    resumed, again = SubstitutePRVAccountant(), SubstitutePRVAccountant()
    resumed.load_state_dict(engine.accountant.state_dict())
    for accountant in (engine.accountant, resumed):
        with pytest.raises(ValueError, match=r"sampling must be 'epochs' or .* 10 of 10 pairs .* equal size: set"):
            accountant.get_epsilon(1e-5)
        accountant.sampling = "epochs"
        assert accountant.get_epsilon(1e-5) == pytest.approx(15.456, abs=1e-3)
    again.load_state_dict(resumed.state_dict())
    assert again.get_epsilon(1e-5) == pytest.approx(15.456, abs=1e-3)


def test_accumulated_gradients_are_noticed(trained):
    engine, *_ = trained(noise_multiplier=1.0, poisson_sampling=False, accumulated=2)
    with pytest.raises(
        ValueError, match="sampling must be 'epochs' or 'without_replacement' for .* accumulated in a step"
    ):
        engine.get_epsilon(1e-5)
    assert engine.accountant.history == [(1.0, 0.2, 10)]
    engine.accountant.sampling = "epochs"
    assert engine.get_epsilon(1e-5) == pytest.approx(15.456, abs=1e-3)


@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize("sampling", ["poisson", "epochs"])
def test_batches_joined_by_skipped_steps_have_no_epsilon(trained, poisson, sampling):
    engine, *_, loader = trained(noise_multiplier=1.0, poisson_sampling=poisson, joined=5, epochs=12)
    engine.accountant.sampling = sampling
    with pytest.raises(
        ValueError, match="must be of steps that took one batch each, whole or in parts, .* Draw batches"
    ):
        engine.get_epsilon(1e-5)
    with pytest.raises(ValueError, match="must be of steps that took one batch each"):
        privacy_statement(engine, delta=1e-5, data_loader=loader)


def test_batches_split_for_memory_are_not_taken_for_fixed_ones(trained):
    engine, *_ = trained(noise_multiplier=1.0, most=2, epochs=4)
    assert engine.get_epsilon(1e-5) > 0


def test_opacus_creates_it_by_name():
    accountant = create_accountant("prv_substitute")
    assert type(accountant) is SubstitutePRVAccountant
    assert accountant.get_epsilon(1e-5) == 0
    sigma = get_noise_multiplier(
        target_epsilon=2.0, target_delta=1e-6, sample_rate=0.02, steps=400, accountant="prv_substitute"
    )
    reached = accounting.epsilon(
        noise_multiplier=sigma, sample_rate=0.02, steps=400, delta=1e-6, adjacency="substitute"
    )
    assert 1.98 < reached <= 2.0


def test_no_noise_is_no_privacy(accountant):
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    assert accountant.get_epsilon(1e-5) == math.inf


def test_a_smaller_error_may_be_asked_for(accountant, steps):
    precise = accountant.get_epsilon(1e-5, eps_error=1e-6)
    interval = accounting.epsilon_interval(history=steps, delta=1e-5, adjacency="substitute", eps_error=1e-6)
    assert precise == interval.upper
    assert precise < accountant.get_epsilon(1e-5)


# Opacus accounts for one of the two directions of add/remove, which is the larger one at ordinary settings.
@pytest.mark.parametrize("setting", [(1.1, 0.064, 469), (0.8, 0.01, 1_000)])
def test_opacus_own_epsilon_is_our_add_remove(setting):
    theirs = PRVAccountant()
    theirs.history = [setting]
    ours = accounting.epsilon_interval(history=[setting], delta=1e-5, adjacency="add_remove")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert theirs.get_epsilon(1e-5) == pytest.approx(ours.estimate, abs=0.03)
    assert ours.upper - ours.estimate < 1e-3 * ours.upper


def test_a_loaded_checkpoint_is_not_written_to(steps):
    accountant = SubstitutePRVAccountant()
    state = {"mechanism": "prv_substitute", "history": list(steps)}
    accountant.load_state_dict(state)
    accountant.step(noise_multiplier=9.0, sample_rate=0.5)
    assert state["history"] == list(steps)


def seen(sizes, expected=6, sample_rate=0.1, all_samplings=False, most=None, **about):
    """What batches of these sizes speak against, each in parts of at most `most` records."""
    batches, most = BatchSizes(), most or max(sizes)
    for size in sizes:
        parts = max(1, math.ceil(size / most))
        usual = {"accumulated_iterations": 1, "_is_last_step_skipped": parts > 1}
        usual["params"] = [SimpleNamespace(grad_sample=torch.zeros(size // parts, 1))]
        batches.see(SimpleNamespace(expected_batch_size=expected, **usual | about), sample_rate)
    return batches.against_all if all_samplings else batches.against_poisson


def test_batches_of_one_size_are_not_poissons():
    assert "10 of 10 pairs" in seen([6] * 20)
    assert seen([6] * 10) == ""  # five pairs: a chance of 3e-5


def test_a_smaller_last_batch_does_not_hide_it():
    assert seen(([7] * 8 + [4]) * 6, expected=6.7, sample_rate=1 / 9)


@pytest.mark.parametrize(("n", "rate"), [(60, 0.1), (10_000, 0.0064), (500, 1.0), (8, 0.5), (1000, 0.001)])
def test_poisson_batches_are_taken_for_what_they_are(n, rate):
    sizes = np.random.default_rng(0).binomial(n, rate, 4000)
    assert seen(sizes, expected=int(n * rate), sample_rate=rate) == ""


@pytest.mark.parametrize(("n", "rate"), [(60, 0.1), (10_000, 0.0064), (500, 1.0), (8, 0.5)])
def test_the_chance_of_two_equal_sizes(n, rate):
    exact = float(np.sum(binom.pmf(np.arange(n + 1), n, rate) ** 2))
    assert equal_chance(n * rate, rate) == pytest.approx(exact, rel=1e-9)


def test_accumulated_gradients_are_not_poissons():
    assert "accumulated" in seen([6], accumulated_iterations=2)


def test_batches_that_were_split_say_nothing():
    assert seen([3] * 40, _is_last_step_skipped=True) == ""
    assert seen([6] * 40, params=[SimpleNamespace()]) == ""  # ghost clipping keeps no gradients of records


@pytest.mark.parametrize(("n", "rate"), [(60, 0.1), (59, 1 / 30), (10_000, 0.0064), (500, 1.0), (8, 0.5), (119, 0.1)])
@pytest.mark.parametrize("most", [1, 2, 20, 100])
def test_the_parts_of_poisson_batches_are_those_of_one_batch(n, rate, most):
    sizes = np.random.default_rng(0).binomial(n, rate, 2000)
    assert seen(sizes, int(n * rate), rate, all_samplings=True, most=most) == ""


def test_batches_joined_by_skipped_steps_are_those_of_no_sampling():
    joined = {"_is_last_step_skipped": True, "all_samplings": True}
    sizes = np.random.default_rng(0).binomial(60, 0.1, 20)
    assert "records were in batches, where 140 are expected at most" in seen(sizes, **joined)
    assert seen(sizes[:3], **joined) == ""
    assert seen(sizes, all_samplings=True) == ""
