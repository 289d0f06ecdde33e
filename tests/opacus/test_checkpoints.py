"""Audits of interrupted trainings: what a state carries over, and what is found in another process."""

import io
import multiprocessing
import warnings

import pytest
import torch
from cases import slow_but
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from dpsub.opacus import SubstitutePRVAccountant, audit_optimizer

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning", "ignore:Secure RNG:UserWarning")
CLAIM = {"delta": 1e-5, "adjacency": "substitute", "sample_rate": 0.1}


def from_file(state):
    """What comes back from a file that holds no pickled classes."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def checkpoint(one):
    """All that a training on random records depends on."""
    optimizer = one.optimizer
    return {
        "model": one.model.state_dict(), "optimizer": optimizer.state_dict(), "bound": optimizer.max_grad_norm,
        "noise": optimizer.generator.get_state(), "data": one.data.get_state(),
    }  # fmt: skip


def go_on(one, state):
    one.model.load_state_dict(state["model"])
    one.optimizer.load_state_dict(state["optimizer"])
    one.optimizer.max_grad_norm = state["bound"]
    one.optimizer.generator.set_state(state["noise"])
    one.data.set_state(state["data"])


def in_parts(one):
    """A step on two physical batches."""
    for skipped in (True, False):
        one.optimizer.signal_skip_step(skipped)
        one.backward()
        one.optimizer.step()
        one.optimizer.zero_grad()


AUDITED = [
    ("ghost", {"adjacency": "zero_out"}),
    ("adaptive", {"canary": "random", "anew": True, "noise_multiplier": 1.5}),
    ("flat", {"canaries": 10}),
    ("flat", {"canary": "diracs", "anew": True, "adjacency": "add_remove"}),
    ("flat", {"canary": "random", "canary_rate": 0.5}),
    ("per_layer", {"anew": True}),
]


@pytest.mark.parametrize(("kind", "asked"), slow_but(AUDITED, *AUDITED[:2]))
def test_an_interrupted_audit_reports_what_it_would_have_reported(private, kind, asked):
    def audited():
        one = private(kind)
        return one, audit_optimizer(one.optimizer, **CLAIM | asked)

    (whole, uninterrupted), (first, before) = audited(), audited()
    for _ in range(70):
        in_parts(whole)
    for _ in range(35):
        in_parts(first)
    kept = from_file({"training": checkpoint(first), "auditor": before.state_dict()})
    second, resumed = audited()
    go_on(second, kept["training"])
    resumed.load_state_dict(kept["auditor"])
    assert resumed._bettor.log_wealth == before._bettor.log_wealth
    for _ in range(35):
        in_parts(second)
    assert all(torch.equal(*both) for both in zip(whole.parameters, second.parameters, strict=True))
    assert resumed.observations().identical(uninterrupted.observations())
    assert resumed.report() == uninterrupted.report()
    assert before.steps == 35  # and what it returned is a copy


def an_epoch(path=None, *, auditors=True, seeds=(0,), kept=None):
    """A process of a training: an epoch of 20 steps for each seed of the noise, from the checkpoint at a path if there
    is one, of which it leaves another. `auditors` is whether the checkpoint is the auditor's, too."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    records = TensorDataset(torch.randn(120, 20), torch.randint(2, (120,)))
    generator, engine = torch.Generator().manual_seed(seeds[0]), PrivacyEngine(accountant="prv_substitute")
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=torch.optim.Adam(model.parameters(), 0.01), data_loader=DataLoader(records, 6),
        noise_multiplier=1.0, max_grad_norm=1.0, noise_generator=generator,
    )  # fmt: skip
    auditor = audit_optimizer(optimizer, delta=1e-5, adjacency="substitute")
    if path is not None and path.exists():
        loaded = engine.load_checkpoint(path=path, module=model, optimizer=optimizer)
        if auditors:
            auditor.load_state_dict(loaded["auditor"])
    for seed in seeds:
        generator.manual_seed(seed)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    if path is not None:
        engine.save_checkpoint(
            path=path, module=model, optimizer=optimizer, checkpoint_dict={"auditor": auditor.state_dict()}
        )
    report = auditor.report()
    if kept is not None:
        kept.put((report.refuted_at, report.fault))
    return report


FOUND = 21, "the noise of step 21 repeats that of step 1"


def test_a_seed_that_repeats_in_the_next_process_is_found_as_soon_as_in_one(tmp_path):
    whole = an_epoch(seeds=(0, 0))
    assert not an_epoch(tmp_path / "resumed").refuted
    resumed = an_epoch(tmp_path / "resumed")
    assert (whole.refuted_at, whole.fault) == (resumed.refuted_at, resumed.fault) == FOUND
    assert (resumed.observations, resumed.unseen, resumed.uncounted) == (40, 0, 0)


def test_a_new_seed_in_the_next_process_is_consistent_and_epsilon_is_of_both(tmp_path):
    whole = an_epoch(seeds=(0, 1))
    an_epoch(tmp_path / "resumed")
    resumed = an_epoch(tmp_path / "resumed", seeds=(1,))
    assert (whole.refuted, resumed.refuted, resumed.fault) == (False, False, None)
    assert resumed.claimed == whole.claimed


def test_without_its_state_a_report_says_what_was_not_observed(tmp_path):
    an_epoch(tmp_path / "resumed")
    report = an_epoch(tmp_path / "resumed", auditors=False)
    assert (report.observations, report.unseen, report.refuted) == (20, 20, False)
    assert "Not observed: 20 of the 40 steps in the accountant's history." in " ".join(str(report).split())


@pytest.mark.slow
def test_a_seed_that_repeats_is_found_from_process_to_process(tmp_path):
    spawned = multiprocessing.get_context("spawn")
    found = spawned.Queue()
    for _ in range(2):
        process = spawned.Process(target=an_epoch, args=(tmp_path / "resumed",), kwargs={"kept": found})
        process.start()
        process.join()
    assert [found.get(), found.get()] == [(None, None), FOUND]


def test_an_accountant_without_the_earlier_steps_is_said(private):
    first, second = private(), private()
    asked = {"delta": 1e-5, "adjacency": "substitute"}
    engine = PrivacyEngine(accountant="prv_substitute")
    first.optimizer.attach_step_hook(engine.accountant.get_optimizer_hook_fn(0.1))
    second.optimizer.attach_step_hook(PrivacyEngine(accountant="rdp").accountant.get_optimizer_hook_fn(0.1))
    before, resumed = audit_optimizer(first.optimizer, **asked), audit_optimizer(second.optimizer, **asked)
    for _ in range(3):
        first.step()
    resumed.load_state_dict(before.state_dict())
    second.step()
    report = resumed.report()
    assert (report.observations, report.unseen, report.uncounted) == (4, 0, 3)
    assert "3 of the 4 steps observed are not in the accountant's history, so its ε is too small" in " ".join(
        str(report).split()
    )


def test_a_phase_with_other_noise_is_claimed_as_the_accountant_does_and_its_noise_is_compared(private):
    accountants, audits = [SubstitutePRVAccountant() for _ in range(2)], []
    for phase, (rate, sigma) in enumerate([(0.1, 1.0), (0.2, 2.0)]):
        one = private(noise_multiplier=sigma)  # whose noise has the same seed in both phases
        one.optimizer.attach_step_hook(accountants[phase].get_optimizer_hook_fn(rate))
        audits.append(audit_optimizer(one.optimizer, delta=1e-5, adjacency="substitute"))
        if phase:
            accountants[1].load_state_dict(accountants[0].state_dict())
            audits[1].load_state_dict(audits[0].state_dict())
        for size in (5, 9, 12):
            one.step(size)
    report = audits[1].report()
    assert report.claimed == accountants[1].get_epsilon(1e-5)
    assert report.fault == "the noise of step 4 repeats that of step 1"


@pytest.mark.parametrize(
    ("asked", "kind", "told"),
    [
        ({"delta": 1e-6}, "flat", "delta, 1e-06, got 1e-05"),
        ({"adjacency": "zero_out"}, "flat", "adjacency, 'zero_out', got 'substitute'"),
        ({"canary": "diracs"}, "flat", "canary, 'diracs', got 'dirac'"),
        ({"noise_multiplier": 2.0}, "flat", "noise_multiplier, 2.0, got None"),
        ({"sample_rate": 0.2}, "flat", "sample_rate, 0.2, got 0.1"),
        ({}, "ghost", "clipping, 'ghost', got 'flat'"),
        ({}, "per_layer", r"clipping, \[0.5, 0.5, 0.5, 0.5\], got 'flat'"),
    ],
)
def test_a_state_of_another_audit_is_refused_by_name(private, asked, kind, told):
    first = private()
    before = audit_optimizer(first.optimizer, **CLAIM)
    first.step()
    resumed = audit_optimizer(private(kind).optimizer, **CLAIM | asked)
    with pytest.raises(ValueError, match=f"state must be of an audit with the same {told}: give audit_optimizer the"):
        resumed.load_state_dict(from_file(before.state_dict()))


def test_a_state_of_another_model_is_refused_and_a_step_too_late(private):
    one = private()
    auditor = audit_optimizer(one.optimizer, **CLAIM)
    state = auditor.state_dict()
    auditor.load_state_dict(state)  # of no steps
    with pytest.raises(ValueError, match="same number of parameters, 4, got None"):
        auditor.load_state_dict({"auditor": state})
    state["audit"]["shape of parameter 2"] = (3, 9)
    with pytest.raises(ValueError, match=r"same shape of parameter 2, \(3, 8\), got \(3, 9\)"):
        auditor.load_state_dict(state)
    one.step()
    with pytest.raises(ValueError, match="load_state_dict.. must come before the first step, got an audit of 1 steps"):
        auditor.load_state_dict(auditor.state_dict())
