import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from dpsub import CanaryPair, data, models
from dpsub.trainers import assemble


@pytest.mark.parametrize("kind", ["gradient", "record"])
def test_scores_within_the_span_have_the_law_of_scores_outside(spec, kind):
    rng = np.random.default_rng(3)
    task = data.from_arrays(rng.random((20, 60)), rng.integers(0, 10, 20), num_classes=10)
    model, setting, bits = models.linear(task), spec(sample_rate=0.5, noise_multiplier=2.0), np.arange(4_000) % 2
    z = np.eye(1, model.parameters, 3, dtype=np.float32)[0]
    x, y = task.x_train[7], int(task.y_train[7])
    pair = CanaryPair(z, -z, 7, "S2") if kind == "gradient" else CanaryPair((x, y), (x, (y + 1) % 10), 7, "S4")
    scores = {}
    for seed, coordinates in enumerate(("all", "span")):
        generator = torch.Generator().manual_seed(seed)
        bank = assemble(model, task, setting, bits=bits, generator=generator, canary=pair, coordinates=coordinates)
        assert (bank.model.parameters < model.parameters) == (coordinates == "span")
        list(bank.train())
        scores[coordinates] = bank.scores().numpy()
    for bit in (0, 1):
        assert ks_2samp(scores["all"][bit::2], scores["span"][bit::2]).pvalue > 1e-3


def test_adam_and_networks_train_in_all_coordinates(bank_of, canary_of, spec):
    """Adam scales every coordinate by itself: rotated coordinates would be another optimizer."""
    rng = np.random.default_rng(3)
    task = data.from_arrays(rng.random((20, 60)), rng.integers(0, 10, 20), num_classes=10)
    model, options = models.linear(task), {"bits": np.zeros(1, np.int8), "coordinates": "span"}
    for optimizer, fewer in (("sgd", True), ("adam", False)):
        bank = assemble(model, task, spec(optimizer=optimizer), generator=torch.Generator(), **options)
        assert (bank.model.parameters < model.parameters) == fewer
    bank = bank_of("mlp", spec(), [0], canary_of("mlp", "record"), coordinates="span")
    assert bank.theta.shape == (1, bank.model.parameters)


def test_who_is_shared_and_who_is_in_the_slot(cast, bank_of, canary_of, spec):
    task, _ = cast["mlp"]
    x, y = torch.tensor(task.x_train), torch.tensor(task.y_train)
    others = torch.arange(24) != 7
    for pair, in_slot in (
        (None, 0),
        (canary_of("mlp", "gradient"), 0),
        (canary_of("mlp", "record"), 2),
        (canary_of("mlp", "record").against_nothing(adjacency="zero_out"), 1),
    ):
        bank = bank_of("mlp", spec(sample_rate=0.5), [0, 1], pair)
        assert bank.shared == (24 if pair is None else 23)
        assert len(bank.inputs) == len(bank.labels) == bank.shared + in_slot
        assert bank.expected_batch_size == 12, "the slot counts"
        everyone = torch.ones(24, dtype=torch.bool) if pair is None else others
        torch.testing.assert_close(bank.inputs[: bank.shared], x[everyone], atol=0, rtol=0)
        assert bank.labels[: bank.shared].tolist() == y[everyone].tolist()
        worlds = [] if in_slot == 0 else [pair.z, pair.z_prime][:in_slot]
        assert bank.labels[bank.shared :].tolist() == [world.y for world in worlds]
        for found, world in zip(bank.inputs[bank.shared :], worlds, strict=True):
            torch.testing.assert_close(found, torch.tensor(world.x), atol=0, rtol=0)


def test_a_bank_without_a_canary_has_no_scores(bank_of, spec):
    bank = bank_of("mlp", spec(), [0])
    with pytest.raises(ValueError, match="canary must be given"):
        bank.scores()
    with pytest.raises(AttributeError, match="average"):
        bank.noisy_average  # noqa: B018
    bank.advance()
    assert bank.noisy_average.shape == (1, bank.model.parameters)
