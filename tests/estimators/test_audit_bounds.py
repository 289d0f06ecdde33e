import math
from dataclasses import replace

import numpy as np
import pytest
import xarray as xr
from scipy.stats import binom

import dpsub
from dpsub import accounting, bound
from dpsub.accounting import gdp_epsilon
from dpsub.estimators import LowerBound, epsilon_lower_bound, over_repeats, step_to_training
from dpsub.estimators import one_run_epsilon_lower_bound as bound_of_guesses
from dpsub.estimators import one_run_guesses as guess
from dpsub.estimators.claims import GDP
from dpsub.estimators.dpsgd_claim import MechanismDP
from dpsub.estimators.lower_bounds import RULES

DELTA = 1e-5
STEP = LowerBound(3.9, "gdp", "gdp", True, "rests on coins", mu=0.9, details={"observations": 500, "reached": 400})


def of_mu(mu, **changes):
    return replace(STEP, mu=mu, **changes)


@pytest.mark.parametrize("adjacency", ["substitute", "add_remove"])
def test_at_full_batch_mu_grows_with_the_root_of_the_steps(adjacency):
    training = step_to_training(STEP, sample_rate=1, steps=25, delta=DELTA, adjacency=adjacency)
    assert training.epsilon == pytest.approx(accounting.gdp_epsilon(0.9 * 5, DELTA))
    assert training.noise_multiplier == pytest.approx({"substitute": 2, "add_remove": 1}[adjacency] / 0.9)
    assert (training.claim, training.assumes, training.mu) == ("pld", "mechanism", None)
    assert training.step == STEP
    assert (training.note, training.details) == ("rests on coins", STEP.details)
    credible = replace(STEP, details=STEP.details | {"upper": 5.0})  # the ε of a step
    assert step_to_training(credible, sample_rate=1, steps=25, delta=DELTA, adjacency=adjacency) == replace(
        training, step=credible
    )


@pytest.mark.parametrize(("adjacency", "distance"), [("substitute", 2), ("add_remove", 1), ("zero_out", 1)])
def test_a_sampled_training_has_the_lower_end_of_its_noises_epsilon(adjacency, distance):
    training = step_to_training(STEP, sample_rate=0.1, steps=50, delta=DELTA, adjacency=adjacency)
    ends = accounting.epsilon_interval(
        noise_multiplier=distance / 0.9, sample_rate=0.1, steps=50, delta=DELTA, adjacency=adjacency
    )
    assert training.epsilon <= ends.upper
    assert training.epsilon == pytest.approx(ends.lower, rel=1e-3)


@pytest.mark.parametrize(("sampling", "adjacency"), [("epochs", "zero_out"), ("without_replacement", "substitute")])
def test_the_training_of_a_step_has_its_own_sampling(sampling, adjacency):
    about = {"sample_rate": 0.5, "steps": 2, "adjacency": adjacency, "sampling": sampling}
    ends = accounting.epsilon_interval(noise_multiplier=0.5, delta=DELTA, **about)
    mu = 4.0 if adjacency == "substitute" else 2.0
    assert step_to_training(of_mu(mu), delta=DELTA, **about).epsilon == pytest.approx(ends.lower, rel=1e-3)
    steps = of_steps(np.random.default_rng(9), observations=500)
    found = bound(steps.assign_attrs(**about, runs=250), delta=DELTA)
    assert found == step_to_training(found.step, delta=DELTA, **about)


def test_a_step_in_epochs_is_not_stated_as_two_of_poissons():
    """One batch of each epoch holds the record. Of Poisson's two batches both may."""
    about = {"sample_rate": 0.5, "steps": 2, "delta": DELTA, "adjacency": "zero_out"}
    truth = accounting.epsilon(noise_multiplier=0.5, **about, sampling="epochs")
    assert step_to_training(of_mu(2.0), **about).epsilon > truth
    assert step_to_training(of_mu(2.0), **about, sampling="epochs").epsilon <= truth


def test_noise_of_a_step_is_taken_as_it_is():
    of_noise = replace(STEP, claim="pld", mu=None, noise_multiplier=2 / 0.9)
    arguments = {"sample_rate": 0.2, "steps": 10, "delta": DELTA, "adjacency": "substitute"}
    both = [step_to_training(bound, **arguments) for bound in (STEP, of_noise)]
    assert both[0].epsilon == pytest.approx(both[1].epsilon)


def test_bets_on_steps_bound_their_training():
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 1_000)
    step = epsilon_lower_bound(rng.normal(size=1_000) + (bits == 0), bits, delta=DELTA, rule="bets")
    training = step_to_training(step, sample_rate=0.05, steps=1_000, delta=DELTA, adjacency="substitute")
    truth = accounting.epsilon(noise_multiplier=2, sample_rate=0.05, steps=1_000, delta=DELTA, adjacency="substitute")
    assert training.valid
    assert 0.5 * truth < training.epsilon < truth


def test_a_bound_that_is_not_valid_makes_none_that_is():
    arguments = {"sample_rate": 1, "steps": 2, "delta": DELTA, "adjacency": "substitute"}
    assert not step_to_training(replace(STEP, valid=False), **arguments).valid


def test_no_bound_of_a_step_is_none_of_the_training():
    arguments = {"sample_rate": 0.1, "steps": 5, "delta": DELTA, "adjacency": "substitute"}
    none = step_to_training(of_mu(0.0, epsilon=0.0, note="too weak"), **arguments)
    assert (none.epsilon, none.noise_multiplier) == (0, math.inf)
    assert none.note == "the step's bound refutes no noise: too weak"
    little = step_to_training(of_mu(1e-3), **{**arguments, "delta": 0.1})
    assert little.epsilon == 0
    assert little.note == "5 steps with the noise that was not refuted have epsilon 0 at delta = 0.1"
    huge = step_to_training(of_mu(40.0), **arguments)
    assert huge.noise_multiplier == pytest.approx(0.2)
    assert huge.note.startswith("of noise_multiplier 0.2")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bound": replace(STEP, claim="dp", mu=None)}, "bound must be of claim 'gdp' or 'pld'.* got 'dp'"),
        ({"bound": replace(STEP, claim="product", assumes="product")}, "bound must be of claim .* got 'product'"),
    ],
)
def test_bad_input_is_named(options, message):
    arguments = {"bound": STEP, "sample_rate": 0.1, "steps": 5, "delta": DELTA, "adjacency": "substitute", **options}
    with pytest.raises(ValueError, match=message):
        step_to_training(**arguments)


def of_epsilon(epsilon):
    return LowerBound(epsilon, "dp", "none", True)


def test_repeats_become_a_mean_and_two_standard_errors():
    mean, error, repeats = over_repeats([of_epsilon(1.0), of_epsilon(2.0), of_epsilon(6.0)])
    assert (mean, repeats) == (3.0, 3)
    assert error == pytest.approx(2 * np.std([1, 2, 6], ddof=1) / math.sqrt(3))


def test_repeats_of_several_steps_are_averaged_step_by_step():
    curves = over_repeats([[of_epsilon(1.0), of_epsilon(2.0)], [of_epsilon(3.0), of_epsilon(2.0)]])
    np.testing.assert_allclose([curves.mean, curves.error], [[2, 2], [2, 0]])
    assert np.isnan(over_repeats([[of_epsilon(1.0), of_epsilon(2.0)]]).error).all()
    with pytest.raises(ValueError, match="bounds must be finite numbers, got nan"):
        over_repeats([math.nan])


def test_many_scores_of_one_model_are_not_runs(gaussian_scores):
    """Ten scores a model that share its randomness break the promise that the models' own scores keep."""
    truth, exceeded, rng = gdp_epsilon(1.0, 1e-5), {"models": 0, "scores": 0}, np.random.default_rng(0)
    for _ in range(60):
        scores, bits = gaussian_scores(rng, 200, 1.0)
        many = np.repeat(scores, 10) + 0.01 * rng.normal(size=2_000)
        exceeded["models"] += epsilon_lower_bound(scores, bits, delta=1e-5).epsilon > truth
        exceeded["scores"] += epsilon_lower_bound(many, np.repeat(bits, 10), delta=1e-5).epsilon > truth
    assert exceeded["models"] <= binom.ppf(0.999, 60, 0.05) < exceeded["scores"]
    assert "independently" in epsilon_lower_bound.__doc__


NOISE = 2.0
LAW = {"sample_rate": 0.25, "steps": 400, "adjacency": "substitute"}


def tossed(rng, size):
    return rng.integers(0, 2, size).astype(np.int8)


def of_models(rng, mu=1.5, runs=600, **coords):
    """Scores of models that are N(μ, 1) and N(0, 1), as of an audit of a training at full batch."""
    bits = tossed(rng, runs)
    data = {"score": ("run", rng.normal(size=runs) + mu * (bits == 0)), "bit": ("run", bits)}
    return xr.Dataset(data, coords={"step": 9, **coords}, attrs={**LAW, "sample_rate": 1.0})


def of_folds(rng):
    numbers = np.arange(600) // 200
    found = of_models(rng, fold=("run", numbers))
    return found.assign(score=found.score * 10.0 ** (numbers - 1) + 100 * (numbers % 2))


def of_steps(rng, rate=1.0, observations=2_000, **attrs):
    """Opposite canaries of norm 1 at each step, in the batch with this probability, under noise of 2."""
    bits = tossed(rng, observations)
    present = rng.random(observations) < rate
    score = present * np.where(bits == 0, 1.0, -1.0) + NOISE * rng.normal(size=observations)
    data = {"score": ("observation", score), "bit": ("observation", bits)}
    trainings = -(-observations // LAW["steps"])
    return xr.Dataset(data, attrs={**LAW, "runs": trainings, "q_c": rate, "protocol": "coins", **attrs})


def of_an_optimizer(rng):
    found = of_steps(rng, observations=400).assign(noise_multiplier=("observation", np.full(400, NOISE)))
    found.attrs = {**LAW, "canary_rate": 1.0}
    return found


def of_pairs(rng, models=2, pairs=500, final=False):
    """Pairs of which each is seen by itself: μ = 1.5 for each coin. Final scores have centres of their own."""
    bits = tossed(rng, (models, pairs))
    score = rng.normal(size=bits.shape) + 1.5 * (0.5 - bits)
    data = {"score": (("model", "pair"), score + 7), "bit": (("model", "pair"), bits)}
    found = xr.Dataset(data, coords={"slot": ("pair", np.arange(pairs))}, attrs={**LAW, "subtract_expected": 1})
    return found if final else found.assign(step_score=(("model", "pair"), score))


ONE, TRAINED = accounting.gdp_epsilon(1.5, DELTA), accounting.epsilon(noise_multiplier=NOISE, delta=DELTA, **LAW)
# For each kind of audit: how it is drawn, the truth, how much of it is found at least, and what has this ε.
KINDS = {
    "models": (of_models, ONE, 0.6),
    "folds": (of_folds, ONE, 0.5),
    "steps": (of_steps, TRAINED, 0.5),
    "steps, canary rate 0.5": (lambda rng: of_steps(rng, 0.5), TRAINED, 0.2),
    "an optimizer": (of_an_optimizer, TRAINED, 0.1),
    "pairs": (of_pairs, ONE, 0.3),
    "pairs, final models": (lambda rng: of_pairs(rng, final=True), ONE, 0.3),
}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] * ("0.5" in k)) for k in KINDS])
def test_the_bound_of_any_audit_keeps_its_promise_and_finds_some_of_the_truth(kind):
    drawn, truth, least = KINDS[kind]
    rng, audits = np.random.default_rng(0), 8
    found = [bound(drawn(rng), delta=DELTA, alpha=0.25) for _ in range(audits)]
    assert all(one.valid and one.of == "training" for one in found)
    assert sum(one.epsilon > truth for one in found) <= binom.ppf(0.999, audits, 0.25)
    assert np.mean([one.epsilon for one in found]) > least * truth


def by_hand(audited, **options):
    return epsilon_lower_bound(audited.score, audited.bit, delta=DELTA, **options)


CHAINS = {
    "models": by_hand,
    "folds": lambda of: by_hand(of, rule="folds"),
    "steps": lambda of: step_to_training(by_hand(of, rule="bets"), delta=DELTA, **LAW),
    "an optimizer": lambda of: step_to_training(by_hand(of, rule="bets"), delta=DELTA, **LAW),
    "pairs": lambda of: bound_of_guesses(*guess(of.step_score, of.bit, guesses=200), delta=DELTA),
    "pairs, final models": lambda of: bound_of_guesses(
        *guess(of.score, of.bit, guesses=200, centre="median"), delta=DELTA
    ),
}


@pytest.mark.parametrize("kind", CHAINS)
def test_the_bound_of_any_audit_is_that_of_the_calls_that_it_replaces(kind):
    audited = KINDS[kind][0](np.random.default_rng(3))
    found = bound(audited, delta=DELTA)
    chosen = {name: found.details[name] for name in ("centre", "scored") if name in found.details}
    by_chain = CHAINS[kind](audited)
    assert found == replace(by_chain, details={**by_chain.details, **chosen})
    assert found.epsilon > 0


def test_the_bound_of_many_pairs_says_what_was_chosen():
    audited = of_pairs(np.random.default_rng(3))
    steps, final = bound(audited, delta=DELTA), bound(audited.drop_vars("step_score"), delta=DELTA)
    right = guess(audited.step_score, audited.bit, guesses=200)
    assert (steps.details["guesses"], steps.details["correct"], steps.details["pairs"]) == (200, right.correct, 1_000)
    assert (steps.details["centre"], steps.details["scored"]) == (0.0, "step score")
    assert f"by guesses, {right.correct} of 200 right, of 1000 pairs, by the step score around 0;" in str(steps)
    assert (final.details["centre"], final.details["scored"]) == ("median", "final model's score")
    assert "by the final model's score around the median;" in str(final)
    audited.attrs["reference"] = 1
    assert (
        bound(audited.drop_vars("step_score"), delta=DELTA).details["scored"]
        == "final model's score less a reference's"
    )


def test_the_bound_of_rare_canaries_is_of_their_own_mechanism():
    audited = of_steps(np.random.default_rng(4), 0.5, 150)
    step = by_hand(audited, claim="pld", rule="bets", sample_rate=0.5, steps=1, adjacency="substitute")
    found = bound(audited, delta=DELTA)
    assert found == step_to_training(step, delta=DELTA, **LAW)
    assert found.step == step
    wrong = bound(audited, delta=DELTA, claim="gdp")
    assert not wrong.valid
    assert "a step with a canary rate below 1 is not of GDP" in wrong.note


def test_steps_and_repeats_of_models_give_lists():
    rng = np.random.default_rng(5)
    one, other = (xr.concat([of_models(rng).assign_coords(step=s) for s in (3, 9)], "step") for _ in range(2))
    one, other = (each.assign(bit=each.bit[0], score=each.score.transpose("run", "step")) for each in (one, other))
    both = xr.concat([one, other], "repeat")
    expected = [[by_hand(each.isel(step=i)) for i in range(2)] for each in (one, other)]
    assert bound(one, delta=DELTA) == expected[0]
    assert bound(both, delta=DELTA) == expected
    assert bound(both.isel(step=1), delta=DELTA) == [row[1] for row in expected]
    law = {"sample_rate": 1.0, "adjacency": "substitute"}
    assert bound(one, delta=DELTA, claim="pld") == by_hand(one, claim="pld", steps=[3, 9], **law)
    of_noise = {"claim": "bayes_pld", "rule": 0.5}
    assert bound(one, delta=DELTA, **of_noise) == by_hand(one, steps=[3, 9], **of_noise, **law)


def test_claims_and_rules_are_names_or_objects():
    rng = np.random.default_rng(6)
    models, steps, pairs = of_models(rng), of_steps(rng, observations=500), of_pairs(rng, models=1)
    assert bound(models, delta=DELTA, claim=GDP(DELTA), rule=RULES["split"]) == by_hand(models, rule="split")
    assert bound(models, delta=DELTA, claim="dp", rule=0.5) == by_hand(models, claim="dp", rule=0.5)
    noise = bound(models, delta=DELTA, claim=MechanismDP(DELTA, 1.0, 9, "substitute"))
    assert noise == bound(models, delta=DELTA, claim="pld")
    assert bound(steps, delta=DELTA, claim="pld").epsilon == pytest.approx(bound(steps, delta=DELTA).epsilon, rel=1e-3)
    step = bound(steps, delta=DELTA, claim="dp")
    assert step.of == "step"
    assert step.note.endswith("of one step: claim 'dp' says nothing of its noise, and so of the training")
    assert bound(pairs, delta=DELTA, rule=[20, 100]).details["guesses"] in (20, 100)
    assert bound(pairs, delta=DELTA, claim="product").details["guesses"] == 500
    assert bound(pairs, delta=DELTA, claim="pld").noise_multiplier > 0


def test_what_makes_a_bound_invalid_is_told():
    rng = np.random.default_rng(7)
    changed = of_an_optimizer(rng)
    changed.noise_multiplier[:100] = 3.0
    worlds = ("observation", np.ones(2_000, bool))
    told = {
        "the judged models were learned from": of_models(rng, in_sample=("run", np.ones(600, bool))),
        "steps share their world": of_steps(rng, protocol="two_trainings").assign_coords(same_world=worlds),
        "the claimed noise changed between the steps": changed,
    }
    for note, audited in told.items():
        found = bound(audited, delta=DELTA)
        assert not found.valid
        assert note in found.note


def test_steps_without_a_sample_rate_are_bounded_one_by_one():
    audited = of_an_optimizer(np.random.default_rng(8))
    del audited.attrs["sample_rate"]
    found = bound(audited, delta=DELTA)
    assert (found.of, found.valid) == ("step", True)
    assert found.note.endswith(
        "of one step: the sample rate of the training is not known, which step_to_training takes"
    )


@pytest.mark.parametrize(
    ("audited", "options", "message"),
    [
        ([0.1, 0.2], {}, "result must be the dataset of an audit, with score and bit, got a list"),
        (of_models(np.random.default_rng(0)), {"claim": GDP(1e-6)}, "claim must be at delta = 1e-05, got one at 1e-06"),
        (of_pairs(np.random.default_rng(0)), {"rule": "ranks"}, "rule must be a number of guesses, or several, for"),
        (of_pairs(np.random.default_rng(0)), {"claim": "katz"}, "claim must be one of 'gdp', 'pld', 'dp', 'product'"),
    ],
)
def test_what_is_no_audit_or_does_not_fit_it_is_named(audited, options, message):
    with pytest.raises(ValueError, match=message):
        bound(audited, **{"delta": DELTA, **options})


def test_a_bound_says_itself_in_one_line():
    step = replace(STEP, of="step", rule="bets", delta=DELTA, alpha=0.05)
    assert str(step) == (
        "ε ≥ 3.90 at δ = 1e-05, 95 % confidence, of one step (gdp by bets; assumes a Gaussian mechanism's curve; valid)"
    )
    assert str(replace(STEP, valid=False, note="chosen in sample")).endswith("not valid: chosen in sample)")
    assert str(LowerBound(0.0, "dp", "none", True, "too few")) == "ε ≥ 0 (dp; assumes nothing; valid: too few)"


def test_only_what_says_so_is_tested_as_another_adjacency():
    """A name is no promise that all records are known: for others the claims have to cover every data set."""
    law = {"noise_multiplier": 2.0, "sample_rate": 0.25, "steps": 40}
    simulated = dpsub.audit_worst_case(
        **law, runs=5_000, adjacency="substitute", sampling="without_replacement", every_step=True
    )
    attrs = {name: value for name, value in simulated.attrs.items() if name != "tested_as"}
    of_its_data_set, of_any = (
        bound(result, delta=DELTA, claim="pld")[0].epsilon
        for result in (simulated, xr.Dataset(simulated.data_vars, simulated.coords, attrs))
    )
    assert simulated.attrs["scenario"] == attrs["scenario"] == "S1"
    assert of_any < 0.9 * of_its_data_set
