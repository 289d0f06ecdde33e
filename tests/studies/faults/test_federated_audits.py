"""Federated trainings in which a hospital is a record, their audits, and the kept ones."""

from itertools import pairwise

import numpy as np
import pytest

import dpsub
from dpsub import accounting
from studies.faults import federated_audits
from studies.kept import read_table
from studies.own_training import federated

ROUNDS = np.arange(1, federated.ROUNDS + 1)


def claimed(adjacency):
    sigma = federated_audits.PROMISED["noise_multiplier"]
    return accounting.epsilon(
        noise_multiplier=sigma, sample_rate=1.0, steps=ROUNDS, delta=federated_audits.DELTA, adjacency=adjacency
    )


def test_a_round_is_the_mean_of_clipped_updates():
    rng = np.random.default_rng(0)
    x, y, limit = rng.normal(size=(6, 4, 3)), rng.choice([-1, 1], (6, 4)), 0.8
    models = federated.federated(x, y, 0, max_grad_norm=limit, noise_multiplier=0)
    assert len(models) == federated.ROUNDS + 1
    clipped = 0
    for old, new in pairwise(models):
        moved = np.zeros(3)
        for rows, labels in zip(x, y, strict=True):
            local = old.copy()
            for _ in range(federated.PASSES):
                slope = np.zeros(3)
                for row, label in zip(rows, labels, strict=True):
                    slope -= label * row / (1 + np.exp(label * row @ local))
                local = local - federated.RATE * slope / 4
            length = np.linalg.norm(local - old)
            clipped += length > limit
            moved += (local - old) * min(1, limit / length) / 6
        np.testing.assert_allclose(new, old + moved, atol=1e-12)
    assert 0 < clipped < 6 * federated.ROUNDS


@pytest.mark.parametrize("name", ["crafted", "ordinary", "crafted or none"])
def test_the_score_is_the_log_likelihood_ratio_of_the_rounds(name):
    """Up to the variance of the noise."""
    (x, y), pairs = federated_audits.hospitals()
    _, pair = pairs[name]
    limit, sigma = 1.0, 3.0
    std = sigma * limit / (len(x) + 1)
    worlds = [(np.concatenate([x, pair[0][[i]]]), np.concatenate([y, pair[1][[i]]])) for i in (0, 1)]
    models = federated.federated(*worlds[1], 5, max_grad_norm=limit, noise_multiplier=sigma)
    likelihoods = np.zeros((2, federated.ROUNDS))
    for i, world in enumerate(worlds):
        for t, (old, new) in enumerate(pairwise(models)):
            mean = old + federated.clip(federated.updates(old, *world), limit).mean(axis=0)
            likelihoods[i, t] = -((new - mean) ** 2).sum() / (2 * std**2)
    found = federated.train(1, 5, others=(x, y), pair=pair, max_grad_norm=limit, noise_multiplier=sigma)
    np.testing.assert_allclose(found / std**2, np.cumsum(likelihoods[0] - likelihoods[1]), rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_replacing_a_hospital_shows_more_than_the_add_remove_epsilon_and_removing_it_less():
    bounds = {
        name: np.array([bound.epsilon for bound in dpsub.bound(federated_audits.audited(name, runs=1_000), delta=1e-5)])
        for name in ("crafted", "ordinary", "crafted or none")
    }
    replaced, removed, ordinary = (bounds[name] for name in ("crafted", "crafted or none", "ordinary"))
    assert (replaced < claimed("substitute")).all()
    assert (removed < claimed("zero_out")).all()
    assert replaced[-1] > max(1.3 * claimed("add_remove")[-1], 0.7 * claimed("substitute")[-1])
    assert removed[-1] > 0.4 * claimed("zero_out")[-1]
    assert 0 < ordinary[-1] < replaced[-1]


def test_flower_finds_in_the_kept_table_what_the_rule_in_numpy_finds():
    equal, weighted = read_table("faults/federated_audits.csv").to_dict("records")
    assert (equal["times"], weighted["times"]) == (1, federated_audits.MORE)
    assert federated_audits.PROMISED.items() <= equal.items()
    assert claimed("add_remove")[-1] <= equal["reported"] < 1.2 * claimed("add_remove")[-1]  # by Rényi DP
    assert equal["reported"] < equal["bound"] < claimed("substitute")[-1] < weighted["bound"]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_flower_trains_as_the_rule_in_numpy_and_accounts_for_add_remove():
    pytest.importorskip("flwr")
    from studies.own_training.federated_flower import flower

    (x, y), _ = federated_audits.hospitals()
    ours, theirs = (run(x, y, 0, max_grad_norm=1.0, noise_multiplier=1e-9) for run in (federated.federated, flower))
    np.testing.assert_allclose(theirs, ours, atol=1e-8)
    kept = read_table("faults/federated_audits.csv")
    assert round(federated_audits.reported(), 3) == kept["reported"].iloc[0]
