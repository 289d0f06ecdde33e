"""How many models the kept results took, and how many hours."""

import json
from pathlib import Path

import pandas as pd

from dpsub import audits
from own_code import final_attacks, kept_tables

STORES = (
    *("paper/quickstart", "paper/fig3_natural_data", "paper/what_weakens"),
    *("paper/figA6_text", "paper/final_model_only"),
    *("laptop/fig4_from_scratch", "laptop/learned_distinguishers"),
    *("laptop/steps_table1", "more_records"),
)
MODELS = "laptop/final_models"
TABLES = {"steps_over_seeds": 1, "final_sizes": 1000}  # models in a row
SIMULATED = ("estimator_validity", "step_validity", "fault_power")


def trained(results, name):
    """The audits kept in a folder: models, seconds and device of each."""
    if name == MODELS:
        about = final_attacks.kept(Path(results, name))[1].values()
        kept = (
            (one["models"], one["wall_seconds"], one["device"])
            for one in about
        )
    else:
        stores = map(audits.load, Path(results, name).rglob("*.db"))
        kept = (
            (
                one.sizes.get("run", 1) * one.sizes.get("repeat", 1),
                one.wall_seconds,
                one.device,
            )
            for one in stores
        )
    return pd.DataFrame(kept, columns=["models", "seconds", "device"])


def hours_spent(results):
    """Models trained and hours for each folder or table of `results`.

    Hours are of the clock, beside other work, and in the tables of one
    processor. What was simulated trained no models. Models on GPUs are
    among the models, and their hours among the hours.
    """
    results, rows = Path(results), {}
    for name in (*STORES, MODELS):
        kept = trained(results, name)
        of_gpu = kept[kept.device != "cpu"]
        rows[name] = kept.models.sum(), kept.seconds.sum()
        rows[name] += of_gpu.models.sum(), of_gpu.seconds.sum()
    for name, models in TABLES.items():
        table = kept_tables.read(results / f"{name}.csv")
        if "part" in table:  # of one training: their seconds are the same
            table = table[table.part == "all"]
        rows[name] = models * len(table), table.seconds.sum()
    seeds = kept_tables.read(results / "crafting_seeds.csv")
    rows["crafting_seeds"] = seeds.runs.sum(), seeds.seconds.sum()
    for name in SIMULATED:
        made = json.loads((results / f"{name}.json").read_text())["made"]
        rows[name] = 0, made["seconds"]
    columns = ["models", "hours", "models on GPUs", "hours on GPUs"]
    found = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    found = found.fillna(0).astype(dict.fromkeys(columns[::2], int))
    found[columns[1::2]] /= 3600
    return found.rename_axis("in results/")
