"""Which audit fits whom: questions, and what kept audits showed."""

import json
from pathlib import Path

from dpsub import accounting, audits, estimators
from dpsub.figures.pages import Page, filled

TEMPLATE = Path(__file__).with_name("which_audit.html")
DELTA = 1e-5
# The training that is audited from outside, and step by step.
TRAINING = "digits-linear-blank-substitute"
PAIRS = 200


def numbers(results: Path) -> dict[str, float | int]:
    """What kept audits showed at 95 % confidence, and ε_S, the truth."""
    folder = results / "paper/final_model_only"
    many = audits.load(results / "paper/quickstart/S2.zarr.zip")
    final = audits.load(folder / f"{TRAINING}.zarr.zip")
    steps = audits.load(folder / f"{TRAINING}-steps.zarr.zip")
    found = {"many": last(many), "final": last(final)}
    found["steps"] = estimators.step_to_training(
        estimators.epsilon_lower_bound(steps.score, steps.bit, delta=DELTA),
        sample_rate=steps.attrs["sample_rate"],
        steps=steps.attrs["steps"],
        delta=DELTA,
        adjacency="substitute",
    ).epsilon
    audited = {"many": many, "final": final, "steps": steps}
    for name, one in audited.items():
        found[f"{name}_truth"] = promised(one)
    bridge = json.loads((results / "one_run_bridge.json").read_text())
    found["gradients"] = of_one_run(bridge["rows"], "gradient")
    found["records"] = of_one_run(bridge["rows"], "mislabeled")
    found["pairs_truth"] = bridge["of"]["substitute"]
    return {name: round(value, 2) for name, value in found.items()} | {
        "many_runs": many.sizes["run"],
        "final_runs": final.sizes["run"],
        "observations": steps.sizes["observation"],
        "pairs": PAIRS,
    }


def last(audit) -> float:
    """The bound at the last step."""
    score = audit.score.values.reshape(audit.sizes["run"], -1)[:, -1]
    bound = estimators.epsilon_lower_bound(score, audit.bit, delta=DELTA)
    return bound.epsilon


def promised(audit) -> float:
    """The substitute ε of the training."""
    names = ("noise_multiplier", "sample_rate", "steps")
    mechanism = {name: audit.attrs[name] for name in names}
    return accounting.epsilon(
        **mechanism, delta=DELTA, adjacency="substitute"
    )


def of_one_run(rows: list[dict], kind: str) -> float:
    """The mean bound of one training with many pairs."""
    wanted = {"kind": kind, "pairs": PAIRS, "models": 1}
    wanted |= {"method": "gdp", "score": "step_score"}
    [row] = [r for r in rows if wanted == {k: r[k] for k in wanted}]
    return sum(row["bounds"]) / len(row["bounds"])


def page(results: str | Path = "../results") -> Page:
    """The questions and the answer, as HTML that needs no kernel."""
    return filled(TEMPLATE, shown=numbers(Path(results)))
