"""audit_mechanism, on steps written in NumPy."""

import itertools
import re

import numpy as np
import pytest
import torch
from cases import slow_but
from scipy.stats import binom

import dpsub
from dpsub import accounting
from dpsub._core import checks

BOUND = 1.5  # C
SIZES = (12, 8)


def clipped(rows):
    return rows * np.minimum(1, BOUND / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9))


def of_sum(summed, sigma=1.0, noise=lambda drawn: drawn, seed=0):
    """A step that adds noise to what `summed` makes of the gradients."""
    rng = np.random.default_rng(seed)
    return lambda rows: summed(rows) + noise(sigma * BOUND * rng.normal(size=rows.shape[1]))


def right(sigma=1.0, seed=0):
    return of_sum(lambda rows: clipped(rows).sum(axis=0), sigma, seed=seed)


def audited(step, adjacency="substitute", **asked):
    asked = {"max_grad_norm": BOUND, "parameters": SIZES, "steps": 300, "progress": False} | asked
    return dpsub.audit_mechanism(step, adjacency=adjacency, **asked)


def claimed(adjacency, sigma=1.0, delta=1e-5):
    return accounting.gdp_epsilon((2 if adjacency == "substitute" else 1) / sigma, delta)


@pytest.mark.parametrize("adjacency", checks.ADJACENCIES)
def test_what_is_left_of_a_right_step_is_its_noise(adjacency):
    seen = audited(right(0.8), adjacency, noise_multiplier=0.8)
    assert (seen.score.dims, seen.score.dtype, seen.bit.dtype) == (("observation",), np.float32, np.int8)
    assert {"fault", "clipping"}.isdisjoint(seen.attrs)
    assert (seen.noise.values.astype(float) ** 2).mean() == pytest.approx(0.64, rel=0.1)
    assert abs(seen.attrs["records_left"]) < 4 * seen.attrs["records_left_error"] < 0.15
    for bit, mean in ((0, 1), (1, -1 if adjacency == "substitute" else 0)):
        scores = seen.score[seen.bit == bit]
        assert float(scores.mean()) == pytest.approx(mean, abs=4 * 0.8 / len(scores) ** 0.5)
        assert float(scores.std()) == pytest.approx(0.8, rel=0.2)


@pytest.mark.parametrize("adjacency", checks.ADJACENCIES)
def test_without_noise_a_score_is_the_canary_s_alone(adjacency):
    seen = audited(right(1e-9), adjacency, steps=20)
    worlds = {0: 1, 1: -1 if adjacency == "substitute" else 0}
    np.testing.assert_allclose(seen.score, [worlds[int(bit)] for bit in seen.bit], atol=1e-5)


def test_the_batch_holds_the_canary_where_its_world_says():
    batches = []

    def step(rows):
        batches.append(rows)
        return right()(rows)

    for adjacency, sizes in (("substitute", {5}), ("zero_out", {5}), ("add_remove", {4, 5})):
        batches.clear()
        bits = audited(step, adjacency, batch_size=5, steps=40).bit.values
        assert {len(one) for one in batches} == sizes
        assert len(batches) == 20 + 40 + 20, "the first see whether its noise is new, the last are along the canary"
        places = set()
        for bit, rows in zip(bits, batches[20:60], strict=True):
            norms = np.linalg.norm(rows, axis=1)
            [longest] = np.flatnonzero(norms > 9.99 * BOUND) if bit == 0 or adjacency == "substitute" else [None]
            places.add(longest)
            assert (norms == 0).sum() == (bit == 1 and adjacency == "zero_out")
        assert len(places - {None}) == 5


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", checks.ADJACENCIES)
def test_right_steps_are_refuted_in_at_most_alpha_of_audits(adjacency):
    audits, alpha, high, faults = 40, 0.1, 0, 0
    for seed in range(audits):
        seen = audited(right(seed=seed), adjacency, seed=seed, noise_multiplier=1.0, alpha=alpha)
        high += dpsub.bound(seen, delta=1e-5, alpha=alpha).epsilon > claimed(adjacency)
        faults += "fault" in seen.attrs
    assert max(high, faults) <= binom.ppf(0.999, audits, alpha)


def mean(rows):
    return clipped(rows).mean(axis=0)


def of_one_seed(rows):
    return clipped(rows).sum(axis=0) + BOUND * np.random.default_rng(3).normal(size=rows.shape[1])


def of_each_parameter(rows):
    """Clips each parameter by itself."""
    return np.concatenate([clipped(part).sum(axis=0) for part in np.split(rows, [SIZES[0]], axis=1)])


FAULTS = {
    "half the noise": (right(0.5), "fault", "51 % of the standard deviation that is claimed, in all parameters"),
    "noise of one coordinate": (of_sum(mean, noise=lambda drawn: drawn * (np.arange(20) == 3)), "fault", "it has"),
    "noise of one parameter": (
        of_sum(lambda rows: clipped(rows).sum(axis=0), noise=lambda drawn: drawn * (np.arange(20) < 12)),
        "fault", "in parameter 1",
    ),
    "one seed": (of_one_seed, "fault", "the same gradients gave the same sum at each call"),
    "the mean": (of_sum(mean, 1 / 8), "clipping", "less of the records than clipping to max_grad_norm leaves, as if"),
    "no clipping": (of_sum(lambda rows: rows.sum(axis=0)), "clipping", "more of the records"),
    "clips each parameter": (of_sum(of_each_parameter), "clipping", "more of the records"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault):
    step, where, told = FAULTS[fault]
    seen = audited(step, noise_multiplier=1.0, steps=100)
    assert told in seen.attrs[where]
    assert where == "clipping" or seen.attrs["fault_at"] <= 3


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", checks.ADJACENCIES)
@pytest.mark.parametrize(
    "step",
    [
        right(0.5),
        of_sum(lambda rows: rows.sum(axis=0)),
        of_sum(lambda rows: 3 * clipped(rows).sum(axis=0)),
    ],
    ids=["half the noise", "no clipping", "thrice the sum"],
)
def test_the_bound_refutes_faulty_steps_without_a_claim(step, adjacency):
    seen = audited(step, adjacency, steps=3_000)
    assert dpsub.bound(seen, delta=1e-5).epsilon > claimed(adjacency)


def test_the_mean_is_told_its_divisor():
    seen = audited(of_sum(mean, 1 / 8))
    [divisor] = re.findall(r"divided by about ([\d.]+), which divided_by can say", seen.attrs["clipping"])
    assert float(divisor) == pytest.approx(8, rel=0.2)
    seen = audited(of_sum(mean, 1 / 8), divided_by=8, noise_multiplier=1.0, steps=50)
    assert {"fault", "clipping"}.isdisjoint(seen.attrs)


def test_a_divisor_is_named_where_the_canary_is_divided_too():
    """Not where records are averaged in pairs before they are clipped, which leaves about two thirds of their sum."""
    upside_down = audited(of_sum(mean, 1 / 8), divided_by=1 / 8)
    [divisor] = re.findall(r"divided by about ([\d.]+) and not 0.125, which divided_by", upside_down.attrs["clipping"])
    assert float(divisor) == pytest.approx(8, rel=0.2)
    for adjacency in ("substitute", "zero_out"):
        pairs = audited(of_sum(of_pairs), adjacency)
        assert pairs.attrs["clipping"].endswith("less of the records than clipping to max_grad_norm leaves")


def of_pairs(rows):
    """The sum of the means of neighbours, each clipped."""
    return sum(clipped(rows[i : i + 2].mean(axis=0, keepdims=True))[0] for i in range(0, len(rows), 2))


def averaged(seed=0):
    """A step that divides its noisy sum by the number of records."""
    noisy = right(seed=seed)
    return lambda rows: noisy(rows) / len(rows)


def test_one_more_record_that_shifts_microbatches_is_told_and_refutes_add_remove():
    told = "moves some sums by about {} max_grad_norm, and not by 1 at most, as if {}: audit with gradients={!r}"
    for step, divided_by, batches, by, reason in (
        (of_sum(of_pairs), 1, "shifted", 6, "records are averaged before clipping"),
        (averaged(), 8, "opposite", 2, "the sum is divided by the number of records"),
    ):
        asked = {"adjacency": "add_remove", "steps": 1_000, "divided_by": divided_by}
        found = re.search(r"about ([\d.]+) max", (said := audited(step, **asked).attrs["clipping"]))[1]
        assert told.format(found, reason, batches) in said
        assert float(found) == pytest.approx(by, abs=0.6)
        along = audited(step, gradients=batches, **asked)
        assert dpsub.bound(along, delta=1e-5).epsilon > claimed("add_remove")
        kept = audited(step, gradients=batches, **{**asked, "adjacency": "substitute"})
        assert dpsub.bound(kept, delta=1e-5).epsilon < claimed("substitute")


ALONG = [*itertools.product(("shifted", "opposite"), checks.ADJACENCIES)]


@pytest.mark.parametrize(("batches", "adjacency"), slow_but(ALONG, *ALONG[::2]))
def test_a_right_step_is_right_for_batches_along_the_canary(adjacency, batches):
    seen = audited(right(), adjacency, gradients=batches, noise_multiplier=1.0, steps=400)
    assert {"fault", "clipping"}.isdisjoint(seen.attrs)
    assert seen.attrs["gradients"] == batches
    assert dpsub.bound(seen, delta=1e-5).epsilon < claimed(adjacency)


def alike(seed=0):
    """Batches without end of gradients that have a direction in common, as those of a training have."""
    rng = np.random.default_rng(seed)
    common = 0.3 * rng.normal(size=20)
    while True:
        yield 0.5 * (common + 0.1 * rng.normal(size=(32, 20)))


def normalised(rows):
    return BOUND * (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)).sum(axis=0)


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_a_step_that_normalises_is_told_of_its_clipping_and_not_refuted(sigma):
    for seed in range(8):
        step = of_sum(normalised, sigma, seed=seed)
        seen = audited(step, gradients=alike(seed), noise_multiplier=sigma, steps=100, alpha=1e-4, seed=seed)
        assert "fault" not in seen.attrs
        assert "more of the records" in seen.attrs["clipping"]


@pytest.mark.parametrize("summed", [normalised, lambda rows: clipped(rows).sum(axis=0)])
def test_noise_that_repeats_is_found_and_says_nothing_of_clipping(summed):
    for seed in range(5):
        drawn = np.random.default_rng((seed, 1)).normal(size=(10, 20))
        calls = itertools.count()
        seen = audited(
            lambda rows, drawn=drawn, calls=calls: summed(rows) + BOUND * drawn[next(calls) % 10],
            gradients=alike(seed), noise_multiplier=1.0, steps=100, seed=seed,
        )  # fmt: skip
        assert "repeats that of step" in seen.attrs["fault"]
        assert {"clipping", "records_left", "records_left_error"}.isdisjoint(seen.attrs)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1, 3])
def test_discrete_gaussian_noise_of_a_count_is_right_though_sums_are_equal_by_chance(sigma):
    values, audits, faults = np.arange(-40, 41), 60, 0
    weights = np.exp(-(values**2) / (2 * sigma**2))
    for seed in range(audits):
        rng = np.random.default_rng(seed)
        counted = (np.random.default_rng((seed, step)).integers(0, 2, (7, 1)) for step in itertools.count())
        seen = dpsub.audit_mechanism(
            lambda rows, rng=rng: rows.clip(-1, 1).sum(axis=0) + rng.choice(values, p=weights / weights.sum()),
            max_grad_norm=1, adjacency="substitute", parameters=1, noise_multiplier=sigma, gradients=counted,
            steps=300, seed=seed, progress=False,
        )  # fmt: skip
        faults += "fault" in seen.attrs
    assert faults <= binom.ppf(0.999, audits, 0.05)


def test_one_s_own_gradients_and_training():
    """A generator reads the weights that the step has updated."""
    weights, noisy, used = np.zeros(20), right(), []

    def step(rows):
        weights[:] -= 0.1 * noisy(rows)
        used.append(rows)
        return noisy(rows)

    batches = (weights + one * np.ones((3, 20)) for one in range(10))
    seen = audited(step, gradients=batches, steps=100)
    assert (seen.sizes["observation"], seen.attrs["gradients"], len(used)) == (10, "own", 12)
    assert {len(rows) for rows in used} == {4}
    assert len(audited(right(), gradients=itertools.repeat(np.ones((1, 20))), steps=7).score) == 7


def bfloat16(one):
    return torch.from_numpy(one).bfloat16()


@pytest.mark.parametrize("kind", [torch.from_numpy, bfloat16, np.float32, list, lambda one: one * 1.0])
def test_any_array_is_taken(kind):
    made = right()
    batches = (kind(one) for one in alike())
    for gradients in ("random", batches):
        asked = {"noise_multiplier": 1.0, "steps": 30, "gradients": gradients}
        assert "fault" not in audited(lambda rows: kind(made(rows)), **asked).attrs


def mapped(function, tree):
    """JAX's tree_map: dictionaries come back in the order of their keys."""
    if isinstance(tree, dict):
        return {key: mapped(function, tree[key]) for key in sorted(tree)}
    return [mapped(function, one) for one in tree] if isinstance(tree, list) else function(tree)


def numbers(tree):
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else None
    return tree if parts is None else np.concatenate([numbers(one).reshape(len(numbers(one)), -1) for one in parts], 1)


PARAMETERS = {"kernel": np.zeros((3, 4)), "bias": np.zeros(3), "more": [np.zeros(4), torch.zeros(1)]}


def of_tree(sigma=1.0, without=None):
    """A right step on a pytree, without noise in one of its arrays if that is named."""
    rng = np.random.default_rng(0)

    def step(tree):
        shares = np.minimum(1, BOUND / np.linalg.norm(numbers(tree).astype(float), axis=1))
        total = mapped(lambda part: np.tensordot(shares, part, 1), tree)
        noisy = mapped(lambda part: part + sigma * BOUND * rng.normal(size=part.shape), total)
        return noisy if without is None else noisy | {without: total[without]}

    return step


def test_a_pytree_is_audited_as_the_array_that_it_makes():
    """Without noise scores are the same, whatever the order of dictionaries; with noise its faults are named."""
    flat_step = of_sum(lambda rows: clipped(rows).sum(axis=0), 0.0)
    with_tree = audited(of_tree(0.0), parameters=PARAMETERS, steps=20)
    np.testing.assert_allclose(with_tree.score, audited(flat_step, parameters=[12, 3, 4, 1], steps=20).score, rtol=1e-6)
    assert with_tree.attrs["parameters"] == [12, 3, 4, 1]
    asked = {"parameters": PARAMETERS, "noise_multiplier": 1.0}
    assert {"fault", "clipping"}.isdisjoint(audited(of_tree(), **asked).attrs)
    assert "parameter 1" in audited(of_tree(without="bias"), **asked).attrs["fault"]


def test_one_s_own_gradients_may_be_a_pytree():
    def batch(rng):
        return mapped(lambda part: rng.normal(size=(5, *part.shape)), PARAMETERS)

    rng, used = np.random.default_rng(0), []
    step = of_tree()
    seen = audited(
        lambda tree: used.append(tree) or step(tree),
        parameters=PARAMETERS, gradients=(batch(rng) for _ in range(6)), noise_multiplier=1.0,
    )  # fmt: skip
    assert seen.sizes["observation"] == 6
    last, held = batch(np.random.default_rng(0)), len(used[0]["bias"])
    for key in ("kernel", "bias"):
        rows = {row.tobytes() for row in used[0][key]}
        assert len(rows & {row.tobytes() for row in last[key].astype(np.float32)}) == 5
    assert (held, used[0]["more"][1].shape) == (6, (6, 1))


@pytest.mark.parametrize("returned", [np.zeros(20), {"kernel": np.zeros((3, 4)), "bias": np.zeros(3)}])
def test_a_sum_of_another_form_is_refused(returned):
    with pytest.raises(ValueError, match="step's sum must be a pytree of the form of parameters, got another one"):
        audited(lambda tree: returned, parameters=PARAMETERS)


def test_the_same_seed_gives_the_same_audit():
    one, same, other = (audited(right(seed=1), seed=seed, steps=10) for seed in (3, 3, 4))
    assert one.identical(same)
    assert not one.score.equals(other.score)


def test_a_step_may_change_the_gradients_that_it_is_given():
    def in_place(rows):
        rows *= 0.5
        return rows.sum(axis=0)

    assert audited(in_place).equals(audited(lambda rows: (0.5 * rows).sum(axis=0)))


WRONG = {
    "shape": (lambda rows: np.zeros(3), r"step's sum must have shape \(20,\), got \(3,\)"),
    "nan": (lambda rows: np.full(20, np.nan), "step's sum must be finite numbers, got nan"),
    "graph": (lambda rows: torch.zeros(20, requires_grad=True), "step's sum must be .* Use tensor.detach"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_step_does_wrong_is_said(wrong):
    step, told = WRONG[wrong]
    with pytest.raises(ValueError, match=told):
        audited(step)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"canary_norm": 0.5}, "canary_norm must be >= 1, got 0.5"),
        ({"gradients": [np.ones((2, 3))]}, r"gradients must have shape \(records, 20\), got \(2, 3\)"),
        ({"gradients": []}, "gradients must hold an array for each step, got none"),
        ({"sigma": 1.0}, "did you mean 'noise_multiplier'"),
    ],
)
def test_arguments_are_checked(asked, told):
    with pytest.raises((ValueError, TypeError), match=told):
        audited(right(), **asked)
