"""How what a sample shows of other models grows with those it learns from, and along its crafting."""

import sys
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from dpsub import crafters, figures, findings
from dpsub.crafters.adversarial_samples import trained_with_z
from dpsub.crafters.sample_losses import OBJECTIVES, separation
from studies.final_models.attacks import BOUNDS, MARGIN
from studies.final_models.audits import grid, made_for
from studies.final_models.figures import COLORS, MARKERS, NAMES, chosen
from studies.kept import continued, read_json
from studies.trainings import final_models

LOSSES = ("ude", "ade", "fisher")
SIZES = (64, 256, 1024, 4096, 16384)  # models crafted on
JUDGED = 8192
JACKKNIFE = 16  # parts of the judged models
PARTS = 8  # samples of one size at most, each crafted on models of its own
# Steps of Adam from the canary, and their rate: as in the paper's first version, in its second, and longer.
CRAFTINGS = ((10, 0.05), (5, 0.01), (100, 0.01))
TITLES = {
    "digits-average-blank-eps10-C1-add_remove": "blank",
    "digits-average-mislabeled-eps10-C1-add_remove": "mislabeled",
    "digits-average-blank-eps10-C1-substitute": "blank, substitution",
}


def cells():
    """The blank and the mislabeled canary, and blank under substitution."""
    audits = {audit.name: audit for audit in grid("digits")}
    wanted = (("blank", "add_remove"), ("mislabeled", "add_remove"), ("blank", "substitute"))
    return [audits[f"digits-average-{canary}-eps10-C1-{adjacency}"] for canary, adjacency in wanted]


def curve(cell, *, sizes=SIZES, judged=JUDGED, craftings=CRAFTINGS):
    """The separation of judged models by samples, and by the canary.

    The models of the audit `cell` are trained with another seed. Samples are crafted on the first of them, `sizes` at a
    time, and all judge the last ones. Under substitution samples ask about both labels. A row for each loss, crafting
    and size has one separation for each sample, and the standard error of its share.
    """
    records, network, pair = made_for(cell)
    trained = final_models(
        records, network, pair, cell.spec, runs=max(sizes) + judged, metrics=("weights",), seed=cell.seed + 2
    )
    weights, bits = trained.weights.values, trained.bit.values
    last = slice(max(sizes), None)
    score = trained.score.values[last, -1]
    rows = []
    for loss in LOSSES:
        for steps, rate in craftings:
            for size in sizes:
                found, errors = [], []
                for part in range(min(PARTS, max(sizes) // size)):
                    these = slice(part * size, (part + 1) * size)
                    sample = crafters.adversarial_sample(
                        network,
                        weights[these],
                        bits[these],
                        start=pair.z,
                        y_prime=pair.z_prime.y if cell.adjacency == "substitute" else None,
                        loss=loss,
                        margin=MARGIN,
                        steps=steps,
                        learning_rate=rate,
                        bounds=BOUNDS,
                    )
                    scores = sample.scores(network, weights[last])
                    found.append(findings.d_prime(scores, bits[last]))
                    errors.append(share_error(scores, score, bits[last]))
                row = {"loss": loss, "steps": steps, "rate": rate, "models": size}
                rows.append(row | {"separations": found, "share_errors": errors})
    return rows, findings.d_prime(score, bits[last])


def crafting_curves(sample, model, weights, bits):
    """`step`, and the `loss` that crafting minimised and the `separation` of any models by the samples in its trace.

    Args:
        sample: what `adversarial_sample` returned.
        weights, bits: of the models: (runs, parameters), and (runs,): 0 if trained with z, 1 otherwise.
    """
    criterion, margin = OBJECTIVES[str(sample.details["loss"])], float(sample.details["margin"])
    losses = [-torch.tensor(replace(sample, x=x).scores(model, weights)) for x in sample.trace["x"]]
    with_z = torch.tensor(trained_with_z(bits, len(losses[0])))
    worlds = [(at_moment[with_z], at_moment[~with_z]) for at_moment in losses]
    return {
        "step": sample.trace["step"],
        "loss": np.array([float(criterion(*both, margin)) for both in worlds]),
        "separation": np.array([separation(*both) for both in worlds]),
    }


def share_error(scores, others, bits):
    """The standard error of d′ by scores over that by others: the jackknife's, over parts of the judged models."""
    part, shares = np.arange(len(bits)) % JACKKNIFE, []
    for one in range(JACKKNIFE):
        ours, theirs = (findings.d_prime(each[part != one], bits[part != one]) for each in (scores, others))
        shares.append(ours / theirs)
    return float(np.sqrt((JACKKNIFE - 1) * np.var(shares)))


def measured(cell):
    """The rows of an audit that is named."""
    rows, own = curve({audit.name: audit for audit in cells()}[cell["cell"]])
    return [row | {"canary": own} for row in rows]


def table():
    """Mean separations by cell, loss, steps and models, and the canary's; and all that the file holds.

    `share` is the separation by the sample over that by the canary, and `error` the largest standard error of it.
    """
    kept = read_json("final_models/crafting_curve.json")
    rows = pd.DataFrame(kept["rows"])
    rows["separation"] = rows.separations.map(np.mean)
    rows["share"] = rows.separation / rows.canary
    rows["error"] = rows.share_errors.map(max)
    return rows.drop(columns=["separations", "share_errors"]), kept


def draw(curve, of):
    """The shares of `table` by the number of models crafted on: filled by the first crafting, hollow by the second."""
    fig, axes = plt.subplots(1, 3, figsize=(6.8, 2.6), sharey=True, layout="constrained")
    for ax, (cell, title) in zip(axes, TITLES.items(), strict=True):
        for loss in LOSSES:
            for (steps, _), line in zip(CRAFTINGS, ("-", "--"), strict=False):
                own = chosen(curve, cell=cell, loss=loss, steps=steps)
                look = {"color": COLORS[loss], "marker": MARKERS[loss], "mfc": None if line == "-" else "white"}
                ax.plot(own.models, own.share, ls=line, ms=4, label=f"{NAMES[loss]}, {steps} steps", **look)
        ax.axhline(1, color=COLORS["canary"], lw=1)
        ax.set_xscale("log", base=4)
        ax.set_xticks([64, 1024, 16384], ["64", "1,024", "16,384"])
        ax.minorticks_off()
        ax.set_xlabel("models crafted on")
        figures.tag(ax, title)
    axes[0].set_ylim(0, 1.1)
    axes[0].set_ylabel("μ, relative to the canary's")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    figures.name_source(fig, f"digits; {of['judged']:,} judged models each")
    return fig


if __name__ == "__main__":
    torch.set_num_threads(1)
    first = cells()[0]
    of = {"judged": JUDGED, "n": first.n_train, "epsilon": first.epsilon}
    continued(sys.argv[1], ("cell",), [(audit.name,) for audit in cells()], measured, about={"of": of})
