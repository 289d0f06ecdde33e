from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest

from dpsub import DPSGD, CanaryPair, audit_steps, audits, crafters, data, models
from dpsub._core.random_streams import stream, torch_seed
from dpsub.estimators import epsilon_lower_bound
from dpsub.trainers.bank import StepGradients
from dpsub.trainers.step_canaries import StepCanary, clipped_gradients

QUIET = {"device": "cpu", "progress": False}


def unused_column(n=40, seed=0):
    """A task whose first feature is always 0, and an opposite pair of gradients on a weight of that feature."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5))
    x[:, 0] = 0
    task = data.from_arrays(x, rng.integers(0, 3, n), num_classes=3)
    model = models.mlp(task, (4,))
    z = np.zeros(model.parameters, dtype=np.float32)
    first = next(name for name, _ in model.module().named_parameters())
    assert first.endswith("weight")
    z[0] = 2.0
    return task, model, CanaryPair(z, -z, 3, "unused")


def spec(steps, *, noise_multiplier=1.0, sample_rate=0.5, max_grad_norm=2.0):
    return DPSGD(noise_multiplier, max_grad_norm, sample_rate, steps, 0.05)


def signs(found):
    return np.where(found.bit.values == 0, 1.0, -1.0)


def test_scores_of_opposite_gradients_are_normal_around_plus_and_minus_one():
    task, model, pair = unused_column()
    found = audit_steps(task, model, pair, spec(1_000, noise_multiplier=0.7), seed=4, **QUIET)
    assert found.score.dims == found.bit.dims == ("observation",)
    assert (found.score.dtype, found.bit.dtype) == (np.float32, np.int8)
    assert kstest((found.score.values - signs(found)) / 0.7, "norm").pvalue > 0.01
    assert binom.cdf(int(found.bit.sum()), 1_000, 0.5) == pytest.approx(0.5, abs=0.499)


def test_beside_an_empty_slot_they_are_normal_around_one_and_zero():
    task, model, pair = unused_column()
    alone = pair.against_nothing(adjacency="zero_out")
    found = audit_steps(task, model, alone, spec(1_000, noise_multiplier=0.7), **QUIET)
    assert kstest((found.score.values - (found.bit.values == 0)) / 0.7, "norm").pvalue > 0.01


def test_the_slot_is_sampled_at_the_canary_rate_whatever_the_world():
    task, model, pair = unused_column()
    found = audit_steps(task, model, pair, spec(500, noise_multiplier=1e-3), canary_rate=0.3, **QUIET)
    scores, bits = found.score.values, found.bit.values
    present = np.abs(scores) > 0.5
    assert np.abs(scores[present] - signs(found)[present]).max() < 0.01
    assert np.abs(scores[~present]).max() < 0.01
    for world in (0, 1):
        there, of = int(present[bits == world].sum()), int((bits == world).sum())
        assert 1e-3 < binom.cdf(there, of, 0.3) < 1 - 1e-3


@pytest.mark.parametrize("name", ["linear", "mlp", "convnet"])
@pytest.mark.parametrize("kind", ["gradient", "record", "record against nothing"])
def test_scores_are_those_of_a_naive_training(cast, canary_of, name, kind):
    task, model = cast[name]
    pair = canary_of(name, kind.split()[0])
    if kind.endswith("nothing"):
        pair = pair.against_nothing(adjacency="add_remove")
    how = spec(6, noise_multiplier=1e-7, sample_rate=1.0, max_grad_norm=1.0)
    found = audit_steps(task, model, pair, how, seed=1, **QUIET)

    begin = torch.Generator().manual_seed(torch_seed(1, "steps", 0))
    theta = model.flat(model.initial_parameters(1, begin))[0].double()
    others = [i for i in range(len(task.y_train)) if i != pair.slot]
    for step, bit in enumerate(found.bit.values):
        module = model.module(theta.float()).double()
        sums = sum(_clipped(model, module, task.x_train[i], int(task.y_train[i])) for i in others)
        z, z_prime = (_world(model, module, world) for world in (pair.z, pair.z_prime))
        sums = sums + (z if bit == 0 else z_prime)
        apart, middle = (z, 0 * z) if kind.endswith("nothing") else (z - z_prime, (z + z_prime) / 2)
        assert found.score.values[step] == pytest.approx(float((apart / apart.norm()) @ (sums - middle)), abs=2e-4)
        theta = theta - how.learning_rate * sums / len(task.y_train)


def _world(model, module, world):
    if world is None:
        return torch.zeros(sum(one.numel() for one in module.parameters()), dtype=torch.float64)
    return _clipped(model, module, *world) if isinstance(world, tuple) else torch.tensor(world).double()


def _clipped(model, module, x, y):
    loss = torch.nn.functional.cross_entropy(module(torch.tensor(x).double()[None]), torch.tensor([y]))
    parts = list(torch.autograd.grad(loss, list(module.parameters())))
    if isinstance(model, models.Linear):
        parts[0] = parts[0].T
    gradient = torch.cat([part.flatten() for part in parts])
    return gradient * min(1.0, 1 / (gradient.norm() + 1e-6))


def test_what_was_in_the_slot_before_plays_no_part():
    task, model, pair = unused_column()
    x = task.x_train.copy()
    x[pair.slot] = 1e3
    other = data.from_arrays(x, task.y_train, num_classes=3)
    mine, its = (audit_steps(one, model, pair, spec(20), **QUIET) for one in (task, other))
    assert np.array_equal(mine.score, its.score)


def test_two_trainings_have_one_world_each():
    task, model, pair = unused_column()
    found = audit_steps(task, model, pair, spec(300), trainings=4, protocol="two_trainings", **QUIET)
    assert np.array_equal(found.bit, found.training % 2)
    assert np.array_equal(found.step, np.tile(np.arange(1, 301), 4))
    assert found.same_world.values.all()
    bound = epsilon_lower_bound(found.score, found.bit, delta=1e-5)
    assert 1 < bound.mu < 2.2  # the truth is 2
    assert not bound.valid


def test_algorithm_2_sees_each_model_twice_and_trains_it_without_the_canary():
    task = data.digits(n_train=40)
    model, how = models.linear(task), DPSGD(1e-6, 1.0, 1.0, 20, 0.5)  # hardly any noise: what is seen is the sum
    pair = crafters.fixed_gradient(task, model, how, kind="random", seed=0).against_nothing(adjacency="add_remove")
    found = audit_steps(task, model, pair, how, trainings=2, protocol="algorithm_2", **QUIET)
    assert np.array_equal(found.bit, np.tile([0, 1], 40))
    assert np.array_equal(found.step, np.tile(np.repeat(np.arange(1, 21), 2), 2))
    assert np.array_equal(found.training, np.repeat([0, 1], 40))
    with_z, without = (found.score.values[found.bit.values == world] for world in (0, 1))
    assert with_z - without == pytest.approx(np.ones(40), abs=1e-4)
    never = audit_steps(task, model, pair, how, trainings=2, protocol="two_trainings", **QUIET)
    assert without[:20] == pytest.approx(never.score.values[never.bit.values == 1], abs=1e-4)
    assert np.ptp(without[:20]) > 0.01  # the other records' sum changes as the model learns
    noisy = audit_steps(task, model, pair, spec(400), protocol="algorithm_2", **QUIET)
    bound = epsilon_lower_bound(noisy.score, noisy.bit, delta=1e-5)
    assert not bound.valid
    scores = noisy.score.values.reshape(-1, 2)
    assert abs(np.corrcoef(scores.T)[0, 1]) < 0.2  # noise of their own


def test_steps_are_bet_on_by_default():
    task, model, pair = unused_column()
    found = audit_steps(task, model, pair, spec(1_500), **QUIET)
    bound = epsilon_lower_bound(found.score, found.bit, delta=1e-5)
    assert bound == epsilon_lower_bound(found.score.values, found.bit.values, delta=1e-5, rule="bets")
    assert (bound.details["observations"], bound.valid) == (1_500, True)
    assert 1.6 < bound.mu < 2
    law = {"sample_rate": 1.0, "steps": 1, "adjacency": "substitute"}
    assert epsilon_lower_bound(found.score, found.bit, delta=1e-5, claim="pld", **law).noise_multiplier > 1
    few = audit_steps(task, model, pair, spec(64), **QUIET)
    assert "bets need more than 64 observations" in epsilon_lower_bound(few.score, few.bit, delta=1e-5).note


def test_coins_of_a_training_do_not_depend_on_how_many_there_are():
    task, model, pair = unused_column()
    one, three = (audit_steps(task, model, pair, spec(50), trainings=count, **QUIET) for count in (1, 3))
    assert np.array_equal(one.bit, three.bit[:50])
    assert np.array_equal(one.bit, stream(0, "steps").integers(0, 2, (50, 128), dtype=np.int8)[:, 0])
    again = audit_steps(task, model, pair, spec(50), trainings=3, **QUIET)
    assert again.identical(three)
    other = audit_steps(task, model, pair, spec(50), trainings=3, seed=1, **QUIET)
    assert not np.array_equal(other.score, three.score)


@dataclass(frozen=True)
class Nearest:
    """The private record that the current model is least sure of, with another label each step."""

    task_: data.Task
    adjacency: str = "substitute"
    scenario: str = "nearest"
    slot: int = 2
    task: str | None = None
    fingerprint: str = "0123456789abcdef"
    details: Mapping = field(default_factory=lambda: {"of": "the tests"})
    seen: list = field(default_factory=list, compare=False)

    def gradients(self, bank, step):
        self.seen.append((step, float(bank.model.flat(bank.theta).norm())))
        x = torch.tensor(self.task_.x_train[:1])
        z, z_prime = (clipped_gradients(bank, x, label) for label in (0, 1 + step % 2))
        return StepGradients(z, z_prime if self.adjacency == "substitute" else None)

    def against_nothing(self, *, adjacency):
        return Nearest(self.task_, adjacency)


def test_canaries_may_be_crafted_at_each_step(store):
    task, model, _ = unused_column()
    canary = Nearest(task)
    assert isinstance(canary, StepCanary)
    found = audit_steps(task, model, canary, spec(30), trainings=2, store=store, **QUIET)
    assert [step for step, _ in canary.seen] == list(range(1, 31))
    assert len({norm for _, norm in canary.seen}) == 30
    assert found.attrs["canary_crafted"] == "anew at each step"
    assert found.attrs["canary_of"] == "the tests"
    assert audits.load(store).identical(audit_steps(task, model, canary, spec(30), trainings=2, store=store, **QUIET))
    with pytest.raises(ValueError, match="store holds another audit"):
        audit_steps(task, model, canary.against_nothing(adjacency="zero_out"), spec(30), trainings=2, store=store)


@pytest.mark.parametrize("late", [False, True])
def test_a_canary_that_is_longer_than_the_clipping_bound_at_some_step_is_refused(late):
    task, model, _ = unused_column()

    class Longer(Nearest):
        def gradients(self, bank, step):
            z, z_prime, _ = super().gradients(bank, step)
            return StepGradients(z * 0.9, z_prime * (100 if step == 1 + late else 0.9))

    with pytest.raises(ValueError, match="canary must be gradients of norm <= max_grad_norm = 2, got one of norm"):
        audit_steps(task, model, Longer(task), spec(4), **QUIET)


def test_a_stored_audit_resumes_and_is_told_apart(store, killed_after):
    task, model, pair = unused_column()

    def call(pair=pair, **options):
        return audit_steps(task, model, pair, **{"spec": spec(5), "trainings": 300, **QUIET, **options})

    expected = call()
    killed_after(lambda: call(store=store), 2)
    there, stored = audits.load(store, partial=True), audits.status(store).stored
    assert stored in (172, 256)
    assert there.training.equals(expected.training)
    assert there.isel(observation=there.bit >= 0).equals(expected.isel(observation=there.bit >= 0))
    assert int((there.bit >= 0).sum()) == 5 * stored
    nearly = replace(pair, z=pair.z * np.float32(1 + 1e-7))
    assert call(nearly, spec=spec(5, noise_multiplier=1 + 1e-9), store=store).equals(expected), "up to rounding"
    assert audits.load(store).equals(expected)
    assert "unused on custom, 300 of 300" in str(audits.status(store))
    for change, told in (
        ({"canary_rate": 0.5}, r"q_c: stored 1\.0, asked for 0\.5"),
        ({"protocol": "two_trainings"}, "protocol: stored 'coins', asked for 'two_trainings'"),
        ({"trainings": 298}, "runs: stored 300, asked for 298"),
    ):
        with pytest.raises(ValueError, match=f"store holds another audit, .*\n  {told}"):
            call(store=store, **change)


def test_side_by_side_and_one_after_the_other_are_the_same():
    task, model, pair = unused_column()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(audit_steps(task, model, pair, spec(4), trainings=200, **QUIET))
    finally:
        torch.set_num_threads(before)
    assert found[0].equals(found[1])


class Twin(Nearest):
    """Twice the same record."""

    def gradients(self, bank, step):
        z, _, _ = super().gradients(bank, step)
        return StepGradients(z, z.clone())


def test_equal_worlds_show_nothing():
    task, model, _ = unused_column()
    twin = Twin(task)
    found = audit_steps(task, model, twin, spec(100), **QUIET)
    assert (found.score == 0).all()
    assert epsilon_lower_bound(found.score, found.bit, delta=1e-5).epsilon == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"canary_rate": 0.0}, "canary_rate must be > 0 and <= 1, got 0.0"),
        ({"protocol": "two_trainings", "trainings": 3}, "trainings must be even for protocol 'two_trainings'"),
        (
            {"protocol": "algorithm_2", "spec": DPSGD(1.0, 2.0, 1.0, 3, 0.1, "adam")},
            "spec must have optimizer 'sgd' for protocol 'algorithm_2', got 'adam'",
        ),
        ({"canary": "S2"}, "canary must be a dpsub.CanaryPair, or a StepCanary, got a str"),
        ({"canary": "long"}, "canary must be gradients of norm <= max_grad_norm = 2, got one of norm 3"),
    ],
)
def test_what_cannot_be_audited_is_named(change, message):
    task, model, pair = unused_column()
    if change.get("canary") == "long":
        change = {"canary": CanaryPair(pair.z * 1.5, pair.z, 3, "long")}
    arguments = {"task": task, "model": model, "canary": pair, "spec": spec(3), **QUIET, **change}
    with pytest.raises(ValueError, match=message):
        audit_steps(**arguments)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
@pytest.mark.parametrize("kind", ["gradient", "mislabeled"])
def test_correct_trainings_are_accused_in_at_most_alpha_of_audits(adjacency, kind):
    task = data.digits(n_train=100)
    model, how = models.linear(task), DPSGD(1.0, 1.0, 0.3, 600, 0.5)
    pair = getattr(crafters, kind)(task, model, how, seed=0)
    if adjacency != "substitute":
        pair = pair.against_nothing(adjacency=adjacency)
    found = audit_steps(task, model, pair, how, trainings=200, **QUIET)
    true = 2.0 if adjacency == "substitute" else 1.0
    accused = 0
    for number in range(200):
        one = found.isel(observation=found.training.values == number)
        accused += epsilon_lower_bound(one.score, one.bit, delta=1e-5).mu > true
    assert accused <= binom.ppf(0.999, 200, 0.05)
