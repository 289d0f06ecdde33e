import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, SampledWithoutReplacementDpEvent
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from scipy.stats import binom, binomtest, ks_2samp, kstest, norm

from dpsub import accounting
from dpsub.accounting.worst_case_law import IndependentBatches
from dpsub.estimators import bound, epsilon_lower_bound
from dpsub.worst_case import audit_worst_case

SIXTEENTH = {"noise_multiplier": 1.6772842407226562, "sample_rate": 0.0625, "steps": 500}

# The σ of the paper's released experiment: ε_S = 1, 2, 4, 6, 8 at T = 500, δ = 1e-5.
FIGURE_2 = {
    1.0: (168.076, 89.128, 48.403, 34.130, 26.892),
    0.25: (42.080, 22.348, 12.115, 8.543, 6.694),
    0.0625: (10.495, 5.578, 3.017, 2.132, 1.677),
}


@pytest.mark.parametrize("adjacency", ["substitute", "zero_out"])
def test_sums_have_the_law_of_equation_3(adjacency):
    mechanism = {"noise_multiplier": 3.0, "sample_rate": 0.2, "steps": 40}
    data = audit_worst_case(**mechanism, runs=20_000, adjacency=adjacency)
    k = np.arange(41)
    x = np.linspace(-150, 150, 4_001)
    scores = IndependentBatches(*mechanism.values(), mirrored=adjacency == "substitute").ratios_of_sums(x)
    for bit, sign in ((0, 1), (1, -1 if adjacency == "substitute" else 0)):
        # The score is increasing in the sum, so the sums can be read back from it.
        sums = np.interp(data.score.values[data.bit.values == bit, 0], scores, x)
        assert len(sums) == pytest.approx(10_000, abs=400)
        law = kstest(sums, lambda t, s=sign: norm.cdf(t[:, None], s * k, 3 * np.sqrt(40)) @ binom.pmf(k, 40, 0.2))
        assert law.pvalue > 1e-3


def test_same_seed_same_numbers_and_more_runs_only_add():
    setting = {**SIXTEENTH, "adjacency": "substitute"}
    few, many = (audit_worst_case(**setting, runs=runs, seed=3) for runs in (9_000, 20_000))
    np.testing.assert_array_equal(few.bit, many.bit[:9_000])
    np.testing.assert_allclose(few.score, many.score[:9_000], rtol=1e-6)
    assert few.identical(audit_worst_case(**setting, runs=9_000, seed=3))
    assert not np.array_equal(few.bit, audit_worst_case(**setting, runs=9_000, seed=4).bit)


def test_dataset_says_what_made_it():
    data = audit_worst_case(**SIXTEENTH, runs=10, adjacency="zero_out", seed=5)
    assert data.score.dims == ("run", "step")
    assert data.score.dtype == np.float32
    assert data.bit.dtype == np.int8
    assert data.step.values.tolist() == [500]
    assert data.attrs.items() >= {**SIXTEENTH, "runs": 10, "adjacency": "zero_out", "seed": 5, "scenario": "S1"}.items()
    assert data.attrs["version_dpsub"]


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_audited_epsilon_is_close_to_the_accountants_for_the_same_adjacency(adjacency):
    mechanism = {"noise_multiplier": 6.694, "sample_rate": 0.25, "steps": 500}
    truth = accounting.epsilon(**mechanism, delta=1e-5, adjacency=adjacency)
    bounds = []
    for seed in range(5):
        data = audit_worst_case(**mechanism, runs=50_000, adjacency=adjacency, seed=seed)
        bounds.append(epsilon_lower_bound(data.score[:, 0], data.bit, delta=1e-5).epsilon)
    assert 0.9 * truth < np.mean(bounds) < truth


@pytest.mark.slow
@pytest.mark.parametrize("q", FIGURE_2)
@pytest.mark.parametrize("claim", ["gdp", "pld"])
def test_figure_2(claim, q):
    known = {"sample_rate": q, "steps": 500, "adjacency": "substitute"} if claim == "pld" else {}
    for sigma, tolerance in zip(FIGURE_2[q], (0.20, 0.15, 0.08, 0.08, 0.08), strict=True):
        mechanism = {"noise_multiplier": sigma, "sample_rate": q, "steps": 500}
        substitute, add_remove = (
            accounting.epsilon(**mechanism, delta=1e-5, adjacency=a) for a in ("substitute", "add_remove")
        )
        for rule in ("ranks", "best"):
            audited = []
            for seed in range(3):
                data = audit_worst_case(**mechanism, runs=50_000, adjacency="substitute", seed=seed)
                bound = epsilon_lower_bound(data.score[:, 0], data.bit, delta=1e-5, claim=claim, rule=rule, **known)
                audited.append(bound.epsilon)
            assert min(audited) > add_remove
            assert np.mean(audited) == pytest.approx(substitute, rel=tolerance)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_scores_at_next_to_no_noise_separate_the_worlds(adjacency):
    data = audit_worst_case(noise_multiplier=1e-15, sample_rate=1, steps=10, runs=100, adjacency=adjacency)
    score, bit = data.score.values[:, 0], data.bit.values
    assert np.isfinite(score).all()
    assert score[bit == 0].min() > 0 > score[bit == 1].max()


SMALL = {"noise_multiplier": 1.2, "sample_rate": 0.05, "steps": 20}


def naive_ratio(seen, sigma, q, shift_z, shift_z_prime):
    """The log-likelihood ratio of each run's batches (runs, steps), where each is shifted with probability q."""

    def likelihood(shift):
        return (1 - q) * norm.pdf(seen, 0, sigma) + q * norm.pdf(seen, shift, sigma)

    return np.log(likelihood(shift_z) / likelihood(shift_z_prime)).sum(axis=1)


@pytest.mark.parametrize(
    ("adjacency", "sampling", "shift_z", "shift_z_prime"),
    [
        ("substitute", "poisson", 1, -1),
        ("zero_out", "poisson", 1, 0),
        ("substitute", "without_replacement", 2, 0),
    ],
)
def test_scores_of_every_step_have_the_law_of_independent_steps(adjacency, sampling, shift_z, shift_z_prime):
    data = audit_worst_case(**SMALL, runs=20_000, adjacency=adjacency, sampling=sampling, every_step=True)
    rng = np.random.default_rng(5)
    for bit, shift in enumerate((shift_z, shift_z_prime)):
        seen = shift * (rng.random((10_000, 20)) < 0.05) + 1.2 * rng.standard_normal((10_000, 20))
        expected = naive_ratio(seen, 1.2, 0.05, shift_z, shift_z_prime)
        assert ks_2samp(data.score.values[data.bit.values == bit, 0], expected).pvalue > 1e-3


def test_scores_of_shuffled_epochs_have_the_law_of_their_batches():
    mechanism = {"noise_multiplier": 1.5, "sample_rate": 0.25, "steps": 12}
    data = audit_worst_case(**mechanism, runs=20_000, adjacency="substitute", sampling="epochs", every_step=True)
    rng = np.random.default_rng(6)
    for bit, shift in enumerate((2, 0)):
        seen = 1.5 * rng.standard_normal((10_000, 3, 4))
        np.put_along_axis(
            seen, place := rng.integers(0, 4, (10_000, 3, 1)), np.take_along_axis(seen, place, 2) + shift, 2
        )
        with_z = np.mean([np.exp((4 * seen[..., batch] - 4) / (2 * 1.5**2)) for batch in range(4)], axis=0)
        assert ks_2samp(data.score.values[data.bit.values == bit, 0], np.log(with_z).sum(axis=1)).pvalue > 1e-3


@pytest.mark.parametrize("sampling", ["without_replacement", "epochs"])
@pytest.mark.parametrize("every_step", [False, True])
def test_full_batches_are_the_same_however_they_are_drawn(sampling, every_step):
    mechanism = {"noise_multiplier": 9.0, "sample_rate": 1.0, "steps": 30}
    data = audit_worst_case(
        **mechanism, runs=50_000, adjacency="substitute", sampling=sampling, every_step=every_step, seed=1
    )
    truth = accounting.epsilon(**mechanism, delta=1e-5, adjacency="substitute")
    shown = epsilon_lower_bound(data.score[:, 0], data.bit, delta=1e-5)
    assert 0.93 * truth < shown.epsilon < truth


@pytest.mark.parametrize("every_step", [False, True])
def test_ratios_are_ratios_of_likelihoods(every_step):
    for sampling in ("poisson", "without_replacement", "epochs"):
        data = audit_worst_case(
            **SMALL, runs=40_000, adjacency="substitute", sampling=sampling, every_step=every_step, seed=2
        )
        weights = np.exp(-data.score.values[data.bit.values == 0, 0].astype(float))  # E under z of Pr(z′)/Pr(z) is 1
        assert weights.mean() == pytest.approx(1, abs=5 * weights.std() / np.sqrt(len(weights)))


@pytest.mark.slow
def test_fixed_size_batches_show_nearly_what_is_attained_and_more_than_dp_accountings_rdp():
    mechanism = {"noise_multiplier": 1.0, "sample_rate": 512 / 60_000, "steps": 1_180}
    data = audit_worst_case(
        **mechanism, runs=10_000, adjacency="substitute", sampling="without_replacement", every_step=True
    )
    [shown] = bound(data, delta=1e-5, claim="pld")
    attained, _, upper = accounting.epsilon_interval(
        **mechanism, delta=1e-5, adjacency="substitute", sampling="without_replacement"
    )
    assert 0.95 * attained < shown.epsilon < upper
    assert shown.valid
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    accountant.compose(SampledWithoutReplacementDpEvent(60_000, 512, GaussianDpEvent(1.0)), 1_180)
    assert accountant.get_epsilon(1e-5) == pytest.approx(3.28, abs=0.01)
    assert shown.epsilon > 3 * accountant.get_epsilon(1e-5)


@pytest.mark.slow
def test_bounds_of_fixed_size_exceed_the_attained_value_in_at_most_alpha_of_audits():
    attained, _, upper = accounting.epsilon_interval(
        **SMALL, delta=1e-5, adjacency="substitute", sampling="without_replacement"
    )
    bounds = []
    for seed in range(200):
        data = audit_worst_case(
            **SMALL, runs=50_000, adjacency="substitute", sampling="without_replacement", every_step=True, seed=seed
        )
        bounds.append(bound(data, delta=1e-5, claim="pld")[0].epsilon)
    assert binomtest(int(np.sum(np.array(bounds) > attained)), 200, 0.05, alternative="greater").pvalue > 0.01
    assert np.mean(np.array(bounds) > upper) <= 0.05
    assert np.mean(bounds) > 0.94 * attained


def test_shuffled_epochs_show_less_than_the_safe_bound_and_more_than_poisson():
    mechanism = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 50}
    asked = {**mechanism, "delta": 1e-5, "adjacency": "substitute"}
    data = audit_worst_case(**mechanism, runs=20_000, adjacency="substitute", sampling="epochs", every_step=True)
    shown = epsilon_lower_bound(data.score[:, 0], data.bit, delta=1e-5, claim="dp")
    assert 5 < shown.epsilon < accounting.epsilon(**asked, sampling="epochs")


def test_epochs_that_are_not_complete_have_no_worst_case():
    with pytest.raises(ValueError, match="steps must be whole epochs of 20 steps with sampling='epochs', got 30"):
        audit_worst_case(**{**SMALL, "steps": 30}, runs=10, adjacency="substitute", sampling="epochs")
