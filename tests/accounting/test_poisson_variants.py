from itertools import combinations, product

import numpy as np
import pytest
from cases import slow_but
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as plds
from scipy import fft
from scipy.stats import binom, norm

from dpsub import DPSGD, accounting, audit_worst_case, bound
from dpsub.accounting import PoissonMean, Sampling, TruncatedPoisson

DELTA = 1e-5
# Noise multiplier, sample rate, steps, records, largest batch: from cuts that hardly ever happen to ones at most steps.
SETTINGS = [
    (sigma, q, steps, n, round(q * n + standard_deviations * (q * (1 - q) * n) ** 0.5))
    for (sigma, q, steps, n), deviations in {
        (1.0, 0.01, 1_000, 60_000): (4, 2, 0),
        (0.8, 0.05, 20, 300): (3, 1, -1),
        (2.0, 0.25, 40, 100): (3, 1, -1),
        (4.0, 0.01, 2_000, 20_000): (3, 2, 1),
        (1.2, 0.02, 300, 1_000): (3, 1, 0, -2),
        (6.0, 0.5, 100, 50): (2, 0, -2, -3),
    }.items()
    for standard_deviations in deviations
]


def asked(sigma, q, steps, n, largest, **others):
    mechanism = {"noise_multiplier": sigma, "sample_rate": q, "steps": steps, "delta": DELTA}
    return {**mechanism, "sampling": TruncatedPoisson(largest, n), **others}


def summed_losses(law, steps, mesh=5e-4):
    """ε at DELTA of steps whose loss has this law (losses, masses): rounded to a mesh, and summed by one transform."""
    losses, masses = law
    place = np.rint(losses / mesh).astype(int)
    mean, low = masses @ losses, place.min()
    width = 40 * np.sqrt(steps * masses @ (losses - mean) ** 2) + 2 * np.ptp(losses)
    size = fft.next_fast_len(int(width / mesh), real=True)
    step = np.bincount((place - low) % size, weights=masses, minlength=size)
    total = fft.irfft(fft.rfft(step) ** steps, size)
    first = round(steps * mean / mesh) - size // 2
    losses = mesh * (first + np.arange(size))
    total = np.roll(total, -((first - steps * low) % size))

    def delta(epsilon):
        return total[losses > epsilon] @ -np.expm1(epsilon - losses[losses > epsilon])

    low, high = 0.0, 200.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if delta(middle) > DELTA else (low, middle)
    return high


def loss_law(sigma, q, n, largest):
    """Losses of a replaced record, and their masses: of an uncut batch, and of a cut one by its two half-lines."""
    cut = binom.sf(largest - 1, n - 1, q)
    rate = binom.sf(largest, n, q) * largest / n / cut
    x = np.linspace(-12 * sigma - 2, 12 * sigma + 3, 100_001)
    width = x[1] - x[0]

    def mixture(share, at):
        return width * ((1 - share) * norm.pdf(x, 0, sigma) + share * norm.pdf(x, at, sigma))

    whole, mirrored = mixture(q, 1), mixture(q, -1)
    near, empty = mixture(rate, 2), mixture(rate, 0)
    above = near > empty
    loss = np.log(near[above] / empty[above])
    rest = 1 - near[above].sum() - empty[above].sum()
    losses = np.concatenate([np.log(whole / mirrored), loss, -loss, [0.0]])
    masses = np.concatenate([(1 - cut) * whole, cut * near[above], cut * empty[above], [cut * rest]])
    return losses, masses


@pytest.mark.parametrize("setting", slow_but([(one,) for one in SETTINGS], *((one,) for one in SETTINGS[::3])))
def test_a_replaced_record_has_the_epsilon_of_an_independent_sum_of_losses(setting):
    sigma, q, steps, n, largest = setting
    found = accounting.epsilon(**asked(*setting, adjacency="substitute"))
    assert found == pytest.approx(summed_losses(loss_law(sigma, q, n, largest), steps), rel=2e-3, abs=3e-3)


def mesh_of(sigma, q):
    """For dp-accounting, whose error is about steps × mesh² / 2 while the mesh is well below a step's losses."""
    return min(1e-3, q / sigma / 10)


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_epsilon_is_at_most_that_of_dp_accountings_event(setting):
    """Which counts the worlds of a cut batch as 4C apart."""
    sigma, q, steps, n, largest = setting
    event = dp_event.SelfComposedDpEvent(dp_event.TruncatedSubsampledGaussianDpEvent(n, q, largest, sigma), steps)
    theirs = PLDAccountant(NeighboringRelation.REPLACE_ONE, mesh_of(sigma, q)).compose(event).get_epsilon(DELTA)
    low, _, high = accounting.epsilon_interval(**asked(*setting, adjacency="substitute"))
    whole = accounting.epsilon(**{**asked(*setting, adjacency="substitute"), "sampling": "poisson"})
    assert low <= whole
    assert high <= theirs + 1e-3
    if binom.sf(largest - 1, n - 1, q) < 1e-4:
        assert high == pytest.approx(theirs, rel=0.06)


@pytest.mark.parametrize("setting", SETTINGS[::3])
def test_an_added_record_has_the_epsilon_of_dp_accountings_mixture(setting):
    sigma, q, steps, n, largest = setting
    cut = binom.sf(largest - 1, n - 1, q)
    rate = binom.sf(largest, n, q) * largest / n / cut
    whole, displaced = (
        plds.from_gaussian_mechanism(deviation, sampling_prob=share, value_discretization_interval=mesh_of(sigma, q))
        for deviation, share in ((sigma, q), (sigma / 2, rate))
    )
    theirs = displaced.compute_mixture(whole, cut).self_compose(steps).get_epsilon_for_delta(DELTA)
    assert accounting.epsilon(**asked(*setting, adjacency="add_remove")) == pytest.approx(theirs, rel=2e-3, abs=3e-3)


def batches(gradients, q, largest):
    """Each cut batch of some records, as the sum of its gradients, no more, and its probability: by enumeration."""
    for coins in product((0, 1), repeat=len(gradients)):
        sampled = [gradient for gradient, coin in zip(gradients, coins, strict=True) if coin]
        probability = np.prod([q if coin else 1 - q for coin in coins])
        kept = list(combinations(sampled, min(largest, len(sampled))))
        yield from ((sum(batch), 0, probability / len(kept)) for batch in kept)


def worst_deltas(slots, sigma, n, epsilons, batches_of):
    """The largest δ of a step over many data sets on a line, in either direction: by the densities of its outcomes.

    `batches_of` some gradients are a sum, what else is seen, and a probability each.
    """
    x, rng, worst = np.linspace(-12, 12, 1_601), np.random.default_rng(3), np.zeros(len(epsilons))
    known = [*product((-1.0, 0.0, 1.0), repeat=n - 1), *rng.uniform(-1, 1, (10, n - 1)).tolist()]
    for others in {tuple(sorted(others)) for others in known}:
        densities = [np.zeros((n + 1, len(x))) for _ in slots]
        for density, slot in zip(densities, slots, strict=True):
            total, seen, weight = map(np.array, zip(*batches_of([*others, *slot]), strict=True))
            np.add.at(density, seen, weight[:, None] * norm.pdf(x, total[:, None], sigma))
        for one, two in (densities, densities[::-1]):
            excess = np.maximum(one - np.exp(epsilons)[:, None, None] * two, 0)
            worst = np.maximum(worst, excess.sum(axis=(1, 2)) * (x[1] - x[0]))
    return worst


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove", "zero_out"])
@pytest.mark.parametrize(("sigma", "q", "largest"), [(0.7, 0.5, 2), (1.5, 0.3, 1), (0.5, 0.8, 3)])
def test_no_data_set_exceeds_the_delta_of_a_step(adjacency, sigma, q, largest):
    epsilons = np.linspace(0, 4, 17)
    allowed = accounting.delta(
        noise_multiplier=sigma, sample_rate=q, steps=1, epsilon=epsilons, adjacency=adjacency,
        sampling=TruncatedPoisson(largest, 5),
    )  # fmt: skip
    slots = {"substitute": ([1.0], [-1.0]), "add_remove": ([1.0], []), "zero_out": ([1.0], [0.0])}[adjacency]
    worst = worst_deltas(slots, sigma, 5, epsilons, lambda gradients: batches(gradients, q, largest))
    assert (worst <= allowed + 1e-6).all()
    assert worst[0] > 0.5 * allowed[0]
    if adjacency == "substitute":
        _, _, rate = TruncatedPoisson(largest, 5).attained(adjacency, sigma, q)
        seldom = accounting.delta(
            noise_multiplier=sigma, sample_rate=rate, steps=1, epsilon=epsilons, adjacency=adjacency
        )
        assert (worst > 1.02 * seldom).any(), "it is no Poisson step that has the record as often"


def test_batches_that_are_never_cut_are_poissons():
    setting = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 20, "delta": DELTA}
    for adjacency in ("substitute", "add_remove", "zero_out"):
        whole = accounting.epsilon_interval(**setting, adjacency=adjacency)
        assert accounting.epsilon_interval(**setting, adjacency=adjacency, sampling=TruncatedPoisson(50, 50)) == whole


def test_all_questions_take_it_and_its_text():
    sampling = TruncatedPoisson(60, 1_000)
    setting = {"sample_rate": 0.05, "steps": 60, "adjacency": "substitute", "sampling": str(sampling)}
    assert Sampling.of("truncated_poisson:60:1000") == sampling
    sigma = accounting.noise_multiplier(target_epsilon=3.0, delta=DELTA, **setting)
    reached = accounting.epsilon(noise_multiplier=sigma, delta=DELTA, **setting)
    assert 2.99 < reached <= 3.0
    assert accounting.delta(noise_multiplier=sigma, epsilon=3.0, **setting) == pytest.approx(DELTA, rel=5e-3)
    whole = {**setting, "sampling": "poisson"}
    for fpr in (0.01, 0.3):
        cut_too = accounting.tradeoff(fpr, noise_multiplier=sigma, **setting)
        assert cut_too < accounting.tradeoff(fpr, noise_multiplier=sigma, **whole)
    assert accounting.risk(noise_multiplier=sigma, **setting).tpr > accounting.risk(noise_multiplier=sigma, **whole).tpr
    assert DPSGD(**DPSGD(1.0, 1.0, 0.05, 8, 0.1, sampling=sampling).attributes).sampling == sampling
    by_groups = accounting.group_privacy_epsilon(
        noise_multiplier=sigma, sample_rate=0.05, steps=60, delta=DELTA, sampling=sampling
    )
    assert by_groups > reached


def test_revealed_batches_bound_add_remove_where_no_grid_does():
    """Two worlds that differ in a cut batch are 2C apart there, so ε is at most that of a replaced record by itself."""
    setting = {"noise_multiplier": 0.01, "sample_rate": 0.3, "steps": 2, "delta": DELTA}
    found = accounting.epsilon_interval(**setting, adjacency="add_remove", sampling=TruncatedPoisson(2, 10))
    assert found.upper == pytest.approx(accounting.epsilon(**setting, adjacency="substitute"), rel=1e-3)


def test_s1_shows_what_the_lower_end_says():
    setting = {"noise_multiplier": 1.0, "sample_rate": 0.1, "steps": 50, "adjacency": "substitute"}
    sampling = TruncatedPoisson(10, 100)
    attacked = audit_worst_case(**setting, runs=20_000, sampling=sampling, every_step=True)
    [shown] = bound(attacked, delta=DELTA, claim="gdp")
    low, _, high = accounting.epsilon_interval(**setting, delta=DELTA, sampling=sampling)
    assert 0.6 * low < shown.epsilon < low < high


def test_parameters_that_do_not_fit_are_refused():
    with pytest.raises(
        ValueError, match="sample_rate must be < 1 .* sampling='without_replacement' with sample_rate=9"
    ):
        accounting.epsilon(**asked(1.0, 1.0, 5, 50, 9, adjacency="substitute"))
    with pytest.raises(ValueError, match=r"spec\.sampling must be of the task's 40 records"):
        TruncatedPoisson(9, 50).check_rate(0.1, 40)
    with pytest.raises(ValueError, match="maximum must be a whole number"):
        TruncatedPoisson(9.5, 50)
    with pytest.raises(ValueError, match="engine must be 'auto'"):
        accounting.epsilon(**asked(1.0, 0.1, 5, 50, 9, adjacency="substitute"), engine="prv")


@pytest.mark.parametrize(("sigma", "q"), [(0.7, 0.5), (1.5, 0.2), (0.5, 0.9)])
def test_no_data_set_exceeds_the_delta_of_a_step_that_shows_how_many_records_it_had(sigma, q):
    def seen(gradients):
        for coins in product((0, 1), repeat=len(gradients)):
            size = sum(coins)
            yield np.dot(gradients, coins), size, q**size * (1 - q) ** (len(coins) - size)

    epsilons, setting = np.linspace(0, 4, 17), {"sample_rate": q, "steps": 1, "adjacency": "substitute"}
    allowed = accounting.delta(noise_multiplier=sigma, epsilon=epsilons, sampling=PoissonMean(5), **setting)
    worst = worst_deltas(([1.0], [-1.0]), sigma, 5, epsilons, seen)
    assert worst == pytest.approx(allowed, abs=4e-5), "all others may have the gradient of z or z′"


@pytest.mark.parametrize(("sigma", "q", "steps", "n"), [(1.0, 0.01, 1_000, 60_000), (2.0, 0.25, 40, 100)])
def test_sums_divided_by_the_number_of_records_cost_slightly_more_than_a_fixed_size(sigma, q, steps, n):
    setting = {"noise_multiplier": sigma, "sample_rate": q, "steps": steps, "delta": DELTA, "adjacency": "substitute"}
    fixed = accounting.epsilon_interval(**setting, sampling="without_replacement")
    found = accounting.epsilon_interval(**setting, sampling=f"poisson_mean:{n}")
    assert fixed.upper < found.upper < 1.02 * fixed.upper
    assert found.lower == fixed.lower
    assert accounting.epsilon(**{**setting, "sample_rate": 1.0}, sampling=PoissonMean(n)) == accounting.epsilon(
        **{**setting, "sample_rate": 1.0}
    )
    with pytest.raises(ValueError, match="adjacency must be 'substitute' .*: a removed record changes what the sum is"):
        accounting.epsilon(**{**setting, "adjacency": "add_remove"}, sampling=PoissonMean(n))
