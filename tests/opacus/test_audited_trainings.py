"""Trainings with Opacus under audit, beside the same ones without: the models, and what is claimed of them."""

from contextlib import nullcontext

import pytest
import torch
from opacus import PrivacyEngine, schedulers
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchMemoryManager
from scipy.stats import binom
from torch.utils.data import DataLoader, TensorDataset

from dpsub import accounting
from dpsub.opacus import audit_optimizer

pytestmark = pytest.mark.filterwarnings("ignore")  # torch and Opacus warn about many things

DELTA = 1e-5
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True, foreach=False),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
    "groups": lambda parameters: torch.optim.SGD(
        [{"params": [p], "lr": 0.1 * (i + 1)} for i, p in enumerate(parameters)]
    ),
}
SCHEDULES = {
    "none": lambda optimizer: [],
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


def trained(
    audit, optimizer="sgd", schedule="none", *, most=None, poisson=True, clipping="flat", first=False, accumulated=1,
    secure=False, epochs=1, seed=0, noise_multiplier=2.0,
):  # fmt: skip
    """A training of ten batches an epoch: its engine, its parameters, and what `audit` made of its optimizer."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    records = TensorDataset(torch.randn(120, 5), torch.randint(2, (120,)))
    loader = DataLoader(records, batch_size=12, generator=torch.Generator().manual_seed(seed))
    engine, criterion = PrivacyEngine(), torch.nn.CrossEntropyLoss()
    ghost = {"grad_sample_mode": "ghost", "criterion": criterion} if clipping == "ghost" else {"clipping": clipping}
    model, optimizer, *criterion, loader = engine.make_private(
        module=model, optimizer=OPTIMIZERS[optimizer](model.parameters()), data_loader=loader, poisson_sampling=poisson,
        noise_multiplier=noise_multiplier, max_grad_norm=[0.5] * 4 if clipping == "per_layer" else 1.0,
        noise_generator=torch.Generator().manual_seed(seed), **ghost,
    )  # fmt: skip
    optimizer.secure_mode = secure
    auditor = audit(optimizer)
    scheduled = SCHEDULES[schedule](optimizer)
    criterion = criterion[0] if criterion else torch.nn.CrossEntropyLoss()
    split = BatchMemoryManager(data_loader=loader, max_physical_batch_size=most or 1, optimizer=optimizer)
    with split if most else nullcontext(loader) as batches:
        for i, (x, y) in enumerate(batch for _ in range(epochs) for batch in batches):
            criterion(model(x), y).backward()
            if (i + 1) % accumulated:
                continue
            for one in scheduled if first else []:
                one.step()
            optimizer.step()
            for one in [] if first else scheduled:
                one.step()
            optimizer.zero_grad()
    return engine, [parameter.detach() for parameter in model.parameters()], auditor


def audited(adjacency="add_remove", **options):
    return lambda optimizer: audit_optimizer(optimizer, delta=DELTA, adjacency=adjacency, **options)


# By default some optimizers and each schedule once, and what is special.
COMMON = ("momentum", "adam", "groups")
SETTINGS = [
    *(
        pytest.param({"optimizer": name, "most": most}, marks=[pytest.mark.slow] * (not most or name not in COMMON))
        for name in OPTIMIZERS
        for most in (5, None)
    ),
    *(
        pytest.param(setting, marks=[pytest.mark.slow] * (i % 3 > 0))
        for i, setting in enumerate(
            {"schedule": schedule, "most": most, "poisson": poisson}
            for schedule in SCHEDULES
            for most, poisson in ((None, True), (5, True), (5, False))
        )
    ),
    {"schedule": "exponential", "most": 5, "first": True},
    {"schedule": "clip exponential", "most": 5, "first": True},
    {"poisson": False},
    {"poisson": False, "accumulated": 2},
    {"poisson": False, "accumulated": 2, "schedule": "exponential", "optimizer": "adam"},
    {"clipping": "per_layer", "schedule": "exponential", "most": 5},
    {"clipping": "ghost", "schedule": "exponential"},
    {"clipping": "ghost", "schedule": "exponential", "most": 5},
    {"secure": True, "schedule": "exponential", "most": 5},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: " ".join(map(str, setting.values())))
def test_a_training_under_audit_is_the_same_and_its_noise_is_what_opacus_accounts(setting):
    engine, audited_parameters, auditor = trained(audited(canary="diracs"), **setting)
    _, parameters, _ = trained(lambda _: None, **setting)
    for mine, theirs in zip(parameters, audited_parameters, strict=True):
        torch.testing.assert_close(theirs, mine, atol=2e-5, rtol=1e-4)
    accounted = [sigma for sigma, _, steps in engine.accountant.history for _ in range(steps)]
    assert auditor.observations().noise_multiplier.values.tolist() == accounted


@pytest.mark.parametrize(
    "setting",
    [
        {"schedule": "step", "most": 5},
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ({"poisson": False, "accumulated": 2}, {"clipping": "ghost"})
        ),
    ],
)
def test_what_is_claimed_is_what_opacus_accounts(setting):
    engine, _, auditor = trained(audited(), **setting)
    claimed = auditor.report().claimed
    mine = accounting.epsilon(history=engine.accountant.history, delta=DELTA, adjacency="add_remove")
    assert claimed == pytest.approx(mine, rel=1e-9)
    assert claimed == pytest.approx(engine.get_epsilon(DELTA), abs=0.02)


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
def test_correct_trainings_with_schedules_and_split_batches_are_refuted_in_at_most_alpha_of_audits():
    setting = {"schedule": "exponential", "most": 5, "epochs": 10, "noise_multiplier": 1.0}
    refuted = sum(trained(audited("substitute", seed=seed), seed=seed, **setting)[2].refuted for seed in range(25))
    assert refuted <= binom.ppf(0.999, 25, 0.05)
