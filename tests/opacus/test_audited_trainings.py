"""Trainings with Opacus under audit, beside the same ones without: the models, and what is claimed of them."""

from functools import partial

import pytest
import torch
from cases import slow_but
from opacus import schedulers
from opacus.optimizers import DPOptimizer
from scipy.stats import binom

from dpsub import accounting
from dpsub.opacus import audit_optimizer

pytestmark = pytest.mark.filterwarnings("ignore")  # torch and Opacus warn about many things

DELTA = 1e-5
OPTIMIZERS = {
    "momentum": partial(torch.optim.SGD, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": torch.optim.Adam,
    "groups": lambda parameters, lr: torch.optim.SGD(
        [{"params": [p], "lr": lr * (i + 1)} for i, p in enumerate(parameters)]
    ),
}
SCHEDULES = {
    "exponential": lambda optimizer: [schedulers.ExponentialNoise(optimizer, gamma=0.98)],
    "lambda": lambda optimizer: [schedulers.LambdaNoise(optimizer, noise_lambda=lambda step: 1 + step % 3 / 10)],
    "step": lambda optimizer: [schedulers.StepNoise(optimizer, step_size=5, gamma=0.9)],
    "clip exponential": lambda optimizer: [schedulers.ExponentialGradClip(optimizer, gamma=1.02)],
    "clip lambda": lambda optimizer: [
        schedulers.LambdaGradClip(optimizer, scheduler_function=lambda step: 1 + step % 3 / 10)
    ],
    "clip step": lambda optimizer: [schedulers.StepGradClip(optimizer, step_size=5, gamma=0.9)],
    "both and learning rate": lambda optimizer: [
        schedulers.ExponentialNoise(optimizer, gamma=1.01),
        schedulers.ExponentialGradClip(optimizer, gamma=0.99),
        torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9),
    ],
}  # fmt: skip


@pytest.fixture
def train(trained):
    """Trains for an epoch with an optimizer and a schedule of these names."""

    def make(audit=lambda _: None, **setting):
        named = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES}
        found = {name: named[name][value] if name in named else value for name, value in setting.items()}
        return trained(**{"accountant": "prv", "epochs": 1, "audit": audit, "noise_multiplier": 2.0} | found)

    return make


def audited(adjacency="add_remove", **options):
    return lambda optimizer: audit_optimizer(optimizer, delta=DELTA, adjacency=adjacency, **options)


SETTINGS = [
    *({"optimizer": name, "most": 5} for name in OPTIMIZERS),
    *({"schedule": schedule, "most": most} for schedule in SCHEDULES for most in (None, 5)),
    {"schedule": "step", "most": 5, "poisson_sampling": False},
    {"schedule": "exponential", "most": 5, "first": True},
    {"schedule": "clip exponential", "most": 5, "first": True},
    {"poisson_sampling": False},
    {"poisson_sampling": False, "accumulated": 2},
    {"poisson_sampling": False, "accumulated": 2, "schedule": "exponential", "optimizer": "adam"},
    {"clipping": "per_layer", "schedule": "exponential", "most": 5},
    {"clipping": "ghost", "schedule": "exponential"},
    {"clipping": "ghost", "schedule": "exponential", "most": 5},
    {"secure": True, "schedule": "exponential", "most": 5},
]


# Each kind of schedule, sampling and clipping, and each optimizer, are in the default run.
OFTEN = [*SETTINGS[:3:2], *SETTINGS[4:17:4], *SETTINGS[18:23:4], *SETTINGS[-5:-3], *SETTINGS[-2:]]


@pytest.mark.parametrize(
    "setting", slow_but(SETTINGS, *OFTEN), ids=[" ".join(map(str, setting.values())) for setting in SETTINGS]
)
def test_a_training_under_audit_is_the_same_and_its_noise_is_what_opacus_accounts(train, setting):
    under_audit, plain = train(audited(canary="diracs"), **setting), train(**setting)
    for mine, theirs in zip(plain.model.parameters(), under_audit.model.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine, atol=2e-5, rtol=1e-4)
    accounted = [sigma for sigma, _, steps in under_audit.engine.accountant.history for _ in range(steps)]
    assert under_audit.auditor.observations().noise_multiplier.values.tolist() == accounted


@pytest.mark.parametrize(
    "setting",
    [
        {"schedule": "step", "most": 5},
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ({"poisson_sampling": False, "accumulated": 2}, {"clipping": "ghost"})
        ),
    ],
)
def test_what_is_claimed_is_what_opacus_accounts(train, setting):
    engine, *_, auditor, _ = train(audited(), **setting)
    claimed = auditor.report().claimed
    mine = accounting.epsilon(history=engine.accountant.history, delta=DELTA, adjacency="add_remove")
    assert claimed == pytest.approx(mine, rel=1e-9)
    assert claimed == pytest.approx(engine.get_epsilon(DELTA), abs=0.02)


@pytest.mark.parametrize(("clipping", "epochs"), [("flat", 8), pytest.param("per_layer", 40, marks=pytest.mark.slow)])
def test_half_the_noise_is_refuted(train, clipping, epochs):
    found = train(audited("substitute", noise_multiplier=1.0), clipping=clipping, noise_multiplier=0.5, epochs=epochs)
    assert found.auditor.refuted
    assert found.auditor.report().sample_rate == pytest.approx(0.1)
    assert found.auditor.steps == 10 * epochs


def in_parts(schedule, seed, steps, adjacency="substitute", optimizer=DPOptimizer):
    """Steps of three physical batches each, between which a scheduler changes the optimizer."""
    weights = torch.nn.Parameter(torch.zeros(400))
    optimizer = optimizer(
        torch.optim.SGD([weights], 0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    scheduler = schedule(optimizer)
    auditor = audit_optimizer(optimizer, delta=DELTA, adjacency=adjacency, sample_rate=0.1, seed=seed)
    for i in range(3 * steps):
        optimizer.signal_skip_step(i % 3 < 2)
        weights.grad_sample = torch.zeros(4, 400)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if auditor.refuted:
            break
    return auditor


def noise_that_shrinks_within_steps(optimizer):
    return schedulers.LambdaNoise(optimizer, noise_lambda=lambda i: (3, 2, 1)[i % 3])


def test_a_step_is_judged_by_the_noise_that_it_was_taken_with():
    auditor = in_parts(noise_that_shrinks_within_steps, 0, 300)
    assert set(auditor.observations().noise_multiplier.values) == {1.0}
    assert not auditor.refuted


def test_a_bound_that_shrinks_within_a_step_is_refuted():
    # The records of earlier batches were clipped to more than the noise covers.
    auditor = in_parts(
        lambda one: schedulers.LambdaGradClip(one, scheduler_function=lambda i: (3, 2, 1)[i % 3]), 0, 300
    )
    assert auditor.refuted


@pytest.mark.slow
def test_correct_trainings_with_schedules_are_refuted_in_at_most_alpha_of_audits():
    schedules = [
        noise_that_shrinks_within_steps,
        lambda one: schedulers.ExponentialNoise(one, gamma=0.998),
        lambda one: schedulers.StepNoise(one, step_size=31, gamma=0.97),
        lambda one: schedulers.ExponentialGradClip(one, gamma=1.01),
    ]
    audits = [(schedule, seed) for schedule in schedules for seed in range(25)]
    refuted = sum(in_parts(*one, 150, adjacency=("substitute", "add_remove")[one[1] % 2]).refuted for one in audits)
    assert refuted <= binom.ppf(0.999, len(audits), 0.05)


@pytest.mark.slow
def test_correct_trainings_with_schedules_and_split_batches_are_refuted_in_at_most_alpha_of_audits(train):
    setting = {"schedule": "exponential", "most": 5, "epochs": 10, "noise_multiplier": 1.0}
    refuted = sum(train(audited("substitute", seed=seed), seed=seed, **setting).auditor.refuted for seed in range(25))
    assert refuted <= binom.ppf(0.999, 25, 0.05)
