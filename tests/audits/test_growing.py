"""Audits that grow, join others, and stop when they have refuted a claim."""

import itertools
from functools import partial

import numpy as np
import pytest
import trainings_of_others as others
from cases import slow_but

import dpsub
from dpsub import DPSGD, CanaryPair, accounting, audits, crafters, models
from dpsub.audits import bank_plans
from dpsub.audits.plans import Cut
from dpsub.estimators.betting import largest_refuted, reached_after
from dpsub.estimators.claims import GDP

DELTA = 1e-5
NORMAL = {"adjacency": "substitute", "name": "one normal", "progress": False}
WEAK = accounting.gdp_epsilon(0.3, DELTA)  # a claim that a normal of mean ±1 refutes soon


GROWN = {
    "full batches": {"metrics": ("accuracy", "distance", "gradient", "weights")},
    "repeats": {"sample_rate": 0.3, "repeats": 2},
    "records in a network": {"network": True, "sample_rate": 0.3},
}
CASES = [*itertools.product(GROWN, (2, 128))]


@pytest.mark.parametrize(("kind", "most"), slow_but(CASES, CASES[0], CASES[3], CASES[4]))
def test_a_grown_audit_is_bit_for_bit_the_one_that_was_whole_at_once(run, task, store, monkeypatch, kind, most):
    options = {**GROWN[kind]}
    monkeypatch.setattr(bank_plans, "Cut", partial(Cut, most=most))  # of 2, blocks share their shards
    options = {"spec": DPSGD(10.0, 2.0, options.pop("sample_rate", 1.0), 4, 0.01), **options}
    if options.pop("network", False):
        pair = CanaryPair((task.x_train[3], 1), (task.x_train[4], 2), 3, "S4")
        options |= {"model": models.mlp(task, (4,)), "canary": pair}
    whole = run(**options, runs=1_000, store=None)
    first = run(**options, runs=300)
    for runs in (500, 1_000):
        grown = run(**options, runs=runs)
    assert grown.equals(whole)
    assert grown.attrs["grown_from"] == [300, 500]
    assert grown.identical(audits.load(store))
    assert audits.status(store).models == 1_000 * options.get("repeats", 1)
    assert first.score.equals(whole.score.isel(run=slice(300)))


def test_only_what_is_not_there_whole_is_trained(run, monkeypatch, forbid_training):
    run()
    trained, assemble = [], bank_plans.assemble
    monkeypatch.setattr(bank_plans, "assemble", lambda *a, **b: trained.append(len(b["bits"])) or assemble(*a, **b))
    whole = run(runs=520)
    assert trained == [128, 128, 128]  # the third block had 44 runs, and the fifth has 8
    forbid_training()
    fewer = run(runs=200)
    assert fewer.score.equals(whole.score.isel(run=slice(200)))
    assert (fewer.attrs["runs"], fewer.attrs["first_of"]) == (200, 520)


def test_an_audit_that_dies_while_it_grows_goes_on(run, store, killed_after):
    run()
    killed_after(partial(run, runs=700), 2)
    assert audits.status(store).stored == 256 + 2 * 128
    assert run(runs=260).equals(run(runs=260, store=None))
    assert run(runs=700).equals(run(runs=700, store=None))


def test_less_than_a_block_is_another_draw(run):
    few = run(runs=60)
    whole = run(runs=300)
    assert whole.equals(run(runs=300, store=None))
    assert not np.array_equal(few.score, whole.score[:60])


def test_a_training_function_is_called_for_new_runs_only(store):
    called = []

    def train(bit, seed):
        called.append(seed)
        return others.one_normal(bit, seed)

    options = NORMAL | {"store": store}
    dpsub.audit_training(train, runs=50, **options)
    grown = dpsub.audit_training(train, runs=80, **options)
    assert len(called) == len(set(called)) == 80
    assert dpsub.audit_training(train, runs=30, **options).score.equals(grown.score[:30])
    assert len(called) == 80


def test_other_audits_do_not_grow(task, model, canary, spec, store):
    trained = partial(dpsub.audit_steps, task, model, canary, spec, progress=False, store=store)
    trained(trainings=1)
    with pytest.raises(ValueError, match="runs: stored 1, asked for 2"):
        trained(trainings=2)


def test_a_bound_says_what_looking_at_the_first_runs_costs(run):
    run()
    assert "if what the first ones showed decided that, only rule 'bets' is valid" in audit_bound(run(runs=600)).note


def audit_bound(result, **options):
    return dpsub.bound(result.isel(step=-1), delta=DELTA, **options)


def test_an_audit_stops_when_bets_refute_a_claim(store):
    normal = partial(dpsub.audit_training, others.one_normal, runs=3_000, refute=WEAK, delta=DELTA, **NORMAL)
    stopped = normal()
    after = stopped.attrs["refuted_after"]
    assert 64 < after == stopped.sizes["run"] == stopped.attrs["runs"] < 1_000
    for times in range(2):  # written, then read
        assert normal(store=store).equals(stopped), times
    assert audits.load(store).equals(stopped)
    assert audits.status(store).complete
    bound = audit_bound(audits.load(store))
    assert (bound.valid, bound.claim) == (True, "gdp")
    assert "bets" in str(bound)
    assert WEAK * (1 - 1e-3) < bound.epsilon < 1.5 * WEAK
    ranks = audit_bound(stopped, rule="ranks")
    assert not ranks.valid
    assert "a test of the scores decided how many runs there are" in ranks.note
    grown = dpsub.audit_training(others.one_normal, runs=1_500, store=store, **NORMAL)
    assert not audit_bound(grown.isel(run=slice(1_000)), rule="ranks").valid


def test_where_it_stops_depends_on_the_runs_numbers_alone(run, monkeypatch):
    options = {"runs": 3_000, "refute": 0.2, "delta": DELTA, "spec": DPSGD(3.0, 2.0, 1.0, 4, 0.01)}
    stopped = run(**options)
    assert stopped.sizes["run"] % 128 == 0
    whole = run(**options | {"refute": None, "delta": None}, store=None)
    claim, mu = GDP(DELTA), accounting.gdp_mu(0.2, DELTA)
    needed = reached_after(whole.score.values[:, -1].astype(float), whole.bit.values == 0, claim, mu, 0.05)
    assert stopped.sizes["run"] == -(-needed // 128) * 128
    assert np.array_equal(stopped.score, whole.score[: stopped.sizes["run"]])
    missing = audits.collected.Place.to_compute
    monkeypatch.setattr(audits.collected.Place, "to_compute", lambda place: missing(place)[::-1])
    assert run(**options, store=None).equals(stopped)


def test_what_is_not_refuted_uses_all_runs_up_and_was_watched_all_the_same(run, spec):
    audited = run(refute="substitute", delta=DELTA)
    accounted = accounting.epsilon(**spec.mechanism, delta=DELTA, adjacency="substitute")
    assert (audited.sizes["run"], audited.attrs["refuted_after"], audited.attrs["refute"]) == (300, 0, accounted)
    assert not audit_bound(audited, rule="ranks").valid


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"refute": 1.0}, "delta must be a finite number > 0 and < 1, got None"),
        ({"refute": 0.0, "delta": DELTA}, "refute must be > 0, got 0.0"),
        ({"refute": "swap", "delta": DELTA}, "did you mean 'substitute'"),
        ({"refute": 1.0, "delta": DELTA, "repeats": 2}, "refute must be left out .* got one for dpsub.audit with repe"),
    ],
)
def test_what_cannot_be_refuted_is_named(run, options, told):
    with pytest.raises(ValueError, match=told):
        run(**options, store=None)


def test_the_accountant_needs_the_training(task, model, canary, spec):
    with pytest.raises(ValueError, match="noise_multiplier, sample_rate, steps of the training is not known"):
        dpsub.audit_training(others.one_normal, runs=100, refute="substitute", delta=DELTA, **NORMAL)
    with pytest.raises(ValueError, match=r"got one for dpsub.audit_steps: bound what it returns"):
        dpsub.audit_steps(task, model, canary, spec, refute=1.0, delta=DELTA)


def test_a_claim_is_reached_when_the_bound_first_is_at_least_that():
    rng, claim, mu = np.random.default_rng(0), GDP(DELTA), 0.7
    for _ in range(3):
        bits = rng.integers(0, 2, 900)
        scores = rng.normal(size=900) + 1.3 * (bits == 0)
        after = reached_after(scores, bits == 0, claim, mu, 0.05)
        assert largest_refuted(scores[:after], bits[:after] == 0, claim, 0.05)[0] >= mu * (1 - 1e-3)
        assert largest_refuted(scores[: after - 1], bits[: after - 1] == 0, claim, 0.05)[0] < mu


@pytest.mark.slow
def test_true_claims_are_refuted_in_at_most_alpha_of_audits_that_may_stop_at_any_run():
    rng, wrong, trials, runs = np.random.default_rng(1), 0, 1_000, 2_500
    for _ in range(trials):
        bits = rng.integers(0, 2, runs)
        scores = rng.normal(size=runs) + (bits == 0)
        wrong += reached_after(scores, bits == 0, GDP(DELTA), 1.0, 0.05) is not None
    assert wrong <= 0.05 * trials + 2 * np.sqrt(0.05 * 0.95 * trials)


def test_joined_audits_are_one(run, task, model, canary, spec):
    first, second = run(store=None, repeats=2), run(store=None, seed=9, runs=200, metrics=("gradient", "accuracy"))
    with pytest.raises(ValueError, match="got in places 0 and 2: metrics '' and 'accuracy gradient'"):
        audits.join(first, second)
    joined = audits.join(first, run(store=None, seed=9, runs=200))
    assert (joined.sizes["run"], joined.attrs["runs"]) == (800, 800)
    assert joined.attrs["seeds"] == [*audits.repeat_seeds(3, 2), 9]
    assert np.array_equal(joined.score[:300], first.score[0])
    assert audit_bound(joined).valid
    assert audits.join(second).gradient.equals(second.gradient)
    with pytest.raises(ValueError, match="audits must have a seed each"):
        audits.join(joined, run(store=None, seed=9, runs=100))


def test_joins_that_are_none_are_refused(run, task, model, canary, spec):
    first = run(store=None)
    other = crafters.mislabeled(task, model, spec, seed=0)
    for second, told in (
        (first, r"audits must have a seed each, got \[3, 3\]"),
        (run(store=None, seed=4, spec=DPSGD(10.1, 2.0, 1.0, 4, 0.01)), "noise_multiplier 10.0 and 10.1"),
        (run(store=None, seed=4, canary=other), "canary_fingerprint"),
        (run(store=None, seed=4, observe_every=1), "observe_every 2 and 1; steps observed"),
        (run(store=None, seed=4, refute=5.0, delta=DELTA), "got one stopped by refute in place 1"),
        (dpsub.audit_steps(task, model, canary, spec, progress=False), "independent models"),
    ):
        with pytest.raises(ValueError, match=told):
            audits.join(first, second)
