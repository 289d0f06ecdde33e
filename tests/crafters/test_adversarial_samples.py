import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dpsub import crafters, data, models
from dpsub.crafters import sample_losses
from dpsub.crafters.adversarial_samples import OPTIMIZERS

LOSSES = ("ude", "ade", "fisher", "bhattacharyya")
BANKS = ("linear", "mlp", "convnet", "attention", "residual")
LARGE = 1e9 * np.random.default_rng(0).normal(size=(9, 93))
BITS = np.array([0, 1, 1, 0, 0, 1, 0, 1, 1], dtype=np.int8)


def by_hand(loss, with_z, others, margin):
    """The losses to minimise, from lists of numbers."""
    m, m_z = sum(others) / len(others), sum(with_z) / len(with_z)
    v = sum((one - m) ** 2 for one in others) / (len(others) - 1)
    v_z = sum((one - m_z) ** 2 for one in with_z) / (len(with_z) - 1)
    criterion, sign = (m - m_z) ** 2 / (v + v_z), 1 if m > m_z else -1
    if loss == "ude":
        return m_z - m
    if loss == "ade":
        above = [one - m + margin for one in with_z]
        return sum(one * (one > 0) for one in above) / len(above)
    if loss == "fisher":
        return -sign * criterion
    return -sign * (criterion / 4 + torch.log((v + v_z) / 2 / (v * v_z) ** 0.5) / 2)


def naive(model, weights, bits, start, loss, steps, rate, optimizer, margin=0.2, bounds=None, y_prime=None):
    """Crafting with one module for each model, in float64."""
    modules = [model.module(one).double() for one in weights]
    x, label = torch.tensor(np.asarray(start[0]), dtype=torch.float64, requires_grad=True), torch.tensor([start[1]])
    descent, curve = OPTIMIZERS[optimizer]([x], lr=rate), []
    for step in range(steps + 1):
        losses = [cross_entropy(module(x[None]), label) for module in modules]
        if y_prime is not None:
            others = [cross_entropy(module(x[None]), torch.tensor([y_prime])) for module in modules]
            losses = [one - other for one, other in zip(losses, others, strict=True)]
        worlds = [[one for one, bit in zip(losses, bits, strict=True) if bit == world] for world in (0, 1)]
        value = by_hand(loss, *worlds, margin)
        curve.append(value.item())
        if step < steps:
            descent.zero_grad()
            torch.autograd.backward(value)
            descent.step()
            if bounds:
                x.data = x.data.clamp(*bounds)
    return x.detach().numpy(), curve


@pytest.fixture(scope="module")
def trained(cast, banks_of_modules):
    """A model of the cast, random final weights, and a record to start from, by the model's name."""

    def make(name):
        task, model = cast[name] if name in ("linear", "mlp", "convnet") else banks_of_modules[name]
        generator = torch.Generator().manual_seed(3)
        weights = model.flat(model.initial_parameters(len(BITS), generator)).clone()
        weights += 0.2 * torch.randn(weights.shape, generator=generator)
        return model, weights.numpy(), (task.x_train[5], int(task.y_train[5]))

    return make


@pytest.fixture(scope="module")
def heads():
    """A linear head of 30 features and 3 classes."""
    return models.linear(data.from_arrays(np.zeros((3, 30)), [0, 1, 2]))


@pytest.mark.parametrize("loss", LOSSES)
def test_separations_are_as_written_and_their_gradients_agree_with_finite_differences(loss):
    generator = torch.Generator().manual_seed(1)
    with_z, others = (torch.randn(n, generator=generator, dtype=torch.float64, requires_grad=True) for n in (4, 5))
    criterion = sample_losses.OBJECTIVES[loss]
    assert criterion(with_z, others, 0.3).item() == pytest.approx(
        float(by_hand(loss, [*with_z], [*others], 0.3).detach())
    )
    assert torch.autograd.gradcheck(lambda a, b: criterion(a, b, 0.3), (with_z, others))


@pytest.mark.parametrize("loss", LOSSES)
def test_the_wrong_direction_is_never_rewarded(loss):
    noise, criterion = torch.tensor([-1.0, 0.0, 0.5, 1.5]), sample_losses.OBJECTIVES[loss]
    values = [criterion(noise - shift, noise, 0.2).item() for shift in (-3, -1, -0.1, 0, 0.1, 1, 3)]
    falls = np.diff(values) < 0
    assert falls.all() if loss != "ade" else falls[:5].all() and values[-1] == 0


@pytest.mark.parametrize(
    ("bank", "loss", "optimizer"),
    [*(("mlp", loss, "adam") for loss in LOSSES), *((bank, "fisher", "sgd") for bank in BANKS)],
)
def test_crafting_equals_a_loop_over_modules(trained, bank, loss, optimizer):
    model, weights, start = trained(bank)
    rate = {"adam": 0.02, "sgd": 0.05}[optimizer]
    found = crafters.adversarial_sample(
        model, weights, BITS, start=start, loss=loss, steps=4, learning_rate=rate, optimizer=optimizer, device="cpu"
    )
    x, curve = naive(model, weights, BITS, start, loss, 4, rate, optimizer)
    np.testing.assert_allclose(found.x, x, atol=1e-5)
    np.testing.assert_allclose(found.trace["loss"], curve, atol=1e-5, rtol=1e-5)
    assert not np.allclose(found.x, start[0], atol=1e-3)


@pytest.mark.parametrize("loss", LOSSES)
def test_with_two_labels_the_loss_is_of_one_minus_that_of_the_other(trained, loss):
    model, weights, start = trained("mlp")
    y_prime = (start[1] + 1) % model.classes
    options = {"start": start, "loss": loss, "steps": 4, "learning_rate": 0.02}
    found = crafters.adversarial_sample(model, weights, BITS, y_prime=y_prime, **options)
    x, curve = naive(model, weights, BITS, start, loss, 4, 0.02, "adam", y_prime=y_prime)
    np.testing.assert_allclose(found.x, x, atol=1e-5)
    np.testing.assert_allclose(found.trace["loss"], curve, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        outputs = [model.module(one)(torch.tensor(found.x)[None])[0] for one in weights]
    expected = [float(one[start[1]] - one[y_prime]) for one in outputs]
    np.testing.assert_allclose(found.scores(model, weights), expected, atol=1e-5)
    one_label = crafters.adversarial_sample(model, weights, BITS, **options)
    assert not np.allclose(found.x, one_label.x, atol=1e-3)


def test_the_first_step_on_linear_heads_is_minus_the_difference_of_mean_gradients(heads):
    rng = np.random.default_rng(0)
    weights, x, y = rng.normal(size=(9, heads.parameters)), rng.normal(size=30), 2
    gradients = []
    for one in weights:
        theta = one.reshape(31, 3)
        logits = x @ theta[:-1] + theta[-1]
        p = np.exp(logits) / np.exp(logits).sum()
        gradients.append(theta[:-1] @ (p - np.eye(3)[y]))
    gradients = np.array(gradients)
    difference = gradients[BITS == 0].mean(axis=0) - gradients[BITS == 1].mean(axis=0)
    found = crafters.adversarial_sample(
        heads, weights, BITS, start=(x, y), loss="ude", steps=1, learning_rate=0.5, optimizer="sgd"
    )
    np.testing.assert_allclose(found.x, x - 0.5 * difference, atol=1e-5)


def test_each_step_is_clamped(trained):
    model, weights, (x, y) = trained("mlp")
    x = np.clip(x, -1, 1)
    low, high = np.full(51, -1.0), np.full(51, 1.0)
    low[:8] = high[:8] = x[:8]
    options = {"start": (x, y), "loss": "ude", "steps": 6, "learning_rate": 0.3}
    found = crafters.adversarial_sample(model, weights, BITS, bounds=(low, high), **options)
    assert ((found.trace["x"] >= low.astype(np.float32)) & (found.trace["x"] <= high)).all()
    assert (found.x[:8] == x[:8]).all()
    expected, _ = naive(
        model, weights, BITS, (x, y), "ude", 6, 0.3, "adam", bounds=(torch.tensor(low), torch.tensor(high))
    )
    np.testing.assert_allclose(found.x, expected, atol=1e-5)
    free = crafters.adversarial_sample(model, weights, BITS, **options)
    assert free.x.max() > 1.1


def test_the_sample_is_the_last_one_not_the_best(trained):
    model, weights, start = trained("mlp")
    options = {"start": start, "loss": "fisher", "learning_rate": 3.0, "optimizer": "adam"}
    losses = crafters.adversarial_sample(model, weights, BITS, steps=60, **options).trace["loss"]
    worse = [step for step in range(30, 61, 10) if losses[step] > losses[: step + 1].min()]
    assert worse, "at so high a rate the loss rises now and then"
    steps = worse[0]
    found = crafters.adversarial_sample(model, weights, BITS, steps=steps, **options)
    assert found.trace["loss"].argmin() < steps
    np.testing.assert_array_equal(found.x, found.trace["x"][-1])
    assert found.trace["step"].tolist() == list(range(0, steps + 1, steps // 10))
    assert len(found.trace["loss"]) == len(found.trace["separation"]) == steps + 1
    np.testing.assert_array_equal(found.trace["x"][0], start[0])


@pytest.mark.parametrize("bank", BANKS)
def test_scores_are_minus_the_losses_at_the_sample(trained, bank):
    model, weights, (x, y) = trained(bank)
    with torch.no_grad():
        losses = [cross_entropy(model.module(one)(torch.tensor(x)[None]), torch.tensor([y])).item() for one in weights]
    scores = crafters.AdversarialSample(x, y).scores(model, weights)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, np.negative(losses), atol=1e-5)


@pytest.mark.parametrize(("bank", "loss"), zip(BANKS, LOSSES, strict=False))
def test_many_models_are_crafted_on_in_parts(trained, monkeypatch, bank, loss):
    model, weights, start = trained(bank)
    whole = crafters.adversarial_sample(model, weights, BITS, start=start, loss=loss, steps=3)
    monkeypatch.setattr(sample_losses, "PARAMETERS_AT_ONCE", 2 * model.parameters)
    parts = crafters.adversarial_sample(model, weights, BITS, start=start, loss=loss, steps=3)
    np.testing.assert_allclose(parts.x, whole.x, atol=1e-5)
    np.testing.assert_allclose(parts.trace["loss"], whole.trace["loss"], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(parts.scores(model, weights), whole.scores(model, weights), atol=1e-4)


def test_crafting_is_deterministic_and_changes_nothing_that_is_given(trained):
    model, weights, start = trained("convnet")
    kept = weights.copy()
    found = crafters.adversarial_sample(model, weights, BITS, start=start)
    with torch.no_grad():
        again = crafters.adversarial_sample(model, torch.tensor(weights), torch.tensor(BITS), start=start)
    np.testing.assert_array_equal(found.x, again.x)
    np.testing.assert_array_equal(found.trace["loss"], again.trace["loss"])
    np.testing.assert_array_equal(weights, kept)


def separation(scores, bits):
    """Positive if models trained with z have the higher scores."""
    a, b = scores[bits == 0], scores[bits == 1]
    return (a.mean() - b.mean()) / np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)


@pytest.mark.parametrize("loss", LOSSES)
def test_samples_separate_other_models_where_worlds_differ_and_only_their_own_where_they_do_not(heads, loss):
    rng = np.random.default_rng(5)
    runs = 400
    bits, crafted = np.arange(runs) % 2, np.arange(runs) < 80
    noise = rng.normal(size=(runs, heads.parameters))
    direction = rng.normal(size=30)
    direction /= np.linalg.norm(direction)
    towards = np.zeros((31, 3))
    towards[:-1, 1] = 3 * direction
    moved = noise + (bits == 0)[:, None] * towards.ravel()
    options = {"start": (0.3 * direction, 1), "loss": loss, "steps": 40, "learning_rate": 0.03, "device": "cpu"}
    for weights, leaks in ((moved, True), (noise, False)):
        sample = crafters.adversarial_sample(heads, weights[crafted], bits[crafted], **options)
        scores = sample.scores(heads, weights)
        own, others = (separation(scores[these], bits[these]) for these in (crafted, ~crafted))
        assert own > 0.6
        assert own == pytest.approx(sample.trace["separation"][-1], rel=1e-3)
        assert others > 0.6 if leaks else abs(others) < 3 * np.sqrt(4 / (~crafted).sum())
        if leaks:
            assert sample.x @ direction > 0.5 * np.linalg.norm(sample.x)


def test_a_model_with_a_loss_of_its_own_is_scored_by_it(heads):
    def doubled(outputs, labels):
        return 2 * cross_entropy(outputs, labels, reduction="none")

    task = data.from_arrays(np.zeros((3, 30)), [0, 1, 2])
    module = torch.nn.Linear(30, 3)
    weights = np.random.default_rng(0).normal(size=(9, heads.parameters))
    usual, own = (models.from_module(module, task, loss=loss) for loss in (None, doubled))
    sample = crafters.AdversarialSample(np.ones(30), 1)
    np.testing.assert_allclose(sample.scores(own, weights), 2 * sample.scores(usual, weights), rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_prime": 1}, "y_prime must be None or a label other than y, got 1, which is y"),
        ({"y_prime": 3}, r"model must take records like the sample, of shape \(30,\) with labels 1 and 3, got Linear"),
        ({"bits": np.zeros(9)}, "bits must hold two models or more of each world, got 9 trained with z and 0 others"),
        ({"bounds": (0.5, 1)}, "bounds must be .* hold the start, got 30 of its features outside"),
        ({"weights": LARGE, "loss": "ude", "learning_rate": 1e30}, "learning_rate must be small .* diverge, got 1e"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(heads, changes, message):
    weights = np.random.default_rng(0).normal(size=(9, heads.parameters))
    usual = {"model": heads, "weights": weights, "bits": BITS, "start": (np.zeros(30), 1)}
    with pytest.raises(ValueError, match=message):
        crafters.adversarial_sample(**usual | changes)
