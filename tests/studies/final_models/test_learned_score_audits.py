"""What the page on looks at final models measures with."""

import numpy as np
import pytest

from dpsub import DPSGD, accounting, crafters, data, models
from studies.final_models import looks as learned_scores


def test_the_distance_of_means_is_without_bias_where_models_and_twins_are_few():
    rng, d, found = np.random.default_rng(0), 20, []
    mix = np.eye(d) + 0.3 * rng.normal(size=(d, d))
    means = 0.5 * mix @ np.linspace(-1, 1, d)
    truth = np.sqrt(means @ np.linalg.solve(mix @ mix.T, means))
    for _ in range(60):
        bits = rng.integers(0, 2, 60)
        weights = rng.normal(size=(60, d)) @ mix.T + np.where(bits[:, None] == 0, means, 0)
        differences = means + 0.5 * rng.normal(size=(8, d)) @ mix.T
        found.append(learned_scores.mahalanobis(differences, weights.astype(np.float32), bits) ** 2)
    assert abs(np.mean(found) - truth**2) < 3 * np.std(found) / np.sqrt(60)


def test_a_gradient_canary_has_the_accountants_ceiling_and_its_limit_is_that_too():
    task = data.digits(n_train=60)
    model, delta, steps = models.linear(task), 1e-5, 10
    sigma = accounting.noise_multiplier(
        target_epsilon=6.0, sample_rate=1.0, steps=steps, delta=delta, adjacency="substitute"
    )
    spec = DPSGD(sigma, 1.0, 1.0, steps, 0.1)
    pair = crafters.gradient(task, model, spec, seed=0)
    what, options = (task, model, pair, spec), {"seed": 0, "device": "cpu"}
    ceiling = learned_scores.ceiling_mu(*what, runs=4, **options)
    assert accounting.gdp_epsilon(ceiling, delta) == pytest.approx(6.0, rel=1e-3)
    limit = learned_scores.linear_limit_mu(*what, runs=1200, twins=8, **options)
    assert limit == pytest.approx(ceiling, rel=0.12)  # standard error 0.03
    one = learned_scores.judged(*what, runs=1000, learning_runs=32, **options)
    row = learned_scores.row(one, {"ceiling": ceiling}, delta=delta)
    assert np.isnan(row["ε, limit"])
    assert row["ε, ceiling"] == pytest.approx(6.0, rel=1e-3)
    for name in ("canary", "learned"):
        assert 0 < row[f"ε ≥, {name}"] < row[f"ε, {name}"] == pytest.approx(6.0, rel=0.15)
    assert row["± of ε"] < 0.2
