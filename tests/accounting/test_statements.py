import importlib.resources
import json
import math

import jsonschema
import numpy as np
import pytest
from cases import slow_but
from scipy.integrate import simpson
from scipy.stats import norm

from dpsub import accounting
from dpsub.accounting.samplings import (
    Epochs,
    Poisson,
    PoissonMean,
    Sampling,
    TruncatedPoisson,
    WithoutReplacement,
)
from dpsub.accounting.statements import random_trials_epsilon, rounded, statement_of

SCHEMA = json.loads(importlib.resources.files("dpsub.accounting").joinpath("privacy_statement.schema.json").read_text())
STEPS = ((1.1, 0.1, 30), (1.4, 0.1, 20))


def stated(history=STEPS, *, delta=1e-5, prior=0.5, sampling="poisson", **about):
    return statement_of(history, delta=delta, prior=prior, sampling=Sampling.of(sampling), **about)


def words(statement):
    return " ".join(str(statement).split())


def delta_of_the_best(mu, mean, epsilon):
    """δ of the best of a geometric number of results of a μ-GDP mechanism, where the best is the largest or the least.

    A result is N(μ, 1) or N(0, 1), and the best of K has the density of E[K F(y)^(K-1)] times one's.
    """
    y = np.linspace(-12, 12 + mu, 200_001)
    found = []
    for sign in (1, -1):
        one, other = (norm.pdf(y, m) / mean / (1 - (1 - 1 / mean) * norm.cdf(sign * (y - m))) ** 2 for m in (mu, 0.0))
        assert simpson(one, x=y) == pytest.approx(1, abs=1e-6)
        found += [simpson(np.maximum(p - math.exp(epsilon) * q, 0), x=y) for p, q in ((one, other), (other, one))]
    return max(found)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("mean", [1, 2, 10, 100])
def test_the_best_of_a_random_number_of_trainings_has_the_epsilon_that_is_certified(mu, mean):
    history, delta = ((2 / mu, 1.0, 1),), 1e-4
    epsilon = random_trials_epsilon(mean, delta, history, Poisson())
    assert delta_of_the_best(mu, mean, epsilon) <= delta * (1 + 1e-6)
    one = accounting.gdp_epsilon(mu, delta)
    assert epsilon == pytest.approx(one, rel=1e-9) if mean == 1 else epsilon > one


def test_a_random_number_of_trainings_costs_less_than_as_many_of_them_unless_they_are_few():
    cheaper = {k: stated(((20.0, 1.0, 100),), trials=k) for k in (2, 10)}
    assert all(one.random_trials < one.substitute for one in cheaper.values())
    assert cheaper[2].random_trials < cheaper[10].random_trials


def test_the_best_of_some_trainings_is_stated_as_all_of_them():
    history = ((30.0, 1.0, 30), (40.0, 1.0, 20))
    best, one = stated(history, trials=4), stated(history)
    as_one = [(sigma, q, 4 * steps) for sigma, q, steps in history]
    asked = {"history": as_one, "delta": 1e-5}
    assert best.substitute == accounting.epsilon(**asked, adjacency="substitute") < 4 * one.substitute
    assert best.add_remove == accounting.epsilon(**asked, adjacency="add_remove")
    assert best.group_privacy == accounting.group_privacy_epsilon(**asked)
    assert best.risk == accounting.risk(**asked, adjacency="substitute")
    assert best.found_contents == 1 - accounting.tradeoff(0.01, history=as_one, adjacency="substitute")
    assert best.history == history
    text = words(best)
    assert "It is the best of 4 such training runs on the same records, so all numbers are for the 4 together" in text
    assert f"the substitute ε would be at most {rounded(best.random_trials)}." in text
    assert "the best of" not in words(one)


def test_trainings_that_end_within_an_epoch_do_not_share_it():
    """15 steps of 10 batches an epoch use a record twice; two such trainings four times, and not three times."""
    best = stated(((2.0, 0.1, 15),), sampling="epochs", trials=2)
    asked = {"noise_multiplier": 2.0, "delta": 1e-5, "adjacency": "substitute"}
    assert best.substitute == pytest.approx(accounting.epsilon(**asked, sample_rate=1, steps=4), rel=1e-9)
    assert best.poisson == accounting.epsilon(**asked, sample_rate=0.1, steps=30)


@pytest.mark.parametrize(
    "sampling", [Poisson(), Epochs(), WithoutReplacement(), TruncatedPoisson(12, 100), PoissonMean(100)]
)
def test_phases_of_phases_are_the_phases(sampling):
    phases = sampling.phases(STEPS)
    assert list(sampling.phases(phases)) == phases


def test_any_number_of_values_may_have_a_prior():
    diagnoses = [0.3, 0.2, 0.1, 0.1, 0.1, 0.05, 0.05, 0.04, 0.03, 0.03]
    statement = stated(prior=diagnoses)
    assert statement.risk == accounting.risk(history=STEPS, prior=diagnoses, delta=1e-5, adjacency="substitute")
    text = words(statement)
    assert "gives 10 values of a label or an attribute probabilities, 30 % to the first of them, before" in text
    assert "guesses which of them the record has and is right with a probability of at most " in text
    assert " % (30 % without the model)." in text
    rare = words(stated(((3.0, 0.01, 100),), prior=0.01))
    assert "probability of at most 99.1 % (99 % without the model)" in rare
    assert "sure that the record has it (1 % without the model)" in rare


ABOUT = [
    {},
    {"sampling": "epochs", "loader_seen": True},
    {"sampling": "truncated_poisson:12:100", "trials": 3},
    {"sampling": "without_replacement", "prior": [0.5, 0.3, 0.2]},
    {"history": ((0.3, 0.5, 500),), "reported": ("rdp", 5.0)},  # nothing limits a belief here
]


@pytest.mark.parametrize("about", slow_but(ABOUT, *ABOUT[:2], *ABOUT[3:]))
def test_a_statement_for_a_file_is_what_the_schema_describes(about):
    statement = stated(**about)
    written = statement.to_dict()
    assert json.loads(json.dumps(written, allow_nan=False)) == written
    jsonschema.Draft202012Validator(SCHEMA).validate(written)
    assert written["contents"]["epsilon"] == statement.substitute
    assert written["membership"]["epsilon"] == (statement.add_remove or statement.zero_out)
    assert written["membership"]["adjacency"] == ("zero_out" if statement.add_remove is None else "add_remove")
    assert written["trainings_tried"] == statement.trials
    assert written["risk"]["guessed_right_without_model"] == max(statement.risk.prior)
    assert "\n\n".join(written["statement"]) == statement._repr_markdown_()


def test_the_schema_describes_each_key_and_refuses_others():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    written = stated().to_dict()
    for wrong in (written | {"epsilon": 1.0}, written | {"delta": 0}, {**written, "phases": []}):
        assert list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(wrong))

    def undescribed(schema):
        for name, inner in schema.get("properties", {}).items():
            if not {"description", "$ref", "const"} & set(inner):
                yield name
            yield from undescribed(inner)
            yield from undescribed(inner.get("items", {}))

    assert not list(undescribed(SCHEMA))
