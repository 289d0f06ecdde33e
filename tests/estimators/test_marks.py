"""Marks of scores reach every bound, on every road to it."""

import numpy as np
import pytest
import xarray as xr

from dpsub import (
    DPSGD,
    audit,
    audit_mechanism,
    audit_one_run,
    audit_steps,
    audit_training,
    audit_worst_case,
    audits,
    bound,
    crafters,
    data,
    distinguish,
    models,
    proxy_labels,
)
from dpsub.estimators import (
    epsilon_lower_bound,
    one_run_epsilon_lower_bound,
    one_run_guesses,
    step_to_training,
)
from dpsub.figures import findings
from studies.final_models.linear_discriminants import LinearDiscriminant

DELTA = 1e-5
RUNS = 120


def scores(mark=None, value=True):
    """Scores and bits of an audit, with a mark on every run."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, RUNS).astype(np.int8)
    result = xr.Dataset(
        {"score": ("run", rng.normal(size=RUNS) + 3 * (bits == 0)), "bit": ("run", bits)},
        coords={"run": np.arange(RUNS)},
    )
    return result if mark is None else result.assign_coords({mark: ("run", np.full(RUNS, value))})


def training(n=20, sigma=1.0, steps=1):
    """A task, a model and a training that a test can afford."""
    task = data.digits(n_train=n)
    return task, models.linear(task), DPSGD(sigma, 1.0, 1.0, steps, 1.0)


def trained(runs, *, of=None, **options):
    task, model, spec = of or training()
    return audit(
        task, model, crafters.mislabeled(task, model, spec, seed=0), spec, runs=runs, progress=False, **options
    )


def through_a_file(result, folder):
    result.to_netcdf(folder / "audit.nc", engine="scipy")
    return xr.load_dataset(folder / "audit.nc", engine="scipy")


ROADS = {
    "as it is": lambda result, _: (result.score, result.bit),
    "sel": lambda result, _: (result.sel(run=slice(10, 90)).score, result.sel(run=slice(10, 90)).bit),
    "arithmetic": lambda result, _: (np.log(result.score + 10) - 1, result.bit),
    "sum with others": lambda result, _: (scores().score + result.score, result.bit),
    "scores alone": lambda result, _: (result.score, result.bit.values),
    "bits alone": lambda result, _: (result.score.values, result.bit),
    "file": lambda result, folder: (through_a_file(result, folder).score, through_a_file(result, folder).bit),
    "concatenated": lambda result, _: (
        xr.concat([result, result], "run").score,
        xr.concat([result, result], "run").bit,
    ),
    "several steps": lambda result, _: (result.score.expand_dims(step=2), result.bit),
}


@pytest.mark.parametrize(
    ("mark", "note"), [("in_sample", "the judged models were learned from"), ("seed_ignored", "whatever their seed")]
)
@pytest.mark.parametrize("road", ROADS)
def test_a_mark_stays_on_every_road(road, mark, note, tmp_path):
    clean, marked = (epsilon_lower_bound(*ROADS[road](s, tmp_path), delta=DELTA) for s in (scores(), scores(mark)))
    for one, other in zip(np.atleast_1d(clean), np.atleast_1d(marked), strict=True):
        assert one.valid
        assert one.epsilon > 0
        assert not other.valid
        assert other.epsilon == one.epsilon
        assert note in other.note


@pytest.mark.parametrize("road", [name for name in ROADS if name != "concatenated"])
def test_folds_stay_on_every_road(road, tmp_path):
    marked = scores().assign_coords(fold=("run", np.arange(RUNS) // 60))
    bounds = epsilon_lower_bound(*ROADS[road](marked, tmp_path), delta=DELTA, rule="ranks")
    assert not any(bound.valid for bound in np.atleast_1d(bounds))


def test_findings_of_an_audit_judge_by_its_marks():
    marked = scores("in_sample").assign_coords(step=5)
    marked.attrs = {"noise_multiplier": 20.0, "sample_rate": 1.0, "steps": 5, "adjacency": "substitute"}
    [[bound]] = findings.bounds(marked, delta=DELTA)
    assert not bound.valid
    panel = findings.panel({"S3": marked}, delta=DELTA)
    assert not panel["audited"]["S3"][0][0].valid
    with pytest.raises(ValueError, match=r"audited\[0\] must have scores that allow a valid bound, .* learned from"):
        findings.last_step([marked], delta=DELTA)
    folds = scores().assign_coords(fold=("run", np.arange(RUNS) % 2))
    [[bound]] = findings.bounds(folds, delta=DELTA)
    assert bound == epsilon_lower_bound(folds.score, folds.bit, delta=DELTA, rule="folds")
    assert bound.valid


def test_no_audit_of_noise_is_valid_in_sample():
    """Hardly any leakage, few models and many features: what is learned in sample is chance."""
    of = training(30, 1_000.0, 2)
    weights = trained(60, of=of, metrics=("weights",))
    judged = distinguish(weights, of[1], LinearDiscriminant(), protocol="in_sample", progress=False)
    [[bound]] = findings.bounds(judged, delta=DELTA)
    assert bound.epsilon > 2
    assert not bound.valid


def steps(protocol, trainings=60, steps=2):
    task, model, spec = training(steps=steps)
    canary = crafters.gradient(task, model, spec, seed=0)
    return audit_steps(task, model, canary, spec, trainings=trainings, protocol=protocol, progress=False)


def test_worlds_that_are_not_tossed_anew_are_never_bet_on():
    """0, 0, 1, 1, … passes for tossed coins: only the mark tells."""
    found = steps("two_trainings")
    by_default = epsilon_lower_bound(found.score, found.bit, delta=DELTA)
    assert not by_default.valid
    assert "steps share their world" in by_default.note
    for scores_, bits in ((found.score, found.bit), (found.score.values, found.bit), (found.score, found.bit.values)):
        with pytest.raises(ValueError, match="scores must be of worlds tossed anew at each step for rule 'bets'"):
            epsilon_lower_bound(scores_, bits, delta=DELTA, rule="bets")
    tossed = steps("coins")
    assert "same_world" not in tossed.coords
    assert epsilon_lower_bound(tossed.score, tossed.bit, delta=DELTA).valid


@pytest.mark.parametrize("rule", ["ranks", "split", "best", 0.0])
@pytest.mark.parametrize("claim", ["gdp", "dp"])
def test_only_bets_are_valid_for_observations_of_steps(claim, rule):
    found = steps("coins")
    options = {"delta": DELTA, "claim": claim, "rule": rule}
    bound = epsilon_lower_bound(found.score, found.bit, **options)
    assert not bound.valid
    assert bound.note.endswith("observations of one training depend on each other, which only rule 'bets' allows")
    assert epsilon_lower_bound(found.score.values, found.bit.values, **options).valid == (rule != "best")


def one_training(pairs=40):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (1, pairs)).astype(np.int8)
    dims = ("model", "pair")
    return xr.Dataset(
        {"score": (dims, rng.normal(size=bits.shape) + 3 * (bits == 0)), "bit": (dims, bits)},
        coords={"slot": ("pair", np.arange(pairs))},
    )


@pytest.mark.parametrize(
    "select",
    [lambda of: of.isel(model=0), lambda of: of.stack(run=("model", "pair")), lambda of: of.transpose("pair", "model")],
    ids=["isel", "stack", "transpose"],
)
def test_pairs_of_one_model_are_not_taken_for_models(select):
    found = select(one_training())
    for bits in (found.bit, found.bit.values.ravel()):
        with pytest.raises(ValueError, match="one for each model.*pairs .* give the audit to dpsub.bound"):
            epsilon_lower_bound(found.score, bits, delta=DELTA)


def test_one_pair_of_many_models_is_a_score_for_each():
    many = xr.concat([one_training()] * 50, "model").isel(pair=0)
    many = many.assign(bit=("model", np.arange(50) % 2))
    assert epsilon_lower_bound(many.score, many.bit, delta=DELTA).of == "training"


def test_steps_are_not_taken_for_pairs():
    found = steps("coins")
    with pytest.raises(ValueError, match="scores must be of pairs in one training or more, got observations of steps"):
        one_run_guesses(found.score, found.bit, guesses=10)


def test_a_bound_knows_what_it_is_of():
    law = {"sample_rate": 0.1, "steps": 100, "delta": DELTA, "adjacency": "substitute"}
    tossed = steps("coins")
    step = epsilon_lower_bound(tossed.score, tossed.bit, delta=DELTA)
    training = step_to_training(step, **law)
    runs = scores()
    bare = runs.score.values, runs.bit.values
    found = {
        "step": [step, epsilon_lower_bound(*bare, delta=DELTA, rule="bets")],
        "training": [
            training,
            epsilon_lower_bound(runs.score, runs.bit, delta=DELTA),
            one_run_epsilon_lower_bound(95, 100, 1_000, delta=DELTA),
        ],
        None: [epsilon_lower_bound(*bare, delta=DELTA)],
    }
    for of, bounds in found.items():
        assert [each.of for each in bounds] == [of] * len(bounds)
    for each in found["training"]:
        with pytest.raises(ValueError, match="bound must be of one step of a training, got one that is of a whole"):
            step_to_training(each, **law)


def worst_case(seed=0, runs=200):
    return audit_worst_case(
        noise_multiplier=2.0, sample_rate=1.0, steps=1, runs=runs, adjacency="substitute", seed=seed
    ).isel(step=0)


TWICE = r"scores must be of independent runs, got 400 rows of which 200 differ in seed and number \(seeds 0\)"
TWO_AUDITS = r"result must be of one audit, got 400 rows along '\w+' where its attributes speak of 200"


def of_a_function():
    def train(bit, seed):
        return np.random.default_rng(seed).normal(1 - 2 * bit)

    made = audit_training(train, runs=200, adjacency="substitute", name="a normal", progress=False)
    return made.isel(step=0)


def of_a_mechanism():
    rng = np.random.default_rng(0)

    def step(gradients):
        return gradients.sum(axis=0) + rng.normal(size=gradients.shape[1])

    return audit_mechanism(step, max_grad_norm=1.0, adjacency="substitute", steps=200, progress=False)


def of_labels():
    drawn = proxy_labels([0, 1] * 400, [[0.5, 0.5]] * 800, tolerance=0.1, seed=0)
    made = drawn.scores(np.random.default_rng(0).normal(size=(800, 2))).isel(pair=slice(200))
    return made.assign_attrs(pairs=200)


def of_pairs():
    task, model, spec = training(300)
    pairs = crafters.gradient_pairs(task, model, spec, pairs=200, seed=0)
    return audit_one_run(task, model, pairs, spec, progress=False)


AUDITS = {
    "worst case": (worst_case, "run"),
    "models": (lambda: trained(200).isel(step=0), "run"),
    "function": (of_a_function, "run"),
    "steps": (lambda: steps("coins", trainings=1, steps=200), "observation"),
    "mechanism": (of_a_mechanism, "observation"),
    "labels": (of_labels, "pair"),
    "pairs": (of_pairs, "pair"),
}


@pytest.mark.parametrize("kind", AUDITS)
def test_rows_of_any_audit_have_a_valid_bound_once_and_are_refused_twice(kind):
    made, along = AUDITS[kind]
    alone = made()
    once = bound(alone, delta=DELTA)
    assert once.valid
    assert once.of == ("step" if kind == "mechanism" else "training")
    found = xr.concat([alone] * 2, along)
    with pytest.raises(ValueError, match=TWO_AUDITS):
        bound(found, delta=DELTA)
    estimate, options = (
        (one_run_guesses, {"guesses": 100}) if "pair" in found.dims else (epsilon_lower_bound, {"delta": DELTA})
    )
    with pytest.raises(ValueError, match=TWICE):
        estimate(found.score, found.bit, **options)


def test_a_selection_holds_each_run_once():
    found = worst_case()
    assert bound(found.isel(run=slice(0, 150)), delta=DELTA).valid
    with pytest.raises(ValueError, match="got 110 rows of which 80 differ in seed and number"):
        bound(found.isel(run=np.r_[0:50, 20:80]), delta=DELTA)


@pytest.mark.parametrize("road", ["file", "sel", "arithmetic", "scores alone", "bits alone", "several steps"])
def test_what_a_run_was_drawn_from_stays_on_every_road(road, tmp_path):
    order = np.arange(200).reshape(-1, 2)
    found = xr.concat([worst_case().drop_vars("step")] * 2, "run")
    found = found.isel(run=np.hstack([order, order + 200]).ravel())  # two, and again
    found = found.assign_coords(run=np.arange(400))
    with pytest.raises(ValueError, match="differ in seed and number"):
        epsilon_lower_bound(*ROADS[road](found, tmp_path), delta=DELTA)


def test_audits_with_seeds_of_their_own_are_judged_together():
    both = xr.concat([worst_case(seed=0), worst_case(seed=1)], "run")
    with pytest.raises(ValueError, match=f"{TWO_AUDITS}.*give the joined scores and bits to epsilon_lower_bound"):
        bound(both, delta=DELTA)
    assert epsilon_lower_bound(both.score, both.bit, delta=DELTA).valid


def test_repeats_of_an_audit_have_seeds_of_their_own(tmp_path):
    store = tmp_path / "audit.db"
    made = trained(200, repeats=2, store=store).isel(step=0).drop_vars("repeat")
    both = xr.concat([made.isel(repeat=0), made.isel(repeat=1)], "run")
    assert epsilon_lower_bound(both.score, both.bit, delta=DELTA).valid
    xr.testing.assert_identical(audits.load(store).isel(step=0).drop_vars("repeat"), made)
    assert made.seed.dims == ("repeat", "run")
    assert made.seed.values[:, 0].tolist() == made.attrs["seeds"]
    judged = bound(xr.concat([made.isel(repeat=0)] * 2, "repeat"), delta=DELTA)
    assert [one.valid for one in judged] == [True, True]
