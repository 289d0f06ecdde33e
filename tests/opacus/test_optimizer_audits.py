"""The audit of an optimizer, as its users see it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import xarray as xr
from opacus.optimizers import DPOptimizer, FSDPOptimizerFastGradientClipping
from scipy.stats import binom

from dpsub import accounting, bound
from dpsub.estimators import epsilon_lower_bound
from dpsub.opacus import SubstitutePRVAccountant, audit_optimizer

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning", "ignore:Secure RNG:UserWarning")
NOT_POISSON = "sampling must be 'epochs' or 'without_replacement' for batches that are not Poisson's"

ADJACENCIES = ("substitute", "add_remove", "zero_out")
CLAIM = {"delta": 1e-5, "adjacency": "substitute", "sample_rate": 0.1}


def optimizer_of(size=400, kind=DPOptimizer, noise_multiplier=1.0, seed=0, base=torch.optim.SGD, **options):
    weights = torch.nn.Parameter(torch.zeros(size))
    options = {"max_grad_norm": 1.0, "expected_batch_size": 4, **options}
    generator = torch.Generator().manual_seed(seed)
    return kind(base([weights], 0.1), noise_multiplier=noise_multiplier, generator=generator, **options)


def train(optimizer, steps, gradient=0.01, until=None):
    """Steps on records with random gradients."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(steps):
        for parameter in optimizer.params:
            parameter.grad_sample = gradient * torch.randn(4, *parameter.shape, generator=generator)
        optimizer.step()
        optimizer.zero_grad()
        if until is not None and until.refuted:
            break


def audited(steps, *, until=False, audit=None, **options):
    """The audit of so many steps of an optimizer, which ends at its refutation if `until`."""
    optimizer = optimizer_of(**options)
    auditor = audit_optimizer(optimizer, **CLAIM | (audit or {}))
    train(optimizer, steps, until=auditor if until else None)
    return optimizer, auditor


def words(of):
    return " ".join(str(of).split())


class HalfTheNoise(DPOptimizer):
    def add_noise(self):
        whole, self.noise_multiplier = self.noise_multiplier, self.noise_multiplier / 2
        super().add_noise()
        self.noise_multiplier = whole


class NoClipping(DPOptimizer):
    def clip_and_accumulate(self):
        for parameter in self.params:
            parameter.summed_grad = parameter.grad_sample.sum(dim=0)


class Normalised(DPOptimizer):
    """Scales each record's gradient to the norm C, as automatic clipping does: private, and not the usual clipping."""

    def clip_and_accumulate(self):
        [parameter] = self.params
        factors = self.max_grad_norm / parameter.grad_sample.norm(dim=1, keepdim=True)
        parameter.summed_grad = (factors * parameter.grad_sample).sum(dim=0)


class NoiseInAllButTheLast(DPOptimizer):
    def add_noise(self):
        super().add_noise()
        last = self.params[-1]
        last.grad = last.summed_grad.clone()


class WholeNormForEachLayer(DPOptimizer):
    def clip_and_accumulate(self):
        for parameter in self.params:
            norms = parameter.grad_sample.flatten(1).norm(dim=1)
            parameter.summed_grad = torch.einsum("i,i...", (1 / (norms + 1e-6)).clamp(max=1), parameter.grad_sample)


def several(kind, sizes=(60, 5, 30, 5)):
    """An optimizer with several parameters."""
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    return kind(
        torch.optim.SGD(parameters, 0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip


def trained_alike(kind, seed, reseeded, steps=40):
    """The report of steps on records whose gradients have a direction in common, as those of a training have."""
    optimizer = optimizer_of(kind=kind, seed=seed, expected_batch_size=64)
    auditor = audit_optimizer(optimizer, seed=seed, alpha=0.01, **CLAIM)
    records = torch.Generator().manual_seed(1_000 + seed)
    common, [weights] = torch.randn(400, generator=records), optimizer.params
    for step in range(steps):
        if reseeded and step % 10 == 0:
            optimizer.generator.manual_seed(seed)
        weights.grad_sample = 0.02 * (common + torch.randn(64, 400, generator=records))
        optimizer.step()
        optimizer.zero_grad()
    return auditor.report()


@pytest.mark.parametrize("kind", [DPOptimizer, Normalised])
def test_noise_that_repeats_is_told_from_other_clipping(kind):
    for seed in range(2):
        report = trained_alike(kind, seed, reseeded=False)
        assert (report.fault, report.refuted) == (None, False)
        assert (report.clipping is None) == (kind is DPOptimizer)
        report = trained_alike(kind, seed, reseeded=True)
        assert (report.fault, report.clipping) == ("the noise of step 11 repeats that of step 1", None)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("fault", [HalfTheNoise, NoClipping])
def test_gross_faults_are_refuted(fault, adjacency):
    _, auditor = audited(400, until=True, kind=fault, audit={"adjacency": adjacency})
    report = auditor.report()
    assert report.refuted
    assert report.refuted_at == auditor.steps == report.observations
    assert report.verdict == f"refuted at step {report.refuted_at}"


def test_faults_are_found_whichever_optimizer_takes_the_steps():
    for kind in (DPOptimizer, HalfTheNoise, NoClipping):
        _, auditor = audited(150, until=True, kind=kind, base=torch.optim.Adam)
        assert auditor.refuted == (kind is not DPOptimizer)


def test_a_canary_within_the_bound_does_not_find_missing_clipping():
    _, auditor = audited(200, kind=NoClipping, audit={"canary_norm": 0.5})
    assert not auditor.refuted
    assert abs(np.abs(auditor.observations().score).mean() - math.sqrt(2 / math.pi)) < 0.3


@pytest.mark.parametrize("kind", [NoiseInAllButTheLast, WholeNormForEachLayer, DPOptimizer])
def test_a_dirac_in_each_parameter_finds_what_one_parameter_hides(kind):
    optimizer = several(kind)
    auditor = audit_optimizer(optimizer, canary="diracs", **CLAIM)
    train(optimizer, 150 if kind is DPOptimizer else 1_000, until=auditor)
    assert auditor.refuted == (kind is not DPOptimizer)


@pytest.mark.parametrize("canary", ["dirac", "diracs", "constant", "random", "own"])
def test_correct_trainings_are_consistent(canary):
    optimizer = several(DPOptimizer)
    if canary == "own":
        canary = [torch.linspace(-1, 1, one.numel()) for one in optimizer.params]
    auditor = audit_optimizer(optimizer, canary=canary, **CLAIM)
    train(optimizer, 70)
    report = auditor.report()
    assert (report.refuted, report.refuted_at, report.verdict) == (False, None, "consistent so far")
    assert report.step.mu <= report.claimed_step == 2.0
    assert report.epsilon <= report.claimed


@pytest.mark.slow
def test_correct_trainings_are_refuted_in_at_most_alpha_of_audits():
    kinds = [(canary, False) for canary in ("dirac", "diracs", "constant", "random")]
    kinds += [("dirac", True), ("random", True)]
    audits = [(*kind, adjacency, seed) for kind in kinds for adjacency in ADJACENCIES for seed in range(20)]
    refuted = 0
    for canary, anew, adjacency, seed in audits:
        optimizer = several(DPOptimizer)
        optimizer.generator.manual_seed(seed)
        auditor = audit_optimizer(optimizer, delta=1e-5, adjacency=adjacency, canary=canary, anew=anew, seed=seed)
        train(optimizer, 300, until=auditor)
        refuted += auditor.refuted
    assert len(audits) == 360
    assert refuted <= binom.ppf(0.999, len(audits), 0.05)


def test_observations_are_a_dataset_that_estimators_take():
    asked = {"canary_norm": 3.0, "seed": 5, "noise_multiplier": 0.9}
    _, auditor = audited(120, noise_multiplier=0.5, audit=asked)
    seen = auditor.observations()
    assert dict(seen.sizes) == {"observation": 120}
    assert (seen.score.dtype, seen.bit.dtype) == (np.float32, np.int8)
    about = {"canary": "dirac", "adjacency": "substitute", **asked}
    assert {name: seen.attrs[name] for name in about} == about
    bound = epsilon_lower_bound(seen.score, seen.bit, delta=1e-5, rule="bets")
    assert bound.mu == pytest.approx(auditor.report().step.mu)
    _, other = audited(120, noise_multiplier=0.5, audit=asked)
    assert other.observations().identical(seen)


def test_joined_observations_of_two_trainings_are_not_one_training():
    """100 steps each: taken for one training of 200 they would show a larger ε than either has."""
    seen = [audited(100, audit={"seed": seed})[1].observations() for seed in (0, 1)]
    assert bound(seen[0], delta=1e-5).of == "training"
    with pytest.raises(ValueError, match="got 200 rows along 'observation' where its attributes speak of 100"):
        bound(xr.concat(seen, "observation"), delta=1e-5)


def test_each_step_is_judged_by_its_own_claim():
    optimizer = optimizer_of()
    auditor = audit_optimizer(optimizer, **CLAIM)
    for sigma in (1.0, 0.4, 2.0, 0.4):
        optimizer.noise_multiplier = sigma
        train(optimizer, 60)
    report = auditor.report()
    assert not report.refuted
    assert (report.noise_multiplier, report.claimed_step) == (0.4, 5.0)
    assert not report.training.valid
    assert "the claimed noise changed" in report.training.note
    history = [(1.0, 0.1, 60), (0.4, 0.1, 120), (2.0, 0.1, 60)]
    assert report.claimed == pytest.approx(accounting.epsilon(history=history, delta=1e-5, adjacency="substitute"))


def test_below_a_canary_rate_of_1_the_claim_is_that_of_subsampling():
    _, auditor = audited(500, kind=HalfTheNoise, noise_multiplier=0.8, audit={"canary_rate": 0.5})
    assert auditor._bettor.refuted_at is not None
    absent = np.abs(auditor.observations().score) < 0.6
    assert 0.25 < absent.mean() < 0.75
    _, auditor = audited(100, noise_multiplier=0.4, audit={"canary_rate": 0.5})
    assert not auditor.refuted


@pytest.mark.slow
def test_below_a_canary_rate_of_1_bounds_are_about_the_noise():
    _, auditor = audited(1_000, kind=HalfTheNoise, noise_multiplier=0.8, audit={"canary_rate": 0.5})
    report = auditor.report()
    assert (report.step.claim, report.training.claim) == ("pld", "pld")
    assert 0.4 < report.step.noise_multiplier < 0.8
    assert report.claimed_step == 2 / 0.8


def test_the_bound_does_not_exceed_a_claim_that_is_not_refuted():
    _, auditor = audited(600, kind=HalfTheNoise)
    assert auditor.report().step.mu > 2
    auditor._bettor.refuted_at = auditor._noise.found_at = None  # as if its bets had been slower
    lowered = auditor.report()
    assert (lowered.step.mu, lowered.step.note) == (2.0, "lowered to the claim, which is not refuted")
    assert lowered.epsilon <= lowered.claimed


def test_a_callback_sees_every_step_and_may_end_the_training():
    class Refuted(Exception):
        pass

    seen = []

    def stop(auditor):
        seen.append(auditor.steps)
        if auditor.refuted:
            raise Refuted

    optimizer = optimizer_of(kind=HalfTheNoise)
    auditor = audit_optimizer(optimizer, callback=stop, **CLAIM)
    with pytest.raises(Refuted):
        train(optimizer, 400)
    assert seen == list(range(1, auditor.refuted_at + 1))


def test_the_report_says_the_verdict_first_and_then_why_its_bounds_lag():
    _, auditor = audited(80, noise_multiplier=0.7, audit={"noise_multiplier": 1.0})
    told = words(auditor.report())
    assert max(map(len, str(auditor.report()).splitlines())) <= 76
    refuted = f"The claim of noise multiplier 1 is refuted at step {auditor.refuted_at}"
    places = [told.find(part) for part in (refuted, "The bounds bet on all claims at once", "where 1 is claimed")]
    assert -1 < places[0] < places[1] < places[2]


def test_too_few_observations_say_how_many_it_takes():
    report = audited(10)[1].report()
    told = words(report)
    assert (report.epsilon, report.refuted) == (0, False)
    assert "bets need more than 64 observations" in report.step.note
    assert "There are no bounds yet: they need 55 more steps, or more canaries in each step (canaries=10)." in told
    assert (
        f"Bets that guess every coin right would refute this claim after {report.fewest} steps, and not before." in told
    )


@pytest.mark.parametrize(("kind", "note"), [("ghost", "clipping was not audited"), ("adaptive", "the noisy count")])
def test_what_is_not_audited_is_said(private, kind, note):
    trained = private(kind)
    auditor = audit_optimizer(trained.optimizer, **CLAIM)
    trained.step()
    assert note in words(auditor.report())


def test_what_cannot_be_audited_is_named():
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3))], 0.1)
    with pytest.raises(ValueError, match="optimizer must be Opacus's DPOptimizer.*got SGD: make it private first"):
        audit_optimizer(plain, **CLAIM)
    optimizer = optimizer_of()
    auditor = audit_optimizer(optimizer, **CLAIM)
    with pytest.raises(ValueError, match=r"must not be under audit already.*call remove\(\)"):
        audit_optimizer(optimizer, **CLAIM)
    with pytest.raises(ValueError, match=r"report\(\) must come after a step of the optimizer, got none so far"):
        auditor.report()


def test_claims_of_no_noise_are_refused():
    silent = optimizer_of(noise_multiplier=0.0)
    with pytest.raises(ValueError, match=r"optimizer.noise_multiplier must be > 0, got 0.0: its ε is infinite"):
        audit_optimizer(silent, **CLAIM)
    auditor = audit_optimizer(silent, noise_multiplier=1.0, **CLAIM)
    train(silent, 100, until=auditor)
    assert auditor.refuted
    optimizer, _ = audited(3)
    optimizer.noise_multiplier = 0.0
    with pytest.raises(ValueError, match="optimizer.noise_multiplier must be > 0, got 0.0"):
        train(optimizer, 1)


def test_ghost_clipping_is_audited_behind_its_clipping(private):
    trained = private("ghost", noise_multiplier=0.3)
    auditor = audit_optimizer(trained.optimizer, noise_multiplier=1.5, **CLAIM)
    for _ in range(300):
        trained.step()
        if auditor.refuted:
            break
    assert auditor.refuted


def test_without_a_sample_rate_a_step_is_bounded_and_the_training_is_not():
    report = audited(200, kind=HalfTheNoise, audit={"sample_rate": None})[1].report()
    assert report.refuted
    assert report.step.epsilon > 0
    assert (report.training, report.claimed, report.sample_rate) == (None, None, None)
    assert "The ε of the training needs a sample rate: give audit_optimizer sample_rate" in words(report)
    with pytest.raises(ValueError, match="epsilon is that of a training, got no sample rate: give audit_optimizer"):
        _ = report.epsilon


@pytest.fixture
def rated(trained):
    """Two epochs of ten batches under audit: the auditor and the accountant."""

    def make(poisson=True, accumulated=1, adjacency="substitute", **asked):
        engine, *_, auditor, _ = trained(
            noise_multiplier=2.0, poisson_sampling=poisson, accumulated=accumulated,
            audit=lambda optimizer: audit_optimizer(optimizer, delta=1e-5, adjacency=adjacency, **asked),
        )  # fmt: skip
        return auditor, engine.accountant

    return make


def test_a_rate_that_changes_is_that_of_each_step():
    accountant, optimizer = SubstitutePRVAccountant(), optimizer_of(noise_multiplier=2.0)
    auditor = audit_optimizer(optimizer, delta=1e-5, adjacency="substitute")
    for rate in (0.1, 0.2):
        optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(rate))
        train(optimizer, 10)
    assert accountant.history == [(2.0, 0.1, 10), (2.0, 0.2, 10)]
    assert auditor.report().claimed == accountant.get_epsilon(1e-5)
    assert auditor.report().sample_rate == 0.1


def test_a_hook_that_is_no_accountants_says_nothing_of_sample_rates():
    class Trainer:
        history = (0.5, 0.4)

        def hook(self, sample_rate):
            return lambda optimizer: (self, sample_rate)

    optimizer = optimizer_of()
    optimizer.attach_step_hook(Trainer().hook(sample_rate=3.0))
    auditor = audit_optimizer(optimizer, **CLAIM | {"sample_rate": None})
    train(optimizer, 3)
    assert (auditor.report().sample_rate, auditor.report().unseen) == (None, 0)


def test_steps_that_nobody_saw_are_said(rated):
    auditor, accountant = rated()
    assert "Not observed" not in str(auditor.report())
    accountant.history = [(2.0, 0.1, 60), *accountant.history]  # as that of a checkpoint is
    told = words(auditor.report())
    assert "Not observed: 60 of the 80 steps in the accountant's history. No number here is about them." in told
    assert auditor.report().unseen == 60


@pytest.mark.parametrize("asked", [{}, {"sample_rate": 0.1}])
def test_accumulated_batches_add_up(rated, asked):
    auditor, accountant = rated(poisson=False, accumulated=2, **asked)
    accountant.sampling = "epochs"
    assert auditor.report().claimed == accountant.get_epsilon(1e-5)
    auditor, _ = rated(poisson=False, accumulated=20, **asked)
    auditor._optimizer.step_hook = None
    with pytest.raises(ValueError, match="sample_rate must be > 0 and <= 1, got 2"):
        auditor.report()


def test_batches_of_epochs_are_claimed_as_the_accountant_does(rated):
    auditor, accountant = rated(poisson=False)
    with pytest.raises(ValueError, match=NOT_POISSON):
        auditor.report()
    accountant.sampling = "epochs"
    assert auditor.report().claimed == accountant.get_epsilon(1e-5)
    of_step = replace(auditor.report().step, mu=4.0, epsilon=30.0)
    assert auditor._training_bound(of_step, 0.1).epsilon == pytest.approx(
        accounting.gdp_epsilon(4.0 * math.sqrt(2), 1e-5)
    )
    auditor, accountant = rated(poisson=False, adjacency="add_remove")
    accountant.sampling = "epochs"
    with pytest.raises(ValueError, match="adjacency must be 'substitute' or 'zero_out' with sampling='epochs'"):
        auditor.report()


def test_optimizers_of_parts_of_gradients_are_refused(monkeypatch):
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    monkeypatch.setattr("torch.distributed.get_world_size", lambda: 1)
    with pytest.raises(
        ValueError, match="sum its processes' gradients when it steps, .* got FSDPOptimizerFastGradient"
    ):
        audit_optimizer(optimizer_of(kind=FSDPOptimizerFastGradientClipping), **CLAIM)
