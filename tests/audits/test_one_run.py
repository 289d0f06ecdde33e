from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from dpsub import DPSGD, CanaryPair, Pairs, audit_one_run, audits, crafters, data, models
from dpsub._core.random_streams import stream
from dpsub.estimators import one_run_guesses
from dpsub.trainers import devices
from dpsub.trainers.scored_steps import ScoredSteps
from studies.one_run.pairs import natural_pairs

QUIET = {"device": "cpu", "progress": False}


@pytest.fixture(scope="module")
def unused():
    """A task with 40 features that are always 0, and opposite gradients on a weight of each."""
    rng = np.random.default_rng(0)
    x = np.concatenate([np.zeros((60, 40)), rng.normal(size=(60, 5))], axis=1)
    task = data.from_arrays(x, rng.integers(0, 2, 60), x_test=x, y_test=rng.integers(0, 2, 60), num_classes=2)
    model = models.linear(task)
    return task, model, crafters.gradient_pairs(task, model, spec(), pairs=40, seed=0)


def spec(**changes):
    usual = {"noise_multiplier": 4.0, "max_grad_norm": 0.5, "sample_rate": 0.5, "steps": 30, "learning_rate": 0.1}
    return DPSGD(**usual | changes)


def test_scores_of_gradients_that_meet_nothing_have_the_law_of_the_mechanism(unused):
    task, model, pairs = unused
    how = spec()
    seen = audit_one_run(task, model, pairs, how, models=60, **QUIET)
    assert seen.score.dims == seen.step_score.dims == seen.bit.dims == ("model", "pair")
    assert (seen.score.dtype, seen.step_score.dtype, seen.bit.dtype) == (np.float32, np.float32, np.int8)
    sign = np.where(seen.bit.values == 0, 1.0, -1.0)
    # In units of C², each step adds 2·(±1 if the slot is sampled, plus the noise).
    mean, spread = how.steps * 0.5, np.sqrt(how.steps * (0.25 + how.noise_multiplier**2))
    assert kstest((seen.step_score.values / 2 * sign - mean).ravel() / spread, "norm").pvalue > 0.01
    displaced = seen.step_score.values / 2 * 0.1 * 0.5 / (0.5 * 60)
    np.testing.assert_allclose(seen.score.values, displaced, atol=1e-5)
    plain = audit_one_run(task, model, pairs, how, models=60, subtract_expected=False, **QUIET)
    np.testing.assert_allclose(plain.step_score, seen.step_score, atol=1e-3)


def test_coins_are_fair_each_models_own_and_independent_of_how_many_there_are(unused):
    task, model, pairs = unused
    one, three = (audit_one_run(task, model, pairs, spec(steps=1), models=k, seed=3, **QUIET) for k in (1, 3))
    assert np.array_equal(one.bit[0], three.bit[0])
    assert np.array_equal(one.bit, stream(3, "one_run").integers(0, 2, (128, 40), dtype=np.int8)[:1])
    assert len(np.unique(three.bit, axis=0)) == 3


def test_the_same_seed_gives_the_same_numbers_on_any_number_of_threads(unused):
    task, model, pairs = unused
    options = {"models": 150, "metrics": ["weights"], **QUIET}
    first = audit_one_run(task, model, pairs, spec(steps=3), **options)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        again = audit_one_run(task, model, pairs, spec(steps=3), **options)
    finally:
        torch.set_num_threads(before)
    assert again.identical(first)
    assert first.weights.shape == (150, model.parameters)
    other = audit_one_run(task, model, pairs, spec(steps=3), seed=1, **options)
    assert not np.array_equal(other.bit, first.bit)
    assert not np.array_equal(other.score, first.score)


def test_attributes_tell_what_was_trained(unused):
    task, model, pairs = unused
    seen = audit_one_run(task, model, pairs, spec(steps=2), metrics=("accuracy",), seed=5, **QUIET)
    known = {
        "audited": "one run", "scenario": "S2", "adjacency": "substitute", "task_fingerprint": task.fingerprint,
        "n": 60, "noise_multiplier": 4.0, "steps": 2, "models": 1, "pairs": 40, "pairs_fingerprint": pairs.fingerprint,
        "subtract_expected": 1, "whiten": 0, "metrics": "accuracy", "seed": 5, "block_size": 128, "pairs_seed": 0,
        "device": "cpu",
    }  # fmt: skip
    assert known.items() <= seen.attrs.items()
    assert "version_torch" in seen.attrs
    assert np.array_equal(seen.slot, pairs.slots)
    assert 0 <= float(seen.accuracy[0]) <= 1


def test_what_was_in_the_slots_before_plays_no_part():
    task = data.digits(n_train=60)
    x = task.x_train.copy()
    x[[4, 9]] = 1e3
    other = data.from_arrays(x, task.y_train, num_classes=10)
    model = models.linear(task)
    pairs = [CanaryPair((task.x_train[slot], 0), (task.x_train[slot], 1), slot, "S4") for slot in (4, 9)]
    mine, its = (audit_one_run(one, model, pairs, spec(), **QUIET) for one in (task, other))
    assert np.array_equal(mine.score, its.score)
    assert np.array_equal(mine.step_score, its.step_score)


@pytest.mark.parametrize("make", [crafters.mislabeled_pairs, natural_pairs])
def test_step_scores_are_centred_on_0_if_what_is_expected_is_subtracted(make):
    task = data.digits(n_train=100)
    model, usual = models.linear(task), spec(sample_rate=1.0, steps=3)
    pairs = make(task, model, usual, pairs=8, seed=0)
    still = spec(sample_rate=1.0, steps=3, noise_multiplier=1e-7, learning_rate=1e-9)
    seen = audit_one_run(task, model, pairs, still, models=40, **QUIET)
    signs = 1.0 - 2 * seen.bit.values
    with_intercept = np.column_stack([signs, np.ones(40)])
    found, *_ = np.linalg.lstsq(with_intercept, seen.step_score.values, rcond=None)
    gram, intercept = found[:-1], found[-1]
    np.testing.assert_allclose(with_intercept @ found, seen.step_score, atol=1e-3)
    np.testing.assert_allclose(intercept, 0, atol=1e-3)
    # Each is half of ⟨g_z − g_z′, another pair's⟩ times the steps, in units of C².
    np.testing.assert_allclose(gram, gram.T, atol=1e-3)
    assert np.linalg.eigvalsh(gram).min() > -1e-3
    plain = audit_one_run(task, model, pairs, still, models=2, subtract_expected=False, **QUIET)
    others = plain.step_score.values - signs[:2] * np.diag(gram)
    assert np.abs(others).max() > 1, "what the other records contribute"


def test_guesses_are_better_than_chance_by_all_scores():
    task = data.digits(n_train=100)
    model, how = models.linear(task), spec(noise_multiplier=0.5, steps=20, sample_rate=0.3)
    pairs = crafters.mislabeled_pairs(task, model, how, pairs=20, seed=0)
    seen = audit_one_run(task, model, pairs, how, models=100, **QUIET)
    steps = one_run_guesses(seen.step_score, seen.bit, guesses=1_000)
    final = one_run_guesses(seen.score, seen.bit, guesses=1_000, centre="median")
    assert steps.correct > final.correct + 50 > 650
    assert steps.pairs == 2_000


def test_whitened_scores_tell_more_of_records_among_many_others():
    task = data.digits(n_train=400)
    model, how = models.linear(task), spec(noise_multiplier=0.5, steps=20, sample_rate=0.2)
    pairs = crafters.mislabeled_pairs(task, model, how, pairs=50, seed=0)
    plain, whitened = (audit_one_run(task, model, pairs, how, models=20, whiten=k, **QUIET) for k in (0, 10))
    assert np.array_equal(whitened.score, plain.score), "training is the same"
    assert np.array_equal(whitened.bit, plain.bit)
    found = [one_run_guesses(seen.step_score, seen.bit, guesses=300).correct for seen in (plain, whitened)]
    assert found[1] > found[0] + 30
    signs = 1.0 - 2 * whitened.bit.values
    rest = (whitened.step_score.values - signs * (whitened.step_score.values * signs).mean()).ravel()
    assert abs(rest.mean()) < 4 * rest.std() / rest.size**0.5


def test_whitened_scores_of_gradients_that_meet_nothing_are_the_same_but_for_their_scale(unused):
    task, model, pairs = unused
    plain, whitened = (audit_one_run(task, model, pairs, spec(), models=3, whiten=k, **QUIET) for k in (0, 3))
    # Each pair's direction has the variance (σ² + q(1 − q) + q²T)C² per step, in units of (σC)².
    spread = 1 + (0.5 * 0.5 + 0.25 * 30) / 4**2
    np.testing.assert_allclose(whitened.step_score * spread, plain.step_score, atol=2e-3)


@pytest.mark.parametrize("name", ["mlp", "convnet", "attention"])
def test_other_models_are_audited_too(cast, banks_of_modules, name):
    task, model = (cast | banks_of_modules)[name]
    how = DPSGD(1.0, 1.0, 0.4, 2, 0.1, "adam")
    x, slots = task.x_train[:3], [3, 9, 20]
    pairs = Pairs(slots, x, x, [0, 1, 2], [1, 2, 3], scenario="S4")
    for whiten in (0, 2):
        seen = audit_one_run(task, model, pairs, how, models=2, whiten=whiten, **QUIET)
        assert np.isfinite(seen.score).all()
        assert np.isfinite(seen.step_score).all()
        assert seen.sizes == {"model": 2, "pair": 3}


def wide(pairs, **changes):
    fields = ("slots", "z", "z_prime", "support", "parameters")
    return Pairs(**{name: getattr(pairs, name) for name in fields} | changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"whiten": -1}, "whiten must be >= 0, got -1"),
        ({"whiten": 3, "subtract_expected": False}, "whiten must be 0 without subtract_expected, got 3: set"),
        ({"metrics": "accuracy"}, "metrics must be a sequence of names, got 'accuracy'"),
        ({"pairs": lambda p: wide(p, slots=range(30, 70))}, "index 60 is out of bounds"),
        ({"pairs": lambda p: wide(p, task="other")}, "pairs must be crafted for this task"),
        ({"pairs": lambda p: wide(p, parameters=99)}, "pairs must be gradients of 92 for .* got 99"),
        ({"pairs": lambda p: wide(p, z=2 * p.z)}, "pairs must be gradients of norm <= max_grad_norm = 0.5, got one of"),
        ({"pairs": [CanaryPair((np.ones(44), 0), (np.ones(44), 1), 3, "S4")]}, "pairs must be records like the task's"),
        ({"spec": spec(noise_multiplier=1e30, learning_rate=1e38)}, "spec must be such that training does not diverge"),
    ],
)  # fmt: skip
def test_what_cannot_be_audited_is_named(unused, change, message):
    task, model, pairs = unused
    if callable(change.get("pairs")):
        change = {"pairs": change["pairs"](pairs)}
    with pytest.raises((ValueError, IndexError), match=message):
        audit_one_run(**{"task": task, "model": model, "pairs": pairs, "spec": spec(steps=5), **QUIET, **change})


def test_every_record_may_be_in_a_slot():
    task = data.digits(n_train=20)
    x, y = task.x_train, task.y_train
    pairs = Pairs(np.arange(20), x, x, y, (y + 1) % 10)
    assert audit_one_run(task, models.linear(task), pairs, spec(), **QUIET).sizes["pair"] == 20


def test_what_does_not_fit_the_memory_is_refused_before_training(unused, monkeypatch):
    monkeypatch.setattr(devices, "free_bytes", lambda device: 1000)
    with pytest.raises(ValueError, match="a block of 1 models of 92 parameters on 60 records takes"):
        audit_one_run(*unused, spec(), **QUIET)


@pytest.fixture(scope="module")
def pairs(task, model):
    return crafters.gradient_pairs(task, model, spec(), pairs=6, seed=0)


@pytest.fixture
def call(task, model, pairs, store):
    """An audit of three blocks into one store; what is given takes the place of the usual arguments."""

    def run(store=store, task=task, model=model, pairs=pairs, **options):
        usual = {"spec": spec(steps=3), "models": 300, "metrics": ("accuracy", "weights"), "seed": 3, **QUIET}
        return audit_one_run(task, model, pairs, store=store, **{**usual, **options})

    return run


def test_a_stored_audit_resumes_with_the_slots_of_all_pairs(call, store, pairs, killed_after):
    expected = call(store=None)
    killed_after(call, 2)
    there, models_stored = audits.load(store, partial=True), audits.status(store).stored
    assert models_stored in (172, 256)
    assert (there.bit >= 0).sum() == there.score.notnull().sum() == models_stored * 6
    assert np.array_equal(there.slot, pairs.slots)
    found = call()
    assert found.equals(expected)
    assert audits.load(store).identical(found)
    assert audits.load_all(store.parent, label="{models} models")["300 models", "S2"].identical(found)
    assert "audit.db: 6 pairs of S2 on digits, 300 of 300 models, complete, " in str(audits.status(store))


@pytest.mark.parametrize("metrics", [(), ("accuracy",), ("weights",)])
def test_records_and_every_choice_of_metrics_are_stored_too(call, task, store, metrics, monkeypatch):
    x, y = task.x_train[:3], task.y_train[:3]
    details = {"cosine": np.float32(0.5), "of": "the tests"}
    of_records = Pairs([0, 7, 2], x, x, y, (y + 1) % 10, scenario="mine", details=details)
    options = {"pairs": of_records, "models": 2, "metrics": metrics, "whiten": 2}
    made = call(**options)
    assert made.equals(call(store=None, **options))
    assert (made.attrs["pairs_cosine"], made.attrs["pairs_of"]) == (0.5, "the tests")
    monkeypatch.setattr("dpsub.audits.bank_plans.assemble", None)
    assert call(**options).identical(made)
    assert audits.load(store).identical(made)


def test_a_single_training_that_is_interrupted_begins_anew(call, store, monkeypatch):
    advance, calls = ScoredSteps.advance, count()

    def interrupted(self):
        if next(calls) == 2:
            raise KeyboardInterrupt
        advance(self)

    with monkeypatch.context() as patch:
        patch.setattr(ScoredSteps, "advance", interrupted)
        with pytest.raises(KeyboardInterrupt, match=r"0 of 1 models are in .*audit\.db; the same call goes on"):
            call(models=1)
    assert audits.status(store).stored == 0
    assert call(models=1).equals(call(store=None, models=1))
    assert audits.status(store).complete


def test_blocks_that_are_stored_together_have_coins_of_their_own(call, monkeypatch):
    monkeypatch.setattr("dpsub.audits.bank_plans.block_size", lambda model: 1)
    options = {"models": 130, "metrics": (), "spec": spec(steps=1)}  # two in a shard
    found = call(**options)
    assert found.isel(model=slice(3)).equals(call(store=None, **options | {"models": 3}))
    for number in (0, 1, 64, 129):
        tossed = stream(3, "one_run", number).integers(0, 2, (1, 6), dtype=np.int8)
        assert np.array_equal(found.bit[number], tossed[0])


def test_another_audit_is_refused_and_the_difference_is_shown(call, task, pairs):
    made = call(models=2)
    few = {name: getattr(pairs, name) for name in ("support", "parameters", "task", "scenario", "details")}
    for change, told in (
        ({"seed": 4}, "seed: stored 3, asked for 4"),
        ({"spec": spec(steps=3, noise_multiplier=4.1)}, r"noise_multiplier: stored 4\.0, asked for 4\.1"),
        ({"metrics": ("accuracy",)}, "metrics: stored 'accuracy weights', asked for 'accuracy'"),
        ({"whiten": 2}, "whiten: stored 0, asked for 2"),
        ({"pairs": replace(pairs, z=pairs.z_prime, z_prime=pairs.z)}, "pairs_fingerprint: stored '"),
        ({"pairs": replace(pairs, slots=pairs.slots[::-1])}, "pairs_fingerprint: stored '"),
        ({"pairs": Pairs(pairs.slots[:5], pairs.z[:5], pairs.z_prime[:5], **few)}, "pairs: stored 6, asked for 5"),
        ({"task": replace(task, y_test=(task.y_test + 1) % 10)}, "test_fingerprint: stored"),
    ):
        with pytest.raises(ValueError, match=f"(?s)store holds another audit, .*audit.db:.*{told}.*give another"):
            call(**{"models": 2, **change})
    up_to_rounding = spec(steps=3, noise_multiplier=4.0 * (1 + 1e-9))
    assert call(models=2, spec=up_to_rounding).identical(made)
