"""Figure 4's training with more records, or in more models.

``python -m studies.beyond_membership.more_records FOLDER DEVICE Q N S2=1024`` audits 1,024 models with the crafted
gradient. For a record, S3=128 trains 128 pairs of twins, and S3=2500,alone=1 one audit of 2,500 models. For the crafted
gradient, S2=256,crafted=1 crafts by another seed, and S2=256,parameter=89747 puts the canary on a parameter of one's
choice. ``places=5`` crafts by five seeds and keeps where the canaries are in ``places.csv``. What is there is not made
again.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import dpsub
from dpsub import audits, crafters
from dpsub.crafters.reference_model import noiseless_training
from studies.kept import continued
from studies.trainings import calibrated

STEPS = 2500
OBSERVE_EVERY = 125
EXCHANGED = "-exchanged"


def train(folder, task, q, scenario, runs, *, steps=STEPS, alone=0, crafted=0, parameter=None, **options):
    """Audit a scenario with Table A1's values for Purchase100, and keep it in a folder: "q=0.25-n=50000-S3.db".

    For a record each model has a twin in "q=0.25-n=50000-S3-exchanged.db": the same start, batches and noise, with the
    other canary in its slot.

    Args:
        runs: models, without their twins.
        alone: the seed of a record's audit without twins; 0 for twins, of seed 0.
        crafted: the seed of crafting.
        parameter: on which the crafted gradient is, in place of the one that Algorithm 2 finds.
        options: of `dpsub.audit`.
    """
    model, spec = trained(task, q, steps)
    pair = crafters.BY_SCENARIO[scenario](task, model, spec, seed=crafted)
    if parameter is not None:
        pair = moved(pair, parameter)
    chosen = {"crafted": crafted or None, "parameter": parameter, "alone": alone or None}
    of = "".join(f"-{name}={value}" for name, value in chosen.items() if value is not None)
    pairs, metrics = {"": pair}, ("accuracy",)
    if scenario != "S2" and not alone:
        pairs[EXCHANGED] = pair.exchanged()
        metrics = ("accuracy", "distance")
    options |= {"observe_every": min(OBSERVE_EVERY, steps), "metrics": metrics, "seed": alone}
    for end, one in pairs.items():
        store = Path(folder, f"q={q:g}-n={len(task.y_train)}-{scenario}{of}{end}.db")
        dpsub.audit(task, model, one, spec, runs=runs, store=store, **options)


def trained(task, q, steps=STEPS):
    """The model, and the spec at this sample rate."""
    return dpsub.models.mlp(task, hidden=(128,)), calibrated(10.0, "substitute", 5.0, q, steps, 1.8e-3, "adam")


def place(task, q, seed, *, steps=STEPS):
    """Where Algorithm 2 puts the canary by one seed, the best bias, and the place by the published code's rule.

    That code takes the parameter whose clipped gradients, over all steps, have the least sum of squares.
    """
    model, spec = trained(task, q, steps)
    training = noiseless_training(task, model, spec, seed)
    before = model.flat(next(training).theta)[0].clone()
    travel, squares = torch.zeros_like(before), torch.zeros_like(before)
    for bank in training:
        theta = model.flat(bank.theta)[0].clone()
        travel += (theta - before).abs()
        squares += bank.noisy_average[0] ** 2  # a step without noise has none
        before = theta
    first_bias = len(travel) - task.num_classes
    by_travel, by_squares = int(travel.argmin()), int(squares.argmin())
    return {
        "parameter": by_travel,
        "on_bias": int(by_travel >= first_bias),
        "travel": float(travel.min()),
        "travel_of_bias": float(travel[first_bias:].min()),
        "travel_of_median": float(travel.median()),
        "by_squares": by_squares,
        "by_squares_on_bias": int(by_squares >= first_bias),
        "travel_by_squares": float(travel[by_squares]),
    }


def moved(pair, parameter):
    """A crafted gradient on another parameter."""
    z = np.zeros_like(pair.z)
    z[parameter] = pair.z.max()
    travel = float(pair.trace["travel"][parameter])
    details = pair.details | {"parameter": parameter, "travel": travel}
    return replace(pair, z=z, z_prime=-z, details=details)


def twins(folder):
    """The twins of a folder, in pairs, by q, n and scenario."""
    found = {}
    for path in Path(folder).glob(f"*{EXCHANGED}.db"):
        stem = path.stem.removesuffix(EXCHANGED)
        one = audits.load(path.with_name(f"{stem}.db"))
        of = one.sample_rate, one.n, one.scenario
        found[of] = one, audits.load(path)
    return dict(sorted(found.items()))


if __name__ == "__main__":
    folder, device, q, n = sys.argv[1:5]
    records = dpsub.data.purchase100_like(int(n), int(n), 0)
    for wanted in sys.argv[5:]:
        first, *others = wanted.split(",")
        scenario, runs = first.split("=")
        if scenario == "places":
            continued(
                Path(folder, "places.csv"),
                ("q", "n", "seed"),
                [(float(q), int(n), seed) for seed in range(int(runs))],
                lambda own: [place(records, own["q"], own["seed"])],
            )
            continue
        chosen = {name: int(of) for name, of in (one.split("=") for one in others)}
        train(folder, records, float(q), scenario, int(runs), device=device, **chosen)
