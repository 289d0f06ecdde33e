import math
import re

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpsub.accounting import noise_multiplier, risk, risks, tradeoff

FIGURE_2 = {"noise_multiplier": 1.6772842, "sample_rate": 1 / 16, "steps": 500}


def gaussian_posterior(mu, prior, delta):
    """The mean of the largest beliefs: those above a threshold that a share `delta` of all outcomes exceeds."""

    def mass(x):
        return prior * norm.sf(x - mu) + (1 - prior) * norm.sf(x)

    threshold = brentq(lambda x: mass(x) - delta, -40, 40)
    return prior * norm.sf(threshold - mu) / delta


@pytest.mark.parametrize(("mu", "prior"), [(0.1, 0.5), (0.925, 0.5), (0.925, 0.02), (0.925, 0.9), (3.0, 0.3)])
def test_risks_of_a_full_batch_are_those_of_two_gaussians(mu, prior):
    asked = {"noise_multiplier": 2 * math.sqrt(500) / mu, "sample_rate": 1, "steps": 500}
    found = risk(**asked, adjacency="substitute", prior=prior, fpr=0.05, delta=1e-3)
    assert found.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, abs=1e-12)
    edge = math.log(1 / prior - 1) / mu + mu / 2
    right = prior * norm.sf(edge - mu) + (1 - prior) * norm.cdf(edge)
    assert found.accuracy == pytest.approx(right, abs=1e-12)
    if prior == 0.5:
        assert found.accuracy == pytest.approx(norm.cdf(mu / 2), abs=1e-12)
    assert found.tpr == pytest.approx(norm.sf(norm.isf(0.05) - mu), abs=1e-12)
    assert found.ppv == pytest.approx(prior * found.tpr / (prior * found.tpr + (1 - prior) * 0.05), abs=1e-12)
    exact = gaussian_posterior(mu, prior, 1e-3)
    assert exact <= found.posterior <= exact + 1e-5
    assert (found.prior, found.fpr, found.delta) == ((prior, 1 - prior), 0.05, 1e-3)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_much_noise_leaves_the_prior(adjacency):
    found = risk(noise_multiplier=1e6, sample_rate=0.1, steps=3, prior=0.2, adjacency=adjacency)
    for name, floor in risks.without_model((0.2, 0.8), 0.01).items():
        assert floor <= getattr(found, name) <= floor + 2e-4


def test_alarms_that_are_hardly_ever_false_are_not_understated():
    found = risk(noise_multiplier=1, sample_rate=1, steps=1, fpr=1e-300, adjacency="substitute")
    assert found.ppv > 1 - 1e-9


def test_little_noise_leaves_no_doubt():
    found = risk(noise_multiplier=1e-3, sample_rate=1, steps=1, prior=[0.2, 0.3, 0.5], adjacency="substitute")
    assert (found.accuracy, found.advantage, found.tpr, found.posterior) == (1, 1, 1, 1)


# Attacks on a training, simulated: the likelihood ratio of all steps is what the attacker's belief comes from.
def test_risks_of_a_substituted_record_are_those_of_the_strongest_attack():
    sigma, q, steps, runs, prior, delta = 1.0, 0.2, 30, 40_000, 0.3, 0.02
    rng = np.random.default_rng(0)
    in_z = rng.random(runs) < prior
    seen = sigma * rng.standard_normal((runs, steps))
    seen += np.where(in_z, 1, -1)[:, None] * (rng.random((runs, steps)) < q)
    of_z, of_z_prime = (np.log1p(q * np.expm1((sign * 2 * seen - 1) / (2 * sigma**2))) for sign in (1, -1))
    belief = 1 / (1 + (1 / prior - 1) * np.exp((of_z_prime - of_z).sum(axis=1)))
    asked = {"noise_multiplier": sigma, "sample_rate": q, "steps": steps, "adjacency": "substitute"}
    found = risk(**asked, prior=prior, delta=delta, fpr=0.05)
    right = np.mean((belief > 0.5) == in_z)
    assert right == pytest.approx(found.accuracy, abs=4 * math.sqrt(0.25 / runs))
    assert np.mean(belief > found.posterior) <= delta
    largest = np.sort(belief)[-round(delta * runs) :]
    assert largest.mean() == pytest.approx(found.posterior, abs=0.01)
    alarms = belief > np.quantile(belief[~in_z], 0.95)
    assert alarms[in_z].mean() == pytest.approx(found.tpr, abs=0.03)
    assert in_z[alarms].mean() == pytest.approx(found.ppv, abs=0.03)


# Made by riskcal 1.5.1, which is not a dependency because it must be compiled, at grid_step=1e-4: the advantage, β at
# α = 0.01 and 0.1, and 1 − Bayes risk at prior 0.3.
@pytest.mark.parametrize(
    ("training", "advantage", "missed", "right"),
    [
        pytest.param((1.0, 512 / 60_000, 1_180), 0.149789, (0.972964, 0.814016), 0.701125, marks=pytest.mark.slow),
        pytest.param((4.0, 0.01, 10_000), 0.101007, (0.980856, 0.847863), 0.700014, marks=pytest.mark.slow),
        ((1.6772842, 1 / 16, 500), 0.345280, (0.920382, 0.646727), 0.736731),
        ((26.892, 1.0, 500), 0.322407, (0.932523, 0.673664), 0.728976),
        ((0.7, 0.3, 20), 0.694098, (0.519839, 0.210588), 0.873837),
    ],
)
def test_membership_risks_agree_with_riskcal(training, advantage, missed, right):
    asked = dict(zip(("noise_multiplier", "sample_rate", "steps"), training, strict=True))
    found = risk(**asked, adjacency="add_remove", prior=0.3)
    assert found.advantage == pytest.approx(advantage, abs=1e-3)
    assert found.accuracy == pytest.approx(right, abs=1e-3)
    for fpr, fnr in zip((0.01, 0.1), missed, strict=True):
        assert 1 - risk(**asked, adjacency="add_remove", fpr=fpr).tpr == pytest.approx(fnr, abs=1e-3)


def exact_deltas(worlds, epsilons):
    """The largest δ(ε) of any ordered pair of worlds, laws on the same outcomes."""
    pairs = worlds[:, None, None] - np.exp(epsilons)[:, None] * worlds[None, :, None]
    return np.maximum(pairs, 0).sum(axis=-1).max(axis=(0, 1))


def beliefs(prior, worlds):
    """What is believed of each value at each outcome, and the probability of the outcomes."""
    joint = np.asarray(prior)[:, None] * worlds
    return joint / joint.sum(axis=0), joint.sum(axis=0)


def random_worlds(rng, values, outcomes):
    return rng.dirichlet(np.full(outcomes, rng.choice([0.2, 1.0, 5.0])), size=values)


@pytest.mark.parametrize("mechanisms", [40, pytest.param(2_000, marks=pytest.mark.slow)])
def test_no_risk_of_random_mechanisms_is_understated(mechanisms):
    rng = np.random.default_rng(mechanisms)
    gaps = []
    for _ in range(mechanisms):
        values = rng.choice([2, 2, 3, 5])
        worlds, prior = random_worlds(rng, values, rng.integers(2, 9)), rng.dirichlet(np.full(values, 2.0))
        epsilons = np.append(np.linspace(0, 12, 200), abs(math.log(prior[0] / prior[1])))
        epsilons.sort()
        deltas = exact_deltas(worlds, epsilons)
        believed, weights = beliefs(prior, worlds)
        right = float(weights @ believed.max(axis=0))
        bound = risks.accuracy(prior.tolist(), epsilons, deltas)
        assert right <= bound + 1e-12
        gaps.append((values, bound - right))
        delta = 10 ** rng.uniform(-3, -0.3)
        level = risks.posterior(float(prior[0]), delta, epsilons, deltas)
        assert weights[believed[0] > level].sum() <= delta + 1e-12
        alarm = rng.random(worlds.shape[1]) < 0.5
        tpr, fpr = worlds[0][alarm].sum(), (prior[1:] / prior[1:].sum() @ worlds[1:])[alarm].sum()
        assert tpr - fpr <= deltas[0] + 1e-12
        assert believed[0] @ (weights * alarm) <= risks.ppv(float(prior[0]), tpr, fpr) * weights[alarm].sum() + 1e-12
    # Both directions of a pair count, so that the bound of two values is not always attained.
    assert np.median([gap for values, gap in gaps if values == 2]) < 0.02
    assert np.median([gap for values, gap in gaps if values > 2]) < 0.25


@pytest.mark.parametrize("values", [2, 3, 10, 1_000])
@pytest.mark.parametrize("loss", [0.1, 1.0, 6.0])
def test_the_accuracy_of_randomised_response_is_attained(values, loss):
    """The true value with e^ε times the probability of each other one: no mechanism of this ε shows more."""
    total = math.exp(loss) + values - 1
    epsilons = np.linspace(0, loss, 400)
    deltas = (math.exp(loss) - np.exp(epsilons)) / total
    found = risks.accuracy([1 / values] * values, epsilons, deltas)
    assert found == pytest.approx(math.exp(loss) / total, rel=2e-3)
    assert found >= math.exp(loss) / total - 1e-12


@pytest.mark.parametrize("prior", [[0.1] * 10, [0.6, 0.3, 0.05, 0.05], [0.001, 0.999], [0.02] * 50])
def test_many_values_are_bounded_below_the_papers_bound_and_above_the_prior(prior):
    found = risk(**FIGURE_2, adjacency="substitute", prior=prior)
    paper = 1 - tradeoff(max(prior), **FIGURE_2, adjacency="substitute")
    assert max(prior) <= found.accuracy <= paper + 2e-5


def test_two_values_as_a_number_and_as_a_sequence_are_the_same():
    asked = {**FIGURE_2, "adjacency": "add_remove"}
    assert risk(**asked, prior=0.25) == risk(**asked, prior=[0.25, 0.75])
    assert risk(**asked, prior=0.25).accuracy == pytest.approx(risk(**asked, prior=0.75).accuracy)


def test_phases_and_epochs_are_understood():
    mu = 2 * math.sqrt(250 / 40**2 + 100 / 60**2)
    phases = risk(history=[(40, 1, 250), (60, 1, 100)], adjacency="substitute")
    assert phases.accuracy == pytest.approx(norm.cdf(mu / 2))
    assert risk(history=[(40, 0.1, 2_500), (60, 0.1, 1_000)], adjacency="substitute", sampling="epochs") == phases


def test_the_tpr_is_that_of_the_tradeoff_function():
    for sampling in ("poisson", "without_replacement"):
        asked = {**FIGURE_2, "adjacency": "substitute", "sampling": sampling}
        assert risk(**asked, fpr=0.03).tpr == pytest.approx(1 - tradeoff(0.03, **asked), abs=2e-5)


def one_step_risks(sigma, q, prior, delta, adjacency):
    """Accuracy, and the mean of the largest beliefs, of one step of Poisson batches, integrated on a fine grid."""
    x = np.linspace(-12 * sigma - 1, 12 * sigma + 1, 400_001)
    width = x[1] - x[0]

    def mixture(mean):
        return (1 - q) * norm.pdf(x, 0, sigma) + q * norm.pdf(x, mean, sigma)

    of_z, other = mixture(1) * width, (mixture(-1) if adjacency == "substitute" else norm.pdf(x, 0, sigma)) * width
    accuracy = 0.0
    means = []
    for p, p_prime in ((of_z, other), (other, of_z)):
        joint, total = prior * p, prior * p + (1 - prior) * p_prime
        accuracy = max(accuracy, float(np.maximum(joint, total - joint).sum()))
        order = np.argsort(joint / total)[::-1]
        inside = np.cumsum(total[order]) <= delta
        means.append(joint[order][inside].sum() / max(total[order][inside].sum(), 1e-300))
    return accuracy, max(means)


def one_step_cases(count):
    rng = np.random.default_rng(5)
    for _ in range(count):
        yield (
            math.exp(rng.uniform(-0.7, 2)), float(rng.choice([0.01, 0.1, 0.5, 0.9, 1.0])), rng.uniform(0.05, 0.95),
            10 ** rng.uniform(-3, -0.5), str(rng.choice(["substitute", "add_remove"])),
        )  # fmt: skip


@pytest.mark.parametrize("count", [2, pytest.param(400, marks=pytest.mark.slow)])
def test_risks_of_one_step_are_those_that_an_integral_shows(count):
    for sigma, q, prior, delta, adjacency in one_step_cases(count):
        asked = {"noise_multiplier": sigma, "sample_rate": q, "steps": 1, "adjacency": adjacency}
        found = risk(**asked, prior=prior, delta=delta)
        right, mean = one_step_risks(sigma, q, prior, delta, adjacency)
        assert right - 1e-6 <= found.accuracy <= right + 1e-4
        assert mean - 1e-4 <= found.posterior <= mean + 2e-3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prior": [0.5, 0.6]}, "prior must be a number .*, got [0.5, 0.6], with the sum 1.1"),
        ({"prior": [0.2, 0.3, 0.5], "adjacency": "add_remove"}, "prior must be of two values with adjacency 'add_rem"),
    ],
)
def test_errors_name_the_argument(given, message):
    with pytest.raises(ValueError, match=re.escape(message).replace(r"\.\*", ".*")):
        risk(**{**FIGURE_2, "adjacency": "substitute", **given})


# Noise for a risk.


@pytest.mark.parametrize(
    ("measure", "target"),
    [("accuracy", 0.7), ("advantage", 0.3), ("tpr", 0.1), ("ppv", 0.8), ("posterior", 0.95)],
)
@pytest.mark.parametrize("q", [1.0, pytest.param(0.25, marks=pytest.mark.slow)])
def test_noise_for_a_risk_is_the_least_that_meets_it(measure, target, q):
    asked = {"sample_rate": q, "steps": 100, "adjacency": "substitute", "delta": 1e-4}
    sigma = noise_multiplier(target_risk=target, measure=measure, **asked)
    assert getattr(risk(noise_multiplier=sigma, **asked), measure) <= target
    assert getattr(risk(noise_multiplier=sigma * (1 - 1e-4), **asked), measure) > target


def test_noise_for_an_accuracy_at_full_batch_is_known():
    sigma = noise_multiplier(target_risk=0.6, sample_rate=1, steps=400, adjacency="add_remove")
    assert sigma == pytest.approx(20 / (2 * norm.ppf(0.6)), rel=1e-5)


# Made by riskcal 1.5.1, whose tolerance is 1e-3 of the risk.
@pytest.mark.slow
def test_noise_for_membership_risks_agrees_with_riskcal():
    of_advantage = noise_multiplier(
        target_risk=0.1, measure="advantage", sample_rate=0.01, steps=10_000, adjacency="add_remove"
    )
    assert of_advantage == pytest.approx(4.0396, rel=0.01)
    of_tpr = noise_multiplier(target_risk=0.1, measure="tpr", sample_rate=1 / 16, steps=500, adjacency="add_remove")
    assert of_tpr == pytest.approx(1.5033, rel=0.01)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "target_epsilon or target_risk must be given, and not both, got none of them"),
        ({"target_epsilon": 1}, "delta must be given with target_epsilon"),
        ({"target_risk": 0.7, "measure": "posterior"}, "delta must be given with measure 'posterior'"),
        ({"target_risk": 0.5}, "target_risk must be > 0.5 for measure 'accuracy', got 0.5: an attacker who has not"),
        pytest.param(
            {"target_risk": 0.8, "sample_rate": 0.5, "steps": 1},
            "target_risk must be smaller for a noise_multiplier from 0.0001",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_targets_that_cannot_be_met_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        noise_multiplier(**{"sample_rate": 0.1, "steps": 10, "adjacency": "substitute", **given})
