import io
import math
import warnings

import numpy as np
import pytest
import torch
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant, create_accountant
from opacus.accountants.utils import get_noise_multiplier
from torch.utils.data import DataLoader, TensorDataset

from dpsub import accounting
from dpsub.opacus import PrivacyStatement, SubstitutePRVAccountant, privacy_statement

STEPS = [(1.1, 0.1, 30), (1.4, 0.1, 20)]

pytestmark = pytest.mark.filterwarnings("default")  # Opacus warns about many things


def trained(accountant="prv_substitute", epochs=2, **private):
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(60, 5), torch.randint(2, (60,))), batch_size=6)
    engine = PrivacyEngine(accountant=accountant)
    make = engine.make_private_with_epsilon if "target_epsilon" in private else engine.make_private
    if "target_epsilon" in private:
        private["epochs"] = epochs
    model, optimizer, loader = make(module=model, optimizer=optimizer, data_loader=loader, max_grad_norm=1.0, **private)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return engine, model, optimizer


def test_a_training_is_accounted_for_under_substitution():
    engine, _, optimizer = trained(noise_multiplier=1.3)
    optimizer.noise_multiplier = 2.0
    engine.accountant.step(noise_multiplier=2.0, sample_rate=0.1)
    assert engine.accountant.history == [(1.3, 0.1, 20), (2.0, 0.1, 1)]
    expected = accounting.epsilon(history=engine.accountant.history, delta=1e-5, adjacency="substitute")
    assert engine.get_epsilon(1e-5) == expected
    assert expected > accounting.epsilon(history=engine.accountant.history, delta=1e-5, adjacency="add_remove")


def test_noise_is_calibrated_to_a_substitute_target():
    engine, _, optimizer = trained(target_epsilon=3.0, target_delta=1e-5)
    assert 3.0 - 0.02 < engine.get_epsilon(1e-5) <= 3.0
    smallest = accounting.noise_multiplier(
        target_epsilon=3.0, sample_rate=0.1, steps=20, delta=1e-5, adjacency="substitute"
    )
    assert smallest <= optimizer.noise_multiplier < 1.01 * smallest


def test_a_checkpoint_keeps_the_steps_taken():
    engine, model, optimizer = trained(noise_multiplier=1.3)
    file = io.BytesIO()
    engine.save_checkpoint(path=file, module=model, optimizer=optimizer)
    file.seek(0)
    other, model, optimizer = trained(noise_multiplier=1.3, epochs=0)
    other.load_checkpoint(path=file, module=model, optimizer=optimizer)
    assert other.get_epsilon(1e-5) == engine.get_epsilon(1e-5) > 0


def test_a_checkpoint_of_another_accountant_is_refused_with_a_way_out():
    recorded = PRVAccountant()
    recorded.history = STEPS
    accountant = SubstitutePRVAccountant()
    with pytest.raises(ValueError, match=r"state_dict must be of .*, got one of 'prv': .*\['history'\]"):
        accountant.load_state_dict(recorded.state_dict())
    accountant.history = recorded.state_dict()["history"]
    assert accountant.get_epsilon(1e-5) == accounting.epsilon(history=STEPS, delta=1e-5, adjacency="substitute")


@pytest.mark.parametrize("state", [None, {}, {"history": []}])
def test_what_is_no_checkpoint_is_refused(state):
    with pytest.raises(ValueError, match="state.dict"):
        SubstitutePRVAccountant().load_state_dict(state)


def test_a_checkpoint_of_nonsense_is_refused():
    with pytest.raises(ValueError, match=r"history\[0\]: sample_rate must be > 0 and <= 1, got 2.0"):
        SubstitutePRVAccountant().load_state_dict({"mechanism": "prv_substitute", "history": [(1.0, 2.0, 3)]})


def test_opacus_creates_it_by_name():
    accountant = create_accountant("prv_substitute")
    assert type(accountant) is SubstitutePRVAccountant
    assert accountant.get_epsilon(1e-5) == 0
    sigma = get_noise_multiplier(
        target_epsilon=2.0, target_delta=1e-6, sample_rate=0.02, steps=400, accountant="prv_substitute"
    )
    reached = accounting.epsilon(
        noise_multiplier=sigma, sample_rate=0.02, steps=400, delta=1e-6, adjacency="substitute"
    )
    assert 1.98 < reached <= 2.0


def test_no_noise_is_no_privacy():
    accountant = SubstitutePRVAccountant()
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    assert accountant.get_epsilon(1e-5) == math.inf


def test_a_smaller_error_may_be_asked_for():
    accountant = SubstitutePRVAccountant()
    accountant.history = STEPS
    assert accountant.get_epsilon(1e-5, eps_error=1e-6) <= accountant.get_epsilon(1e-5, eps_error=0.1)


@pytest.mark.parametrize("bad", [0, 1, -1e-5, "1e-5", float("nan")])
def test_bad_delta_is_named(bad):
    accountant = SubstitutePRVAccountant()
    accountant.history = STEPS
    for ask in (lambda: accountant.get_epsilon(bad), lambda: privacy_statement(STEPS, delta=bad)):
        with pytest.raises(ValueError, match="delta must be"):
            ask()


def test_the_statement_holds_all_three_epsilons():
    statement = privacy_statement(STEPS, delta=1e-5)
    asked = {"history": STEPS, "delta": 1e-5}
    assert statement.add_remove == accounting.epsilon(**asked, adjacency="add_remove")
    assert statement.substitute == accounting.epsilon(**asked, adjacency="substitute")
    assert statement.group_privacy == accounting.group_privacy_epsilon(**asked)
    assert statement.found_contents == 1 - accounting.tradeoff(0.01, history=STEPS, adjacency="substitute")
    assert 0.01 < statement.found_members < statement.found_contents < 1
    assert statement.add_remove < statement.substitute < statement.group_privacy


def numbers(text, phrase):
    return float(text.replace("\n", " ").split(phrase)[1].split()[0].rstrip(".,;"))


def test_the_text_states_bounds_rounded_up():
    statement = privacy_statement(STEPS, delta=1e-5)
    text = str(statement)
    for phrase, value in (
        ("training data is protected with ε = ", statement.add_remove),
        ("known to be in the training data is protected with ε = ", statement.substitute),
        ("group privacy would give ε = ", statement.group_privacy),
    ):
        assert value <= numbers(text, phrase) <= value * 1.01 + 0.01
    assert "30 steps at noise multiplier 1.1 and sample rate 0.1" in text.replace("\n", " ")
    assert "δ = 1e-05" in text
    assert max(map(len, text.splitlines())) <= 100
    assert statement._repr_markdown_().replace("\n", " ") == text.replace("\n", " ")


@pytest.mark.parametrize("epsilon", [0.00123456, 0.999999, 1.0, 9.9999, 10.0, 99.95, 1234.5, 0.0])
def test_no_epsilon_is_rounded_down(epsilon):
    values = dict.fromkeys(("add_remove", "substitute", "group_privacy"), epsilon)
    text = str(
        PrivacyStatement(**values, found_members=0.0101, found_contents=0.2, delta=1e-5, history=((1.0, 0.1, 2),))
    )
    stated = numbers(text, "training data is protected with ε = ")
    assert epsilon <= stated <= epsilon * 1.011
    assert "1.1 % of those who were" in text.replace("\n", " ")


def test_many_phases_are_summed_up():
    text = str(privacy_statement([(1 + k / 10, 0.1, 2) for k in range(5)], delta=1e-5))
    assert "10 steps in 5 phases of different noise multiplier or sample rate" in text.replace("\n", " ")


@pytest.mark.parametrize("accountant", ["prv_substitute", "prv", "rdp", "gdp"])
def test_engines_with_any_of_opacus_accountants_are_understood(accountant):
    engine, _, _ = trained(accountant=accountant, epochs=1, noise_multiplier=1.3)
    statement = privacy_statement(engine, delta=1e-5)
    assert statement == privacy_statement(engine.accountant, delta=1e-5)
    assert statement == privacy_statement([(1.3, 0.1, 10)], delta=1e-5)


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([], "got none: no step has been taken yet"),
        ([(1.0, 0.1, 0)], r"history\[0\]: steps must be >= 1, got 0"),
        ([(0.0, 0.1, 5)], r"history\[0\]: noise_multiplier must be > 0, got 0"),
        ([1.0, 0.1, 5], "history must be a sequence of .* got 1.0 at place 0"),
        ("prv", "history must be a sequence of .* got 'prv'"),
        ({"history": STEPS}, "history must be a sequence of"),
        (None, "history must be a sequence of .* got None"),
    ],
)
def test_what_is_no_history_is_refused(history, message):
    with pytest.raises(ValueError, match=message):
        privacy_statement(history, delta=1e-5)


def test_an_engine_that_has_not_trained_has_nothing_to_state():
    with pytest.raises(ValueError, match="no step has been taken yet"):
        privacy_statement(PrivacyEngine(accountant="prv_substitute"), delta=1e-5)


# Opacus accounts for one of the two directions of add/remove, which is the larger one at ordinary settings.
@pytest.mark.parametrize("setting", [(1.1, 0.064, 469), (0.8, 0.01, 1_000)])
def test_opacus_own_epsilon_is_our_add_remove(setting):
    theirs = PRVAccountant()
    theirs.history = [setting]
    ours = accounting.epsilon_interval(history=[setting], delta=1e-5, adjacency="add_remove")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert theirs.get_epsilon(1e-5) == pytest.approx(ours.estimate, abs=0.03)
    assert np.isfinite(ours.upper)
