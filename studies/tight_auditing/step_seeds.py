"""Audits of steps over seeds, with a row for each audit in one table.

``python -m studies.tight_auditing.step_seeds FILE fig17=50 fig15=10`` makes the audits of Figure 17 of *Tight Auditing*
with 50 seeds, then those of Figure 15 with 10. It appends to a file that exists, and leaves out what is in it.

A row judges all observations of an audit or, if its canary is a record, those of a part of its steps. The first 250
steps of two trainings are 500 observations, as in the paper's Figures 10 and 17. A bound of a part is converted to the
training of all 2,500 steps.

Ten seeds of each figure, 60 of Figure 18 and 50 or 60 of Figure 17 take about ten hours on one core. Of these
``fig10_convnet_crafted`` takes 1.4, and ``fig10_crafted_longer``, ``fig10_crafted_others`` and ``table1_images`` one
each. Figures share audits: those of ``fig17_two`` and ``fig17_two_crafted`` are in Figure 10's.
"""

import sys
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from hashlib import sha256
from itertools import product

import dpsub
from dpsub.estimators import LowerBound
from studies.kept import continued
from studies.scores import separation
from studies.tight_auditing import canary_audits, step_tables
from studies.trainings import DELTA, ON_A_CPU, calibrated

RATE, STEPS, NORM = 0.02, 2_500, 1.0
ESTIMATORS = dict(
    zip(("bets", "ranks", "gdp_cp", "gdp_zb", "dp_cp", "dp_zb", "katz"), step_tables.ESTIMATORS.values(), strict=True)
)
CONVERTED = ("bets", "gdp_cp", "gdp_zb")  # to the ε of the training
PARTS = {  # the first step and the last, of each training
    "all": (1, STEPS),
    "first 250": (1, 250),
    "first half": (1, STEPS // 2),
    "second half": (STEPS // 2 + 1, STEPS),
}


@dataclass(frozen=True)
class Setting:
    """One audit, but for its seed."""

    task: str = "digits"  # as `canary_audits.task` and `model` know them
    model: str = "mlp 128"
    canary: str = "mislabeled"  # or "dirac anew", "random fixed" …
    crafting: int = 0  # steps of Algorithm 3 at each training step
    copies: int = 0  # of each image; 0: no augmentation
    epsilon: float = 8.0  # what the noise is calibrated to, under `epsilon_of`
    epsilon_of: str = "add_remove"
    adjacency: str = "add_remove"
    n: int = 500  # the slot included
    rate: float = 0.2  # η
    trainings: int = 2  # of 2,500 steps each


NAMES = [field.name for field in fields(Setting)]
CRAFTED = Setting(canary="crafted", crafting=5)
GRADIENTS = (*("dirac anew", "dirac fixed", "random anew", "random fixed"), "constant fixed")
PLAIN = ("mislabeled", "blank", "adversarial")
EPSILONS = (1.0, 2.0, 4.0, 8.0, 10.0, 16.0)
BELOW_TEN = EPSILONS[:4]
TABLE_1 = {
    "digits": ("linear", 500),
    "purchases": ("mlp 128", 2_500),
    "random 28": ("mlp 128", 2_500),
    "mnist": ("convnet small", 2_500),
    "cifar10": ("convnet small", 2_500),
}


def _along(*canaries):
    return [Setting(task, canary=canary, trainings=1) for task, canary in product(("digits", "random"), canaries)]


def _table_1(adjacency, *tasks):
    return [
        Setting(task, model, "dirac anew", 0, 0, epsilon, adjacency, adjacency, n, 0.5)
        for task, (model, n) in TABLE_1.items()
        if task in tasks
        for epsilon in (1.0, 4.0, 8.0, 16.0)
    ]


def _by_epsilon(*settings, epsilons=EPSILONS):
    return [replace(one, epsilon=epsilon) for one, epsilon in product(settings, epsilons)]


FIGURES = {
    "fig10": _by_epsilon(Setting(canary="dirac anew"), Setting()),
    "fig10_models": _by_epsilon(Setting(model="linear"), Setting("random")),
    "fig10_crafted": _by_epsilon(CRAFTED),
    "fig10_crafted_longer": _by_epsilon(replace(CRAFTED, crafting=20), epsilons=BELOW_TEN),
    "fig10_crafted_others": _by_epsilon(
        *(replace(CRAFTED, task=one) for one in ("random", "mnist")), epsilons=BELOW_TEN
    ),
    "fig10_convnet": [Setting("mnist", "convnet small", canary=one) for one in ("dirac anew", "mislabeled")],
    "fig10_convnet_crafted": [replace(CRAFTED, task="mnist", model="convnet small")],
    "fig15": [Setting(canary=one) for one in GRADIENTS],
    "fig15_mnist": [Setting("mnist", canary=one) for one in GRADIENTS],
    "fig16": [Setting(canary=one) for one in PLAIN],
    "fig16_mnist": [Setting("mnist", canary=one) for one in PLAIN[:2]],
    "fig16_mnist_crafted": [replace(CRAFTED, task="mnist")],
    "fig16_crafted": [replace(CRAFTED, crafting=one) for one in (1, 5)],
    "fig16_crafted_longer": [replace(CRAFTED, crafting=20)],
    "fig17": _along("mislabeled"),
    "fig17_others": _along("blank", "dirac anew"),
    "fig17_crafted": [replace(one, crafting=5) for one in _along("crafted")],
    "fig17_two": _by_epsilon(Setting(), Setting("random"), epsilons=BELOW_TEN),
    "fig17_two_crafted": _by_epsilon(CRAFTED, replace(CRAFTED, task="random"), epsilons=BELOW_TEN),
    "fig18": [Setting(model=one) for one in ("linear", "mlp 16", "mlp 128", "mlp 512")],
    "fig18_crafted": [replace(CRAFTED, model=one) for one in ("linear", "mlp 16", "mlp 512")],
    "fig18_dirac": [Setting(model=one, canary="dirac anew") for one in ("linear", "mlp 16", "mlp 128", "mlp 512")],
    "fig19": [Setting(model="small convnet", copies=one) for one in (1, 2, 4, 8)],
    "fig19_dirac": [Setting(model="small convnet", canary="dirac anew", copies=one) for one in (1, 2, 4, 8)],
    "table1": _table_1("add_remove", "digits", "purchases", "random 28"),
    "table1_images": _table_1("add_remove", "mnist", "cifar10"),
    "table1_substitute": _table_1("substitute", *TABLE_1),
}
OF_TABLE_1 = {one for name, settings in FIGURES.items() if name.startswith("table1") for one in settings}
FIGURES |= {
    f"{name}_substitute": [replace(one, adjacency="substitute") for one in FIGURES[name]]
    for name in ("fig10", "fig15", "fig16", "fig16_crafted")
}


@cache
def spec_of(setting):
    """The DP-SGD parameters of a setting."""
    return calibrated(setting.epsilon, setting.epsilon_of, NORM, RATE, STEPS, setting.rate)


def audited(setting, seed):
    """The audit of a setting. Its random numbers are its own."""
    own = int.from_bytes(sha256(repr((setting, seed)).encode()).digest()[:4], "little")
    if setting.copies:
        task = canary_audits.images(setting.task, setting.n, seed)
        model = canary_audits.augmented("", task, setting.copies)
    else:
        task = canary_audits.task(setting.task, setting.n, seed)
        model = canary_audits.model(setting.model, task)
    spec = spec_of(setting)
    steps = setting.crafting or None
    pair = canary_audits.canary(task, model, spec, setting.canary, seed=own, crafting_steps=steps)
    if setting.adjacency != "substitute":
        pair = pair.against_nothing(adjacency=setting.adjacency)
    return dpsub.audit_steps(task, model, pair, spec, trainings=setting.trainings, seed=own, **ON_A_CPU)


def measured(result, *, converted=CONVERTED):
    """What the observations of an audit, or some of them, show.

    Beside `canary_of`: `mu`, the distance of the worlds over the standard deviation within one, which estimates the μ
    of a step without any confidence; `step_…`, the bound on the ε of a step by each estimator; and for those that are
    `converted`, `training_…`, that of the training.
    """
    law = step_tables.training_law(result)
    found = {"observations": result.sizes["observation"]} | step_tables.canary_of(result)
    found["mu"] = separation(result.score, result.bit)
    for name, way in ESTIMATORS.items():
        step = step_tables.step_bound(result, way, delta=DELTA)
        found[f"step_{name}"] = step.epsilon
        if name in converted:
            found[f"training_{name}"] = step_tables.of_training(step, law, delta=DELTA)
    if converted:
        known = LowerBound(0.0, "gdp", "gdp", False, of="step", mu=max(found["mu"], 0.0))
        found["training_mu"] = step_tables.of_training(known, law, delta=DELTA)
    return found


def parts_of(setting):
    """The parts of a setting's trainings that are judged: canaries that are records have more than one."""
    return list(PARTS) if setting.canary in canary_audits.RECORDS else ["all"]


def rows_of(cell):
    """The rows of one audit, a part of its steps each."""
    setting = Setting(**{name: cell[name] for name in NAMES})
    result = audited(setting, cell["seed"])
    rows = []
    for part in parts_of(setting):
        first, last = PARTS[part]
        seen = result.isel(observation=((result.step >= first) & (result.step <= last)).values)
        numbers = measured(seen, converted=ESTIMATORS if setting in OF_TABLE_1 else CONVERTED)
        rows.append({"part": part} | {name: f"{one:.5g}" for name, one in numbers.items()})
    return rows


COLUMNS = [
    *("part", "observations", "noise", "apart", "others", "mu"),
    *(f"step_{name}" for name in ESTIMATORS),
    "training_mu",
    *(f"training_{name}" for name in ESTIMATORS),
]


def make(path, figures):
    """Append the audits of figures, each with its number of seeds, that the table does not have yet."""
    about = f"audits of steps, q = {RATE}, T = {STEPS}, C = {NORM}, delta = {DELTA}; one core of a shared machine, "
    cells = dict.fromkeys(  # figures share settings
        (*asdict(setting).values(), seed)
        for name, seeds in figures
        for seed, setting in product(range(seeds), FIGURES[name])
    )
    continued(path, (*NAMES, "seed"), cells, rows_of, columns=COLUMNS, about=about + "processor seconds")


if __name__ == "__main__":
    place, *asked = sys.argv[1:]
    wanted = (one.partition("=") for one in asked)
    make(place, [(name, int(seeds)) for name, _, seeds in wanted])
