"""What learned distinguishers show where there is nothing to learn."""

import sys

import numpy as np
import pandas as pd
import torch
import xarray as xr
from tqdm.auto import tqdm

from dpsub import DPSGD, crafters, data, distinguish, models
from dpsub.estimators import epsilon_lower_bound
from studies.final_models import attacks as final_attacks
from studies.kept import read_json, remembered
from studies.trainings import DELTA, final_models

SPEC = DPSGD(noise_multiplier=2.0, max_grad_norm=1.0, sample_rate=1.0, steps=10, learning_rate=2.0)
HIDDEN, RECORDS, RUNS, AUDITS = 16, 100, 256, 200
FIRST = final_attacks.WAYS["first version"]
# By name: how samples are crafted, judged and bounded, and by which loss.
WAYS = {
    "first version": (FIRST, "ade"),
    "in sample, ranks": (FIRST._replace(rule="ranks", alpha=0.05), "ade"),
    "second version": (final_attacks.WAYS["second version"], "fisher"),
    "half and half, ranks": (final_attacks.WAYS["held out"], "ade"),
    "folds": (final_attacks.WAYS["folds"], "ade"),
}


def bounds_at_zero(seed, runs=RUNS):
    """The lower bounds on ε of one audit of freshly trained models, by the names of WAYS.

    The audit's own bits are thrown away. A fair coin is tossed anew for each model, so no adversary can tell the worlds
    apart: ε is 0.
    """
    task = data.digits(n_train=RECORDS)
    model = models.mlp(task, (HIDDEN,))
    pair = crafters.mislabeled(task, model, SPEC, seed=0)
    trained = final_models(task, model, pair, SPEC, runs=runs, metrics=("weights",), seed=seed, device="cpu")
    coins = np.random.default_rng((seed, 22)).integers(0, 2, runs)
    trained = trained.assign(bit=xr.zeros_like(trained.bit) + coins.astype(np.int8))
    found = {}
    for name, (way, loss) in WAYS.items():
        by = final_attacks.attack(loss, pair, way.version)
        judged = distinguish(trained, model, by, protocol=way.protocol, progress=False)
        found[name] = epsilon_lower_bound(judged.score, judged.bit, delta=DELTA, rule=way.rule, alpha=way.alpha)
    return found


def measured(audits=AUDITS, runs=RUNS):
    """Every bound of seeded audits at ε = 0: a row for each of WAYS."""
    rows = {name: {"way": name, "loss": loss, "alpha": way.alpha, "bounds": []} for name, (way, loss) in WAYS.items()}
    for seed in tqdm(range(audits), unit=" audits"):
        for name, bound in bounds_at_zero(seed, runs).items():
            rows[name]["valid"] = bound.valid
            rows[name]["bounds"].append(round(bound.epsilon, 6))
    return list(rows.values())


def table(path="final_models/learned_at_zero.json"):
    """How often the bounds in a file that `make` made exceed ε = 0: a row for each of WAYS, with all its bounds."""
    rows = pd.DataFrame(read_json(path)["rows"]).set_index("way")
    bounds = rows.pop("bounds").map(np.array)
    counts = {"audits": bounds.map(len), "above 0": [int((of > 0).sum()) for of in bounds]}
    means = {"mean": bounds.map(np.mean), "largest": bounds.map(np.max)}
    return rows[["alpha", "valid"]].assign(**counts, **means, bounds=bounds)


def make(path):
    """Write the file."""
    of = {
        "task": f"digits, {RECORDS} records",
        "model": f"mlp ({HIDDEN},)",
        "steps": SPEC.steps,
        "noise_multiplier": SPEC.noise_multiplier,
        "runs": RUNS,
        "audits": AUDITS,
        "seeds": f"0 to {AUDITS - 1}",
        "delta": DELTA,
        "method": "gdp",
    }
    remembered(path, "of", lambda: of)
    remembered(path, "rows", measured)


if __name__ == "__main__":
    torch.set_num_threads(1)
    make(sys.argv[1])
