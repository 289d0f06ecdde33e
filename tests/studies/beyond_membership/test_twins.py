import numpy as np
import pytest
import xarray as xr
from cases import slow_but

from dpsub import DPSGD, CanaryPair, accounting, audit, data, models
from studies.beyond_membership.twins import of_twins, of_two_worlds


def twins(runs=12, mu=(0.5, 2.0), seed=0, noise=0.02, **attrs):
    """Two audits of models that were trained twice: the same spread, mu of it apart, but for a little noise."""
    rng = np.random.default_rng(seed)
    bit = rng.integers(2, size=runs).astype(np.int8)
    speaks = np.where(bit == 0, 1, -1)[:, None]
    shared = 3 * rng.normal(size=(runs, len(mu)))
    scores = [shared + sign * speaks * 1.5 * np.array(mu) + noise * rng.normal(size=shared.shape) for sign in (1, -1)]
    return [
        xr.Dataset(
            {"score": (("run", "step"), score * sign), "bit": ("run", bit)},
            coords={"step": [10, 20][: len(mu)]},
            attrs={"seed": 0, "canary_fingerprint": name, "commit": name} | attrs,
        )
        for score, sign, name in ((scores[0], 1, "a"), (scores[1], -1, "b"))
    ]


def test_separation_is_the_gap_of_twins_over_the_spread_of_a_world():
    found = of_twins(*twins(runs=1500), delta=1e-5)
    assert found.index.tolist() == [10, 20]
    assert found.gap.tolist() == pytest.approx([1.5, 6.0], abs=0.01)
    assert found.spread.tolist() == pytest.approx([3, 3], rel=0.05)
    assert found.mu.tolist() == pytest.approx([0.5, 2.0], rel=0.05)
    for column, sign in (("epsilon", 0), ("epsilon_low", -1), ("epsilon_high", 1)):
        at = found.mu + sign * found.error
        assert found[column].tolist() == [accounting.gdp_epsilon(mu, 1e-5) for mu in at]


def test_separation_is_computed_from_all_twins():
    one, other = twins(runs=5, noise=1.0)
    found = of_twins(one, other, delta=1e-5)
    saw_z = one.bit.values[:, None] == 0
    z = np.where(saw_z, one.score, -other.score)
    z_prime = np.where(saw_z, -other.score, one.score)
    assert found.gap.tolist() == pytest.approx((z - z_prime).mean(axis=0).tolist())
    spread = np.sqrt((z.var(axis=0, ddof=1) + z_prime.var(axis=0, ddof=1)) / 2)
    assert found.spread.tolist() == pytest.approx(spread.tolist())
    assert found.mu.tolist() == pytest.approx((found.gap / found.spread * (1 - 3 / 15)).tolist())


def test_models_trained_once_tell_the_same_to_the_error_that_is_stated():
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        bits = rng.integers(2, size=200)
        scores = 3 * (rng.normal(size=200) + 0.6 * (bits == 0))
        found.append(of_two_worlds(scores, bits, delta=1e-5))
    assert np.mean([one["gap"] for one in found]) == pytest.approx(1.8, abs=0.1)
    assert np.mean([one["spread"] for one in found]) == pytest.approx(3, rel=0.02)
    covered = [one["mu"] - one["error"] < 0.6 < one["mu"] + one["error"] for one in found]
    assert 0.92 < np.mean(covered) < 0.985  # two standard errors: 95.4 %, here with a deviation of 1.1
    for name, sign in (("epsilon", 0), ("epsilon_low", -1), ("epsilon_high", 1)):
        at = max(0, found[0]["mu"] + sign * found[0]["error"])
        assert found[0][name] == accounting.gdp_epsilon(at, 1e-5)


@pytest.mark.parametrize("runs", slow_but([6, 12], 6))
def test_a_few_twins_tell_the_separation_without_bias_and_to_the_error_that_is_stated(runs):
    found = [of_twins(*twins(runs, (1.5,), seed), delta=1e-5).iloc[0] for seed in range(150)]
    mu = np.array([one.mu for one in found])
    assert abs(mu.mean() - 1.5) < 4 * mu.std() / np.sqrt(150), "not divided by a spread that is too small on average"
    # What twelve pairs find lies within two standard errors of the truth about as often as of a Gaussian.
    assert np.mean([abs(one.mu - 1.5) < one.error for one in found]) > 0.87
    # Without twins the means of two worlds of six models each would differ by chance alone by 0.6 of their spread.
    assert np.std([one.gap / 3 for one in found]) < 0.01


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_twins_of_an_audit_are_alike_but_for_their_canary(name):
    task = data.digits(n_train=60)
    model = getattr(models, name)(task)
    x, y = task.x_train[3], int(task.y_train[3])
    pair = CanaryPair((x, y), (x, (y + 1) % 10), 3, "S4")
    spec = DPSGD(3.0, 1.0, sample_rate=0.5, steps=20, learning_rate=0.3)
    one, other = (
        audit(task, model, canary, spec, runs=60, metrics=("accuracy",), observe_every=20, device="cpu", progress=False)
        for canary in (pair, pair.exchanged())
    )
    for bit in (0, 1):
        here = one.bit == bit
        assert np.corrcoef(one.score[here, 0], -other.score[here, 0])[0, 1] > 0.8
    last = of_twins(one, other, delta=1e-5).iloc[-1]
    # The same gap as two worlds of strangers have, but for the error of those.
    scores, bits = one.score.values[:, 0], one.bit.values
    strangers = scores[bits == 0].mean() - scores[bits == 1].mean()
    assert abs(last.gap - strangers) < 4 * last.spread * 2 / np.sqrt(60)
    assert last.mu > 0.5


def test_worlds_that_do_not_differ_have_an_epsilon_of_zero_within_their_error():
    found = of_twins(*twins(mu=(0.0,), noise=1.0), delta=1e-5)
    assert found.epsilon_low.item() == 0
    assert found.mu.item() == pytest.approx(0, abs=2 * found.error.item())


def test_audits_that_are_no_twins_are_named():
    one, other = twins()
    with pytest.raises(ValueError, match="got an audit of the same canary as result"):
        of_twins(one, one, delta=1e-5)
    for name in ("seed", "slot", "learning_rate", "device"):
        with pytest.raises(ValueError, match=f"got one with {name} 1 beside None"):
            of_twins(
                one.drop_attrs().assign_attrs(canary_fingerprint="a"),
                other.assign_attrs({"seed": None, name: 1}),
                delta=1e-5,
            )
    with pytest.raises(ValueError, match="exchanged must have the bits and steps of result"):
        of_twins(one, other.assign(bit=1 - other.bit), delta=1e-5)


def test_twins_of_a_linear_head_in_the_coordinates_of_its_records_are_refused():
    one, other = twins(trained_coordinates="span", optimizer="sgd", model="Linear(64 → 10)")
    with pytest.raises(ValueError, match="coordinates='all', got 'span'"):
        of_twins(one, other, delta=1e-5)
    network = twins(trained_coordinates="span", optimizer="sgd", model="Network(64 → 10)")
    assert of_twins(*network, delta=1e-5).equals(of_twins(*twins(), delta=1e-5))


def test_twins_may_differ_in_when_and_how_exactly_they_were_made():
    one, other = twins(noise_multiplier=3.0)
    other = other.assign_attrs(noise_multiplier=3.0 + 1e-9, files={"a": "b"}, version_scipy="2", commit="c")
    plain = of_twins(*twins(), delta=1e-5)
    assert of_twins(one, other.transpose(), delta=1e-5).equals(plain)
