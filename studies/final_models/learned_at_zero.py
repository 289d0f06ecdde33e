"""What learned distinguishers show where there is nothing to learn."""

import sys

import numpy as np
import pandas as pd
import torch
import xarray as xr
from tqdm.auto import tqdm

from dpsub import DPSGD, audit, crafters, data, distinguish, models
from dpsub.estimators import epsilon_lower_bound
from studies.final_models import attacks as final_attacks
from studies.kept import read_json, remembered

DELTA = 1e-5
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


def trained_at_zero(seed, runs):
    """Freshly trained models, and bits that say nothing about them.

    The audit's own bits are thrown away. A fair coin is tossed anew for
    each model, so no adversary can tell the worlds apart: ε is 0.
    """
    task = data.digits(n_train=RECORDS)
    model = models.mlp(task, (HIDDEN,))
    pair = crafters.mislabeled(task, model, SPEC, seed=0)
    trained = audit(
        task,
        model,
        pair,
        SPEC,
        runs=runs,
        observe_every=SPEC.steps,
        metrics=("weights",),
        seed=seed,
        device="cpu",
        progress=False,
    )
    coins = np.random.default_rng((seed, 22)).integers(0, 2, runs)
    bits = xr.zeros_like(trained.bit) + coins.astype(np.int8)
    return trained.assign(bit=bits), model, pair


def bounds_at_zero(seed, runs=RUNS):
    """The lower bounds on ε of one audit, by the names of WAYS."""
    trained, model, pair = trained_at_zero(seed, runs)
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
    """How often bounds exceed ε = 0, from a file that `make` made.

    Returns:
        A row for each of WAYS: α; whether the bound claims to be valid; how
        many audits there were, and in how many the bound is above 0; the
        mean and the largest bound; all bounds.
    """
    rows = []
    for row in read_json(path)["rows"]:
        bounds = np.array(row["bounds"])
        rows.append(
            {
                "way": row["way"],
                "alpha": row["alpha"],
                "valid": row["valid"],
                "audits": len(bounds),
                "above 0": int((bounds > 0).sum()),
                "mean": bounds.mean(),
                "largest": bounds.max(),
                "bounds": bounds,
            }
        )
    return pd.DataFrame(rows).set_index("way")


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
