"""How far apart a canary's two gradients are, beside what an attack finds, in four kinds of models."""

import numpy as np
import pandas as pd

from dpsub import accounting
from studies.beyond_membership import distances, from_scratch, more_repeats
from studies.language_models import audits as sst2
from studies.language_models import figures as language_models


def add_remove(one, delta):
    """The add/remove ε of a training run."""
    spec = more_repeats.spec_of(one)
    return accounting.epsilon(**spec.mechanism, delta=delta, adjacency="add_remove")


def compared(natural, scaled, paper_sized, *, delta):
    """A row for each model and canary: share of 2C apart, what is found (≥ a bound, ≈ an estimate), and both ε.

    Args:
        natural: the audits of Figure 3.
        scaled: the table of `text_norms`.
        paper_sized: what `from_scratch.kept` gives.
        delta: the δ at which every ε is stated.
    """
    rows, full_batch = {}, add_remove(natural["q = 1", "S3"], delta)
    apart = distances.kept("fig3_natural_data")
    for scenario, canary in (("S3", "crafted input"), ("S4", "another label")):
        one = natural["q = 1", scenario]
        bound = np.mean(more_repeats.bounds(one, delta=delta))
        rows["natural data", canary] = apart[one.sample_rate, scenario], f"≥ {bound:.2f}", full_batch, 10
    one = paper_sized.twins[0.0625, 50_000, "S3"][0]
    distance = float((one.distance**2).mean() ** 0.5)
    found = from_scratch.of_alone(paper_sized.alone, delta=delta)["epsilon"]
    rows["from scratch", "crafted input"] = distance, f"≈ {found:.2f}", add_remove(one, delta), 10
    for norm in (1.0, 10.0):
        at = scaled.loc[norm, "S3"]
        rows[f"text, norm {norm:g}", "crafted input"] = at.distance, f"≈ {at.epsilon:.2f}", full_batch, 10
    few, _ = language_models.kept()
    for task, canary, called in (
        ("rating", "another label", "another label"),
        ("last word", "number", "secret word"),
        ("text", "number", "secret word"),
    ):
        at = few.loc[task, canary, 1.0]
        limits = language_models.add_remove(), sst2.EPSILON
        rows[f"GPT-2, {task}", called] = at.distance, f"≥ {at.score:.2f}", *limits
    columns = ["apart", "found", "add_remove", "substitute"]
    return pd.DataFrame(rows, index=columns).T.infer_objects().rename_axis(["model", "canary"]).round(2)
