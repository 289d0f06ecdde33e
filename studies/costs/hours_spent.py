"""How many models the kept results took, and how many hours."""

import pandas as pd

from dpsub import audits
from studies.final_models import attacks
from studies.kept import STUDIES, read_json, read_table

ROOT = STUDIES.parent
STORES = (
    *("results/paper/quickstart", "results/paper/fig3_natural_data", "results/paper/fig3_small_network"),
    "results/paper/figA1_accuracy",
    *("results/paper/figA2_clipping", "results/paper/figA3_steps", "results/paper/figA4_learning_rate"),
    *("results/paper/figA6_text", "results/paper/journal_final_model", "results/laptop/fig4_from_scratch"),
    *("results/laptop/learned_distinguishers", "results/laptop/steps_table1"),
    "studies/beyond_membership/more_records",
)
MODELS = "results/laptop/final_models"
TABLES = {"tight_auditing/step_seeds": 1, "beyond_membership/final_sizes": 1000}  # models in a row
SIMULATED = ("estimators/validity", "estimators/validity_of_steps", "faults/fault_power")


def trained(folder):
    """The audits kept in a folder: models, seconds and device of each."""
    if folder == MODELS:
        about = attacks.kept(ROOT / folder)[1].values()
        rows = [(audit["models"], audit["wall_seconds"], audit["device"]) for audit in about]
    else:
        stores = map(audits.load, (ROOT / folder).rglob("*.db"))
        rows = [
            (audit.sizes.get("run", 1) * audit.sizes.get("repeat", 1), audit.wall_seconds, audit.device)
            for audit in stores
        ]
    return pd.DataFrame(rows, columns=["models", "seconds", "device"])


def hours_spent():
    """Models trained and hours for each folder or table of results.

    Hours are of the clock, beside other work, and in some tables of one processor. What was simulated trained no
    models. Models on GPUs are among the models, and their hours among the hours.
    """
    rows = {}
    for folder in (*STORES, MODELS):
        kept = trained(folder)
        of_gpu = kept[kept.device != "cpu"]
        rows[folder] = kept.models.sum(), kept.seconds.sum(), of_gpu.models.sum(), of_gpu.seconds.sum()
    for name, models in TABLES.items():
        table = read_table(f"{name}.csv")
        if "part" in table:  # of one training: their seconds are the same
            table = table[table.part == "all"]
        rows[f"studies/{name}"] = models * len(table), table.seconds.sum()
    for path in sorted(STUDIES.rglob("*.csv")):
        if "runs" in (table := read_table(path)):
            rows[f"studies/{path.relative_to(STUDIES).with_suffix('')}"] = table.runs.sum(), table.seconds.sum()
    for name in SIMULATED:
        made = read_json(f"{name}.json")["made"]
        rows[f"studies/{name}"] = 0, made["seconds"]
    columns = ["models", "hours", "models on GPUs", "hours on GPUs"]
    spent = pd.DataFrame.from_dict(rows, orient="index", columns=columns)
    spent = spent.fillna(0).astype(dict.fromkeys(columns[::2], int))
    spent[columns[1::2]] /= 3600
    return spent.rename_axis("kept in")
