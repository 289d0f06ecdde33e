import numpy as np
import pytest
from scipy.stats import binom, kstest, norm

from dpsub import accounting
from dpsub.accounting.worst_case_law import log_likelihood_ratio
from dpsub.estimators import epsilon_lower_bound
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
    scores = log_likelihood_ratio(x, **mechanism, adjacency=adjacency)
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


def test_blocks_of_runs_have_randomness_of_their_own():
    data = audit_worst_case(**SIXTEENTH, runs=24_576, adjacency="substitute")
    assert len(np.unique(data.score)) > 24_000


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
@pytest.mark.parametrize("method", ["gdp", "pld"])
def test_figure_2(method, q):
    known = {"sample_rate": q, "steps": 500, "adjacency": "substitute"} if method == "pld" else {}
    for sigma, tolerance in zip(FIGURE_2[q], (0.20, 0.15, 0.08, 0.08, 0.08), strict=True):
        mechanism = {"noise_multiplier": sigma, "sample_rate": q, "steps": 500}
        substitute, add_remove = (
            accounting.epsilon(**mechanism, delta=1e-5, adjacency=a) for a in ("substitute", "add_remove")
        )
        for rule in ("ranks", "best"):
            audited = []
            for seed in range(3):
                data = audit_worst_case(**mechanism, runs=50_000, adjacency="substitute", seed=seed)
                bound = epsilon_lower_bound(
                    data.score[:, 0], data.bit, delta=1e-5, method=method, threshold=rule, **known
                )
                audited.append(bound.epsilon)
            assert min(audited) > add_remove
            assert np.mean(audited) == pytest.approx(substitute, rel=tolerance)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier must be > 0, got 0.0"),
        ({"noise_multiplier": 1e-160}, "noise_multiplier must be >= 1e-15 and <= 1e.15, got 1e-160"),
        ({"noise_multiplier": 1e160}, "noise_multiplier must be >= 1e-15 and <= 1e.15, got 1e.160"),
        ({"steps": 10**9}, "steps must be .* <= 10000000, got 1000000000"),
        ({"sample_rate": 2}, "sample_rate must be > 0 and <= 1, got 2"),
        ({"steps": 0}, "steps must be >= 1, got 0"),
        ({"runs": 0}, "runs must be >= 1, got 0"),
        ({"runs": 1.5}, "runs must be a whole number >= 1, got 1.5"),
        ({"runs": 10**15}, "runs must be >= 1 and <= 1000000000, got 1000000000000000"),
        ({"adjacency": "swap"}, "adjacency must be one of"),
        ({"seed": -1}, "seed must be >= 0, got -1"),
    ],
)
def test_bad_input_is_named(change, message):
    with pytest.raises(ValueError, match=message):
        audit_worst_case(**{**SIXTEENTH, "runs": 10, "adjacency": "substitute", **change})


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_scores_at_next_to_no_noise_separate_the_worlds(adjacency):
    data = audit_worst_case(noise_multiplier=1e-15, sample_rate=1, steps=10, runs=100, adjacency=adjacency)
    score, bit = data.score.values[:, 0], data.bit.values
    assert np.isfinite(score).all()
    assert score[bit == 0].min() > 0 > score[bit == 1].max()
