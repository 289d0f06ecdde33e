"""Pairs in one training, and the scores of their coins."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpsub import Pairs, crafters, data, models
from dpsub.trainers import assemble
from dpsub.trainers.scored_steps import ScoredSteps
from studies.one_run import head_scores
from studies.one_run import kinds as one_run_pairs
from studies.one_run.bridge import separation


def mislabeled_digits(steps=12):
    task = data.digits(n_train=120)
    spec = one_run_pairs.spec_of(sample_rate=0.2, steps=steps)
    model = one_run_pairs.models_of(task)
    return task, model, one_run_pairs.pairs_of("mislabeled", task, model, spec, 20, 0), spec


def test_all_scores_of_one_training_are_those_of_the_library():
    task, model, pairs, spec = mislabeled_digits()
    bits = head_scores.fair_coins(3, len(pairs), 0)
    found = head_scores.HeadScores(task, model, pairs, spec, bits, whiten=4, seed=5)
    for name, how in {
        "plain": {"expected": False},
        "expected": {"expected": True},
        "whitened": {"expected": True, "whiten": 4},
    }.items():
        generator = torch.Generator().manual_seed(5)
        bank = assemble(model, task, spec, canary=pairs, bits=bits, generator=generator)
        steps = ScoredSteps(bank, **how)
        for _ in range(spec.steps):
            steps.advance()
        np.testing.assert_allclose(found.scores[name], steps.scores, rtol=1e-3, atol=1e-3, err_msg=name)
    np.testing.assert_allclose(found.scores["final"], bank.scores(), rtol=1e-4, atol=1e-4)


def test_an_undisturbed_pair_is_as_far_apart_as_the_exact_law_says():
    *_, spec = mislabeled_digits()
    x = np.zeros((120, 2), dtype=np.float32)
    x[:2, 0], x[2:, 1] = 1e4, 1.0  # clipped at all times, and on a column of their own
    alone = data.from_arrays(x, np.arange(120) % 2)
    pairs = Pairs(np.array([0]), x[:1], x[:1], np.array([0]), np.array([1]), scenario="S4", task=alone.fingerprint)
    found = head_scores.HeadScores(
        alone, models.linear(alone), pairs, replace(spec, steps=1), head_scores.fair_coins(2, 1, 0), whiten=0, seed=0
    )
    q, sigma = spec.sample_rate, spec.noise_multiplier
    np.testing.assert_allclose(found.alone, 2 * q / (sigma**2 + q * (1 - q)) ** 0.5, rtol=1e-3)
    scores, bits = one_run_pairs.ideal_scores(spec, 200_000, np.random.default_rng(0))
    exact = 2 * q * (spec.steps / (sigma**2 + q * (1 - q))) ** 0.5
    assert separation(scores, bits) == pytest.approx(exact, rel=0.02)


def test_steps_without_all_directions_of_others_keep_what_lies_outside():
    rng = np.random.default_rng(0)
    axes = torch.linalg.qr(torch.tensor(rng.normal(size=(8, 3)))).Q
    apart, total = torch.tensor(rng.normal(size=(5, 8))), torch.tensor(rng.normal(size=8))
    for k, row in enumerate(head_scores.along(apart, total, axes)):
        torch.testing.assert_close(row, apart @ axes[:, :k] @ axes[:, :k].T @ total)
    task, model, _, spec = mislabeled_digits()
    quiet = replace(spec, noise_multiplier=1e-5, sample_rate=0.5)
    pair = crafters.mislabeled_pairs(task, model, spec, pairs=1, seed=0)
    found = head_scores.projections(task, model, pair, quiet, models=4, most=109, every=1, seed=3)
    assert found["projected"].shape == (110, 4, 1)
    right = (found["projected"] > 0) == (found["bits"] == 0)
    assert right[-1].all(), "nothing of the others is left"
    assert not right[0].all()
    assert (np.abs(found["softened"]).mean() < np.abs(found["projected"][0]).mean()).all()
