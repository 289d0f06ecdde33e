from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from dpsub import CanaryPair, audits, models
from dpsub.audits.observers import Distance, GradientProduct
from dpsub.trainers import assemble


def test_metrics_are_observed_beside_the_scores(run, task, model, canary, spec):
    """Over two blocks; the gradient's products, summed over all steps, are the score in other units."""
    spec = replace(spec, noise_multiplier=0.3)
    options = {"store": None, "spec": spec, "runs": 133, "observe_every": 1}
    plain = run(**options)
    assert set(plain.data_vars) == {"score", "bit"}
    result = run(metrics=("accuracy", "weights", "distance", "gradient", "accuracy"), **options)
    assert result.attrs["metrics"] == "accuracy distance gradient weights"
    assert result.accuracy.dims == ("measured", "step")
    assert result.measured.values.tolist() == list(range(8))
    assert result.gradient.dims == result.distance.dims == ("run", "step")
    assert result.gradient.shape == result.distance.shape == (133, 4)
    np.testing.assert_allclose(result.distance, 1, rtol=1e-6)
    assert result.weights.shape == (133, model.parameters)
    assert result.bit.equals(plain.bit)

    x, y = torch.tensor(task.x_test), torch.tensor(task.y_test)
    for one in (0, 7):
        module = model.module(result.weights.values[one])
        accuracy = (module(x).argmax(dim=1) == y).float().mean()
        assert float(result.accuracy[one, -1]) == pytest.approx(float(accuracy), abs=1e-6)
    np.testing.assert_allclose(result.score[:, -1], -result.weights[:, canary.details["parameter"]], atol=1e-7)
    # θ₀ − θ_T = η/n · Σ sums, and the score is its coordinate along z/C; the products have z/C² in its place.
    unit = len(task.y_train) / (spec.learning_rate * spec.max_grad_norm)
    np.testing.assert_allclose(result.gradient.sum("step"), unit * result.score[:, -1], rtol=1e-4, atol=1e-3)
    for bit, sign in ((0, 1), (1, -1)):
        seen = result.gradient.values[result.bit.values == bit]
        assert abs(seen.mean() - sign) < 4.5 * spec.noise_multiplier / np.sqrt(seen.size) + 0.1


def test_distance_of_records_is_in_units_of_two_clipping_bounds(run, task, spec):
    x, options = task.x_train[3], {"store": None, "runs": 4, "metrics": ("distance",)}
    options["spec"] = replace(spec, max_grad_norm=0.1)  # all gradients are clipped
    two = replace(task, y_train=task.y_train % 2, y_aux=task.y_aux % 2, y_test=task.y_test % 2, num_classes=2)
    opposite = CanaryPair((x, 0), (x, 1), 3, "S4")  # of two classes the gradients are opposite
    for pair, distance in ((opposite, 1.0), (opposite.against_nothing(adjacency="add_remove"), 0.5)):
        found = run(task=two, model=models.linear(two), canary=pair, **options).distance
        np.testing.assert_allclose(found, distance, rtol=1e-4)
    found = run(canary=CanaryPair((x, 1), (x, 2), 3, "S4"), **options).distance
    assert ((found > 0.5) & (found < 0.9)).all(), "of ten, their cosine is near −1/9"


def test_a_watched_gradient_canary_is_one_in_noise_of_sigma(cast, canary_of, spec):
    task, model = cast["linear"]
    setting, bits = replace(spec, max_grad_norm=2.0, noise_multiplier=3.0, learning_rate=0.1), np.arange(4_000) % 2
    pair, generator = canary_of("linear", "gradient", norm=2.0), torch.Generator().manual_seed(0)
    bank = assemble(model, task, setting, bits=bits.astype(np.int8), generator=generator, canary=pair)
    watch = GradientProduct().watch(bank, task, 4_000)
    bank.advance()
    seen = watch.after_step().numpy()
    for bit in (0, 1):
        assert seen[bits == bit].std() == pytest.approx(3, rel=0.1)
    assert seen[bits == 0].mean() - seen[bits == 1].mean() == pytest.approx(2, abs=4.5 * 3 / np.sqrt(1_000))


@pytest.mark.parametrize("kind", ["gradient", "record"])
def test_the_watched_gradient_is_that_of_before_the_step(cast, canary_of, spec, kind):
    task, model = cast["mlp"]
    setting = replace(spec, max_grad_norm=0.5, learning_rate=1.0, noise_multiplier=0.7, sample_rate=0.6)
    pair, generator = canary_of("mlp", kind, norm=0.5), torch.Generator().manual_seed(0)
    bank = assemble(model, task, setting, bits=np.array([0, 1], np.int8), generator=generator, canary=pair)
    watch = GradientProduct().watch(bank, task, 2)
    bank.advance()
    before = bank.theta.clone()
    if kind == "record":
        direction = model.clipped_sum(bank.theta, torch.tensor(pair.z.x[None]), torch.tensor([pair.z.y]), None, 0.5)
    else:
        direction = torch.tensor(pair.z)
    watch.before_step()
    bank.advance()
    noisy_sum = (before - bank.theta) * 0.6 * 24
    torch.testing.assert_close(watch.after_step(), (noisy_sum * direction).sum(dim=1) / 0.25, atol=5e-3, rtol=1e-3)


def test_distances_are_observed_of_crafted_gradients(cast, canary_of, spec):
    task, model = cast["mlp"]
    pair, setting = canary_of("mlp", "gradient"), replace(spec, max_grad_norm=1.0)
    for shown, distance in ((pair, 1.0), (pair.against_nothing(adjacency="add_remove"), 0.5)):
        bits, generator = np.array([0, 1, 1], np.int8), torch.Generator().manual_seed(0)
        bank = assemble(model, task, setting, bits=bits, generator=generator, canary=shown)
        assert Distance().watch(bank, task, 3).after_step().tolist() == pytest.approx([distance] * 3)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_in_all_coordinates_the_numbers_are_those_beside_metrics_that_need_all(run, spec, optimizer):
    options = {"store": None, "spec": replace(spec, optimizer=optimizer)}
    found = {coordinates: run(coordinates=coordinates, **options) for coordinates in ("auto", "all")}
    beside = run(metrics=("accuracy",), **options)
    assert found["all"].equals(beside.drop_vars(["accuracy", "measured"]))
    assert found["all"].bit.equals(found["auto"].bit)
    assert found["all"].score.equals(found["auto"].score) == (optimizer == "adam"), "Adam takes no span"
    assert [found[name].attrs["trained_coordinates"] for name in found] == ["span", "all"]
    assert beside.attrs["trained_coordinates"] == "all"
    assert run(metrics=("distance",), **options).attrs["trained_coordinates"] == "span"
    with pytest.raises(ValueError, match="coordinates must be one of 'auto', 'all', got 'span'"):
        run(coordinates="span", **options)


class Travel(audits.Observer):
    """How far each model moved in the observed step."""

    name = "travel"
    long_name = "distance travelled in the step"
    all_coordinates = True

    def watch(self, bank, task, runs):
        return WatchTravel(bank)


class WatchTravel(audits.Watch):
    def __init__(self, bank):
        self._bank = bank

    def before_step(self):
        self._before = self._bank.theta.clone()

    def after_step(self):
        return self._bank.model.flat(self._bank.theta - self._before).norm(dim=1)


class Confidence(audits.Observer):
    """The logit of the first private record, of a few models."""

    name = "confidence"
    long_name = "logit of the first private record's label"
    dims: ClassVar = ("observed_models", "step")
    most_runs = 5

    def watch(self, bank, task, runs):
        return audits.Watch(lambda: bank.model.logits(bank.theta, bank.inputs[:1])[0, int(bank.labels[0]), :runs])

    def check(self, task):
        if task.num_classes == 3:
            raise ValueError("three classes are too few")

    def attributes(self, task):
        return {"first_label": str(task.y_train[0])}


class Displacement(audits.Observer):
    name = "displacement"
    long_name = "θ_T − θ₀"
    dims: ClassVar = ("run", "parameter")
    all_coordinates = True

    def watch(self, bank, task, runs):
        return audits.Watch(lambda: bank.model.flat(bank.theta - bank.theta_0))


@pytest.mark.parametrize("repeats", [1, 2])
def test_observers_of_ones_own_are_in_the_dataset_and_survive_the_store(run, store, model, forbid_training, repeats):
    options = {"metrics": ("weights", Travel(), Confidence(), Displacement()), "repeats": repeats}
    made = run(store=None, **options)
    stored = run(**options)
    assert stored.equals(made)
    forbid_training()
    assert run(**options).identical(stored)
    assert audits.load(store).identical(stored)

    lead = () if repeats == 1 else ("repeat",)
    assert made.attrs["metrics"] == "confidence displacement travel weights"
    assert made.attrs["trained_coordinates"] == "all"
    assert made.attrs["first_label"].isdecimal()
    assert made.travel.dims == (*lead, "run", "step")
    assert made.travel.attrs == {"long_name": "distance travelled in the step"}
    assert made.confidence.dims == (*lead, "observed_models", "step")
    assert made.confidence.shape[-2:] == (5, 2)
    assert made.observed_models.values.tolist() == list(range(5))
    assert made.displacement.dims == (*lead, "run", "parameter")
    np.testing.assert_array_equal(made.displacement.values, made.weights.values)  # heads start from 0
    for name in ("travel", "confidence", "displacement"):
        assert np.isfinite(made[name]).all()
        assert made[name].std() > 0
    # Steps 2 and 4 are observed, of four: each step's noise alone moves a model by η·C·σ/n·√parameters.
    noise = 0.01 * 2.0 * 10.0 / 30 * np.sqrt(model.parameters)
    np.testing.assert_allclose(made.travel.mean(...), noise, rtol=0.05)


def test_observers_see_the_same_models_as_without_them(run, expected):
    found = run(store=None, metrics=[Confidence()])
    assert found.drop_vars(["confidence", "observed_models"]).equals(expected)
    assert found.attrs["trained_coordinates"] == "span"
    alone = run(store=None, metrics=[Travel()])
    assert alone.drop_vars("travel").equals(run(store=None, coordinates="all"))


def test_another_observer_is_another_audit(run):
    run(metrics=[Confidence()])
    for metrics, told in (((), "metrics: stored 'confidence', asked for ''"), ([Travel()], "asked for 'travel'")):
        with pytest.raises(ValueError, match=told):
            run(metrics=metrics)


def test_observers_may_refuse_a_task_and_models_may_be_few(run, task):
    three = replace(task, y_train=task.y_train % 3, y_aux=task.y_aux % 3, y_test=task.y_test % 3, num_classes=3)
    pair = CanaryPair((task.x_train[3], 1), (task.x_train[3], 2), 3, "S4")
    with pytest.raises(ValueError, match="three classes are too few"):
        run(store=None, task=three, model=models.linear(three), canary=pair, metrics=[Confidence()])
    assert run(store=None, runs=2, metrics=[Confidence()]).confidence.shape == (2, 2)


def an_observer(name="own", dims=("run", "step"), most_runs=None, look=None, watch=None):
    """An observer that shows scores, or what `look` sees of the bank, under another name."""

    class Own(audits.Observer):
        long_name = "score"

        def watch(self, bank, task, runs):
            return audits.Watch(lambda: look(bank) if look else bank.scores()[:runs])

    Own.watch = watch or Own.watch
    Own.name, Own.dims, Own.most_runs = name, dims, most_runs
    return Own()


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ([an_observer("score")], "have names of their own, other than score, bit, .*, got 'score'"),
        ([an_observer("a"), an_observer("a")], "have names of their own, .* got 'a'"),
        ([an_observer("accuracy"), "accuracy"], "have names of their own, .* got 'accuracy'"),
        ([Travel], "be one of 'accuracy', 'distance', 'gradient', 'weights', got <class"),
    ],
)
def test_observers_that_do_not_fit_in_a_dataset_are_refused_before_training(run, forbid_training, metrics, told):
    forbid_training()
    with pytest.raises(ValueError, match=f"metrics must .*{told}"):
        run(metrics=metrics)


@pytest.mark.parametrize(
    ("observer", "told"),
    [
        (
            an_observer(look=lambda bank: bank.scores()[:2]),
            r"dims \('run', 'step'\), .* return a tensor \(4,\) .*one \(2,\)",
        ),
        (an_observer("own", ("few", "step"), 3, look=lambda bank: bank.scores()), r"a tensor \(3,\) .* got one \(4,\)"),
        (
            an_observer(dims=("run", "parameter"), look=lambda bank: bank.scores()),
            r"a tensor \(4, \d+\) .* got one \(4,\)",
        ),
    ],
)
def test_observations_of_another_shape_are_refused(run, observer, told):
    with pytest.raises(ValueError, match=f"metrics: Own.*{told}"):
        run(store=None, runs=4, metrics=[observer])


def test_sizes_and_names_that_do_not_agree_are_refused_before_training(run, forbid_training):
    forbid_training()
    for metrics in (
        [an_observer("few", ("few", "step"), 3)],
        [an_observer("measured"), "accuracy"],
        [an_observer("a", ("few", "step"), 3), an_observer("b", ("few", "step"), 2)],
    ):
        with pytest.raises(ValueError, match="few|measured"):  # by xarray
            run(metrics=metrics)


def test_an_observers_attributes_do_not_replace_the_audits(run):
    class Own(Confidence):
        def attributes(self, task):
            return {"scenario": "another"}

    assert run(store=None, metrics=[Own()]).attrs["scenario"] == "S2"


def test_the_order_of_metrics_is_not_another_audit(run, forbid_training):
    first = run(metrics=("gradient", "accuracy"))
    forbid_training()
    assert run(metrics=("accuracy", "gradient")).identical(first)
