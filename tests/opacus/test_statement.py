import json
import math
import re
import warnings
from pathlib import Path

import jsonschema
import opacus.accountants
import pytest
import torch
from opacus.data_loader import DPDataLoader
from opacus.utils.batch_memory_manager import wrap_data_loader
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from dpsub import accounting
from dpsub.accounting.risks import Risk
from dpsub.accounting.statements import PrivacyStatement
from dpsub.opacus import audit_optimizer, privacy_statement
from dpsub.opacus.statement import sampling_of

pytestmark = pytest.mark.filterwarnings("default")  # Opacus warns about many things
NOT_POISSON = "sampling must be 'epochs' or 'without_replacement' for batches that are not Poisson's"


@pytest.fixture(scope="module")
def statement(steps):
    return privacy_statement(steps, delta=1e-5)


def test_the_statement_holds_all_three_epsilons(statement, steps):
    asked = {"history": steps, "delta": 1e-5}
    assert statement.add_remove == accounting.epsilon(**asked, adjacency="add_remove")
    assert statement.substitute == accounting.epsilon(**asked, adjacency="substitute")
    assert statement.group_privacy == accounting.group_privacy_epsilon(**asked)
    assert statement.add_remove < statement.substitute < statement.group_privacy


def test_the_statement_holds_what_an_attack_finds_at_one_percent_of_false_alarms(statement, steps):
    assert statement.found_members == 1 - accounting.tradeoff(0.01, history=steps, adjacency="add_remove")
    assert statement.found_contents == 1 - accounting.tradeoff(0.01, history=steps, adjacency="substitute")
    assert 0.01 < statement.found_members < statement.found_contents < 1


def test_a_statement_for_cut_batches_says_what_holds_for_them():
    steps, sampling = [(1.0, 0.01, 300)], "truncated_poisson:120:10000"
    statement = privacy_statement(steps, delta=1e-5, sampling=sampling)
    asked = {"history": steps, "delta": 1e-5, "sampling": sampling}
    for adjacency in ("add_remove", "zero_out", "substitute"):
        assert getattr(statement, adjacency) == accounting.epsilon(**asked, adjacency=adjacency)
    assert statement.add_remove < statement.zero_out
    assert statement.found_members == 1 - accounting.tradeoff(
        0.01, history=steps, adjacency="add_remove", sampling=sampling
    )
    words = " ".join(statement._repr_markdown_().split())
    assert "The numbers hold for Poisson sampling with batches that are cut to 120 of 10,000 records at most" in words
    assert f"with ε = {math.ceil(100 * statement.add_remove) / 100:.2f} (add/remove adjacency)" in words
    assert "From zero-out accounting alone, group privacy" in words


def test_a_statement_for_sums_divided_by_their_records_has_no_membership_but_a_bound():
    steps, sampling = [(1.0, 0.1, 10)], "poisson_mean:1000"
    statement = privacy_statement(steps, delta=1e-5, sampling=sampling)
    asked = {"history": steps, "delta": 1e-5, "adjacency": "substitute"}
    assert statement.add_remove is None
    assert statement.substitute == statement.zero_out == accounting.epsilon(**asked, sampling=sampling)
    assert statement.poisson == accounting.epsilon(**asked)
    words = " ".join(statement._repr_markdown_().split())
    assert "there is no ε: a removed record changes what the sum is divided by" in words
    assert "Most of this ε comes from how batches were drawn and averaged" in words


def test_the_statement_says_in_plain_words_what_an_attacker_with_a_prior_learns(statement, steps):
    asked = {"history": steps, "delta": 1e-5, "adjacency": "substitute"}
    assert statement.risk == accounting.risk(**asked)
    words = paragraphs(str(statement))["In"]
    assert "gives a label or another value of a record a probability of 50 % before seeing the model" in words
    right, sure = (float(one) / 100 for one in re.findall(r"at most ([\d.]+) %", words))
    assert statement.risk.accuracy <= right < statement.risk.accuracy + 1e-3
    assert statement.risk.posterior <= sure < 1
    assert "In all but at most one of 100,000 training runs" in words
    rare = privacy_statement(steps, delta=1e-2, prior=0.02)
    assert rare.risk == accounting.risk(**{**asked, "delta": 1e-2}, prior=0.02)
    assert "a probability of 2 % before" in str(rare).replace("\n", " ")
    assert "(98 % without the model)" in paragraphs(str(rare))["In"]
    assert "In all but at most one of 100 training runs" in str(rare).replace("\n", " ")


def paragraphs(text):
    """By their first word: the statement's, each in one line."""
    return {part.split()[0].strip(":"): part.replace("\n", " ") for part in text.split("\n\n")}


def epsilon_in(paragraph):
    return float(re.search(r"ε = ([\d.]+\d)", paragraph)[1])


def test_the_text_states_bounds_rounded_up(statement):
    text = str(statement)
    parts = paragraphs(text)
    for subject, value in (
        ("Membership", statement.add_remove),
        ("Labels", statement.substitute),
        ("State", statement.group_privacy),
    ):
        assert value <= epsilon_in(parts[subject]) <= value * 1.01 + 0.01
    assert "group privacy" in parts["State"]
    assert "30 steps at noise multiplier 1.1 and sample rate 0.1" in parts["This"]
    assert "hold only if batches were drawn by Poisson sampling, which was not checked: pass data" in parts["This"]
    assert "δ = 1e-05" in parts["This"]
    assert max(map(len, text.splitlines())) <= 100
    assert statement._repr_markdown_().replace("\n", " ") == text.replace("\n", " ")


@pytest.fixture(scope="module")
def of_epochs(trained):
    engine, *_, loader = trained(accountant="prv", noise_multiplier=1.0, poisson_sampling=False)
    return privacy_statement(engine, delta=1e-5, data_loader=loader)


def test_shuffled_batches_are_seen_in_the_loader(of_epochs):
    asked = {"noise_multiplier": 1.0, "sample_rate": 1, "steps": 2}
    assert (of_epochs.sampling, of_epochs.loader_seen, of_epochs.add_remove) == (accounting.Epochs(), True, None)
    assert of_epochs.substitute == pytest.approx(
        accounting.epsilon(**asked, delta=1e-5, adjacency="substitute"), rel=1e-9
    )
    assert of_epochs.zero_out == pytest.approx(accounting.epsilon(**asked, delta=1e-5, adjacency="zero_out"), rel=1e-9)
    assert of_epochs.found_contents == pytest.approx(1 - accounting.tradeoff(0.01, **asked, adjacency="substitute"))
    assert of_epochs.found_members == pytest.approx(1 - accounting.tradeoff(0.01, **asked, adjacency="zero_out"))


def test_the_text_for_epochs_states_zero_out_and_says_why(of_epochs):
    parts = paragraphs(str(of_epochs))
    assert "hold for batches that use each record once an epoch, shuffled or not, as its data loader" in parts["This"]
    assert "a removed record would shift the others between batches" in parts["Membership"]
    assert of_epochs.zero_out <= epsilon_in(parts["Membership"]) <= of_epochs.zero_out * 1.01
    assert "add/remove" not in parts["State"]


def test_the_text_for_poisson_says_what_membership_needs_and_contents_do_not(statement, of_epochs):
    parts = paragraphs(str(statement))
    needed = "holds only if the number of records is public, or if the sample rate and the expected batch size were"
    assert needed in parts["Membership"]
    assert needed not in parts["Labels"]
    assert "A replaced record leaves the number of records as it was." in parts["Labels"]
    assert "number of records" not in str(of_epochs)


def test_poisson_sampling_is_seen_in_the_loader(trained):
    engine, *_, loader = trained(epochs=1, noise_multiplier=1.3)
    seen = privacy_statement(engine, delta=1e-5, data_loader=loader)
    assert "hold for Poisson sampling, as its data loader shows" in paragraphs(str(seen))["This"]
    assert seen.substitute == privacy_statement(engine, delta=1e-5).substitute


def test_a_loader_that_contradicts_the_steps_or_the_sampling_is_refused(trained):
    engine, *_, loader = trained(noise_multiplier=1.0, poisson_sampling=False, accumulated=3)
    with pytest.raises(ValueError, match="data_loader must have batches that fill whole steps"):
        privacy_statement(engine, delta=1e-5, data_loader=loader)
    with pytest.raises(ValueError, match="sampling must be that of data_loader, 'epochs', got 'poisson': leave it out"):
        privacy_statement([(1.0, 0.1, 20)], delta=1e-5, data_loader=loader, sampling="poisson")


@pytest.mark.parametrize("asked", [None, "poisson"])
def test_what_the_accountant_has_seen_counts_without_a_loader(trained, asked):
    engine, *_ = trained(noise_multiplier=1.0, poisson_sampling=False)
    with pytest.raises(ValueError, match=NOT_POISSON):
        privacy_statement(engine, delta=1e-5, sampling=asked)
    assert privacy_statement(engine, delta=1e-5, sampling="epochs").sampling == accounting.Epochs()
    engine.accountant.sampling = "epochs"
    if asked is None:
        assert privacy_statement(engine, delta=1e-5).sampling == accounting.Epochs()


def test_a_loader_does_not_outweigh_what_the_accountant_has_seen(trained):
    engine, *_ = trained(noise_multiplier=1.0, poisson_sampling=False)
    *_, poisson = trained(noise_multiplier=1.0, epochs=0)
    with pytest.raises(ValueError, match=NOT_POISSON):
        privacy_statement(engine, delta=1e-5, data_loader=poisson)


def made_up(epsilon=1.0, history=((1.0, 0.1, 2),), accuracy=0.7, posterior=0.9):
    risk = Risk(accuracy, 0.4, 0.1, 0.9, posterior, (0.5, 0.5), 0.01, 1e-5)
    values = dict.fromkeys(("add_remove", "zero_out", "substitute", "poisson", "group_privacy"), epsilon)
    about = {"delta": 1e-5, "history": history, "sampling": accounting.Poisson(), "loader_seen": False}
    return PrivacyStatement(**values, found_members=0.0101, found_contents=0.2, risk=risk, **about)


@pytest.mark.parametrize("epsilon", [0.00123456, 0.999999, 1.0, 9.9999, 10.0, 99.95, 1234.5])
def test_no_epsilon_is_rounded_down(epsilon):
    parts = paragraphs(str(made_up(epsilon)))
    for subject in ("Membership", "Labels", "State"):
        assert epsilon <= epsilon_in(parts[subject]) <= epsilon * 1.011


@pytest.mark.parametrize(
    ("posterior", "told"),
    [
        (0.98765, "ends at most 98.8 % sure"),
        (0.99912, "ends at most 99.92 % sure"),
        (0.99999912, "ends at most 99.99992 % sure"),
        (1.0, "How sure the attacker becomes that the record has it is not limited."),
    ],
)
def test_beliefs_close_to_certainty_are_told_from_it(posterior, told):
    assert told in paragraphs(str(made_up(posterior=posterior)))["In"]
    assert "at most 70 % (50 % without the model)." in paragraphs(str(made_up()))["In"]


@pytest.fixture(scope="module")
def of_ten_steps():
    return privacy_statement([(1.3, 0.1, 10)], delta=1e-5)


@pytest.mark.parametrize(
    ("accountant", "told"),
    [
        ("rdp", "accountant 'rdp' reports ε = 2.04, a looser bound for the same adjacency"),
        ("prv", "accountant 'prv' reports ε = 1.7, the same but for numerical errors"),
        ("gdp", "accountant 'gdp' reports ε = 1.07, an approximation that can be too small"),
    ],
)
def test_another_epsilon_of_opacus_is_explained(accountant, told):
    accountant = opacus.accountants.create_accountant(accountant)
    accountant.history = [(1.3, 0.1, 10)]
    assert told in " ".join(str(privacy_statement(accountant, delta=1e-5)).split())
    if accountant.mechanism() == "rdp":
        shuffled = privacy_statement(accountant, delta=1e-5, sampling="epochs")
        assert "for Poisson batches alone" in " ".join(str(shuffled).split())


@pytest.mark.parametrize("accountant", ["prv_substitute", "prv", "rdp", "gdp"])
def test_engines_with_any_of_opacus_accountants_are_understood(trained, of_ten_steps, accountant):
    engine, *_ = trained(accountant=accountant, epochs=1, noise_multiplier=1.3)
    assert privacy_statement(engine, delta=1e-5) == of_ten_steps


@pytest.mark.parametrize(
    ("history", "message"),
    [
        ([], r" must be .*, got \[\]: no step has been taken yet"),
        ([(0.0, 0.1, 5)], r"\[0\]: noise_multiplier must be > 0, got 0"),
    ],
)
def test_what_is_no_history_is_refused(history, message):
    with pytest.raises(ValueError, match=f"^engine_or_history{message}"):
        privacy_statement(history, delta=1e-5)


ROOT = Path(__file__).parents[2]
DATA = TensorDataset(torch.zeros(60, 1))
TEN = {0.1}  # the sample rates of ten batches an epoch


def loader(sampler=None, **options):
    return DataLoader(DATA, batch_size=6, sampler=sampler, **options)


def poisson():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return DPDataLoader.from_data_loader(loader())


class Doubled(RandomSampler):
    """A sampler that looks like one of torch's and is not."""

    def __iter__(self):
        return iter([0] * len(self))


class Odd(Sampler):
    def __iter__(self):
        return iter([[0, 0]])


@pytest.mark.parametrize(
    "one",
    [
        loader(),
        loader(shuffle=True),
        DataLoader(DATA, batch_size=6, shuffle=True, drop_last=True),
        loader(SubsetRandomSampler(range(59, -1, -1))),
        loader(RandomSampler(DATA, num_samples=55)),
        DataLoader(DATA, batch_size=3, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)),
        wrap_data_loader(data_loader=loader(), max_batch_size=2, optimizer=None),
    ],
)
def test_loaders_that_use_each_record_once_an_epoch(one):
    assert sampling_of(one, TEN) == accounting.Epochs()


@pytest.mark.parametrize(
    "one",
    [poisson(), wrap_data_loader(data_loader=poisson(), max_batch_size=2, optimizer=None), [poisson(), poisson()]],
)
def test_loaders_of_poisson_sampling(one):
    assert sampling_of(one, TEN) == accounting.Poisson()


@pytest.mark.parametrize(
    ("one", "named"),
    [
        (loader(WeightedRandomSampler(torch.ones(60), 60)), "WeightedRandomSampler"),
        (loader(RandomSampler(DATA, replacement=True)), "RandomSampler"),
        (loader(SubsetRandomSampler([*range(30), *range(30)])), "SubsetRandomSampler"),
        (loader(Doubled(DATA)), "Doubled"),
        (loader(DistributedSampler(DATA, num_replicas=7, rank=0)), "DistributedSampler"),
        (DataLoader(DATA, batch_sampler=Odd()), "Odd"),
    ],
)
def test_other_loaders_are_refused_by_the_name_of_their_sampler(one, named):
    with pytest.raises(ValueError, match=f"data_loader must sample by Poisson .* got one with the sampler {named}"):
        sampling_of(one, TEN)


def one_batch(size=6):
    return DataLoader(DATA, batch_size=size, sampler=RandomSampler(DATA, num_samples=size))


def test_a_loader_of_one_batch_of_some_records_draws_without_replacement():
    assert sampling_of(one_batch(), TEN) == accounting.WithoutReplacement()
    with pytest.raises(ValueError, match=r"what the steps were trained on, with their sample rate 0.1, got 0.2: give"):
        sampling_of(one_batch(12), TEN)


def test_batches_of_fixed_size_are_stated_with_an_epsilon_of_their_own():
    history = [(1.0, 0.1, 50)]
    statement = privacy_statement(history, delta=1e-5, data_loader=one_batch())
    asked = {"history": history, "delta": 1e-5, "adjacency": "substitute"}
    assert statement.substitute == accounting.epsilon(**asked, sampling="without_replacement")
    assert statement.zero_out == statement.substitute
    assert (statement.add_remove, statement.group_privacy) == (None, None)
    assert statement.poisson == accounting.epsilon(**asked)
    parts = paragraphs(str(statement))
    assert "batches of fixed size that are drawn anew at each step, as its data loader shows" in parts["This"]
    assert epsilon_in(parts["Labels"]) >= statement.substitute


def test_a_shuffled_loader_is_told_what_poisson_batches_would_give():
    statement = privacy_statement([(1.0, 0.1, 50)], delta=1e-5, data_loader=loader(shuffle=True))
    assert statement.poisson < statement.substitute / 2
    said = paragraphs(str(statement))["Labels"]
    assert "Most of this ε comes from how batches were drawn" in said
    assert f"it would be {math.ceil(statement.poisson * 100) / 100:.2f} " in said


def test_steps_of_another_loader_are_refused():
    with pytest.raises(ValueError, match=r"with their sample rate 0.2, got 0.1: give all loaders"):
        sampling_of(poisson(), {0.1, 0.2})
    with pytest.raises(
        ValueError, match=r"batches that fill whole steps, with their sample rate 0.25, got .* 2.5 to a"
    ):
        sampling_of(loader(), {0.25})


def test_gradients_accumulated_within_epochs_are_covered_and_across_their_end_are_not():
    assert sampling_of(loader(), {0.2}) == accounting.Epochs()
    with pytest.raises(ValueError, match=r"10 batches an epoch, 3 to a step: .* may use a record twice"):
        sampling_of(loader(), {0.1 * 3})


def test_several_loaders_of_epochs_are_refused():
    with pytest.raises(ValueError, match="data_loader must be a single one unless all sample by Poisson"):
        sampling_of([loader(), poisson()], TEN)


def audited(trained, claim=None, epochs=6):
    """A training at noise multiplier 1, and its auditor, who tests another claim if there is one."""
    about = {"delta": 1e-5, "adjacency": "substitute", "canaries": 10, "noise_multiplier": claim}
    return trained("prv", epochs, noise_multiplier=1.0, audit=lambda optimizer: audit_optimizer(optimizer, **about))


def test_a_refuted_training_says_so_first(trained):
    *_, auditor, _ = audited(trained, claim=3.0)
    stated = privacy_statement([(3.0, 0.1, 60)], delta=1e-5, auditor=auditor)
    first, second, *_ = " ".join(str(stated).split(" \n")).split("\n\n")
    first, report = " ".join(first.split()), auditor.report()
    assert first.startswith("This training run is refuted: the numbers below are those that correct steps would have.")
    assert f"60 of the 60 steps: noise multiplier 3 is refuted at step {report.refuted_at} (95 % confidence" in first
    assert report.fault in first
    shown = float(re.search(r"steps is at least (\d+\.?\d*)\.", first)[1])
    assert 0.99 * report.training.epsilon < shown <= report.training.epsilon
    assert second.startswith("This model was trained")
    written = stated.to_dict()["audit"]
    assert (written["refuted"], written["epsilon_at_least"]) == (True, report.training.epsilon)
    assert written["faults"] == [report.fault]


def test_a_training_that_is_consistent_says_so_last(trained):
    engine, _, _, auditor, loader = audited(trained)
    stated = privacy_statement(engine, delta=1e-5, data_loader=loader, auditor=auditor)
    last = " ".join(str(stated).split("\n\n")[-1].split())
    assert last.startswith("An audit of 60 of the 60 steps: noise multiplier 1 is consistent so far (95 % confidence")
    assert stated.substitute == privacy_statement(engine, delta=1e-5).substitute
    schema = Path(accounting.__file__).with_name("privacy_statement.schema.json")
    jsonschema.validate(stated.to_dict(), json.loads(schema.read_text()))
    json.dumps(stated.to_dict(), allow_nan=False)


def test_the_auditor_of_another_training_is_refused(trained):
    *_, auditor, _ = audited(trained, epochs=1)
    for history in ([(1.0, 0.1, 9)], [(0.8, 0.1, 10)]):
        with pytest.raises(ValueError, match=r"auditor must be of the training that is stated, .* got one of 10 steps"):
            privacy_statement(history, delta=1e-5, auditor=auditor)


def test_opacus_epsilon_of_one_training_is_not_shown_for_several(trained):
    engine, *_ = trained(accountant="rdp", epochs=1, noise_multiplier=1.3)
    assert "Opacus's accountant" in " ".join(str(privacy_statement(engine, delta=1e-5)).split())
    assert "Opacus's accountant" not in " ".join(str(privacy_statement(engine, delta=1e-5, trials=2)).split())
